//! Posting work requests (pages it_post_send, it_post_recv, it_post_rdma_write, it_post_rdma_read,
//! it_dto_flags_t).
//!
//! Nothing here allocates, waits or formats.
//!
//! Sends, Writes and Reads take the fast path: the slot of the endpoint's send queue, under the
//! slot's lock. If the slot is closed or its lock is held, or if anything is wrong, they take the
//! slow path: it holds the endpoint's table entry during the post, and finds the error. Local keys
//! are looked up without a check: a bad key becomes a completion error.

use core::hint::cold_path;
use core::slice::from_ref;
use core::sync::atomic::Ordering;

use kernel_agent::{
    Direction, Head, Operation, PostError, RemoteWords, Request, Segment, SegmentLimits, SendFlags, SendSlot,
    Shadow, Transfer,
};
use rdma::WorkQueues;

use super::state;
use crate::address::{RdmaAddr, RmrContext};
use crate::evd::posted::{Posted, tag};
use crate::event::EventType;
use crate::flags::DtoFlags;
use crate::handle::{EpHandle, Handle, HandleType, LmrHandle};
use crate::ia::{Core, Ia};
use crate::iobl::LmrTriplet;
use crate::objects::ep::{Common, Ep};
use crate::status::{Error, Result};
use rdma::Keys;

/// A kind of transfer. A type for each, so that each kind has code of its own, in which nothing of
/// the choice is left.
pub(crate) trait Kind {
    /// What the device does.
    const DIRECTION: Direction;

    /// What the flags of a call become, by their bits.
    const FLAGS: [Encoded; 1 << FLAG_BITS];

    /// The request, without its segments. Fails if it cannot have these flags.
    #[inline(always)]
    fn transfer(cookie: u64, flags: DtoFlags, remote: RemoteWords) -> Result<Transfer> {
        let Encoded { data, head } = Encoded::of(flags, &Self::FLAGS)?;
        Ok(Transfer { head, remote, shadow: Shadow { cookie, data } })
    }

    /// The endpoint's limit of segments.
    #[inline(always)]
    fn limit(limits: &SegmentLimits) -> u32 {
        limits.of(Self::DIRECTION)
    }

    /// As [`Kind::transfer`], for the slow path, with what depends on the IA and the segments.
    fn request(
        _core: &Core,
        _segments: &[LmrTriplet],
        cookie: u64,
        flags: DtoFlags,
        remote: RemoteWords,
    ) -> Result<Request> {
        Ok(Self::transfer(cookie, flags, remote)?.request(Self::DIRECTION))
    }
}

/// An RDMA Read, which with [`DtoFlags::UNLINK_LOCAL_SINK`] also unlinks its one sink: `sink` has
/// its local key.
pub(super) fn read_request(
    core: &Core,
    sink: Option<u32>,
    cookie: u64,
    flags: DtoFlags,
    remote: RemoteWords,
) -> Result<Request> {
    let plain = flags.difference(DtoFlags::UNLINK_LOCAL_SINK);
    let mut request = Read::transfer(cookie, plain, remote)?.request(Direction::Read);
    if plain != flags {
        if !core.facts().reads_write_remotely {
            return Err(Error::InvalidDtoFlags);
        }
        let key = sink.ok_or(Error::InvalidDtoFlags)?;
        request.operation = Operation::ReadInvalidate { from: remote.remote(), key };
    }
    Ok(request)
}

/// The flags of a request in the forms in which they go on, looked up in a table instead of moved
/// bit by bit.
#[derive(Clone, Copy)]
pub(crate) struct Encoded {
    /// The data word of the completion, or [`REFUSED`].
    pub(super) data: u32,
    pub(super) head: Head,
}

impl Encoded {
    /// Looks the flags up in the table of a kind of request. Fails if it cannot have these flags.
    #[inline(always)]
    pub(super) fn of(flags: DtoFlags, table: &[Encoded; 1 << FLAG_BITS]) -> Result<Encoded> {
        match table.get(flags.bits() as usize) {
            Some(encoded) if encoded.data != REFUSED => Ok(*encoded),
            _ => {
                cold_path();
                Err(Error::InvalidDtoFlags)
            }
        }
    }
}

