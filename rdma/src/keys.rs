//! Finds a region's key by its handle, for the data path: one load, without a lock or an error.
//!
//! For a handle that names no region the result is a key that the device refuses. So the work
//! request completes in error, as the specifications of the faces require.
//!
//! Each index has one word: the upper half of the handle that is valid for it, and the key. The
//! lower half of a handle has its index, its type and a part of its adapter's number; type and
//! number are equal for all regions of this adapter. A lookup gets the index by removing them from
//! the lower half, and then compares the upper half: this checks the whole handle.

use core::hint::cold_path;
use core::sync::atomic::{AtomicU64, Ordering};

use kernel_agent::{Segment, key};
use platform::Growing;

use crate::OutOfResources;
use crate::handle::{self, Tag};

/// A piece of local memory as a face's consumer names it.
pub trait Piece {
    /// The word of the region's handle.
    fn region(&self) -> u64;
    /// Where in the region.
    fn addr(&self) -> u64;
    /// Bytes.
    fn length(&self) -> u64;
}

/// The upper half of a handle.
const UPPER: u64 = !0 << 32;

/// The keys of an adapter's regions. See the module's documentation.
pub struct Keys {
    /// Indexed as the handles are; 0 if there is no region (no handle has generation 0).
    places: Growing<AtomicU64>,
    /// The lower half of all handles of this adapter's regions, without the index.
    common: u32,
    /// The handle that stands for the reserved key.
    direct: Option<u64>,
}

impl Keys {
    /// Makes room for `count` regions with handles of this tag and adapter. `direct` is the handle
    /// that stands for the reserved key, if there is one.
    pub fn new(tag: Tag, adapter: u32, count: u32, direct: Option<u64>) -> Result<Keys, OutOfResources> {
        let places = Growing::new(count.max(1) as usize)?;
        let common = handle::word(tag, adapter, 0, 0) as u32;
        Ok(Keys { places, common, direct })
    }

    /// Whether a handle stands for the reserved key.
    #[inline(always)]
    pub fn has_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Makes room for the key of a region that is about to be created.
    pub fn reach(&self, region: u64) -> Result<(), OutOfResources> {
        let copy = |place: &AtomicU64| AtomicU64::new(place.load(Ordering::Acquire));
        let reached = self.places.reach(handle::index(region), copy, || Ok(AtomicU64::new(0)));
        reached.map_err(OutOfResources::from)
    }

    /// Records the key of a region, for which [`Keys::reach`] made room. Calls for one region must
    /// not run at the same time.
    pub fn set(&self, region: u64, key: u32) {
        let word = region & UPPER | u64::from(key);
        self.places.store(handle::index(region), |place| place.store(word, Ordering::Release));
    }

    /// Removes the key of a region that is being freed.
    pub fn clear(&self, region: u64) {
        self.places.store(handle::index(region), |place| place.store(0, Ordering::Release));
    }

    /// The key of a region, or [`key::NONE`].
    #[inline(always)]
    pub fn get(&self, region: u64) -> u32 {
        self.find(region).unwrap_or_else(|| self.other(region))
    }

    /// The key of a region.
    #[inline(always)]
    pub fn find(&self, word: u64) -> Option<u32> {
        // For a handle that names no region of this adapter (null among them) the index is out of
        // bounds, or the upper half differs.
        let index = (word as u32 ^ self.common) as usize;
        let place = self.places.get(index)?.load(Ordering::Acquire);
        if (place ^ word) & UPPER == 0 { Some(place as u32) } else { None }
    }

    /// A segment in the device's form, if its handle names a region and its length fits. One
    /// comparison decides both.
    #[inline(always)]
    pub fn segment(&self, piece: &impl Piece) -> Option<Segment> {
        let word = piece.region();
        // As in `find`.
        let index = (word as u32 ^ self.common) as usize;
        let Some(place) = self.places.get(index) else {
            cold_path();
            return None;
        };
        let place = place.load(Ordering::Acquire);
        // Read here: before, it would take one more register.
        let length = piece.length();
        if ((place ^ word) | length) & UPPER != 0 {
            cold_path();
            return None;
        }
        Some(Segment { addr: piece.addr(), length: length as u32, key: place as u32 })
    }

