//! Event queues: writing events, and interrupts.

use core::sync::atomic::Ordering;

use nic_abi::cqe;
use nic_abi::eqe::{self, Eqe, EventType};
use nic_abi::protocol;
use nic_abi::registers::{EQ_RECORDS, Fault};

use crate::Frontend;
use crate::memory::GuestMemory;
use crate::nic::Nic;

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

impl<F: Frontend> Nic<F> {
    /// Writes an event, and raises the interrupt if the queue is armed; returns its index. An event that does not fit is the end
    /// of the NIC: its driver could rely on nothing any more.
    pub fn post_event(
        &mut self,
        number: u32,
        event: EventType,
        status: u8,
        object: u32,
        generation: u32,
        detail: u32,
    ) -> Option<u32> {
        let eq = self.eqs.get_mut(number)?;
        let registers = self.frontend.registers();
        let at = EQ_RECORDS + number as usize * nic_abi::doorbell::RECORD_BYTES;
        let (Ok(head), Ok(arm)) = (registers.atomic_u32(at), registers.atomic_u32(at + 4)) else {
            return None;
        };
        if eq.producer.wrapping_sub(eq.head_seen) >= 1 << eq.log {
            eq.head_seen = head.load(Ordering::Acquire);
            if eq.producer.wrapping_sub(eq.head_seen) >= 1 << eq.log {
                self.fail(Fault::EventQueueOverflow);
                return None;
            }
        }
        let entry = Eqe {
            event: event as u8,
            status,
            number: object,
            generation,
            detail,
            phase: (cqe::phase(eq.producer, eq.log) >> 32) as u32,
            ..Eqe::default()
        };
        let words: [u64; eqe::WORDS] = zerocopy::transmute!(entry);
        let addr = eq.ring + u64::from(eq.producer & ((1 << eq.log) - 1)) * eqe::SIZE as u64;
        if self.frontend.memory().publish(addr, words).is_err() {
            self.fail(Fault::Dma);
            return None;
        }
        let index = eq.producer;
        eq.producer = index.wrapping_add(1);
        if protocol::disarm(arm, true) {
            self.stats.interrupts += 1;
            self.frontend.raise(eq.vector);
        }
        Some(index)
    }

    /// Whether the event at `index` is still to be consumed, by what the driver says.
    pub fn event_waits(&self, number: u32, index: u32) -> bool {
        let Some(eq) = self.eqs.get(number) else { return false };
        let head = self.record(EQ_RECORDS, number, 0).load(Ordering::Acquire);
        eq.producer.wrapping_sub(index) <= eq.producer.wrapping_sub(head)
    }
}
