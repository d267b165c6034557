//! How an RDMA NIC is driven.
//!
//! Control path: [`Nic`], a trait that the RNIC's driver ([`RnicDriver`]) implements. Data path: the concrete
//! rings ([`SendQueue`], [`ReceiveQueue`], [`SharedReceiveQueue`], [`CompletionQueue`], [`EventQueue`]) that `Nic` hands
//! out; they are plain `&mut self` objects, whoever owns them brings the lock.
//!
//! Nothing that the device wrote is trusted: the rings keep shadow state of their own ([`Outstanding`]), and each index,
//! tag, number, length and status is checked against it before it is used. Memory goes back to the platform only when
//! the device is known to be done with it ([`Lease`]).
//!
//! Unsafe code: `mapped` only.
#![no_std]

extern crate alloc;

#[cfg(test)]
extern crate std;

mod admin;
mod completion;
mod doorbell;
mod driver;
mod error;
mod event;
mod life;
mod mapped;
mod memory;
#[cfg(all(test, ferrovia_model))]
mod models;
mod nic;
mod receive;
mod send;
mod shared;
mod work;

pub use completion::{CompletionQueue, CompletionRing, Entry, Reading};
pub use doorbell::Rung;
pub use driver::RnicDriver;
pub use error::{CommandError, Death, Error};
pub use event::EventQueue;
pub use memory::{DeviceMemory, Lease};
pub use nic::{CqParams, Nic, QpParams, QpRings, SrqParams};
pub use receive::ReceiveQueue;
pub use send::{Refused, SendQueue};
pub use shared::{SharedReceiveQueue, SharedRing};
pub use work::{Note, Outstanding, Retiring, Taken};
