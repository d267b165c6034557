//! VIPL, the consumer's calls of the VI Architecture 1.0 (appendix A), on the VIA Kernel Agent.
//!
//! Boot code makes a [`Provider`] from the interfaces of the machine, and passes it to consumers. A
//! consumer opens a [`Nic`] and makes the architecture's calls on it, without their prefix `Vip`:
//! `VipPostSend(vi, …)` is [`Nic::post_send`]. Searching the documentation for the names of
//! appendix A works.
//!
//! - Handles are words that each call checks in constant time; a destroyed, foreign or null handle
//!   returns `InvalidParameter`. Memory handles are the 32 bits that descriptors have.
//! - Output parameters are return values. [`Error::as_raw`] is the number of `VIP_RETURN`. Timeouts
//!   are milliseconds, or [`INFINITE`].
//! - Registration is safe for owned buffers, [`Nic::register_mem`], and `unsafe` for addresses,
//!   [`Nic::register_mem_raw`].
//! - A [`Descriptor`] is a view of a descriptor in shared memory. The consumer may look at its
//!   status without a call.
//! - Posting and taking descriptors neither allocate, wait, format nor take a lock that two queues
//!   share. All calls are thread-safe, destruction included.
//! - Handlers run in a thread of the NIC, one at a time, never inside a call, and may make any
//!   call. A handler that waits holds up the others.
//! - When the device dies, all calls but [`Nic::close_nic`] and [`Nic::query_vi`] return
//!   `ErrorResource`, all waiters return, and the error handler learns of it.
//!
//! It uses neither queue pairs nor IT-API's objects. IT-API over virtual interfaces is in
//! `privileged-api` (`Provider::add_via`); its endpoints and the virtual interfaces here connect to
//! each other. Virtual interfaces are executed by the device and owned by `kernel-agent`.
//!
//! What the architecture leaves open is decided in docs/decisions/vipl.md.
//!
//! The modules are `error`, `handle`, `attributes`, `address` (the architecture's types),
//! `provider`, `nic`, `ptag`, `memory`, `raw`, `cq`, `vi` (the objects), `switchboard` and `conn`
//! (requests for connections), `error_callback` and `notices` (handlers), `slots` and
//! `descriptor_map` (the fast path), `wait`, `info`, `upcalls` (events of the agent). What the ends
//! of a connection tell each other is in [`rdma::via`].
#![no_std]

extern crate alloc;

mod address;
mod attributes;
mod conn;
mod cq;
mod descriptor_map;
mod error;
mod error_callback;
mod handle;
mod info;
mod memory;
mod nic;
mod notices;
mod provider;
mod ptag;
mod raw;
#[cfg(test)]
mod scene;
mod slots;
mod switchboard;
mod upcalls;
mod vi;
mod wait;

pub use address::{MAX_DISCRIMINATOR, NetAddress};
pub use attributes::*;
pub use cq::CqHandler;
pub use error::{Error, Result, SUCCESS};
pub use error_callback::{ErrorCode, ErrorDescriptor, ErrorHandler, ResourceCode};
pub use handle::{ConnHandle, CqHandle, MemHandle, NicHandle, PtagHandle, ViHandle};
pub use info::{InfoType, OpeningCounts, SystemManagementInfo};
pub use kernel_agent::descriptor::*;
pub use memory::Memory;
pub use nic::Nic;
pub use provider::Provider;
pub use vi::connect::ConnectionRequest;
pub use vi::queue::DescriptorHandler;
pub use wait::INFINITE;
