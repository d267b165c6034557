//! A destination of datagrams.

use alloc::sync::Arc;

use kernel_agent::DatagramAddress;
use rdma::Context;

use super::pz::{InZone, Pz};
use crate::address::Path;
use crate::handle::AddrHandle;

/// The most address handles that an IA can have.
pub(crate) const MAX_ADDRESS_HANDLES: u32 = 4096;

pub(crate) struct AddressHandle {
    /// The address vector, except the queue pair and key of the destination.
    pub(crate) vector: DatagramAddress,
    pub(crate) path: Path,
    pub(crate) common: Arc<Common>,
}

/// The part of a handle that modifying does not change.
pub(crate) struct Common {
    pub(crate) handle: AddrHandle,
    pub(crate) zone: InZone,
    pub(crate) context: Context,
}

impl AddressHandle {
    pub(crate) fn context(&self) -> &Context {
        &self.common.context
    }

    /// Whether an endpoint in this zone may use the handle.
    pub(crate) fn is_in(&self, pz: &Pz) -> bool {
        self.common.zone.handle == pz.handle
    }

    /// The address vector of a datagram to this queue pair.
    #[inline(always)]
    pub(crate) fn to(&self, qpn: u32, qkey: u32) -> DatagramAddress {
        DatagramAddress { qpn, qkey, ..self.vector }
    }
}
