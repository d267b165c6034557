//! RDMA for Rust kernels and unikernels: the Interconnect Transport API (IT-API 2.1) for
//! privileged consumers, on a kernel agent after the Virtual Interface Architecture, which drives
//! an RDMA NIC.
//!
//! This crate re-exports what a kernel that embeds the stack needs. Everything is `no_std` +
//! `alloc`.
//!
//! | who | uses |
//! |---|---|
//! | the kernel | implements [`Platform`] (memory, time, waiting, threads) and, for each NIC, [`Transport`] (registers, doorbell, interrupts) |
//! | its boot code | opens an [`Agent`] on each NIC, adds the agents to a [`Provider`], and makes the [`Privileged`] token |
//! | consumers | open an [`it_api::Ia`] of the provider and call the specification's routines on it |
//!
//! It has no code of its own, and no kernel: ours is the crate `kernel`, which an embedder does not
//! need. The storage target is not among its exports either: it is the crate `storage`.
//!
//! The page docs/embed.md of the repository implements both traits step by step and says what each
//! part costs. `cargo run -p ferrovia --example hello` sends a message in an ordinary process.
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//!
//! use ferrovia::it_api::{AddrMode, LmrFlags, LmrMemory, MemPriv};
//! use ferrovia::platform::DmaBuffer;
//! use ferrovia::{Agent, Config, Platform, Privileged, Provider, Transport};
//!
//! /// Boot code, once.
//! fn start(platform: Arc<dyn Platform>, nic: Arc<dyn Transport>) -> Provider {
//!     let provider = Provider::new(platform.clone());
//!     let agent = Agent::open(platform, nic, 0, Config::default()).expect("a NIC that works");
//!     provider.add("rnic0", agent).expect("a name that is free");
//!     provider
//! }
//!
//! /// A consumer: registers memory that peers may read and write.
//! fn share(
//!     provider: &Provider,
//!     privileged: Privileged,
//!     buffer: &Arc<DmaBuffer>,
//! ) -> Result<(), ferrovia::it_api::Error> {
//!     let ia = provider.ia_create("rnic0", 2, 1, Some(privileged))?;
//!     let pz = ia.pz_create()?;
//!     let privs = MemPriv::LOCAL | MemPriv::REMOTE;
//!     let (memory, length) = (LmrMemory::buffer(buffer), buffer.len() as u64);
//!     let (lmr, context) =
//!         ia.lmr_create(pz, memory, length, AddrMode::Absolute, privs, LmrFlags::empty(), 0)?;
//!     assert!(context.is_some(), "peers name the region by this");
//!     ia.lmr_free(lmr)?;
//!     // Frees all that was made on it.
//!     ia.ia_free()
//! }
//!
//! // A machine with one NIC in this process; your kernel has its own.
//! let machine = host::Machine::new(1);
//! let platform = machine.platform();
//! let provider = start(platform.clone(), machine.transport(0));
//! let buffer = Arc::new(DmaBuffer::new(&platform, 4096, 4096).expect("a page"));
//! share(&provider, machine.privileged(), &buffer).expect("no error");
//! ```
#![no_std]

/// IT-API 2.1: all that consumers use.
pub use privileged_api as it_api;

/// DAT 2.0 with its InfiniBand extensions: another face on the same stack.
pub use dat;

/// VIPL, the calls of the VI Architecture 1.0: a third face. Boot code makes its provider from
/// [`it_api::Provider::interfaces`].
pub use vipl;

/// The agent of a NIC: its limits, its counts of objects, and its errors.
pub use kernel_agent;

/// What the stack asks of a kernel, and memory that devices can reach.
pub use platform;

pub use kernel_agent::{Agent, Config};
pub use nic_hal::{InterruptHandler, Transport};
pub use platform::{Platform, Privileged};
pub use privileged_api::Provider;
