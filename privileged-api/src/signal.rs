//! A word that threads sleep on until somebody raises it.

use alloc::sync::Arc;

use platform::sync::atomic::{AtomicU32, Ordering};
use platform::{Instant, Platform, Wake};

/// Changes each time it is raised. Who waits reads the value, looks for what it waits for, and then waits with that value: what
/// is raised after the look is not slept on.
pub(crate) struct Signal {
    word: AtomicU32,
    platform: Arc<dyn Platform>,
}

impl Signal {
    pub(crate) fn new(platform: Arc<dyn Platform>) -> Signal {
        Signal { word: AtomicU32::new(0), platform }
    }

    pub(crate) fn platform(&self) -> &Arc<dyn Platform> {
        &self.platform
    }

    /// The value now.
    pub(crate) fn value(&self) -> u32 {
        self.word.load(Ordering::Acquire)
    }

    /// Has everybody who waits look again.
    pub(crate) fn raise(&self) {
        self.word.fetch_add(1, Ordering::AcqRel);
        self.platform.wake(&self.word);
    }

    /// Sleeps until the value is no longer `seen`, or `deadline`. May return early.
    pub(crate) fn wait(&self, seen: u32, deadline: Option<Instant>) -> Wake {
        self.platform.wait(&self.word, seen, deadline)
    }
}
