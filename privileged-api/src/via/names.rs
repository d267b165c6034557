//! Names on an IA over VIA: discriminators of services, host addresses of nodes, and paths (pages
//! it_conn_qual_t, it_net_addr_t, it_path_t).

use kernel_agent::wire::Gid;
use rdma::via::{self, Discriminator};

use crate::address::{ConnQual, MAX_VIA_ADDR_LEN, NetAddr, ViaNetAddr};
use crate::status::{Error, Result};

/// The discriminator that a qualifier names, without insignificant bytes. A port is two bytes, the
/// upper one first.
pub(crate) fn discriminator(qualifier: &ConnQual) -> Result<Discriminator> {
    let found = match qualifier {
        ConnQual::IanaPort(port) if *port != 0 => Discriminator::new(&port.to_ne_bytes()),
        ConnQual::ViaDiscriminator(name) => {
            name.discriminator.get(..name.len.into()).and_then(Discriminator::new)
        }
        _ => None,
    };
    // One without bytes names no service here.
    found.filter(|found| !found.is_empty()).ok_or(Error::InvalidConnQual)
}

/// The port that a discriminator is, if it has the form of one.
pub(crate) fn port(discriminator: &Discriminator) -> Option<u16> {
    Some(u16::from_be_bytes((**discriminator).try_into().ok()?))
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

/// The GID of a host address.
pub(crate) fn gid_of_host(host: &ViaNetAddr) -> Option<Gid> {
    via::gid_of_host(host.hostaddr.get(..host.len.into())?)
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
    use crate::address::{MAX_VIA_DISC_LEN, ViaDiscriminator};

    fn named(len: u16, byte: u8) -> ConnQual {
        let mut discriminator = [byte; MAX_VIA_DISC_LEN];
        discriminator[..2].copy_from_slice(&[0x12, 0x34]);
        ConnQual::ViaDiscriminator(ViaDiscriminator { len, discriminator })
    }

    #[test]
    fn a_port_is_two_bytes_and_bytes_beyond_the_length_do_not_count() {
        let two = discriminator(&ConnQual::port(0x1234)).unwrap();
        assert_eq!(*two, [0x12, 0x34]);
        assert_eq!(discriminator(&named(2, 7)), Ok(two));
        assert_eq!(discriminator(&named(2, 9)).unwrap().service(), two.service());
        assert_eq!(port(&two), Some(0x1234));
        let longer = discriminator(&named(3, 0)).unwrap();
        assert_ne!(longer.service(), two.service(), "the length counts");
        assert_eq!(port(&longer), None);
    }

    #[test]
    fn other_names_are_refused() {
        for qualifier in [named(0, 1), named(65, 1), ConnQual::IanaPort(0), ConnQual::service_id(7)] {
            assert_eq!(discriminator(&qualifier), Err(Error::InvalidConnQual), "{qualifier:?}");
        }
        assert!(discriminator(&named(64, 1)).is_ok());
    }

    #[test]
    fn the_bytes_of_a_host_address_are_as_many_as_its_length_says() {
        let host = |len| ViaNetAddr { len, hostaddr: [10; MAX_VIA_ADDR_LEN] };
        assert_eq!(gid_of_host(&host(4)), Some(Gid::from_ipv4([10, 10, 10, 10].into())));
        assert_eq!(gid_of_host(&host(16)), Some(Gid([10; 16])));
        for len in [0, 64, 65, u16::MAX] {
            assert_eq!(gid_of_host(&host(len)), None, "{len}");
        }
        let of = host_of(&NetAddr::ViaHostaddr(host(4))).unwrap();
        assert_eq!((of.len, &of.hostaddr[..5]), (4, &[10, 10, 10, 10, 0][..]));
    }
}
