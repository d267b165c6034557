//! Paths and network addresses (pages it_get_pathinfo, it_convert_net_addr).

use alloc::vec::Vec;

use nic_abi::registers::Identity;
use roce::cm::redirection::Redirection;
use roce::cm::rej::Reason;

use crate::address::{IbNetEndpoint, NetAddr, NetAddrType, NetEndpoint, Path};
use crate::ep::connect::mtu_code;
use crate::ia::{Core, Ia, SPIGOT};
use crate::status::{Error, Result};

/// How long a connection establishment may take where the consumer says nothing else.
pub(crate) const DEFAULT_TIMEOUT_US: u64 = 10_000_000;
/// Packet lifetime on RoCE: 4.096 us * 2^14, 67 ms.
pub(crate) const PACKET_LIFETIME: u8 = 14;

/// The GID of an IPv4 address (RoCEv2: IPv4-mapped).
fn mapped(ipv4: [u8; 4]) -> [u8; 16] {
    let [a, b, c, d] = ipv4;
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

/// The IPv4 address in a GID, if it is a mapped one.
fn unmapped(gid: [u8; 16]) -> Option<[u8; 4]> {
    match gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Some([a, b, c, d]),
        _ => None,
    }
}

/// The GID that an address names, if it can be one node's.
fn gid(addr: &NetAddr) -> Result<[u8; 16]> {
    let gid = match addr {
        NetAddr::Ipv4(ipv4) => mapped(*ipv4),
        NetAddr::Ipv6(gid) | NetAddr::IbGid(gid) => *gid,
        NetAddr::ViaHostaddr(_) => return Err(Error::InvalidNetaddr),
    };
    let unicast = match unmapped(gid) {
        Some([first, ..]) => first != 0 && first < 224,
        None => gid != [0; 16] && gid[0] != 0xff,
    };
    if unicast { Ok(gid) } else { Err(Error::InvalidAddress) }
}

/// The port's GID from which one reaches that one: of the same kind. None if no node can have that GID, or the port has none of its kind.
pub(crate) fn local_gid_for(id: &Identity, remote: &[u8; 16]) -> Option<[u8; 16]> {
    gid(&NetAddr::IbGid(*remote)).ok()?;
    let same_kind =
        |local: &&[u8; 16]| **local != [0; 16] && unmapped(**local).is_some() == unmapped(*remote).is_some();
    id.gids.iter().find(same_kind).copied()
}

impl Core {
    /// Which of the port's GIDs this is.
    pub(crate) fn gid_index(&self, gid: &[u8; 16]) -> Option<u8> {
        let gids = &self.agent.identity().gids;
        gids.iter().position(|ours| ours == gid && *gid != [0; 16]).map(|index| index as u8)
    }

    /// The path that leads where a peer redirects to, otherwise like the one that was asked by. None if there is none.
    pub(crate) fn redirected(&self, asked: &Path, to: &Redirection) -> Option<Path> {
        let mut path = self.towards(asked, to.gid.0)?;
        let ib = path.ib_mut()?;
        (ib.sl, ib.traffic_class, ib.flow_label) = (to.sl, to.traffic_class, to.flow_label);
        if to.pkey.0 != 0 {
            ib.partition_key = to.pkey.0;
        }
        Some(path)
    }

    /// The path that a peer suggests who rejects the one that was asked by, in the information that goes with its reason (IBTA
    /// vol. 1 table 109). Where it says nothing that can be followed, the path stays the best guess.
    pub(crate) fn suggested(&self, asked: &Path, reason: u16, information: &[u8]) -> Path {
        self.suggestion(asked, Reason(reason), information).unwrap_or(*asked)
    }

