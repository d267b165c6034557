//! From a region's handle to the key that the device knows, for the data path: without a lock, and without an error.
//!
//! A handle that names no region gives a key that the device refuses, so that the work request completes in error, as the pages ask.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nic_abi::ident;
use platform::sync::Once;

use crate::handle::{self, LmrHandle};
use crate::status::{Error, Result};

const CHUNK: usize = 64;

/// A key that no region has: of the reserved key's slot, but not the reserved key.
const NO_KEY: u32 = ident::key(0, 0xff, 0xff);

struct Place {
    /// The handle's word, or 0.
    word: AtomicU64,
    key: AtomicU32,
}

pub(crate) struct Keys {
    chunks: Vec<Once<Box<[Place; CHUNK]>>>,
    direct: bool,
}

impl Keys {
    /// Room for `count` regions; the first place is that of the direct LMR handle.
    pub(crate) fn new(count: u32, direct: bool) -> Result<Keys> {
        let mut chunks = Vec::new();
        let wanted = (count.max(1) as usize).div_ceil(CHUNK);
        chunks.try_reserve_exact(wanted).map_err(|_| Error::Resources)?;
        chunks.resize_with(wanted, Once::new);
        let keys = Keys { chunks, direct };
        if direct {
            keys.prepare(LmrHandle::DIRECT.as_raw())?;
            keys.set(LmrHandle::DIRECT, ident::KEY_RESERVED);
        }
        Ok(keys)
    }

    /// Whether the direct LMR handle can be used.
    #[inline(always)]
    pub(crate) fn has_direct(&self) -> bool {
        self.direct
    }

    #[inline(always)]
    fn place(&self, word: u64) -> Option<&Place> {
        let index = handle::index(word);
        let chunk = self.chunks.get(index / CHUNK)?.get()?;
        Some(&chunk[index % CHUNK])
    }

    /// Makes sure that there is a place for the handle.
    pub(crate) fn prepare(&self, word: u64) -> Result<()> {
        let chunk = self.chunks.get(handle::index(word) / CHUNK).ok_or(Error::Resources)?;
        chunk.try_call_once(|| {
            let mut places = Vec::new();
            places.try_reserve_exact(CHUNK).map_err(|_| Error::Resources)?;
            places.resize_with(CHUNK, || Place { word: AtomicU64::new(0), key: AtomicU32::new(NO_KEY) });
            places.into_boxed_slice().try_into().map_err(|_| Error::Resources)
        })?;
        Ok(())
    }

    /// Notes the key of a region.
    pub(crate) fn set(&self, lmr: LmrHandle, key: u32) {
        if let Some(place) = self.place(lmr.as_raw()) {
            place.key.store(key, Ordering::Release);
            place.word.store(lmr.as_raw(), Ordering::Release);
        }
    }

    /// The region is gone.
    pub(crate) fn clear(&self, lmr: LmrHandle) {
        if let Some(place) = self.place(lmr.as_raw()) {
            place.word.store(0, Ordering::Release);
            place.key.store(NO_KEY, Ordering::Release);
        }
    }

    /// The key of a region, or one that no region has.
    #[inline(always)]
    pub(crate) fn get(&self, lmr: LmrHandle) -> u32 {
        let word = lmr.as_raw();
        let Some(place) = self.place(word) else { return NO_KEY };
        let before = place.word.load(Ordering::Acquire);
        let key = place.key.load(Ordering::Acquire);
        // Read again: the place may have gone to another region in between.
        let after = place.word.load(Ordering::Acquire);
        if before == word && after == word { key } else { NO_KEY }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::HandleType;

    #[test]
    fn only_the_right_handle_finds_a_key() {
        let keys = Keys::new(100, true).unwrap();
        let lmr = LmrHandle::from_raw(handle::word(HandleType::Lmr, 1, 70, 1));
        assert_eq!(keys.get(lmr), NO_KEY);
        keys.prepare(lmr.as_raw()).unwrap();
        keys.set(lmr, 42);
        assert_eq!(keys.get(lmr), 42);
        assert_eq!(keys.get(LmrHandle::from_raw(handle::word(HandleType::Lmr, 1, 70, 2))), NO_KEY);
        assert_eq!(keys.get(LmrHandle::from_raw(handle::word(HandleType::Lmr, 2, 70, 1))), NO_KEY);
        keys.clear(lmr);
        assert_eq!(keys.get(lmr), NO_KEY);
        assert_eq!(keys.get(LmrHandle::NULL), NO_KEY);
    }

    #[test]
    fn the_direct_handle_is_the_reserved_key() {
        assert_eq!(Keys::new(1, true).unwrap().get(LmrHandle::DIRECT), ident::KEY_RESERVED);
        assert_eq!(Keys::new(1, false).unwrap().get(LmrHandle::DIRECT), NO_KEY);
        assert_ne!(NO_KEY, ident::KEY_RESERVED);
    }
}
