//! What DAT keeps beside an IT-API object, found by the object's handle.
//!
//! Locks: one lock for each entry (spins, leaf).

use alloc::sync::Arc;
use core::marker::PhantomData;

use platform::Chunks;
use platform::sync::Mutex;
use rdma::handle::{self, ObjectHandle};

use crate::ret::{Error, ErrorType, Subtype};

/// Entries are allocated in chunks of this many.
const CHUNK: usize = 64;

/// The handle that is valid at an index, and what belongs to it.
type Entry<T> = Option<(u64, Arc<T>)>;

/// Values by handles of type `H`. Each index has at most one value, that of the valid handle.
pub(crate) struct SideTable<H, T> {
    entries: Chunks<Mutex<Entry<T>>, CHUNK>,
    _handles: PhantomData<fn(H)>,
}

const NO_MEMORY: Error = Error::new(ErrorType::InsufficientResources, Subtype::ResourceMemory);

impl<H: ObjectHandle, T> SideTable<H, T> {
    /// A table for handles whose indices are below `limit`.
    pub(crate) fn new(limit: u32) -> Result<SideTable<H, T>, Error> {
        let entries = Chunks::new(limit as usize).map_err(|_| NO_MEMORY)?;
        Ok(SideTable { entries, _handles: PhantomData })
    }

    fn entry(&self, word: u64) -> Option<&Mutex<Entry<T>>> {
        self.entries.get(handle::index(word))
    }

    /// Records the value of a new object.
    pub(crate) fn insert(&self, handle: H, value: Arc<T>) -> Result<(), Error> {
        let word = handle.word();
        let entry = self.entries.get_or_create(handle::index(word), || Mutex::new(None));
        let former = entry.map_err(|_| NO_MEMORY)?.lock().replace((word, value));
        drop(former);
        Ok(())
    }

    /// The value of the object that the handle names.
    pub(crate) fn get(&self, handle: H) -> Option<Arc<T>> {
        let word = handle.word();
        match &*self.entry(word)?.lock() {
            Some((valid, value)) if *valid == word => Some(value.clone()),
            _ => None,
        }
    }

    /// Removes the value of an object that is being freed.
    pub(crate) fn remove(&self, handle: H) -> Option<Arc<T>> {
        let word = handle.word();
        self.entry(word)?.lock().take_if(|(valid, _)| *valid == word).map(|(_, value)| value)
    }

    /// All values.
    pub(crate) fn all(&self) -> impl Iterator<Item = Arc<T>> {
        self.entries.iter().filter_map(|entry| entry.lock().as_ref().map(|(_, value)| value.clone()))
    }

    /// Removes all values.
    pub(crate) fn clear(&self) {
        for entry in self.entries.iter() {
            let value = entry.lock().take();
            drop(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EpHandle;

    #[test]
    fn only_the_handle_in_force_finds_a_value() {
        let side = SideTable::new(70).unwrap();
        let word = |index, generation| EpHandle::from_raw(handle::word(EpHandle::TAG, 5, index, generation));
        side.insert(word(66, 1), Arc::new(7)).unwrap();
        assert_eq!(side.get(word(66, 1)).as_deref(), Some(&7));
        assert_eq!(
            (side.get(word(66, 2)), side.get(word(2, 1)), side.get(EpHandle::NULL)),
            (None, None, None)
        );
        side.insert(word(66, 2), Arc::new(8)).unwrap();
        assert_eq!((side.get(word(66, 1)), side.remove(word(66, 1))), (None, None));
        assert_eq!(side.all().map(|value| *value).sum::<i32>(), 8);
        assert_eq!(side.remove(word(66, 2)).as_deref(), Some(&8));
        assert_eq!(side.get(word(66, 2)), None);
        assert!(side.insert(word(70, 1), Arc::new(9)).is_err(), "the limit");
        side.insert(word(3, 1), Arc::new(9)).unwrap();
        side.clear();
        assert_eq!(side.all().count(), 0);
    }
}
