//! The verbs: what C programs call by `libibverbs`, on the agent of a NIC.
//!
//! A fourth face on [`rdma`], beside IT-API, DAT and VIPL. Its calls have the names, arguments and
//! errors of rdma-core's libibverbs; its structures have their layout ([`abi`]). It is for an
//! ordinary process with std: the NICs are given to it by [`provide`]. The package `library` makes
//! a shared library of it, with a NIC in the same process, which programs load in place of
//! rdma-core's.
//!
//! | module | subject |
//! |---|---|
//! | [`abi`] | structures and numbers, as `infiniband/verbs.h` has them |
//! | [`device`] | the list of devices; opening and closing; what a device and its port can do |
//! | [`memory`] | protection domains, memory regions, memory windows |
//! | [`channel`] | completion channels; asynchronous events |
//! | [`cq`], [`cq_ex`] | completion queues; those that are read field by field |
//! | [`srq`], [`ah`] | shared receive queues, address handles |
//! | [`qp`], [`post`] | queue pairs and their states; posts |
//! | [`qp_ex`] | posts by a call for each request, and one for all |
//! | [`words`] | names of statuses and events, rates |
//! | [`cm`] | connections by `rdma_cm`: what programs call by `librdmacm` |
//! | [`missing`] | the calls that it does not have |
//!
//! What it does not do: all that needs hardware of one kind. These calls return `EOPNOTSUPP`, or
//! are not announced.
//!
//! # Safety
//!
//! The calls are C's: each believes the pointers that it is given, and no call begins with an
//! object that was destroyed. One that another thread has begun may go on (`gone`). Nothing else is
//! believed: masks, states, numbers and sizes are checked. Memory that is registered stays mapped
//! until it is deregistered.
//!
//! Locks: that of a queue of events (`queue`) before that of an object's count of events
//! (`unacknowledged`). Those by which a queue is found (`cq::Events::channel`, `AsyncQueue::open`)
//! are not held beside another.
#![deny(missing_docs)]

pub mod abi;
pub mod ah;
pub mod channel;
pub mod cm;
pub mod cq;
pub mod cq_ex;
pub mod device;
mod errno;
mod gid;
mod gone;
pub mod memory;
pub mod missing;
mod object;
mod opening;
mod origin;
pub mod post;
mod present;
pub mod qp;
pub mod qp_ex;
pub mod srq;
mod stepped;
mod turn;
pub mod words;

pub use device::{Nic, provide};
pub use gid::gids;
pub use stepped::Stepped;

/// Forgets all devices and contexts: the process is a child of the one that opened them, and has no
/// threads of theirs. See [`device::forget`].
pub fn forget() {
    origin::forked();
    cm::devices::forget();
    device::forget();
}
