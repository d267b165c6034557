//! Posting work requests (pages it_post_send, it_post_recv, it_post_rdma_write, it_post_rdma_read,
//! it_dto_flags_t).
//!
//! Nothing here allocates, waits or formats.
//!
//! Sends, Writes and Reads take the fast path: the slot of the endpoint's send queue, under the
//! slot's lock. If the slot is closed or its lock is held, or if anything is wrong, they take the
//! slow path: it holds the endpoint's table entry during the post, and finds the error. Local keys
//! are looked up without a check: a bad key becomes a completion error.

use core::sync::atomic::Ordering;

use api_core::Entry;
use kernel_agent::{Operation, PostError, Remote, Request, Segment, SegmentLimits, SendFlags, Shadow};

use super::{Common, Ep, Limits, state};
use crate::address::{RdmaAddr, RmrContext};
use crate::evd::dto::tag;
use crate::event::EventType;
use crate::flags::DtoFlags;
use crate::handle::{EpHandle, Handle, HandleType};
use crate::ia::{Core, Ia};
use crate::iobl::LmrTriplet;
use crate::status::{Error, Result};

/// The kind of a transfer.
struct Kind {
    operation: fn(Remote) -> Operation,
    event: EventType,
    /// The flags that the call may have.
    allowed: DtoFlags,
    /// The endpoint's limit of segments.
    segments: fn(&Limits) -> usize,
    /// That limit in the slot, for the fast path.
    in_slot: fn(&SegmentLimits) -> u32,
}

/// A Send, Write or Read, without its endpoint and its segments.
#[derive(Clone, Copy)]
struct Wanted {
    kind: &'static Kind,
    cookie: u64,
    flags: DtoFlags,
    remote: Remote,
}

impl Wanted {
    #[inline(always)]
    fn check_flags(&self) -> Result<()> {
        check_flags(self.flags, self.kind.allowed)
    }

    #[inline(always)]
    fn request(&self) -> Request {
        let shadow = Shadow { cookie: self.cookie, data: data(self.flags, self.kind.event) };
        let operation = (self.kind.operation)(self.remote);
        Request { operation, flags: send_flags(self.flags), shadow }
    }
}

const EACH: DtoFlags =
    DtoFlags::COMPLETION.union(DtoFlags::NOTIFY).union(DtoFlags::BARRIER_FENCE).union(DtoFlags::COALESCE);
/// Flags of LMR link.
pub(crate) const LINK_FLAGS: DtoFlags = EACH;
/// Flags of LMR unlink.
pub(crate) const UNLINK_FLAGS: DtoFlags = EACH.union(DtoFlags::UNLINK_FENCE);
/// Flags of atomic operations.
pub(super) const ATOMIC_FLAGS: DtoFlags = EACH;
/// Flags of Sends.
pub(super) const SEND_FLAGS: DtoFlags = EACH.union(DtoFlags::SOLICITED_WAIT);
/// Flags of Receives.
pub(crate) const RECV_FLAGS: DtoFlags =
    DtoFlags::COMPLETION.union(DtoFlags::NOTIFY).union(DtoFlags::COALESCE);

const SEND: Kind = Kind {
    operation: |_| Operation::Send { immediate: None },
    event: EventType::DTO_SEND_CMPL,
    allowed: SEND_FLAGS,
    segments: |limits| limits.send_segments,
    in_slot: |limits| limits.send,
};
const WRITE: Kind = Kind {
    operation: |to| Operation::Write { to, immediate: None },
    event: EventType::DTO_RDMA_WRITE_CMPL,
    allowed: EACH,
    segments: |limits| limits.write_segments,
    in_slot: |limits| limits.write,
};
const READ: Kind = Kind {
    operation: |from| Operation::Read { from },
    event: EventType::DTO_RDMA_READ_CMPL,
    allowed: EACH,
    segments: |limits| limits.read_segments,
    in_slot: |limits| limits.read,
};

