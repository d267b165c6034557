//! The RNIC as a library.
//!
//! A [`Fabric`] holds NICs and the links between them. It is single-threaded and has no locks, no I/O and no clock:
//! whoever drives it hands over the time, and attaches each NIC to a machine by a [`Frontend`].
//!
//! ```text
//! loop {
//!     while fabric.poll(now(), 256) == Progress::Worked {}
//!     // nothing to do: spin on poll for some 10 us, then
//!     if fabric.prepare_sleep() {
//!         // sleep until a kick (then also: fabric.kicked(nic)) or until fabric.next_deadline()
//!     }
//!     fabric.awake();
//! }
//! ```
#![no_std]

extern crate alloc;

mod fabric;
mod frontend;
mod memory;
mod nic;

pub use fabric::{AddError, Fabric, NicId, Progress};
pub use frontend::Frontend;
pub use memory::{DmaError, GuestMemory};
pub use nic::{NicConfig, Stats};
