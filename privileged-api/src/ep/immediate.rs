//! Posting Sends and RDMA Writes with immediate data. Extensions of the API.
//!
//! As in `post`, nothing here allocates, waits or formats. A post holds the endpoint's table entry
//! shared.

use kernel_agent::{Operation, Request, Shadow};

use super::post::{SEND_FLAGS, check_flags, data, remote, send_flags, with};
use crate::address::{RdmaAddr, RmrContext};
use crate::evd::posted::Posted;
use crate::event::EventType;
use crate::flags::DtoFlags;
use crate::handle::EpHandle;
use crate::ia::Ia;
use crate::iobl::LmrTriplet;
use crate::status::{Error, Result};

impl Ia {
    /// Posts a Send as [`Ia::post_send`] does, with 32 bits of immediate data, which are on the
    /// wire in network byte order. An extension of the API.
    ///
    /// The peer's Receive completes as after any Send, and [`Ia::evd_dequeue_extended`] returns the
    /// number there.
    ///
    /// Errors: as [`Ia::post_send`], and `OpNotSupported` on iWARP. Does not block. May be called
    /// in callbacks. Thread-safe.
    pub fn post_send_immediate(
        &self,
        ep: EpHandle,
        local_segments: &[LmrTriplet],
        cookie: u64,
        dto_flags: DtoFlags,
        immediate: u32,
    ) -> Result<()> {
        let core = self.live()?;
        if !core.facts().immediate_data {
            return Err(Error::OpNotSupported);
        }
        core.post_to(ep, |ep| {
            let operation = Operation::Send { immediate: Some(immediate) };
            let request = request(operation, cookie, dto_flags, EventType::DTO_SEND_CMPL)?;
            match ep.pair.vi() {
                None => ep.post(core, &request, local_segments, ep.limits.segments.send),
                Some(_) => ep.post_slowly(core, &request, local_segments, ep.limits.segments.send),
            }
        })
    }

    /// Posts an RDMA Write as [`Ia::post_rdma_write`] does, with 32 bits of immediate data, which
    /// are on the wire in network byte order. An extension of the API.
    ///
    /// The Write takes one of the peer's Receives, in the order of Sends and Writes with immediate
    /// data, and completes it when its data is in the peer's memory. Of the Receive's segments none
    /// is used. Its completion is `IT_DTO_RC_RECV_CMPL_EVENT` with a length of 0;
    /// [`Ia::evd_dequeue_extended`] returns the number and the Write's length there. As the
    /// completion of a Receive can be solicited, [`DtoFlags::SOLICITED_WAIT`] is allowed.
    ///
    /// Errors: as [`Ia::post_rdma_write`], and `OpNotSupported` on iWARP, and on VIA, where the
    /// receiver would not learn of the Write's length. Does not block. May be called in callbacks.
    /// Thread-safe.
    #[expect(clippy::too_many_arguments, reason = "those of it_post_rdma_write, and the number")]
    #[inline(always)]
    pub fn post_rdma_write_immediate(
        &self,
        ep: EpHandle,
        local_segments: &[LmrTriplet],
        cookie: u64,
        dto_flags: DtoFlags,
        rdma_addr: RdmaAddr,
        rmr_context: RmrContext,
        immediate: u32,
    ) -> Result<()> {
        let core = self.live()?;
        if !core.facts().immediate_data {
            return Err(Error::OpNotSupported);
        }
        let to = remote(rdma_addr, rmr_context).remote();
        let operation = Operation::Write { to, immediate: Some(immediate) };
        // Not by `post_to`: compilers make a routine of a closure that two callers pass.
        let posted = match core.eps.lock(ep).as_ref().and_then(|entry| entry.object()) {
            Some(ep) => request(operation, cookie, dto_flags, EventType::DTO_RDMA_WRITE_CMPL)
                .and_then(|request| ep.post(core, &request, local_segments, ep.limits.segments.write)),
            None => Err(Error::InvalidEp),
        };
        core.posted(posted)
    }
}

fn request(operation: Operation, cookie: u64, flags: DtoFlags, event: EventType) -> Result<Request> {
    check_flags(flags, SEND_FLAGS)?;
    let data = data(flags, event) | with(Posted::IMMEDIATE);
    Ok(Request { operation, flags: send_flags(flags), shadow: Shadow { cookie, data } })
}