/// Refuses flags that the operation does not allow, undefined flags, and NOTIFY without COMPLETION.
#[inline(always)]
pub(crate) const fn check_flags(flags: DtoFlags, allowed: DtoFlags) -> Result<()> {
    const BOTH: u32 = DtoFlags::NOTIFY.bits() | DtoFlags::COMPLETION.bits();
    let bits = flags.bits();
    if bits & !allowed.bits() != 0 || bits & BOTH == DtoFlags::NOTIFY.bits() {
        return Err(Error::InvalidDtoFlags);
    }
    Ok(())
}

/// Refuses flags as [`check_flags`] does, and a Receive without COMPLETION.
#[inline(always)]
pub(crate) const fn check_recv_flags(flags: DtoFlags) -> Result<()> {
    if flags.bits() & DtoFlags::COMPLETION.bits() == 0 {
        return Err(Error::InvalidDtoFlags);
    }
    check_flags(flags, RECV_FLAGS)
}

/// The device's flags. The device executes at once, so [`DtoFlags::COALESCE`] has no effect.
#[inline(always)]
pub(crate) const fn send_flags(flags: DtoFlags) -> SendFlags {
    const fn moved(flags: DtoFlags, from: DtoFlags, to: SendFlags) -> u8 {
        let there = flags.bits() & from.bits() != 0;
        there as u8 * to.bits()
    }
    SendFlags::from_bits_retain(
        moved(flags, DtoFlags::COMPLETION, SendFlags::SIGNALED)
            | moved(flags, DtoFlags::SOLICITED_WAIT, SendFlags::SOLICITED)
            | moved(flags, DtoFlags::BARRIER_FENCE, SendFlags::FENCE_READS)
            | moved(flags, DtoFlags::UNLINK_FENCE, SendFlags::FENCE_ALL),
    )
}

/// The data word that the completion returns: the event's number, and whether to notify.
#[inline(always)]
pub(crate) const fn data(flags: DtoFlags, event: EventType) -> u32 {
    let notify = flags.bits() & DtoFlags::NOTIFY.bits() != 0;
    event.0 | (notify as u32 * tag::NOTIFY)
}

impl Core {
    /// A segment in the device's form. A length beyond 32 bits, which is too long for every
    /// endpoint, becomes the largest length.
    #[inline(always)]
    pub(crate) fn segment(&self, triplet: &LmrTriplet) -> Segment {
        Segment {
            addr: triplet.addr,
            length: triplet.length.min(u64::from(u32::MAX)) as u32,
            key: self.keys.get(triplet.lmr),
        }
    }

    /// A segment in the device's form, if its handle names a region and its length fits.
    #[inline(always)]
    fn plain_segment(&self, triplet: &LmrTriplet) -> Option<Segment> {
        let key = self.keys.find(triplet.lmr)?;
        let length = u32::try_from(triplet.length).ok()?;
        Some(Segment { addr: triplet.addr, length, key })
    }

    /// Whether a segment names the direct LMR handle of an IA that has none.
    #[inline(always)]
    pub(crate) fn lacks_direct(&self, segments: &[LmrTriplet]) -> bool {
        !self.keys.has_direct() && segments.iter().any(|s| s.lmr == crate::handle::LmrHandle::DIRECT)
    }
}

impl Common {
    /// Fails unless work requests may be posted to the send queue.
    #[inline(always)]
    pub(crate) fn takes_requests(&self) -> Result<()> {
        if state::takes_requests(self.state.load(Ordering::Acquire)) {
            Ok(())
        } else {
            Err(self.takes_none())
        }
    }

    #[cold]
    fn takes_none(&self) -> Error {
        if self.is_ud() { Error::InvalidEpType } else { Error::InvalidEpState }
    }
}

