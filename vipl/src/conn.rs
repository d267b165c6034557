//! Connection requests that wait for an answer (VIP_CONN_HANDLE).

use kernel_agent::ConnectionId;
use kernel_agent::wire::ReadDepths;
use platform::SleepLock;
use platform::sync::atomic::AtomicBool;

use crate::attributes::ViAttributes;
use crate::handle::ConnHandle;

/// A client's request that VipConnectWait returned.
pub(crate) struct Conn {
    pub(crate) handle: ConnHandle,
    pub(crate) connection: ConnectionId,
    /// The attributes of the client's virtual interface.
    pub(crate) attributes: ViAttributes,
    /// The client's read depths.
    pub(crate) depths: ReadDepths,
    /// The client gave up.
    pub(crate) withdrawn: AtomicBool,
    /// Serializes the calls that answer it.
    pub(crate) turn: SleepLock,
}
