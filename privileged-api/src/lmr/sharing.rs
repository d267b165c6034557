//! Regions that share translations (pages it_lmr_create, it_lmr_create_unlinked).
//!
//! Owns the list of the regions that may be shared. It has the regions of all IAs of a provider,
//! because regions of two consumers may match. The device does not unlink a region that has been
//! shared.
//!
//! Locks, outermost first: `searching` (sleeps; of two threads that register the same memory at
//! once, the later one finds the earlier one's region), `regions`, a region's `links`.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use kernel_agent::{LinkFlags, Region};
use platform::SleepLock;
use platform::sync::Mutex;

use super::create::Wanted;
use super::{Lmr, Runs};
use crate::flags::LmrFlags;
use crate::ia::Core;

/// The properties that two matching regions have in common, besides their memory.
pub(crate) struct Sharing {
    /// Identifies this region.
    serial: u64,
    shared_id: u32,
    noncoherent: bool,
}

impl Sharing {
    /// The properties of a region with these flags; `None` if it must not be shared.
    pub(crate) fn new(flags: LmrFlags, shared_id: u32) -> Option<Sharing> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        (!flags.contains(LmrFlags::NON_SHAREABLE)).then(|| Sharing {
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            shared_id,
            noncoherent: flags.contains(LmrFlags::NONCOHERENT),
        })
    }
}

/// The regions that may be shared.
pub(crate) struct Shareable {
    pub(super) searching: SleepLock,
    /// Sorted by shared_id, then in order of creation.
    regions: Mutex<BTreeMap<(u32, u64), Weak<Lmr>>>,
}

impl Shareable {
    pub(crate) fn new() -> Shareable {
        Shareable { searching: SleepLock::new(), regions: Mutex::new(BTreeMap::new()) }
    }

    /// Adds a region.
    pub(super) fn add(&self, lmr: &Arc<Lmr>) {
        if let Some(Sharing { serial, shared_id, .. }) = lmr.sharing {
            self.regions.lock().insert((shared_id, serial), Arc::downgrade(lmr));
        }
    }

    /// Removes a region.
    pub(super) fn forget(&self, lmr: &Lmr) {
        if let Some(Sharing { serial, shared_id, .. }) = lmr.sharing {
            self.regions.lock().remove(&(shared_id, serial));
        }
    }

    /// The regions that are linked to this memory, or have a link to it outstanding.
    fn matches(&self, wanted: &Wanted, runs: &Runs) -> Vec<Arc<Lmr>> {
        let regions = self.regions.lock();
        let alike = regions.range((wanted.shared_id, 0)..=(wanted.shared_id, u64::MAX));
        let living = alike.filter_map(|(_, lmr)| lmr.upgrade());
        living.filter(|lmr| lmr.link_to(wanted, runs).is_some()).collect()
    }
}

impl Lmr {
    /// The key of the link to this memory, if such a link may be in force.
    fn link_to(&self, wanted: &Wanted, runs: &Runs) -> Option<u32> {
        let sharing = self.sharing.as_ref()?;
        if sharing.noncoherent != wanted.flags.contains(LmrFlags::NONCOHERENT) {
            return None;
        }
        let links = self.links.lock();
        let now = (links.now(), &links.now_runs);
        let before = links.posted.before().map(|before| (before, &links.before_runs));
        let mut both = [Some(now), before].into_iter().flatten();
        both.find(|(link, memory)| link.length == wanted.length && *memory == runs).map(|(link, _)| link.key)
    }
}

impl Core {
    /// Creates a region over this memory that shares the translations of a matching region; `None`
    /// if no region matches.
    pub(super) fn share(
        &self,
        wanted: &Wanted,
        runs: &Runs,
        base: u64,
        rights: LinkFlags,
    ) -> Option<Arc<Region>> {
        if !wanted.flags.contains(LmrFlags::SHARED) || wanted.length == 0 {
            return None;
        }
        let client = self.client().ok()?;
        self.shared.shareable.matches(wanted, runs).into_iter().find_map(|lmr| {
            let key = lmr.link_to(wanted, runs)?;
            // Fails if the link is not in force any more, or if the region is on another adapter.
            let region = client.share(&wanted.zone.pd, rights, base, &lmr.region, key).ok()?;
            // The device treats the matching region as shared, even if the new region is destroyed.
            lmr.shared.store(true, Ordering::Release);
            // Variants recur, so the key may belong to a later link by now. The key of a shared
            // region does not change any more, so this check is final.
            if lmr.link_to(wanted, runs) == Some(key) {
                return Some(region);
            }
            let _ = region.destroy();
            None
        })
    }
}
