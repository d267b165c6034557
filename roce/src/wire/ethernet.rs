//! The Ethernet II header, as far as a RoCEv2 port needs it.

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{put, split};
use crate::Error;

/// The layout on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// The destination address.
    pub dst: [u8; 6],
    /// The source address.
    pub src: [u8; 6],
    /// The protocol of the payload.
    pub ether_type: U16,
}

const _: () = assert!(size_of::<Header>() == Repr::LEN);

/// The decoded header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The destination address.
    pub dst: [u8; 6],
    /// The source address.
    pub src: [u8; 6],
    /// The protocol of the payload.
    pub ether_type: u16,
}

impl Repr {
    /// Its size in bytes.
    pub const LEN: usize = 14;
    /// The type of a frame that carries IPv4.
    pub const IPV4: u16 = 0x0800;
    /// The type of a frame that carries IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// The type of a frame that carries ARP.
    pub const ARP: u16 = 0x0806;

    /// Parses the header at the start of `bytes`; returns it and the bytes behind it.
    pub fn parse(bytes: &[u8]) -> Result<(Repr, &[u8]), Error> {
        let (header, rest) = split::<Header>(bytes, "Ethernet header")?;
        Ok((Repr { dst: header.dst, src: header.src, ether_type: header.ether_type.get() }, rest))
    }

    /// Writes the header at the start of `into`, and returns the rest of it.
    pub fn emit<'a>(&self, into: &'a mut [u8]) -> Result<&'a mut [u8], Error> {
        let header = Header { dst: self.dst, src: self.src, ether_type: self.ether_type.into() };
        put(into, &header, "Ethernet header")
    }
}
