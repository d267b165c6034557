//! Programs that speak the protocols of rdma-core's examples, so that Linux's programs are their
//! peers: [`rping`], [`cmatose`] and [`udaddy`]. [`immediate`] has a protocol of its own, and the
//! tests bring its peer to Linux.
//!
//! A program is a function of a NIC and of the words on its command line. It writes lines and
//! returns when it is done, or with the [`Failure`] that ended it. The images in `targets` and the
//! tests call the same functions; [`run`] and [`run_pairs`] are all that an image does.
//!
//! They are no replacement of the libraries rdma_cm and verbs: no program for Linux builds on them.
//! The connection manager is in `kernel-agent`. To boot an image with a program is the launcher's
//! matter (`qemu`).
//!
//! The servers are named as rdma_cm names them, by an IP address and a port
//! ([`Service`](rdma::Service)).
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod advert;
pub mod cmatose;
mod connection;
mod exchange;
mod image;
pub mod immediate;
mod net;
pub mod rping;
#[cfg(test)]
mod testing;
pub mod udaddy;
mod words;

pub use common::Failure;
pub use image::{Side, run, run_pairs};
pub use words::Words;

use core::fmt;

use rdma::Nic;

/// What a program runs on.
pub struct Host<'a> {
    /// The NIC.
    pub nic: &'a Nic,
    /// Takes the lines that the program writes.
    pub say: &'a mut dyn FnMut(fmt::Arguments<'_>),
}

/// A program: it takes its options out of the words.
pub type Program = fn(&mut Host<'_>, Words<'_>) -> Result<(), Failure>;

/// Writes a line.
macro_rules! say {
    ($host:expr, $($line:tt)*) => { ($host.say)(format_args!($($line)*)) };
}
pub(crate) use say;

/// Ends a function with a [`Failure`].
macro_rules! fail {
    ($($why:tt)*) => { return Err($crate::Failure::new(format_args!($($why)*))) };
}
pub(crate) use fail;
