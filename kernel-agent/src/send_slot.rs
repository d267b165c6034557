//! The slot of a send queue, and the posts that need nothing else of the queue pair.
//!
//! Nothing here allocates. Each post takes one lock, that of the slot, and rings the doorbell.

use alloc::sync::Arc;
use core::hint::cold_path;

use nic_abi::wqe::Segment;
use nic_hal::{Direction, Next, Outstanding, Refused, SendQueue, Transfer, Unposted};

use crate::PostError;
use crate::slot::QueueSlot;

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
    limits: SegmentLimits,
    /// Whether requests of one segment are within the limits whatever their operation.
    singles: bool,
}

impl Sender {
    pub(crate) fn new(queue: SendQueue, sends: Arc<Outstanding>, limits: SegmentLimits) -> Sender {
        let SegmentLimits { send, write, read } = limits;
        Sender { queue, sends, limits, singles: send.min(write).min(read) > 0 }
    }
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
    /// Of a transfer in this direction.
    #[inline(always)]
    pub fn of(&self, direction: Direction) -> u32 {
        match direction {
            Direction::Send => self.send,
            Direction::Write => self.write,
            Direction::Read => self.read,
        }
    }

    /// Of any transfer.
    pub fn most(&self) -> u32 {
        self.send.max(self.write).max(self.read)
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
    /// `None`: nothing was posted, for a reason that [`Qp::post`](crate::Qp::post) finds.
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
        let Sender { queue, sends, limits, singles } = &*sender;
        let batch = SendBatch { unposted: queue.begin(sends, *singles), limits };
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
    limits: &'a SegmentLimits,
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

    /// The same batch, in which [`SendBatch::write_single`] finds room again, if there is some.
    #[cold]
    #[inline(never)]
    pub fn renewed(self) -> Self {
        SendBatch { unposted: self.unposted.renewed(), ..self }
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
        if segments.len() > limit(self.limits) as usize {
            return Err(PostError::Segments);
        }
        Ok(self.unposted.write(transfer, segments, segment)?)
    }
}
