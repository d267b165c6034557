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

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use kernel_agent::{LinkFlags, MemoryList, Region};

use super::create::Wanted;
use crate::flags::LmrFlags;
use crate::ia::Core;
use crate::objects::shareable::Cursor;

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
