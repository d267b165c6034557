//! Sizes of a disk, and what every disk checks of a request.

use core::ops::Range;

use crate::{Data, Fault, Request};

/// Sizes and abilities of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The size of a block in bytes: a power of two from 512 to 4096.
    pub block_size: u32,
    /// The number of blocks.
    pub blocks: u64,
    /// Whether it takes no writes.
    pub is_read_only: bool,
    /// Whether writes that have completed are lost with the power unless a flush follows.
    pub has_volatile_cache: bool,
    /// Whether it takes [`Request::Discard`].
    pub discard: bool,
    /// Whether it takes [`Request::WriteZeroes`].
    pub write_zeroes: bool,
    /// The most bytes of one read or write.
    pub most_bytes: u32,
    /// The most pieces of one read or write.
    pub most_pieces: usize,
    /// How many requests of one piece can be under way. Those of more pieces may be fewer.
    pub queue_depth: usize,
}

impl Geometry {
    /// The block sizes that there are.
    pub const BLOCK_SIZES: [u32; 4] = [512, 1024, 2048, 4096];

    /// Checks a request as far as every disk must, and returns the blocks that it is for. A flush
    /// is for no block in particular, so its range is empty.
    ///
    /// After this, the pieces lie in the buffer, are not empty, and have the bytes of exactly these
    /// blocks, which the disk has.
    pub fn check(&self, request: &Request<'_>) -> Result<Range<u64>, Fault> {
        match *request {
            Request::Read { block, into } => self.range(block, self.blocks_of(&into)?),
            Request::Write { block, from, .. } => {
                self.check_change(true)?;
                self.range(block, self.blocks_of(&from)?)
            }
            Request::Flush => Ok(0..0),
            Request::Discard { block, blocks } => {
                self.check_change(self.discard)?;
                self.range(block, blocks)
            }
            Request::WriteZeroes { block, blocks, .. } => {
                self.check_change(self.write_zeroes)?;
                self.range(block, blocks)
            }
        }
    }

    /// Whether the disk may be changed, in a way that it supports or does not.
    fn check_change(&self, supported: bool) -> Result<(), Fault> {
        match (self.is_read_only, supported) {
            (true, _) => Err(Fault::ReadOnly),
            (false, false) => Err(Fault::Unsupported),
            (false, true) => Ok(()),
        }
    }

    /// How many blocks the memory is for.
    fn blocks_of(&self, data: &Data<'_>) -> Result<u64, Fault> {
        if data.pieces.len() > self.most_pieces {
            return Err(Fault::Misaligned);
        }
        let mut bytes: u64 = 0;
        for piece in data.pieces {
            let end = piece.offset.checked_add(piece.len).filter(|&end| end <= data.buffer.len());
            if piece.len == 0 || end.is_none() {
                return Err(Fault::Misaligned);
            }
            bytes = bytes.checked_add(piece.len as u64).ok_or(Fault::Misaligned)?;
        }
        let block_size = u64::from(self.block_size);
        if bytes > u64::from(self.most_bytes) || !bytes.is_multiple_of(block_size) {
            return Err(Fault::Misaligned);
        }
        bytes.checked_div(block_size).ok_or(Fault::Misaligned)
    }

