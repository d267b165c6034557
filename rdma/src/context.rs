//! The consumer's context of an object.

use core::sync::atomic::{AtomicU64, Ordering};

use platform::sync::Mutex;

/// A word that the consumer attached to an object, if it did.
// Each object has one: an `Option` in the lock would take 8 bytes more.
pub struct Context {
    /// Whether there is one. Held while the word is read or replaced.
    is_set: Mutex<bool>,
    word: AtomicU64,
}

impl Context {
    /// No context.
    #[expect(clippy::new_without_default, reason = "an object is created with a context on purpose")]
    pub fn new() -> Context {
        Context { is_set: Mutex::new(false), word: AtomicU64::new(0) }
    }

    /// The word that was set last.
    pub fn get(&self) -> Option<u64> {
        let is_set = self.is_set.lock();
        is_set.then(|| self.word.load(Ordering::Relaxed))
    }

    /// Replaces the word; `None` removes it.
    pub fn set(&self, context: Option<u64>) {
        let mut is_set = self.is_set.lock();
        self.word.store(context.unwrap_or_default(), Ordering::Relaxed);
        *is_set = context.is_some();
    }
}
