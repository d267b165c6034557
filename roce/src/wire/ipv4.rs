//! The IPv4 header (RFC 791), without options, as RoCEv2 uses it (IBTA annex A17.3.1.2).

use core::net::Ipv4Addr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{put, split};
use crate::Error;

/// The layout on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Version 4, and the header's length in 32-bit words.
    pub version_ihl: u8,
    /// Type of service: DSCP and ECN.
    pub tos: u8,
    /// Length of header and payload.
    pub total_len: U16,
    /// Identification, for reassembly.
    pub ident: U16,
    /// Flags (3) and fragment offset (13).
    pub flags_offset: U16,
    /// Time to live.
    pub ttl: u8,
    /// The protocol of the payload.
    pub protocol: u8,
    /// The header's checksum.
    pub checksum: U16,
    /// The source address.
    pub src: [u8; 4],
    /// The destination address.
    pub dst: [u8; 4],
}

const _: () = assert!(size_of::<Header>() == Repr::LEN);

const DONT_FRAGMENT: u16 = 0x4000;

/// What a header says: an unfragmented packet without options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Type of service: DSCP and ECN.
    pub tos: u8,
    /// Identification. It matters only to fragments, but peers set it in each packet.
    pub ident: u16,
    /// Whether it must not be fragmented on the way; RoCEv2 packets say so.
    pub dont_fragment: bool,
    /// Time to live.
    pub ttl: u8,
    /// The protocol of the payload.
    pub protocol: u8,
    /// The source address.
    pub src: Ipv4Addr,
    /// The destination address.
    pub dst: Ipv4Addr,
    /// The size of the payload.
    pub payload_len: u16,
}

impl Repr {
    /// Its size in bytes.
    pub const LEN: usize = 20;
    /// The protocol number of UDP.
    pub const UDP: u8 = 17;

    /// Parses the header at the start of `bytes` and verifies its checksum; returns it and its
    /// payload without Ethernet padding.
    pub fn parse(bytes: &[u8]) -> Result<(Repr, &[u8]), Error> {
        let (repr, rest) = Repr::parse_header(bytes)?;
        let need = Repr::LEN + usize::from(repr.payload_len);
        let short = Error::Truncated { what: "IPv4 packet", need, have: bytes.len() };
        let payload = rest.get(..usize::from(repr.payload_len)).ok_or(short)?;
        Ok((repr, payload))
    }

    /// Parses the header and verifies its checksum, but not the length that it announces; returns
    /// it and all bytes behind it.
    pub fn parse_header(bytes: &[u8]) -> Result<(Repr, &[u8]), Error> {
        let (header, rest) = split::<Header>(bytes, "IPv4 header")?;
        if header.version_ihl != 0x45 {
            let value = header.version_ihl.into();
            return Err(Error::Field { field: "IPv4 version and header length", value });
        }
        let flags_offset = header.flags_offset.get();
        if flags_offset & !DONT_FRAGMENT != 0 {
            return Err(Error::Field { field: "IPv4 fragment", value: flags_offset.into() });
        }
        let computed = checksum(header);
        if computed != header.checksum.get() {
            return Err(Error::Checksum {
                what: "IPv4 header checksum",
                found: header.checksum.get().into(),
                computed: computed.into(),
            });
        }
        let total = header.total_len.get();
        let payload_len = total
            .checked_sub(Repr::LEN as u16)
            .ok_or(Error::Field { field: "IPv4 total length", value: total.into() })?;
        let repr = Repr {
            tos: header.tos,
            ident: header.ident.get(),
            dont_fragment: flags_offset & DONT_FRAGMENT != 0,
            ttl: header.ttl,
            protocol: header.protocol,
            src: header.src.into(),
            dst: header.dst.into(),
            payload_len,
        };
        Ok((repr, rest))
    }

    /// Writes the header at the start of `into`, and returns the rest of it.
    pub fn emit<'a>(&self, into: &'a mut [u8]) -> Result<&'a mut [u8], Error> {
        let total = self.payload_len.checked_add(Repr::LEN as u16);
        let too_long = Error::Field { field: "IPv4 payload length", value: self.payload_len.into() };
        let mut header = Header {
            version_ihl: 0x45,
            tos: self.tos,
            total_len: total.ok_or(too_long)?.into(),
            ident: self.ident.into(),
            flags_offset: (if self.dont_fragment { DONT_FRAGMENT } else { 0 }).into(),
            ttl: self.ttl,
            protocol: self.protocol,
            checksum: 0.into(),
            src: self.src.octets(),
            dst: self.dst.octets(),
        };
        header.checksum = checksum(&header).into();
        put(into, &header, "IPv4 header")
    }
}

/// The header's checksum, its own field counting as zero (RFC 1071).
fn checksum(header: &Header) -> u16 {
    let (words, _) = header.as_bytes().as_chunks::<2>();
    let all: u32 = words.iter().map(|&word| u32::from(u16::from_be_bytes(word))).sum();
    let sum = all - u32::from(header.checksum.get());
    // Ten words sum to less than 2^20, so two folds leave no carry.
    let once = (sum & 0xffff) + (sum >> 16);
    let twice = (once & 0xffff) + (once >> 16);
    !(twice as u16)
}
