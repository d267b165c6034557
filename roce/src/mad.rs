//! Management datagrams: the 24-byte common header before 232 bytes of payload (IBTA vol. 1 section
//! 13.4.3).

use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Error;
use crate::wire::{put, split};

/// The size of every datagram.
pub const LEN: usize = 256;
/// The size of the common header.
pub const HEADER_LEN: usize = 24;
/// The size of the payload behind the header.
pub const BODY_LEN: usize = LEN - HEADER_LEN;

/// The layout on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Version of the format: 1.
    pub base_version: u8,
    /// Which class of management.
    pub mgmt_class: u8,
    /// Version of the class.
    pub class_version: u8,
    /// Response (1) and method (7).
    pub method: u8,
    /// Status.
    pub status: U16,
    /// Specific to the class.
    pub class_specific: U16,
    /// Transaction id.
    pub tid: U64,
    /// Attribute id: which message follows.
    pub attr_id: U16,
    /// Reserved.
    pub reserved: U16,
    /// Attribute modifier.
    pub attr_mod: U32,
}

const _: () = assert!(size_of::<Header>() == HEADER_LEN);

/// The decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Which class of management.
    pub mgmt_class: u8,
    /// Version of the class.
    pub class_version: u8,
    /// Response (1) and method (7).
    pub method: u8,
    /// Status.
    pub status: u16,
    /// Specific to the class.
    pub class_specific: u16,
    /// Transaction id.
    pub tid: u64,
    /// Attribute id: which message follows.
    pub attr_id: u16,
    /// Attribute modifier.
    pub attr_mod: u32,
}

impl Repr {
    /// Parses a datagram; returns its header and its body.
    pub fn parse(bytes: &[u8]) -> Result<(Repr, &[u8; BODY_LEN]), Error> {
        let (header, rest) = split::<Header>(bytes, "MAD header")?;
        if header.base_version != 1 {
            return Err(Error::Field { field: "MAD base version", value: header.base_version.into() });
        }
        let short = Error::Truncated { what: "MAD", need: LEN, have: bytes.len() };
        let body = rest.first_chunk().ok_or(short)?;
        let repr = Repr {
            mgmt_class: header.mgmt_class,
            class_version: header.class_version,
            method: header.method,
            status: header.status.get(),
            class_specific: header.class_specific.get(),
            tid: header.tid.get(),
            attr_id: header.attr_id.get(),
            attr_mod: header.attr_mod.get(),
        };
        Ok((repr, body))
    }

    /// Writes the header at the start of `into`, and returns the rest of it.
    pub fn emit<'a>(&self, into: &'a mut [u8]) -> Result<&'a mut [u8], Error> {
        let header = Header {
            base_version: 1,
            mgmt_class: self.mgmt_class,
            class_version: self.class_version,
            method: self.method,
            status: self.status.into(),
            class_specific: self.class_specific.into(),
            tid: self.tid.into(),
            attr_id: self.attr_id.into(),
            reserved: 0.into(),
            attr_mod: self.attr_mod.into(),
        };
        put(into, &header, "MAD header")
    }
}
