//! The links of a region that were posted: the last one, and those before it of which one is in force if the last ones fail.
//!
//! Completions of links that succeed are not looked at, so which one is in force is the device's knowledge: it tells the key.

use heapless::Vec;

/// Variants of a key are told apart by these bits.
const VARIANT: u32 = 0xff;

/// What a link is known by.
pub(crate) trait Keyed: Copy {
    /// The region's key with that link.
    fn key(&self) -> u32;
}

/// The last link, and up to `N` before it.
pub(crate) struct Posted<T, const N: usize> {
    now: T,
    /// The oldest first.
    older: Vec<T, N>,
}

/// What a failure changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// The last link is the one before now.
    Now,
    /// The one before the last is gone.
    Before,
    /// Neither.
    Other,
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
    pub(crate) fn reset(&mut self, link: T) {
        self.now = link;
        self.older.clear();
    }

    /// The link with the key that the device tells, or the last one.
    pub(crate) fn in_force(&self, key: u32) -> T {
        self.older.iter().rev().find(|link| link.key() == key).copied().unwrap_or(self.now)
    }

    /// The link with this variant of the key failed; those before it stay.
    pub(crate) fn failed(&mut self, variant: u8) -> Failed {
        let is = |link: &T| link.key() & VARIANT == u32::from(variant);
        if is(&self.now) {
            if let Some(before) = self.older.pop() {
                self.now = before;
                return Failed::Now;
            }
            return Failed::Other;
        }
        let Some(place) = self.older.iter().rposition(is) else { return Failed::Other };
        self.older.remove(place);
        if place == self.older.len() { Failed::Before } else { Failed::Other }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Keyed for u32 {
        fn key(&self) -> u32 {
            *self
        }
    }

    fn posted(links: core::ops::RangeInclusive<u32>) -> Posted<u32, 4> {
        let mut posted = Posted::new(0x500);
        links.for_each(|link| posted.push(0x500 + link));
        posted
    }

    #[test]
    fn what_is_left_when_all_fail_is_the_first() {
        for order in [[1, 2, 3], [3, 2, 1], [2, 3, 1]] {
            let mut links = posted(1..=3);
            for variant in order {
                links.failed(variant);
            }
            assert_eq!((links.now(), links.before()), (0x500, None));
        }
    }

    #[test]
    fn failures_tell_what_they_changed() {
        let mut links = posted(1..=3);
        assert_eq!(links.failed(1), Failed::Other);
        assert_eq!(links.failed(2), Failed::Before);
        assert_eq!((links.now(), links.before()), (0x503, Some(0x500)));
        assert_eq!(links.failed(3), Failed::Now);
        assert_eq!(links.failed(3), Failed::Other);
        assert_eq!(links.now(), 0x500);
    }

    #[test]
    fn the_device_says_which_is_in_force() {
        let links = posted(1..=9);
        assert_eq!((links.in_force(0x507), links.in_force(0x504)), (0x507, 0x509));
    }
}
