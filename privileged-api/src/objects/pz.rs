//! A protection zone.

use platform::use_count::Use;

use crate::handle::PzHandle;

/// A protection zone.
pub(crate) type Pz = rdma::Zone<PzHandle>;

/// The record that an object is in a zone, which cannot be freed before it is dropped.
pub(crate) type InZone = Use<Pz>;
