//! How driver and device announce work to each other, both sides of each step next to each other
//! (see [`crate::doorbell`] for the words, and [`crate::vi`] for the marks of a ring).
//!
//! A wake-up could get lost in these few steps. They are written once, over [`Word`], so that the
//! driver, the device and the model checker run the same code.

use core::sync::atomic::{AtomicU32, Ordering, fence};

use crate::doorbell::{self, ARM_NEXT, ARM_NONE, ARM_SOLICITED};
use crate::vi::{MARK_COMPLETE, MARK_COMPLETING, MARK_LOST, MARK_REPORTED};

/// A 32-bit word that driver and device share.
pub trait Word {
    /// Reads the word.
    fn load(&self, order: Ordering) -> u32;
    /// Writes the word.
    fn store(&self, value: u32, order: Ordering);
    /// Writes the word and returns the old value.
    fn swap(&self, value: u32, order: Ordering) -> u32;
    /// Adds to the word and returns the old value.
    fn fetch_add(&self, value: u32, order: Ordering) -> u32;
    /// Writes `new` if the word is `current`; returns whether it was.
    fn replace(&self, current: u32, new: u32, order: Ordering) -> bool;
    /// A full barrier between what this thread did before and what it does next.
    fn barrier();
}

impl Word for AtomicU32 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u32 {
        AtomicU32::load(self, order)
    }

    #[inline(always)]
    fn store(&self, value: u32, order: Ordering) {
        AtomicU32::store(self, value, order);
    }

    #[inline(always)]
    fn swap(&self, value: u32, order: Ordering) -> u32 {
        AtomicU32::swap(self, value, order)
    }

    #[inline(always)]
    fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        AtomicU32::fetch_add(self, value, order)
    }

    #[inline(always)]
    fn replace(&self, current: u32, new: u32, order: Ordering) -> bool {
        self.compare_exchange(current, new, order, Ordering::Relaxed).is_ok()
    }

    #[inline(always)]
    fn barrier() {
        fence(Ordering::SeqCst);
    }
}

/// Driver: publishes everything that is posted up to `value`. True if the device wants a FIFO
/// entry.
#[inline(always)]
pub fn post<W: Word>(tail: &W, armed: &W, value: u32) -> bool {
    // Release: the descriptors are visible before the index that covers them.
    tail.store(value, Ordering::Release);
    // The device swaps `armed` for 1 and only then reads the tail: either the device's swap reads
    // the 0 of this swap and so sees the tail, or this swap reads the device's 1 and the driver
    // writes a FIFO entry.
    armed.swap(0, Ordering::AcqRel) == 1
}

/// Device: after it has taken a queue's FIFO entry, arms the queue again and returns the tail.
#[inline(always)]
pub fn rearm<W: Word>(armed: &W, tail: &W) -> u32 {
    // Arm first, then read the tail: a later post finds 1 and writes a new entry. The swap acquires
    // what the driver's swap for 0 released.
    armed.swap(1, Ordering::AcqRel);
    tail.load(Ordering::Acquire)
}

/// Driver: puts an entry into the FIFO, whose words `entries` returns by free-running index. True
/// if the device sleeps until this entry and needs a kick.
///
/// `entry` returns the entry as it is at index 0. It is called when its value is needed, which then
/// takes no register before.
#[inline(always)]
pub fn push<'a, W: Word + 'a>(
    tail: &W,
    entries: impl FnOnce(u32) -> &'a W,
    event: &W,
    entry: impl FnOnce() -> u32,
) -> bool {
    // The index only has to be unique; the release store of the entry orders the memory accesses.
    let index = tail.fetch_add(1, Ordering::Relaxed);
    entries(index).store(doorbell::at(entry(), index), Ordering::Release);
    // The device stores its event index, then reads the entry once more before it sleeps: with a
    // full barrier on both sides, at least one of the two reads what the other wrote.
    W::barrier();
    event.load(Ordering::Relaxed) == index
}

