//! Finds a region's key by its handle, for the data path: one load, without a lock or an error.
//!
//! For a handle that names no region the result is a key that the device refuses. So the work
//! request completes in error, as the pages require.
//!
//! Each index has one word: the upper half of the handle that is valid for it, and the key. The
//! lower half of a handle has its index, its type and a part of its IA's number; type and number
//! are equal for all regions of this IA. A lookup gets the index by removing them from the lower
//! half, and then compares the upper half: this checks the whole handle.

use core::hint::cold_path;
use core::sync::atomic::{AtomicU64, Ordering};

use kernel_agent::{Segment, key};
use platform::Growing;
use rdma::handle;

use crate::handle::{HandleType, LmrHandle};
use crate::iobl::LmrTriplet;
use crate::status::{Error, Result};

/// The upper half of a handle.
const UPPER: u64 = !0 << 32;

pub(crate) struct Keys {
    /// Indexed as the handles are; 0 if there is no region (no handle has generation 0).
    places: Growing<AtomicU64>,
    /// The lower half of all handles of this IA's regions, without the index.
    common: u32,
    direct: bool,
}

impl Keys {
    /// Makes room for `count` regions of IA number `ia`. Index 0 is for the direct LMR handle.
    pub(crate) fn new(ia: u32, count: u32, direct: bool) -> Result<Keys> {
        let places = Growing::new(count.max(1) as usize).map_err(|_| Error::Resources)?;
        let common = handle::word(HandleType::Lmr.tag(), ia, 0, 0) as u32;
        Ok(Keys { places, common, direct })
    }

    /// Whether the IA has the direct LMR handle.
    #[inline(always)]
    pub(crate) fn has_direct(&self) -> bool {
        self.direct
    }

    /// Makes room for the key of a region that is about to be created.
    pub(crate) fn reach(&self, lmr: LmrHandle) -> Result<()> {
        let copy = |place: &AtomicU64| AtomicU64::new(place.load(Ordering::Acquire));
        let reached = self.places.reach(handle::index(lmr.as_raw()), copy, || Ok(AtomicU64::new(0)));
        reached.map_err(|_| Error::Resources)
    }

    /// Records the key of a region, for which [`Keys::reach`] made room. Calls for one region must
    /// not run at the same time.
    pub(crate) fn set(&self, lmr: LmrHandle, key: u32) {
        let word = lmr.as_raw() & UPPER | u64::from(key);
        self.places.store(handle::index(lmr.as_raw()), |place| place.store(word, Ordering::Release));
    }

    /// Removes the key of a region that is being freed.
    pub(crate) fn clear(&self, lmr: LmrHandle) {
        self.places.store(handle::index(lmr.as_raw()), |place| place.store(0, Ordering::Release));
    }

    /// The key of a region, or [`key::NONE`].
    #[inline(always)]
    pub(crate) fn get(&self, lmr: LmrHandle) -> u32 {
        self.find(lmr).unwrap_or_else(|| self.other(lmr))
    }

    /// The key of a region.
    #[inline(always)]
    pub(crate) fn find(&self, lmr: LmrHandle) -> Option<u32> {
        let word = lmr.as_raw();
        // For a handle that names no region of this IA (null among them) the index is out of
        // bounds, or the upper half differs.
        let index = (word as u32 ^ self.common) as usize;
        let place = self.places.get(index)?.load(Ordering::Acquire);
        if (place ^ word) & UPPER == 0 { Some(place as u32) } else { None }
    }

    /// A segment in the device's form, if its handle names a region and its length fits. One
    /// comparison decides both.
    #[inline(always)]
    pub(crate) fn segment(&self, triplet: &LmrTriplet) -> Option<Segment> {
        let word = triplet.lmr.as_raw();
        // As in `find`.
        let index = (word as u32 ^ self.common) as usize;
        let Some(place) = self.places.get(index) else {
            cold_path();
            return None;
        };
        let place = place.load(Ordering::Acquire);
        // Read here: before, it would take one more register.
        let length = triplet.length;
        if ((place ^ word) | length) & UPPER != 0 {
            cold_path();
            return None;
        }
        Some(Segment { addr: triplet.addr, length: length as u32, key: place as u32 })
    }

