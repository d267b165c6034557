//! The RDMA extended transport header (IBTA vol. 1 section 9.3.3).

use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{put, split};
use crate::Error;

/// The layout on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// The address of the first byte.
    pub virt_addr: U64,
    /// The key that grants access.
    pub rkey: U32,
    /// The number of bytes.
    pub dma_len: U32,
}

const _: () = assert!(size_of::<Header>() == Repr::LEN);

/// The decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The address of the first byte.
    pub virt_addr: u64,
    /// The key that grants access.
    pub rkey: u32,
    /// The number of bytes.
    pub dma_len: u32,
}

impl Repr {
    /// Its size in bytes.
    pub const LEN: usize = 16;

    /// Parses the header at the start of `bytes`; returns it and the bytes behind it.
    pub fn parse(bytes: &[u8]) -> Result<(Repr, &[u8]), Error> {
        let (header, rest) = split::<Header>(bytes, "RETH")?;
        let repr = Repr {
            virt_addr: header.virt_addr.get(),
            rkey: header.rkey.get(),
            dma_len: header.dma_len.get(),
        };
        Ok((repr, rest))
    }

    /// Writes the header at the start of `into`, and returns the rest of it.
    pub fn emit<'a>(&self, into: &'a mut [u8]) -> Result<&'a mut [u8], Error> {
        let header =
            Header { virt_addr: self.virt_addr.into(), rkey: self.rkey.into(), dma_len: self.dma_len.into() };
        put(into, &header, "RETH")
    }
}