/// Device: asks for a kick with the entry at `head`. The caller reads that entry once more before
/// it sleeps.
#[inline(always)]
pub fn ask_for_kick<W: Word>(event: &W, head: u32) {
    event.store(head, Ordering::SeqCst);
    // The driver writes its entry and then reads the event index; the device has written the event
    // index and will read the entry. Without a full barrier on both sides each could miss the
    // other's store, and the device would sleep although there is work.
    W::barrier();
}

/// Driver: arms a CQ or EQ for its next entry. The caller checks the ring once more afterwards.
#[inline(always)]
pub fn arm<W: Word>(arm: &W, solicited: bool) {
    arm.store(if solicited { ARM_SOLICITED } else { ARM_NEXT }, Ordering::Relaxed);
    // The store must be visible before the caller checks the ring, as the device writes its entry
    // and then reads `arm`.
    W::barrier();
}

/// Driver: arms a CQ for its next entry that is armed for solicited entries. Returns false and does
/// nothing if the device has disarmed it: then its event is under way, and reports later entries as
/// well. The caller checks the ring once more afterwards.
#[inline(always)]
pub fn arm_for_more<W: Word>(arm: &W) -> bool {
    // Not a store: over a word that the device has cleared it would ask for a second event.
    let armed = arm.replace(ARM_SOLICITED, ARM_NEXT, Ordering::Relaxed);
    // As in `arm`.
    W::barrier();
    armed
}

/// Device: after it has written an entry of a CQ or EQ (solicited or not), disarms the queue if it
/// is armed for that entry. Returns whether it was.
#[inline(always)]
pub fn disarm<W: Word>(arm: &W, solicited: bool) -> bool {
    // The driver stores `arm` and then checks for an entry; the device has written the entry and
    // now reads `arm`. Without a full barrier on both sides each could miss the other's store.
    W::barrier();
    let wanted = arm.load(Ordering::Relaxed);
    // If the driver has changed `arm` meanwhile, it checks the ring after that and sees the entry.
    (wanted == ARM_NEXT || wanted == ARM_SOLICITED && solicited)
        && arm.replace(wanted, ARM_NONE, Ordering::AcqRel)
}

/// Device: completes a descriptor of a virtual interface, whose mark in the ring this is. `write`
/// stores length and status, with release; it returns false if it cannot, and then the descriptor
/// is lost. Returns what `write` returned.
#[inline]
pub fn complete<W: Word>(mark: &W, write: impl FnOnce() -> bool) -> bool {
    // Before the status: a consumer that has seen the status, which it may poll without a call,
    // finds the descriptor done. The release of `write` orders the two.
    mark.store(MARK_COMPLETING, Ordering::Relaxed);
    let written = write();
    // Not a store: the driver may have seen the status, taken the descriptor off, and posted
    // another one in the same place.
    mark.replace(MARK_COMPLETING, if written { MARK_COMPLETE } else { MARK_LOST }, Ordering::Release);
    written
}

/// What the driver finds at the oldest entry of a virtual interface's ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completed {
    /// The descriptor is not complete.
    No,
    /// The descriptor is complete, and its status can be read.
    Yes,
    /// The device has taken the descriptor off and could not write its status.
    Lost,
}

/// Driver: whether the device has completed the descriptor of an entry that has this mark.
/// `is_done` reads, with acquire, whether the status has the bit DONE. It is called only while the
/// device writes the status; at any other time the consumer may have written anything there.
#[inline(always)]
pub fn completed<W: Word>(mark: &W, is_done: impl FnOnce() -> bool) -> Completed {
    match mark.load(Ordering::Acquire) {
        MARK_COMPLETE => Completed::Yes,
        MARK_COMPLETING if is_done() => Completed::Yes,
        MARK_LOST | MARK_REPORTED => Completed::Lost,
        _ => Completed::No,
    }
}
