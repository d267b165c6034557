//! Object tables: bounded, indexed by handle, looked up in constant time without allocating.
//!
//! An entry keeps the whole handle that is valid at this moment (see [`crate::handle`]); a lookup
//! compares it with the caller's. Indices are used again in the order in which they became free, so
//! that a stale handle meets its own generation as late as possible.
//!
//! Locks: an entry's lock is held while the slow path uses the object, and for a few instructions
//! when an object is inserted or removed. The free list's lock is taken alone. Neither is ever held
//! across a wait, and a thread that holds an entry's lock takes no other lock of the same table.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::marker::PhantomData;

use platform::Chunks;
use platform::planted::{Bug, planted};
use platform::sync::atomic::{AtomicUsize, Ordering};
use platform::sync::{Mutex, MutexGuard};

use crate::OutOfResources;
use crate::handle::{self, ObjectHandle};
use crate::numbers::Number;

/// Entries are allocated in chunks of this many.
const CHUNK: usize = if cfg!(ferrovia_model) { 2 } else { 64 };

/// The place of one object in a [`Table`].
pub struct Entry<T> {
    /// The valid handle; 0 while there is no object.
    word: u64,
    object: Option<Arc<T>>,
}

impl<T> Entry<T> {
    /// The object. An entry that [`Table::lock`] returns has one.
    #[inline(always)]
    pub fn object(&self) -> Option<&Arc<T>> {
        self.object.as_ref()
    }
}

struct Free {
    /// Freed indices, and the next generation of each.
    queue: VecDeque<(u32, u32)>,
    /// The lowest index that was never given out.
    fresh: u32,
    /// The highest generation that was given out.
    latest: u32,
}

/// A table of the objects that handles of type `H` name.
pub struct Table<H, T> {
    adapter: Number,
    entries: Chunks<Mutex<Entry<T>>, CHUNK>,
    free: Mutex<Free>,
    live: AtomicUsize,
    _handles: PhantomData<fn(H) -> H>,
}

/// An index that is taken but holds no object yet. Dropping it frees the index.
pub struct Reservation<'a, H: ObjectHandle, T> {
    table: &'a Table<H, T>,
    index: u32,
    generation: u32,
}

impl<H: ObjectHandle, T> Table<H, T> {
    /// A table of at most `capacity` objects of the adapter with this number. The first `skip`
    /// indices are never given out.
    pub fn new(adapter: &Number, capacity: u32, skip: u32) -> Result<Table<H, T>, OutOfResources> {
        let capacity = capacity.saturating_add(skip).min(1 << handle::INDEX_BITS);
        let entries = Chunks::new(capacity as usize)?;
        let free = Mutex::new(Free { queue: VecDeque::new(), fresh: skip, latest: 0 });
        let live = AtomicUsize::new(0);
        Ok(Table { adapter: adapter.clone(), entries, free, live, _handles: PhantomData })
    }

    #[inline(always)]
    fn entry(&self, word: u64) -> Option<&Mutex<Entry<T>>> {
        self.entries.get(handle::index(word))
    }

