//! Connections by `rdma_cm`: what C programs call by `librdmacm`, on the agent's connections.
//!
//! | module | subject |
//! |---|---|
//! | [`abi`] | structures and numbers, as `rdma/rdma_cma.h` has them |
//! | [`channel`] | event channels and events |
//! | [`identifier`] | identifiers, and their addresses |
//! | `listening` | listening points, which outlive the identifiers that listen by a moment |
//! | [`connection`] | listening, connecting, accepting, rejecting, disconnecting; datagram services |
//! | [`queue_pair`] | queue pairs of identifiers, with their completion queues |
//! | [`attributes`] | what a program is told that moves its queue pair itself |
//! | [`endpoint`] | identifiers whose calls wait |
//! | [`info`] | addresses by name |
//! | [`multicast`] | multicast groups of identifiers |
//! | [`devices`] | the context that identifiers share |
//!
//! The agent moves the queue pairs of identifiers until their peers disconnect, and confirms what a
//! peer accepts. A program whose identifier has no queue pair names one of the same context by its
//! number, moves it itself (`rdma_init_qp_attr`), and confirms (`rdma_establish`).
//!
//! Locks: the state of an identifier, before the names of its device, and before its queue of
//! events. The agent makes its upcalls without a lock of its own, so they may take these.

pub mod abi;
mod address;
pub mod attributes;
pub mod channel;
pub mod connection;
pub mod devices;
pub mod endpoint;
pub mod identifier;
pub mod info;
mod listening;
pub mod multicast;
pub mod queue_pair;
