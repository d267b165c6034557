//! Posting: from a request to the send or receive queue's ring.
//!
//! Nothing here allocates; the one lock is that of the queue's gate. Each post rings the doorbell, but for those of a [`SendBatch`],
//! which rings it once.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use nic_abi::wqe::{BindArgs, Header, LinkFlags, Opcode, Segment, SendFlags};
use nic_hal::{Outstanding, Refused, Rung, SendQueue};
use zerocopy::{Immutable, IntoBytes};

use crate::qp::{DatagramAddress, Qp, QpType, RECEIVES_FROM, SENDS_FROM};
use crate::slot::{OwnerGuard, QueueSlot};
use crate::{Link, Note, PostError, Region, SendRequest, Window};

impl From<Refused> for PostError {
    #[inline]
    fn from(refused: Refused) -> PostError {
        match refused {
            Refused::Full => PostError::QueueFull,
            Refused::Segments => PostError::Segments,
        }
    }
}

/// The way to a send queue. It is open while requests are taken.
pub type SendSlot = QueueSlot<Sender>;

/// What lives in a [`SendSlot`].
pub struct Sender {
    pub(crate) queue: SendQueue,
    pub(crate) sends: Arc<Outstanding>,
    pub(crate) limits: SegmentLimits,
}

/// Segments at most of what is posted through a gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentLimits {
    /// Of a Send.
    pub send: u32,
    /// Of an RDMA Write.
    pub write: u32,
    /// Of an RDMA Read.
    pub read: u32,
}

impl SendSlot {
    /// Posts a Send, RDMA Write or RDMA Read of one segment, if `pass` opens the gate. `None`: nothing was done, for a reason that the long way
    /// finds out. The caller wakes the device if it sleeps.
    #[inline(always)]
    pub fn post_single(
        &self,
        handle: u64,
        limit: impl Fn(&SegmentLimits) -> u32,
        request: &SendRequest,
        segment: Segment,
        note: Note,
    ) -> Option<Rung> {
        let mut guard = self.try_lock(handle)?;
        let sender = guard.queue()?;
        if limit(&sender.limits) == 0 {
            return None;
        }
        sender.queue.push_single(&sender.sends, &header(request), segment, note.into()).ok()?;
        Some(sender.queue.ring_only())
    }

    /// The same with any number of segments.
    #[inline]
    pub fn post<T>(
        &self,
        handle: u64,
        limit: impl Fn(&SegmentLimits) -> u32,
        request: &SendRequest,
        segments: &[T],
        segment: impl Fn(&T) -> Segment,
        note: Note,
    ) -> Option<Rung> {
        let mut guard = self.try_lock(handle)?;
        let sender = guard.queue()?;
        if segments.len() > limit(&sender.limits) as usize {
            return None;
        }
        sender.queue.push(&sender.sends, &header(request), segments, segment, note.into()).ok()?;
        Some(sender.queue.ring_only())
    }
}

#[inline]
fn header(request: &SendRequest) -> Header {
    Header {
        opcode: request.opcode as u8,
        flags: request.flags.bits(),
        immediate: request.immediate,
        remote_key: request.remote_key,
        remote_addr: request.remote_addr,
        ..Header::default()
    }
}

/// The words of a 32-byte argument.
fn words(args: &(impl IntoBytes + Immutable)) -> [u64; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(args.as_bytes().chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    }
    words
}

/// Several requests under one doorbell, which is rung when this is dropped. Holds the send queue's lock.
pub struct SendBatch<'a> {
    qp: &'a Qp,
    guard: OwnerGuard<'a, Sender>,
}

impl SendBatch<'_> {
    /// Posts a Send, RDMA Write or RDMA Read.
    #[inline]
    pub fn post_send<T>(
        &mut self,
        request: &SendRequest,
        segments: &[T],
        segment: impl Fn(&T) -> Segment,
        note: Note,
    ) -> Result<(), PostError> {
        let queue = self.qp.may_send(&mut self.guard)?;
        queue.push(&self.qp.sends, &header(request), segments, segment, note.into())?;
        Ok(())
    }
}

impl Drop for SendBatch<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(sender) = self.guard.queue() {
            sender.queue.ring();
        }
    }
}

impl Qp {
    #[inline]
    fn may_send<'a>(&self, guard: &'a mut OwnerGuard<'_, Sender>) -> Result<&'a mut SendQueue, PostError> {
        // Looked at under the queue's lock, so that whoever closes the queue pair to posts and then takes the lock knows
        // that there will be none.
        match guard.queue() {
            Some(sender) if self.state.load(Ordering::Relaxed) >= SENDS_FROM => Ok(&mut sender.queue),
            _ => Err(self.why_not()),
        }
    }

    #[cold]
    #[inline(never)]
    fn why_not(&self) -> PostError {
        if self.is_gone() { PostError::Gone } else { PostError::State }
    }

