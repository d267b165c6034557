//! How an RDMA NIC is driven.
//!
//! Control path: [`Nic`], a trait that the RNIC's driver ([`RnicDriver`]) implements. Data path: the concrete
//! rings ([`SendQueue`], [`ReceiveQueue`], [`SharedReceiveQueue`], [`CompletionQueue`], [`EventQueue`]) that `Nic` hands
//! out; they are plain `&mut self` objects, whoever owns them brings the lock.
//!
//! Nothing that the device wrote is trusted: the rings keep shadow state of their own, and each index, tag,
//! number, length and status is checked against it before it is used.
#![no_std]

extern crate alloc;

mod error;

pub use error::{CommandError, Death, Error};
