//! Shared receive queues (dat_srq_create, dat_srq_query, dat_srq_set_lw, dat_srq_post_recv,
//! dat_srq_resize, dat_srq_free).

use privileged_api as it;

use crate::attr::{SrqAttr, SrqParam};
use crate::error::{handle, of, parameter, state};
use crate::flags::{SRQ_LW_DEFAULT, SrqState, VALUE_UNKNOWN};
use crate::handle::{PzHandle, SrqHandle};
use crate::ia::Ia;
use crate::ret::{Result, Subtype};
use crate::segment::LmrTriplet;

/// Receives complete with a notification, unless their endpoint waits for solicited ones only.
const FLAGS: it::DtoFlags = it::DtoFlags::COMPLETION;

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
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
        if srq_attr.low_watermark != SRQ_LW_DEFAULT || srq_attr.max_recv_dtos == 0 {
            self.inner.live()?;
            return Err(parameter(Subtype::InvalidArg3));
        }
        let made = self.it.srq_create(pz.inner(), srq_attr.max_recv_iov, srq_attr.max_recv_dtos);
        made.map(SrqHandle::of).map_err(|error| match error {
            it::Error::ResourceRecvDto | it::Error::ResourceRseg => parameter(Subtype::InvalidArg3),
            other => of(other),
        })
    }

    /// Returns a shared receive queue's parameters. The low watermark is 0 while it is not armed.
    /// The number of Receives that no endpoint has begun to use is not known.
    ///
    /// Errors: `InvalidHandle`. Blocks for the device. May be called in upcalls. Thread-safe.
    /// dat_srq_query.
    #[doc(alias = "dat_srq_query")]
    pub fn srq_query(&self, srq: SrqHandle) -> Result<SrqParam> {
        let param = self.it.srq_query(srq.inner(), it::SrqParamMask::ALL)?;
        Ok(SrqParam {
            ia_handle: self.handle(),
            srq_state: SrqState::Operational,
            pz_handle: PzHandle::of(param.pz),
            max_recv_dtos: param.max_recv_dtos,
            max_recv_iov: param.max_recv_segs,
            low_watermark: count(param.low_watermark),
            available_dto_count: VALUE_UNKNOWN,
            outstanding_dto_count: count(self.it.srq_outstanding(srq.inner())?),
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
        let mask = it::SrqParamMask::LOW_WATERMARK;
        let low_watermark = usize::try_from(low_watermark).unwrap_or(0);
        let param = it::SrqParam { low_watermark, ..it::SrqParam::default() };
        self.it.srq_modify(srq.inner(), mask, &param).map_err(|error| match error {
            it::Error::SrqLowWatermark => parameter(Subtype::InvalidArg2),
            other => of(other),
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
        // IT-API's call also takes the handle of an endpoint.
        if !srq.claims_its_type() {
            return Err(handle(Subtype::InvalidHandleSrq));
        }
        let posted = self.it.post_recv(srq.inner(), LmrTriplet::inner(local_iov), user_cookie, FLAGS);
        posted.map_err(of)
    }

    /// Changes how many Receives may be outstanding. Posted ones stay.
    ///
    /// Errors: `InvalidHandle`, `InvalidParameter` (none, or more than the adapter's limit),
    /// `InvalidState` (more are outstanding, or the low watermark is higher; in an upcall),
    /// `InsufficientResources`. Blocks for the device. Not for upcalls. Thread-safe.
    /// dat_srq_resize.
    #[doc(alias = "dat_srq_resize")]
    pub fn srq_resize(&self, srq: SrqHandle, srq_max_recv_dto: usize) -> Result<()> {
        let most = self.it.identity().max_srq_entries as usize;
        if srq_max_recv_dto == 0 || srq_max_recv_dto > most {
            self.it.srq_outstanding(srq.inner())?;
            return Err(parameter(Subtype::InvalidArg2));
        }
        self.inner.make_room(srq, srq_max_recv_dto)?;
        let mask = it::SrqParamMask::MAX_RECV_DTO;
        let param = it::SrqParam { max_recv_dtos: srq_max_recv_dto, ..it::SrqParam::default() };
        self.it.srq_modify(srq.inner(), mask, &param).map_err(|error| match error {
            it::Error::InvalidSrqSize | it::Error::SrqLowWatermark => {
                state(Subtype::InvalidStateSrqOperational)
            }
            // The interface cannot resize shared receive queues.
            it::Error::InvalidMask => crate::error::MODEL,
            other => of(other),
        })
    }

    /// Frees a shared receive queue. Receives that are still posted never complete.
    ///
    /// Errors: `InvalidHandle`, `InvalidState` (subtype `InvalidStateSrqInUse`: an endpoint uses
    /// it). Blocks for the device. May be called in upcalls. Thread-safe: a call that races with it
    /// succeeds or finds the handle invalid. dat_srq_free.
    #[doc(alias = "dat_srq_free")]
    pub fn srq_free(&self, srq: SrqHandle) -> Result<()> {
        Ok(self.it.srq_free(srq.inner())?)
    }
}
