//! Memory that a disk lends: a consumer's device reads blocks from it, or brings blocks into it,
//! without a copy.

use core::iter;

/// What a consumer does with the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loan {
    /// Its device reads the blocks. The memory keeps their contents of the time of the loan,
    /// whatever is written meanwhile.
    Read,
    /// Its device brings new contents. The blocks keep the old ones until
    /// [`Disk::commit`](crate::Disk::commit).
    Write,
}

/// A piece of the memory that is lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentPiece {
    /// The buffer, by its place in [`Disk::memory`](crate::Disk::memory).
    pub buffer: usize,
    /// Where in the buffer it begins.
    pub offset: usize,
    /// Its length, which is not 0.
    pub len: usize,
}

/// The most pieces of a lease: those of 1 MiB that begins inside of an extent.
pub const MOST_LENT: usize = 9;

/// Memory that a disk has lent. The consumer gives it back, by [`Disk::commit`](crate::Disk::commit)
/// or [`Disk::cancel`](crate::Disk::cancel), when its device accesses the memory no more; otherwise
/// the disk has that much less to lend.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the disk lends it until it is given back"]
pub struct Lease {
    pub(crate) loan: Loan,
    pub(crate) block: u64,
    /// How many bytes, from which byte of the first extent on.
    pub(crate) len: u32,
    pub(crate) first: u32,
    /// The logarithms of an extent's bytes and of the extents of a buffer.
    pub(crate) shift: u8,
    pub(crate) per_buffer: u8,
    pub(crate) extents: [u32; MOST_LENT],
}

impl Lease {
    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// The first block.
    pub fn block(&self) -> u64 {
        self.block
    }

    /// How many extents it has.
    pub(crate) fn count(&self) -> usize {
        ((self.first + self.len) as usize).div_ceil(1 << self.shift)
    }

    /// The memory, in the order of the blocks.
    pub fn pieces(&self) -> impl Iterator<Item = LentPiece> + '_ {
        let (mut extents, size) = (self.extents.iter(), 1usize << self.shift);
        let (mut at, mut left) = (self.first as usize, self.len as usize);
        iter::from_fn(move || {
            let extent = *extents.next()? as usize;
            let len = left.min(size - at);
            if len == 0 {
                return None;
            }
            let within = extent & ((1 << self.per_buffer) - 1);
            let offset = (within << self.shift) + core::mem::take(&mut at);
            left -= len;
            Some(LentPiece { buffer: extent >> self.per_buffer, offset, len })
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    #[test]
    fn pieces_follow_the_extents_from_the_middle_of_the_first_one_on() {
        let mut extents = [0; MOST_LENT];
        extents[..3].copy_from_slice(&[5, 8, 3]);
        let lease =
            Lease { loan: Loan::Read, block: 7, len: 5000, first: 3000, shift: 12, per_buffer: 2, extents };
        assert_eq!((lease.len(), lease.block(), lease.count()), (5000, 7, 2));
        let pieces: Vec<_> = lease.pieces().collect();
        let piece = |buffer, offset, len| LentPiece { buffer, offset, len };
        assert_eq!(pieces, [piece(1, 4096 + 3000, 1096), piece(2, 0, 3904)]);
    }
}
