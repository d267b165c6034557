//! The work queues of a virtual interface: rings that name descriptors in the consumer's memory.

use core::sync::atomic::Ordering;

use nic_abi::protocol::{self, Completed};
use nic_abi::vi::{MARK_COMPLETING, MARK_POSTED};

use crate::doorbell::Doorbell;
use crate::mapped::ViRing;

/// A descriptor that was posted: what the driver remembers of it, since the device can change what
/// the ring says.
#[derive(Clone, Copy, Default)]
pub(crate) struct Posted {
    address: u64,
    handle: u32,
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
}

impl ViQueue {
    pub(crate) fn new(ring: ViRing<Posted>, limit: u32, doorbell: Doorbell) -> ViQueue {
        ViQueue { ring, limit, head: 0, tail: 0, doorbell }
    }

    /// Posts a descriptor, and wakes the device if it sleeps.
    ///
    /// `link` is called with address and handle of the descriptor that was posted before, if the
    /// device has neither completed nor lost it; the device learns of the post afterwards.
    #[inline(always)]
    pub fn post(&mut self, address: u64, handle: u32, link: impl FnOnce(u64, u32)) -> Result<(), Full> {
        let queued = self.queued();
        if queued >= self.limit {
            return Err(Full);
        }
        let tail = self.tail;
        if queued > 0 {
            let (entry, &Posted { address, handle }) = self.ring.at(tail.wrapping_sub(1));
            // Relaxed: who reuses the memory of a descriptor that was lost has learned of that by
            // an event, which came after the mark.
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

    /// Takes the oldest descriptor off the queue if it is complete; returns its address and handle.
    /// Descriptors before it that the device lost are taken off without a trace.
    ///
    /// `is_done` reads, with acquire, whether the descriptor's status has the bit DONE. It is
    /// called at most once, and only while the device writes the status.
    #[inline(always)]
    pub fn take(&mut self, is_done: impl FnOnce(u64, u32) -> bool) -> Option<(u64, u32)> {
        let mut is_done = Some(is_done);
        // At most one turn for each descriptor.
        while self.head != self.tail {
            let (entry, &Posted { address, handle }) = self.ring.at(self.head);
            let done = || is_done.take().is_some_and(|is_done| is_done(address, handle));
            let found = protocol::completed(&entry.mark, done);
            if found == Completed::No {
                return None;
            }
            self.head = self.head.wrapping_add(1);
            if found == Completed::Yes {
                return Some((address, handle));
            }
        }
        None
    }

    /// Arms the queue: the device raises one event when it completes the next descriptor. Look at
    /// the queue once more afterwards.
    pub fn arm(&self) {
        protocol::arm(self.ring.arm(), false);
    }

    /// How many descriptors are on the queue.
    #[inline(always)]
    pub fn queued(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }
}
