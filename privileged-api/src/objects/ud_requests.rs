//! The consumer's own requests for datagram services, by handle.

use core::sync::atomic::AtomicBool;

use kernel_agent::ResolutionId;
use rdma::Context;

use super::evd::Feed;
use crate::address::{ConnQual, Path, PrivateData};
use crate::handle::UdSvcReqHandle;

/// The most request handles that an IA can have.
pub(crate) const MAX_REQUESTS: u32 = 1024;

/// A request handle.
pub(crate) struct UdSvcReq {
    pub(crate) handle: UdSvcReqHandle,
    pub(crate) feed: Feed,
    pub(crate) qual: ConnQual,
    pub(crate) path: Path,
    pub(crate) private_data: PrivateData,
    /// The agent's id of the resolution.
    pub(crate) id: ResolutionId,
    pub(crate) request_id: u32,
    /// An event reports that no reply came to the last request.
    pub(crate) reports_timeout: AtomicBool,
    pub(crate) context: Context,
}
