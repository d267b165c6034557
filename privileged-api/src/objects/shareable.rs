//! The regions that may be shared, of all IAs of a provider.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};

use kernel_agent::Extent;
use platform::sync::Mutex;
use platform::{SleepLock, heap};

use super::lmr::{Lmr, Sharing};
use crate::status::Result;

/// What an insertion into the list may allocate: a node on each level of its tree.
pub(crate) const NODES: usize = 4096;

/// The regions that may be shared, in order of creation where the rest of the key is equal.
pub(crate) struct Shareable {
    pub(crate) searching: SleepLock,
    /// Regions that were created with their memory, by shared_id, begin and length of the memory,
    /// and serial.
    pub(crate) registered: Mutex<Sorted<(u32, u64, u64, u64)>>,
    /// Regions that are linked by work requests, by shared_id and serial.
    pub(crate) linkable: Mutex<Sorted<(u32, u64)>>,
}

pub(crate) type Sorted<K> = BTreeMap<K, Weak<Lmr>>;

/// How many regions are looked at under one hold of the lock.
pub(crate) const CHUNK: usize = 64;

impl Shareable {
    pub(crate) fn new() -> Shareable {
        let (registered, linkable) = (Mutex::new(BTreeMap::new()), Mutex::new(BTreeMap::new()));
        Shareable { searching: SleepLock::new(), registered, linkable }
    }

    /// Adds a region; fails if there is no memory.
    pub(crate) fn add(&self, lmr: &Arc<Lmr>) -> Result<()> {
        let Some(Sharing { serial, shared_id, .. }) = lmr.sharing else { return Ok(()) };
        heap::room(NODES)?;
        match lmr.region.registered() {
            Some(Extent { start, length }) => {
                self.registered.lock().insert((shared_id, start, length, serial), Arc::downgrade(lmr));
            }
            None => {
                self.linkable.lock().insert((shared_id, serial), Arc::downgrade(lmr));
            }
        }
        Ok(())
    }

    /// Removes a region.
    pub(crate) fn forget(&self, lmr: &Lmr) {
        let Some(Sharing { serial, shared_id, .. }) = lmr.sharing else { return };
        match lmr.region.registered() {
            Some(Extent { start, length }) => {
                self.registered.lock().remove(&(shared_id, start, length, serial));
            }
            None => {
                self.linkable.lock().remove(&(shared_id, serial));
            }
        }
    }

    /// The next region with this shared_id, from this serial on, that may be linked to this memory;
    /// and its serial. Regions with their own memory come first.
    pub(crate) fn next(&self, id: u32, memory: Extent, from: Cursor) -> Option<(Cursor, Arc<Lmr>)> {
        let mut place = from;
        if let Cursor::Registered(from) = place {
            let key = |serial| (id, memory.start, memory.length, serial);
            let registered = self.registered.lock();
            let mut alike = registered.range(key(from)..=key(u64::MAX));
            let found = alike.find_map(|(key, lmr)| Some((Cursor::Registered(key.3 + 1), lmr.upgrade()?)));
            if found.is_some() {
                return found;
            }
            place = Cursor::Linkable(0);
        }
        while let Cursor::Linkable(from) = place {
            let linkable = self.linkable.lock();
            let mut last = None;
            for (&(_, serial), lmr) in linkable.range((id, from)..=(id, u64::MAX)).take(CHUNK) {
                last = Some(serial);
                if let Some(lmr) = lmr.upgrade().filter(|lmr| lmr.region.may_be_linked_to(memory)) {
                    return Some((Cursor::Linkable(serial + 1), lmr));
                }
            }
            place = Cursor::Linkable(last? + 1);
        }
        None
    }
}

/// How far a search has come: the serial of the next region.
#[derive(Clone, Copy)]
pub(crate) enum Cursor {
    Registered(u64),
    Linkable(u64),
}
