//! Posting: from a request to the ring of a send or receive queue.
//!
//! Nothing here allocates. Each post takes one lock, that of its queue (a send queue's is its
//! slot's), and rings the doorbell.

use alloc::sync::Arc;
use core::hint::cold_path;

use nic_abi::wqe::{LinkFlags, Segment, SendFlags};
use nic_hal::{Next, Operation, Outstanding, Refused, Request, SendQueue, Shadow, Transfer, Unposted};

use crate::key::Outstanding as OutstandingLink;
use crate::qp::Qp;
use crate::slot::{OwnerGuard, QueueSlot};
use crate::{Link, PostError, Region, Window};

impl From<Refused> for PostError {
    #[inline]
    fn from(refused: Refused) -> PostError {
        match refused {
            Refused::Full => PostError::QueueFull,
            Refused::Segments => PostError::Segments,
            Refused::Segment => PostError::Segment,
        }
    }
}

/// The slot of a send queue. It is open while the queue pair takes requests.
pub type SendSlot = QueueSlot<Arc<Sender>>;

/// The queue in a [`SendSlot`].
pub struct Sender {
    pub(crate) queue: SendQueue,
    pub(crate) sends: Arc<Outstanding>,
    pub(crate) limits: SegmentLimits,
}

/// Segments at most of a request that is posted through a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentLimits {
    /// Of a Send.
    pub send: u32,
    /// Of an RDMA Write.
    pub write: u32,
    /// Of an RDMA Read.
    pub read: u32,
}

impl SegmentLimits {
    /// Whether requests of one segment are within these limits whatever their operation.
    fn allow_singles(&self) -> bool {
        self.send.min(self.write).min(self.read) > 0
    }

    /// These limits, but none above that of the queue, for which its ring has room.
    pub(crate) fn at_most(self, most: u32) -> SegmentLimits {
        let SegmentLimits { send, write, read } = self;
        SegmentLimits { send: send.min(most), write: write.min(most), read: read.min(most) }
    }
}

impl SendSlot {
    /// Posts a Send, RDMA Write or RDMA Read of one segment, if `handle` is the slot's, the slot is
    /// open and the limits are `enough`. `make` makes the transfer, or refuses; it runs under the
    /// slot's lock, at the end.
    ///
    /// `None`: nothing was posted, for a reason that [`Qp::post`] finds.
    #[inline(always)]
    pub fn post_single(
        &self,
        handle: u64,
        enough: impl FnOnce(&SegmentLimits) -> bool,
        make: impl FnOnce() -> Option<(Transfer, Segment)>,
    ) -> Option<()> {
        let mut guard = self.try_lock(handle)?;
        let Some(sender) = guard.queue() else {
            cold_path();
            return None;
        };
        if !enough(&sender.limits) {
            cold_path();
            return None;
        }
        sender.queue.post_single(&sender.sends, make).ok()
    }

    /// Posts a Send, RDMA Write or RDMA Read of any number of segments, as
    /// [`SendSlot::post_single`] does. `segment` converts the caller's kind of segment, and may
    /// refuse it.
    #[inline(always)]
    pub fn post_many<T, S: Into<Option<Segment>>>(
        &self,
        handle: u64,
        limit: impl Fn(&SegmentLimits) -> u32,
        transfer: &Transfer,
        segments: &[T],
        segment: impl Fn(&T) -> S,
    ) -> Option<()> {
        let mut guard = self.try_lock(handle)?;
        let sender = guard.queue()?;
        if segments.len() > limit(&sender.limits) as usize {
            return None;
        }
        sender.queue.post_many(&sender.sends, transfer, segments, segment).ok()
    }

