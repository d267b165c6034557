//! Address handles: the destinations of datagrams (pages it_address_handle_create,
//! it_address_handle_query, it_address_handle_modify, it_address_handle_free).
//!
//! A handle stands for an address vector. Each Send copies the vector into its work request, so a
//! posted Send does not need the handle any more. Modifying replaces the object in the table: a
//! Send that is posted at that moment uses the old or the new one.
//!
//! Locks: only the table entry's, shared while a Send is posted.

use alloc::sync::Arc;

use kernel_agent::wire::{Gid, PKey, PathMtu, QKey, Qpn};
use kernel_agent::{DatagramAddress, Features, datagram_address};
use platform::heap;
use rdma::Context;

use crate::address::{IbNetEndpoint, NetEndpoint, Path};
use crate::attributes::AddrParam;
use crate::flags::{AddrParamMask, AhFlags};
use crate::handle::{AddrHandle, PzHandle};
use crate::ia::{Core, Ia, SPIGOT};
use crate::objects::address_handle::{AddressHandle, Common};
use crate::status::{Error, Result};

impl Core {
    /// Checks a complete path; returns the address vector of datagrams along it.
    fn vector(&self, path: &Path) -> Result<DatagramAddress> {
        let (ib, source_gid) = self.check_path(path)?;
        let route = ib.path();
        if route.remote_gid.is_unspecified() {
            return Err(Error::InvalidSourcePath);
        }
        Ok(datagram_address(&route, source_gid, Qpn::default(), QKey(0)))
    }

    /// Completes an incomplete path. Its remote GID must be given: it alone names the node.
    fn completed(&self, path: &Path) -> Result<Path> {
        let given = path.ib().ok_or(Error::InvalidSourcePath)?;
        let id = self.agent().identity();
        let route = rdma::path_to(id, Gid(given.remote_port_gid)).ok_or(Error::InvalidSourcePath)?;
        let ib = IbNetEndpoint {
            sl: given.sl,
            remote_port_lid: given.remote_port_lid,
            ..IbNetEndpoint::new(&route, PKey::DEFAULT, PathMtu::at_most(id.mtu))
        };
        Ok(Path { spigot_id: SPIGOT, timeout: path.timeout, remote: NetEndpoint::Ib(ib) })
    }

    fn address_handle(&self, handle: AddrHandle) -> Result<Arc<AddressHandle>> {
        self.addrs.get(handle).ok_or(Error::InvalidAh)
    }

    /// Frees an address handle; false if another call freed it first.
    pub(crate) fn free_address_handle(&self, address: &AddressHandle) -> bool {
        let freed = self.addrs.remove(address.common.handle).is_some();
        if freed {
            address.common.zone.end();
        }
        freed
    }
}

impl Ia {
    /// Creates an address handle in a protection zone, for datagrams of endpoints in that zone.
    ///
    /// With [`AhFlags::PATH_COMPLETE`] the path is used as it is; a path from [`Ia::get_pathinfo`]
    /// is complete. Without it, only the path's destination and service level count, and the IA
    /// chooses the other members. That is meant for the sender of a received datagram, whose path
    /// [`Path::of_sender`](crate::Path::of_sender) makes. (RoCE has no LIDs, by which InfiniBand's
    /// incomplete paths name the sender; its GID is in the header in front of each datagram.)
    ///
    /// Members that count: `spigot_id`, `partition_key` (must be in the port's table), `sl`,
    /// `flow_label`, `hop_limit`, `traffic_class`, `local_port_gid`, `remote_port_gid`,
    /// `local_port_lid` (must be 0). `remote_port_lid`, `packet_rate` and `subnet_local` have no
    /// effect on RoCE, where each datagram has a GRH and is sent at the link's rate. Each member
    /// must fit into its bits.
    ///
    /// Errors: `InvalidPz`, `InvalidFlags`, `InvalidSpigot` (also if the IA lacks the UD service),
    /// `InvalidSourcePath` (also for a destination that no node can have), `Resources`,
    /// `InvalidIa`, `IaCatastrophe`; `NoPermission` cannot happen, as any consumer may send
    /// datagrams. Does not block. Not for callbacks. Thread-safe. Page it_address_handle_create.
    #[doc(alias = "it_address_handle_create")]
    pub fn address_handle_create(
        &self,
        pz: PzHandle,
        destination_path: &Path,
        ah_flags: AhFlags,
    ) -> Result<AddrHandle> {
        let core = self.call()?;
        core.shared.not_in_callback()?;
        let zone = core.enter_zone(pz)?;
        if AhFlags::from_bits(ah_flags.bits()).is_none() {
            return Err(Error::InvalidFlags);
        }
        if !core.features().contains(Features::UD) {
            return Err(Error::InvalidSpigot);
        }
        let path = match ah_flags.contains(AhFlags::PATH_COMPLETE) {
            true => *destination_path,
            false => core.completed(destination_path)?,
        };
        let vector = core.vector(&path)?;
        let reservation = core.addrs.reserve()?;
        let handle = reservation.handle();
        let common = heap::arc(Common { handle, zone, context: Context::new() });
        let common = common.map_err(|_| Error::Resources)?;
        let address = heap::arc(AddressHandle { vector, path, common });
        reservation.fill(address.map_err(|_| Error::Resources)?);
        Ok(handle)
    }

