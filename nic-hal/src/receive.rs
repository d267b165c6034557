//! The producer of a receive queue, and the ring that receive queues and SRQs have in common.

use core::sync::atomic::{AtomicU64, Ordering};

use nic_abi::wqe::{ReceiveFlags, Segment};

use crate::doorbell::Doorbell;
use crate::mapped::{Words, store_halves};
use crate::memory::Lease;
use crate::outstanding::{Outstanding, Shadow};
use crate::send::Refused;

/// The entries of a ring, all of one size.
pub(crate) struct Entries {
    words: Words,
    /// The number of entries minus one.
    mask: u32,
    /// Words of an entry.
    stride: u32,
}

impl Entries {
    /// `count` entries, a power of two, of `stride` bytes each, in memory that has room for them.
    pub(crate) fn new(words: Words, count: u32, stride: u32) -> Entries {
        Entries { words, mask: count - 1, stride: stride / 8 }
    }

    pub(crate) fn count(&self) -> u32 {
        self.mask + 1
    }

    pub(crate) fn bus(&self) -> u64 {
        self.words.bus()
    }

    pub(crate) fn lease(&self) -> &Lease {
        self.words.lease()
    }

    /// The entry at a free-running index.
    #[inline(always)]
    fn at(&self, index: u32) -> &[AtomicU64] {
        let start = (index & self.mask) as usize * self.stride as usize;
        self.words.get().get(start..).unwrap_or_default()
    }

    /// The header and the place of the first segment of the entry at a free-running index.
    #[inline(always)]
    fn first(&self, index: u32) -> Option<&[[AtomicU64; 2]; 2]> {
        let start = (index & self.mask) as usize * self.stride as usize;
        self.words.get().get(start..start + 4)?.as_chunks().0.first_chunk()
    }

    /// Copies the entry at a free-running index from a ring with entries of the same size.
    pub(crate) fn copy(&self, from: &Entries, index: u32) {
        for (to, from) in self.at(index).iter().zip(from.at(index)).take(self.stride as usize) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

/// The ring of receive queues and shared receive queues.
pub(crate) struct ReceiveRing {
    pub(crate) entries: Entries,
    pub(crate) tail: u32,
    pub(crate) max_segments: u32,
    pub(crate) doorbell: Doorbell,
}

/// Writes the header of an entry.
#[inline]
fn put_header([first, second]: &[AtomicU64; 2], segments: u32, tag: u32, solicited: bool) {
    let flags = if solicited { ReceiveFlags::SOLICITED } else { ReceiveFlags::empty() };
    // Relaxed, as all words of an entry: the doorbell's release store publishes them.
    store_halves(first, segments, tag);
    second.store(u64::from(flags.bits()), Ordering::Relaxed);
}

#[inline(always)]
fn put_segment([addr, rest]: &[AtomicU64; 2], segment: Segment) {
    addr.store(segment.addr, Ordering::Relaxed);
    store_halves(rest, segment.length, segment.key);
}

impl ReceiveRing {
    /// Writes the next entry, for at most `max_segments` segments; `segment` may refuse one, and
    /// then nothing is posted. Returns the sum of the lengths.
    #[inline]
    pub(crate) fn push<T, S: Into<Option<Segment>>>(
        &mut self,
        tag: u32,
        solicited: bool,
        segments: &[T],
        segment: impl Fn(&T) -> S,
    ) -> Result<u32, Refused> {
        let entry = self.entries.at(self.tail);
        let Some((header, places)) = entry.split_first_chunk() else { return Err(Refused::Segments) };
        let mut length = 0u64;
        for (place, one) in places.as_chunks().0.iter().zip(segments) {
            let one = segment(one).into().ok_or(Refused::Segment)?;
            length += u64::from(one.length);
            put_segment(place, one);
        }
        put_header(header, segments.len() as u32, tag, solicited);
        self.tail = self.tail.wrapping_add(1);
        // No message is longer.
        Ok(length.min(u64::from(u32::MAX)) as u32)
    }

    /// As [`ReceiveRing::push`], for one segment; returns the new tail.
    #[inline(always)]
    pub(crate) fn push_single(&mut self, tag: u32, segment: Segment) -> Result<u32, Refused> {
        let Some([header, place]) = self.entries.first(self.tail) else { return Err(Refused::Segments) };
        put_segment(place, segment);
        put_header(header, 1, tag, false);
        let tail = self.tail.wrapping_add(1);
        self.tail = tail;
        Ok(tail)
    }
}

/// The producer of a receive queue. Its owner brings the lock.
pub struct ReceiveQueue {
    pub(crate) ring: ReceiveRing,
}

impl ReceiveQueue {
    /// Writes a receive; `segment` converts the caller's kind of segment, and may refuse it.
    /// Returns the receive's tag. The device sees it after [`ReceiveQueue::ring`].
    #[inline(always)]
    pub fn push<T, S: Into<Option<Segment>>>(
        &mut self,
        outstanding: &Outstanding,
        solicited: bool,
        segments: &[T],
        segment: impl Fn(&T) -> S,
        shadow: Shadow,
    ) -> Result<u32, Refused> {
        if segments.len() > self.ring.max_segments as usize {
            return Err(Refused::Segments);
        }
        let tag = outstanding.next().ok_or(Refused::Full)?;
        let length = self.ring.push(tag, solicited, segments, segment)?;
        outstanding.note(tag, shadow, length);
        outstanding.publish(tag.wrapping_add(1));
        Ok(tag)
    }

    /// Writes a Receive of one segment that is not solicited, and makes it known to the device: the
    /// fast path of [`ReceiveQueue::push`] and [`ReceiveQueue::ring`]. `segment` is called last, as
    /// in [`crate::SendQueue::post_single`].
    #[inline(always)]
    pub fn post_single(
        &mut self,
        outstanding: &Outstanding,
        segment: impl FnOnce() -> Option<Segment>,
        shadow: Shadow,
    ) -> Result<(), Refused> {
        if self.ring.max_segments == 0 {
            return Err(Refused::Segments);
        }
        let tag = outstanding.next().ok_or(Refused::Full)?;
        let segment = segment().ok_or(Refused::Segment)?;
        let tail = self.ring.push_single(tag, segment)?;
        outstanding.note(tag, shadow, segment.length);
        outstanding.publish(tag.wrapping_add(1));
        self.ring.doorbell.ring(tail);
        Ok(())
    }

    /// Makes all that was pushed known to the device, and wakes the device if it sleeps.
    #[inline(always)]
    pub fn ring(&self) {
        self.ring.doorbell.ring(self.ring.tail);
    }
}
