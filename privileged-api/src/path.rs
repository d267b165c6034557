//! Paths and network addresses (pages it_get_pathinfo, it_convert_net_addr).

use alloc::vec::Vec;

use kernel_agent::gid_index;
use kernel_agent::wire::{Gid, Reason, Redirection};
use rdma::path_to;

use crate::address::{IbNetEndpoint, NetAddr, NetAddrType, NetEndpoint, Path};
use crate::dialect::Dialect;
use crate::ia::{Core, Ia, SPIGOT};
use crate::status::{Error, Result};

/// How long a connection establishment may take unless the consumer changes it.
pub(crate) const DEFAULT_TIMEOUT_US: u64 = 10_000_000;
/// Partition keys of the port's table, with and without full membership.
const PARTITION_KEYS: [u16; 2] = [0xffff, 0x7fff];

/// The GID that an address names, if a single node can have it.
fn gid(addr: &NetAddr, dialect: &dyn Dialect) -> Result<Gid> {
    let gid = match addr {
        NetAddr::Ipv4(ipv4) => Gid::from_ipv4((*ipv4).into()),
        NetAddr::Ipv6(gid) => Gid(*gid),
        own => dialect.own_gid(own)?,
    };
    if gid.is_unicast() { Ok(gid) } else { Err(Error::InvalidAddress) }
}

impl Core {
    /// Checks that a path begins at this port and fits into its bits; returns its InfiniBand part
    /// and the index of its local GID.
    pub(crate) fn check_path<'a>(&self, path: &'a Path) -> Result<(&'a IbNetEndpoint, u8)> {
        if path.spigot_id != SPIGOT {
            return Err(Error::InvalidSpigot);
        }
        let ib = path.ib().ok_or(Error::InvalidSourcePath)?;
        let source = gid_index(self.agent().identity(), Gid(ib.local_port_gid));
        // There are no LIDs on RoCE.
        let fits = PARTITION_KEYS.contains(&ib.partition_key) && ib.local_port_lid == 0 && ib.fits();
        source.filter(|_| fits).map(|index| (ib, index)).ok_or(Error::InvalidSourcePath)
    }

    /// The path to the port that a peer redirects to, otherwise like `asked`. None if no path leads
    /// there.
    pub(crate) fn redirected(&self, asked: &Path, to: &Redirection) -> Option<Path> {
        let mut path = self.towards(asked, to.gid)?;
        let ib = path.ib_mut()?;
        (ib.sl, ib.traffic_class, ib.flow_label) = (to.sl, to.traffic_class, to.flow_label);
        if to.pkey.0 != 0 {
            ib.partition_key = to.pkey.0;
        }
        Some(path)
    }

    /// The path that a peer suggests when it rejects `asked`, from the information that goes with
    /// its reason (IBTA vol. 1 table 109). `asked` itself if the information names no usable path.
    pub(crate) fn suggested(&self, asked: &Path, reason: Reason, information: &[u8]) -> Path {
        self.suggestion(asked, reason, information).unwrap_or(*asked)
    }

    fn suggestion(&self, asked: &Path, reason: Reason, information: &[u8]) -> Option<Path> {
        match reason {
            Reason::PRIMARY_GID | Reason::PORT_REDIRECTION => {
                return self.towards(asked, Gid(*information.first_chunk()?));
            }
            Reason::PORT_AND_CM_REDIRECTION => {
                return self.redirected(asked, &Redirection::parse(information).ok()?);
            }
            _ => {}
        }
        let mut path = *asked;
        let (ib, first) = (path.ib_mut()?, *information.first()?);
        match reason {
            Reason::PRIMARY_SL => ib.sl = first & 0xf,
            Reason::PRIMARY_TRAFFIC_CLASS => ib.traffic_class = first,
            Reason::PRIMARY_HOP_LIMIT => ib.hop_limit = first,
            Reason::PRIMARY_PACKET_RATE => ib.packet_rate = first & 0x3f,
            Reason::INVALID_PATH_MTU => ib.path_mtu = first,
            Reason::PRIMARY_FLOW_LABEL => {
                let [a, b, c] = *information.first_chunk()?;
                ib.flow_label = u32::from_be_bytes([0, a, b, c]) & 0xf_ffff;
            }
            _ => {}
        }
        Some(path)
    }

    /// The path to another port, otherwise like `asked`.
    fn towards(&self, asked: &Path, remote: Gid) -> Option<Path> {
        let there = path_to(self.agent().identity(), remote)?;
        let mut path = *asked;
        let ib = path.ib_mut()?;
        (ib.local_port_gid, ib.remote_port_gid) = (there.local_gid.0, there.remote_gid.0);
        Some(path)
    }
}

