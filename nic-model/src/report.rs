//! Completions and events: what a NIC writes into the driver's queues, and what that leads to.

use nic_abi::cqe::Cqe;
use nic_abi::eqe::{Eqe, EventType};
use nic_abi::registers::{CQ_RECORDS, EQ_RECORDS, SRQ_RECORDS};

use crate::Frontend;
use crate::cq::CannotWrite;
use crate::nic::{Failure, Nic};
use crate::records::record;

/// An event that concerns an object.
pub(crate) const fn event(event: EventType, number: u32, generation: u32, detail: u32) -> Eqe {
    Eqe {
        event: event as u8,
        status: 0,
        reserved: 0,
        number,
        generation,
        detail,
        address: 0,
        reserved3: 0,
        phase: 0,
    }
}

impl<F: Frontend> Nic<F> {
    /// Writes an event into an event queue, and raises the interrupt if the queue is armed; returns
    /// the event's index. An event that does not fit fails the NIC: a driver that missed an event
    /// can rely on nothing. A NIC that does not run writes none.
    pub fn post_event(&mut self, number: u32, event: Eqe) -> Option<u32> {
        if !self.running() {
            return None;
        }
        let eq = self.eqs.get_mut(number)?;
        let record = record(&self.frontend.registers(), EQ_RECORDS, number)?;
        match eq.push(self.frontend.memory(), record, event) {
            Ok((index, armed)) => {
                if armed {
                    self.stats.interrupts += 1;
                    self.frontend.raise(eq.vector);
                }
                Some(index)
            }
            Err(fault) => {
                self.fail(fault);
                None
            }
        }
    }

    /// Writes a completion, and the CQ's event if the CQ is armed for it. A CQ that has failed
    /// takes no entries any more; when it fails now, its number goes to [`Nic::failures`]. A NIC
    /// that does not run writes none: an event of the same request may have failed it.
    #[inline]
    pub fn post_cqe(&mut self, number: u32, entry: Cqe) {
        if !self.running() {
            return;
        }
        let Some(cq) = self.cqs.get_mut(number) else { return };
        if cq.failed {
            self.stats.lost_completions += 1;
            return;
        }
        let Some(record) = record(&self.frontend.registers(), CQ_RECORDS, number) else { return };
        let (eq, generation) = (cq.eq, cq.generation);
        match cq.push(self.frontend.memory(), record, entry) {
            Ok(false) => {}
            Ok(true) => {
                self.post_event(eq, event(EventType::Completion, number, generation, 0));
            }
            Err(CannotWrite) if cq.lossy => self.stats.lost_completions += 1,
            Err(CannotWrite) => {
                cq.failed = true;
                self.stats.lost_completions += 1;
                log::warn!("completion queue {number} overflowed or cannot be reached");
                self.failures.push(Failure::Cq(number));
                self.post_event(eq, event(EventType::CqError, number, generation, 0));
            }
        }
    }

    /// Entries that are left in an SRQ; `None` if its doorbell record is impossible.
    pub fn srq_left(&self, number: u32) -> Option<u32> {
        let [tail, _] = record(&self.frontend.registers(), SRQ_RECORDS, number)?;
        self.srqs.get(number)?.left(tail)
    }

    /// Raises the limit event of an SRQ that has fewer entries than its limit, and disarms the
    /// limit. An event that is not consumed yet reports this as well: otherwise a driver that arms
    /// the limit again and again could fill the event queue.
    pub fn check_srq_limit(&mut self, number: u32) {
        let left = self.srq_left(number).unwrap_or(0);
        let Some(srq) = self.srqs.get_mut(number) else { return };
        if left >= srq.limit {
            return;
        }
        srq.limit = 0;
        let (eq, generation) = (srq.eq, srq.generation);
        if srq.limit_event.is_some_and(|index| self.event_waits(eq, index)) {
            return;
        }
        let index = self.post_event(eq, event(EventType::SrqLimit, number, generation, left));
        if let Some(srq) = self.srqs.get_mut(number) {
            srq.limit_event = index;
        }
    }

    /// Takes an SRQ out of service.
    pub fn fail_srq(&mut self, number: u32) {
        let Some(srq) = self.srqs.get_mut(number) else { return };
        if !core::mem::replace(&mut srq.failed, true) {
            let (eq, generation) = (srq.eq, srq.generation);
            self.post_event(eq, event(EventType::SrqError, number, generation, 0));
        }
    }

    /// Whether the driver has not consumed the event at `index` of an event queue.
    pub fn event_waits(&self, number: u32, index: u32) -> bool {
        let (Some(eq), Some([head, _])) =
            (self.eqs.get(number), record(&self.frontend.registers(), EQ_RECORDS, number))
        else {
            return false;
        };
        eq.is_waiting(head, index)
    }
}
