//! IAs over the VIA transport: what they report, names, connections, transfers and errors.

mod transfer;

use privileged_api::{EpAttributes, RcAttributes};

use crate::Test;

/// The areas of this folder, in the order in which they run.
pub(crate) const TESTS: &[&[Test]] = &[transfer::TESTS];

/// Attributes of an endpoint over VIA that the peer may read from and write to.
pub(crate) fn open() -> EpAttributes {
    EpAttributes {
        rc: RcAttributes { rdma_read_enable: true, rdma_write_enable: true, ..RcAttributes::default() },
        ..EpAttributes::default()
    }
}