    /// The blocks from `block` on, if they exist.
    fn range(&self, block: u64, blocks: u64) -> Result<Range<u64>, Fault> {
        if blocks == 0 {
            return Err(Fault::Misaligned);
        }
        let end = block.checked_add(blocks).filter(|&end| end <= self.blocks);
        end.map(|end| block..end).ok_or(Fault::OutOfRange)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use alloc::sync::Arc;
    use std::vec::Vec;

    use platform::DmaBuffer;

    use super::*;
    use crate::Piece;
    use crate::testing::memory;

    const GEOMETRY: Geometry = Geometry {
        block_size: 512,
        blocks: 100,
        is_read_only: false,
        has_volatile_cache: true,
        discard: true,
        write_zeroes: true,
        most_bytes: 4096,
        most_pieces: 4,
        queue_depth: 8,
    };

    fn pieces(of: &[(usize, usize)]) -> Vec<Piece> {
        of.iter().map(|&(offset, len)| Piece { offset, len }).collect()
    }

    /// What a read and a write at `block` give, which is the same.
    #[track_caller]
    fn moved(buffer: &Arc<DmaBuffer>, block: u64, of: &[(usize, usize)]) -> Result<Range<u64>, Fault> {
        let pieces = pieces(of);
        let data = Data { buffer, pieces: &pieces };
        let read = GEOMETRY.check(&Request::Read { block, into: data });
        for fua in [false, true] {
            assert_eq!(GEOMETRY.check(&Request::Write { block, from: data, fua }), read);
        }
        read
    }

    #[test]
    fn memory_is_whole_blocks_in_the_buffer() {
        let buffer = memory(8192);
        let at_block_3 = |of: &[(usize, usize)]| moved(&buffer, 3, of);
        assert_eq!(at_block_3(&[(0, 512)]), Ok(3..4));
        assert_eq!(at_block_3(&[(8192 - 512, 512)]), Ok(3..4), "to the buffer's end");
        assert_eq!(at_block_3(&[(1, 511), (700, 1)]), Ok(3..4), "pieces have any length");
        assert_eq!(at_block_3(&[(0, 512), (0, 512), (0, 1024)]), Ok(3..7), "and may overlap");
        assert_eq!(at_block_3(&[(0, 4096)]), Ok(3..11), "the most bytes");
        assert_eq!(at_block_3(&[(0, 128); 4]), Ok(3..4), "the most pieces");
        for wrong in [
            &[][..],
            &[(0, 0)],
            &[(0, 512), (512, 0)],
            &[(0, 511)],
            &[(0, 513)],
            &[(0, 4096 + 512)],
            &[(0, 2048), (0, 2048), (0, 512)],
            &[(0, 512); 5],
            &[(8192 - 511, 512)],
            &[(8192, 512)],
            &[(8193, 512)],
            &[(usize::MAX, 512)],
            &[(usize::MAX - 511, 512)],
            &[(512, usize::MAX - 511)],
            &[(0, usize::MAX)],
        ] {
            assert_eq!(at_block_3(wrong), Err(Fault::Misaligned), "{wrong:?}");
        }
    }

    #[test]
    fn blocks_are_on_the_disk() {
        let buffer = memory(4096);
        let two = [(0, 1024)];
        assert_eq!(moved(&buffer, 0, &two), Ok(0..2));
        assert_eq!(moved(&buffer, 98, &two), Ok(98..100));
        for block in [99, 100, 101, u64::MAX - 2, u64::MAX - 1, u64::MAX] {
            assert_eq!(moved(&buffer, block, &two), Err(Fault::OutOfRange), "{block}");
        }
        for (block, blocks, expected) in [
            (0, 100, Ok(0..100)),
            (99, 1, Ok(99..100)),
            (0, 101, Err(Fault::OutOfRange)),
            (100, 1, Err(Fault::OutOfRange)),
            (1, u64::MAX, Err(Fault::OutOfRange)),
            (u64::MAX, u64::MAX, Err(Fault::OutOfRange)),
            (5, 0, Err(Fault::Misaligned)),
        ] {
            assert_eq!(GEOMETRY.check(&Request::Discard { block, blocks }), expected, "{block} {blocks}");
            let zeroes = Request::WriteZeroes { block, blocks, may_discard: true };
            assert_eq!(GEOMETRY.check(&zeroes), expected, "{block} {blocks}");
        }
        let largest = Geometry { blocks: u64::MAX, ..GEOMETRY };
        let all = Request::Discard { block: 0, blocks: u64::MAX };
        assert_eq!(largest.check(&all), Ok(0..u64::MAX));
    }

    #[test]
    fn a_disk_takes_what_it_says() {
        let buffer = memory(4096);
        let pieces = pieces(&[(0, 512)]);
        let data = Data { buffer: &buffer, pieces: &pieces };
        let results = |geometry: &Geometry| {
            [
                Request::Read { block: 0, into: data },
                Request::Flush,
                Request::Write { block: 0, from: data, fua: false },
                Request::Discard { block: 0, blocks: 1 },
                Request::WriteZeroes { block: 0, blocks: 1, may_discard: false },
            ]
            .map(|request| geometry.check(&request).map(|range| range.end))
        };
        let (unsupported, read_only) = (Err(Fault::Unsupported), Err(Fault::ReadOnly));
        assert_eq!(results(&GEOMETRY), [Ok(1), Ok(0), Ok(1), Ok(1), Ok(1)]);
        let no_discard = Geometry { discard: false, ..GEOMETRY };
        assert_eq!(results(&no_discard), [Ok(1), Ok(0), Ok(1), unsupported, Ok(1)]);
        let no_zeroes = Geometry { write_zeroes: false, ..GEOMETRY };
        assert_eq!(results(&no_zeroes), [Ok(1), Ok(0), Ok(1), Ok(1), unsupported]);
        let reads = Geometry { is_read_only: true, discard: false, ..GEOMETRY };
        assert_eq!(results(&reads), [Ok(1), Ok(0), read_only, read_only, read_only]);
        let nonsense = Geometry { block_size: 0, ..GEOMETRY };
        assert_eq!(results(&nonsense)[0], Err(Fault::Misaligned));
    }
}
