//! The UDP header (RFC 768). RoCEv2 sets no checksum: the ICRC covers the packet (IBTA annex
//! A17.3.1.3).

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{put, split};
use crate::Error;

/// The layout on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// The sender's port: entropy for load balancing.
    pub src_port: U16,
    /// The receiver's port.
    pub dst_port: U16,
    /// Length of header and payload.
    pub len: U16,
    /// Zero, or the checksum.
    pub checksum: U16,
}

const _: () = assert!(size_of::<Header>() == Repr::LEN);

/// The decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The sender's port.
    pub src_port: u16,
    /// The receiver's port.
    pub dst_port: u16,
    /// Zero for none; carried, not verified.
    pub checksum: u16,
    /// The size of the payload.
    pub payload_len: u16,
}

impl Repr {
    /// Its size in bytes.
    pub const LEN: usize = 8;

    /// Parses the header at the start of `bytes`; returns it and its payload.
    pub fn parse(bytes: &[u8]) -> Result<(Repr, &[u8]), Error> {
        let (header, rest) = split::<Header>(bytes, "UDP header")?;
        let len = header.len.get();
        let payload_len = len
            .checked_sub(Repr::LEN as u16)
            .ok_or(Error::Field { field: "UDP length", value: len.into() })?;
        let short = Error::Truncated { what: "UDP datagram", need: len.into(), have: bytes.len() };
        let payload = rest.get(..usize::from(payload_len)).ok_or(short)?;
        let repr = Repr {
            src_port: header.src_port.get(),
            dst_port: header.dst_port.get(),
            checksum: header.checksum.get(),
            payload_len,
        };
        Ok((repr, payload))
    }

    /// Writes the header at the start of `into`, and returns the rest of it.
    pub fn emit<'a>(&self, into: &'a mut [u8]) -> Result<&'a mut [u8], Error> {
        let len = self.payload_len.checked_add(Repr::LEN as u16);
        let too_long = Error::Field { field: "UDP payload length", value: self.payload_len.into() };
        let header = Header {
            src_port: self.src_port.into(),
            dst_port: self.dst_port.into(),
            len: len.ok_or(too_long)?.into(),
            checksum: self.checksum.into(),
        };
        put(into, &header, "UDP header")
    }
}
