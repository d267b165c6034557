//! Shared receive queues.

use core::sync::atomic::{AtomicU32, Ordering};

/// A shared receive queue.
pub(crate) struct Srq {
    pub ring: u64,
    pub log: u32,
    pub max_segments: u32,
    pub pd: u32,
    pub generation: u32,
    /// The limit while armed, else 0.
    pub limit: u32,
    pub eq: u32,
    /// The index of the last limit event.
    pub limit_event: Option<u32>,
    /// Entries taken since creation.
    pub head: u32,
    /// Its memory could not be reached, or its doorbell record was impossible.
    pub failed: bool,
    /// Queue pairs that use it.
    pub users: u32,
}

impl Srq {
    /// Entries that are left; `None` if the `tail` of the doorbell record is impossible.
    pub fn left(&self, tail: &AtomicU32) -> Option<u32> {
        let left = tail.load(Ordering::Acquire).wrapping_sub(self.head);
        (left <= 1 << self.log).then_some(left)
    }
}