impl Path {
    /// The incomplete path to the sender of a datagram, from the 40 bytes in front of the datagram
    /// ([`DtoUdFlags::IB_GRH_PRESENT`](crate::DtoUdFlags::IB_GRH_PRESENT)), for
    /// [`Ia::address_handle_create`] without
    /// [`AhFlags::PATH_COMPLETE`](crate::AhFlags::PATH_COMPLETE). None if there are fewer bytes, or
    /// if they are neither a GRH (or IPv6 header), nor 20 bytes of any content and an IPv4 header
    /// behind them (IBTA annex A17). An extension.
    pub fn of_sender(header: &[u8]) -> Option<Path> {
        let remote_port_gid = rdma::sender_gid(header)?.0;
        let remote = NetEndpoint::Ib(IbNetEndpoint { remote_port_gid, ..IbNetEndpoint::default() });
        Some(Path { remote, ..Path::default() })
    }
}

impl Ia {
    /// Finds paths to a network address. Returns at most `num_paths` of them, and the number of all
    /// paths.
    ///
    /// There is one path to each address, from the port's GID of the same kind that shares the
    /// longest prefix with it, and none while the port is down. No message is sent to find it, so
    /// the peer need not be reachable. Without memory for it, the list is empty. On VIA the path
    /// has the host address of the remote end.
    ///
    /// Errors: `InvalidSpigot`, `InvalidAddress` (no node has this address), `InvalidNetaddr` (the
    /// type is not supported), `InvalidIa`, `IaCatastrophe`; `Interrupt` cannot happen, as there
    /// are no signals. Does not block. Not for callbacks. Thread-safe. Page it_get_pathinfo.
    #[doc(alias = "it_get_pathinfo")]
    pub fn get_pathinfo(
        &self,
        spigot_id: usize,
        net_addr: &NetAddr,
        num_paths: usize,
    ) -> Result<(Vec<Path>, usize)> {
        let core = self.live()?;
        core.shared.not_in_callback()?;
        if spigot_id != SPIGOT {
            return Err(Error::InvalidSpigot);
        }
        let remote = gid(net_addr, core.dialect)?;
        let id = core.agent().identity();
        let route = path_to(id, remote).filter(|_| core.agent().port_up());
        let Some(route) = route else { return Ok((Vec::new(), 0)) };
        let remote = core.dialect.net_endpoint(id, &route, net_addr);
        let path = Path { spigot_id, timeout: DEFAULT_TIMEOUT_US, remote };
        let mut paths = Vec::new();
        if num_paths > 0 && paths.try_reserve_exact(1).is_ok() {
            paths.push(path);
        }
        Ok((paths, 1))
    }

    /// Converts a network address to another type: each GID has an IPv6 address, and a GID that
    /// maps an IPv4 address also has that address.
    ///
    /// Errors: `InvalidConversion`, `InvalidNetaddr` (the source's type is not supported),
    /// `InvalidAddress`, `InvalidIa`, `IaCatastrophe`; `Interrupt` cannot happen, as there are no
    /// signals. Does not block. Not for callbacks. Thread-safe. Page it_convert_net_addr.
    #[doc(alias = "it_convert_net_addr")]
    pub fn convert_net_addr(&self, source_addr: &NetAddr, addr_type: NetAddrType) -> Result<NetAddr> {
        let core = self.live()?;
        core.shared.not_in_callback()?;
        let gid = gid(source_addr, core.dialect)?;
        match addr_type {
            NetAddrType::Ipv4 => {
                let ipv4 = gid.to_ipv4().ok_or(Error::InvalidConversion)?;
                Ok(NetAddr::Ipv4(ipv4.octets()))
            }
            NetAddrType::Ipv6 => Ok(NetAddr::Ipv6(gid.0)),
            own => core.dialect.own_net_addr(gid, own),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::infiniband::InfiniBand;

    #[test]
    fn ipv4_addresses_are_mapped_gids() {
        let gid_of = gid(&NetAddr::Ipv4([10, 0, 0, 2]), &InfiniBand).unwrap();
        assert_eq!(gid_of.to_ipv4().map(|ipv4| ipv4.octets()), Some([10, 0, 0, 2]));
        assert_eq!(gid(&NetAddr::IbGid(gid_of.0), &InfiniBand), Ok(gid_of));
    }

    #[test]
    fn the_sender_is_in_a_header_of_either_kind() {
        let sender = |header: &[u8]| Path::of_sender(header)?.ib().map(|ib| ib.remote_port_gid);
        let mut header = [0; 40];
        assert_eq!(sender(&header), None);
        header[20] = 0x45;
        header[32..36].copy_from_slice(&[10, 0, 0, 2]);
        assert_eq!(sender(&header), Some(Gid::from_ipv4([10, 0, 0, 2].into()).0));
        header[0] = 0x60;
        header[8..24].copy_from_slice(&[7; 16]);
        assert_eq!((sender(&header), sender(&header[..39])), (Some([7; 16]), None));
    }

    #[test]
    fn no_node_has_a_multicast_or_empty_address() {
        for addr in [NetAddr::Ipv4([224, 0, 0, 1]), NetAddr::Ipv4([0; 4]), NetAddr::IbGid([0; 16])] {
            assert_eq!(gid(&addr, &InfiniBand), Err(Error::InvalidAddress));
        }
    }
}