    /// Locks the entry of the object that the handle names. The object cannot be removed meanwhile,
    /// so the caller must neither wait nor use this table.
    #[inline(always)]
    pub fn lock(&self, handle: H) -> Option<MutexGuard<'_, Entry<T>>> {
        let word = handle.word();
        let entry = self.entry(word)?.lock();
        if entry.word == word || planted(Bug::GenerationIgnored) { Some(entry) } else { None }
    }

    /// As [`Table::lock`]; also `None` if another thread holds the lock.
    #[inline(always)]
    pub fn try_lock(&self, handle: H) -> Option<MutexGuard<'_, Entry<T>>> {
        let word = handle.word();
        let entry = self.entry(word)?.try_lock()?;
        if entry.word == word { Some(entry) } else { None }
    }

    /// Runs `f` on the object that the handle names, under the entry's lock: see [`Table::lock`].
    #[inline(always)]
    pub fn with<R>(&self, handle: H, f: impl FnOnce(&T) -> R) -> Option<R> {
        self.lock(handle)?.object.as_deref().map(f)
    }

    /// The object that the handle names.
    pub fn get(&self, handle: H) -> Option<Arc<T>> {
        self.lock(handle)?.object.clone()
    }

    /// Takes an index, and with it the handle of a new object.
    pub fn reserve(&self) -> Result<Reservation<'_, H, T>, OutOfResources> {
        let mut free = self.free.lock();
        let (index, generation) = match free.queue.pop_front() {
            Some(reused) => reused,
            None => {
                let index = free.fresh;
                // Fails at the capacity.
                self.entries.get_or_create(index as usize, || Mutex::new(Entry { word: 0, object: None }))?;
                // Room for the index to come back without allocating.
                let given = index as usize + 1;
                let have = free.queue.len();
                free.queue.try_reserve(given - have)?;
                free.fresh += 1;
                (index, self.adapter.first_generation())
            }
        };
        free.latest = free.latest.max(generation);
        Ok(Reservation { table: self, index, generation })
    }

    /// Replaces the object that the handle names, and returns the former one; returns the new one
    /// if the handle is invalid.
    pub fn replace(&self, handle: H, object: Arc<T>) -> core::result::Result<Arc<T>, Arc<T>> {
        let word = handle.word();
        let Some(entry) = self.entry(word) else { return Err(object) };
        let mut entry = entry.lock();
        let valid = entry.word == word;
        match &mut entry.object {
            Some(place) if valid => Ok(core::mem::replace(place, object)),
            _ => Err(object),
        }
    }

    /// Removes the object. Its handle becomes invalid.
    pub fn remove(&self, handle: H) -> Option<Arc<T>> {
        let object = self.invalidate(handle)?;
        self.release(handle);
        Some(object)
    }

    /// Removes the object but keeps its index until [`Table::release`], so that no other object is
    /// created there while this one still occupies what belongs to the index, such as a queue slot.
    pub fn invalidate(&self, handle: H) -> Option<Arc<T>> {
        let word = handle.word();
        let object = {
            let mut entry = self.entry(word)?.lock();
            if entry.word != word {
                return None;
            }
            entry.word = 0;
            entry.object.take()?
        };
        self.live.fetch_sub(1, Ordering::Relaxed);
        Some(object)
    }

    /// Frees the index of a handle that [`Table::invalidate`] made invalid. Once only.
    pub fn release(&self, handle: H) {
        let word = handle.word();
        self.free_index(handle::index(word) as u32, handle::generation(word));
    }

    fn free_index(&self, index: u32, generation: u32) {
        self.free.lock().queue.push_back((index, handle::next_generation(generation)));
    }

    /// The number of objects.
    pub fn count(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    /// The object at an index, of any generation.
    pub fn at(&self, index: usize) -> Option<Arc<T>> {
        self.entries.get(index)?.lock().object.clone()
    }

    /// All objects, each as it is when its turn comes. Allocates nothing.
    pub fn all(&self) -> impl Iterator<Item = Arc<T>> {
        self.entries.iter().filter_map(|entry| entry.lock().object.clone())
    }
}

impl<H, T> Drop for Table<H, T> {
    fn drop(&mut self) {
        self.adapter.reached(self.free.lock().latest);
    }
}

impl<H: ObjectHandle, T> Reservation<'_, H, T> {
    /// The handle that the object will have.
    pub fn handle(&self) -> H {
        H::from_word(handle::word(H::TAG, self.table.adapter.number(), self.index, self.generation))
    }

    /// Inserts the object. Its handle becomes valid.
    pub fn fill(self, object: Arc<T>) -> H {
        let handle = self.handle();
        let word = handle.word();
        if let Some(entry) = self.table.entry(word) {
            let mut entry = entry.lock();
            entry.object = Some(object);
            entry.word = word;
            self.table.live.fetch_add(1, Ordering::Relaxed);
        }
        core::mem::forget(self);
        handle
    }
}

