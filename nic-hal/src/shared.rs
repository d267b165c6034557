//! The producer of a shared receive queue, and its move to a ring of another size.
//!
//! A queue moves while consumers post and the device takes receives:
//!
//! 1. From the beginning of the move on, the driver writes each posted receive into both rings. A
//!    receive has the same free-running index in both.
//! 2. The driver copies the receives that were posted before, a chunk at a time, so that no thread
//!    waits long for the lock.
//! 3. The driver commands the device to go on in the new ring.
//!
//! Until the end, no more receives may be outstanding than fit into both rings.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use nic_abi::wqe::Segment;

use crate::Error;
use crate::memory::Lease;
use crate::outstanding::{Retired, Shadow};
use crate::receive::{Entries, ReceiveRing};
use crate::send::Refused;

/// How many entries are copied under one hold of the lock.
const CHUNK: u32 = 64;

#[derive(Clone, Copy, Default)]
struct Slot {
    /// The tag while posted.
    tag: Option<u32>,
    shadow: Shadow,
    length: u32,
}

/// A shared receive queue: its producer, and its outstanding receives. Completions come in any
/// order, so each receive has a slot. The owner brings the lock, for posting and retiring alike.
///
/// A tag has the slot in its low bits and a count of the slot's uses above them. So a completion
/// that comes twice does not retire the slot's next receive.
pub struct SharedReceiveQueue {
    ring: ReceiveRing,
    moving: Option<Moving>,
    /// By slot number. A move never removes slots.
    slots: Vec<Slot>,
    free: VecDeque<u32>,
    /// Receives that may be outstanding.
    limit: u32,
    /// The bits of a tag that are the slot.
    slot_mask: u32,
}

/// A move to another ring that is under way.
struct Moving {
    to: Entries,
    /// The next entry to copy, and the end of the entries to copy.
    next: u32,
    end: u32,
    /// The limits before and after.
    limits: (u32, u32),
}

/// A ring to which a shared receive queue can move, and the other memory that a queue of its size
/// needs.
pub struct SharedRing {
    /// Before the move the new ring, afterwards the ring that is not used any more.
    entries: Option<Entries>,
    bus: u64,
    log: u32,
    lease: Lease,
    slots: Vec<Slot>,
    free: VecDeque<u32>,
    limit: u32,
}

fn reserved(limit: u32) -> Result<(Vec<Slot>, VecDeque<u32>), Error> {
    let (mut slots, mut free) = (Vec::new(), VecDeque::new());
    slots.try_reserve_exact(limit as usize).map_err(|_| Error::OutOfMemory)?;
    free.try_reserve_exact(limit as usize).map_err(|_| Error::OutOfMemory)?;
    Ok((slots, free))
}

impl SharedRing {
    /// Memory for `limit` receives.
    pub(crate) fn new(entries: Entries, limit: u32) -> Result<SharedRing, Error> {
        let (slots, free) = reserved(limit)?;
        let (bus, log, lease) = (entries.bus(), entries.count().ilog2(), entries.lease().clone());
        Ok(SharedRing { entries: Some(entries), bus, log, lease, slots, free, limit })
    }

    pub(crate) fn bus(&self) -> u64 {
        self.bus
    }

    pub(crate) fn log_entries(&self) -> u32 {
        self.log
    }

    pub(crate) fn lease(&self) -> &Lease {
        &self.lease
    }
}

impl SharedReceiveQueue {
    /// A queue of `limit` receives; `most` is the limit of any queue of this device.
    pub(crate) fn new(ring: ReceiveRing, limit: u32, most: u32) -> Result<SharedReceiveQueue, Error> {
        let (mut slots, mut free) = reserved(limit)?;
        slots.resize(limit as usize, Slot::default());
        free.extend(0..limit);
        let slot_mask = most.next_power_of_two() - 1;
        Ok(SharedReceiveQueue { ring, moving: None, slots, free, limit, slot_mask })
    }

