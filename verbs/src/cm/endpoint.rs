//! Endpoints: identifiers whose calls wait, as a program gets them from a resolved address.
#![expect(unsafe_code, reason = "objects of C are reached by pointers")]

use core::ffi::c_int;
use std::ptr;

use super::abi::{AddrInfo, CmId, event, rai};
use super::{channel, devices, identifier, queue_pair};
use crate::abi::{Pd, QpInitAttr};
use crate::errno::{Errno, minus_one};

/// How long an address may take to be resolved; it is at once.
const TIMEOUT_MS: c_int = 2000;

/// `rdma_create_ep`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn create_ep(
    to: *mut *mut CmId,
    from: *mut AddrInfo,
    pd: *mut Pd,
    init: *mut QpInitAttr,
) -> c_int {
    // SAFETY: see the crate.
    minus_one(unsafe {
        let from = &*from;
        let made = match from.ai_port_space {
            super::abi::ps::TCP | super::abi::ps::UDP => devices::all()
                .and_then(|_| identifier::make(ptr::null_mut(), ptr::null_mut(), from.ai_port_space)),
            _ => Err(libc::EOPNOTSUPP),
        };
        made.and_then(|id| {
            prepare(id, from, pd, init).inspect_err(|_| destroy_ep(id))?;
            *to = id;
            Ok(())
        })
    })
}

/// # Safety
///
/// See the crate.
unsafe fn prepare(id: *mut CmId, from: &AddrInfo, pd: *mut Pd, init: *mut QpInitAttr) -> Result<(), Errno> {
    // Calls that return -1 have set errno.
    let done = |result: c_int| if result == 0 { Ok(()) } else { Err(crate::errno::last()) };
    // SAFETY: see the crate.
    unsafe {
        if !init.is_null() {
            (*init).qp_type = from.ai_qp_type;
        }
        if from.ai_flags & rai::PASSIVE != 0 {
            done(identifier::bind_addr(id, from.ai_src_addr))?;
            (*id).pd = pd;
            if !init.is_null() {
                queue_pair::keep(id, *init);
            }
            return Ok(());
        }
        done(identifier::resolve_addr(id, from.ai_src_addr, from.ai_dst_addr, TIMEOUT_MS))?;
        done(identifier::resolve_route(id, TIMEOUT_MS))?;
        if !init.is_null() {
            queue_pair::create_plain(&mut *id, pd, &mut *init)?;
        }
        if from.ai_connect_len > 0 && !from.ai_connect.is_null() {
            let data = std::slice::from_raw_parts(from.ai_connect.cast::<u8>(), from.ai_connect_len);
            identifier::whole(id).connect_data = data.to_vec();
        }
    }
    Ok(())
}

/// `rdma_destroy_ep`: with its queue pair and its shared receive queue.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn destroy_ep(id: *mut CmId) {
    // SAFETY: see the crate.
    unsafe {
        if !(*id).qp.is_null() {
            queue_pair::destroy_qp(id);
        }
        if !(*id).srq.is_null() {
            queue_pair::destroy_srq(id);
        }
        identifier::destroy_id(id);
    }
}

/// `rdma_get_request`: waits for a request at a listening identifier without a channel.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn get_request(listener: *mut CmId, to: *mut *mut CmId) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { identifier::of(listener) }.origin.check() {
        return minus_one(Err(error));
    }
    // SAFETY: see the crate.
    minus_one(unsafe { next_request(listener) }.map(|id| {
        // SAFETY: see the crate.
        unsafe { *to = id };
    }))
}

/// # Safety
///
/// See the crate.
unsafe fn next_request(listener: *mut CmId) -> Result<*mut CmId, Errno> {
    // SAFETY: see the crate.
    unsafe {
        if !identifier::of(listener).state().synchronous {
            return Err(libc::EINVAL);
        }
        channel::drop_event(listener);
        let taken = channel::take((*listener).channel)?;
        let failed = match ((*taken).event, (*taken).status) {
            (event::CONNECT_REQUEST, 0) => None,
            (_, 0) => Some(libc::EINVAL),
            (_, status) => Some(status.abs()),
        };
        if let Some(error) = failed {
            (*listener).event = taken;
            return Err(error);
        }
        let id = (*taken).id;
        if let Some(mut init) = identifier::whole(listener).qp_init
            && let Err(error) = queue_pair::create_plain(&mut *id, (*listener).pd, &mut init)
        {
            channel::ack_cm_event(taken);
            identifier::destroy_id(id);
            return Err(error);
        }
        (*id).event = taken;
        Ok(id)
    }
}
