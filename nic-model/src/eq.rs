//! Event queues.

use core::sync::atomic::{AtomicU32, Ordering};

use nic_abi::cqe;
use nic_abi::eqe::{self, Eqe};
use nic_abi::protocol;
use nic_abi::registers::Fault;

use crate::memory::GuestMemory;

/// An event queue.
pub(crate) struct Eq {
    pub ring: u64,
    pub log: u32,
    pub vector: u16,
    /// Free-running index of the next entry.
    pub producer: u32,
    /// The consumer's index as last read.
    pub head_seen: u32,
    /// CQs, SRQs and QPs that use it.
    pub users: u32,
}

impl Eq {
    /// Writes an event, whose phase is filled in here. Returns its index, and whether the queue was
    /// armed and an interrupt has to be raised.
    pub fn push<M: GuestMemory>(
        &mut self,
        memory: &M,
        [head, arm]: [&AtomicU32; 2],
        mut event: Eqe,
    ) -> Result<(u32, bool), Fault> {
        let size = 1 << self.log;
        if self.producer.wrapping_sub(self.head_seen) >= size {
            self.head_seen = head.load(Ordering::Acquire);
            if self.producer.wrapping_sub(self.head_seen) >= size {
                return Err(Fault::EventQueueOverflow);
            }
        }
        event.phase = (cqe::phase(self.producer, self.log) >> 32) as u32;
        let words: [u64; eqe::WORDS] = zerocopy::transmute!(event);
        let addr = self.ring + u64::from(self.producer & (size - 1)) * eqe::SIZE as u64;
        memory.publish(addr, words).map_err(|_| Fault::Dma)?;
        let index = self.producer;
        self.producer = index.wrapping_add(1);
        Ok((index, protocol::disarm(arm, true)))
    }

    /// Whether the event at `index` is not consumed yet, according to the driver's `head`.
    pub fn is_waiting(&self, head: &AtomicU32, index: u32) -> bool {
        let head = head.load(Ordering::Acquire);
        self.producer.wrapping_sub(index) <= self.producer.wrapping_sub(head)
    }
}
