//! Memory for commands' data: chunks of two sizes, which the NIC and the disk reach by their bus
//! addresses.
//!
//! A pool never grows. A command for which it has no chunks waits until other commands give theirs
//! back.

use alloc::vec::Vec;

use block::{MOST_LENT, Piece};
use platform::Privileged;
use rdma::{Access, CreateError, Domain, Region, Slice};

/// The most chunks of a buffer.
pub(crate) const MOST_CHUNKS: usize = 8;
/// The most pieces of a request: chunks, or those of memory that a disk lends.
pub(crate) const MOST_PIECES: usize = if MOST_CHUNKS > MOST_LENT { MOST_CHUNKS } else { MOST_LENT };
/// The bytes of a small chunk: Linux's requests of one or two pages.
pub(crate) const SMALL: usize = 8 << 10;
/// The bytes of a large chunk.
pub(crate) const LARGE: usize = 128 << 10;
/// The longest buffer.
pub(crate) const LONGEST: usize = MOST_CHUNKS * LARGE;

/// A command's data: chunks of one size, of which only the last one may be filled in part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Buffer {
    /// Where the chunks begin in the pool's memory.
    chunks: heapless::Vec<u32, MOST_CHUNKS>,
    len: usize,
}

impl Buffer {
    /// The bytes that it holds.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The pieces, in order.
    pub(crate) fn pieces(&self) -> heapless::Vec<Piece, MOST_CHUNKS> {
        let size = if self.len <= SMALL { SMALL } else { LARGE };
        let piece = |(n, &offset): (usize, &u32)| Piece {
            offset: offset as usize,
            len: (self.len - n * size).min(size),
        };
        self.chunks.iter().enumerate().map(piece).collect()
    }
}

/// How many chunks a pool has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) small: usize,
    pub(crate) large: usize,
}

/// The chunks.
pub(crate) struct Pool {
    pub(crate) memory: Region,
    /// The same memory as the sink of RDMA Reads, which has to be registered.
    sink: Region,
    small: Vec<u32>,
    large: Vec<u32>,
    sizes: Sizes,
}

impl Pool {
    pub(crate) fn new(domain: &Domain, privileged: Privileged, sizes: Sizes) -> Result<Pool, CreateError> {
        let split = sizes.small * SMALL;
        let end = split + sizes.large * LARGE;
        let memory = domain.direct(end, privileged)?;
        let sink = domain.register(memory.buffer().clone(), Access::empty())?;
        let free =
            |from: usize, to: usize, size: usize| (from..to).step_by(size).map(|at| at as u32).collect();
        Ok(Pool { memory, sink, small: free(0, split, SMALL), large: free(split, end, LARGE), sizes })
    }

    /// How many chunks are free, small ones and large ones.
    pub(crate) fn free(&self) -> [usize; 2] {
        [self.small.len(), self.large.len()]
    }

    /// How many there are.
    pub(crate) fn count(&self) -> [usize; 2] {
        [self.sizes.small, self.sizes.large]
    }

    /// Whether no command has a chunk.
    pub(crate) fn is_whole(&self) -> bool {
        (self.small.len(), self.large.len()) == (self.sizes.small, self.sizes.large)
    }

    /// The chunks of a buffer of `len` bytes.
    pub(crate) fn chunks(len: usize) -> usize {
        if len <= SMALL { usize::from(len > 0) } else { len.div_ceil(LARGE) }
    }

    /// How many chunks are free of those that a buffer of `len` bytes has.
    pub(crate) fn free_for(&self, len: usize) -> usize {
        if len <= SMALL { self.small.len() } else { self.large.len() }
    }

    /// A buffer of `len` bytes, which is at most [`LONGEST`]; `None` while there is not enough
    /// memory.
    pub(crate) fn take(&mut self, len: usize) -> Option<Buffer> {
        let count = Pool::chunks(len);
        let free = if len <= SMALL { &mut self.small } else { &mut self.large };
        if count > MOST_CHUNKS {
            return None;
        }
        let rest = free.len().checked_sub(count)?;
        Some(Buffer { chunks: free.drain(rest..).collect(), len })
    }

    /// Takes a buffer back.
    pub(crate) fn give(&mut self, buffer: Buffer) {
        let free = if buffer.len <= SMALL { &mut self.small } else { &mut self.large };
        free.extend(buffer.chunks);
    }

    /// A buffer's pieces, as a request names them.
    pub(crate) fn slices(&self, buffer: &Buffer) -> heapless::Vec<Slice<'_>, MOST_PIECES> {
        slices(&self.memory, buffer)
    }

    /// A buffer's pieces as the sink of an RDMA Read.
    pub(crate) fn sinks(&self, buffer: &Buffer) -> heapless::Vec<Slice<'_>, MOST_PIECES> {
        slices(&self.sink, buffer)
    }

    /// Copies bytes into a buffer, from `offset` on. What lies beyond its end is left out.
    pub(crate) fn write(&self, buffer: &Buffer, mut offset: usize, mut from: &[u8]) {
        for piece in buffer.pieces() {
            if offset >= piece.len {
                offset -= piece.len;
                continue;
            }
            let (now, later) = from.split_at((piece.len - offset).min(from.len()));
            // The piece lies in the memory.
            let _ = self.memory.buffer().write(piece.offset + offset, now);
            (from, offset) = (later, 0);
        }
    }

    /// Copies bytes out of a buffer, from its beginning. Bytes beyond its end stay as they are.
    pub(crate) fn read(&self, buffer: &Buffer, into: &mut [u8]) {
        self.read_at(buffer, 0, into);
    }

    /// Copies bytes out of a buffer, from `offset` on. Bytes beyond its end stay as they are.
    pub(crate) fn read_at(&self, buffer: &Buffer, mut offset: usize, mut into: &mut [u8]) {
        for piece in buffer.pieces() {
            if offset >= piece.len {
                offset -= piece.len;
                continue;
            }
            let (now, later) = into.split_at_mut((piece.len - offset).min(into.len()));
            // The piece lies in the memory.
            let _ = self.memory.buffer().read(piece.offset + offset, now);
            (into, offset) = (later, 0);
        }
    }
}

fn slices<'a>(memory: &'a Region, buffer: &Buffer) -> heapless::Vec<Slice<'a>, MOST_PIECES> {
    // The pieces lie in the memory.
    buffer.pieces().iter().filter_map(|piece| memory.get(piece.offset..piece.offset + piece.len)).collect()
}
