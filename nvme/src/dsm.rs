//! Dataset Management (base 6.7).

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The most ranges of a command.
pub const MAX_RANGES: usize = 256;

bitflags::bitflags! {
    /// What the host says about the ranges: dword 11.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Attributes: u32 {
        /// Integral Dataset for Read (IDR).
        const INTEGRAL_READ = 1 << 0;
        /// Integral Dataset for Write (IDW).
        const INTEGRAL_WRITE = 1 << 1;
        /// Attribute – Deallocate (AD).
        const DEALLOCATE = 1 << 2;
    }
}

/// A range of logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Range {
    /// Context attributes: hints.
    pub attributes: U32,
    /// Length in logical blocks, not 0-based.
    pub length: U32,
    /// Starting LBA.
    pub slba: U64,
}

const _: () = assert!(size_of::<Range>() == 16);

impl Range {
    /// A range without hints.
    pub fn new(slba: u64, length: u32) -> Self {
        Self { attributes: U32::ZERO, length: length.into(), slba: slba.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_range() {
        let range = Range::new(0x0102, 0x0304);
        assert_eq!(range.as_bytes(), [0, 0, 0, 0, 4, 3, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Attributes::DEALLOCATE.bits(), 4);
    }
}
