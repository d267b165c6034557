//! Shared receive queues (pages it_srq_create, it_srq_query, it_srq_modify, it_srq_free).
//!
//! Owns the agent's SRQ. The low watermark is the device's limit: it is armed while it is not 0,
//! and the device disarms it when it raises its event. An endpoint's queue pair counts as a use of
//! the SRQ, so an SRQ that is in use cannot be destroyed.

use alloc::sync::Arc;

use kernel_agent::{Features, Shadow};
use platform::heap;
use rdma::Context;

use crate::attributes::SrqParam;
use crate::ep::post::{check_recv_flags, data};
use crate::event::EventType;
use crate::flags::{DtoFlags, SrqParamMask};
use crate::handle::{PzHandle, SrqHandle};
use crate::ia::{Core, Ia};
use crate::iobl::LmrTriplet;
use crate::objects::srq::Srq;
use crate::status::{Error, Result};

impl Srq {
    /// The agent's SRQ.
    pub(crate) fn inner(&self) -> &Arc<kernel_agent::Srq> {
        &self.srq
    }

    pub(crate) fn post_recv(
        &self,
        core: &Core,
        segments: &[LmrTriplet],
        cookie: u64,
        flags: DtoFlags,
    ) -> Result<()> {
        check_recv_flags(flags)?;
        if segments.len() > self.max_recv_segs {
            return Err(Error::InvalidNumSegments);
        }
        let shadow = Shadow { cookie, data: data(flags, EventType::DTO_RC_RECV_CMPL) };
        let posted = self.srq.post_receive(false, segments, |triplet| core.segment(triplet), shadow);
        posted.map_err(|error| match core.not_posted(error) {
            Error::InvalidEp => Error::InvalidSrq,
            other => other,
        })
    }
}

impl Core {
    pub(crate) fn srq(&self, srq: SrqHandle) -> Result<Arc<Srq>> {
        self.srqs.get(srq).ok_or(Error::InvalidSrq)
    }

    /// The IT-API error for an agent's error of an SRQ.
    fn srq_error(&self, error: kernel_agent::Error) -> Error {
        match error {
            kernel_agent::Error::Gone if !self.agent().is_dead() => Error::InvalidSrq,
            other => self.error(other),
        }
    }

    /// Frees an SRQ that no endpoint uses.
    pub(crate) fn free_srq(&self, srq: &Srq) -> Result<()> {
        match srq.srq.destroy() {
            Err(kernel_agent::Error::Busy) => return Err(Error::SrqBusy),
            // Another call is about to free it.
            Err(kernel_agent::Error::Gone) => return Err(Error::InvalidSrq),
            // Any other failure means that the device is dead.
            Ok(()) | Err(_) => {}
        }
        self.srqs.remove(srq.handle);
        srq.zone.end();
        Ok(())
    }
}

impl Ia {
    /// Creates a shared receive queue with these limits, and with room for at least one Receive.
    /// The low watermark is not armed.
    ///
    /// Errors: `SrqNotSupported`, `InvalidPz`, `ResourceRecvDto`, `ResourceRseg`, `Resources`,
    /// `InvalidIa`, `IaCatastrophe`. Blocks for the device. Not for callbacks. Thread-safe. Page
    /// it_srq_create.
    #[doc(alias = "it_srq_create")]
    pub fn srq_create(
        &self,
        pz: PzHandle,
        max_recv_segments: usize,
        max_recv_dtos: usize,
    ) -> Result<SrqHandle> {
        let core = self.call()?;
        core.shared.not_in_callback()?;
        if !core.features().contains(Features::SRQ) {
            return Err(Error::SrqNotSupported);
        }
        let zone = core.enter_zone(pz)?;
        let id = core.agent().identity();
        if max_recv_dtos > id.max_srq_entries as usize {
            return Err(Error::ResourceRecvDto);
        }
        if max_recv_segments > id.max_sges as usize {
            return Err(Error::ResourceRseg);
        }
        let max_recv_dtos = max_recv_dtos.max(1);
        let reservation = core.srqs.reserve()?;
        let handle = reservation.handle();
        let created = core.client()?.create_srq(
            &zone.pd,
            max_recv_dtos as u32,
            max_recv_segments as u32,
            0,
            handle.as_raw(),
        );
        let srq = created.map_err(|error| core.error(error))?;
        let (max_recv_segs, context) = (max_recv_segments, Context::new());
        let made = heap::arc(Srq { handle, zone, srq, max_recv_segs, context });
        reservation.fill(made.map_err(|made| {
            let _ = made.srq.destroy();
            Error::Resources
        })?);
        Ok(handle)
    }

