//! A listen point.

use kernel_agent::{ListenId, wire};
use platform::sync::Mutex;
use rdma::Context;

use super::evd::Feed;
use crate::address::ConnQual;
use crate::handle::ListenHandle;

pub(crate) struct Listen {
    pub(crate) handle: ListenHandle,
    pub(crate) qual: ConnQual,
    pub(crate) service: wire::ServiceId,
    pub(crate) feed: Feed,
    /// The agent's id; none until the agent listens.
    pub(crate) id: Mutex<Option<ListenId>>,
    pub(crate) context: Context,
}
