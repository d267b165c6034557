//! The producers of receive queues and shared receive queues.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::sync::atomic::{AtomicU64, Ordering};

use nic_abi::wqe::{ReceiveFlags, Segment};

use crate::doorbell::Doorbell;
use crate::mapped::Words;
use crate::send::Refused;
use crate::work::{Note, Outstanding};

/// The ring that both kinds share: entries of one size.
pub(crate) struct ReceiveRing {
    pub(crate) words: Words,
    /// Entries less one.
    pub(crate) mask: u32,
    /// Words of an entry.
    pub(crate) stride: u32,
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
    fn push<T>(&mut self, tag: u32, solicited: bool, segments: &[T], segment: impl Fn(&T) -> Segment) -> u32 {
        let start = (self.tail & self.mask) as usize * self.stride as usize;
        let entry = self.words.get().get(start..).unwrap_or_default();
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

/// The producer of a receive queue. Its lock is the owner's.
pub struct ReceiveQueue {
    pub(crate) ring: ReceiveRing,
}

impl ReceiveQueue {
    /// Writes a receive; [`ReceiveQueue::ring`] makes it known.
    #[inline]
    pub fn push<T>(
        &mut self,
        outstanding: &Outstanding,
        solicited: bool,
        segments: &[T],
        segment: impl Fn(&T) -> Segment,
        mut note: Note,
    ) -> Result<u32, Refused> {
        if segments.len() > self.ring.max_segments as usize {
            return Err(Refused::Segments);
        }
        let tag = outstanding.next().ok_or(Refused::Full)?;
        note.length = self.ring.push(tag, solicited, segments, segment);
        outstanding.add(tag, note);
        Ok(tag)
    }

    /// Makes all that was pushed known to the device.
    #[inline]
    pub fn ring(&self) {
        self.ring.doorbell.ring(self.ring.tail);
    }
}

#[derive(Clone, Copy, Default)]
struct Slot {
    /// The tag while posted.
    tag: Option<u32>,
    note: Note,
}

/// A shared receive queue: its producer and, as completions come in any order, its tags. Its lock is the
/// owner's, for posting and retiring alike.
///
/// A tag is a slot in the low bits and a count of its uses above, so that a completion that comes twice is not taken for
/// the slot's next receive.
pub struct SharedReceiveQueue {
    pub(crate) ring: ReceiveRing,
    slots: Box<[Slot]>,
    free: VecDeque<u32>,
}

impl SharedReceiveQueue {
    pub(crate) fn new(ring: ReceiveRing, limit: u32) -> SharedReceiveQueue {
        SharedReceiveQueue {
            ring,
            slots: (0..limit).map(|_| Slot::default()).collect(),
            free: (0..limit).collect(),
        }
    }

    /// Writes a receive; [`SharedReceiveQueue::ring`] makes it known.
    pub fn push<T>(
        &mut self,
        solicited: bool,
        segments: &[T],
        segment: impl Fn(&T) -> Segment,
        mut note: Note,
    ) -> Result<u32, Refused> {
        if segments.len() > self.ring.max_segments as usize {
            return Err(Refused::Segments);
        }
        // Entries as many as slots: what is posted and not completed always fits, as entries are taken in order.
        let tag = self.free.pop_front().ok_or(Refused::Full)?;
        note.length = self.ring.push(tag, solicited, segments, segment);
        if let Some(slot) = self.slots.get_mut(self.index(tag)) {
            *slot = Slot { tag: Some(tag), note };
        }
        Ok(tag)
    }

    fn index(&self, tag: u32) -> usize {
        (tag & self.ring.mask) as usize
    }

    /// Retires the receive that a completion names; `None` if it is not outstanding.
    pub fn retire(&mut self, tag: u32) -> Option<Note> {
        let index = self.index(tag);
        let slot = self.slots.get_mut(index)?;
        if slot.tag != Some(tag) {
            return None;
        }
        slot.tag = None;
        let note = slot.note;
        // The list has room for every slot from the start on.
        self.free.push_back(tag.wrapping_add(self.ring.mask + 1));
        Some(note)
    }

    /// How many receives are outstanding.
    pub fn outstanding(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
    }

    /// Makes all that was pushed known to the device.
    #[inline]
    pub fn ring(&self) {
        self.ring.doorbell.ring(self.ring.tail);
    }
}
