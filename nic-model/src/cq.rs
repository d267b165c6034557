//! Completion queues: writing entries, overflow, arming, moving to a ring of another size.

use core::sync::atomic::Ordering;

use nic_abi::cqe::{self, Cqe, CqeFlags};
use nic_abi::eqe::EventType;
use nic_abi::protocol;
use nic_abi::registers::CQ_RECORDS;

use crate::Frontend;
use crate::memory::{DmaError, GuestMemory};
use crate::nic::Nic;

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
    /// Queue pairs that use it, twice if for both directions.
    pub users: u32,
}

impl Cq {
    /// Bus address of the entry at a free-running index.
    #[inline]
    fn addr(&self, index: u32) -> u64 {
        entry_addr(self.ring, self.log, index)
    }
}

#[inline]
fn entry_addr(ring: u64, log: u32, index: u32) -> u64 {
    ring + u64::from(index & ((1 << log) - 1)) * cqe::SIZE as u64
}

impl<F: Frontend> Nic<F> {
    /// Writes a completion (whose phase is filled in here) and raises the CQ's event if it is armed for it. A CQ that
    /// has failed takes nothing any more; [`Nic::failed_cq`] is set when it fails now.
    #[inline]
    pub fn post_cqe(&mut self, number: u32, mut entry: Cqe) {
        let Some(cq) = self.cqs.get_mut(number) else { return };
        if cq.failed {
            self.stats.lost_completions += 1;
            return;
        }
        let record = self.frontend.registers();
        let at = CQ_RECORDS + number as usize * nic_abi::doorbell::RECORD_BYTES;
        let (Ok(head), Ok(arm)) = (record.atomic_u32(at), record.atomic_u32(at + 4)) else { return };
        if cq.producer.wrapping_sub(cq.head_seen) >= 1 << cq.log {
            // A head that makes no sense looks like a full ring, too.
            cq.head_seen = head.load(Ordering::Acquire);
            if cq.producer.wrapping_sub(cq.head_seen) >= 1 << cq.log {
                return self.fail_cq(number);
            }
        }
        entry.phase = (cqe::phase(cq.producer, cq.log) >> 32) as u32;
        let words: [u64; cqe::WORDS] = zerocopy::transmute!(entry);
        if self.frontend.memory().publish(cq.addr(cq.producer), words).is_err() {
            return self.fail_cq(number);
        }
        cq.producer = cq.producer.wrapping_add(1);
        let solicited = entry.flags & CqeFlags::SOLICITED.bits() != 0 || entry.status != 0;
        if protocol::disarm(arm, solicited) {
            let (eq, generation) = (cq.eq, cq.generation);
            self.post_event(eq, EventType::Completion, 0, number, generation, 0);
        }
    }

    fn fail_cq(&mut self, number: u32) {
        self.stats.lost_completions += 1;
        let Some(cq) = self.cqs.get_mut(number) else { return };
        cq.failed = true;
        let (eq, generation) = (cq.eq, cq.generation);
        log::warn!("completion queue {number} overflowed or cannot be reached");
        self.failed_cqs.push(number);
        self.post_event(eq, EventType::CqError, 0, number, generation, 0);
    }

    /// Entries that were not consumed, by the consumer's record; `None` if it makes no sense.
    pub fn cq_unconsumed(&self, number: u32) -> Option<u32> {
        let cq = self.cqs.get(number)?;
        let head = self.record(CQ_RECORDS, number, 0).load(Ordering::Acquire);
        let used = cq.producer.wrapping_sub(head);
        (used <= 1 << cq.log).then_some(used)
    }

    /// Moves a CQ to a zeroed ring that has room for its unconsumed entries.
    pub fn move_cq(&mut self, number: u32, ring: u64, log: u32) -> Result<(), DmaError> {
        let unconsumed = self.cq_unconsumed(number).unwrap_or(0);
        let Some(cq) = self.cqs.get_mut(number) else { return Ok(()) };
        let memory = self.frontend.memory();
        let head = cq.producer.wrapping_sub(unconsumed);
        for i in 0..unconsumed {
            let index = head.wrapping_add(i);
            let mut entry: [u64; cqe::WORDS] = memory.load(cq.addr(index))?;
            entry[cqe::WORDS - 1] = entry[cqe::WORDS - 1] & !cqe::PHASE | cqe::phase(index, log);
            memory.publish(entry_addr(ring, log, index), entry)?;
        }
        // What a zeroed entry says depends on the pass, and the ring may begin in any: say of the rest that it was
        // not written.
        for i in unconsumed..1 << log {
            let index = head.wrapping_add(i);
            let unwritten = [0, 0, 0, cqe::phase(index, log) ^ cqe::PHASE];
            memory.publish(entry_addr(ring, log, index), unwritten)?;
        }
        (cq.ring, cq.log, cq.head_seen) = (ring, log, head);
        Ok(())
    }
}