impl Ep {
    #[inline(always)]
    fn post(&self, core: &Core, wanted: &Wanted, segments: &[LmrTriplet]) -> Result<()> {
        wanted.check_flags()?;
        if segments.len() > (wanted.kind.segments)(&self.limits) {
            return Err(Error::InvalidNumSegments);
        }
        self.takes_requests()?;
        if core.lacks_direct(segments) {
            return Err(Error::InvalidLmr);
        }
        match self.qp.post(&wanted.request(), segments, |triplet| core.segment(triplet)) {
            Ok(_) => Ok(()),
            Err(error) => Err(core.not_posted(error)),
        }
    }

    #[cold]
    fn takes_no_such_receive(&self) -> Error {
        if self.limits.recv_end == 0 { Error::InvalidEpType } else { Error::InvalidNumSegments }
    }

    #[inline(always)]
    fn post_recv(&self, core: &Core, segments: &[LmrTriplet], cookie: u64, flags: DtoFlags) -> Result<()> {
        check_recv_flags(flags)?;
        if segments.len() >= self.limits.recv_end {
            return Err(self.takes_no_such_receive());
        }
        if core.lacks_direct(segments) {
            return Err(Error::InvalidLmr);
        }
        let shadow = Shadow { cookie, data: data(flags, EventType::DTO_RC_RECV_CMPL) };
        match self.qp.post_receive(false, segments, |triplet| core.segment(triplet), shadow) {
            Ok(()) => Ok(()),
            // The endpoint takes its Receives from an SRQ.
            Err(PostError::Kind) => Err(Error::InvalidSrq),
            Err(error) => Err(core.not_posted(error)),
        }
    }
}

impl Core {
    /// Posts a request of one segment on the fast path. `None`: nothing was posted.
    #[inline(always)]
    fn post_single(&self, wanted: &Wanted, ep: EpHandle, segment: &LmrTriplet) -> Option<()> {
        wanted.check_flags().ok()?;
        let segment = self.plain_segment(segment)?;
        let pass = ep.as_raw();
        self.ep_slots.get(pass)?.post_single(pass, wanted.kind.in_slot, &wanted.request(), segment)
    }

    /// Posts a request of any number of segments on the fast path. `None`: nothing was posted.
    fn post_through(&self, wanted: &Wanted, ep: EpHandle, segments: &[LmrTriplet]) -> Option<()> {
        wanted.check_flags().ok()?;
        if self.lacks_direct(segments) {
            return None;
        }
        let segment = |triplet: &LmrTriplet| self.segment(triplet);
        let pass = ep.as_raw();
        self.ep_slots.get(pass)?.post(pass, wanted.kind.in_slot, &wanted.request(), segments, segment)
    }
}

impl Ia {
    #[inline(always)]
    fn post(&self, wanted: Wanted, ep: EpHandle, segments: &[LmrTriplet]) -> Result<()> {
        let core = self.core();
        if let [segment] = segments
            && core.post_single(&wanted, ep, segment).is_some()
        {
            return Ok(());
        }
        self.post_any(wanted, ep, segments)
    }

    /// Posts any request, and returns the error if the request is not valid. `wanted` is passed by
    /// value: for a reference the caller's fast path would have to write it to memory (6
    /// instructions of 120).
    #[inline(never)]
    fn post_any(&self, wanted: Wanted, ep: EpHandle, segments: &[LmrTriplet]) -> Result<()> {
        let core = self.live()?;
        if core.post_through(&wanted, ep, segments).is_some() {
            return Ok(());
        }
        let entry = core.eps.lock(ep.as_raw());
        let Some(ep) = entry.as_deref().and_then(Entry::object) else { return Err(Error::InvalidEp) };
        ep.post(core, &wanted, segments)
    }

