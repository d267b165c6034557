//! Entries of a table that peers cause, by peer: how many each has, and which gives way when others
//! need the place.
//!
//! All maps are ordered, so a peer cannot choose an address that makes a search long.

use alloc::collections::{BTreeMap, BTreeSet};
use core::num::NonZeroU64;

use roce::Gid;

/// The entries.
pub(crate) struct Crowd<T> {
    /// By peer and order of arrival.
    entries: BTreeMap<(Gid, NonZeroU64), T>,
    /// How many entries a peer has, if any.
    by_peer: BTreeMap<Gid, u32>,
    by_number: BTreeSet<(u32, Gid)>,
    next: NonZeroU64,
}

impl<T: Copy> Crowd<T> {
    pub fn new() -> Crowd<T> {
        Crowd {
            entries: BTreeMap::new(),
            by_peer: BTreeMap::new(),
            by_number: BTreeSet::new(),
            next: NonZeroU64::MIN,
        }
    }

    pub fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    /// How many entries this peer has.
    pub fn of(&self, peer: Gid) -> u32 {
        self.by_peer.get(&peer).copied().unwrap_or(0)
    }

    /// Adds an entry; returns its place in the order.
    pub fn enter(&mut self, peer: Gid, entry: T) -> NonZeroU64 {
        let order = self.next;
        self.next = order.saturating_add(1);
        self.entries.insert((peer, order), entry);
        self.set(peer, self.of(peer) + 1);
        order
    }

    /// Removes the entry with this place in the order.
    pub fn leave(&mut self, peer: Gid, order: NonZeroU64) {
        if self.entries.remove(&(peer, order)).is_some() {
            self.set(peer, self.of(peer).saturating_sub(1));
        }
    }

    fn set(&mut self, peer: Gid, number: u32) {
        self.by_number.remove(&(self.of(peer), peer));
        if number == 0 {
            self.by_peer.remove(&peer);
        } else {
            self.by_peer.insert(peer, number);
            self.by_number.insert((number, peer));
        }
    }

    /// The entry that gives way: the oldest of a peer that has the most.
    pub fn first_to_go(&self) -> Option<T> {
        let &(_, peer) = self.by_number.last()?;
        self.entries.range((peer, NonZeroU64::MIN)..).next().map(|(_, &entry)| entry)
    }

    #[cfg(test)]
    pub fn check(&self) {
        let total: u32 = self.by_peer.values().sum();
        assert_eq!((total, self.by_number.len()), (self.len(), self.by_peer.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_the_peer_with_the_most_gives_way() {
        let [a, b] = [Gid([1; 16]), Gid([2; 16])];
        let mut crowd = Crowd::new();
        assert_eq!(crowd.first_to_go(), None);
        crowd.enter(b, "b1");
        let first = crowd.enter(a, "a1");
        crowd.enter(a, "a2");
        assert_eq!((crowd.len(), crowd.of(a), crowd.of(b), crowd.first_to_go()), (3, 2, 1, Some("a1")));
        crowd.leave(a, first);
        crowd.leave(a, first);
        crowd.enter(b, "b2");
        assert_eq!((crowd.of(a), crowd.of(b), crowd.first_to_go()), (1, 2, Some("b1")));
        crowd.check();
    }
}
