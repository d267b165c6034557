//! The tests of the API for Rust programmers once more, over iWARP, and what differs there.

#![expect(unused_imports, dead_code, reason = "what only the tests for InfiniBand need")]

// Tests that are not for iWARP: `differs` has their like.
macro_rules! infiniband {
    ($($test:item)*) => {};
}

#[macro_use]
#[path = "../face/support.rs"]
mod support;

#[path = "../face/closing.rs"]
mod closing;
#[path = "../face/connections.rs"]
mod connections;
#[path = "../face/fast.rs"]
mod fast;
#[path = "../face/memory.rs"]
mod memory;
#[path = "../face/requests.rs"]
mod requests;
#[path = "../face/shared.rs"]
mod shared;
#[path = "../face/streams.rs"]
mod streams;
#[path = "../face/watch.rs"]
mod watch;

mod conversion;
mod differs;

/// The transport of the openings.
const TRANSPORT: ferrovia_rdma::Transport = ferrovia_rdma::Transport::Iwarp;
/// The most bytes of private data in a request for a connection.
const MOST_DATA: usize = 508;
