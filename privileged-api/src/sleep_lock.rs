//! A lock that may be held while the device answers. Never taken on the data path.
//!
//! Whoever holds it waits for the device for a bounded time at most, so waiting for it is bounded, too.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use platform::Platform;

const FREE: u32 = 0;
const HELD: u32 = 1;
const AWAITED: u32 = 2;

pub(crate) struct SleepLock(AtomicU32);

impl SleepLock {
    pub(crate) const fn new() -> SleepLock {
        SleepLock(AtomicU32::new(FREE))
    }

    pub(crate) fn lock<'a>(&'a self, platform: &'a Arc<dyn Platform>) -> SleepGuard<'a> {
        let word = &self.0;
        if word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while word.swap(AWAITED, Ordering::Acquire) != FREE {
                platform.wait(word, AWAITED, None);
            }
        }
        SleepGuard { word, platform }
    }
}

pub(crate) struct SleepGuard<'a> {
    word: &'a AtomicU32,
    platform: &'a Arc<dyn Platform>,
}

impl Drop for SleepGuard<'_> {
    fn drop(&mut self) {
        if self.word.swap(FREE, Ordering::Release) == AWAITED {
            self.platform.wake(self.word);
        }
    }
}
