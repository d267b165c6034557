//! How an RDMA NIC is driven.
//!
//! Control path: [`Nic`], the driver of one device. Data path: the rings that it returns
//! ([`SendQueue`], [`ReceiveQueue`], [`SharedReceiveQueue`], [`ViQueue`], [`CompletionQueue`],
//! [`EventQueue`]).
//! They are plain `&mut self` objects; their owner brings the lock. How a device is reached differs
//! between machines: [`Transport`].
//!
//! The driver does not trust what the device wrote. The rings keep shadow state ([`Outstanding`]),
//! and check each index, tag, number, length and status against it before they use it. Memory
//! returns to the platform only when the device is known to be done with it ([`Lease`]).
//!
//! It does not find devices (a kernel's PCI code does, and passes a [`Transport`]). It does not
//! choose the numbers of objects, share the NIC between consumers, or make connections:
//! `kernel-agent` does.
//!
//! Unsafe code: `mapped` only.
#![no_std]

extern crate alloc;

#[cfg(test)]
extern crate std;

mod admin;
mod completion;
mod control;
mod doorbell;
mod error;
mod event;
mod life;
mod mapped;
mod memory;
#[cfg(all(test, ferrovia_model))]
mod models;
mod nic;
mod objects;
mod outstanding;
mod params;
mod receive;
mod request;
mod send;
mod shared;
mod streams;
mod testing;
mod transport;
mod vi;

pub use completion::{CompletionQueue, CompletionRing, Entry, Reading};
pub use error::{CommandError, Death, Error};
pub use event::EventQueue;
pub use mapped::Circle;
pub use memory::{DeviceMemory, Lease};
pub use nic::Nic;
pub use outstanding::{Outstanding, Retired, Retiring, Shadow};
pub use params::{CqParams, QpParams, QpRings, SrqParams, ViParams, ViRings};
pub use receive::ReceiveQueue;
pub use request::{Direction, Head, Operation, Remote, RemoteWords, Request, Transfer};
pub use send::{Next, Refused, SendQueue, Unposted};
pub use shared::{SharedReceiveQueue, SharedRing};
pub use streams::{StreamBuffer, StreamEnding, Terminate};
pub use testing::TestHandle;
pub use transport::{InterruptHandler, Transport};
pub use vi::{Full, Taken, ViQueue};
