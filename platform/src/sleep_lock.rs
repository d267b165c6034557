//! A lock that may be held while a device answers. Never taken on the data path.
//!
//! Whoever holds it waits for a bounded time at most, and it goes round in the order in which it was asked for, so waiting for it is bounded,
//! too.

use alloc::sync::Arc;

use crate::Platform;
use crate::sync::atomic::{AtomicU32, Ordering};

/// A lock that sleeps while somebody else has it, as the platform waits.
#[derive(Debug, Default)]
pub struct SleepLock {
    /// The number that the next one who asks will draw.
    next: AtomicU32,
    /// The number whose turn it is; those that wait for theirs sleep on it.
    turn: AtomicU32,
}

/// While it lives, nobody else has the lock.
#[must_use = "the lock is given back at once"]
pub struct SleepGuard<'a> {
    lock: &'a SleepLock,
    number: u32,
    platform: &'a Arc<dyn Platform>,
}

impl SleepLock {
    /// A free one.
    pub fn new() -> SleepLock {
        SleepLock { next: AtomicU32::new(0), turn: AtomicU32::new(0) }
    }

    /// Takes it; sleeps while somebody else has it. Everybody has to come with the same platform.
    pub fn lock<'a>(&'a self, platform: &'a Arc<dyn Platform>) -> SleepGuard<'a> {
        #[cfg(not(ferrovia_model))]
        crate::sync::preemption_point();
        // Whoever gives the turn on looks at this word afterwards, by a change of it, too: that comes later and sees the number, or
        // comes earlier, and then the turn is seen here.
        let number = self.next.fetch_add(1, Ordering::AcqRel);
        loop {
            let turn = self.turn.load(Ordering::Acquire);
            if turn == number {
                return SleepGuard { lock: self, number, platform };
            }
            platform.wait(&self.turn, turn, None);
        }
    }
}

impl Drop for SleepGuard<'_> {
    fn drop(&mut self) {
        let following = self.number.wrapping_add(1);
        self.lock.turn.store(following, Ordering::Release);
        if self.lock.next.fetch_add(0, Ordering::AcqRel) != following {
            self.platform.wake(&self.lock.turn);
        }
    }
}
