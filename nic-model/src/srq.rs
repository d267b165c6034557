//! Shared receive queues.

use core::sync::atomic::Ordering;

use nic_abi::eqe::EventType;
use nic_abi::registers::SRQ_RECORDS;

use crate::Frontend;
use crate::nic::Nic;

/// A shared receive queue.
pub(crate) struct Srq {
    pub ring: u64,
    pub log: u32,
    pub max_segments: u32,
    pub pd: u32,
    pub generation: u32,
    /// The limit while armed, else 0.
    pub limit: u32,
    pub eq: u32,
    /// The index of the last limit event.
    pub limit_event: Option<u32>,
    /// Entries taken since creation.
    pub head: u32,
    /// Its memory or its doorbell made no sense.
    pub failed: bool,
    /// Queue pairs that use it.
    pub users: u32,
}

impl<F: Frontend> Nic<F> {
    /// Entries that are left; `None` if the doorbell record makes no sense.
    pub fn srq_left(&self, number: u32) -> Option<u32> {
        let srq = self.srqs.get(number)?;
        let tail = self.record(SRQ_RECORDS, number, 0).load(Ordering::Acquire);
        let left = tail.wrapping_sub(srq.head);
        (left <= 1 << srq.log).then_some(left)
    }

    /// Raises the limit event if the SRQ is below its limit, and disarms it then. An event that still waits tells of this, too: or else
    /// who arms the limit over and over would fill the event queue.
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
        let event = self.post_event(eq, EventType::SrqLimit, 0, number, generation, left);
        if let Some(srq) = self.srqs.get_mut(number) {
            srq.limit_event = event;
        }
    }

    /// Takes an SRQ out of service.
    pub fn fail_srq(&mut self, number: u32) {
        let Some(srq) = self.srqs.get_mut(number) else { return };
        if !srq.failed {
            srq.failed = true;
            let (eq, generation) = (srq.eq, srq.generation);
            self.post_event(eq, EventType::SrqError, 0, number, generation, 0);
        }
    }
}
