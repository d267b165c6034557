//! The IP CM service's header: the addresses and the port at the start of the private data of a REQ
//! or SIDR_REQ of rdma_cm (IBTA annex A11.3, tables 1 and 2).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Error;
use crate::wire::{put, split};

/// The layout on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Major version (4), minor version (4): 0.
    pub cm_version: u8,
    /// IP version (4), reserved (4).
    pub ip_version: u8,
    /// The source port.
    pub src_port: U16,
    /// The source address; an IPv4 one in the last four bytes.
    pub src: [u8; 16],
    /// The destination address; an IPv4 one in the last four bytes.
    pub dst: [u8; 16],
}

const _: () = assert!(size_of::<Header>() == Repr::LEN);

/// The decoded header; both addresses are of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The source address.
    pub src: IpAddr,
    /// The source port.
    pub src_port: u16,
    /// The destination address.
    pub dst: IpAddr,
}

impl Repr {
    /// Its size in bytes.
    pub const LEN: usize = 36;

    /// Parses the header at the start of private data; returns it and the consumer's data behind
    /// it.
    pub fn parse(private_data: &[u8]) -> Result<(Repr, &[u8]), Error> {
        let (header, rest) = split::<Header>(private_data, "IP CM header")?;
        if header.cm_version >> 4 != 0 {
            return Err(Error::Field { field: "IP CM version", value: header.cm_version.into() });
        }
        let v4 = |addr: [u8; 16]| {
            let [.., a, b, c, d] = addr;
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        };
        let v6 = |addr: [u8; 16]| IpAddr::V6(Ipv6Addr::from_octets(addr));
        let (src, dst) = match header.ip_version >> 4 {
            4 => (v4(header.src), v4(header.dst)),
            6 => (v6(header.src), v6(header.dst)),
            version => return Err(Error::Field { field: "IP CM IP version", value: version.into() }),
        };
        Ok((Repr { src, src_port: header.src_port.get(), dst }, rest))
    }

    /// Writes the header at the start of `into`, and returns the rest of it.
    pub fn emit<'a>(&self, into: &'a mut [u8]) -> Result<&'a mut [u8], Error> {
        let octets = |addr: IpAddr| match addr {
            IpAddr::V4(v4) => {
                let mut bytes = [0; 16];
                bytes[12..].copy_from_slice(&v4.octets());
                bytes
            }
            IpAddr::V6(v6) => v6.octets(),
        };
        if self.src.is_ipv4() != self.dst.is_ipv4() {
            return Err(Error::Field { field: "IP CM address families", value: 0 });
        }
        let header = Header {
            cm_version: 0,
            ip_version: if self.src.is_ipv4() { 0x40 } else { 0x60 },
            src_port: self.src_port.into(),
            src: octets(self.src),
            dst: octets(self.dst),
        };
        put(into, &header, "IP CM header")
    }
}
