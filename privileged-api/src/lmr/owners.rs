//! Finds the handle of the region (LMR or RMR) that has a local key, for Receives that report which
//! region the peer unlinked. A lookup takes no lock.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use kernel_agent::key;
use platform::Chunks;

use crate::handle::Handle;
use crate::status::{Error, Result};

const CHUNK: usize = 64;

struct Owner {
    /// The local key.
    key: AtomicU32,
    /// The handle's word, or 0.
    word: AtomicU64,
}

pub(crate) struct Owners {
    owners: Chunks<Owner, CHUNK>,
}

impl Owners {
    /// Makes room for the keys of a device with `count` keys.
    pub(crate) fn new(count: u32) -> Result<Owners> {
        Ok(Owners { owners: Chunks::new(count.max(1) as usize).map_err(|_| Error::Resources)? })
    }

    fn place(&self, key: u32) -> Option<&Owner> {
        self.owners.get(key::slot(key) as usize)
    }

    /// Records which region has a key.
    pub(crate) fn set(&self, key: u32, owner: Handle) -> Result<()> {
        let create = || Owner { key: AtomicU32::new(0), word: AtomicU64::new(0) };
        let place = self.owners.get_or_create(key::slot(key) as usize, create);
        let place = place.map_err(|_| Error::Resources)?;
        place.key.store(key, Ordering::Release);
        place.word.store(owner.as_raw(), Ordering::Release);
        Ok(())
    }

    /// Removes a region's key, unless another region has the key's slot already.
    pub(crate) fn clear(&self, key: u32, owner: Handle) {
        if let Some(place) = self.place(key) {
            let _ = place.word.compare_exchange(owner.as_raw(), 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// The handle of the region with this key, or null.
    #[cold]
    pub(crate) fn get(&self, key: u32) -> Handle {
        let Some(place) = self.place(key) else { return Handle::NULL };
        let before = place.word.load(Ordering::Acquire);
        let same = place.key.load(Ordering::Acquire) == key;
        // Read again: another region may have got the key's slot between the two reads.
        let after = place.word.load(Ordering::Acquire);
        if same && before == after { Handle::from_raw(before) } else { Handle::NULL }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_finds_its_owner_and_no_former_one() {
        let owners = Owners::new(128).unwrap();
        let key = key::new(70, 3);
        assert!(owners.get(key).is_null());
        owners.set(key, Handle::from_raw(42)).unwrap();
        assert_eq!(owners.get(key), Handle::from_raw(42));
        assert!(owners.get(key::new(70, 4)).is_null());
        assert!(owners.get(key::new(71, 3)).is_null());
        owners.clear(key, Handle::from_raw(41));
        assert!(!owners.get(key).is_null(), "the key of another region");
        owners.clear(key, Handle::from_raw(42));
        assert!(owners.get(key).is_null());
        assert_eq!(owners.set(key::new(128, 0), Handle::from_raw(1)), Err(Error::Resources));
    }
}
