//! The producer of a receive queue, and the ring that receive queues and SRQs have in common.

use core::sync::atomic::{AtomicU64, Ordering};

use nic_abi::wqe::{ReceiveFlags, Segment};

use crate::doorbell::Doorbell;
use crate::mapped::Words;
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
    #[inline]
    fn at(&self, index: u32) -> &[AtomicU64] {
        let start = (index & self.mask) as usize * self.stride as usize;
        self.words.get().get(start..).unwrap_or_default()
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

#[inline]
fn put(entry: &[AtomicU64], at: usize, value: u64) {
    if let Some(word) = entry.get(at) {
        // Relaxed: the doorbell's release store publishes the entry.
        word.store(value, Ordering::Relaxed);
    }
}

impl ReceiveRing {
    /// Writes the next entry; returns the sum of the lengths.
    #[inline]
    pub(crate) fn push<T>(
        &mut self,
        tag: u32,
        solicited: bool,
        segments: &[T],
        segment: impl Fn(&T) -> Segment,
    ) -> u32 {
        let entry = self.entries.at(self.tail);
        let mut length = 0u32;
        for (at, one) in (2..).step_by(2).zip(segments) {
            let one = segment(one);
            length = length.saturating_add(one.length);
            put(entry, at, one.addr);
            put(entry, at + 1, u64::from(one.length) | u64::from(one.key) << 32);
        }
        let flags = if solicited { ReceiveFlags::SOLICITED } else { ReceiveFlags::empty() };
        put(entry, 0, segments.len() as u64 | u64::from(tag) << 32);
        put(entry, 1, u64::from(flags.bits()));
        self.tail = self.tail.wrapping_add(1);
        length
    }
}

/// The producer of a receive queue. Its owner brings the lock.
pub struct ReceiveQueue {
    pub(crate) ring: ReceiveRing,
}

impl ReceiveQueue {
    /// Writes a receive; `segment` converts the caller's kind of segment. Returns the receive's
    /// tag. The device sees it after [`ReceiveQueue::ring`].
    #[inline]
    pub fn push<T>(
        &mut self,
        outstanding: &Outstanding,
        solicited: bool,
        segments: &[T],
        segment: impl Fn(&T) -> Segment,
        shadow: Shadow,
    ) -> Result<u32, Refused> {
        if segments.len() > self.ring.max_segments as usize {
            return Err(Refused::Segments);
        }
        let tag = outstanding.next().ok_or(Refused::Full)?;
        let length = self.ring.push(tag, solicited, segments, segment);
        outstanding.add(tag, shadow, length);
        Ok(tag)
    }

    /// Makes all that was pushed known to the device, and wakes the device if it sleeps.
    #[inline]
    pub fn ring(&self) {
        self.ring.doorbell.ring(self.ring.tail);
    }
}
