//! Regions that share translations (pages it_lmr_create, it_lmr_create_unlinked).
//!
//! Owns the list of the regions that may be shared. It has the regions of all IAs of a provider,
//! because regions of two consumers may match. The device does not unlink a region that has been
//! shared.
//!
//! A search finds candidates by where their memory begins and how long it is. The device compares
//! the memory with that of the link in force, and refuses if it differs.
//!
//! Locks, outermost first: `searching` (sleeps; of two threads that register the same memory at
//! once, the later one finds the earlier one's region), `registered`, `linkable`.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicU64, Ordering};

use kernel_agent::{Extent, LinkFlags, MemoryList, Region};
use platform::SleepLock;
use platform::heap;
use platform::sync::Mutex;

use super::Lmr;
use super::create::Wanted;
use crate::flags::LmrFlags;
use crate::ia::Core;
use crate::status::Result;

/// What two matching regions have in common, besides their memory and their coherency.
pub(crate) struct Sharing {
    /// Identifies this region.
    serial: u64,
    shared_id: u32,
}

impl Sharing {
    /// The properties of a region with these flags; `None` if it must not be shared.
    pub(crate) fn new(flags: LmrFlags, shared_id: u32) -> Option<Sharing> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        (!flags.contains(LmrFlags::NON_SHAREABLE))
            .then(|| Sharing { serial: SERIAL.fetch_add(1, Ordering::Relaxed), shared_id })
    }
}

/// What an insertion into the list may allocate: a node on each level of its tree.
const NODES: usize = 4096;

/// The regions that may be shared, in order of creation where the rest of the key is equal.
pub(crate) struct Shareable {
    pub(super) searching: SleepLock,
    /// Regions that were created with their memory, by shared_id, begin and length of the memory,
    /// and serial.
    registered: Mutex<Sorted<(u32, u64, u64, u64)>>,
    /// Regions that are linked by work requests, by shared_id and serial.
    linkable: Mutex<Sorted<(u32, u64)>>,
}

type Sorted<K> = BTreeMap<K, Weak<Lmr>>;

/// How many regions are looked at under one hold of the lock.
const CHUNK: usize = 64;

impl Shareable {
    pub(crate) fn new() -> Shareable {
        let (registered, linkable) = (Mutex::new(BTreeMap::new()), Mutex::new(BTreeMap::new()));
        Shareable { searching: SleepLock::new(), registered, linkable }
    }

    /// Adds a region; fails if there is no memory.
    pub(super) fn add(&self, lmr: &Arc<Lmr>) -> Result<()> {
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
    pub(super) fn forget(&self, lmr: &Lmr) {
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
    fn next(&self, id: u32, memory: Extent, from: Cursor) -> Option<(Cursor, Arc<Lmr>)> {
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
enum Cursor {
    Registered(u64),
    Linkable(u64),
}

impl Core {
    /// Creates a region over this memory that shares the translations of a matching region; `None`
    /// if no region matches.
    pub(super) fn share(
        &self,
        wanted: &Wanted,
        list: &MemoryList<'_>,
        base: u64,
        rights: LinkFlags,
    ) -> Option<Arc<Region>> {
        if !wanted.flags.contains(LmrFlags::SHARED) || wanted.length == 0 {
            return None;
        }
        let client = self.client().ok()?;
        let noncoherent = wanted.flags.contains(LmrFlags::NONCOHERENT);
        let mut from = Cursor::Registered(0);
        while let Some((next, lmr)) = self.shared.shareable.next(wanted.shared_id, list.extent(), from) {
            from = next;
            if lmr.flags.contains(LmrFlags::NONCOHERENT) != noncoherent {
                continue;
            }
            // Fails if the region is not linked to this memory, or if it is on another adapter.
            if let Ok(region) = client.share(&wanted.zone.pd, rights, base, list, &lmr.region) {
                // The device treats the matching region as shared, even if the new region is
                // destroyed.
                lmr.shared.store(true, Ordering::Release);
                return Some(region);
            }
        }
        None
    }
}
