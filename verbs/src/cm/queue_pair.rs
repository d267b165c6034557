//! Queue pairs, completion queues and shared receive queues of identifiers.
#![expect(unsafe_code, reason = "objects of C are reached by pointers")]

use core::ffi::c_int;
use core::mem;
use std::ptr;

use super::abi::{CmId, UDP_QKEY};
use super::devices;
use super::identifier;
use crate::abi::{
    Pd, Qp, QpAttr, QpInitAttr, QpInitAttrEx, SrqInitAttr, access, attr_mask as mask, init_attr, qps, qpt,
};
use crate::errno::{self, Errno, minus_one};
use crate::{channel, cq, qp, qp_ex, srq};

/// A pointer that a call of verbs has returned.
fn made<T>(pointer: *mut T) -> Result<*mut T, Errno> {
    if pointer.is_null() { Err(errno::last()) } else { Ok(pointer) }
}

/// The protection domain that the program gives, or the identifier's, or that of all who bring
/// none.
///
/// # Safety
///
/// See the crate.
unsafe fn domain(id: &CmId, given: *mut Pd) -> Result<*mut Pd, Errno> {
    // SAFETY: see the crate.
    match unsafe { given.as_ref() } {
        // A wrong context shows here.
        Some(pd) if pd.context != id.verbs => Err(libc::EINVAL),
        Some(_) => Ok(given),
        None if !id.pd.is_null() => Ok(id.pd),
        None => devices::with_context(id.verbs).ok_or(libc::EINVAL)?.pd(),
    }
}

/// Makes a completion queue, and its channel, for a side that has none.
///
/// # Safety
///
/// See the crate.
unsafe fn make_cqs(id: &mut CmId, send: u32, receive: u32) -> Result<(), Errno> {
    // SAFETY: see the crate.
    unsafe {
        for (size, channel, cq) in [
            (send, &mut id.send_cq_channel, &mut id.send_cq),
            (receive, &mut id.recv_cq_channel, &mut id.recv_cq),
        ] {
            if size == 0 || !cq.is_null() {
                continue;
            }
            let size = c_int::try_from(size).map_err(|_| libc::EINVAL)?;
            *channel = made(channel::create_comp_channel(id.verbs))?;
            *cq = made(cq::create_cq(id.verbs, size, ptr::from_mut(cq).cast(), *channel, 0))?;
        }
    }
    Ok(())
}

/// Destroys what [`make_cqs`] made.
///
/// # Safety
///
/// See the crate.
unsafe fn destroy_cqs(id: &mut CmId) {
    // SAFETY: see the crate.
    unsafe {
        for (channel, cq) in
            [(&mut id.send_cq_channel, &mut id.send_cq), (&mut id.recv_cq_channel, &mut id.recv_cq)]
        {
            let (channel, cq) = (mem::replace(channel, ptr::null_mut()), mem::replace(cq, ptr::null_mut()));
            if !cq.is_null() {
                cq::destroy_cq(cq);
            }
            if !channel.is_null() {
                channel::destroy_comp_channel(channel);
            }
        }
    }
}

/// `rdma_create_qp`: a queue pair that can receive (RC), or send and receive (UD).
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn create_qp(id: *mut CmId, pd: *mut Pd, init: *mut QpInitAttr) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { identifier::of(id) }.origin.check() {
        return minus_one(Err(error));
    }
    // SAFETY: see the crate.
    minus_one(unsafe { create_plain(&mut *id, pd, &mut *init) })
}

/// Creates the queue pair of an identifier, without extensions.
///
/// # Safety
///
/// See the crate.
pub(crate) unsafe fn create_plain(id: &mut CmId, pd: *mut Pd, init: &mut QpInitAttr) -> Result<(), Errno> {
    // SAFETY: see the crate.
    unsafe { create(id, pd, init, |pd, init| made(qp::create_qp(pd, init))) }
}

