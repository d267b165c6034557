//! A protection zone of a face: the domain of the objects that are in it.

use alloc::sync::Arc;

use kernel_agent::Pd;
use platform::use_count::{Counted, UseCount};

use crate::Context;

/// A protection zone that a handle names. A [`Use`](platform::use_count::Use) of it is the record
/// that an object is in the zone, which cannot be freed before that is dropped.
pub struct Zone<H> {
    /// Its handle.
    pub handle: H,
    /// Its protection domain.
    pub pd: Arc<Pd>,
    /// Counts the objects in the zone.
    pub uses: UseCount,
    /// The consumer's context of it.
    pub context: Context,
}

impl<H> Zone<H> {
    /// A zone without objects.
    pub fn new(handle: H, pd: Arc<Pd>) -> Zone<H> {
        Zone { handle, pd, uses: UseCount::new(), context: Context::new() }
    }
}

impl<H> Counted for Zone<H> {
    fn uses(&self) -> &UseCount {
        &self.uses
    }
}
