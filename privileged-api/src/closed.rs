//! The reasons why a queue slot is closed, one bit each.

pub(crate) use rdma::events::closed::{CALLBACK, DISABLED, RESERVED};

/// The state of the endpoint takes no requests.
pub(crate) const STATE: u32 = RESERVED << 1;