    /// As [`Keys::segment`], or one that names the direct LMR handle, if the IA has that.
    #[inline(always)]
    pub(crate) fn segment_or_direct(&self, triplet: &LmrTriplet) -> Option<Segment> {
        self.segment(triplet).or_else(|| {
            let length = u32::try_from(triplet.length).ok().filter(|_| self.is_direct(triplet.lmr))?;
            Some(Segment { addr: triplet.addr, length, key: key::RESERVED })
        })
    }

    /// Whether it is the direct LMR handle, on an IA that has it.
    #[inline]
    fn is_direct(&self, lmr: LmrHandle) -> bool {
        self.direct && lmr == LmrHandle::DIRECT
    }

    #[cold]
    fn other(&self, lmr: LmrHandle) -> u32 {
        if self.is_direct(lmr) { key::RESERVED } else { key::NONE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lmr(ia: u32, index: u32, generation: u32) -> LmrHandle {
        LmrHandle::from_raw(handle::word(HandleType::Lmr.tag(), ia, index, generation))
    }

    #[test]
    fn the_direct_handle_makes_a_segment_on_an_ia_that_has_it() {
        let triplet = |length| LmrTriplet::new(LmrHandle::DIRECT, 4096, length);
        for direct in [false, true] {
            let keys = Keys::new(1, 100, direct).unwrap();
            assert!(keys.segment(&triplet(7)).is_none());
            let segment = keys.segment_or_direct(&triplet(7));
            let found = segment.map(|segment| (segment.addr, segment.length, segment.key));
            assert_eq!(found, direct.then_some((4096, 7, key::RESERVED)));
            assert!(keys.segment_or_direct(&triplet(1 << 32)).is_none(), "too long");
        }
    }

    #[test]
    fn only_the_right_handle_finds_a_key() {
        // IA numbers whose bits are in both halves of the handle.
        for ia in [1, 0x21, 0xfff] {
            let keys = Keys::new(ia, 100, true).unwrap();
            let right = lmr(ia, 70, 1);
            assert_eq!(keys.get(right), key::NONE);
            keys.reach(right).unwrap();
            keys.set(right, 42);
            assert_eq!(keys.get(right), 42);
            let wrong_type = LmrHandle::from_raw(handle::word(HandleType::Rmr.tag(), ia, 70, 1));
            let others = [lmr(ia, 70, 2), lmr(ia ^ 1, 70, 1), lmr(ia ^ 0x10, 70, 1), lmr(ia ^ 0x800, 70, 1)];
            for wrong in
                others.into_iter().chain([wrong_type, lmr(ia, 71, 1), lmr(ia, 100, 1), lmr(ia, 1 << 23, 1)])
            {
                assert_eq!(keys.get(wrong), key::NONE, "{wrong:?}");
            }
            keys.clear(right);
            assert_eq!(keys.get(right), key::NONE);
            assert_eq!(keys.get(LmrHandle::NULL), key::NONE);
        }
    }

    #[test]
    fn a_segment_needs_the_right_handle_and_a_length_of_32_bits_at_once() {
        let keys = Keys::new(1, 100, true).unwrap();
        let right = lmr(1, 70, 2);
        keys.reach(right).unwrap();
        keys.set(right, 42);
        let segment = |lmr, length| keys.segment(&LmrTriplet { lmr, addr: 0x1000, length });
        assert_eq!(segment(right, 7), Some(Segment { addr: 0x1000, length: 7, key: 42 }));
        for bit in 32..64 {
            let wrong = LmrHandle::from_raw(right.as_raw() ^ 1 << bit);
            assert_eq!(segment(wrong, 7), None, "bit {bit} of the handle");
            assert_eq!(segment(right, 1 << bit | 7), None, "bit {bit} of the length");
            // Two wrongs do not make a right.
            assert_eq!(segment(wrong, 1 << bit | 7), None, "bit {bit} of both");
        }
    }

    #[test]
    fn the_direct_handle_is_the_reserved_key() {
        // With some IA numbers the lower half of the direct handle is equal to that of the IA's
        // first region.
        for ia in 1..0xfff {
            assert_eq!(Keys::new(ia, 1, true).unwrap().get(LmrHandle::DIRECT), key::RESERVED);
            assert_eq!(Keys::new(ia, 1, false).unwrap().get(LmrHandle::DIRECT), key::NONE);
        }
        assert_ne!(key::NONE, key::RESERVED);
    }
}
