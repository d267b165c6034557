//! The queue of an SRQ: posters reach it by the SRQ, consumers of completions by the queue pairs
//! that take its receives.

use core::ops::Deref;

use nic_hal::{Retired, SharedReceiveQueue};
use platform::Closable;

/// See the module's documentation. It is closed to posts when the SRQ is destroyed or the device
/// dies.
pub(crate) struct SharedQueue(Closable<SharedReceiveQueue>);

impl SharedQueue {
    /// An open queue.
    pub(crate) fn new(queue: SharedReceiveQueue) -> SharedQueue {
        SharedQueue(Closable::new(queue))
    }

    /// Retires the receive that a completion names.
    #[inline(always)]
    pub(crate) fn retire(&self, tag: u32) -> Option<Retired> {
        self.0.lock().retire(tag)
    }

    /// Whether the receive that a completion names is outstanding.
    pub(crate) fn has(&self, tag: u32) -> bool {
        self.0.lock().has(tag)
    }
}

impl Deref for SharedQueue {
    type Target = Closable<SharedReceiveQueue>;

    #[inline(always)]
    fn deref(&self) -> &Closable<SharedReceiveQueue> {
        &self.0
    }
}
