//! A remote memory region.

use alloc::sync::Arc;

use kernel_agent::Window;
use rdma::Context;

use super::pz::InZone;
use crate::handle::RmrHandle;

/// A remote memory region, which is a window of the device.
pub(crate) struct Rmr {
    pub(crate) handle: RmrHandle,
    pub(crate) zone: InZone,
    pub(crate) window: Arc<Window>,
    pub(crate) context: Context,
}
