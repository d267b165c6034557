//! The NIC of an ordinary process: what the shared libraries for C programs stand on.
//!
//! The device model of Ferrovia runs in a thread of the program, on a link to other processes and
//! machines (`links`). It reaches all memory of the process; its keys say what a request may reach.
//!
//! | module | subject |
//! |---|---|
//! | `environment` | what the user chooses by variables |
//! | `engine` | the device, and who does its work: its thread, or threads that poll |
//! | `machine` | the NIC: platform, transport, link |
//! | `watch` | peers that ended without a word |
//!
//! It knows no API: `verbs/library` has the calls of libibverbs on it, `dat/provider` those of DAT.
#![deny(missing_docs)]

mod engine;
mod environment;
mod machine;
mod watch;

pub use engine::Engine;
pub use environment::Environment;
pub use machine::{Nic, open};
pub use watch::Peers;