    /// Posts a Send of all segments, in order, as one message; no segments make an empty one.
    ///
    /// Completes as `IT_DTO_SEND_CMPL_EVENT` on the endpoint's request EVD. A bad segment is a
    /// completion error. In NONOPERATIONAL it is flushed.
    ///
    /// Errors: `InvalidDtoFlags`, `InvalidEp`, `InvalidEpState`, `InvalidEpType`,
    /// `InvalidNumSegments`, `TooManyPosts`, `InvalidLmr` (the direct LMR handle on an IA that
    /// lacks it), `InvalidIa`, `IaCatastrophe`. Does not block. May be called in callbacks.
    /// Thread-safe. Page it_post_send.
    #[doc(alias = "it_post_send")]
    #[inline]
    pub fn post_send(
        &self,
        ep: EpHandle,
        local_segments: &[LmrTriplet],
        cookie: u64,
        dto_flags: DtoFlags,
    ) -> Result<()> {
        let remote = Remote::default();
        self.post(Wanted { kind: &SEND, cookie, flags: dto_flags, remote }, ep, local_segments)
    }

    /// Posts an RDMA Write of all segments, in order, to `rdma_addr` of the peer's region.
    ///
    /// Completes as `IT_DTO_RDMA_WRITE_CMPL_EVENT` on the endpoint's request EVD. A bad segment or
    /// remote address is a completion error, except where no byte is moved. In NONOPERATIONAL the
    /// request is flushed.
    ///
    /// Errors: `InvalidDtoFlags`, `InvalidEp`, `InvalidEpState`, `InvalidEpType`,
    /// `InvalidNumSegments`, `TooManyPosts`, `InvalidLmr` (the direct LMR handle on an IA that
    /// lacks it), `InvalidIa`, `IaCatastrophe`. Does not block. May be called in callbacks.
    /// Thread-safe. Page it_post_rdma_write.
    #[doc(alias = "it_post_rdma_write")]
    #[inline]
    pub fn post_rdma_write(
        &self,
        ep: EpHandle,
        local_segments: &[LmrTriplet],
        cookie: u64,
        dto_flags: DtoFlags,
        rdma_addr: RdmaAddr,
        rmr_context: RmrContext,
    ) -> Result<()> {
        let remote = Remote { addr: rdma_addr.to_host(), key: rmr_context.key() };
        self.post(Wanted { kind: &WRITE, cookie, flags: dto_flags, remote }, ep, local_segments)
    }

    /// Posts an RDMA Read from `rdma_addr` of the peer's region to all segments, in order.
    ///
    /// Completes as `IT_DTO_RDMA_READ_CMPL_EVENT` on the endpoint's request EVD. A bad segment or
    /// remote address is a completion error, except where no byte is moved; so is the direct LMR
    /// handle. In NONOPERATIONAL the request is flushed.
    ///
    /// Errors: `InvalidDtoFlags`, `InvalidEp`, `InvalidEpState`, `InvalidEpType`,
    /// `InvalidNumSegments`, `TooManyPosts`, `InvalidLmr` (the direct LMR handle on an IA that
    /// lacks it), `InvalidIa`, `IaCatastrophe`. Does not block. May be called in callbacks.
    /// Thread-safe. Page it_post_rdma_read.
    #[doc(alias = "it_post_rdma_read")]
    #[inline]
    pub fn post_rdma_read(
        &self,
        ep: EpHandle,
        local_segments: &[LmrTriplet],
        cookie: u64,
        dto_flags: DtoFlags,
        rdma_addr: RdmaAddr,
        rmr_context: RmrContext,
    ) -> Result<()> {
        let remote = Remote { addr: rdma_addr.to_host(), key: rmr_context.key() };
        self.post(Wanted { kind: &READ, cookie, flags: dto_flags, remote }, ep, local_segments)
    }