    /// Writes a receive; `segment` converts the caller's kind of segment, and may refuse it.
    /// Returns the receive's tag. The device sees it after [`SharedReceiveQueue::ring`].
    #[inline]
    pub fn push<T, S: Into<Option<Segment>>>(
        &mut self,
        solicited: bool,
        segments: &[T],
        segment: impl Fn(&T) -> S,
        shadow: Shadow,
    ) -> Result<u32, Refused> {
        if segments.len() > self.ring.max_segments as usize {
            return Err(Refused::Segments);
        }
        // Outstanding receives always fit into the ring, since the device takes entries in order.
        if self.outstanding() >= self.limit {
            return Err(Refused::Full);
        }
        let tag = *self.free.front().ok_or(Refused::Full)?;
        let index = self.ring.tail;
        let length = match segments {
            [one] if !solicited => {
                let one = segment(one).into().ok_or(Refused::Segment)?;
                self.ring.push_single(tag, one)?;
                one.length
            }
            _ => self.ring.push(tag, solicited, segments, segment)?,
        };
        self.free.pop_front();
        if let Some(moving) = &self.moving {
            moving.to.copy(&self.ring.entries, index);
        }
        if let Some(slot) = self.slots.get_mut((tag & self.slot_mask) as usize) {
            *slot = Slot { tag: Some(tag), shadow, length };
        }
        Ok(tag)
    }

    /// Retires the receive that a completion names. `None` if no such receive is outstanding.
    #[inline(always)]
    pub fn retire(&mut self, tag: u32) -> Option<Retired> {
        let slot = self.slots.get_mut((tag & self.slot_mask) as usize)?;
        if slot.tag != Some(tag) {
            return None;
        }
        slot.tag = None;
        let retired = Retired::new(slot.shadow, slot.length);
        // The list was created with room for every slot.
        self.free.push_back(tag.wrapping_add(self.slot_mask).wrapping_add(1));
        Some(retired)
    }

    /// Whether the receive that a completion names is outstanding.
    pub fn has(&self, tag: u32) -> bool {
        self.slots.get((tag & self.slot_mask) as usize).is_some_and(|slot| slot.tag == Some(tag))
    }

    /// How many receives are outstanding.
    pub fn outstanding(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
    }

    /// How many receives may be outstanding.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Makes all that was pushed known to the device, and wakes the device if it sleeps.
    #[inline]
    pub fn ring(&self) {
        self.ring.doorbell.ring(self.ring.tail);
    }

    /// How long the device uses the ring.
    pub fn lease(&self) -> &Lease {
        self.ring.entries.lease()
    }

    /// Begins a move to `ring`. Returns false and changes nothing if more receives are outstanding
    /// than `ring` is for, or if a move is under way.
    #[must_use]
    pub fn begin_move(&mut self, ring: &mut SharedRing) -> bool {
        let outstanding = self.outstanding();
        if outstanding > ring.limit || self.moving.is_some() {
            return false;
        }
        let Some(to) = ring.entries.take() else { return false };
        let (now, then) = (self.slots.len(), ring.limit as usize);
        if then > now {
            ring.slots.extend_from_slice(&self.slots);
            ring.slots.resize(then, Slot::default());
            ring.free.extend(self.free.iter().copied().chain(now as u32..ring.limit));
            core::mem::swap(&mut self.slots, &mut ring.slots);
            core::mem::swap(&mut self.free, &mut ring.free);
        }
        let end = self.ring.tail;
        let limits = (self.limit, ring.limit);
        self.limit = self.limit.min(ring.limit);
        self.moving = Some(Moving { to, next: end.wrapping_sub(outstanding), end, limits });
        true
    }

    /// Copies a chunk of the entries that were posted before the move. Returns true while there are
    /// more.
    pub fn copy_some(&mut self) -> bool {
        let Some(moving) = &mut self.moving else { return false };
        for _ in 0..CHUNK {
            if moving.next == moving.end {
                return false;
            }
            // If the entry is further behind the tail than the new ring is long, the device has
            // taken it, and its place has a later entry.
            if self.ring.tail.wrapping_sub(moving.next) <= moving.to.count() {
                moving.to.copy(&self.ring.entries, moving.next);
            }
            moving.next = moving.next.wrapping_add(1);
        }
        true
    }

    /// Ends the move, after the device has gone over to the new ring (`moved`) or has refused to.
    /// Puts the memory that is not used any more into `ring`, to be dropped without the lock.
    pub fn end_move(&mut self, ring: &mut SharedRing, moved: bool) {
        let Some(moving) = self.moving.take() else { return };
        let (before, after) = moving.limits;
        if moved {
            let old = core::mem::replace(&mut self.ring.entries, moving.to);
            old.lease().end();
            ring.entries = Some(old);
            self.limit = after;
        } else {
            ring.entries = Some(moving.to);
            self.limit = before;
        }
    }
}
