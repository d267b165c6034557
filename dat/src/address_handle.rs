//! Destinations of datagrams, which a consumer gets by resolving a remote endpoint.
//!
//! A handle stands for an address vector. Each Send copies the vector into its work request, so a
//! posted Send does not need the handle any more.

use kernel_agent::wire::{Path, QKey, Qpn};
use kernel_agent::{datagram_address, gid_index};
use rdma::Context;

use crate::error::parameter;
use crate::handle::AhHandle;
use crate::ia::Inner;
use crate::objects::address_handle::AddressHandle;
use crate::objects::pz::InZone;
use crate::ret::{Result, Subtype};

impl Inner {
    pub(crate) fn new_address(&self, zone: InZone, path: &Path) -> Result<AhHandle> {
        let index = gid_index(self.identity(), path.local_gid).ok_or(parameter(Subtype::None))?;
        let vector = datagram_address(path, index, Qpn::default(), QKey(0));
        let reservation = self.addresses.reserve()?;
        let handle = reservation.handle();
        let address = Inner::shared(AddressHandle { handle, vector, zone, context: Context::new() })?;
        Ok(reservation.fill(address))
    }

    /// Frees a handle, unless the consumer has freed it already.
    pub(crate) fn free_address(&self, address: AhHandle) {
        if let Some(address) = self.addresses.remove(address) {
            address.zone.end();
        }
    }
}
