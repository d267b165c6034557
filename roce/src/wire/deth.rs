//! The datagram extended transport header (IBTA vol. 1 section 9.3.2).

use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{put, split};
use crate::number::U24;
use crate::{Error, QKey, Qpn};

/// The layout on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// The queue key.
    pub qkey: U32,
    /// Reserved.
    pub reserved: u8,
    /// The sender's queue pair.
    pub src_qp: U24,
}

const _: () = assert!(size_of::<Header>() == Repr::LEN);

/// The decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The queue key.
    pub qkey: QKey,
    /// The sender's queue pair.
    pub src_qp: Qpn,
}

impl Repr {
    /// Its size in bytes.
    pub const LEN: usize = 8;

    /// Parses the header at the start of `bytes`; returns it and the bytes behind it.
    pub fn parse(bytes: &[u8]) -> Result<(Repr, &[u8]), Error> {
        let (header, rest) = split::<Header>(bytes, "DETH")?;
        Ok((Repr { qkey: QKey(header.qkey.get()), src_qp: header.src_qp.into() }, rest))
    }

    /// Writes the header at the start of `into`, and returns the rest of it.
    pub fn emit<'a>(&self, into: &'a mut [u8]) -> Result<&'a mut [u8], Error> {
        put(into, &Header { qkey: self.qkey.0.into(), reserved: 0, src_qp: self.src_qp.into() }, "DETH")
    }
}
