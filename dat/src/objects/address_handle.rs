//! A destination of datagrams.

use alloc::sync::Arc;

use kernel_agent::DatagramAddress;
use rdma::Context;

use super::pz::InZone;
use crate::handle::AhHandle;

/// The most address handles that an IA can have.
pub(crate) const MAX_ADDRESS_HANDLES: u32 = 4096;

pub(crate) struct AddressHandle {
    pub(crate) handle: AhHandle,
    /// The address vector, except the queue pair and key of the destination.
    pub(crate) vector: DatagramAddress,
    pub(crate) zone: InZone,
    pub(crate) context: Context,
}

impl AddressHandle {
    /// The address vector of a datagram to this queue pair, for an endpoint in this zone.
    #[inline(always)]
    pub(crate) fn to(&self, qpn: u32, qkey: u32, zone: &InZone) -> Option<DatagramAddress> {
        let same = Arc::ptr_eq(self.zone.shared(), zone.shared());
        same.then_some(DatagramAddress { qpn, qkey, ..self.vector })
    }
}
