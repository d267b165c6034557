//! DAT 2.0 for the privileged consumer, with the InfiniBand extensions (immediate data, atomics,
//! unreliable datagrams) and endpoints with shared receive queues.
//!
//! Boot code makes a [`Provider`]; a consumer opens an [`Ia`] on it with [`ia_open`] and calls
//! DAT's routines on it, without their prefix `dat_`: `dat_ep_post_send(ep, …)` is
//! [`Ia::ep_post_send`]. Searching the documentation for DAT's names works.
//!
//! - Handles are words that each call checks in constant time; a freed, foreign or null handle
//!   returns `InvalidHandle` with the subtype that the call names. A DAT handle is invalid in the
//!   other APIs, and theirs are invalid here.
//! - Output parameters are return values. An [`Error`] has DAT's return type and subtype;
//!   [`Error::as_raw`] is the number of `DAT_RETURN`. Queries take masks where DAT's do, and return
//!   all members.
//! - The numbers are those of the public DAT 2.0 headers; where uDAPL and kDAPL differ, uDAPL's.
//! - Posting and dequeuing neither allocate, wait, format nor take a lock that two queues share.
//!   All calls are thread-safe, freeing included. When a post returns, the consumer owns its
//!   segment list again, but not yet the memory.
//! - A CNO's agent runs in a thread of the stack. Calls that may wait fail there with
//!   `InvalidState`.
//! - When the device dies, all calls but [`Ia::ia_close`] return `InternalError`, and all waiters
//!   return.
//!
//! It stands on `rdma` and the agent, beside IT-API and VIPL. There is no registry of providers,
//! since boot code passes the [`Provider`]; `dat/provider` makes a provider library of it, which
//! the registry of C programs loads. Of the extensions there are InfiniBand's only, not iWARP's.
//!
//! What the DAT documents leave open is decided in docs/decisions/dat.md.
//!
//! The modules are `handle`, `ret` (errors), `flags`, `attr` and `event` (DAT's types and numbers),
//! `segment` (pieces of memory), `ia`, `pz`, `lmr`, `rmr`, `srq`, `evd`, `cno`, `ep` (the objects),
//! `raw` (regions of memory for which the caller answers), `cm` (service points and requests),
//! `datagrams` (resolving datagram endpoints), `address_handle` (where datagrams go), `extension`
//! (the extensions' posts), `completion` (what is posted with a request, and what its completion
//! means), `upcalls` (events of the agent), `context`, `error`.
#![no_std]

extern crate alloc;

mod address_handle;
mod attr;
mod cm;
mod cno;
mod completion;
mod context;
mod datagrams;
mod ep;
mod error;
mod evd;
mod event;
mod extension;
mod flags;
mod handle;
mod ia;
mod lmr;
mod objects;
mod provider;
mod pz;
mod raw;
mod ret;
mod rmr;
mod segment;
mod srq;
mod upcalls;

/// The address of an adapter: an IPv4 address, or an IPv6 address that is a GID.
#[doc(alias = "DAT_IA_ADDRESS_PTR")]
#[doc(alias = "DAT_SOCK_ADDR6")]
pub type IaAddress = core::net::IpAddr;

pub use attr::*;
pub use evd::WaitError;
pub use event::*;
pub use extension::{IbArguments, IbOp};
pub use flags::*;
pub use handle::{
    AhHandle, CnoHandle, CrHandle, EpHandle, EvdHandle, Handle, HandleType, IaHandle, LmrHandle, PspHandle,
    PzHandle, RmrHandle, RspHandle, SrqHandle,
};
pub use ia::{IB_EXTENSION_VERSION, Ia, ia_open};
pub use lmr::{Lmr, RegionDescription};
pub use objects::cno::Agent;
pub use platform::Privileged;
pub use provider::Provider;
pub use rdma::PrivateData;
pub use ret::*;
pub use segment::{LmrContext, LmrTriplet, RmrContext, RmrTriplet};
