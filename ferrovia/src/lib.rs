//! RDMA for Rust kernels and unikernels, on a kernel agent after the Virtual Interface
//! Architecture, which drives an RDMA NIC.
//!
//! This crate re-exports what a kernel that embeds the stack needs. Everything is `no_std` +
//! `alloc`.
//!
//! | who | uses |
//! |---|---|
//! | the kernel | implements [`Platform`] (memory, time, waiting, threads) and, for each NIC, [`Transport`] (registers, doorbell, interrupts) |
//! | its boot code | opens an [`Agent`] on each NIC, and makes the [`Privileged`] token |
//! | consumers | [`rdma`]: memory, connections and requests as Rust values |
//! | consumers of a specification | `it_api` (the Interconnect Transport API 2.1), `dat` (DAT 2.0), `vipl` (VI Architecture 1.0), on a provider of the agents; each is a feature of this crate, and all are on by default |
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
//! use ferrovia::rdma::{Access, Address, Domain, Listener, Nic, RemoteMemory};
//! use ferrovia::{Agent, Config};
//!
//! type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
//!
//! /// Offers memory that a peer may write, and tells the peer where it is when it accepts.
//! fn offer(domain: &Domain, listener: &Listener) -> Result<Vec<u8>> {
//!     let (memory, endpoint) =
//!         (domain.shared_region(4096, Access::WRITE)?, domain.endpoint().build()?);
//!     let place = memory.remote().ok_or("peers may write it")?;
//!     listener.wait()?.accept_with(&endpoint, &place.to_bytes()).wait()?;
//!     endpoint.wait_closed(None)?;
//!     Ok(memory.slice(..5).to_vec())
//! }
//!
//! /// Writes there. Dropping the endpoint ends the connection.
//! fn write(domain: &Domain, peer: Address) -> Result<()> {
//!     let (memory, endpoint) = (domain.region(5)?, domain.endpoint().build()?);
//!     let answer = endpoint.connect(peer, 4711).wait()?;
//!     let place = RemoteMemory::from_bytes(answer.bytes()).ok_or("a short answer")?;
//!     memory.slice(..).write(b"hello");
//!     endpoint.write(memory.slice(..), place)?.wait()?;
//!     Ok(())
//! }
//!
//! // A machine with one NIC in this process; your kernel has its own.
//! let machine = host::Machine::new(1);
//! let agent = Agent::open(machine.platform(), machine.transport(0), 0, Config::default()).unwrap();
//! let nic = Nic::open(&agent).unwrap();
//! let (server, client) = (nic.domain().unwrap(), nic.domain().unwrap());
//! let listener = nic.listen(4711).unwrap();
//! let offering = std::thread::spawn(move || offer(&server, &listener).unwrap());
//! write(&client, nic.address()).unwrap();
//! assert_eq!(offering.join().unwrap(), b"hello");
//! ```
#![no_std]

/// RDMA in Rust's terms: what a Rust programmer uses.
pub use rdma;

/// IT-API 2.1: all that consumers of the specification use.
#[cfg(feature = "it-api")]
pub use privileged_api as it_api;

/// DAT 2.0 with its InfiniBand extensions: another face on the same stack.
#[cfg(feature = "dat")]
pub use dat;

/// VIPL, the calls of the VI Architecture 1.0: a third face. Boot code makes its provider from
/// [`rdma::Interfaces`], or takes those of IT-API's provider.
#[cfg(feature = "vipl")]
pub use vipl;

/// The agent of a NIC: its limits, its counts of objects, and its errors.
pub use kernel_agent;

/// What the stack asks of a kernel, and memory that devices can reach.
pub use platform;

pub use kernel_agent::{Agent, Config};
pub use nic_hal::{InterruptHandler, Transport};
pub use platform::{Platform, Privileged};
#[cfg(feature = "it-api")]
pub use privileged_api::Provider;