    /// Lets `write` write requests one after another, if `handle` is the slot's and the slot is
    /// open, and then posts together those that its [`Written`] covers. If `write` fails or panics,
    /// none is posted.
    ///
    /// While `write` runs, the slot is closed, and posts return [`PostError::Busy`]: the poster has
    /// the send queue for itself and holds no lock, so `write` may take any time.
    #[inline(always)]
    pub fn batch<R, E: From<NoBatch>>(
        &self,
        handle: u64,
        write: impl FnOnce(SendBatch<'_>) -> Result<(R, Written), E>,
    ) -> Result<R, E> {
        // The queue pair may be destroyed meanwhile, so the sender is kept alive.
        let Some((owner, sender)) = self.take_turn(handle) else { return Err(NoBatch::Closed.into()) };
        let turn = Turn { slot: self, owner };
        let Sender { queue, sends, limits } = &*sender;
        let batch = SendBatch { unposted: queue.begin(sends, limits.allow_singles()), limits: *limits };
        let (result, Written(next)) = write(batch)?;
        if turn.end(|sender| sender.queue.post_all(&sender.sends, next)) {
            Ok(result)
        } else {
            Err(NoBatch::Lost.into())
        }
    }
}

/// Why the requests of a batch were not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoBatch {
    /// The slot was closed at the beginning.
    Closed,
    /// The slot has been closed since, or has another owner.
    Lost,
}

/// One poster's turn: until this is dropped, no other poster can use the send queue.
struct Turn<'a> {
    slot: &'a SendSlot,
    /// The queue pair that owned the slot when the turn began.
    owner: u64,
}

impl Turn<'_> {
    /// Ends the turn, and runs `last` before other posters get theirs, unless the slot has been
    /// closed meanwhile or has another owner; returns whether it ran.
    #[inline(always)]
    fn end(self, last: impl FnOnce(&Sender)) -> bool {
        let Turn { slot, owner } = self;
        core::mem::forget(self);
        slot.end_turn(owner, |sender| last(sender))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.slot.end_turn(self.owner, |_| {});
    }
}

/// The end of a batch that was written.
pub struct Written(Next);

/// The requests of a batch: see [`SendSlot::batch`]. It is a value that the compiler can keep in
/// registers.
#[derive(Clone, Copy)]
pub struct SendBatch<'a> {
    unposted: Unposted<'a>,
    limits: SegmentLimits,
}

impl SendBatch<'_> {
    /// As [`SendBatch::write`], for one segment. `None` for a reason that [`SendBatch::write`]
    /// finds.
    #[inline(always)]
    pub fn write_single(
        &mut self,
        transfer: &Transfer,
        segment: impl FnOnce() -> Option<Segment>,
    ) -> Option<()> {
        self.unposted.write_single(transfer, segment)
    }

    /// Where the batch ends: what [`SendSlot::batch`] posts.
    #[inline(always)]
    pub fn written(&self) -> Written {
        Written(self.unposted.next())
    }

    /// Writes a Send, RDMA Write or RDMA Read behind those that were written before.
    #[inline(always)]
    pub fn write<T, S: Into<Option<Segment>>>(
        &mut self,
        limit: impl Fn(&SegmentLimits) -> u32,
        transfer: &Transfer,
        segments: &[T],
        segment: impl Fn(&T) -> S,
    ) -> Result<(), PostError> {
        if segments.len() > limit(&self.limits) as usize {
            return Err(PostError::Segments);
        }
        Ok(self.unposted.write(transfer, segments, segment)?)
    }
}

/// A range of a region to which a window is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The region's local key.
    pub region: u32,
    /// Remote rights and addressing.
    pub flags: LinkFlags,
    /// The first address in the region's address space.
    pub addr: u64,
    /// Bytes; 0 unbinds a wide window.
    pub length: u64,
}

/// Segments of a request that has none.
const NONE: [Segment; 0] = [];

impl Qp {
    #[inline]
    fn may_send<'a>(&self, guard: &'a mut OwnerGuard<'_, Arc<Sender>>) -> Result<&'a SendQueue, PostError> {
        // Read under the queue's lock: a thread that closes the queue pair to posts and takes the
        // lock afterwards knows that no post is under way.
        if guard.is_taken() {
            return Err(PostError::Busy);
        }
        match guard.queue() {
            Some(sender) if self.common.state.takes_sends() => Ok(&sender.queue),
            _ => Err(self.why_not()),
        }
    }

    #[cold]
    #[inline(never)]
    fn why_not(&self) -> PostError {
        if self.common.is_gone() { PostError::Gone } else { PostError::State }
    }

