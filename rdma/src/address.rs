//! Where a peer is, and what it offers: addresses of ports, services, and the path to a port.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;

use kernel_agent::Identity;
use roce::{Gid, ServiceId, TimeoutCode};

/// The address of a port: a GID, which is an IPv6 address or an IPv4 address mapped into one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Address(Gid);

impl Address {
    pub(crate) const fn of(gid: Gid) -> Address {
        Address(gid)
    }

    pub(crate) const fn gid(self) -> Gid {
        self.0
    }

    /// The address as IP has it.
    pub fn to_ip(self) -> IpAddr {
        self.0.to_ip()
    }
}

impl From<Ipv4Addr> for Address {
    fn from(address: Ipv4Addr) -> Address {
        Address(Gid::from_ipv4(address))
    }
}

impl From<Ipv6Addr> for Address {
    fn from(address: Ipv6Addr) -> Address {
        Address(Gid::from_ipv6(address))
    }
}

impl From<IpAddr> for Address {
    fn from(address: IpAddr) -> Address {
        match address {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => address.into(),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_ip().fmt(f)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_ip().fmt(f)
    }
}

/// What a listener, or an endpoint for datagrams, offers. A number is a port of the connection
/// manager of rdma-core (`RDMA_PS_TCP` and, for datagrams, `RDMA_PS_UDP`), so Linux's programs find
/// it. As with sockets, both may have the same port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Service(Named);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Named {
    Port(u16),
    Id(ServiceId),
}

impl Service {
    /// The service of an IT-API consumer at an IANA port.
    pub const fn it_api(port: u16) -> Service {
        Service(Named::Id(ServiceId::it_api(port)))
    }

    /// A service ID of InfiniBand.
    pub const fn id(id: u64) -> Service {
        Service(Named::Id(ServiceId(id)))
    }

    /// The service ID of connections.
    pub(crate) const fn of_connections(self) -> ServiceId {
        self.of(ServiceId::TCP)
    }

    /// The service ID of datagrams.
    pub(crate) const fn of_datagrams(self) -> ServiceId {
        self.of(ServiceId::UDP)
    }

    const fn of(self, protocol: u8) -> ServiceId {
        match self.0 {
            Named::Port(port) => ServiceId::ip_cm(protocol, port),
            Named::Id(id) => id,
        }
    }
}

impl From<u16> for Service {
    fn from(port: u16) -> Service {
        Service(Named::Port(port))
    }
}

/// The bytes in front of a received datagram.
pub(crate) const HEADER: usize = 40;

/// The address of the sender of a datagram, from the 40 bytes in front of it. None if there are
/// fewer, or if they are neither a GRH (or IPv6 header), nor 20 bytes of any content and an IPv4
/// header behind them (IBTA annex A17).
pub fn sender_gid(header: &[u8]) -> Option<Gid> {
    let header: &[u8; HEADER] = header.first_chunk()?;
    match (header[0] >> 4, header[20]) {
        (6, _) => Some(Gid(*header[8..].first_chunk()?)),
        (_, 0x45) => Some(Gid::from_ipv4((*header[32..].first_chunk::<4>()?).into())),
        _ => None,
    }
}

/// The address for peers of a port with these GIDs: the first that the host gave it, or else the
/// link-local one that every port has.
pub fn own_gid(gids: &[[u8; 16]]) -> Gid {
    let [link_local, addresses @ ..] = gids else { return Gid::UNSPECIFIED };
    let given = addresses.iter().find(|gid| **gid != [0; 16]);
    Gid(*given.unwrap_or(link_local))
}

/// The path from the port with this identity to a remote port. None if no node can have the remote
/// GID, or the port has no GID of its kind.
pub fn path_to(identity: &Identity, remote: Gid) -> Option<roce::Path> {
    let local = nearest(&identity.gids, remote).filter(|_| remote.is_unicast())?;
    Some(roce::Path::new(local, remote))
}

/// Of a port's GIDs, the one from which it reaches a remote GID: of the GIDs of the same kind (IPv4
/// or IPv6), the first that shares the longest prefix with the remote one. The peer answers to that
/// GID, and may have no route to one of another subnet.
fn nearest(gids: &[[u8; 16]], remote: Gid) -> Option<Gid> {
    let same_kind =
        |local: &Gid| !local.is_unspecified() && local.to_ipv4().is_some() == remote.to_ipv4().is_some();
    let differs_at =
        |local: &Gid| (u128::from_be_bytes(local.0) ^ u128::from_be_bytes(remote.0)).leading_zeros();
    // Of equal ones, `max_by_key` returns the last.
    gids.iter().rev().copied().map(Gid).filter(same_kind).max_by_key(differs_at)
}

/// Timeout and retries of a CM message so that the whole attempt takes about as long as the path
/// says.
pub fn attempts(timeout_us: u64) -> (TimeoutCode, u8) {
    let ticks = Duration::from_micros(timeout_us).as_nanos() / TimeoutCode::default().duration().as_nanos();
    // At least eight attempts, if the timeout is long enough for that.
    let code = (0..31).rev().find(|code| ticks >> code >= 8).unwrap_or(0);
    let attempts = (ticks >> code).clamp(1, 16);
    (TimeoutCode::from_low_bits(code), (attempts - 1) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_begins_at_the_address_in_the_subnet_of_the_peer() {
        let of = |address: &str| match address.parse::<core::net::IpAddr>().unwrap() {
            core::net::IpAddr::V4(v4) => Gid::from_ipv4(v4),
            core::net::IpAddr::V6(v6) => Gid(v6.octets()),
        };
        let local = ["fe80::1", "10.0.0.1", "192.168.5.1", "fd00::1", "10.0.7.1", "::"].map(|gid| of(gid).0);
        for (remote, from) in [
            ("10.0.0.2", "10.0.0.1"),
            ("10.0.7.9", "10.0.7.1"),
            ("192.168.5.200", "192.168.5.1"),
            ("fd00::2", "fd00::1"),
            ("fe80::2", "fe80::1"),
            // As far from all.
            ("172.16.0.1", "192.168.5.1"),
            ("2001:db8::1", "fe80::1"),
            ("10.0.4.1", "10.0.7.1"),
        ] {
            assert_eq!(nearest(&local, of(remote)), Some(of(from)), "{remote}");
        }
        assert_eq!(nearest(&local[..1], of("10.0.0.2")), None);
        assert_eq!(nearest(&local[1..3], of("fd00::2")), None);
    }

    #[test]
    fn the_address_is_one_that_the_host_gave_or_the_link_local_one() {
        assert_eq!(own_gid(&[[1; 16], [2; 16], [0; 16]]), Gid([2; 16]));
        assert_eq!(own_gid(&[[1; 16], [0; 16], [3; 16]]), Gid([3; 16]));
        assert_eq!(own_gid(&[[1; 16], [0; 16]]), Gid([1; 16]));
    }

    #[test]
    fn attempts_together_take_about_the_paths_timeout() {
        for timeout in [1_000, 50_000, 1_000_000, 10_000_000, 600_000_000] {
            let (each, retries) = attempts(timeout);
            let took = each.duration().as_micros() as u64 * (u64::from(retries) + 1);
            assert!(took <= timeout && took >= timeout * 4 / 5, "{took} of {timeout} us");
        }
        assert_eq!(attempts(0).1, 0);
    }
}
