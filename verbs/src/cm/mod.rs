//! Connections by `rdma_cm`: what C programs call by `librdmacm`, on the agent's connections.
//!
//! | module | subject |
//! |---|---|
//! | [`abi`] | structures and numbers, as `rdma/rdma_cma.h` has them |
//! | [`channel`] | event channels and events |
//! | [`identifier`] | identifiers, and their addresses |
//! | [`connection`] | listening, connecting, accepting, rejecting, disconnecting; datagram services |
//! | [`queue_pair`] | queue pairs of identifiers, with their completion queues |
//! | [`endpoint`] | identifiers whose calls wait |
//! | [`info`] | addresses by name |
//! | [`devices`] | the context that identifiers share |
//!
//! What the agent does by itself: it moves queue pairs, and confirms what a peer accepts. So a
//! queue pair that the program moves itself (`rdma_init_qp_attr`, `rdma_establish`) is not
//! connected: that is `EOPNOTSUPP`.
//!
//! Locks: the state of an identifier, before the names of its device, and before its queue of
//! events. The agent makes its upcalls without a lock of its own, so they may take these.

pub mod abi;
mod address;
pub mod channel;
pub mod connection;
pub mod devices;
pub mod endpoint;
pub mod identifier;
pub mod info;
pub mod queue_pair;
