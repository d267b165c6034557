//! The consumer's context of an object.

use platform::sync::Mutex;

/// A word that the consumer attached to an object, if it did.
pub struct Context(Mutex<Option<u64>>);

impl Context {
    /// No context.
    #[expect(clippy::new_without_default, reason = "an object is created with a context on purpose")]
    pub fn new() -> Context {
        Context(Mutex::new(None))
    }

    /// The word that was set last.
    pub fn get(&self) -> Option<u64> {
        *self.0.lock()
    }

    /// Replaces the word; `None` removes it.
    pub fn set(&self, context: Option<u64>) {
        *self.0.lock() = context;
    }
}
