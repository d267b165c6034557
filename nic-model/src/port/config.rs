//! The port's configuration, and what follows from it.

use alloc::vec::Vec;
use core::net::Ipv6Addr;

use platform::Secret;
use roce::wire::ethernet;
use roce::{IpPrefix, PathMtu};
use thiserror::Error;

/// The most addresses of a port besides the link-local one.
pub const MAX_ADDRESSES: usize = 15;
/// The smallest MTU of a link: packets with the smallest path MTU fit.
pub const MIN_MTU: u32 = PathMtu::B256.bytes() + OVERHEAD;
/// The largest MTU of a link, which is the largest value of IPv4's length field.
pub const MAX_MTU: u32 = 65_535;

/// The largest number of a VLAN.
pub const MAX_VLAN: u16 = ethernet::Repr::MAX_VLAN;

/// The most bytes of a packet besides its payload, on IPv6: its headers IPv6, UDP, BTH, RETH and
/// immediate data, and the ICRC.
const OVERHEAD: u32 = 40 + 8 + 12 + 16 + 4 + 4;

/// The configuration of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The MAC: see [`mac_of`].
    pub mac: [u8; 6],
    /// The link-local address, GID 0.
    pub link_local: Ipv6Addr,
    /// The VLAN that the port is of, 1 to [`MAX_VLAN`]: it sends frames with its tag, and takes no
    /// others. `None`: it sends frames without a tag.
    pub vlan: Option<u16>,
    /// The largest IP packet of the link, [`MIN_MTU`] to [`MAX_MTU`].
    pub mtu: u32,
    /// The addresses, GID 1 and the following; [`MAX_ADDRESSES`] at most.
    pub addresses: Vec<IpPrefix>,
    /// A key that peers do not know. It decides which senders share a limit: a peer that
    /// knew it could use up the answers of another one.
    pub secret: Secret,
}

/// Why a configuration is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// The MAC is a group address, or zero.
    #[error("the MAC names no single port")]
    Mac,
    /// The address is not link-local.
    #[error("the link-local address is not in fe80::/64")]
    LinkLocal,
    /// The MTU is out of range.
    #[error("an MTU of {0} is not from {MIN_MTU} to {MAX_MTU}")]
    Mtu(u32),
    /// The number is not a VLAN's.
    #[error("a VLAN has a number from 1 to {MAX_VLAN}, and {0} is none")]
    Vlan(u16),
    /// There are too many addresses.
    #[error("a port has {MAX_ADDRESSES} addresses at most")]
    TooMany,
    /// An address is there twice.
    #[error("the address {0} is there twice")]
    Twice(IpPrefix),
}

impl Config {
    /// The configuration of the port of the node with this GUID, from which MAC and link-local
    /// address are derived. It is of no VLAN, and its secret is none, for the maker to replace.
    pub fn new(node_guid: u64, mtu: u32, addresses: &[IpPrefix]) -> Config {
        let link_local = Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(node_guid));
        let mac = mac_of(node_guid);
        Config { mac, link_local, vlan: None, mtu, addresses: addresses.into(), secret: Secret::default() }
    }

    /// Checks the configuration and returns the MTU.
    pub(super) fn check(&self) -> Result<usize, ConfigError> {
        if !super::is_unicast(self.mac) {
            return Err(ConfigError::Mac);
        }
        if self.link_local.to_bits() >> 64 != 0xfe80 << 48 {
            return Err(ConfigError::LinkLocal);
        }
        if !(MIN_MTU..=MAX_MTU).contains(&self.mtu) {
            return Err(ConfigError::Mtu(self.mtu));
        }
        if let Some(vlan) = self.vlan.filter(|vlan| !(1..=MAX_VLAN).contains(vlan)) {
            return Err(ConfigError::Vlan(vlan));
        }
        if self.addresses.len() > MAX_ADDRESSES {
            return Err(ConfigError::TooMany);
        }
        for (n, address) in self.addresses.iter().enumerate() {
            let same = |other: &IpPrefix| other.address() == address.address();
            if self.addresses[..n].iter().any(same) || address.address() == self.link_local {
                return Err(ConfigError::Twice(*address));
            }
        }
        Ok(self.mtu as usize)
    }
}

