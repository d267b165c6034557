//! The work queues of a virtual interface: rings that name descriptors in the consumer's memory.

use core::sync::atomic::Ordering;

use nic_abi::protocol::{self, Completed};
use nic_abi::vi::{MARK_COMPLETING, MARK_LOST, MARK_POSTED, MARK_REPORTED};

use crate::doorbell::Doorbell;
use crate::mapped::ViRing;

/// A descriptor that was posted: what the driver remembers of it, since the device can change what
/// the ring says.
#[derive(Clone, Copy, Default)]
pub(crate) struct Posted {
    address: u64,
    handle: u32,
}

/// Lost descriptors that were reported before their events; further ones are forgotten. The device
/// has one event under way at a time.
const EARLY: usize = 32;
const _: () = assert!(EARLY.is_power_of_two());

/// What [`ViQueue::take`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The oldest descriptor, which is complete: its address and handle.
    Done(u64, u32),
    /// The device lost the oldest descriptor: [`ViQueue::take_lost`] takes it off.
    Lost,
    /// The oldest descriptor is not complete, or there is none.
    NotDone,
}

/// As many descriptors as the queue was created for are on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// One work queue of a virtual interface. Its owner brings the lock.
///
/// A descriptor is on the queue from the post until it is taken off, complete or not.
pub struct ViQueue {
    ring: ViRing<Posted>,
    /// Descriptors that can be on the queue.
    limit: u32,
    /// Free-running index of the oldest descriptor.
    head: u32,
    /// Free-running index of the next descriptor.
    tail: u32,
    doorbell: Doorbell,
    /// Addresses of lost descriptors that were reported and whose events may follow, and the next
    /// place as a free-running index.
    early: ([Option<u64>; EARLY], usize),
}

impl ViQueue {
    pub(crate) fn new(ring: ViRing<Posted>, limit: u32, doorbell: Doorbell) -> ViQueue {
        ViQueue { ring, limit, head: 0, tail: 0, doorbell, early: ([None; EARLY], 0) }
    }

    /// Posts a descriptor, and wakes the device if it sleeps.
    ///
    /// `link` is called with address and handle of the descriptor that was posted before, if the
    /// device has neither completed nor lost it; the device learns of the post afterwards.
    #[inline(always)]
    pub fn post(&mut self, address: u64, handle: u32, link: impl FnOnce(u64, u32)) -> Result<(), Full> {
        // Lost descriptors count, until `queued` or `take_lost` takes them off.
        let queued = self.tail.wrapping_sub(self.head);
        if queued >= self.limit {
            return Err(Full);
        }
        let tail = self.tail;
        if queued > 0 {
            let (entry, &Posted { address, handle }) = self.ring.at(tail.wrapping_sub(1));
            // Relaxed: the consumer reuses the memory of a lost descriptor only after its event,
            // which the device writes after the mark.
            if entry.mark.load(Ordering::Relaxed) <= MARK_COMPLETING {
                link(address, handle);
            }
        }
        let (entry, posted) = self.ring.at_mut(tail);
        *posted = Posted { address, handle };
        // Relaxed: the doorbell's release store publishes the entry.
        entry.address.store(address, Ordering::Relaxed);
        entry.handle.store(handle, Ordering::Relaxed);
        entry.mark.store(MARK_POSTED, Ordering::Relaxed);
        self.tail = tail.wrapping_add(1);
        self.doorbell.ring(self.tail);
        Ok(())
    }

    /// Takes the oldest descriptor off the queue if it is complete.
    ///
    /// `is_done` reads, with acquire, whether the descriptor's status has the bit DONE. It is
    /// called at most once, and only while the device writes the status.
    #[inline(always)]
    pub fn take(&mut self, is_done: impl FnOnce(u64, u32) -> bool) -> Taken {
        if self.head == self.tail {
            return Taken::NotDone;
        }
        let (entry, &Posted { address, handle }) = self.ring.at(self.head);
        match protocol::completed(&entry.mark, || is_done(address, handle)) {
            Completed::No => Taken::NotDone,
            Completed::Yes => {
                self.head = self.head.wrapping_add(1);
                Taken::Done(address, handle)
            }
            Completed::Lost => Taken::Lost,
        }
    }

    /// Takes lost descriptors off the head of the queue, up to and including the first one that was
    /// not reported yet. Returns the address of that one, which the caller reports.
    #[cold]
    #[inline(never)]
    pub fn take_lost(&mut self) -> Option<u64> {
        if self.queued() > 0 {
            let (entry, &Posted { address, .. }) = self.ring.at(self.head);
            if entry.mark.load(Ordering::Acquire) == MARK_LOST {
                self.head = self.head.wrapping_add(1);
                self.note_early(address);
                return Some(address);
            }
        }
        None
    }

    /// Takes lost descriptors off the head of the queue. The dispatcher thread reports them when
    /// it takes their events.
    #[cold]
    #[inline(never)]
    pub fn skip_lost(&mut self) {
        while self.queued() > 0 && self.ring.at(self.head).0.mark.load(Ordering::Acquire) == MARK_LOST {
            self.head = self.head.wrapping_add(1);
        }
    }

    fn note_early(&mut self, address: u64) {
        let (early, next) = &mut self.early;
        early[*next % EARLY] = Some(address);
        *next = next.wrapping_add(1);
    }

    /// An event says that the device lost the descriptor at this address. False if
    /// [`ViQueue::take_lost`] or [`ViQueue::unreported`] returned it already.
    #[inline(never)]
    pub fn report(&mut self, address: u64) -> bool {
        let mut found = [0];
        if self.unreported_where(|lost| lost == address, &mut found) > 0 {
            return true;
        }
        match self.early.0.iter_mut().find(|early| **early == Some(address)) {
            Some(early) => {
                *early = None;
                false
            }
            None => true,
        }
    }

    /// The addresses of the oldest descriptors that the device lost and that were not reported yet,
    /// as many as fit. The caller reports them.
    pub fn unreported(&mut self, found: &mut [u64]) -> usize {
        let count = self.unreported_where(|_| true, found);
        found.iter().take(count).for_each(|&address| self.note_early(address));
        count
    }

    fn unreported_where(&mut self, is_it: impl Fn(u64) -> bool, found: &mut [u64]) -> usize {
        let mut count = 0;
        for nth in 0..self.tail.wrapping_sub(self.head) {
            let (entry, &Posted { address, .. }) = self.ring.at(self.head.wrapping_add(nth));
            if entry.mark.load(Ordering::Acquire) != MARK_LOST || !is_it(address) {
                continue;
            }
            let Some(place) = found.get_mut(count) else { break };
            *place = address;
            count += 1;
            entry.mark.store(MARK_REPORTED, Ordering::Relaxed);
        }
        count
    }

    /// Arms the queue: the device raises one event when it completes the next descriptor. Look at
    /// the queue once more afterwards.
    pub fn arm(&self) {
        protocol::arm(self.ring.arm(), false);
    }

    /// How many descriptors are on the queue. Takes off those at its head that the device lost, if
    /// they were reported.
    #[inline(never)]
    pub fn queued(&mut self) -> u32 {
        while self.head != self.tail
            && self.ring.at(self.head).0.mark.load(Ordering::Relaxed) == MARK_REPORTED
        {
            self.head = self.head.wrapping_add(1);
        }
        self.tail.wrapping_sub(self.head)
    }
}
