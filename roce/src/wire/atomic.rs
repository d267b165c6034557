//! The atomic extended transport headers (IBTA vol. 1 sections 9.3.4 and 9.3.5.3).

use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{put, split};
use crate::Error;

/// The request's layout on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// The address of the 64-bit word.
    pub virt_addr: U64,
    /// The key that grants access.
    pub rkey: U32,
    /// The value to swap in or to add.
    pub swap_add: U64,
    /// The value to compare with.
    pub compare: U64,
}

const _: () = assert!(size_of::<Header>() == Repr::LEN);

/// The decoded header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The address of the 64-bit word.
    pub virt_addr: u64,
    /// The key that grants access.
    pub rkey: u32,
    /// The value to swap in or to add.
    pub swap_add: u64,
    /// The value to compare with.
    pub compare: u64,
}

impl Repr {
    /// Its size in bytes.
    pub const LEN: usize = 28;

    /// Parses the header at the start of `bytes`; returns it and the bytes behind it.
    pub fn parse(bytes: &[u8]) -> Result<(Repr, &[u8]), Error> {
        let (header, rest) = split::<Header>(bytes, "AtomicETH")?;
        let repr = Repr {
            virt_addr: header.virt_addr.get(),
            rkey: header.rkey.get(),
            swap_add: header.swap_add.get(),
            compare: header.compare.get(),
        };
        Ok((repr, rest))
    }

    /// Writes the header at the start of `into`, and returns the rest of it.
    pub fn emit<'a>(&self, into: &'a mut [u8]) -> Result<&'a mut [u8], Error> {
        let header = Header {
            virt_addr: self.virt_addr.into(),
            rkey: self.rkey.into(),
            swap_add: self.swap_add.into(),
            compare: self.compare.into(),
        };
        put(into, &header, "AtomicETH")
    }
}

/// The decoded header of an answer: the word's value before the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Original(pub u64);

impl Original {
    /// Its size in bytes.
    pub const LEN: usize = 8;

    /// Parses the header at the start of `bytes`; returns it and the bytes behind it.
    pub fn parse(bytes: &[u8]) -> Result<(Original, &[u8]), Error> {
        let (value, rest) = split::<U64>(bytes, "AtomicAckETH")?;
        Ok((Original(value.get()), rest))
    }

    /// Writes the header at the start of `into`, and returns the rest of it.
    pub fn emit<'a>(&self, into: &'a mut [u8]) -> Result<&'a mut [u8], Error> {
        put(into, &U64::new(self.0), "AtomicAckETH")
    }
}
