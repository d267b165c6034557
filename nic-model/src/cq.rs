//! Completion queues: writing entries, overflow, arming, moving to a ring of another size.

use core::sync::atomic::{AtomicU32, Ordering};

use nic_abi::cqe::{self, Cqe, CqeFlags};
use nic_abi::protocol;

use crate::memory::{DmaError, GuestMemory};

/// A completion queue.
pub(crate) struct Cq {
    pub ring: u64,
    pub log: u32,
    pub eq: u32,
    pub generation: u32,
    /// Free-running index of the next entry.
    pub producer: u32,
    /// The consumer's index as last read.
    pub head_seen: u32,
    /// It overflowed or its memory failed.
    pub failed: bool,
    /// For virtual interfaces: an entry without room is lost.
    pub lossy: bool,
    /// Queue pairs that use it, twice if for both directions.
    pub users: u32,
}

/// An entry could not be written: the ring is full, or its memory cannot be reached.
pub(crate) struct CannotWrite;

impl Cq {
    /// Bus address of the entry at a free-running index.
    #[inline]
    fn addr(&self, index: u32) -> u64 {
        entry_addr(self.ring, self.log, index)
    }

    /// Writes a completion, whose phase is filled in here. Returns whether the CQ was armed for it.
    #[inline]
    pub fn push<M: GuestMemory>(
        &mut self,
        memory: &M,
        [head, arm]: [&AtomicU32; 2],
        mut entry: Cqe,
    ) -> Result<bool, CannotWrite> {
        if self.producer.wrapping_sub(self.head_seen) >= 1 << self.log {
            // A head ahead of the producer makes the ring look full, too.
            self.head_seen = head.load(Ordering::Acquire);
            if self.producer.wrapping_sub(self.head_seen) >= 1 << self.log {
                return Err(CannotWrite);
            }
        }
        entry.phase = (cqe::phase(self.producer, self.log) >> 32) as u32;
        let words: [u64; cqe::WORDS] = zerocopy::transmute!(entry);
        memory.publish(self.addr(self.producer), words).map_err(|_| CannotWrite)?;
        self.producer = self.producer.wrapping_add(1);
        let solicited = entry.flags & CqeFlags::SOLICITED.bits() != 0 || entry.status != 0;
        Ok(protocol::disarm(arm, solicited))
    }

    /// Entries that are not consumed, according to the consumer's `head`; `None` if that is
    /// impossible.
    pub fn unconsumed(&self, head: &AtomicU32) -> Option<u32> {
        let used = self.producer.wrapping_sub(head.load(Ordering::Acquire));
        (used <= 1 << self.log).then_some(used)
    }

    /// Moves to a zeroed ring that has room for the unconsumed entries.
    pub fn move_to<M: GuestMemory>(
        &mut self,
        memory: &M,
        unconsumed: u32,
        ring: u64,
        log: u32,
    ) -> Result<(), DmaError> {
        let head = self.producer.wrapping_sub(unconsumed);
        for i in 0..unconsumed {
            let index = head.wrapping_add(i);
            let mut entry: [u64; cqe::WORDS] = memory.load(self.addr(index))?;
            entry[cqe::WORDS - 1] = entry[cqe::WORDS - 1] & !cqe::PHASE | cqe::phase(index, log);
            memory.publish(entry_addr(ring, log, index), entry)?;
        }
        // The index may begin in any pass over the new ring, and in every second pass a zeroed
        // entry has the phase of a written one. So each entry of the rest gets the phase of an
        // entry that is not written.
        let words = memory.words(ring, cqe::WORDS << log)?;
        for i in unconsumed..1 << log {
            let index = head.wrapping_add(i);
            let entry = (index & ((1 << log) - 1)) as usize * cqe::WORDS;
            if let Some(word) = words.get(entry + cqe::WORDS - 1) {
                word.store(cqe::phase(index, log) ^ cqe::PHASE, Ordering::Relaxed);
            }
        }
        (self.ring, self.log, self.head_seen) = (ring, log, head);
        Ok(())
    }
}

#[inline]
fn entry_addr(ring: u64, log: u32, index: u32) -> u64 {
    ring + u64::from(index & ((1 << log) - 1)) * cqe::SIZE as u64
}
