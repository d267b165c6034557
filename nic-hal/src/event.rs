//! The event queue's consumer.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use nic_abi::cqe;
use nic_abi::eqe::{self, Eqe, EventType};

use crate::doorbell::ConsumerRecord;
use crate::mapped::Ring;
use crate::memory::Lease;

/// The consumer of an event queue. Its owner brings the lock.
pub struct EventQueue {
    pub(crate) ring: Ring<{ eqe::WORDS }>,
    pub(crate) log: u32,
    pub(crate) head: u32,
    pub(crate) number: u32,
    pub(crate) record: ConsumerRecord,
    /// Queue 0 only: how many commands have an event that was not taken.
    pub(crate) untaken: Option<Arc<AtomicU32>>,
}

impl EventQueue {
    /// How many events the queue has room for.
    pub fn capacity(&self) -> usize {
        1 << self.log
    }

    /// Takes the next event as the device wrote it; the caller checks it.
    pub fn poll(&mut self) -> Option<Eqe> {
        let entry = self.ring.at(self.head);
        // Acquire: the word with the phase was written last.
        let last = entry[3].load(Ordering::Acquire);
        if (last ^ cqe::phase(self.head, self.log)) & cqe::PHASE != 0 {
            return None;
        }
        let [first, second, address] = [0, 1, 2].map(|at: usize| entry[at].load(Ordering::Relaxed));
        self.head = self.head.wrapping_add(1);
        self.record.consumed(self.head);
        if let Some(untaken) = &self.untaken
            && first as u8 == EventType::Admin as u8
        {
            // The device may report more commands than the driver gave.
            let less = |count: u32| count.checked_sub(1);
            let _ = untaken.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        }
        Some(Eqe {
            event: first as u8,
            status: (first >> 8) as u8,
            number: (first >> 32) as u32,
            generation: second as u32,
            detail: (second >> 32) as u32,
            address,
            ..Eqe::default()
        })
    }

    /// Arms the queue: the next event raises an interrupt. Look at the queue once more afterwards.
    pub fn arm(&self) {
        self.record.arm(false);
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// For how long the device uses the ring.
    pub fn lease(&self) -> &Lease {
        self.ring.lease()
    }
}