/// The MAC of a node: bytes 0 to 2 and 5 to 7 of its GUID, without the two bytes that an EUI-64
/// inserts in the middle of a MAC. The bit of local administration is set and the group bit is
/// clear, since no manufacturer assigned this MAC.
pub const fn mac_of(node_guid: u64) -> [u8; 6] {
    let [a, b, c, _, _, d, e, f] = node_guid.to_be_bytes();
    [a & !0x01 | 0x02, b, c, d, e, f]
}

/// The largest path MTU whose packets fit into a link's MTU, with the longest headers.
pub const fn path_mtu(mtu: u32) -> Option<PathMtu> {
    match mtu.checked_sub(OVERHEAD) {
        Some(payload) if payload >= PathMtu::B256.bytes() => Some(PathMtu::at_most(payload)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use super::*;

    fn prefix(last: u8) -> IpPrefix {
        IpPrefix::new(IpAddr::from([10, 0, 0, last]), 24).unwrap()
    }

    #[test]
    fn a_mac_is_local_names_one_port_and_follows_the_guid() {
        assert_eq!(mac_of(0x0266_65ff_fe72_0001), [0x02, 0x66, 0x65, 0x72, 0x00, 0x01]);
        assert_eq!(mac_of(0xff00_0000_0000_00ff), [0xfe, 0, 0, 0, 0, 0xff]);
        assert_eq!(mac_of(0), [0x02, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn the_path_mtu_leaves_room_for_all_headers() {
        for (mtu, path) in [
            (339, None),
            (340, Some(PathMtu::B256)),
            (1107, Some(PathMtu::B512)),
            (1108, Some(PathMtu::B1024)),
            (1500, Some(PathMtu::B1024)),
            (4179, Some(PathMtu::B2048)),
            (4180, Some(PathMtu::B4096)),
            (4200, Some(PathMtu::B4096)),
            (65_535, Some(PathMtu::B4096)),
        ] {
            assert_eq!(path_mtu(mtu), path, "{mtu}");
        }
        assert_eq!(MIN_MTU, 340);
    }

    #[test]
    fn what_is_no_configuration_is_refused() {
        let good = Config::new(0x0266_65ff_fe72_0001, 1500, &[prefix(1)]);
        assert_eq!(good.check(), Ok(1500));
        assert_eq!(Config { mac: [1, 0, 0, 0, 0, 0], ..good.clone() }.check(), Err(ConfigError::Mac));
        assert_eq!(Config { mac: [0; 6], ..good.clone() }.check(), Err(ConfigError::Mac));
        let other = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
        assert_eq!(Config { link_local: other, ..good.clone() }.check(), Err(ConfigError::LinkLocal));
        for mtu in [0, MIN_MTU - 1, MAX_MTU + 1] {
            assert_eq!(Config { mtu, ..good.clone() }.check(), Err(ConfigError::Mtu(mtu)));
        }
        for vlan in [0, 4095, u16::MAX] {
            let config = Config { vlan: Some(vlan), ..good.clone() };
            assert_eq!(config.check(), Err(ConfigError::Vlan(vlan)));
        }
        for vlan in [1, 4094] {
            assert_eq!(Config { vlan: Some(vlan), ..good.clone() }.check(), Ok(1500));
        }
        let twice = [prefix(1), prefix(2), prefix(1)];
        assert_eq!(
            Config { addresses: twice.into(), ..good.clone() }.check(),
            Err(ConfigError::Twice(prefix(1)))
        );
        let many: Vec<_> = (1..=16).map(prefix).collect();
        assert_eq!(Config { addresses: many[..15].into(), ..good.clone() }.check(), Ok(1500));
        assert_eq!(Config { addresses: many, ..good }.check(), Err(ConfigError::TooMany));
    }
}
