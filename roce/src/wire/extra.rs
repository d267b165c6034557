//! The two headers of one word: immediate data and the key to invalidate (IBTA vol. 1 sections
//! 9.3.6, 9.3.7).

use zerocopy::byteorder::network_endian::U32;

use super::{put, split};
use crate::Error;

/// Immediate data, which a Send or RDMA Write carries to the receiver's completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Immediate(pub u32);

impl Immediate {
    /// Its size in bytes.
    pub const LEN: usize = 4;

    /// Parses the header at the start of `bytes`; returns it and the bytes behind it.
    pub fn parse(bytes: &[u8]) -> Result<(Immediate, &[u8]), Error> {
        let (value, rest) = split::<U32>(bytes, "ImmDt")?;
        Ok((Immediate(value.get()), rest))
    }

    /// Writes the header at the start of `into`, and returns the rest of it.
    pub fn emit<'a>(&self, into: &'a mut [u8]) -> Result<&'a mut [u8], Error> {
        put(into, &U32::new(self.0), "ImmDt")
    }
}

/// The receiver's key that a Send with Invalidate revokes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalidate(pub u32);

impl Invalidate {
    /// Its size in bytes.
    pub const LEN: usize = 4;

    /// Parses the header at the start of `bytes`; returns it and the bytes behind it.
    pub fn parse(bytes: &[u8]) -> Result<(Invalidate, &[u8]), Error> {
        let (value, rest) = split::<U32>(bytes, "IETH")?;
        Ok((Invalidate(value.get()), rest))
    }

    /// Writes the header at the start of `into`, and returns the rest of it.
    pub fn emit<'a>(&self, into: &'a mut [u8]) -> Result<&'a mut [u8], Error> {
        put(into, &U32::new(self.0), "IETH")
    }
}
