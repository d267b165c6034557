//! Shared receive queues.
#![expect(unsafe_code, reason = "objects of C are reached by pointers")]

use core::ffi::c_int;
use std::sync::Arc;

use crate::abi::{self, SrqAttr, SrqInitAttr};
use crate::errno::{self, Errno, pointer, status};
use crate::gone;
use crate::memory;
use crate::object::Object;
use crate::opening::{Context, SrqHandle};

/// Bits of the mask of [`modify_srq`].
const MAX_WR: c_int = 1;
const LIMIT: c_int = 1 << 1;

/// What the agent's events need of a shared receive queue.
pub(crate) type Events = Object<abi::Srq, SrqHandle>;

/// A shared receive queue.
#[repr(C)]
pub(crate) struct Srq {
    abi: abi::Srq,
    pub(crate) inner: Arc<kernel_agent::Srq>,
    pub(crate) events: Arc<Events>,
    max_sge: u32,
}

/// The shared receive queue of a pointer.
///
/// # Safety
///
/// The pointer is one that [`create_srq`] returned.
pub(crate) unsafe fn of<'a>(srq: *mut abi::Srq) -> &'a Srq {
    // SAFETY: the caller's; `abi` is the first field.
    unsafe { &*srq.cast::<Srq>() }
}

/// `ibv_create_srq`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn create_srq(pd: *mut abi::Pd, init: *mut SrqInitAttr) -> *mut abi::Srq {
    // SAFETY: see the crate.
    let (domain, context, init) = unsafe { (memory::pd(pd), (*pd).context, &*init) };
    // SAFETY: see the crate.
    let opening = unsafe { Context::opening(context) };
    let SrqAttr { max_wr, max_sge, .. } = init.attr;
    let made = || -> Result<_, Errno> {
        opening.origin.check()?;
        if max_wr == 0 {
            return Err(libc::EINVAL);
        }
        let reserved = opening.srqs.reserve().map_err(|_| libc::ENOMEM)?;
        let handle = reserved.handle();
        let client = opening.client()?;
        let inner = client
            .create_srq(&domain.inner, max_wr, max_sge.max(1), 0, handle.as_raw())
            .map_err(errno::of)?;
        let events = Arc::new(Events::new(opening, handle));
        reserved.fill(events.clone());
        Ok((inner, events))
    };
    pointer(made().map(|(inner, events)| {
        let abi = abi::Srq {
            context,
            srq_context: init.srq_context,
            pd,
            handle: 0,
            mutex: [0; 5],
            cond: [0; 6],
            events_completed: 0,
        };
        let srq = Srq { abi, inner, events: events.clone(), max_sge: max_sge.max(1) };
        let made = Box::into_raw(Box::new(srq));
        events.is_at(made.cast());
        made.cast()
    }))
}

/// `ibv_destroy_srq`: `EBUSY` while a queue pair uses it.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn destroy_srq(this: *mut abi::Srq) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { Context::check((*this).context) } {
        return error;
    }
    // SAFETY: see the crate.
    let srq = unsafe { of(this) };
    if let Err(error) = srq.inner.destroy() {
        return errno::of(error);
    }
    let events = &srq.events;
    events.opening.srqs.remove(events.handle);
    events.end();
    // SAFETY: it came from `create_srq`, and no event names it any more. A thread that posts to it
    // finds the agent's queue gone.
    unsafe { gone::keep(this.cast::<Srq>()) };
    0
}

/// `ibv_modify_srq`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn modify_srq(this: *mut abi::Srq, attr: *mut SrqAttr, mask: c_int) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { Context::check((*this).context) } {
        return error;
    }
    // SAFETY: see the crate.
    let (srq, attr) = unsafe { (of(this), &*attr) };
    if mask & !(MAX_WR | LIMIT) != 0 || mask & MAX_WR != 0 && attr.max_wr == 0 {
        return libc::EINVAL;
    }
    let size = (mask & MAX_WR != 0).then_some(attr.max_wr);
    let limit = (mask & LIMIT != 0).then_some(attr.srq_limit);
    status(srq.inner.modify(size, limit).map_err(errno::of))
}

/// `ibv_query_srq`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn query_srq(this: *mut abi::Srq, attr: *mut SrqAttr) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { Context::check((*this).context) } {
        return error;
    }
    // SAFETY: see the crate.
    let srq = unsafe { of(this) };
    status(srq.inner.sizes().map_err(errno::of).map(|(max_wr, srq_limit)| {
        // SAFETY: see the crate.
        unsafe { *attr = SrqAttr { max_wr, max_sge: srq.max_sge, srq_limit } };
    }))
}
