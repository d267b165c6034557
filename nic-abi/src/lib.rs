//! The RNIC's programming interface: everything that a driver and the device share.
//!
//! Layouts and numbers, and the steps of [`protocol`]; docs/rnic.md is the data sheet that
//! describes their use. Version [`VERSION_MAJOR`].[`VERSION_MINOR`]: a driver refuses another major
//! version and may ignore a newer minor one.
//!
//! It is neither of the two: the driver is `nic-hal`, the device `nic-model`. The packets that
//! devices exchange are in `roce`.
//!
//! All fields are little-endian, and only little-endian machines are supported; so the structures
//! are plain `repr(C)`, and their sizes are checked at compile time. Reserved fields are zero.
#![no_std]

pub mod admin;
pub mod cqe;
pub mod doorbell;
pub mod eqe;
pub mod ident;
#[cfg(ferrovia_model)]
pub mod model;
pub mod pci;
pub mod protocol;
pub mod registers;
pub mod vi;
pub mod wqe;

/// Incremented when an older driver can no longer work.
pub const VERSION_MAJOR: u16 = 4;
/// Incremented when something is added.
pub const VERSION_MINOR: u16 = 0;

/// Alignment of every ring.
pub const RING_ALIGN: usize = 64;

#[cfg(not(target_endian = "little"))]
compile_error!("the layouts are little-endian");