    /// Returns a shared receive queue's parameters. The low watermark is 0 while it is not armed.
    ///
    /// Errors: `InvalidSrq`, `InvalidMask`, `InvalidIa`, `IaCatastrophe`. Blocks for the device.
    /// May be called in callbacks. Thread-safe. Page it_srq_query.
    #[doc(alias = "it_srq_query")]
    pub fn srq_query(&self, srq: SrqHandle, mask: SrqParamMask) -> Result<SrqParam> {
        let core = self.live()?;
        let srq = core.srq(srq)?;
        if SrqParamMask::from_bits(mask.bits()).is_none() {
            return Err(Error::InvalidMask);
        }
        let wants = |bit| mask.intersects(bit | SrqParamMask::ALL);
        let mut param = SrqParam::default();
        if wants(SrqParamMask::IA) {
            param.ia = core.handle;
        }
        if wants(SrqParamMask::PZ) {
            param.pz = srq.zone.handle;
        }
        if wants(SrqParamMask::MAX_RECV_SEG) {
            param.max_recv_segs = srq.max_recv_segs;
        }
        let (size, mark) = (SrqParamMask::MAX_RECV_DTO, SrqParamMask::LOW_WATERMARK);
        if wants(size | mark) {
            let (max_recv_dtos, limit) =
                srq.srq.sizes().map_err(|error| core.gone(error, Error::InvalidSrq))?;
            param.max_recv_dtos = if wants(size) { max_recv_dtos as usize } else { 0 };
            param.low_watermark = if wants(mark) { limit as usize } else { 0 };
        }
        Ok(param)
    }

    /// The number of Receives of a shared receive queue whose completions were not taken yet. An
    /// extension.
    ///
    /// Errors: `InvalidSrq`, `InvalidIa`, `IaCatastrophe`. Does not block. May be called in
    /// callbacks. Thread-safe.
    pub fn srq_outstanding(&self, srq: SrqHandle) -> Result<usize> {
        Ok(self.live()?.srq(srq)?.srq.outstanding() as usize)
    }

    /// Changes the low watermark, the number of Receives that may be outstanding, or both. If one
    /// change fails, neither is made.
    ///
    /// Setting the low watermark arms it once: when fewer Receives are left,
    /// `IT_ASYNC_AFF_SRQ_LOW_WATERMARK` is queued on the affiliated EVD; at once if fewer are left
    /// already. A change of the size keeps posted Receives, and endpoints go on taking them; while
    /// the size changes, the smaller of the old and the new size holds. Nothing else can be
    /// modified. An empty mask changes nothing.
    ///
    /// Errors: `InvalidSrq`, `InvalidMask` (`MAX_RECV_DTO` among them on an IA whose
    /// `srq_resizable` is false), `InvalidSrqSize` (more Receives are outstanding),
    /// `SrqLowWatermark`, `Resources` (also for a size beyond the IA's limit), `InvalidIa`,
    /// `IaCatastrophe`. Blocks for the device. Not for callbacks. Thread-safe. Page it_srq_modify.
    #[doc(alias = "it_srq_modify")]
    pub fn srq_modify(&self, srq: SrqHandle, mask: SrqParamMask, params: &SrqParam) -> Result<()> {
        let core = self.call()?;
        core.shared.not_in_callback()?;
        let srq = core.srq(srq)?;
        let resizable = core.features().contains(Features::SRQ_RESIZE);
        let (size, mark) = (SrqParamMask::MAX_RECV_DTO, SrqParamMask::LOW_WATERMARK);
        let modifiable = if resizable { size | mark } else { mark };
        if mask.bits() & !modifiable.bits() != 0 {
            return Err(Error::InvalidMask);
        }
        let max_recv_dtos = mask.contains(size).then_some(params.max_recv_dtos.max(1));
        let low_watermark = mask.contains(mark).then_some(params.low_watermark);
        // A number beyond 32 bits is beyond every limit.
        let word = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        if low_watermark == Some(0) {
            return Err(Error::SrqLowWatermark);
        }
        let most = core.agent().identity().max_srq_entries;
        let fits = |size: usize| word(size).checked_next_power_of_two().is_some_and(|count| count <= most);
        if max_recv_dtos.is_some_and(|size| !fits(size)) {
            return Err(Error::Resources);
        }
        srq.srq.modify(max_recv_dtos.map(word), low_watermark.map(word)).map_err(|error| match error {
            kernel_agent::Error::Busy => Error::InvalidSrqSize,
            kernel_agent::Error::OutOfRange(_) => Error::SrqLowWatermark,
            other => core.srq_error(other),
        })
    }

    /// Destroys a shared receive queue. Receives that are left never complete. After this call the
    /// device does not access their buffers.
    ///
    /// Errors: `InvalidSrq`, `SrqBusy` while an endpoint uses it, `InvalidIa`, `IaCatastrophe`.
    /// Blocks for the device. May be called in callbacks. Thread-safe: a call that races with it
    /// succeeds or finds the handle invalid. Page it_srq_free.
    #[doc(alias = "it_srq_free")]
    pub fn srq_free(&self, srq: SrqHandle) -> Result<()> {
        let core = self.call()?;
        let srq = core.srq(srq)?;
        core.free_srq(&srq)
    }
}
