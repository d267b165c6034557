//! The word on which everybody waits who waits for the device.

use alloc::sync::Arc;

use platform::sync::atomic::{AtomicU32, Ordering};
use platform::{Instant, Platform};

/// Changes with each interrupt, with the device's death, and when somebody calls [`Attention::raise`].
///
/// Read [`Attention::value`], look for work, then [`Attention::wait`] with that value: nothing gets lost.
pub struct Attention {
    word: AtomicU32,
    platform: Arc<dyn Platform>,
}

impl Attention {
    pub(crate) fn new(platform: Arc<dyn Platform>) -> Arc<Attention> {
        Arc::new(Attention { word: AtomicU32::new(0), platform })
    }

    /// The word now.
    pub fn value(&self) -> u32 {
        self.word.load(Ordering::Acquire)
    }

    /// Wakes all who wait. May be called from an interrupt handler.
    pub fn raise(&self) {
        self.word.fetch_add(1, Ordering::AcqRel);
        self.platform.wake(&self.word);
    }

    /// Sleeps until the word is no longer `seen`, or `deadline`. May return early.
    pub fn wait(&self, seen: u32, deadline: Instant) {
        self.platform.wait(&self.word, seen, Some(deadline));
    }
}
