//! The gates of one type of object, by the index of its handle: the data path's way past the tables.
//!
//! A gate is made for an index when that is first used, and stays. The handle is its pass, so a handle that is wrong in any
//! respect opens nothing. A gate is barred while there is more to do for its object than to use its queue; who finds it barred, and every
//! error, goes by the table.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use kernel_agent::{Consumer, CqGate, Gate, SendGate, Sender};
use platform::sync::Once;

use crate::handle;
use crate::status::{Error, Result};

/// Why a gate is barred.
pub(crate) mod bar {
    /// An endpoint: its state takes no requests.
    pub(crate) const STATE: u32 = 1 << 1;
    /// A dispatcher: there is a callback, which has to hear when the queue is drained.
    pub(crate) const CALLBACK: u32 = 1 << 2;
    /// A dispatcher: completions wait in the stage.
    pub(crate) const STAGED: u32 = 1 << 3;
    /// The IA is disabled or freed.
    pub(crate) const DISABLED: u32 = 1 << 4;
    /// A dispatcher: it is freed.
    pub(crate) const FREED: u32 = 1 << 5;
    /// A dispatcher: its events are its aggregate's.
    pub(crate) const CAPTIVE: u32 = 1 << 6;
}

/// The gates of endpoints.
pub(crate) type SendGates = Gates<Sender>;
/// The gates of dispatchers of completions.
pub(crate) type CqGates = Gates<Consumer>;

const _: fn(&Gates<Sender>, u64) -> Option<&SendGate> = Gates::get;
const _: fn(&Gates<Consumer>, u64) -> Option<&CqGate> = Gates::get;

pub(crate) struct Gates<T> {
    places: Box<[Once<Arc<Gate<T>>>]>,
}

impl<T> Gates<T> {
    /// Gates for indices below `count`.
    pub(crate) fn new(count: u32) -> Result<Gates<T>> {
        // The word with all bits set, which is no pass, has an index beyond.
        let count = count.min((1 << handle::INDEX_BITS) - 1) as usize;
        let mut places = Vec::new();
        places.try_reserve_exact(count).map_err(|_| Error::Resources)?;
        places.resize_with(count, Once::new);
        Ok(Gates { places: places.into_boxed_slice() })
    }

    /// The gate at a handle's index.
    #[inline(always)]
    pub(crate) fn get(&self, word: u64) -> Option<&Gate<T>> {
        Some(self.places.get(handle::index(word))?.get()?)
    }

    /// The same; made if it was never used.
    pub(crate) fn at(&self, word: u64) -> Result<&Arc<Gate<T>>> {
        let place = self.places.get(handle::index(word)).ok_or(Error::Resources)?;
        Ok(place.call_once(Arc::default))
    }
}