/// Creates the queue pair of an identifier by `make`, with the identifier's completion queues where
/// the program gives none.
///
/// # Safety
///
/// See the crate.
unsafe fn create(
    id: &mut CmId,
    pd: *mut Pd,
    init: &mut QpInitAttr,
    make: impl FnOnce(*mut Pd, &mut QpInitAttr) -> Result<*mut Qp, Errno>,
) -> Result<(), Errno> {
    if !id.qp.is_null() || id.verbs.is_null() {
        return Err(libc::EINVAL);
    }
    let differs = |own: *mut crate::abi::Cq, given: *mut crate::abi::Cq| {
        !own.is_null() && !given.is_null() && own != given
    };
    if differs(id.send_cq, init.send_cq) || differs(id.recv_cq, init.recv_cq) {
        return Err(libc::EINVAL);
    }
    // SAFETY: see the crate.
    unsafe {
        let pd = domain(id, pd)?;
        let of = |given: *mut crate::abi::Cq, size: u32| if given.is_null() { size.max(1) } else { 0 };
        let (send, receive) =
            (of(init.send_cq, init.cap.max_send_wr), of(init.recv_cq, init.cap.max_recv_wr));
        let result = make_cqs(id, send, receive).and_then(|()| {
            if init.send_cq.is_null() {
                init.send_cq = id.send_cq;
            }
            if init.recv_cq.is_null() {
                init.recv_cq = id.recv_cq;
            }
            if init.srq.is_null() {
                init.srq = id.srq;
            }
            let made = make(pd, init)?;
            begin(id, made, init.qp_type).inspect_err(|_| _ = qp::destroy_qp(made))?;
            id.qp = made;
            id.pd = pd;
            Ok(())
        });
        if result.is_err() && id.srq.is_null() {
            destroy_cqs(id);
        }
        result
    }
}

/// Moves a new queue pair to the state before a connection, or to that in which it sends.
///
/// # Safety
///
/// See the crate.
unsafe fn begin(id: &CmId, qp: *mut Qp, kind: c_int) -> Result<(), Errno> {
    let mut attr = QpAttr {
        qp_state: qps::INIT,
        port_num: id.port_num,
        qkey: UDP_QKEY,
        qp_access_flags: access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC,
        ..QpAttr::default()
    };
    let steps: &[(c_int, c_int)] = match kind {
        qpt::UD => &[
            (qps::INIT, mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::QKEY),
            (qps::RTR, mask::STATE),
            (qps::RTS, mask::STATE | mask::SQ_PSN),
        ],
        _ => &[(qps::INIT, mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS)],
    };
    for &(state, given) in steps {
        attr.qp_state = state;
        // SAFETY: see the crate.
        match unsafe { qp::modify_qp(qp, &mut attr, given) } {
            0 => {}
            error => return Err(error),
        }
    }
    Ok(())
}

/// `rdma_create_qp_ex`: with what [`qp_ex::create_qp_ex`] knows.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn create_qp_ex(id: *mut CmId, attr: *mut QpInitAttrEx) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { identifier::of(id) }.origin.check() {
        return minus_one(Err(error));
    }
    // SAFETY: see the crate: the structure reaches as far as its mask says.
    minus_one(unsafe {
        let pd = if (*attr).comp_mask & init_attr::PD != 0 { (*attr).pd } else { ptr::null_mut() };
        let mut init = qp_ex::plain(attr);
        create(&mut *id, pd, &mut init, |pd, init| {
            ((*attr).send_cq, (*attr).recv_cq, (*attr).srq) = (init.send_cq, init.recv_cq, init.srq);
            qp_ex::create(attr, pd)
        })
    })
}

/// `rdma_destroy_qp`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn destroy_qp(id: *mut CmId) {
    // SAFETY: see the crate.
    unsafe {
        let id = &mut *id;
        let qp = mem::replace(&mut id.qp, ptr::null_mut());
        if !qp.is_null() {
            qp::destroy_qp(qp);
        }
        // Those of a shared receive queue stay with it.
        if id.srq.is_null() {
            destroy_cqs(id);
        }
    }
}

/// `rdma_create_srq`: queue pairs of the identifier use it.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn create_srq(id: *mut CmId, pd: *mut Pd, init: *mut SrqInitAttr) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { identifier::of(id) }.origin.check() {
        return minus_one(Err(error));
    }
    // SAFETY: see the crate.
    minus_one(unsafe {
        let id = &mut *id;
        if id.verbs.is_null() || !id.srq.is_null() {
            Err(libc::EINVAL)
        } else {
            domain(id, pd).and_then(|pd| {
                id.srq = made(srq::create_srq(pd, init))?;
                id.pd = pd;
                Ok(())
            })
        }
    })
}

/// `rdma_destroy_srq`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn destroy_srq(id: *mut CmId) {
    // SAFETY: see the crate.
    unsafe {
        let id = &mut *id;
        let srq = mem::replace(&mut id.srq, ptr::null_mut());
        if !srq.is_null() {
            srq::destroy_srq(srq);
        }
        if id.qp.is_null() {
            destroy_cqs(id);
        }
    }
}

/// Keeps what the queue pairs of requests are made with.
///
/// # Safety
///
/// See the crate.
pub(crate) unsafe fn keep(id: *mut CmId, init: QpInitAttr) {
    // SAFETY: see the crate.
    unsafe { identifier::whole(id) }.qp_init = Some(init);
}
