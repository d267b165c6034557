//! Work requests that have left the send queue and are in progress.

use alloc::vec::Vec;

use nic_abi::cqe::Status;

use super::send::Work;
use super::vi::Left;

/// The most work requests in progress.
pub(super) const DEPTH: u16 = 64;
/// As a number of requests.
pub(super) const UNDER_WAY: u32 = DEPTH as u32;

/// A work request in progress.
pub(super) struct Flight {
    pub work: Work,
    /// If the device aborts the work request: the status and the offset of the field to blame.
    pub failure: Option<(Status, u32)>,
    /// How much of it was sent at least once.
    pub left: Left,
}

/// The work requests of a queue pair in progress. Each has a number; the next one's is one more.
pub(crate) struct Flights {
    /// Work request number `n` is at `n % DEPTH`.
    ring: Vec<Flight>,
    /// The number of the oldest work request, and that of the next one.
    pub(super) head: u32,
    pub(super) tail: u32,
}

impl Flights {
    /// Whether none is in progress.
    pub(super) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Takes the oldest, which is over.
    pub(super) fn take(&mut self) -> Option<&mut Flight> {
        if self.is_empty() {
            return None;
        }
        let id = self.head;
        self.head = id.wrapping_add(1);
        self.get_mut(id)
    }

    pub(super) const fn new() -> Flights {
        Flights { ring: Vec::new(), head: 0, tail: 0 }
    }

    /// The work requests in progress up to number `id`, the oldest first.
    pub fn up_to(&self, id: u32) -> impl Iterator<Item = &Work> {
        let count = id.wrapping_sub(self.head).wrapping_add(1).min(DEPTH.into());
        (0..count).filter_map(|n| self.get(self.head.wrapping_add(n))).map(|flight| &flight.work)
    }

    pub(super) fn get(&self, id: u32) -> Option<&Flight> {
        self.ring.get(id as usize % usize::from(DEPTH))
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Flight> {
        self.ring.get_mut(id as usize % usize::from(DEPTH))
    }

    /// Keeps a work request in progress. In exchange `work` gets the allocation of an earlier one.
    pub(super) fn keep(&mut self, work: &mut Work, failure: Option<(Status, u32)>) {
        let place = self.tail as usize % usize::from(DEPTH);
        if self.ring.len() <= place {
            self.ring.push(Flight { work: Work::new(), failure: None, left: Left::Nothing });
        }
        if let Some(flight) = self.ring.get_mut(place) {
            core::mem::swap(&mut flight.work, work);
            flight.failure = failure;
            flight.left = Left::Nothing;
        }
        self.tail = self.tail.wrapping_add(1);
    }
}
