//! A remote memory region.

use alloc::sync::Arc;

use kernel_agent::Window;
use rdma::Context;

use super::pz::InZone;
use crate::handle::RmrHandle;

pub(crate) struct Rmr {
    pub(crate) handle: RmrHandle,
    pub(crate) zone: InZone,
    pub(crate) window: Arc<Window>,
    pub(crate) narrow: bool,
    pub(crate) context: Context,
}
