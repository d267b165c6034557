//! IT-API 2.1 (The Open Group, 2006) for the privileged consumer, on the VIA Kernel Agent.
//!
//! Boot code makes a [`Provider`], adds the agent of each NIC, and passes the provider to
//! consumers. A consumer creates an [`Ia`] and calls the specification's routines on it, without
//! their prefix `it_`: `it_post_send(ep, …)` is [`Ia::post_send`]. Searching the documentation for
//! the specification's names works.
//!
//! - Handles are words that each call checks in constant time; a freed, foreign or null handle
//!   returns the error that the page names.
//! - Output parameters are return values, `IT_NO_ADDR` is `None`, return codes are [`Error`] with
//!   the header's numbers.
//! - Privilege is the [`Privileged`] token given to [`Provider::ia_create`]; without it each
//!   privileged call fails as its page says.
//! - Posting and dequeuing neither allocate, wait, format nor take a lock that two queues share.
//!   All calls are thread-safe, freeing included (more than the model "strongly thread safe" of
//!   chapter 4.2 asks).
//! - Callbacks run in the agent's dispatcher thread or the IA's callback thread, never inside a
//!   call. For one event dispatcher at most one callback runs at a time.
//! - When the device dies, the IA is disabled: all calls but [`Ia::ia_free`] return
//!   `IaCatastrophe`, and all waiters return.
//!
//! An IA is over InfiniBand, VIA or iWARP, as its interface is; what a transport lacks, the calls
//! refuse. Consumers
//! are code of the kernel: a process in user mode has no way to these calls. The agent
//! (`kernel-agent`) owns the NIC's resources and makes the connections. DAT is in `dat`, VIPL in
//! `vipl`.
//!
//! docs/embed.md says how to bring the stack into a kernel. A whole program is the example `hello`
//! of the crate `ferrovia`.
//!
//! Where the specification leaves a choice, the documentation of the call states the choice made
//! here; docs/decisions lists all choices.
//!
//! `ia` has the interface adapter, which owns the objects of `objects` in tables. The calls, and
//! what happens to the objects, are in the modules beside these: `evd` (events), `ep` (endpoints,
//! their state machine and the data path), `srq` (Receives shared by endpoints), `address_handle`
//! and `ud_service` (destinations of datagrams), `pz`, `lmr`, `rmr` and `mem_map` (memory),
//! `listen` and `cm` (connections), `upcalls` (events of the agent), `via` (IAs over VIA).
//! Handle words, object tables, queue slots, event queues, the life of an IA and callback threads
//! are in `rdma`.

#![no_std]

extern crate alloc;

mod address;
mod address_handle;
mod attributes;
mod closed;
mod cm;
mod context;
mod dialect;
mod ep;
mod evd;
mod event;
mod flags;
mod handle;
mod ia;
mod info;
mod iobl;
mod iwarp;
mod listen;
mod lmr;
mod mem_map;
mod objects;
mod path;
mod private_data;
mod provider;
mod pz;
mod rmr;
mod socket;
mod srq;
mod status;
mod ud_service;
mod upcalls;
mod via;

pub use address::*;
pub use attributes::*;
pub use ep::atomic::AtomicOp;
pub use ep::borrowed::{Batch, EpRef};
pub use evd::attached::EvdCallback;
pub use evd::forms::{ExtendedEvent, WaitFor};
pub use evd::posted::Posted;
pub use evd::{Notification, WaitError};
pub use event::*;
pub use flags::*;
pub use handle::{
    AddrHandle, EpHandle, EvdHandle, Handle, HandleType, IaHandle, ListenHandle, LmrHandle, PzHandle,
    RmrHandle, SrqHandle, UdSvcReqHandle,
};
pub use ia::Ia;
pub use info::*;
pub use iobl::*;
pub use kernel_agent::{Features, Identity, Immediate};
pub use lmr::LmrMemory;
pub use mem_map::ASPACE_KERNEL;
pub use platform::Privileged;
pub use provider::Provider;
pub use rdma::Limits;
pub use status::{Error, Result};
