//! Shared receive queues (dat_srq_create, dat_srq_query, dat_srq_set_lw, dat_srq_post_recv,
//! dat_srq_resize, dat_srq_free).

use alloc::sync::Arc;

use kernel_agent::{PostError, Shadow};
use platform::heap;
use rdma::Context;

use crate::attr::{SrqAttr, SrqParam};
use crate::completion::Operation;
use crate::error::{MODEL, NO_MEMORY, handle, of_post, parameter, state};
use crate::flags::{SRQ_LW_DEFAULT, SrqState, VALUE_UNKNOWN};
use crate::handle::{PzHandle, SrqHandle};
use crate::ia::{Ia, Inner};
use crate::objects::srq::Srq;
use crate::ret::{Error, Result, Subtype};
use crate::segment::LmrTriplet;

const INVALID: Error = handle(Subtype::InvalidHandleSrq);

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

impl Inner {
    pub(crate) fn srq(&self, srq: SrqHandle) -> Result<Arc<Srq>> {
        self.srqs.get(srq).ok_or(INVALID)
    }

    /// Frees a queue that no endpoint uses.
    pub(crate) fn end_srq(&self, srq: &Srq) -> Result<()> {
        match srq.srq.destroy() {
            Err(kernel_agent::Error::Busy) => return Err(state(Subtype::InvalidStateSrqInUse)),
            // Another call is about to free it.
            Err(kernel_agent::Error::Gone) => return Err(INVALID),
            // Any other failure means that the device is dead.
            Ok(()) | Err(_) => {}
        }
        self.srqs.remove(srq.handle);
        srq.zone.end();
        Ok(())
    }
}

impl Srq {
    fn post_recv(&self, inner: &Inner, segments: &[LmrTriplet], cookie: u64) -> Result<()> {
        if segments.len() > self.max_recv_iov {
            return Err(parameter(Subtype::None));
        }
        // Receives complete with a notification, unless their endpoint waits for solicited ones
        // only.
        let shadow = Shadow { cookie, data: Operation::Receive as u32 };
        self.srq.post_receive(false, segments, |piece| inner.segment(piece), shadow).map_err(|error| {
            match error {
                PostError::Gone => INVALID,
                other => of_post(other),
            }
        })
    }
}

impl Ia {
    /// Creates a shared receive queue, whose Receives use memory of a protection zone. The low
    /// watermark has to be [`SRQ_LW_DEFAULT`]; see [`Ia::srq_set_lw`].
    ///
    /// Errors: `InvalidHandle` (PZ), `InvalidParameter` (no Receives, more Receives or segments
    /// than the adapter's limits; a low watermark), `ModelNotSupported` (the adapter lacks such
    /// queues), `InsufficientResources`, `InvalidState` (in an upcall). Blocks for the device. Not
    /// for upcalls. Thread-safe. dat_srq_create.
    #[doc(alias = "dat_srq_create")]
    pub fn srq_create(&self, pz: PzHandle, srq_attr: &SrqAttr) -> Result<SrqHandle> {
        let inner = self.call()?;
        if srq_attr.low_watermark != SRQ_LW_DEFAULT || srq_attr.max_recv_dtos == 0 {
            return Err(parameter(Subtype::InvalidArg3));
        }
        inner.not_in_upcall()?;
        if !inner.offers.srq() {
            return Err(MODEL);
        }
        let zone = inner.enter_zone(pz)?;
        let (dtos, max_recv_iov) = (srq_attr.max_recv_dtos, srq_attr.max_recv_iov);
        let id = inner.identity();
        if dtos > id.max_srq_entries as usize || max_recv_iov > id.max_sges as usize {
            return Err(parameter(Subtype::InvalidArg3));
        }
        let reservation = inner.srqs.reserve()?;
        let handle = reservation.handle();
        let (dtos, segments) = (dtos as u32, max_recv_iov as u32);
        let created = inner.client()?.create_srq(&zone.pd, dtos, segments, 0, handle.as_raw());
        let srq = created.map_err(|error| inner.error(error))?;
        let made = heap::arc(Srq { handle, zone, srq, max_recv_iov, context: Context::new() });
        Ok(reservation.fill(made.map_err(|made| {
            let _ = made.srq.destroy();
            NO_MEMORY
        })?))
    }

    /// Returns a shared receive queue's parameters. The low watermark is 0 while it is not armed.
    /// The number of Receives that no endpoint has begun to use is not known.
    ///
    /// Errors: `InvalidHandle`. Blocks for the device. May be called in upcalls. Thread-safe.
    /// dat_srq_query.
    #[doc(alias = "dat_srq_query")]
    pub fn srq_query(&self, srq: SrqHandle) -> Result<SrqParam> {
        let inner = &self.inner;
        inner.live()?;
        let srq = inner.srq(srq)?;
        let (dtos, watermark) = srq.srq.sizes().map_err(|error| inner.gone(error, INVALID))?;
        Ok(SrqParam {
            ia_handle: self.handle(),
            srq_state: SrqState::Operational,
            pz_handle: srq.zone.handle,
            max_recv_dtos: dtos as usize,
            max_recv_iov: srq.max_recv_iov,
            low_watermark: count(watermark as usize),
            available_dto_count: VALUE_UNKNOWN,
            outstanding_dto_count: count(srq.srq.outstanding() as usize),
        })
    }

