//! The queue slots of one type of object, by the index of its handle: the fast path past the
//! tables.
//!
//! Slots are created as their indices come into use, and are never removed. Only the handle that is
//! valid for the index opens it. It is closed while there is more to do for its object than to use
//! its queue; a caller that finds it closed takes the slow path through the table, as does every
//! error.

use alloc::sync::Arc;

use kernel_agent::QueueSlot;
use platform::{Growing, heap};

use crate::{OutOfResources, handle};

/// The slots of one type of object.
pub struct Slots<T> {
    slots: Growing<Arc<QueueSlot<T>>>,
}

impl<T> Slots<T> {
    /// Slots for indices below `count`.
    pub fn new(count: u32) -> Result<Slots<T>, OutOfResources> {
        // The word with all bits set, which is no handle, has an index beyond.
        let count = count.min((1 << handle::INDEX_BITS) - 1) as usize;
        Ok(Slots { slots: Growing::by_quarters(count)? })
    }

    /// The slot at a handle's index, if that was used before.
    #[inline(always)]
    pub fn get(&self, word: u64) -> Option<&QueueSlot<T>> {
        Some(self.slots.get(handle::index(word))?)
    }

    /// The slot at a handle's index.
    pub fn get_or_create(&self, word: u64) -> Result<&Arc<QueueSlot<T>>, OutOfResources> {
        let index = handle::index(word);
        let create = || {
            heap::room_for_arc::<QueueSlot<T>>()?;
            Ok(Arc::default())
        };
        self.slots.reach(index, Arc::clone, create)?;
        self.slots.get(index).ok_or(OutOfResources)
    }
}