    /// As [`Keys::segment`], or one with the reserved key, if the handle stands for that.
    #[inline(always)]
    pub fn segment_or_direct(&self, piece: &impl Piece) -> Option<Segment> {
        self.segment(piece).or_else(|| {
            let length = u32::try_from(piece.length()).ok().filter(|_| self.is_direct(piece.region()))?;
            Some(Segment { addr: piece.addr(), length, key: key::RESERVED })
        })
    }

    /// Whether the handle stands for the reserved key.
    #[inline]
    fn is_direct(&self, region: u64) -> bool {
        self.direct == Some(region)
    }

    #[cold]
    fn other(&self, region: u64) -> u32 {
        if self.is_direct(region) { key::RESERVED } else { key::NONE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: Tag = Tag::new(5);
    const DIRECT: u64 = handle::word(REGION, !0, 0, handle::GENERATION_MASK);

    struct Named {
        region: u64,
        length: u64,
    }

    impl Piece for Named {
        fn region(&self) -> u64 {
            self.region
        }

        fn addr(&self) -> u64 {
            4096
        }

        fn length(&self) -> u64 {
            self.length
        }
    }

    fn keys(adapter: u32, count: u32, direct: bool) -> Keys {
        Keys::new(REGION, adapter, count, direct.then_some(DIRECT)).unwrap()
    }

    fn region(adapter: u32, index: u32, generation: u32) -> u64 {
        handle::word(REGION, adapter, index, generation)
    }

    #[test]
    fn the_direct_handle_makes_a_segment_on_an_adapter_that_has_it() {
        let triplet = |length| Named { region: DIRECT, length };
        for direct in [false, true] {
            let keys = keys(1, 100, direct);
            assert!(keys.segment(&triplet(7)).is_none());
            let segment = keys.segment_or_direct(&triplet(7));
            let found = segment.map(|segment| (segment.addr, segment.length, segment.key));
            assert_eq!(found, direct.then_some((4096, 7, key::RESERVED)));
            assert!(keys.segment_or_direct(&triplet(1 << 32)).is_none(), "too long");
        }
    }

    #[test]
    fn only_the_right_handle_finds_a_key() {
        // Numbers whose bits are in both halves of the handle.
        for ia in [1, 0x21, 0xfff] {
            let keys = keys(ia, 100, true);
            let right = region(ia, 70, 1);
            assert_eq!(keys.get(right), key::NONE);
            keys.reach(right).unwrap();
            keys.set(right, 42);
            assert_eq!(keys.get(right), 42);
            let wrong_type = handle::word(Tag::new(7), ia, 70, 1);
            let others = [
                region(ia, 70, 2),
                region(ia ^ 1, 70, 1),
                region(ia ^ 0x10, 70, 1),
                region(ia ^ 0x800, 70, 1),
            ];
            for wrong in others.into_iter().chain([
                wrong_type,
                region(ia, 71, 1),
                region(ia, 100, 1),
                region(ia, 1 << 23, 1),
            ]) {
                assert_eq!(keys.get(wrong), key::NONE, "{wrong:#x}");
            }
            keys.clear(right);
            assert_eq!(keys.get(right), key::NONE);
            assert_eq!(keys.get(0), key::NONE);
        }
    }

    #[test]
    fn a_segment_needs_the_right_handle_and_a_length_of_32_bits_at_once() {
        let keys = keys(1, 100, true);
        let right = region(1, 70, 2);
        keys.reach(right).unwrap();
        keys.set(right, 42);
        let segment = |region, length| keys.segment(&Named { region, length });
        assert_eq!(segment(right, 7), Some(Segment { addr: 4096, length: 7, key: 42 }));
        for bit in 32..64 {
            let wrong = right ^ 1 << bit;
            assert_eq!(segment(wrong, 7), None, "bit {bit} of the handle");
            assert_eq!(segment(right, 1 << bit | 7), None, "bit {bit} of the length");
            // Two wrongs do not make a right.
            assert_eq!(segment(wrong, 1 << bit | 7), None, "bit {bit} of both");
        }
    }

    #[test]
    fn the_direct_handle_is_the_reserved_key() {
        // With some numbers the lower half of the direct handle is equal to that of the adapter's
        // first region.
        for ia in 1..0xfff {
            assert_eq!(keys(ia, 1, true).get(DIRECT), key::RESERVED);
            assert_eq!(keys(ia, 1, false).get(DIRECT), key::NONE);
        }
        assert_ne!(key::NONE, key::RESERVED);
    }
}
