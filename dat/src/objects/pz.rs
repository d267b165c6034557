//! A protection zone.

use alloc::sync::Arc;

use kernel_agent::Pd;
use platform::use_count::{Counted, Use, UseCount};
use rdma::Context;

use crate::handle::PzHandle;

/// A protection zone.
pub(crate) struct Pz {
    pub(crate) handle: PzHandle,
    pub(crate) pd: Arc<Pd>,
    /// Counts the objects that are in the zone.
    pub(crate) uses: UseCount,
    pub(crate) context: Context,
}

impl Counted for Pz {
    fn uses(&self) -> &UseCount {
        &self.uses
    }
}

/// The record that an object is in a zone.
pub(crate) type InZone = Use<Pz>;