    /// Arms the low watermark once. When fewer Receives than this are left, or at once if fewer are
    /// left already, the event dispatcher of asynchronous events gets
    /// [`ASYNC_ERROR_PROVIDER_INTERNAL_ERROR`](crate::EventNumber::ASYNC_ERROR_PROVIDER_INTERNAL_ERROR)
    /// with this queue and [`AsyncReason::SrqLowWatermark`](crate::AsyncReason::SrqLowWatermark).
    ///
    /// Errors: `InvalidHandle`, `InvalidParameter` (not positive, or more than the queue holds),
    /// `InvalidState` (in an upcall). Blocks for the device. Not for upcalls. Thread-safe.
    /// dat_srq_set_lw.
    #[doc(alias = "dat_srq_set_lw")]
    pub fn srq_set_lw(&self, srq: SrqHandle, low_watermark: i32) -> Result<()> {
        let inner = self.call()?;
        inner.not_in_upcall()?;
        let srq = inner.srq(srq)?;
        let bad = parameter(Subtype::InvalidArg2);
        let low_watermark = u32::try_from(low_watermark).ok().filter(|mark| *mark > 0).ok_or(bad)?;
        srq.srq.modify(None, Some(low_watermark)).map_err(|error| match error {
            kernel_agent::Error::OutOfRange(_) => bad,
            other => inner.gone(other, INVALID),
        })
    }

    /// Posts a Receive to a shared receive queue. The message of any of its endpoints takes the
    /// Receive, and the completion comes on that endpoint's event dispatcher of Receives.
    ///
    /// Errors: `InvalidHandle`, `InvalidParameter` (more segments than `max_recv_iov`),
    /// `InsufficientResources` (the queue is full). Does not block. May be called in upcalls.
    /// Thread-safe. dat_srq_post_recv.
    #[doc(alias = "dat_srq_post_recv")]
    #[inline]
    pub fn srq_post_recv(&self, srq: SrqHandle, local_iov: &[LmrTriplet], user_cookie: u64) -> Result<()> {
        let inner = &self.inner;
        inner.live()?;
        let posted = inner.srqs.with(srq, |srq| srq.post_recv(inner, local_iov, user_cookie));
        posted.unwrap_or(Err(INVALID)).map_err(|error| inner.unless_dead(error))
    }

    /// Changes how many Receives may be outstanding. Posted ones stay.
    ///
    /// Errors: `InvalidHandle`, `InvalidParameter` (none, or more than the adapter's limit),
    /// `InvalidState` (more are outstanding, or the low watermark is higher; in an upcall),
    /// `InsufficientResources`. Blocks for the device. Not for upcalls. Thread-safe.
    /// dat_srq_resize.
    #[doc(alias = "dat_srq_resize")]
    pub fn srq_resize(&self, srq: SrqHandle, srq_max_recv_dto: usize) -> Result<()> {
        let inner = self.call()?;
        let most = inner.identity().max_srq_entries as usize;
        let srq = inner.srq(srq)?;
        if srq_max_recv_dto == 0 || srq_max_recv_dto > most {
            return Err(parameter(Subtype::InvalidArg2));
        }
        inner.not_in_upcall()?;
        inner.make_room(srq.handle, srq_max_recv_dto)?;
        if !inner.offers.srq_resize() {
            return Err(MODEL);
        }
        // The device has room for a power of two.
        let entries = srq_max_recv_dto as u32;
        if entries.checked_next_power_of_two().is_none_or(|entries| entries as usize > most) {
            return Err(NO_MEMORY);
        }
        srq.srq.modify(Some(entries), None).map_err(|error| match error {
            kernel_agent::Error::Busy | kernel_agent::Error::OutOfRange(_) => {
                state(Subtype::InvalidStateSrqOperational)
            }
            other => inner.gone(other, INVALID),
        })
    }

    /// Frees a shared receive queue. Receives that are still posted never complete.
    ///
    /// Errors: `InvalidHandle`, `InvalidState` (subtype `InvalidStateSrqInUse`: an endpoint uses
    /// it). Blocks for the device. May be called in upcalls. Thread-safe: a call that races with it
    /// succeeds or finds the handle invalid. dat_srq_free.
    #[doc(alias = "dat_srq_free")]
    pub fn srq_free(&self, srq: SrqHandle) -> Result<()> {
        let inner = self.call()?;
        let srq = inner.srq(srq)?;
        inner.end_srq(&srq)
    }
}
