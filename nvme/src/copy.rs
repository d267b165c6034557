//! Copy (NVM command set 1.0, 3.2.2), with source ranges of format 0.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::command::opcode;
use crate::{Command, Status};

/// The most ranges of a command.
pub const MAX_RANGES: usize = 256;

/// A source range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Range {
    _reserved_0: U64,
    /// Starting LBA.
    pub slba: U64,
    /// Number of Logical Blocks, 0-based.
    pub nlb: U16,
    _reserved_18: [u8; 6],
    /// Expected tags, for namespaces with protection information.
    pub tags: [U32; 2],
}

const _: () = assert!(size_of::<Range>() == 32);

impl Range {
    /// A range of `blocks` logical blocks, 1 to 65,536.
    pub fn new(slba: u64, blocks: u32) -> Self {
        let nlb = (blocks.saturating_sub(1) as u16).into();
        Self { _reserved_0: U64::ZERO, slba: slba.into(), nlb, _reserved_18: [0; 6], tags: [U32::ZERO; 2] }
    }

    /// How many logical blocks it has.
    pub fn blocks(&self) -> u64 {
        u64::from(self.nlb.get()) + 1
    }
}

/// The number of source ranges of a Copy, which are its data.
///
/// # Errors
///
/// [`Status::INVALID_FIELD`] for another format than 0.
pub fn ranges(command: &Command) -> Result<usize, Status> {
    match command.cdw12.get() >> 8 & 0xf {
        0 => Ok((command.cdw12.get() & 0xff) as usize + 1),
        _ => Err(Status::INVALID_FIELD),
    }
}

/// A Copy of so many ranges to the blocks from `to` on.
///
/// # Panics
///
/// If `ranges` is not 1 to [`MAX_RANGES`].
pub fn command(nsid: u32, to: u64, ranges: usize) -> Command {
    assert!((1..=MAX_RANGES).contains(&ranges), "a copy of {ranges} ranges");
    Command {
        nsid: nsid.into(),
        cdw10: (to as u32).into(),
        cdw11: ((to >> 32) as u32).into(),
        cdw12: (ranges as u32 - 1).into(),
        ..Command::new(opcode::io::COPY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_range_and_the_arguments() {
        let bytes = Range::new(0x0102, 0x0304).as_bytes().to_vec();
        assert_eq!(bytes[8..18], [2, 1, 0, 0, 0, 0, 0, 0, 3, 3]);
        assert_eq!(Range::new(0, 65_536).blocks(), 65_536);
        let copy = command(1, 0x1_0000_0002, 256);
        assert_eq!((copy.slba(), ranges(&copy)), (0x1_0000_0002, Ok(256)));
        let other = Command { cdw12: 0x100.into(), ..copy };
        assert_eq!(ranges(&other), Err(Status::INVALID_FIELD));
    }
}
