//! A lock that may be held while a device answers. Never taken on the data path.
//!
//! Whoever holds it waits for a bounded time at most, so waiting for it is bounded, too.

use alloc::sync::Arc;

use crate::Platform;
use crate::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
const AWAITED: u32 = 2;

/// A lock that sleeps while somebody else has it, as the platform waits.
#[derive(Debug, Default)]
pub struct SleepLock(AtomicU32);

/// While it lives, nobody else has the lock.
#[must_use = "the lock is given back at once"]
pub struct SleepGuard<'a> {
    word: &'a AtomicU32,
    platform: &'a Arc<dyn Platform>,
}

impl SleepLock {
    /// A free one.
    pub fn new() -> SleepLock {
        SleepLock(AtomicU32::new(FREE))
    }

    /// Takes it; sleeps while somebody else has it. Everybody has to come with the same platform.
    pub fn lock<'a>(&'a self, platform: &'a Arc<dyn Platform>) -> SleepGuard<'a> {
        let word = &self.0;
        if word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while word.swap(AWAITED, Ordering::Acquire) != FREE {
                platform.wait(word, AWAITED, None);
            }
        }
        SleepGuard { word, platform }
    }
}

impl Drop for SleepGuard<'_> {
    fn drop(&mut self) {
        if self.word.swap(FREE, Ordering::Release) == AWAITED {
            self.platform.wake(self.word);
        }
    }
}
