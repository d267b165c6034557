//! The fast path from a handle to a queue, past the tables: a lock for each queue, and the handle
//! that is valid for it.
//!
//! A place exists for each index that came into use, and is never removed. A caller whose handle
//! does not open the place takes the slow path, which finds out why.
//!
//! Locks: a place's (spins; before the queue's own).

use alloc::sync::Arc;

use platform::sync::{Mutex, MutexGuard};
use platform::{Growing, OutOfMemory, heap};
use rdma::{OutOfResources, handle};

/// A word that no handle has.
const CLOSED: u64 = u64::MAX;
/// The place of one queue of an object.
struct Place<T> {
    /// The handle that opens it, or [`CLOSED`].
    word: u64,
    object: Option<Arc<T>>,
}

/// The places of one type of object, with `N` queues each.
pub(crate) struct Places<T, const N: usize>(Growing<Arc<[Mutex<Place<T>>; N]>>);

/// An open place, locked.
pub(crate) struct Open<'a, T>(MutexGuard<'a, Place<T>>);

impl<T> Open<'_, T> {
    /// The object whose queue it is.
    #[inline(always)]
    pub(crate) fn object(&self) -> Option<&T> {
        self.0.object.as_deref()
    }
}

impl<T, const N: usize> Places<T, N> {
    /// Places for indices below `count`.
    pub(crate) fn new(count: u32) -> Result<Places<T, N>, OutOfResources> {
        Ok(Places(Growing::by_quarters(count as usize)?))
    }

    /// Brings a handle's place into use.
    pub(crate) fn reach(&self, word: u64) -> Result<(), OutOfResources> {
        let places = || [(); N].map(|()| Mutex::new(Place { word: CLOSED, object: None }));
        let create = || heap::arc(places()).map_err(|_| OutOfMemory);
        Ok(self.0.reach(handle::index(word), Arc::clone, create)?)
    }

    fn at(&self, word: u64) -> Option<&[Mutex<Place<T>>; N]> {
        self.0.get(handle::index(word)).map(|places| &**places)
    }

    /// Opens the places of an object, which were reached, for its handle.
    pub(crate) fn open(&self, word: u64, object: &Arc<T>) {
        for place in self.at(word).into_iter().flatten() {
            *place.lock() = Place { word, object: Some(object.clone()) };
        }
    }

    /// Closes the places of an object: when this returns, no thread uses a queue by its place. Does
    /// nothing if they are another object's.
    pub(crate) fn close(&self, word: u64) {
        self.close_if(word, |_| true);
    }

    /// Closes the places of an object if `may` agrees, which runs while all of them are locked.
    /// False if it does not.
    pub(crate) fn close_if(&self, word: u64, may: impl FnOnce(&T) -> bool) -> bool {
        let Some(places) = self.at(word) else { return false };
        // In the order of the queues, as every thread that locks more than one.
        let mut locked = places.each_ref().map(|place| place.lock());
        let Some(object) =
            locked.first().filter(|place| place.word == word).and_then(|place| place.object.clone())
        else {
            return true;
        };
        if !may(&object) {
            return false;
        }
        for place in &mut locked {
            place.word = CLOSED;
            place.object = None;
        }
        drop(locked);
        // Here the last reference may go, without a lock.
        drop(object);
        true
    }

    /// Locks the place of an object's queue if its handle opens it.
    #[inline(always)]
    pub(crate) fn lock(&self, word: u64, queue: usize) -> Option<Open<'_, T>> {
        let place = self.0.get(handle::index(word))?.get(queue)?.lock();
        if place.word == word { Some(Open(place)) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use rdma::handle::{Tag, word};

    use super::*;

    #[test]
    fn only_the_valid_handle_opens_a_place() {
        let places: Places<u32, 2> = Places::new(10).unwrap();
        let [first, second] = [1, 2].map(|generation| word(Tag::new(1), 5, 3, generation));
        assert!(places.lock(first, 0).is_none() && places.lock(0, 0).is_none());
        places.reach(first).unwrap();
        assert!(places.reach(word(Tag::new(1), 5, 10, 1)).is_err(), "beyond the count");
        assert!(places.lock(first, 0).is_none() && places.lock(CLOSED, 0).is_none());
        places.open(first, &Arc::new(7));
        let seen = |word, queue| places.lock(word, queue).and_then(|open| open.object().copied());
        assert_eq!((seen(first, 0), seen(first, 1), seen(first, 2)), (Some(7), Some(7), None));
        assert_eq!((seen(second, 0), seen(0, 0)), (None, None));
        assert!(!places.close_if(first, |object| *object != 7));
        assert_eq!(seen(first, 0), Some(7));
        places.close(second);
        assert_eq!(seen(first, 0), Some(7), "another generation closes nothing");
        places.close(first);
        assert_eq!((seen(first, 0), seen(first, 1)), (None, None));
        places.open(second, &Arc::new(8));
        assert_eq!((seen(first, 0), seen(second, 0)), (None, Some(8)));
    }

    #[test]
    fn the_queues_of_an_object_have_a_lock_each() {
        let places: Places<u32, 2> = Places::new(1).unwrap();
        let word = word(Tag::new(1), 5, 0, 1);
        places.reach(word).unwrap();
        places.open(word, &Arc::new(1));
        let first = places.lock(word, 0);
        assert!(first.is_some() && places.lock(word, 1).is_some());
    }
}
