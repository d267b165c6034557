//! Finds the handle of the region or window that has a local key: for Receives that report which
//! one the peer unlinked, and for queries of windows. A lookup takes no lock.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use kernel_agent::key;
use platform::Chunks;

use crate::OutOfResources;

const CHUNK: usize = 64;

struct Owner {
    /// The local key.
    key: AtomicU32,
    /// The handle's word, or 0.
    word: AtomicU64,
}

/// Handles by local key. See the module's documentation.
pub struct Owners {
    owners: Chunks<Owner, CHUNK>,
}

impl Owners {
    /// Makes room for the keys of a device with `count` keys.
    pub fn new(count: u32) -> Result<Owners, OutOfResources> {
        Ok(Owners { owners: Chunks::new(count.max(1) as usize)? })
    }

    fn place(&self, key: u32) -> Option<&Owner> {
        self.owners.get(key::slot(key) as usize)
    }

    /// Records which region has a key.
    pub fn set(&self, key: u32, owner: u64) -> Result<(), OutOfResources> {
        let create = || Owner { key: AtomicU32::new(0), word: AtomicU64::new(0) };
        let place = self.owners.get_or_create(key::slot(key) as usize, create)?;
        place.key.store(key, Ordering::Release);
        place.word.store(owner, Ordering::Release);
        Ok(())
    }

    /// Removes a region's key, unless another region has the key's slot already.
    pub fn clear(&self, key: u32, owner: u64) {
        if let Some(place) = self.place(key) {
            let _ = place.word.compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// The handle of the region with this key.
    #[cold]
    pub fn get(&self, key: u32) -> Option<u64> {
        let place = self.place(key)?;
        let before = place.word.load(Ordering::Acquire);
        let same = place.key.load(Ordering::Acquire) == key;
        // Read again: another region may have got the key's slot between the two reads.
        let after = place.word.load(Ordering::Acquire);
        (same && before == after && before != 0).then_some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_finds_its_owner_and_no_former_one() {
        let owners = Owners::new(128).unwrap();
        let key = key::new(70, 3);
        assert_eq!(owners.get(key), None);
        owners.set(key, 42).unwrap();
        assert_eq!(owners.get(key), Some(42));
        assert_eq!(owners.get(key::new(70, 4)), None);
        assert_eq!(owners.get(key::new(71, 3)), None);
        owners.clear(key, 41);
        assert_eq!(owners.get(key), Some(42), "the key of another region");
        owners.clear(key, 42);
        assert_eq!(owners.get(key), None);
        assert_eq!(owners.set(key::new(128, 0), 1), Err(OutOfResources));
    }
}
