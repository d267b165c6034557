//! How driver and device tell each other of work, both sides of each step next to each other (see [`crate::doorbell`] for the words).
//!
//! These few steps are where a wake-up could get lost. They are written once, over [`Word`], so that the driver, the device and the
//! model checker run the same code.

use core::sync::atomic::{AtomicU32, Ordering, fence};

use crate::doorbell::{self, ARM_NEXT, ARM_NONE, ARM_SOLICITED};

/// A 32-bit word that driver and device share.
pub trait Word {
    /// Reads it.
    fn load(&self, order: Ordering) -> u32;
    /// Writes it.
    fn store(&self, value: u32, order: Ordering);
    /// Writes it and returns what was there.
    fn swap(&self, value: u32, order: Ordering) -> u32;
    /// Adds to it and returns what was there.
    fn fetch_add(&self, value: u32, order: Ordering) -> u32;
    /// Writes `new` if `current` is there; whether it was.
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

/// Driver: makes everything posted up to `value` known to the device. True if the device wants to be told by the FIFO.
#[inline(always)]
pub fn post<W: Word>(tail: &W, armed: &W, value: u32) -> bool {
    // Release: the descriptors are visible before the index that covers them.
    tail.store(value, Ordering::Release);
    // The device swaps `armed` for 1 and only then reads the tail: either its swap reads ours and so sees
    // the tail, or ours reads its 1 and we tell it.
    armed.swap(0, Ordering::AcqRel) == 1
}

/// Device: having taken a queue's FIFO entry, asks to be told of what comes next and returns the tail.
#[inline(always)]
pub fn rearm<W: Word>(armed: &W, tail: &W) -> u32 {
    // Arm first, then read the tail: a post that comes later finds 1 and writes a new entry. The swap acquires
    // what the driver's swap for 0 released.
    armed.swap(1, Ordering::AcqRel);
    tail.load(Ordering::Acquire)
}

/// Driver: puts an entry (without its phase) into the FIFO, whose words `entries` gives by free-running index. True if the device
/// sleeps for this very entry and has to be kicked.
#[inline(always)]
pub fn push<'a, W: Word + 'a>(tail: &W, entries: impl FnOnce(u32) -> &'a W, event: &W, entry: u32) -> bool {
    // The index only has to be unique; what orders the entry is its own release store.
    let index = tail.fetch_add(1, Ordering::Relaxed);
    entries(index).store(entry | doorbell::phase(index), Ordering::Release);
    // The device stores its event index, then looks at the entry once more before it sleeps: with a full
    // barrier on both sides one of the two sees the other.
    W::barrier();
    event.load(Ordering::Relaxed) == index
}

/// Device: asks for a kick with the entry at `head`. The caller looks for that entry once more before it sleeps.
#[inline(always)]
pub fn ask_for_kick<W: Word>(event: &W, head: u32) {
    event.store(head, Ordering::SeqCst);
    // The driver writes its entry and then reads the event index; we wrote the event index and now read the
    // entry. Without a full barrier on both sides each could miss the other's store, and we would sleep on work.
    W::barrier();
}

/// Driver: asks to be told of the next entry of a CQ or EQ. The caller looks at the ring once more afterwards.
#[inline(always)]
pub fn arm<W: Word>(arm: &W, solicited: bool) {
    arm.store(if solicited { ARM_SOLICITED } else { ARM_NEXT }, Ordering::Relaxed);
    // The look at the ring must come after the store is visible, as the device writes its entry and then
    // looks at `arm`.
    W::barrier();
}

/// Device: having written an entry of a CQ or EQ (solicited or not), whether its consumer has to be told.
#[inline(always)]
pub fn disarm<W: Word>(arm: &W, solicited: bool) -> bool {
    // The consumer stores `arm` and then looks for an entry; we wrote the entry and now look at `arm`. Without a
    // full barrier on both sides each could miss the other's store.
    W::barrier();
    let wanted = arm.load(Ordering::Relaxed);
    // One that the consumer changes meanwhile was changed after the entry was there to be seen.
    (wanted == ARM_NEXT || wanted == ARM_SOLICITED && solicited)
        && arm.replace(wanted, ARM_NONE, Ordering::AcqRel)
}