    fn suggestion(&self, asked: &Path, reason: Reason, information: &[u8]) -> Option<Path> {
        match reason {
            Reason::PRIMARY_GID | Reason::PORT_REDIRECTION => {
                return self.towards(asked, *information.first_chunk()?);
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

    /// The same path to another port.
    fn towards(&self, asked: &Path, remote_port_gid: [u8; 16]) -> Option<Path> {
        let local_port_gid = local_gid_for(self.agent.identity(), &remote_port_gid)?;
        let mut path = *asked;
        let ib = path.ib_mut()?;
        (ib.local_port_gid, ib.remote_port_gid) = (local_port_gid, remote_port_gid);
        Some(path)
    }
}

impl Path {
    /// The incomplete path to the sender of a datagram, from the 40 bytes in front of it
    /// ([`DtoUdFlags::IB_GRH_PRESENT`](crate::DtoUdFlags::IB_GRH_PRESENT)): for [`Ia::address_handle_create`] without
    /// [`AhFlags::PATH_COMPLETE`](crate::AhFlags::PATH_COMPLETE). None if there are fewer bytes. An extension.
    pub fn of_sender(header: &[u8]) -> Option<Path> {
        let remote_port_gid = header.get(8..24)?.try_into().ok()?;
        header.get(..40)?;
        let remote = NetEndpoint::Ib(IbNetEndpoint { remote_port_gid, ..IbNetEndpoint::default() });
        Some(Path { remote, ..Path::default() })
    }
}

impl Ia {
    /// Finds paths to a network address: at most `num_paths` of them, and how many there are.
    ///
    /// There is one path to each address, by the port's GID of the same kind, and none while the port is down. Nobody is asked, so that the peer answers is
    /// not promised.
    ///
    /// Errors: `InvalidSpigot`, `InvalidAddress` (no node has this address), `InvalidNetaddr` (a type that is not known here), `InvalidIa`, `IaCatastrophe`.
    /// Does not block. Not for callbacks. Thread-safe. Page it_get_pathinfo.
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
        let remote_port_gid = gid(net_addr)?;
        let id = core.agent.identity();
        let local = local_gid_for(id, &remote_port_gid).filter(|_| core.agent.port_up());
        let Some(local_port_gid) = local else { return Ok((Vec::new(), 0)) };
        let path = Path {
            spigot_id,
            timeout: DEFAULT_TIMEOUT_US,
            remote: NetEndpoint::Ib(IbNetEndpoint {
                partition_key: 0xffff,
                path_mtu: mtu_code(id.mtu),
                packet_lifetime: PACKET_LIFETIME,
                local_port_gid,
                remote_port_gid,
                hop_limit: 64,
                ..IbNetEndpoint::default()
            }),
        };
        let paths = if num_paths == 0 { Vec::new() } else { Vec::from([path]) };
        Ok((paths, 1))
    }

    /// Converts a network address to another type: a GID has an IPv6 address, and an IPv4 address where it is a mapped one.
    ///
    /// Errors: `InvalidConversion`, `InvalidNetaddr` (the source's type is not known here), `InvalidAddress`, `InvalidIa`, `IaCatastrophe`. Does not
    /// block. Not for callbacks. Thread-safe. Page it_convert_net_addr.
    #[doc(alias = "it_convert_net_addr")]
    pub fn convert_net_addr(&self, source_addr: &NetAddr, addr_type: NetAddrType) -> Result<NetAddr> {
        let core = self.live()?;
        core.shared.not_in_callback()?;
        let gid = gid(source_addr)?;
        match addr_type {
            NetAddrType::Ipv4 => unmapped(gid).map(NetAddr::Ipv4).ok_or(Error::InvalidConversion),
            NetAddrType::Ipv6 => Ok(NetAddr::Ipv6(gid)),
            NetAddrType::IbGid => Ok(NetAddr::IbGid(gid)),
            NetAddrType::ViaHostaddr => Err(Error::InvalidConversion),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_addresses_are_mapped_gids() {
        let gid_of = gid(&NetAddr::Ipv4([10, 0, 0, 2])).unwrap();
        assert_eq!(unmapped(gid_of), Some([10, 0, 0, 2]));
        assert_eq!(gid(&NetAddr::IbGid(gid_of)), Ok(gid_of));
    }

    #[test]
    fn no_node_has_a_multicast_or_empty_address() {
        for addr in [NetAddr::Ipv4([224, 0, 0, 1]), NetAddr::Ipv4([0; 4]), NetAddr::IbGid([0; 16])] {
            assert_eq!(gid(&addr), Err(Error::InvalidAddress));
        }
    }
}
