//! The tiny kernel under an image: it boots by PVH, maps memory, runs threads, takes interrupts,
//! and hands the NICs and disks that it finds on PCI to the image's `main`.
//!
//! An image is a `no_std`, `no_main` program that invokes [`entry!`]. Everything else that it needs
//! from a machine comes from the [`platform`] crate, which this kernel implements
//! ([`Boot::platform`]).
//!
//! There are no processes and no user mode, no file system and no network stack. RDMA is in the
//! crates from `nic-hal` up, which an image uses as any embedder does; this kernel finds the NIC
//! and implements the platform.
//!
//! # What the launcher sees
//! - The console is the first serial port. [`console`] describes log levels.
//! - An image that opens a [`Mailbox`] is asked what it defines.
//! - An image that calls [`listen_for_stop`] is asked to end before the launcher ends QEMU.
//! - [`exit`] ends QEMU with a status. [`Status`] lists the statuses of the kernel itself.
//! - The heartbeat, a byte on port 0xe9 each second, shows that threads run on all CPUs
//!   (`launcher.rs`).
//! - A panic or a fault prints a backtrace of lines `  at 0x0123456789abcdef` (see [`mod@panic`]).
//!
//! # Lock order
//! A bucket of waiting threads, then a CPU's run queue (never two of them), then stacks, then the
//! heap, then page tables, then frames. The locks of PCI configuration, of a thread's main
//! function, of the launcher's port and of the console are independent of these.
//!
//! All of them are [`lock::IrqLock`]s: interrupts are off while one is held, so its holder is never
//! preempted, and interrupt handlers may take any of them. While a CPU holds one, or has interrupts
//! off, it never waits for another CPU; the only exception is the report of a panic or a fault,
//! which waits for a bounded time.
//!
//! # CPUs
//! Threads run on all CPUs that the firmware reports as enabled. A preemptible thread may be moved
//! to another CPU at any time. Entries of page tables and the mappings of stacks are never removed,
//! so no TLB ever holds a stale entry and no CPU has to flush one. Interrupts of devices are spread
//! over the CPUs.
//!
//! # Files
//! From the lowest floor up; a file imports only files of lower floors.
//!
//! | files | subject |
//! |---|---|
//! | `args`, `clock`, `cpu`, `lock`, `random`, `region` | need no other file |
//! | `acpi`, `console`, `launcher`, `pvh` | the firmware's tables, the serial port, messages to the launcher, what the monitor left |
//! | `memory` | RAM, page tables, stacks, the heap |
//! | `apic` | the local APIC |
//! | `calibrate`, `shutdown`, `thread` | the clock's rate, the guest's end, threads |
//! | `panic`, `services`, `stop` | reports of panics, the kernel as a [`platform::Platform`], the launcher's request to end |
//! | `interrupts` | vectors, handlers, faults |
//! | `virtio` | virtio block devices, however they are reached |
//! | `pci`, `smp` | devices, the other CPUs |
//! | `start`, `required`, `boot` | the order of boot, what the CPU must have, the entry point |
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
mod mailbox;
pub mod memory;
pub mod panic;
pub mod pci;
mod pvh;
mod random;
mod region;
mod required;
mod services;
mod shutdown;
mod smp;
mod start;
mod stop;
pub mod thread;
pub mod virtio;

pub use args::args;
pub use cpu::count as cpus;
pub use launcher::control;
pub use mailbox::Mailbox;
pub use pci::{disks, nics};
pub use pvh::{Module, first_module, modules};
pub use random::random_u64;
pub use shutdown::{Status, exit};
pub use start::{Boot, Timestamps, timestamps};
pub use stop::{StopRequest, listen_for_stop};
