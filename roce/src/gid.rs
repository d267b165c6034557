//! Global identifiers, which name ports (IBTA vol. 1 section 4.1.1; on RoCEv2 a GID is an IP
//! address, annex A17.2).

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A 128-bit GID in network byte order. With RoCEv2 it is an IPv6 address, an IPv4 one being mapped
/// (`::ffff:a.b.c.d`).
#[derive(
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(transparent)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// All zeroes: no port.
    pub const UNSPECIFIED: Gid = Gid([0; 16]);

    /// The GID of an IPv4 address.
    pub const fn from_ipv4(addr: Ipv4Addr) -> Gid {
        Gid(addr.to_ipv6_mapped().octets())
    }

    /// The GID of an IPv6 address.
    pub const fn from_ipv6(addr: Ipv6Addr) -> Gid {
        Gid(addr.octets())
    }

    /// The IPv4 address that the GID maps, if it maps one.
    pub const fn to_ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from_octets(self.0).to_ipv4_mapped()
    }

    /// The GID's IP address.
    pub fn to_ip(self) -> IpAddr {
        match self.to_ipv4() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(Ipv6Addr::from_octets(self.0)),
        }
    }

    /// Whether a single node can have it: neither unspecified nor a multicast address.
    pub fn is_unicast(self) -> bool {
        match self.to_ipv4().map(|ipv4| ipv4.octets()) {
            Some([first, ..]) => first != 0 && first < 224,
            None => !self.is_unspecified() && self.0[0] != 0xff,
        }
    }

    /// Whether it is [`Gid::UNSPECIFIED`].
    pub fn is_unspecified(self) -> bool {
        self == Gid::UNSPECIFIED
    }
}

impl From<IpAddr> for Gid {
    fn from(addr: IpAddr) -> Gid {
        match addr {
            IpAddr::V4(v4) => Gid::from_ipv4(v4),
            IpAddr::V6(v6) => Gid::from_ipv6(v6),
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from_octets(self.0), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn an_ipv4_address_is_mapped_and_recovered() {
        let gid = Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, 2));
        assert_eq!(gid.0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2]);
        assert_eq!(gid.to_ipv4(), Some(Ipv4Addr::new(10, 0, 0, 2)));
        assert_eq!(gid.to_string(), "::ffff:10.0.0.2");
        assert_eq!(Gid::from(gid.to_ip()), gid);
    }

    #[test]
    fn a_link_local_address_is_no_ipv4_address() {
        let addr: Ipv6Addr = "fe80::5054:ff:fe12:3401".parse().unwrap();
        assert_eq!(Gid::from_ipv6(addr).to_ipv4(), None);
        assert_eq!(Gid::from_ipv6(addr).to_ip(), IpAddr::V6(addr));
        assert!(Gid::default().is_unspecified());
    }

    #[test]
    fn unicast_addresses_are_neither_unspecified_nor_those_of_groups() {
        for (addr, is_unicast) in [
            ("::", false),
            ("::1", true),
            ("fe80::1", true),
            ("feff::1", true),
            ("ff00::", false),
            ("ff02::1", false),
            ("::ffff:0.0.0.0", false),
            ("::ffff:0.1.2.3", false),
            ("::ffff:1.0.0.0", true),
            ("::ffff:223.255.255.255", true),
            ("::ffff:224.0.0.1", false),
            ("::ffff:255.255.255.255", false),
        ] {
            assert_eq!(Gid::from_ipv6(addr.parse().unwrap()).is_unicast(), is_unicast, "{addr}");
        }
    }
}
