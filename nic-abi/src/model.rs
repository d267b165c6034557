//! For the model checker (`.ci/extra`): the checker's word as a [`Word`] that driver and device
//! share.

use core::sync::atomic::Ordering;

use loom::sync::atomic::{AtomicU32, fence};

use crate::protocol::Word;

/// A word of the model checker. `BARRIER` false is the mutant without full barriers.
pub struct Checked<const BARRIER: bool>(AtomicU32);

impl<const BARRIER: bool> Checked<BARRIER> {
    /// A word with this value.
    pub fn new(value: u32) -> Checked<BARRIER> {
        Checked(AtomicU32::new(value))
    }
}

impl<const BARRIER: bool> Word for Checked<BARRIER> {
    fn load(&self, order: Ordering) -> u32 {
        self.0.load(order)
    }

    fn store(&self, value: u32, order: Ordering) {
        self.0.store(value, order);
    }

    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.0.swap(value, order)
    }

    fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.0.fetch_add(value, order)
    }

    fn replace(&self, current: u32, new: u32, order: Ordering) -> bool {
        self.0.compare_exchange(current, new, order, Ordering::Relaxed).is_ok()
    }

    fn barrier() {
        if BARRIER {
            fence(Ordering::SeqCst);
        }
    }
}
