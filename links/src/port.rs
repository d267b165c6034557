//! The port behind a link: its addresses if the user gives none, and what follows from them.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr};

use nic_model::port;
use platform::Secret;
use roce::IpPrefix;

use crate::LinkSpec;

/// The address of the first port, second port and so on of a network of our own.
pub fn numbered(number: u8) -> Option<IpPrefix> {
    IpPrefix::new(Ipv4Addr::new(10, 0, 0, number.saturating_add(1)).into(), 24).ok()
}

/// The addresses from which a process takes the first free one if its user names none: 127.0.0.2
/// and following ones.
pub fn local() -> impl Iterator<Item = IpPrefix> {
    (2..255).filter_map(|last| IpPrefix::new(Ipv4Addr::new(127, 0, 0, last).into(), 8).ok())
}

impl LinkSpec {
    /// The addresses that a port on this link may have unless the user gives one: the first that no
    /// other process has. A link in memory has those of [`local`]; others have one
    /// ([`LinkSpec::address`]).
    pub fn choices(&self) -> Vec<IpPrefix> {
        match self {
            LinkSpec::Shm(_) => local().collect(),
            _ => self.address().into_iter().collect(),
        }
    }

    /// The address of a port on this link unless the user gives one: by UDP the link's own, in
    /// memory the first of the loopback network, at the far end of a stream the second of a
    /// network, else the first.
    pub fn address(&self) -> Option<IpPrefix> {
        match self {
            LinkSpec::Udp(own) => {
                let bits = match own {
                    IpAddr::V6(_) => 64,
                    IpAddr::V4(own) if own.is_loopback() => 8,
                    IpAddr::V4(_) => 24,
                };
                IpPrefix::new(*own, bits).ok()
            }
            LinkSpec::Shm(_) => local().next(),
            LinkSpec::StreamConnect(_) => numbered(1),
            _ => numbered(0),
        }
    }
}

/// The node's GUID and the port at these addresses; `number` distinguishes ports without any. The
/// GUID, and with it the MAC, is derived from the first address: peers on one link have different
/// addresses, whichever process made them.
pub fn port_at(addresses: &[IpPrefix], number: u8, mtu: u32) -> (u64, port::Config) {
    let [.., a, b, c] = addresses.first().map_or([number; 16], |prefix| prefix.gid().0);
    let node_guid = 0x0266_65ff_fe00_0000 | u64::from(u32::from_be_bytes([0, a, b, c]));
    // Random numbers of the system: the keys of the standard library's hash tables are some.
    let secret = Secret::new([0, 1].map(|n| RandomState::new().hash_one(n)));
    (node_guid, port::Config { secret, ..port::Config::new(node_guid, mtu, addresses) })
}
