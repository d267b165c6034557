//! The IPv6 header (RFC 8200), which InfiniBand calls GRH (IBTA vol. 1 section 8.3): 40 bytes that
//! are also at the start of each received datagram's buffer.

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{put, split};
use crate::{Error, Gid};

/// The layout on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Version (4), traffic class (8), flow label (20).
    pub version_class_flow: U32,
    /// Length of the payload.
    pub payload_len: U16,
    /// The protocol of the payload.
    pub next_header: u8,
    /// How many routers the packet may pass.
    pub hop_limit: u8,
    /// The source address.
    pub src: Gid,
    /// The destination address.
    pub dst: Gid,
}

const _: () = assert!(size_of::<Header>() == Repr::LEN);

/// The decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label; 20 bits.
    pub flow_label: u32,
    /// The protocol of the payload.
    pub next_header: u8,
    /// How many routers the packet may pass.
    pub hop_limit: u8,
    /// The source address.
    pub src: Gid,
    /// The destination address.
    pub dst: Gid,
    /// The size of the payload.
    pub payload_len: u16,
}

impl Repr {
    /// Its size in bytes.
    pub const LEN: usize = 40;
    /// The next header of a RoCEv2 packet.
    pub const UDP: u8 = 17;
    /// The next header of an InfiniBand GRH: a transport header of InfiniBand.
    pub const IBA: u8 = 0x1b;

    /// Parses the header at the start of `bytes`; returns it and its payload without Ethernet
    /// padding.
    pub fn parse(bytes: &[u8]) -> Result<(Repr, &[u8]), Error> {
        let (repr, rest) = Repr::parse_header(bytes)?;
        let need = Repr::LEN + usize::from(repr.payload_len);
        let short = Error::Truncated { what: "IPv6 packet", need, have: bytes.len() };
        let payload = rest.get(..usize::from(repr.payload_len)).ok_or(short)?;
        Ok((repr, payload))
    }

    /// Parses the header without checking the length that it announces; returns it and all bytes
    /// behind it.
    pub fn parse_header(bytes: &[u8]) -> Result<(Repr, &[u8]), Error> {
        let (header, rest) = split::<Header>(bytes, "IPv6 header")?;
        let word = header.version_class_flow.get();
        if word >> 28 != 6 {
            return Err(Error::Field { field: "IPv6 version", value: (word >> 28).into() });
        }
        let repr = Repr {
            traffic_class: (word >> 20) as u8,
            flow_label: word & 0xf_ffff,
            next_header: header.next_header,
            hop_limit: header.hop_limit,
            src: header.src,
            dst: header.dst,
            payload_len: header.payload_len.get(),
        };
        Ok((repr, rest))
    }

    /// Writes the header at the start of `into`, and returns the rest of it.
    pub fn emit<'a>(&self, into: &'a mut [u8]) -> Result<&'a mut [u8], Error> {
        let word = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        let header = Header {
            version_class_flow: word.into(),
            payload_len: self.payload_len.into(),
            next_header: self.next_header,
            hop_limit: self.hop_limit,
            src: self.src,
            dst: self.dst,
        };
        put(into, &header, "IPv6 header")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_is_read_as_it_was_written() {
        let repr = Repr {
            traffic_class: 0xb9,
            flow_label: 0x9_8765,
            next_header: 17,
            hop_limit: 3,
            src: Gid([1; 16]),
            dst: Gid([2; 16]),
            payload_len: 0x0405,
        };
        let mut bytes = [0; Repr::LEN];
        repr.emit(&mut bytes).unwrap();
        assert_eq!(bytes[..8], [0x6b, 0x99, 0x87, 0x65, 4, 5, 17, 3]);
        assert_eq!(Repr::parse_header(&bytes), Ok((repr, &[][..])));
    }
}
