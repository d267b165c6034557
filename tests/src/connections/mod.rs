//! Connections: listen points, establishing, private data, RDMA Read depths, disconnecting.

use crate::Test;

mod arguments;
mod connect;
mod depths;
mod disconnect;
pub(crate) mod establish;
mod listen;
mod private_data;

/// The areas of this folder, in the order in which they run.
pub(crate) const TESTS: &[&[Test]] = &[
    connect::TESTS,
    arguments::TESTS,
    private_data::TESTS,
    disconnect::TESTS,
    listen::TESTS,
    depths::TESTS,
    establish::TESTS,
];