impl<H: ObjectHandle, T> Drop for Reservation<'_, H, T> {
    fn drop(&mut self) {
        self.table.free_index(self.index, self.generation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::handles! {
        /// A handle of a number.
        Named = handle::Tag::new(0);
    }

    impl core::fmt::Debug for Named {
        fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
            write!(f, "{:#x}", self.0)
        }
    }

    fn table(capacity: u32) -> Table<Named, u32> {
        Table::new(&Number::take().unwrap(), capacity, 0).unwrap()
    }

    #[test]
    fn freed_and_foreign_words_find_nothing() {
        let table = table(2);
        let word = table.reserve().unwrap().fill(Arc::new(5));
        assert_eq!(table.with(word, |value| *value), Some(5));
        assert_eq!(table.get(Named(word.0 ^ 1 << 28)), None, "another IA");
        assert_eq!(table.get(Named(word.0 ^ 1 << 24)), None, "another type");
        assert_eq!(table.get(Named::NULL), None);
        assert_eq!(table.remove(word).as_deref(), Some(&5));
        assert_eq!(table.get(word), None);
        assert_eq!(table.remove(word), None);
        assert_eq!(table.count(), 0);
    }

    #[test]
    fn capacity_holds_and_indices_come_back_with_a_new_generation() {
        let table = table(2);
        let first = table.reserve().unwrap().fill(Arc::new(1));
        let second = table.reserve().unwrap().fill(Arc::new(2));
        assert!(matches!(table.reserve().map(|_| ()), Err(OutOfResources)));
        table.remove(first);
        table.remove(second);
        let third = table.reserve().unwrap().fill(Arc::new(3));
        assert_eq!(handle::index(third.0), handle::index(first.0), "first in, first out");
        assert_ne!(third, first);
        assert_eq!(table.get(first), None);
    }

    #[test]
    fn an_entry_is_locked_under_its_own_handle_and_by_one_at_a_time() {
        let table = table(2);
        let word = table.reserve().unwrap().fill(Arc::new(1));
        let other = table.reserve().unwrap().fill(Arc::new(2));
        let object = |entry: &Entry<u32>| entry.object().map(|object| **object);
        assert_eq!(table.try_lock(word).map(|entry| object(&entry)), Some(Some(1)));
        let held = table.lock(word).unwrap();
        assert!(table.try_lock(word).is_none());
        assert_eq!(table.try_lock(other).map(|entry| object(&entry)), Some(Some(2)));
        drop(held);
        table.remove(word);
        assert!(table.try_lock(word).is_none() && table.lock(word).is_none());
    }

    #[test]
    fn an_object_is_replaced_under_its_own_handle_only() {
        let table = table(1);
        let first = table.reserve().unwrap().fill(Arc::new(1));
        assert_eq!(table.replace(first, Arc::new(2)).as_deref(), Ok(&1));
        assert_eq!((table.get(first).as_deref(), table.count()), (Some(&2), 1));
        table.remove(first);
        assert_eq!(table.replace(first, Arc::new(3)).unwrap_err().as_ref(), &3, "there is none");
        let second = table.reserve().unwrap().fill(Arc::new(4));
        assert_eq!(handle::index(second.0), handle::index(first.0));
        assert_eq!(table.replace(first, Arc::new(5)).unwrap_err().as_ref(), &5, "another object's index");
        assert_eq!(table.replace(Named::NULL, Arc::new(6)).unwrap_err().as_ref(), &6);
        assert_eq!(table.get(second).as_deref(), Some(&4));
    }

    #[test]
    fn objects_are_found_by_their_index_and_all_together() {
        let table = table(3);
        let words = [1, 2, 3].map(|object| table.reserve().unwrap().fill(Arc::new(object)));
        table.remove(words[1]);
        assert_eq!(words.map(|word| table.at(handle::index(word.0)).map(|at| *at)), [Some(1), None, Some(3)]);
        assert_eq!(table.at(3), None);
        assert!(table.all().map(|object| *object).eq([1, 3]));
        assert_eq!(table.count(), 2);
        // The index stays taken until it is released.
        assert_eq!(table.invalidate(words[0]).as_deref(), Some(&1));
        assert_eq!((table.invalidate(words[0]), table.count()), (None, 1));
        let other = table.reserve().unwrap().fill(Arc::new(4));
        assert_eq!(handle::index(other.0), handle::index(words[1].0));
        assert!(matches!(table.reserve().map(|_| ()), Err(OutOfResources)));
        table.release(words[0]);
        assert_eq!(handle::index(table.reserve().unwrap().handle().0), handle::index(words[0].0));
    }

    #[test]
    fn a_dropped_reservation_leaks_nothing() {
        let table = table(1);
        let word = table.reserve().unwrap().handle();
        assert_ne!(table.reserve().unwrap().handle(), word);
        assert_eq!(table.count(), 0);
    }
}
