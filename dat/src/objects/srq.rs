//! A shared receive queue.

use alloc::sync::Arc;

use rdma::Context;

use super::pz::InZone;
use crate::handle::SrqHandle;

/// A shared receive queue.
pub(crate) struct Srq {
    pub(crate) handle: SrqHandle,
    pub(crate) zone: InZone,
    pub(crate) srq: Arc<kernel_agent::Srq>,
    pub(crate) max_recv_iov: usize,
    pub(crate) context: Context,
}
