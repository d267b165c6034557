//! The fast path from a handle to a queue, past the tables: a lock for each queue, and the handle
//! that is valid for it.
//!
//! A slot exists for each index that came into use, and is never removed. A caller whose handle
//! does not open the slot takes the slow path, which finds out why.
//!
//! Locks: a slot's (spins; before the queue's own).

use alloc::sync::Arc;

use platform::sync::{Mutex, MutexGuard};
use platform::{Growing, OutOfMemory, heap};
use rdma::{OutOfResources, handle};

/// A word that no handle has.
const CLOSED: u64 = u64::MAX;
/// The slot of one queue of an object.
struct Slot<T> {
    /// The handle that opens it, or [`CLOSED`].
    word: u64,
    object: Option<Arc<T>>,
}

/// The slots of one type of object, with `N` queues each.
pub(crate) struct Slots<T, const N: usize>(Growing<Arc<[Mutex<Slot<T>>; N]>>);

/// An open slot, locked.
pub(crate) struct Open<'a, T>(MutexGuard<'a, Slot<T>>);

impl<T> Open<'_, T> {
    /// The object whose queue it is.
    #[inline(always)]
    pub(crate) fn object(&self) -> Option<&T> {
        self.0.object.as_deref()
    }
}

impl<T, const N: usize> Slots<T, N> {
    /// Slots for indices below `count`.
    pub(crate) fn new(count: u32) -> Result<Slots<T, N>, OutOfResources> {
        Ok(Slots(Growing::by_quarters(count as usize)?))
    }

    /// Brings a handle's slot into use.
    pub(crate) fn reach(&self, word: u64) -> Result<(), OutOfResources> {
        let slots = || [(); N].map(|()| Mutex::new(Slot { word: CLOSED, object: None }));
        let create = || heap::arc(slots()).map_err(|_| OutOfMemory);
        Ok(self.0.reach(handle::index(word), Arc::clone, create)?)
    }

    fn at(&self, word: u64) -> Option<&[Mutex<Slot<T>>; N]> {
        self.0.get(handle::index(word)).map(|slots| &**slots)
    }

    /// Opens the slots of an object, which were reached, for its handle.
    pub(crate) fn open(&self, word: u64, object: &Arc<T>) {
        for slot in self.at(word).into_iter().flatten() {
            *slot.lock() = Slot { word, object: Some(object.clone()) };
        }
    }

    /// Closes the slots of an object: when this returns, no thread uses a queue by its slot. Does
    /// nothing if they are another object's.
    pub(crate) fn close(&self, word: u64) {
        self.close_if(word, |_| true);
    }

    /// Closes the slots of an object if `may` agrees, which runs while all of them are locked.
    /// False if it does not.
    pub(crate) fn close_if(&self, word: u64, may: impl FnOnce(&T) -> bool) -> bool {
        let Some(slots) = self.at(word) else { return false };
        // In the order of the queues, as every thread that locks more than one.
        let mut locked = slots.each_ref().map(|slot| slot.lock());
        let Some(object) =
            locked.first().filter(|slot| slot.word == word).and_then(|slot| slot.object.clone())
        else {
            return true;
        };
        if !may(&object) {
            return false;
        }
        for slot in &mut locked {
            slot.word = CLOSED;
            slot.object = None;
        }
        drop(locked);
        // Here the last reference may go, without a lock.
        drop(object);
        true
    }

    /// Locks the slot of an object's queue if its handle opens it.
    #[inline(always)]
    pub(crate) fn lock(&self, word: u64, queue: usize) -> Option<Open<'_, T>> {
        let slot = self.0.get(handle::index(word))?.get(queue)?.lock();
        if slot.word == word { Some(Open(slot)) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use rdma::handle::{Tag, word};

    use super::*;

    #[test]
    fn only_the_valid_handle_opens_a_slot() {
        let slots: Slots<u32, 2> = Slots::new(10).unwrap();
        let [first, second] = [1, 2].map(|generation| word(Tag::new(1), 5, 3, generation));
        assert!(slots.lock(first, 0).is_none() && slots.lock(0, 0).is_none());
        slots.reach(first).unwrap();
        assert!(slots.reach(word(Tag::new(1), 5, 10, 1)).is_err(), "beyond the count");
        assert!(slots.lock(first, 0).is_none() && slots.lock(CLOSED, 0).is_none());
        slots.open(first, &Arc::new(7));
        let seen = |word, queue| slots.lock(word, queue).and_then(|open| open.object().copied());
        assert_eq!((seen(first, 0), seen(first, 1), seen(first, 2)), (Some(7), Some(7), None));
        assert_eq!((seen(second, 0), seen(0, 0)), (None, None));
        assert!(!slots.close_if(first, |object| *object != 7));
        assert_eq!(seen(first, 0), Some(7));
        slots.close(second);
        assert_eq!(seen(first, 0), Some(7), "another generation closes nothing");
        slots.close(first);
        assert_eq!((seen(first, 0), seen(first, 1)), (None, None));
        slots.open(second, &Arc::new(8));
        assert_eq!((seen(first, 0), seen(second, 0)), (None, Some(8)));
    }

    #[test]
    fn the_queues_of_an_object_have_a_lock_each() {
        let slots: Slots<u32, 2> = Slots::new(1).unwrap();
        let word = word(Tag::new(1), 5, 0, 1);
        slots.reach(word).unwrap();
        slots.open(word, &Arc::new(1));
        let first = slots.lock(word, 0);
        assert!(first.is_some() && slots.lock(word, 1).is_some());
    }
}
