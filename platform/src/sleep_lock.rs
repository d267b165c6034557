//! A lock that may be held while a device answers. Never taken on the data path.
//!
//! A holder waits for a bounded time at most, and threads get the lock in the order in which they
//! asked for it. So waiting for the lock is bounded as well.

use alloc::sync::Arc;

use crate::Platform;
use crate::sync::atomic::{AtomicU32, Ordering};

/// A lock whose waiters sleep.
#[derive(Debug, Default)]
pub struct SleepLock {
    /// The number that the next thread draws.
    next: AtomicU32,
    /// The number that has or may take the lock. Waiters sleep on this word.
    turn: AtomicU32,
}

/// The lock is held while this lives.
#[must_use = "the lock is released at once"]
pub struct SleepGuard<'a> {
    lock: &'a SleepLock,
    number: u32,
    platform: &'a Arc<dyn Platform>,
}

impl SleepLock {
    /// A lock that is free.
    pub fn new() -> SleepLock {
        SleepLock { next: AtomicU32::new(0), turn: AtomicU32::new(0) }
    }

    /// Takes the lock; sleeps while another thread holds it. All threads have to pass the same
    /// platform.
    pub fn lock<'a>(&'a self, platform: &'a Arc<dyn Platform>) -> SleepGuard<'a> {
        #[cfg(not(ferrovia_model))]
        crate::sync::preemption_point();
        // The thread that releases the lock changes `turn` and then reads `next` by a
        // read-modify-write. Either that comes after this one and sees the number, so that the
        // thread wakes us; or it comes before, and we see the new turn.
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