    /// Posts a Receive: the segments take one message. `handle` is an endpoint or a shared receive
    /// queue. One of the endpoints of a shared receive queue takes its Receive, which completes
    /// there; the privilege of that endpoint and the protection zone of the queue apply to it.
    ///
    /// Needs [`DtoFlags::COMPLETION`]. Completes as `IT_DTO_RC_RECV_CMPL_EVENT` on the endpoint's
    /// receive EVD. A bad segment is a completion error. May be posted in every state; in
    /// NONOPERATIONAL it is flushed.
    ///
    /// Errors: `InvalidDtoFlags`, `InvalidEp`, `InvalidEpType`, `InvalidSrq` (the queue is freed,
    /// or the endpoint takes its Receives from a shared receive queue), `InvalidNumSegments`,
    /// `TooManyPosts`, `InvalidLmr` (the direct LMR handle on an IA that lacks it), `InvalidIa`,
    /// `IaCatastrophe`. Does not block. May be called in callbacks. Thread-safe. Page it_post_recv.
    #[doc(alias = "it_post_recv")]
    #[inline]
    pub fn post_recv(
        &self,
        handle: impl Into<Handle>,
        local_segments: &[LmrTriplet],
        cookie: u64,
        dto_flags: DtoFlags,
    ) -> Result<()> {
        let core = self.live()?;
        let handle = handle.into();
        let entry = core.eps.lock(handle.as_raw());
        let Some(ep) = entry.as_deref().and_then(Entry::object) else {
            return core.post_shared(handle, local_segments, cookie, dto_flags);
        };
        ep.post_recv(core, local_segments, cookie, dto_flags)
    }
}

impl Core {
    /// Posts a Receive to a handle that names no endpoint.
    #[inline(never)]
    fn post_shared(
        &self,
        handle: Handle,
        segments: &[LmrTriplet],
        cookie: u64,
        flags: DtoFlags,
    ) -> Result<()> {
        if handle.claimed_type() != Some(HandleType::Srq) {
            return Err(Error::InvalidEp);
        }
        let posted = self.srqs.with(handle.as_raw(), |srq| srq.post_recv(self, segments, cookie, flags));
        posted.unwrap_or(Err(Error::InvalidSrq))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_an_operation_does_not_have_are_refused() {
        let refused = Err(Error::InvalidDtoFlags);
        assert_eq!(check_flags(DtoFlags::empty(), SEND.allowed), Ok(()));
        assert_eq!(check_flags(DtoFlags::all(), SEND.allowed), refused);
        assert_eq!(check_flags(DtoFlags::SOLICITED_WAIT, WRITE.allowed), refused);
        assert_eq!(check_flags(DtoFlags::UNLINK_FENCE, READ.allowed), refused);
        assert_eq!(check_flags(DtoFlags::from_bits_retain(0x80), SEND.allowed), refused);
        assert_eq!(check_flags(DtoFlags::BARRIER_FENCE, RECV_FLAGS), refused);
        assert_eq!(check_flags(DtoFlags::UNLINK_FENCE, UNLINK_FLAGS), Ok(()));
    }

    #[test]
    fn notify_needs_completion() {
        let both = DtoFlags::NOTIFY | DtoFlags::COMPLETION;
        assert_eq!(check_flags(DtoFlags::NOTIFY, WRITE.allowed), Err(Error::InvalidDtoFlags));
        assert_eq!(check_flags(both, WRITE.allowed), Ok(()));
        assert_eq!(data(both, WRITE.event), 0x04 | tag::NOTIFY);
    }

    #[test]
    fn receives_need_completion() {
        let refused = Err(Error::InvalidDtoFlags);
        assert_eq!(check_recv_flags(DtoFlags::COMPLETION | DtoFlags::COALESCE), Ok(()));
        assert_eq!(check_recv_flags(DtoFlags::COALESCE), refused);
        assert_eq!(check_recv_flags(DtoFlags::COMPLETION | DtoFlags::BARRIER_FENCE), refused);
    }

    #[test]
    fn each_flag_reaches_the_device() {
        let flags = DtoFlags::COMPLETION | DtoFlags::SOLICITED_WAIT | DtoFlags::BARRIER_FENCE;
        assert_eq!(send_flags(flags), SendFlags::SIGNALED | SendFlags::SOLICITED | SendFlags::FENCE_READS);
        assert_eq!(send_flags(DtoFlags::UNLINK_FENCE), SendFlags::FENCE_ALL);
        assert_eq!(send_flags(DtoFlags::COALESCE | DtoFlags::NOTIFY), SendFlags::empty());
    }
}
