//! Data transfer on a connection: Send and Receive, RDMA Write and RDMA Read, and extensions of the
//! API for other faces.

use crate::Test;

mod batches;
mod direct;
mod extensions;
mod flags;
mod immediate;
mod order;
pub(crate) mod posting;
mod transfer;

/// The areas of this folder, in the order in which they run.
pub(crate) const TESTS: &[&[Test]] = &[
    transfer::TESTS,
    order::TESTS,
    flags::TESTS,
    direct::TESTS,
    posting::TESTS,
    batches::TESTS,
    immediate::TESTS,
    extensions::TESTS,
];
