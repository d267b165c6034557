//! The port's own addresses, and which other addresses it reaches.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr};

use roce::{Gid, IpPrefix};

use super::config::Config;

/// The prefix of link-local addresses.
const LINK_LOCAL_BITS: u8 = 64;

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// To this port.
    Own,
    /// The destination is a neighbour. `from` is the port's address from which it asks for the
    /// neighbour's MAC.
    Neighbour { from: Gid },
    /// Nowhere.
    None,
}

/// The port's addresses.
#[derive(Debug)]
pub(super) struct Addresses {
    gids: Vec<Gid>,
    prefixes: Vec<IpPrefix>,
}

impl Addresses {
    /// The addresses of a valid configuration.
    pub fn new(config: &Config) -> Addresses {
        let link_local = IpPrefix::new(IpAddr::V6(config.link_local), LINK_LOCAL_BITS);
        let prefixes: Vec<_> = link_local.into_iter().chain(config.addresses.iter().copied()).collect();
        Addresses { gids: prefixes.iter().map(|prefix| prefix.gid()).collect(), prefixes }
    }

    pub fn gids(&self) -> &[Gid] {
        &self.gids
    }

    #[inline]
    pub fn index_of(&self, gid: Gid) -> Option<u8> {
        self.gids.iter().position(|own| *own == gid).map(|index| index as u8)
    }

    /// Whether the port receives a multicast group: the group of all nodes, and those of its
    /// addresses.
    pub fn hears(&self, group: Ipv6Addr) -> bool {
        let own = |gid: &Gid| match gid.to_ip() {
            IpAddr::V6(address) => super::solicited_node(address) == group,
            IpAddr::V4(_) => false,
        };
        group == ALL_NODES || self.gids.iter().any(own)
    }

    #[inline]
    pub fn route(&self, to: Gid) -> Route {
        if self.index_of(to).is_some() {
            return Route::Own;
        }
        let to = to.to_ip();
        match self.prefixes.iter().find(|prefix| prefix.reaches(to)) {
            Some(prefix) => Route::Neighbour { from: prefix.gid() },
            None => Route::None,
        }
    }
}

/// The group of all nodes of a link.
pub(super) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
