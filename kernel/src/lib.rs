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
//! A waiting bucket, then a CPU's run queue (never two of them), then stacks, then the heap, then page tables,
//! then frames; PCI configuration, a thread's main function and the console are independent. All of them are
//! [`lock::IrqLock`]s: interrupts are off while one is held, so no holder is ever preempted, and every one may
//! be taken in an interrupt handler. Nobody waits for another CPU while holding one, or with interrupts off,
//! but for the end of the machine, and then not for long.
//!
//! # CPUs
//! All CPUs that the firmware says are there run threads; a thread may be on another one whenever it has been
//! preemptible. Page tables and stacks never lose an entry, so no CPU's TLB is ever stale and none needs to be
//! told of a change. Devices' interrupts are spread over the CPUs.
#![no_std]

extern crate alloc;

mod acpi;
mod apic;
pub mod args;
mod boot;
mod calibrate;
pub mod clock;
pub mod console;
mod cpu;
pub mod interrupts;
mod launcher;
pub mod lock;
pub mod memory;
pub mod panic;
pub mod pci;
mod pvh;
mod random;
mod region;
mod services;
mod shutdown;
mod smp;
mod start;
pub mod thread;

pub use args::args;
pub use cpu::count as cpus;
pub use launcher::control;
pub use pci::nics;
pub use pvh::{Module, modules};
pub use random::random_u64;
pub use shutdown::{Status, exit};
pub use start::{Boot, Timestamps, timestamps};
