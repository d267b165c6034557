//! Network addresses (VIP_NET_ADDRESS, 9.10.8): a host address and a discriminator.
//!
//! A host address is a GID of the NIC's port, 16 bytes; an IPv4 address of 4 bytes stands for the
//! GID that maps it. It may be left out where the text says so.

use core::net::IpAddr;

use heapless::Vec;
use kernel_agent::wire::Gid;
pub use rdma::via::MAX_DISCRIMINATOR;
use rdma::via::{self, Discriminator};

use crate::error::{Error, Result};

/// The most bytes of a host address.
const MAX_HOST: usize = 16;
/// The two lengths, in C's layout.
const LENGTHS: usize = 4;

/// A network address.
#[doc(alias = "VIP_NET_ADDRESS")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetAddress {
    host: Vec<u8, MAX_HOST>,
    discriminator: Discriminator,
}

impl NetAddress {
    /// An address of these parts. The host address has 0, 4 or 16 bytes.
    ///
    /// Errors: `InvalidParameter` (another length of the host address, or a discriminator of more
    /// than [`MAX_DISCRIMINATOR`] bytes).
    pub fn new(host: &[u8], discriminator: &[u8]) -> Result<NetAddress> {
        if !matches!(host.len(), 0 | 4 | 16) {
            return Err(Error::InvalidParameter);
        }
        let host = Vec::from_slice(host).map_err(|_| Error::InvalidParameter)?;
        let discriminator = Discriminator::new(discriminator).ok_or(Error::InvalidParameter)?;
        Ok(NetAddress { host, discriminator })
    }

    /// The address of an endpoint at a host that has an IP address.
    ///
    /// Errors: `InvalidParameter` (a discriminator of more than [`MAX_DISCRIMINATOR`] bytes).
    pub fn of_ip(host: IpAddr, discriminator: &[u8]) -> Result<NetAddress> {
        NetAddress::new(&Gid::from(host).0, discriminator)
    }

    /// The address in C's layout: the two lengths in 16 bits each, little-endian, the host address,
    /// the discriminator.
    ///
    /// Errors: `InvalidParameter` (as [`NetAddress::new`]; or fewer or more bytes than the lengths
    /// say).
    pub fn parse(bytes: &[u8]) -> Result<NetAddress> {
        let (lengths, rest) = bytes.split_first_chunk::<LENGTHS>().ok_or(Error::InvalidParameter)?;
        let [host, discriminator] = [[lengths[0], lengths[1]], [lengths[2], lengths[3]]]
            .map(|len| usize::from(u16::from_le_bytes(len)));
        if rest.len() != host + discriminator {
            return Err(Error::InvalidParameter);
        }
        let (host, discriminator) = rest.split_at(host);
        NetAddress::new(host, discriminator)
    }

    /// The address in C's layout.
    pub fn to_bytes(&self) -> Vec<u8, { LENGTHS + MAX_HOST + MAX_DISCRIMINATOR }> {
        let mut bytes = Vec::new();
        for part in [self.host.len(), self.discriminator.len()] {
            let _ = bytes.extend_from_slice(&(part as u16).to_le_bytes());
        }
        for part in [&self.host[..], &self.discriminator[..]] {
            let _ = bytes.extend_from_slice(part);
        }
        bytes
    }

    /// The host address.
    pub fn host(&self) -> &[u8] {
        &self.host
    }

    /// The discriminator.
    pub fn discriminator(&self) -> &[u8] {
        &self.discriminator
    }

    /// The address of an endpoint at the host with this GID.
    pub(crate) fn of_gid(host: Gid, discriminator: Discriminator) -> NetAddress {
        NetAddress { host: Vec::from_array(host.0), discriminator }
    }

    /// What the discriminator is known by to other nodes.
    pub(crate) fn digest(&self) -> via::Digest {
        via::Digest::of(&self.discriminator)
    }

    /// The discriminator, in the form that it has on the wire.
    pub(crate) fn own(&self) -> Discriminator {
        self.discriminator
    }

    /// The host address as a GID; `None` if it was left out.
    pub(crate) fn gid(&self) -> Option<Gid> {
        via::gid_of_host(&self.host)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use core::net::Ipv4Addr;

    use super::*;

    #[test]
    fn the_layout_is_two_lengths_the_host_and_the_discriminator() {
        let address = NetAddress::new(&[10, 0, 0, 1], b"disk").unwrap();
        let bytes = address.to_bytes();
        assert_eq!(bytes, *b"\x04\x00\x04\x00\x0a\x00\x00\x01disk");
        assert_eq!(NetAddress::parse(&bytes), Ok(address.clone()));
        assert_eq!((address.host(), address.discriminator()), (&[10, 0, 0, 1][..], &b"disk"[..]));
        for end in 0..bytes.len() {
            assert_eq!(NetAddress::parse(&bytes[..end]), Err(Error::InvalidParameter), "{end} bytes");
        }
        let mut longer = std::vec::Vec::from(&bytes[..]);
        longer.push(0);
        assert_eq!(NetAddress::parse(&longer), Err(Error::InvalidParameter));
    }

    #[test]
    fn lengths_are_bounded() {
        for host in 0..=20 {
            let made = NetAddress::new(&[1; 20][..host], &[]);
            assert_eq!(made.is_ok(), matches!(host, 0 | 4 | 16), "{host} bytes");
        }
        assert!(NetAddress::new(&[1; 16], &[2; MAX_DISCRIMINATOR]).is_ok());
        assert_eq!(NetAddress::new(&[1; 16], &[2; MAX_DISCRIMINATOR + 1]), Err(Error::InvalidParameter));
        assert_eq!(NetAddress::parse(b"\xff\xff\xff\xff"), Err(Error::InvalidParameter));
        let longest = NetAddress::new(&[1; 16], &[2; MAX_DISCRIMINATOR]).unwrap();
        assert_eq!(NetAddress::parse(&longest.to_bytes()), Ok(longest));
    }

    #[test]
    fn an_ipv4_address_stands_for_the_gid_that_maps_it() {
        let ip = Ipv4Addr::new(192, 168, 1, 2);
        let short = NetAddress::new(&ip.octets(), b"x").unwrap();
        let long = NetAddress::of_ip(ip.into(), b"x").unwrap();
        assert_eq!(short.gid(), Some(Gid::from_ipv4(ip)));
        assert_eq!(long.gid(), short.gid());
        assert_eq!(long.host().len(), 16);
        assert_eq!(NetAddress::new(&[], b"x").unwrap().gid(), None);
    }
}
