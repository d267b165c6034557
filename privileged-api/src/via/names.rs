//! Names on an IA over VIA: discriminators of services, host addresses of nodes, and paths (pages
//! it_conn_qual_t, it_net_addr_t, it_path_t).

use roce::{Gid, ServiceId};

use crate::address::{ConnQual, MAX_VIA_ADDR_LEN, MAX_VIA_DISC_LEN, NetAddr, ViaNetAddr};
use crate::status::{Error, Result};

/// The service IDs of discriminators: in the range that IBTA leaves to local administration (annex
/// A3), with a hash behind it.
const PREFIX: u64 = 0x02 << 56;

/// A discriminator without its insignificant bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Discriminator {
    len: usize,
    /// Zero from `len` on.
    bytes: [u8; MAX_VIA_DISC_LEN],
}

impl Discriminator {
    /// None unless it has from 1 to 64 bytes.
    pub(crate) fn new(name: &[u8]) -> Option<Discriminator> {
        let mut bytes = [0; MAX_VIA_DISC_LEN];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        (!name.is_empty()).then_some(Discriminator { len: name.len(), bytes })
    }

    /// What a qualifier names. A port is two bytes, the upper one first.
    pub(crate) fn of(qualifier: &ConnQual) -> Result<Discriminator> {
        let found = match qualifier {
            ConnQual::IanaPort(port) if *port != 0 => Discriminator::new(&port.to_ne_bytes()),
            ConnQual::ViaDiscriminator(name) => {
                name.discriminator.get(..name.len.into()).and_then(Discriminator::new)
            }
            _ => None,
        };
        found.ok_or(Error::InvalidConnQual)
    }

    /// The port that it is, if it has the form of one.
    pub(crate) fn port(&self) -> Option<u16> {
        match self.bytes.get(..self.len)? {
            &[upper, lower] => Some(u16::from_be_bytes([upper, lower])),
            _ => None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn padded(&self) -> &[u8; MAX_VIA_DISC_LEN] {
        &self.bytes
    }

    /// The service ID that stands for it: its hash (FNV-1a). The request carries the discriminator
    /// itself, by which a listener tells two of them apart.
    pub(crate) fn service(&self) -> ServiceId {
        // The length counts, too.
        let name = self.bytes.iter().copied().take(self.len).chain([self.len as u8]);
        let hash = name.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        ServiceId(PREFIX | (hash >> 56 ^ hash) & ((1 << 56) - 1))
    }
}

/// The host address that is this GID.
pub(crate) fn host_address(gid: Gid) -> ViaNetAddr {
    padded(&gid.0)
}

fn padded(bytes: &[u8]) -> ViaNetAddr {
    let mut hostaddr = [0; MAX_VIA_ADDR_LEN];
    for (place, byte) in hostaddr.iter_mut().zip(bytes) {
        *place = *byte;
    }
    ViaNetAddr { len: bytes.len().min(MAX_VIA_ADDR_LEN) as u16, hostaddr }
}

/// The GID of a host address: 16 bytes are a GID, 4 an IPv4 address.
pub(crate) fn gid_of_host(host: &ViaNetAddr) -> Option<Gid> {
    match host.hostaddr.get(..host.len.into())? {
        &[a, b, c, d] => Some(Gid::from_ipv4([a, b, c, d].into())),
        bytes => Some(Gid(bytes.try_into().ok()?)),
    }
}

/// The host address that a network address stands for, without insignificant bytes.
pub(crate) fn host_of(addr: &NetAddr) -> Option<ViaNetAddr> {
    match addr {
        NetAddr::Ipv4(bytes) => Some(padded(bytes)),
        NetAddr::Ipv6(bytes) => Some(padded(bytes)),
        NetAddr::ViaHostaddr(host) => Some(padded(host.hostaddr.get(..host.len.into())?)),
        NetAddr::IbGid(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::ViaDiscriminator;

    fn discriminator(len: u16, byte: u8) -> ConnQual {
        let mut discriminator = [byte; MAX_VIA_DISC_LEN];
        discriminator[..2].copy_from_slice(&[0x12, 0x34]);
        ConnQual::ViaDiscriminator(ViaDiscriminator { len, discriminator })
    }

    #[test]
    fn a_port_is_two_bytes_and_bytes_beyond_the_length_do_not_count() {
        let port = Discriminator::of(&ConnQual::port(0x1234)).unwrap();
        assert_eq!(Discriminator::of(&discriminator(2, 7)), Ok(port));
        assert_eq!(Discriminator::of(&discriminator(2, 9)).unwrap().service(), port.service());
        assert_eq!((port.port(), port.len()), (Some(0x1234), 2));
        let longer = Discriminator::of(&discriminator(3, 0)).unwrap();
        assert_ne!(longer.service(), port.service(), "the length counts");
        assert_eq!(longer.port(), None);
        assert_eq!(port.service().0 >> 56, 2);
    }

    #[test]
    fn other_names_are_refused() {
        for qualifier in
            [discriminator(0, 1), discriminator(65, 1), ConnQual::IanaPort(0), ConnQual::service_id(7)]
        {
            assert_eq!(Discriminator::of(&qualifier), Err(Error::InvalidConnQual), "{qualifier:?}");
        }
        assert!(Discriminator::of(&discriminator(64, 1)).is_ok());
    }

    #[test]
    fn a_host_address_is_a_gid_or_an_ipv4_address() {
        let host = |len| ViaNetAddr { len, hostaddr: [10; MAX_VIA_ADDR_LEN] };
        assert_eq!(gid_of_host(&host(4)), Some(Gid::from_ipv4([10, 10, 10, 10].into())));
        assert_eq!(gid_of_host(&host(16)), Some(Gid([10; 16])));
        for len in [0, 3, 5, 15, 17, 64, 65, u16::MAX] {
            assert_eq!(gid_of_host(&host(len)), None, "{len}");
        }
        let of = host_of(&NetAddr::ViaHostaddr(host(4))).unwrap();
        assert_eq!((of.len, &of.hostaddr[..5]), (4, &[10, 10, 10, 10, 0][..]));
    }
}
