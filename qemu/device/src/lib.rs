//! The NICs of QEMU's guests: how QEMU sees them, and the thread that drives their model.
//!
//! This is a crate of its own because it has to be fast: the launcher, which is most of `qemu`, is
//! built without optimisation, and the model is compiled where the type of its front-end is known.
//!
//! | module | subject |
//! |---|---|
//! | [`frontend`] | how a NIC is attached to QEMU: ivshmem-doorbell |
//! | [`thread`] | the device's thread |
//! | [`memory`] | the guest's memory, and the register files |
//! | [`pulse`] | how regularly the NICs' heartbeats come |
//! | [`counters`], `reporter` | the NICs' counters, and what writes them |
//! | [`error`] | what can fail |
#![deny(missing_docs)]

pub mod counters;
pub mod error;
pub mod frontend;
pub mod memory;
pub mod pulse;
mod reporter;
pub mod thread;

pub use error::{Error, Result};
pub use thread::{Device, Plugged, Plugs};