    /// Posts a Send, RDMA Write or RDMA Read; `segment` turns the caller's own kind of segment into the device's.
    #[inline]
    pub fn post_send<T>(
        &self,
        request: &SendRequest,
        segments: &[T],
        segment: impl Fn(&T) -> Segment,
        note: Note,
    ) -> Result<(), PostError> {
        let mut guard = self.send.lock();
        let queue = self.may_send(&mut guard)?;
        queue.push(&self.sends, &header(request), segments, segment, note.into())?;
        queue.ring();
        Ok(())
    }

    /// Begins a batch of posts with one doorbell.
    #[inline]
    pub fn batch(&self) -> SendBatch<'_> {
        SendBatch { qp: self, guard: self.send.lock() }
    }

    /// Posts a Send of a datagram.
    pub fn post_datagram<T>(
        &self,
        request: &SendRequest,
        to: &DatagramAddress,
        segments: &[T],
        segment: impl Fn(&T) -> Segment,
        note: Note,
    ) -> Result<(), PostError> {
        if self.kind == QpType::Rc {
            return Err(PostError::Kind);
        }
        let mut guard = self.send.lock();
        let queue = self.may_send(&mut guard)?;
        queue.push_datagram(&self.sends, &header(request), words(to), segments, segment, note.into())?;
        queue.ring();
        Ok(())
    }

    /// Posts a request of one block whose arguments are not plain segments; returns its tag.
    fn post_args(
        &self,
        header: &Header,
        args: [u64; 4],
        segments: u32,
        note: nic_hal::Note,
    ) -> Result<u32, PostError> {
        let mut guard = self.send.lock();
        let queue = self.may_send(&mut guard)?;
        let tag = queue.push_args(&self.sends, header, args, segments, note)?;
        queue.ring();
        Ok(tag)
    }

    /// Posts a compare-and-swap (`compare_add` compared, `swap` stored) or fetch-and-add (`compare_add` added).
    pub fn post_atomic(
        &self,
        request: &SendRequest,
        sink: Segment,
        compare_add: u64,
        swap: u64,
        note: Note,
    ) -> Result<(), PostError> {
        let args = [sink.addr, u64::from(sink.length) | u64::from(sink.key) << 32, compare_add, swap];
        let note = nic_hal::Note { length: sink.length, ..note.into() };
        self.post_args(&header(request), args, 1, note).map(drop)
    }

    /// Posts a link (fast register) of an unlinked region; returns its key with `variant`.
    /// The list is copied; the copy is in use until the request is known to have completed.
    pub fn post_link(
        &self,
        region: &Region,
        link: &Link<'_>,
        variant: u8,
        flags: SendFlags,
        note: Note,
    ) -> Result<u32, PostError> {
        if !Arc::ptr_eq(self.client(), region.client()) {
            return Err(PostError::Gone);
        }
        let key = region.key_with(variant);
        region.link(link, |list| {
            let header = Header {
                opcode: Opcode::FastRegister as u8,
                flags: flags.bits(),
                immediate: key,
                remote_key: link.flags().bits(),
                remote_addr: link.base,
                length: link.memory.length(),
                ..Header::default()
            };
            let tag = self.post_args(&header, words(&list), 0, note.into())?;
            Ok((self.slot(), self.generation(), tag))
        })?;
        Ok(key)
    }

    /// Posts an unlink (local invalidate) of a region's or window's key.
    pub fn post_invalidate(&self, key: u32, flags: SendFlags, note: Note) -> Result<(), PostError> {
        let header = Header {
            opcode: Opcode::LocalInvalidate as u8,
            flags: flags.bits(),
            immediate: key,
            ..Header::default()
        };
        self.post_args(&header, [0; 4], 0, note.into()).map(drop)
    }

    /// Posts a bind of a window to `length` bytes at `addr` of the region with key `region_key`; returns the window's
    /// key with `variant`.
    #[expect(clippy::too_many_arguments, reason = "a bind names two keys and a range")]
    pub fn post_bind(
        &self,
        window: &Window,
        variant: u8,
        region_key: u32,
        rights: LinkFlags,
        addr: u64,
        length: u64,
        flags: SendFlags,
        note: Note,
    ) -> Result<u32, PostError> {
        if !Arc::ptr_eq(self.client(), window.client()) {
            return Err(PostError::Gone);
        }
        let key = window.key_with(variant);
        let header = Header {
            opcode: Opcode::BindWindow as u8,
            flags: flags.bits(),
            immediate: key,
            remote_key: region_key,
            remote_addr: addr,
            length,
            ..Header::default()
        };
        let args = BindArgs { flags: rights.bits(), reserved: [0; 7] };
        self.post_args(&header, words(&args), 0, note.into())?;
        Ok(key)
    }

    /// Posts a receive.
    #[inline]
    pub fn post_receive<T>(
        &self,
        solicited: bool,
        segments: &[T],
        segment: impl Fn(&T) -> Segment,
        note: Note,
    ) -> Result<(), PostError> {
        let Some(receive) = &self.receive else { return Err(PostError::Kind) };
        let mut queue = receive.lock();
        if self.state.load(Ordering::Relaxed) < RECEIVES_FROM {
            return Err(self.why_not());
        }
        queue.push(&self.receives, solicited, segments, segment, note.into())?;
        queue.ring();
        Ok(())
    }
}
