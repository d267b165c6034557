//! What every API ("face") on the VIA Kernel Agent stands on, whatever its specification says.
//!
//! A face opens the agent as a client, names its objects by handles, and has a fast path from a
//! handle to a queue. This crate has the parts that do not depend on the specification:
//!
//! - [`handle`]: the word that names an object, and [`numbers`]: the numbers that distinguish the
//!   handles of one adapter from those of another;
//! - [`Table`]: objects by handle; [`Slots`]: queue slots by handle, for the fast path;
//! - [`Life`]: whether an adapter is enabled, disabled or freed, and the calls in progress;
//! - [`CallbackThread`] and [`InCallbacks`]: the threads that run the consumer's callbacks;
//! - [`Context`]: the consumer's context of an object;
//! - [`Interfaces`]: the agents of a machine by name, which boot code passes to the faces;
//! - [`via`]: how virtual interfaces find each other and agree, the same for each face.
//!
//! It has no call, error or event of any specification: those are in `privileged-api` and `vipl`;
//! `dat` stands on `privileged-api`. It drives no device: `kernel-agent` does.
//!
//! An adapter is one opening of the agent by a consumer: IT-API's IA, VIPL's NIC handle.
#![no_std]

extern crate alloc;
#[cfg(all(test, ferrovia_model))]
extern crate std;

mod callbacks;
mod context;
pub mod handle;
mod interfaces;
mod life;
#[cfg(all(test, ferrovia_model))]
mod models;
pub mod numbers;
mod slots;
mod table;
pub mod via;

pub use callbacks::{CallbackThread, InCallback, InCallbacks};
pub use context::Context;
pub use interfaces::{BadName, Endpoints, Interfaces, Limits, Offer};
pub use life::{Call, Ended, Life};
pub use slots::Slots;
pub use table::{Entry, Reservation, Table};

/// There is no memory, or no free index or number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfResources;

impl From<platform::OutOfMemory> for OutOfResources {
    fn from(_: platform::OutOfMemory) -> OutOfResources {
        OutOfResources
    }
}

impl From<alloc::collections::TryReserveError> for OutOfResources {
    fn from(_: alloc::collections::TryReserveError) -> OutOfResources {
        OutOfResources
    }
}
