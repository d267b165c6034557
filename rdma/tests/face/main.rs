//! The API for Rust programmers: what it promises about memory, ends, errors and drops.

// Tests of what iWARP does otherwise, or does not have: datagrams, atomic operations, immediate
// data, messages that wait for a Receive, and a request that fails when the peer refuses it.
macro_rules! infiniband {
    ($($test:item)*) => { $($test)* };
}

#[macro_use]
mod support;

mod closing;
mod connections;
mod datagrams;
mod fast;
mod memory;
mod requests;
mod shared;
mod streams;
mod watch;

/// The transport of the openings. The tests in `iwarp` beside these are the same files.
const TRANSPORT: ferrovia_rdma::Transport = ferrovia_rdma::Transport::InfiniBand;
/// The most bytes of private data in a request for a connection.
const MOST_DATA: usize = 92;
