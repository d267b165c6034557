//! Whole nodes and the network between them, in one process, decided by one seed.
//!
//! The stack runs unchanged, with all its threads, but only one thread runs at a time, and a seeded
//! scheduler picks which. Time is virtual, and the device is one more task of the scheduler. So a
//! seed decides everything that happens, and a seed that fails once fails again:
//!
//! ```
//! let outcome = |seed| {
//!     sim::run(seed, 1, |world| {
//!         let platform = world.platform();
//!         platform.now()
//!     })
//! };
//! assert_eq!(outcome(7), outcome(7));
//! ```
//!
//! It shows no errors of memory order, since one thread runs at a time; the model checks do. The
//! kernel is not part of it: under QEMU the suite and the kernel's own tests run there
//! (docs/testing.md).

pub mod face;
mod harness;
mod network;
mod nic;
mod scheduler;
pub mod storage;
pub mod workload;
mod world;

pub use harness::story::Tally;
pub use network::{Network, NetworkFaults};
pub use world::{Outcome, World, run, run_over};
