//! The links of a region, local or remote, that were posted: the last one, and those before it of which one is in force if the last ones fail.
//!
//! Completions of links that succeed are not looked at, so which one is in force is the device's knowledge: it tells the key.

use heapless::Vec;

/// Variants of a key are told apart by these bits.
const VARIANT: u32 = 0xff;

/// What a link is known by.
pub(crate) trait Keyed: Copy {
    /// The region's key with that link.
    fn key(&self) -> u32;

    /// The queue pair that it was posted to.
    fn qpn(&self) -> u32;
}

/// The last link, and up to `N` before it.
pub(crate) struct Posted<T, const N: usize> {
    now: T,
    /// The oldest first.
    older: Vec<T, N>,
}

/// Which of the last two links are left when some were taken out.
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
    /// A region as it was made.
    pub(crate) const fn new(first: T) -> Posted<T, N> {
        Posted { now: first, older: Vec::new() }
    }

    /// The link that was posted last.
    pub(crate) fn now(&self) -> T {
        self.now
    }

    /// The one before it.
    pub(crate) fn before(&self) -> Option<T> {
        self.older.last().copied()
    }

    /// One more was posted.
    pub(crate) fn push(&mut self, link: T) {
        let before = core::mem::replace(&mut self.now, link);
        if self.older.is_full() {
            self.older.remove(0);
        }
        // There is room now, unless none are kept.
        let _ = self.older.push(before);
    }

    /// The region has this one and no other.
    fn reset(&mut self, link: T) {
        self.now = link;
        self.older.clear();
    }

    /// The link with this key, if it is not too long ago.
    pub(crate) fn find(&self, key: u32) -> Option<T> {
        let all = core::iter::once(&self.now).chain(self.older.iter().rev());
        all.copied().find(|link| link.key() == key)
    }

    /// Whether there is such a link.
    pub(crate) fn any(&self, is: impl Fn(&T) -> bool) -> bool {
        is(&self.now) || self.older.iter().any(is)
    }

    /// The link with this key has become another one, and those before it are history. Tells whether it is the last one.
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

    /// The link with this variant of the key that was posted to this queue pair failed; those before it stay.
    pub(crate) fn failed(&mut self, qpn: u32, variant: u8) -> Left {
        let failed = |link: &T| link.qpn() == qpn && link.key() & VARIANT == u32::from(variant);
        self.take_out(failed, None)
    }

    /// A queue pair is gone: of what was posted to it only the link with the key that the device tells may be in force. `device` is for what is
    /// left if that is nothing: it has this key.
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

    /// Links with these variants, the odd ones by one queue pair and the even ones by the other.
    fn posted(links: core::ops::RangeInclusive<u32>) -> Posted<Link, 4> {
        let mut posted = Posted::new(FIRST);
        links.for_each(|link| posted.push(Link(0x500 + link, if link % 2 == 1 { ONE } else { OTHER })));
        posted
    }

    #[test]
    fn what_is_left_when_all_fail_is_the_first() {
        for order in [[1, 2, 3], [3, 2, 1], [2, 3, 1]] {
            let mut links = posted(1..=3);
            for variant in order {
                links.failed(if variant % 2 == 1 { ONE } else { OTHER }, variant);
            }
            assert_eq!((links.now(), links.before()), (FIRST, None));
        }
    }

    #[test]
    fn failures_tell_what_is_left() {
        let mut links = posted(1..=3);
        assert_eq!(links.failed(ONE, 1), Left::Both);
        assert_eq!(links.failed(ONE, 2), Left::Both, "another queue pair's");
        assert_eq!(links.failed(OTHER, 2), Left::Last);
        assert_eq!((links.now(), links.before()), (Link(0x503, ONE), Some(FIRST)));
        assert_eq!(links.failed(ONE, 3), Left::Before);
        assert_eq!(links.failed(ONE, 3), Left::Both);
        assert_eq!(links.now(), FIRST);
    }

    #[test]
    fn a_queue_pair_that_goes_leaves_what_the_device_has_done() {
        // The second of its links is in force, and another queue pair's comes after that.
        let mut links = posted(1..=4);
        assert_eq!(links.dropped(ONE, Link(0x503, 0)), Left::Both);
        assert_eq!((links.find(0x501), links.find(0x503)), (None, Some(Link(0x503, ONE))));
        // None of them is.
        let mut links = posted(1..=3);
        assert_eq!(links.dropped(ONE, FIRST), Left::Before);
        assert_eq!((links.now(), links.before()), (Link(0x502, OTHER), Some(FIRST)));
        assert_eq!(links.dropped(OTHER, FIRST), Left::Before);
        assert_eq!((links.now(), links.before()), (FIRST, None));
        // Nothing is left of which anything is known.
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