    /// Why [`SendSlot::batch`] found the slot closed.
    pub fn why_no_batch(&self) -> PostError {
        let mut guard = self.send.lock();
        match guard.queue() {
            // It was taken, or has been opened only since.
            Some(_) if self.common.state.takes_sends() => PostError::Busy,
            _ => self.why_not(),
        }
    }

    /// Posts a request to the send queue; `segment` converts the caller's kind of segment, and
    /// may refuse it. Returns the request's tag.
    ///
    /// Inlined, since most callers have a constant operation.
    #[inline(always)]
    pub fn post<T, S: Into<Option<Segment>>>(
        &self,
        request: &Request,
        segments: &[T],
        segment: impl Fn(&T) -> S,
    ) -> Result<u32, PostError> {
        let datagram =
            matches!(request.operation, Operation::Datagram { .. } | Operation::DatagramImmediate { .. });
        if datagram && self.kind.is_connected() {
            return Err(PostError::Kind);
        }
        let mut guard = self.send.lock();
        let queue = self.may_send(&mut guard)?;
        let tag = queue.push(&self.sends, request, segments, segment)?;
        queue.ring();
        Ok(tag)
    }

    /// Posts a request that has no segments, as [`Qp::post`] does.
    #[inline(always)]
    pub fn post_plain(&self, request: &Request) -> Result<u32, PostError> {
        self.post(request, &NONE, |&none| none)
    }

    /// Posts a link (fast register) of an unlinked region; returns the remote key that the region
    /// has when the link is complete.
    ///
    /// The list is copied. The copy is in use until the request is known to have completed.
    pub fn post_link(
        &self,
        region: &Region,
        link: &Link<'_>,
        flags: SendFlags,
        shadow: Shadow,
    ) -> Result<u32, PostError> {
        if !Arc::ptr_eq(self.client(), region.client()) {
            return Err(PostError::Gone);
        }
        let (key, base, length) = (region.key(), link.base, link.memory.length());
        region.link(link, |list| {
            let operation = Operation::FastRegister { key, flags: link.flags(), base, length, list };
            let tag = self.post_plain(&Request { operation, flags, shadow })?;
            Ok(OutstandingLink { slot: self.slot(), generation: self.generation(), tag })
        })
    }

    /// Posts a bind of a window; returns the remote key that the window has when the bind is
    /// complete.
    pub fn post_bind(
        &self,
        window: &Window,
        to: Bind,
        flags: SendFlags,
        shadow: Shadow,
    ) -> Result<u32, PostError> {
        if !Arc::ptr_eq(self.client(), window.client()) {
            return Err(PostError::Gone);
        }
        let (key, remote) = (window.key(), window.next_remote());
        let Bind { region, flags: rights, addr, length } = to;
        let operation = Operation::BindWindow { key, remote, region, flags: rights, addr, length };
        self.post_plain(&Request { operation, flags, shadow })?;
        Ok(remote)
    }

    /// Posts a receive of one segment: the fast path of [`Qp::post_receive`]. `None`: nothing was
    /// posted, for a reason that [`Qp::post_receive`] finds. `segment` runs under the queue's lock,
    /// at the end.
    #[inline(always)]
    pub fn post_single_receive(
        &self,
        segment: impl FnOnce() -> Option<Segment>,
        shadow: Shadow,
    ) -> Option<()> {
        let mut queue = self.receive.as_ref()?.try_lock()?;
        if !self.common.state.takes_receives() {
            return None;
        }
        queue.post_single(&self.receives, segment, shadow).ok()
    }

    /// Posts a receive.
    #[inline]
    pub fn post_receive<T, S: Into<Option<Segment>>>(
        &self,
        solicited: bool,
        segments: &[T],
        segment: impl Fn(&T) -> S,
        shadow: Shadow,
    ) -> Result<(), PostError> {
        let Some(receive) = &self.receive else { return Err(PostError::Kind) };
        let mut queue = receive.lock();
        if !self.common.state.takes_receives() {
            return Err(self.why_not());
        }
        queue.push(&self.receives, solicited, segments, segment, shadow)?;
        queue.ring();
        Ok(())
    }
}