/// The kind cannot have these flags. No data word is 0.
const REFUSED: u32 = 0;

/// The bits that flags can have.
pub(super) const FLAG_BITS: u32 = DtoFlags::all().bits().ilog2() + 1;

/// The table of a kind.
pub(super) const fn encoded(
    direction: Direction,
    event: EventType,
    allowed: DtoFlags,
) -> [Encoded; 1 << FLAG_BITS] {
    let refused = Encoded { data: REFUSED, head: Head::new(direction, SendFlags::empty()) };
    let mut table = [refused; 1 << FLAG_BITS];
    let mut bits = 0;
    while bits < table.len() {
        let flags = DtoFlags::from_bits_retain(bits as u32);
        if check_flags(flags, allowed).is_ok() {
            table[bits] = Encoded { data: data(flags, event), head: Head::new(direction, send_flags(flags)) };
        }
        bits += 1;
    }
    table
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

pub(crate) enum Send {}
impl Kind for Send {
    const DIRECTION: Direction = Direction::Send;
    const FLAGS: [Encoded; 1 << FLAG_BITS] = encoded(Self::DIRECTION, EventType::DTO_SEND_CMPL, SEND_FLAGS);
}

pub(crate) enum Write {}
impl Kind for Write {
    const DIRECTION: Direction = Direction::Write;
    const FLAGS: [Encoded; 1 << FLAG_BITS] = encoded(Self::DIRECTION, EventType::DTO_RDMA_WRITE_CMPL, EACH);
}

pub(crate) enum Read {}
impl Kind for Read {
    const DIRECTION: Direction = Direction::Read;
    const FLAGS: [Encoded; 1 << FLAG_BITS] = encoded(Self::DIRECTION, EventType::DTO_RDMA_READ_CMPL, EACH);

    fn request(
        core: &Core,
        segments: &[LmrTriplet],
        cookie: u64,
        flags: DtoFlags,
        remote: RemoteWords,
    ) -> Result<Request> {
        let sink = match segments {
            [one] => Some(core.keys.get(one.lmr.as_raw())),
            _ => None,
        };
        read_request(core, sink, cookie, flags, remote)
    }
}

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

/// The part of the data word that says how the request was posted.
#[inline(always)]
pub(super) const fn with(posted: Posted) -> u32 {
    (posted.bits() as u32) << tag::POSTED
}

impl Core {
    /// A segment in the device's form; `None` if it names the direct LMR handle and the IA lacks
    /// that. A length beyond 32 bits, which is too long for every endpoint, becomes the largest
    /// length.
    #[inline(always)]
    pub(crate) fn segment(&self, triplet: &LmrTriplet) -> Option<Segment> {
        let key = match self.keys.find(triplet.lmr.as_raw()) {
            Some(key) => key,
            None => self.other_key(triplet.lmr)?,
        };
        let length = triplet.length.min(u64::from(u32::MAX)) as u32;
        Some(Segment { addr: triplet.addr, length, key })
    }

    /// The key of a handle that names no region: a work request with it completes in error.
    #[cold]
    fn other_key(&self, lmr: LmrHandle) -> Option<u32> {
        (lmr != LmrHandle::DIRECT || self.keys.has_direct()).then(|| self.keys.get(lmr.as_raw()))
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
    /// Posts a request of at most so many segments to a queue pair.
    #[inline(always)]
    pub(super) fn post(
        &self,
        core: &Core,
        request: &Request,
        segments: &[LmrTriplet],
        most: u32,
    ) -> Result<()> {
        if segments.len() > most as usize {
            return Err(Error::InvalidNumSegments);
        }
        self.takes_requests()?;
        match self.qp()?.post(request, segments, |triplet| core.segment(triplet)) {
            Ok(_) => Ok(()),
            Err(error) => Err(core.not_posted(error)),
        }
    }

    /// Posts a request of at most so many segments to a queue pair or to a virtual interface.
    #[cold]
    #[inline(never)]
    pub(super) fn post_slowly(
        &self,
        core: &Core,
        request: &Request,
        segments: &[LmrTriplet],
        most: u32,
    ) -> Result<()> {
        let Some(vi) = self.pair.vi() else { return self.post(core, request, segments, most) };
        if segments.len() > most as usize {
            return Err(Error::InvalidNumSegments);
        }
        self.takes_requests()?;
        let posted = vi.post(request, segments, |triplet| core.segment(triplet));
        posted.map_err(|error| core.not_posted(error))
    }

    #[cold]
    fn takes_no_such_receive(&self) -> Error {
        if self.limits.recv_end == 0 { Error::InvalidEpType } else { Error::InvalidNumSegments }
    }

    /// Posts a Receive of one segment. `None`: nothing was posted.
    #[inline(always)]
    fn post_single_recv(
        &self,
        keys: &Keys,
        segment: &LmrTriplet,
        cookie: u64,
        flags: DtoFlags,
    ) -> Option<()> {
        check_recv_flags(flags).ok()?;
        let WorkQueues::Entries(qp) = &self.pair else { return None };
        let shadow = Shadow { cookie, data: data(flags, EventType::DTO_RC_RECV_CMPL) };
        qp.post_single_receive(|| keys.segment(segment), shadow)
    }

    fn post_recv(&self, core: &Core, segments: &[LmrTriplet], cookie: u64, flags: DtoFlags) -> Result<()> {
        check_recv_flags(flags)?;
        if segments.len() >= self.limits.recv_end as usize {
            return Err(self.takes_no_such_receive());
        }
        let shadow = Shadow { cookie, data: data(flags, EventType::DTO_RC_RECV_CMPL) };
        let Some(qp) = self.pair.qp() else { return self.post_recv_via(core, segments, shadow) };
        let posted = qp.post_receive(false, segments, |triplet| core.segment(triplet), shadow);
        match posted {
            Ok(()) => Ok(()),
            // The endpoint takes its Receives from an SRQ.
            Err(PostError::Kind) => Err(Error::InvalidSrq),
            Err(error) => Err(core.not_posted(error)),
        }
    }

    /// Posts a Receive to a virtual interface.
    #[cold]
    #[inline(never)]
    fn post_recv_via(&self, core: &Core, segments: &[LmrTriplet], shadow: Shadow) -> Result<()> {
        let vi = self.pair.vi().ok_or(Error::InvalidEpType)?;
        let posted = vi.post_receive(segments, |triplet| core.segment(triplet), shadow);
        posted.map_err(|error| core.not_posted(error))
    }
}

/// Where an RDMA request begins in the peer's memory.
#[inline(always)]
pub(super) fn remote(rdma_addr: RdmaAddr, rmr_context: RmrContext) -> RemoteWords {
    RemoteWords::from_be(rdma_addr.0, rmr_context.0)
}

/// Flags and the place in the peer's memory in two words, as the slow path takes them: the other
/// arguments then fit into registers, and the fast path needs no stack for the call.
#[derive(Clone, Copy)]
pub(super) struct Packed {
    /// The key in the upper half, the flags in the lower one.
    key_and_flags: u64,
    addr: u64,
}

impl Packed {
    #[inline(always)]
    pub(super) fn new(flags: DtoFlags, remote: RemoteWords) -> Packed {
        Packed { key_and_flags: remote.key | u64::from(flags.bits()), addr: remote.addr }
    }

    #[inline(always)]
    pub(super) fn open(self) -> (DtoFlags, RemoteWords) {
        let flags = self.key_and_flags as u32;
        let key = self.key_and_flags ^ u64::from(flags);
        (DtoFlags::from_bits_retain(flags), RemoteWords { key, addr: self.addr })
    }
}

/// Posts a request of one segment through the slot of an endpoint, if the limits are `enough`.
/// `None`: nothing was posted. It calls no function that is not inlined, so that the arguments stay
/// in registers.
#[expect(clippy::too_many_arguments, reason = "each stays in a register; it is inlined")]
#[inline(always)]
pub(super) fn post_single<K: Kind>(
    slot: &SendSlot,
    keys: &Keys,
    handle: u64,
    enough: impl FnOnce(&SegmentLimits) -> bool,
    segment: &LmrTriplet,
    cookie: u64,
    flags: DtoFlags,
    remote: RemoteWords,
) -> Option<()> {
    slot.post_single(handle, enough, || {
        // The segment first: its look-up takes more registers.
        let segment = keys.segment(segment)?;
        Some((K::transfer(cookie, flags, remote).ok()?, segment))
    })
}

impl Ia {
    #[inline(always)]
    fn post<K: Kind>(
        &self,
        ep: EpHandle,
        segments: &[LmrTriplet],
        cookie: u64,
        flags: DtoFlags,
        remote: RemoteWords,
    ) -> Result<()> {
        let packed = || Packed::new(flags, remote);
        match segments {
            // Two calls: in the first one the number of segments is known and takes no register.
            [one] => {
                let (core, handle) = (self.core(), ep.as_raw());
                let enough = |limits: &SegmentLimits| K::limit(limits) > 0;
                if let Some(slot) = core.ep_slots.get(handle)
                    && post_single::<K>(slot, &core.keys, handle, enough, one, cookie, flags, remote)
                        .is_some()
                {
                    return Ok(());
                }
                self.post_one_slowly::<K>(ep, packed(), one, cookie)
            }
            _ => {
                let segment = |one: &LmrTriplet| self.core().keys.segment(one);
                if self.post_many::<K>(ep, segments, cookie, flags, remote, segment).is_some() {
                    return Ok(());
                }
                self.post_slowly::<K>(ep, packed(), segments, cookie)
            }
        }
    }

    /// [`Ia::post_any`] for one segment.
    #[cold]
    #[inline(never)]
    fn post_one_slowly<K: Kind>(
        &self,
        ep: EpHandle,
        packed: Packed,
        segment: &LmrTriplet,
        cookie: u64,
    ) -> Result<()> {
        self.post_any::<K>(ep, packed, from_ref(segment), cookie)
    }

    /// Posts any request, and returns the error if the request is not valid. It knows the direct
    /// LMR handle, which the fast path does not: so a consumer that names it in each request does
    /// not take the slowest path each time.
    #[inline(never)]
    pub(super) fn post_any<K: Kind>(
        &self,
        ep: EpHandle,
        packed: Packed,
        segments: &[LmrTriplet],
        cookie: u64,
    ) -> Result<()> {
        let (flags, remote) = packed.open();
        let segment = |one: &LmrTriplet| self.core().keys.segment_or_direct(one);
        if self.post_many::<K>(ep, segments, cookie, flags, remote, segment).is_some() {
            return Ok(());
        }
        self.post_slowly::<K>(ep, packed, segments, cookie)
    }

    /// Posts a request of any number of segments through the slot of its endpoint. `segment` makes
    /// the device's form of one. `None`: nothing was posted.
    #[inline(always)]
    fn post_many<K: Kind>(
        &self,
        ep: EpHandle,
        segments: &[LmrTriplet],
        cookie: u64,
        flags: DtoFlags,
        remote: RemoteWords,
        segment: impl Fn(&LmrTriplet) -> Option<Segment>,
    ) -> Option<()> {
        let (core, handle) = (self.core(), ep.as_raw());
        let slot = core.ep_slots.get(handle)?;
        let transfer = K::transfer(cookie, flags, remote).ok()?;
        slot.post_many(handle, K::limit, &transfer, segments, segment)
    }

    /// Posts a request through the endpoint's table entry, with every check.
    #[cold]
    #[inline(never)]
    fn post_slowly<K: Kind>(
        &self,
        ep: EpHandle,
        packed: Packed,
        segments: &[LmrTriplet],
        cookie: u64,
    ) -> Result<()> {
        let core = self.live()?;
        let (flags, remote) = packed.open();
        let request = K::request(core, segments, cookie, flags, remote);
        core.post_to(ep, |ep| ep.post_slowly(core, &request?, segments, K::limit(&ep.limits.segments)))
    }

    /// Posts a Send of all segments, in order, as one message; no segments make an empty one.
    ///
    /// Completes as `IT_DTO_SEND_CMPL_EVENT` on the endpoint's request EVD. A bad segment is a
    /// completion error. In NONOPERATIONAL it is flushed.
    ///
    /// Errors: `InvalidDtoFlags`, `InvalidEp`, `InvalidEpState`, `InvalidEpType`,
    /// `InvalidNumSegments`, `TooManyPosts`, `EpBusy` (a batch has the send queue for itself),
    /// `InvalidLmr` (the direct LMR handle on an IA that lacks it), `InvalidIa`, `IaCatastrophe`.
    /// Does not block. May be called in callbacks. Thread-safe. Page it_post_send.
    #[doc(alias = "it_post_send")]
    #[inline]
    pub fn post_send(
        &self,
        ep: EpHandle,
        local_segments: &[LmrTriplet],
        cookie: u64,
        dto_flags: DtoFlags,
    ) -> Result<()> {
        self.post::<Send>(ep, local_segments, cookie, dto_flags, RemoteWords::default())
    }

    /// Posts an RDMA Write of all segments, in order, to `rdma_addr` of the peer's region.
    ///
    /// Completes as `IT_DTO_RDMA_WRITE_CMPL_EVENT` on the endpoint's request EVD. A bad segment or
    /// remote address is a completion error, except where no byte is moved. In NONOPERATIONAL the
    /// request is flushed.
    ///
    /// Errors: `InvalidDtoFlags`, `InvalidEp`, `InvalidEpState`, `InvalidEpType`,
    /// `InvalidNumSegments`, `TooManyPosts`, `EpBusy` (a batch has the send queue for itself),
    /// `InvalidLmr` (the direct LMR handle on an IA that lacks it), `InvalidIa`, `IaCatastrophe`.
    /// Does not block. May be called in callbacks. Thread-safe. Page it_post_rdma_write.
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
        self.post::<Write>(ep, local_segments, cookie, dto_flags, remote(rdma_addr, rmr_context))
    }

    /// Posts an RDMA Read from `rdma_addr` of the peer's region to all segments, in order.
    ///
    /// Completes as `IT_DTO_RDMA_READ_CMPL_EVENT` on the endpoint's request EVD. A bad segment or
    /// remote address is a completion error, except where no byte is moved; so is the direct LMR
    /// handle. In NONOPERATIONAL the request is flushed. On iWARP the segments count as written by
    /// the peer ([`IaInfo::rdma_read_requires_remote_write`](crate::IaInfo)), and with
    /// [`DtoFlags::UNLINK_LOCAL_SINK`] the Read of one segment unlinks its region afterwards.
    ///
    /// Errors: `InvalidDtoFlags`, `InvalidEp`, `InvalidEpState`, `InvalidEpType`,
    /// `InvalidNumSegments`, `TooManyPosts`, `EpBusy` (a batch has the send queue for itself),
    /// `InvalidLmr` (the direct LMR handle on an IA that lacks it), `InvalidIa`, `IaCatastrophe`.
    /// Does not block. May be called in callbacks. Thread-safe. Page it_post_rdma_read.
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
        self.post::<Read>(ep, local_segments, cookie, dto_flags, remote(rdma_addr, rmr_context))
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
    #[inline(always)]
    pub fn post_recv(
        &self,
        handle: impl Into<Handle>,
        local_segments: &[LmrTriplet],
        cookie: u64,
        dto_flags: DtoFlags,
    ) -> Result<()> {
        let handle = handle.into();
        if let [one] = local_segments
            && self.post_single_recv(handle, one, cookie, dto_flags).is_some()
        {
            return Ok(());
        }
        self.post_any_recv(handle, local_segments, cookie, dto_flags)
    }

    /// Posts a Receive of one segment to an endpoint. `None`: nothing was posted. It calls no
    /// function that is not inlined, so that the arguments stay in registers.
    #[inline(always)]
    fn post_single_recv(
        &self,
        handle: Handle,
        segment: &LmrTriplet,
        cookie: u64,
        flags: DtoFlags,
    ) -> Option<()> {
        if handle.claimed_type() == Some(HandleType::Srq) {
            return None;
        }
        let core = self.core();
        core.still_live().ok()?;
        let entry = core.eps.try_lock(handle.typed())?;
        entry.object()?.post_single_recv(&core.keys, segment, cookie, flags)
    }

    /// Posts any Receive, and returns the error if it is not valid.
    #[inline(never)]
    fn post_any_recv(
        &self,
        handle: Handle,
        segments: &[LmrTriplet],
        cookie: u64,
        flags: DtoFlags,
    ) -> Result<()> {
        let core = self.live()?;
        if handle.claimed_type() == Some(HandleType::Srq) {
            return core.post_shared(handle, segments, cookie, flags);
        }
        core.post_to(handle.typed(), |ep| ep.post_recv(core, segments, cookie, flags))
    }
}

impl Core {
    /// Posts to the endpoint, and disables the IA if the post finds the device dead. `post` runs
    /// under the lock of the endpoint's table entry; the lock is free again before the IA is
    /// disabled.
    #[inline(always)]
    pub(super) fn post_to(&self, ep: EpHandle, post: impl FnOnce(&Ep) -> Result<()>) -> Result<()> {
        let posted = self.eps.with(ep, post);
        self.posted(posted.unwrap_or(Err(Error::InvalidEp)))
    }

    /// Posts a Receive to a shared receive queue.
    #[inline(always)]
    fn post_shared(
        &self,
        handle: Handle,
        segments: &[LmrTriplet],
        cookie: u64,
        flags: DtoFlags,
    ) -> Result<()> {
        let posted = self.srqs.with(handle.typed(), |srq| srq.post_recv(self, segments, cookie, flags));
        self.posted(posted.unwrap_or(Err(Error::InvalidSrq)))
    }
}

#[cfg(test)]
mod tests {
    use kernel_agent::Remote;

    use super::*;

    #[test]
    fn flags_that_an_operation_does_not_have_are_refused() {
        let refused = Err(Error::InvalidDtoFlags);
        assert_eq!(check_flags(DtoFlags::empty(), SEND_FLAGS), Ok(()));
        assert_eq!(check_flags(DtoFlags::all(), SEND_FLAGS), refused);
        assert_eq!(check_flags(DtoFlags::SOLICITED_WAIT, EACH), refused);
        assert_eq!(check_flags(DtoFlags::UNLINK_FENCE, EACH), refused);
        assert_eq!(check_flags(DtoFlags::from_bits_retain(0x80), SEND_FLAGS), refused);
        assert_eq!(check_flags(DtoFlags::BARRIER_FENCE, RECV_FLAGS), refused);
        assert_eq!(check_flags(DtoFlags::UNLINK_FENCE, UNLINK_FLAGS), Ok(()));
    }

    #[test]
    fn packed_arguments_keep_every_bit() {
        let to = remote(crate::address::make_rdma_addr_relative(0x8000_0001_0203_0405), RmrContext(!6));
        assert_eq!(to.remote(), Remote { addr: 0x8000_0001_0203_0405, key: u32::from_be(!6) });
        let flags = DtoFlags::from_bits_retain(0x8000_0003);
        assert_eq!(Packed::new(flags, to).open(), (flags, to));
    }

    #[test]
    fn notify_needs_completion() {
        let both = DtoFlags::NOTIFY | DtoFlags::COMPLETION;
        assert_eq!(check_flags(DtoFlags::NOTIFY, EACH), Err(Error::InvalidDtoFlags));
        assert_eq!(check_flags(both, EACH), Ok(()));
        assert_eq!(data(both, EventType::DTO_RDMA_WRITE_CMPL), 0x04 | tag::NOTIFY);
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