    /// Queries an address handle.
    ///
    /// Errors: `InvalidAh`, `InvalidMask`, `InvalidIa`, `IaCatastrophe`. Does not block.
    /// May be called in callbacks. Thread-safe. Page it_address_handle_query.
    #[doc(alias = "it_address_handle_query")]
    pub fn address_handle_query(&self, addr_handle: AddrHandle, mask: AddrParamMask) -> Result<AddrParam> {
        let core = self.live()?;
        let address = core.address_handle(addr_handle)?;
        if AddrParamMask::from_bits(mask.bits()).is_none() {
            return Err(Error::InvalidMask);
        }
        let wants = |bit| mask.intersects(bit | AddrParamMask::ALL);
        let mut param = AddrParam::default();
        if wants(AddrParamMask::IA) {
            param.ia = core.handle;
        }
        if wants(AddrParamMask::PZ) {
            param.pz = address.common.zone.handle;
        }
        if wants(AddrParamMask::PATH) {
            param.path = address.path;
        }
        Ok(param)
    }

    /// Changes the path of an address handle to another complete path. A Send that was posted keeps
    /// its destination; a Send that is posted at the same time has the old or the new destination.
    /// An empty mask changes nothing; `ALL` is refused, since not all attributes can be modified.
    ///
    /// Errors: `InvalidAh`, `InvalidMask`, `InvalidSpigot`, `InvalidSourcePath`, `InvalidIa`,
    /// `IaCatastrophe`; `NoPermission` cannot happen. Does not block. May be called in callbacks.
    /// Thread-safe. Page it_address_handle_modify.
    #[doc(alias = "it_address_handle_modify")]
    pub fn address_handle_modify(
        &self,
        addr_handle: AddrHandle,
        mask: AddrParamMask,
        params: &AddrParam,
    ) -> Result<()> {
        let core = self.live()?;
        let address = core.address_handle(addr_handle)?;
        if mask.bits() & !AddrParamMask::PATH.bits() != 0 {
            return Err(Error::InvalidMask);
        }
        if mask.is_empty() {
            return Ok(());
        }
        let path = params.path;
        let vector = core.vector(&path)?;
        let modified = heap::arc(AddressHandle { vector, path, common: address.common.clone() });
        let modified = modified.map_err(|_| Error::Resources)?;
        match core.addrs.replace(addr_handle, modified) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::InvalidAh),
        }
    }

    /// Frees an address handle. Sends that were posted with it keep their destination.
    ///
    /// Errors: `InvalidAh`, `InvalidIa`, `IaCatastrophe`. Does not block.
    /// May be called in callbacks. Thread-safe. Page it_address_handle_free.
    #[doc(alias = "it_address_handle_free")]
    pub fn address_handle_free(&self, addr_handle: AddrHandle) -> Result<()> {
        let core = self.call()?;
        let address = core.address_handle(addr_handle)?;
        if core.free_address_handle(&address) { Ok(()) } else { Err(Error::InvalidAh) }
    }
}
