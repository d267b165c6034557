//! The completion queue's consumer.

use core::sync::atomic::Ordering;

use nic_abi::cqe::{self, Cqe};

use crate::doorbell::ConsumerRecord;
use crate::mapped::Ring;
use crate::memory::Lease;

/// The consumer of a completion queue. Its lock is the owner's.
pub struct CompletionQueue {
    pub(crate) ring: Ring<{ cqe::WORDS }>,
    log: u32,
    /// Free-running index of the next entry.
    head: u32,
    /// The phase of an entry that is written there; [`cqe::PHASE`] or 0.
    phase: u64,
    record: ConsumerRecord,
}

/// The memory to which a completion queue is moved.
pub struct CompletionRing {
    pub(crate) ring: Ring<{ cqe::WORDS }>,
    pub(crate) log: u32,
}

impl CompletionRing {
    /// The number of entries.
    pub fn entries(&self) -> u32 {
        self.ring.entries()
    }
}

impl CompletionQueue {
    pub(crate) fn new(ring: Ring<{ cqe::WORDS }>, log: u32, record: ConsumerRecord) -> CompletionQueue {
        CompletionQueue { ring, log, head: 0, phase: cqe::phase(0, log), record }
    }

    /// Takes the next entry, as the device wrote it; the caller judges what it says. [`CompletionQueue::consumed`]
    /// gives the room back.
    #[inline]
    pub fn poll(&mut self) -> Option<Cqe> {
        let entry = self.ring.at(self.head);
        // Acquire: the word with the phase was written last.
        let last = entry[3].load(Ordering::Acquire);
        if (last ^ self.phase) & cqe::PHASE != 0 {
            return None;
        }
        let word = |at: usize| entry[at].load(Ordering::Relaxed);
        let words = [word(0), word(1), word(2)];
        self.head = self.head.wrapping_add(1);
        if self.ring.is_start(self.head) {
            self.phase ^= cqe::PHASE;
        }
        Some(Cqe {
            qpn: words[0] as u32,
            generation: (words[0] >> 32) as u32,
            tag: words[1] as u32,
            length: (words[1] >> 32) as u32,
            immediate: words[2] as u32,
            source_or_field: (words[2] >> 32) as u32,
            status: last as u8,
            flags: (last >> 8) as u8,
            opcode: (last >> 16) as u8,
            reserved: 0,
            phase: 0,
        })
    }

    /// Tells the device what was taken.
    #[inline]
    pub fn consumed(&self) {
        self.record.consumed(self.head);
    }

    /// How many entries wait, counted up to `limit`.
    pub fn pending(&self, limit: u32) -> u32 {
        let limit = limit.min(self.ring.entries());
        let mut count = 0;
        while count < limit {
            let index = self.head.wrapping_add(count);
            let last = self.ring.at(index)[3].load(Ordering::Acquire);
            if (last ^ cqe::phase(index, self.log)) & cqe::PHASE != 0 {
                break;
            }
            count += 1;
        }
        count
    }

    /// Asks for an event at the next entry (that is solicited or an error). Look at the queue once more after it.
    #[inline]
    pub fn arm(&self, solicited: bool) {
        self.record.arm(solicited);
    }

    /// The number of entries.
    pub fn entries(&self) -> u32 {
        self.ring.entries()
    }

    /// Goes on in the ring to which the device has moved the queue. The old one is free.
    pub fn move_to(&mut self, ring: CompletionRing) {
        let old = core::mem::replace(&mut self.ring, ring.ring);
        self.log = ring.log;
        self.phase = cqe::phase(self.head, self.log);
        old.lease().end();
    }

    /// For how long the device uses the ring.
    pub fn lease(&self) -> &Lease {
        self.ring.lease()
    }
}
