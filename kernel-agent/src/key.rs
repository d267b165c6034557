//! Memory keys: what names a region or window to the NIC and to peers, and the numbers in them.
//!
//! A region or window has a local key from its creation until it is destroyed. It has a remote key
//! for each link, which no other link of the key's slot had before, until counts of 16 bits come
//! round. So a key that a consumer or a peer kept does not name the slot's next owner, nor memory
//! that was linked later.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use platform::sync::Mutex;

use crate::table::Numbers;

pub use nic_abi::ident::{KEY_RESERVED as RESERVED, MAX_KEYS as MAX, key as new, key_slot as slot};

/// A key that names no region: it has the reserved key's slot, but is not the reserved key.
pub const NONE: u32 = new(0, 0xffff);

/// The count before that of a slot's first remote key. Local keys count from 1, so a local key in
/// the place of a remote one shows early.
const BEFORE_FIRST: u32 = 0x7fff;

/// How many remote keys of a slot differ in their low eight bits only.
const CHOICE: u32 = 1 << 8;

/// How many slots in limbo are looked at when a slot is taken. More than one, so that the limbo
/// becomes shorter.
const LOOKS: usize = 2;

/// The numbers of keys: slots, the counts of their owners and of their links.
pub(crate) struct Keys {
    numbers: Numbers,
    /// By slot: the count of the last remote key.
    links: Mutex<Vec<u32>>,
    /// Slots whose owner is destroyed while links of it are outstanding.
    limbo: Mutex<VecDeque<(u32, Links)>>,
}

/// The keys of one region or window.
pub(crate) struct Names {
    local: u32,
    /// The count of the last remote key.
    links: AtomicU32,
}

/// How many links of one region may be outstanding.
pub(crate) const LINKS: usize = 4;

/// The outstanding links of a region.
pub(crate) type Links = [Option<Outstanding>; LINKS];

/// No outstanding links.
pub(crate) const NO_LINKS: Links = [None; LINKS];

/// A link that was posted, as a request of a queue pair.
#[derive(Clone, Copy)]
pub(crate) struct Outstanding {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) tag: u32,
}

impl Names {
    /// The local key.
    #[inline]
    pub(crate) fn local(&self) -> u32 {
        self.local
    }

    /// The slot.
    pub(crate) fn slot(&self) -> u32 {
        slot(self.local)
    }

    /// The remote key that was made last.
    pub(crate) fn last_remote(&self) -> u32 {
        new(self.slot(), self.links.load(Ordering::Relaxed))
    }

    /// A new remote key.
    pub(crate) fn next_remote(&self) -> u32 {
        new(self.slot(), self.links.fetch_add(1, Ordering::Relaxed).wrapping_add(1))
    }

    /// Leaves the next keys that differ in their low eight bits only to the consumer's choice;
    /// returns the first of them. The slot's next owner gets none of them.
    pub(crate) fn reserve_choice(&self) -> u32 {
        let last = self.links.load(Ordering::Relaxed).wrapping_add(CHOICE) | (CHOICE - 1);
        self.links.store(last, Ordering::Relaxed);
        new(self.slot(), last & !(CHOICE - 1))
    }

    /// The remote key with these low eight bits, of those that [`Names::reserve_choice`] left.
    pub(crate) fn chosen(&self, low: u8) -> u32 {
        new(self.slot(), self.links.load(Ordering::Relaxed) & !(CHOICE - 1) | u32::from(low))
    }
}

impl Keys {
    /// Slots `1..=count`.
    pub(crate) fn new(count: u32) -> Keys {
        let (links, limbo) = (Mutex::new(Vec::new()), Mutex::new(VecDeque::new()));
        Keys { numbers: Numbers::new(1, count + 1), links, limbo }
    }

    /// Takes a slot; `None` if all have owners or are in limbo. `is_under_way` says whether the
    /// device may still execute a link.
    pub(crate) fn take(&self, is_under_way: impl Fn(&Outstanding) -> bool) -> Option<Names> {
        self.clear_limbo(&is_under_way, LOOKS);
        let number = self.numbers.take().or_else(|| {
            let waiting = self.limbo.lock().len();
            self.clear_limbo(&is_under_way, waiting);
            self.numbers.take()
        })?;
        let Some(links) = self.links_of(number.slot) else {
            self.numbers.release(number.slot);
            return None;
        };
        let links = AtomicU32::new(links);
        Some(Names { local: new(number.slot, number.generation), links })
    }

    /// The count of a slot's last remote key; `None` if there is no memory for it.
    fn links_of(&self, slot: u32) -> Option<u32> {
        let mut links = self.links.lock();
        let (known, count) = (links.len(), slot as usize + 1);
        if known < count {
            links.try_reserve(count - known).ok()?;
            links.resize(count, BEFORE_FIRST);
        }
        links.get(slot as usize).copied()
    }

    /// Gives a slot back whose owner is destroyed. Links of the owner that are outstanding name
    /// the slot by its local key. Local keys recur, so the slot gets its next owner only when the
    /// links are done.
    pub(crate) fn release(&self, names: &Names, outstanding: Links) {
        let slot = names.slot();
        if let Some(links) = self.links.lock().get_mut(slot as usize) {
            *links = names.links.load(Ordering::Relaxed);
        }
        if outstanding.iter().all(Option::is_none) {
            self.numbers.release(slot);
        } else {
            let mut limbo = self.limbo.lock();
            // Without memory the slot gets no other owner: nothing else is safe.
            if limbo.try_reserve(1).is_ok() {
                limbo.push_back((slot, outstanding));
            }
        }
    }

    /// Looks at so many slots in limbo, and frees those whose links are done.
    fn clear_limbo(&self, is_under_way: impl Fn(&Outstanding) -> bool, looks: usize) {
        for _ in 0..looks {
            let Some((slot, links)) = self.limbo.lock().pop_front() else { return };
            if links.iter().flatten().any(&is_under_way) {
                self.limbo.lock().push_back((slot, links));
            } else {
                self.numbers.release(slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_a_consumer_chose_are_not_those_of_the_slots_next_owner() {
        let keys = Keys::new(1);
        let mut seen: Vec<u32> = Vec::new();
        for owner in 0..3 {
            let names = keys.take(|_| false).expect("the slot is free");
            let mut own: Vec<u32> = (0..2).map(|_| names.next_remote()).collect();
            if owner < 2 {
                let first = names.reserve_choice();
                assert_eq!(first & 0xff, 0);
                own.extend([0, 1, 0xff].map(|low| names.chosen(low)));
                assert_eq!(own[2..], [first, first | 1, first | 0xff]);
            }
            assert!(own.iter().all(|key| slot(*key) == names.slot() && !seen.contains(key)), "{own:x?}");
            // What the consumer did not choose may be in use as well.
            seen.extend(own.iter().flat_map(|key| (0..0x100).map(move |low| key & !0xff | low)));
            keys.release(&names, NO_LINKS);
        }
    }
}
