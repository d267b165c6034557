//! The links of a region (LMR or RMR) that were posted: the last one, and earlier ones, since an
//! earlier link stays in force if the later ones fail.
//!
//! Completions of links that succeed are not examined. So only the device has the link in force: a
//! query of the device returns its key.

use heapless::Vec;

/// The bits of a key that are its variant.
const VARIANT: u32 = 0xff;

/// What identifies a link.
pub(crate) trait Keyed: Copy {
    /// The region's key with that link.
    fn key(&self) -> u32;

    /// The queue pair to which it was posted.
    fn qpn(&self) -> u32;
}

/// The last link, and up to `N` links before it.
pub(crate) struct Posted<T, const N: usize> {
    now: T,
    /// The oldest first.
    older: Vec<T, N>,
}

/// Which of the last two links remain after some links were removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Both.
    Both,
    /// The last one.
    Last,
    /// The one before it, which is the last one now.
    Before,
    /// An earlier one is the last one now.
    Neither,
}

impl<T: Keyed, const N: usize> Posted<T, N> {
    /// The links of a new region.
    pub(crate) const fn new(first: T) -> Posted<T, N> {
        Posted { now: first, older: Vec::new() }
    }

    /// The last link.
    pub(crate) fn now(&self) -> T {
        self.now
    }

    /// The link before the last one.
    pub(crate) fn before(&self) -> Option<T> {
        self.older.last().copied()
    }

    /// Adds a link that was posted.
    pub(crate) fn push(&mut self, link: T) {
        let before = core::mem::replace(&mut self.now, link);
        if self.older.is_full() {
            self.older.remove(0);
        }
        // There is room now, unless `N` is 0.
        let _ = self.older.push(before);
    }

    /// Replaces all links by this one.
    fn reset(&mut self, link: T) {
        self.now = link;
        self.older.clear();
    }

    /// The link with this key, unless it is so old that it was dropped.
    pub(crate) fn find(&self, key: u32) -> Option<T> {
        let all = core::iter::once(&self.now).chain(self.older.iter().rev());
        all.copied().find(|link| link.key() == key)
    }

    /// Whether there is a link for which `is` holds.
    pub(crate) fn any(&self, is: impl Fn(&T) -> bool) -> bool {
        is(&self.now) || self.older.iter().any(is)
    }

    /// Replaces the link with this key, and drops all before it. Returns whether it is the last
    /// link.
    pub(crate) fn changed(&mut self, key: u32, link: T) -> bool {
        if self.now.key() == key {
            self.reset(link);
            return true;
        }
        if let Some(place) = self.older.iter().position(|older| older.key() == key) {
            self.older = self.older.iter().skip(place).copied().collect();
            if let Some(oldest) = self.older.first_mut() {
                *oldest = link;
            }
        }
        false
    }

    /// Removes the link with this variant that was posted to this queue pair: it failed.
    pub(crate) fn failed(&mut self, qpn: u32, variant: u8) -> Left {
        let failed = |link: &T| link.qpn() == qpn && link.key() & VARIANT == u32::from(variant);
        self.take_out(failed, None)
    }

    /// Removes the links that were posted to a destroyed queue pair, except the link with the key
    /// that the device reports. If no link remains, `device`, which has that key, becomes the last
    /// one.
    pub(crate) fn dropped(&mut self, qpn: u32, device: T) -> Left {
        self.take_out(|link| link.qpn() == qpn && link.key() != device.key(), Some(device))
    }

    fn take_out(&mut self, which: impl Fn(&T) -> bool, rest: Option<T>) -> Left {
        let key = |link: T| link.key();
        let (last, before) = (self.now.key(), self.before().map(key));
        self.older.retain(|link| !which(link));
        if which(&self.now)
            && let Some(left) = self.older.pop().or(rest)
        {
            self.now = left;
        }
        match self.now.key() {
            now if now == last && self.before().map(key) == before => Left::Both,
            now if now == last => Left::Last,
            now if Some(now) == before => Left::Before,
            _ => Left::Neither,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Link(u32, u32);

    impl Keyed for Link {
        fn key(&self) -> u32 {
            self.0
        }

        fn qpn(&self) -> u32 {
            self.1
        }
    }

    const FIRST: Link = Link(0x500, 0);
    /// Queue pairs.
    const ONE: u32 = 71;
    const OTHER: u32 = 72;

    /// Links with these variants: odd ones posted to one queue pair, even ones to the other.
    fn posted(links: core::ops::RangeInclusive<u32>) -> Posted<Link, 4> {
        let mut posted = Posted::new(FIRST);
        links.for_each(|link| posted.push(Link(0x500 + link, if link % 2 == 1 { ONE } else { OTHER })));
        posted
    }

    #[test]
    fn if_all_links_fail_the_first_one_remains() {
        for order in [[1, 2, 3], [3, 2, 1], [2, 3, 1]] {
            let mut links = posted(1..=3);
            for variant in order {
                links.failed(if variant % 2 == 1 { ONE } else { OTHER }, variant);
            }
            assert_eq!((links.now(), links.before()), (FIRST, None));
        }
    }

    #[test]
    fn a_failure_reports_which_links_remain() {
        let mut links = posted(1..=3);
        assert_eq!(links.failed(ONE, 1), Left::Both);
        assert_eq!(links.failed(ONE, 2), Left::Both, "posted to another queue pair");
        assert_eq!(links.failed(OTHER, 2), Left::Last);
        assert_eq!((links.now(), links.before()), (Link(0x503, ONE), Some(FIRST)));
        assert_eq!(links.failed(ONE, 3), Left::Before);
        assert_eq!(links.failed(ONE, 3), Left::Both);
        assert_eq!(links.now(), FIRST);
    }

    #[test]
    fn a_queue_pair_that_is_gone_leaves_the_link_that_the_device_reports() {
        // The second of its links is in force, and a link of the other queue pair comes after it.
        let mut links = posted(1..=4);
        assert_eq!(links.dropped(ONE, Link(0x503, 0)), Left::Both);
        assert_eq!((links.find(0x501), links.find(0x503)), (None, Some(Link(0x503, ONE))));
        // None of its links is in force.
        let mut links = posted(1..=3);
        assert_eq!(links.dropped(ONE, FIRST), Left::Before);
        assert_eq!((links.now(), links.before()), (Link(0x502, OTHER), Some(FIRST)));
        assert_eq!(links.dropped(OTHER, FIRST), Left::Before);
        assert_eq!((links.now(), links.before()), (FIRST, None));
        // No known link remains.
        let mut links = posted(1..=9);
        links.dropped(OTHER, Link(0x500, 0));
        assert_eq!(links.dropped(ONE, Link(0x500, 0)), Left::Neither);
        assert_eq!((links.now(), links.before()), (Link(0x500, 0), None));
    }

    #[test]
    fn a_changed_link_keeps_its_place() {
        let mut links = posted(1..=3);
        assert!(!links.changed(0x502, Link(0x507, 0)));
        assert_eq!((links.now(), links.before()), (Link(0x503, ONE), Some(Link(0x507, 0))));
        assert_eq!((links.find(0x501), links.find(0x502)), (None, None));
        assert!(links.changed(0x503, Link(0x508, 0)));
        assert_eq!((links.now(), links.before()), (Link(0x508, 0), None));
    }

    #[test]
    fn links_are_found_by_their_keys() {
        let links = posted(1..=9);
        assert_eq!((links.find(0x507), links.find(0x504)), (Some(Link(0x507, ONE)), None));
        assert!(links.any(|link| link.qpn() == OTHER) && !links.any(|link| link.qpn() == 0));
    }
}
