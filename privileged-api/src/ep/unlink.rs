//! Transfers that also unlink a region (pages it_post_send_and_unlink, it_post_rdma_read_to_rmr).

use kernel_agent::{Features, Operation, Request, Segment, Shadow, key};

use super::post::{SEND_FLAGS, check_flags, data, read_request, remote, send_flags};
use crate::address::{RdmaAddr, RmrContext};
use crate::event::EventType;
use crate::flags::DtoFlags;
use crate::handle::{EpHandle, RmrHandle};
use crate::ia::{Core, Ia};
use crate::iobl::{LmrTriplet, RmrTriplet};
use crate::objects::ep::Ep;
use crate::status::{Error, Result};

impl Ep {
    fn post_send_and_unlink(
        &self,
        core: &Core,
        segments: &[LmrTriplet],
        cookie: u64,
        flags: DtoFlags,
        context: RmrContext,
    ) -> Result<()> {
        if self.is_ud() {
            return Err(Error::InvalidEpType);
        }
        check_flags(flags, SEND_FLAGS)?;
        let shadow = Shadow { cookie, data: data(flags, EventType::DTO_SEND_CMPL) };
        let operation = Operation::SendInvalidate { key: context.key() };
        let request = Request { operation, flags: send_flags(flags), shadow };
        self.post(core, &request, segments, self.limits.segments.send)
    }
}

impl Ia {
    /// Posts a Send that also unlinks the peer's region with this context, after its data is in
    /// place. The peer's Receive completes with the handle of the region
    /// ([`DtoCompletion::unlinked_mr_handle`](crate::DtoCompletion::unlinked_mr_handle)).
    ///
    /// Two kinds of regions can be unlinked, both in the zone of the peer's endpoint: a narrow RMR
    /// that is linked through that endpoint, and an LMR that was created unlinked, is linked with
    /// privileges for peers, and has no RMR linked to it. With any other region the peer's Receive
    /// fails with `LocalProtection` and the Send with `RemoteResponder`, the connection breaks, and
    /// the region stays linked. Completes as `IT_DTO_SEND_CMPL_EVENT` on the endpoint's request
    /// EVD. In NONOPERATIONAL the request is flushed.
    ///
    /// Errors: `OpNotSupported` (the IA lacks this operation), `InvalidEp`, `InvalidDtoFlags`,
    /// `InvalidNumSegments`, `InvalidEpState`, `InvalidEpType`, `TooManyPosts`, `InvalidLmr` (the
    /// direct LMR handle on an IA that lacks it), `InvalidIa`, `IaCatastrophe`. Does not block. May
    /// be called in callbacks. Thread-safe. Page it_post_send_and_unlink.
    #[doc(alias = "it_post_send_and_unlink")]
    pub fn post_send_and_unlink(
        &self,
        ep: EpHandle,
        local_segments: &[LmrTriplet],
        cookie: u64,
        dto_flags: DtoFlags,
        rmr_context: RmrContext,
    ) -> Result<()> {
        let core = self.live()?;
        if !core.features().contains(Features::FAST_REGISTER) {
            return Err(Error::OpNotSupported);
        }
        core.post_to(ep, |ep| ep.post_send_and_unlink(core, local_segments, cookie, dto_flags, rmr_context))
    }

    /// Posts an RDMA Read from `rdma_addr` of the peer's region to pieces of local RMRs, in order.
    ///
    /// A piece lies in what its RMR is linked to when the Read is carried out. The RMRs and the
    /// endpoint have to allow remote writes. Completes as [`Ia::post_rdma_read`] does; an RMR that
    /// cannot be the sink is a completion error, except where no byte is moved. With
    /// [`DtoFlags::UNLINK_LOCAL_SINK`] the Read of one piece unlinks its RMR afterwards.
    ///
    /// Errors: `OpNotSupported` (not iWARP:
    /// [`IaInfo::rdma_read_local_extensions`](crate::IaInfo::rdma_read_local_extensions)),
    /// `InvalidEp`, `InvalidEpType`, `InvalidDtoFlags`, `InvalidNumSegments`, `InvalidEpState`,
    /// `TooManyPosts`, `EpBusy` (a batch has the send queue for itself), `InvalidIa`,
    /// `IaCatastrophe`. Does not block. May be called in callbacks. Thread-safe. Page
    /// it_post_rdma_read_to_rmr.
    #[doc(alias = "it_post_rdma_read_to_rmr")]
    pub fn post_rdma_read_to_rmr(
        &self,
        ep: EpHandle,
        local_segments: &[RmrTriplet],
        cookie: u64,
        dto_flags: DtoFlags,
        rdma_addr: RdmaAddr,
        rmr_context: RmrContext,
    ) -> Result<()> {
        let core = self.live()?;
        if !core.facts().reads_write_remotely {
            return Err(Error::OpNotSupported);
        }
        core.post_to(ep, |ep| {
            if ep.is_ud() {
                return Err(Error::InvalidEpType);
            }
            let sink = match local_segments {
                [one] => Some(core.window_key(one.rmr)),
                _ => None,
            };
            let request = read_request(core, sink, cookie, dto_flags, remote(rdma_addr, rmr_context))?;
            if local_segments.len() > ep.limits.segments.read as usize {
                return Err(Error::InvalidNumSegments);
            }
            ep.takes_requests()?;
            let posted = ep.qp()?.post(&request, local_segments, |piece| Some(core.piece(piece)));
            posted.map(drop).map_err(|error| core.not_posted(error))
        })
    }
}

impl Core {
    /// The local key of an RMR. A handle that names none has a key that names nothing.
    fn window_key(&self, rmr: RmrHandle) -> u32 {
        self.rmrs.with(rmr, |rmr| rmr.window.key()).unwrap_or(key::NONE)
    }

    /// A piece of an RMR in the device's form. As in a segment, a length beyond 32 bits, which is
    /// too long for every endpoint, becomes the largest length.
    fn piece(&self, piece: &RmrTriplet) -> Segment {
        let length = piece.length.min(u64::from(u32::MAX)) as u32;
        Segment { addr: piece.addr, length, key: self.window_key(piece.rmr) }
    }
}
