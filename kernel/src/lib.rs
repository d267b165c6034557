//! The tiny kernel that carries an image: it boots by PVH, maps memory, runs threads on interrupts and
//! hands the NICs that it finds on PCI to the image's `main`.
//!
//! An image is a `no_std`, `no_main` program that says [`entry!`]; everything else that it needs from a
//! machine it takes from the [`platform`] crate, which this kernel implements ([`Boot::platform`]).
//!
//! # What the outside sees
//! - The console is the first serial port. See [`console`] for levels.
//! - [`exit`] ends QEMU with a status; see [`Status`] for what the kernel itself ends with.
//! - A byte on port 0xe9 about each second says that threads still run; see `outside.rs`.
//! - A panic or a fault prints its backtrace as lines `  at 0x0123456789abcdef`, see [`mod@panic`].
//!
//! # Lock order
//! A waiting bucket, then a CPU's run queue, then stacks, then the heap, then page tables, then frames; PCI
//! configuration and the console are independent. All of them are [`lock::IrqLock`]s: interrupts are off while
//! one is held, so no holder is ever preempted, and every one may be taken in an interrupt handler.
#![no_std]

extern crate alloc;

pub mod args;
mod boot;
pub mod clock;
pub mod console;
mod cpu;
pub mod interrupts;
pub mod lock;
pub mod memory;
mod outside;
pub mod panic;
pub mod pci;
mod random;
mod services;
mod start;
pub mod thread;

pub use args::args;
pub use boot::{Module, modules};
pub use outside::{Status, control, exit};
pub use pci::nics;
pub use random::random_u64;
pub use start::{Boot, Timestamps, timestamps};
