//! A disk whose blocks are memory.
//!
//! A request is carried out when it is submitted, and completes in the next poll. Neither
//! allocates. Bytes are copied without a lock; the lock `state` is held for a few instructions.
//! [`RamDisk::resize`] makes the disk larger or smaller meanwhile: a request keeps the list of
//! chunks that it began with.
//!
//! Locks: `resizing`, then `state` (both spin).

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use platform::sync::Mutex;
use platform::{DmaBuffer, OutOfBounds, OutOfMemory, Platform, SharedSlice, heap};

use crate::size::Size;
use crate::watch::{Routine, Watch};
use crate::{Data, Disk, Event, Fault, Geometry, Piece, Request, Submit};

/// The memory is allocated in pieces of this size at most, since a large machine may have no
/// contiguous memory for the whole disk. It is a multiple of every block size.
const CHUNK: usize = 1 << 20;
/// Requests that may wait to be polled.
const DEPTH: usize = 256;
/// The most bytes of a request, and the most pieces: they bound the time of a submission.
const MOST_BYTES: u32 = 4 << 20;
const MOST_PIECES: usize = 1024;

/// Why there is no such RAM disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewError {
    /// The block size is none of [`Geometry::BLOCK_SIZES`].
    BlockSize,
    /// There is not enough memory.
    OutOfMemory,
}

impl fmt::Display for NewError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NewError::BlockSize => "the block size is not 512, 1024, 2048 or 4096",
            NewError::OutOfMemory => "not enough memory for the disk",
        })
    }
}

impl core::error::Error for NewError {}

impl From<OutOfMemory> for NewError {
    fn from(OutOfMemory: OutOfMemory) -> NewError {
        NewError::OutOfMemory
    }
}

/// A disk in memory that it owns. At first all blocks are zero.
///
/// [`Request::Discard`] leaves the blocks as they are: their memory stays the disk's, and a request
/// for a whole disk must not take the time of filling it.
pub struct RamDisk {
    /// All but `blocks`.
    geometry: Geometry,
    blocks: AtomicU64,
    platform: Arc<dyn Platform>,
    /// Held by the thread that makes the disk larger or smaller.
    resizing: Mutex<()>,
    state: Mutex<State>,
}

struct State {
    chunks: Chunks,
    size: Size,
    /// Requests that have completed and were not polled, in order. Its room for [`DEPTH`] was
    /// allocated at first.
    done: VecDeque<(u64, Result<(), Fault>)>,
    /// Requests that were submitted and not polled.
    taken: usize,
    watch: Watch,
}

/// Memory of the disk, from the byte `start` of the disk on.
#[derive(Clone)]
struct Chunk {
    start: usize,
    memory: Arc<DmaBuffer>,
}

/// The disk's memory in order, without gaps.
#[derive(Clone)]
struct Chunks(Arc<Vec<Chunk>>);

impl Chunks {
    /// The chunks of `former` below `end`, and new ones of zeros up to there.
    fn of(platform: &Arc<dyn Platform>, former: &[Chunk], end: usize) -> Result<Chunks, OutOfMemory> {
        let kept = former.partition_point(|chunk| chunk.start < end);
        let mut at = former[..kept].last().map_or(0, |chunk| chunk.start + chunk.memory.len());
        let mut chunks = Vec::new();
        let room = kept + end.saturating_sub(at).div_ceil(CHUNK);
        chunks.try_reserve_exact(room).map_err(|_| OutOfMemory)?;
        chunks.extend_from_slice(&former[..kept]);
        while at < end {
            let memory = DmaBuffer::new(platform, (end - at).min(CHUNK), 4096)?;
            let memory = heap::arc(memory).map_err(|_| OutOfMemory)?;
            chunks.push(Chunk { start: at, memory });
            at = end.min(at + CHUNK);
        }
        heap::arc(chunks).map(Chunks).map_err(|_| OutOfMemory)
    }

    /// Passes each slice of the disk's memory from `at` on, with the number of bytes before it.
    fn each(
        &self,
        at: usize,
        len: usize,
        mut act: impl FnMut(usize, SharedSlice<'_>) -> Result<(), OutOfBounds>,
    ) -> Result<(), OutOfBounds> {
        let mut next = self.0.partition_point(|chunk| chunk.start <= at).saturating_sub(1);
        let mut done = 0;
        while done < len {
            let Chunk { start, memory } = self.0.get(next).ok_or(OutOfBounds)?;
            let within = at + done - start;
            let part = (len - done).min(memory.len().saturating_sub(within));
            act(done, memory.slice().get(within, part)?)?;
            done += part;
            next += 1;
        }
        Ok(())
    }

    /// Passes each slice of the disk's memory from `at` on, with the slice of the request's memory
    /// that belongs to it.
    fn each_pair(
        &self,
        mut at: usize,
        data: &Data<'_>,
        mut copy: impl FnMut(SharedSlice<'_>, SharedSlice<'_>) -> Result<(), OutOfBounds>,
    ) -> Result<(), OutOfBounds> {
        for &Piece { offset, len } in data.pieces {
            let piece = data.buffer.slice().get(offset, len)?;
            self.each(at, len, |done, memory| copy(memory, piece.get(done, memory.len())?))?;
            at += len;
        }
        Ok(())
    }

    fn fill_with_zeros(&self, at: usize, len: usize) -> Result<(), OutOfBounds> {
        self.each(at, len, |_, memory| {
            memory.fill(0);
            Ok(())
        })
    }
}

impl RamDisk {
    /// A disk of so many blocks. All its memory is allocated here.
    pub fn new(platform: &Arc<dyn Platform>, block_size: u32, blocks: u64) -> Result<RamDisk, NewError> {
        if !Geometry::BLOCK_SIZES.contains(&block_size) {
            return Err(NewError::BlockSize);
        }
        let geometry = Geometry {
            block_size,
            blocks,
            is_read_only: false,
            has_volatile_cache: false,
            discard: true,
            write_zeroes: true,
            most_bytes: MOST_BYTES,
            most_pieces: MOST_PIECES,
            queue_depth: DEPTH,
        };
        let chunks = Chunks::of(platform, &[], bytes(&geometry, blocks)?)?;
        let mut done = VecDeque::new();
        done.try_reserve_exact(DEPTH).map_err(|_| NewError::OutOfMemory)?;
        let state = State { chunks, size: Size::new(blocks), done, taken: 0, watch: Watch::new() };
        Ok(RamDisk {
            geometry,
            blocks: AtomicU64::new(blocks),
            platform: platform.clone(),
            resizing: Mutex::new(()),
            state: Mutex::new(state),
        })
    }

    /// Makes the disk larger or smaller. Blocks that it gets are zero, unless a thread that submits
    /// a request meanwhile writes to blocks that the disk has just lost and gets back here. After
    /// an error the disk has the size that it had.
    pub fn resize(&self, blocks: u64) -> Result<(), OutOfMemory> {
        let due = {
            let _alone = self.resizing.lock();
            let (former, blocks_before) = {
                let state = self.state.lock();
                (state.chunks.clone(), state.size.blocks())
            };
            let before = bytes(&self.geometry, blocks_before)?;
            let end = bytes(&self.geometry, blocks)?;
            let chunks = Chunks::of(&self.platform, &former.0, end)?;
            let covered = former.0.last().map_or(0, |chunk| chunk.start + chunk.memory.len());
            // What the last chunk holds from before the disk shrank. It lies within the chunks.
            let _ = chunks.fill_with_zeros(before, end.min(covered).saturating_sub(before));
            let mut state = self.state.lock();
            self.blocks.store(blocks, Ordering::Release);
            state.chunks = chunks;
            if state.size.set(blocks) { state.watch.ready() } else { None }
        };
        if let Some(routine) = due {
            routine();
        }
        Ok(())
    }

    /// Carries out a request that was checked. What it names lies in the buffer, and in the disk
    /// unless that has shrunk since.
    fn carry_out(&self, chunks: &Chunks, request: &Request<'_>) -> Result<(), OutOfBounds> {
        // Below the disk's length in bytes, which is a `usize`.
        let bytes = |blocks: u64| blocks as usize * self.geometry.block_size as usize;
        match *request {
            Request::Read { block, into } => {
                chunks.each_pair(bytes(block), &into, |disk, memory| disk.copy_to(&memory))
            }
            Request::Write { block, from, .. } => {
                chunks.each_pair(bytes(block), &from, |disk, memory| memory.copy_to(&disk))
            }
            Request::Flush | Request::Discard { .. } => Ok(()),
            Request::WriteZeroes { block, blocks, .. } => chunks.fill_with_zeros(bytes(block), bytes(blocks)),
        }
    }
}

/// The length of so many blocks.
fn bytes(geometry: &Geometry, blocks: u64) -> Result<usize, OutOfMemory> {
    let bytes = blocks.checked_mul(u64::from(geometry.block_size));
    bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or(OutOfMemory)
}

impl Disk for RamDisk {
    fn geometry(&self) -> Geometry {
        Geometry { blocks: self.blocks.load(Ordering::Acquire), ..self.geometry }
    }

    fn submit(&self, request: &Request<'_>, token: u64) -> Result<(), Submit> {
        self.geometry().check(request)?;
        let chunks = {
            let mut state = self.state.lock();
            if state.taken == DEPTH {
                return Err(Submit::Busy);
            }
            state.taken += 1;
            state.chunks.clone()
        };
        let result = self.carry_out(&chunks, request).map_err(|OutOfBounds| Fault::OutOfRange);
        let due = {
            let mut state = self.state.lock();
            state.done.push_back((token, result));
            state.watch.ready()
        };
        if let Some(routine) = due {
            routine();
        }
        Ok(())
    }

    fn poll(&self, most: usize, into: &mut dyn FnMut(u64, Result<(), Fault>)) -> usize {
        for polled in 0..most {
            let mut state = self.state.lock();
            state.size.see();
            let Some((token, result)) = state.done.pop_front() else { return polled };
            state.taken -= 1;
            drop(state);
            into(token, result);
        }
        most
    }

    fn event(&self) -> Option<Event> {
        self.state.lock().size.event()
    }

    fn watch(&self, routine: Option<Routine>) {
        // The former one is released outside of the lock.
        let _former = self.state.lock().watch.set(routine);
    }

    fn arm(&self) -> bool {
        let mut state = self.state.lock();
        state.watch.arm();
        !state.done.is_empty() || state.size.is_unseen()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::vec::Vec;

    use super::*;
    use crate::testing::{completions, memory, pattern, platform, read, run, write};

    const BLOCK: u32 = 512;
    const BLOCKS_OF_A_CHUNK: u64 = CHUNK as u64 / BLOCK as u64;

    fn disk(blocks: u64) -> RamDisk {
        RamDisk::new(&platform(), BLOCK, blocks).expect("memory")
    }

    #[test]
    fn what_is_written_is_read_also_across_chunks_and_at_both_ends() {
        let disk = disk(2 * BLOCKS_OF_A_CHUNK + 3);
        let last = disk.geometry().blocks - 1;
        for (block, blocks) in [(0, 1), (7, 8), (BLOCKS_OF_A_CHUNK - 1, 3), (last - 4, 5), (last, 1)] {
            let len = blocks * BLOCK as usize;
            assert_eq!(read(&disk, block, len), Ok(std::vec![0; len]), "zeros at first");
            let bytes = pattern(block, len, 1);
            assert_eq!(write(&disk, block, &bytes, blocks == 3), Ok(()));
            assert_eq!(read(&disk, block, len), Ok(bytes.clone()));
            assert_eq!(read(&disk, block, BLOCK as usize), Ok(bytes[..BLOCK as usize].to_vec()));
            assert_eq!(run(&disk, &Request::Discard { block, blocks: 1 }), Ok(()));
            let zeroes = Request::WriteZeroes { block, blocks: blocks as u64, may_discard: false };
            assert_eq!(run(&disk, &zeroes), Ok(()));
            assert_eq!(read(&disk, block, len), Ok(std::vec![0; len]));
        }
        assert_eq!(run(&disk, &Request::Flush), Ok(()));
    }

    #[test]
    fn neighbours_of_what_is_written_do_not_change() {
        let disk = disk(2 * BLOCKS_OF_A_CHUNK);
        let from = BLOCKS_OF_A_CHUNK - 2;
        let mut all = pattern(from, 4 * BLOCK as usize, 2);
        assert_eq!(write(&disk, from, &all, false), Ok(()));
        let middle = pattern(9, 2 * BLOCK as usize, 3);
        assert_eq!(write(&disk, from + 1, &middle, false), Ok(()));
        all[BLOCK as usize..3 * BLOCK as usize].copy_from_slice(&middle);
        assert_eq!(read(&disk, from, all.len()), Ok(all.clone()));
        let zeroes = Request::WriteZeroes { block: from + 1, blocks: 2, may_discard: true };
        assert_eq!(run(&disk, &zeroes), Ok(()));
        all[BLOCK as usize..3 * BLOCK as usize].fill(0);
        assert_eq!(read(&disk, from, all.len()), Ok(all));
    }

    #[test]
    fn block_sizes_are_those_of_the_geometry_and_memory_may_run_out() {
        for block_size in Geometry::BLOCK_SIZES {
            let disk = RamDisk::new(&platform(), block_size, 9).expect("memory");
            let bytes = pattern(8, block_size as usize, 4);
            assert_eq!(write(&disk, 8, &bytes, true), Ok(()));
            assert_eq!(read(&disk, 8, bytes.len()), Ok(bytes));
        }
        for wrong in [0, 1, 256, 513, 768, 8192, u32::MAX] {
            assert_eq!(RamDisk::new(&platform(), wrong, 9).err(), Some(NewError::BlockSize), "{wrong}");
        }
        for blocks in [1 << 20, 1 << 55, u64::MAX] {
            assert_eq!(RamDisk::new(&platform(), 512, blocks).err(), Some(NewError::OutOfMemory), "{blocks}");
        }
        let empty = disk(0);
        let zeroes = Request::WriteZeroes { block: 0, blocks: 1, may_discard: false };
        assert_eq!(empty.submit(&zeroes, 1), Err(Submit::Fault(Fault::OutOfRange)));
    }

    #[test]
    fn requests_complete_once_in_order_and_the_queue_has_an_end() {
        let disk = disk(8);
        for token in 0..DEPTH as u64 {
            assert_eq!(disk.submit(&Request::Flush, token), Ok(()));
        }
        assert_eq!(disk.submit(&Request::Flush, 9999), Err(Submit::Busy));
        let beyond = Request::Discard { block: 8, blocks: 1 };
        assert_eq!(disk.submit(&beyond, 9999), Err(Submit::Fault(Fault::OutOfRange)));
        let mut tokens = Vec::new();
        assert_eq!(disk.poll(0, &mut |token, _| tokens.push(token)), 0);
        assert_eq!(disk.poll(2, &mut |token, _| tokens.push(token)), 2);
        assert_eq!(tokens, [0, 1]);
        for token in [7000, 7001] {
            assert_eq!(disk.submit(&Request::Flush, token), Ok(()));
        }
        assert_eq!(disk.submit(&Request::Flush, 9999), Err(Submit::Busy));
        let rest = completions(&disk);
        let expected: Vec<_> = (2..DEPTH as u64).chain([7000, 7001]).map(|token| (token, Ok(()))).collect();
        assert_eq!(rest, expected);
        assert_eq!(completions(&disk), []);
    }

    #[test]
    fn a_completion_may_submit_the_next_request() {
        let disk = disk(8);
        assert_eq!(disk.submit(&Request::Flush, 0), Ok(()));
        let mut seen = Vec::new();
        let polled = disk.poll(5, &mut |token, result| {
            assert_eq!(result, Ok(()));
            seen.push(token);
            assert_eq!(disk.submit(&Request::Flush, token + 1), Ok(()));
        });
        assert_eq!((polled, seen), (5, std::vec![0, 1, 2, 3, 4]));
    }

    #[test]
    fn the_routine_is_called_once_after_it_was_armed() {
        let disk = disk(8);
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        disk.watch(Some(Arc::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        })));
        let calls = || calls.load(Ordering::SeqCst);
        let submit = || assert_eq!(disk.submit(&Request::Flush, 0), Ok(()));
        submit();
        assert_eq!((calls(), completions(&disk).len()), (0, 1), "it is not armed");
        assert!(!disk.arm());
        submit();
        submit();
        assert_eq!((calls(), completions(&disk).len()), (1, 2));
        submit();
        assert_eq!(calls(), 1, "it is not armed again");
        assert!(disk.arm(), "a completion is ready");
        assert_eq!(completions(&disk).len(), 1);
        submit();
        assert_eq!((calls(), completions(&disk).len()), (2, 1));
        assert!(!disk.arm());
        disk.watch(None);
        submit();
        assert_eq!(calls(), 2);
    }

    #[test]
    fn a_buffer_is_released_with_its_request() {
        let disk = disk(8);
        let buffer = memory(512);
        let pieces = [Piece { offset: 0, len: 512 }];
        let data = Data { buffer: &buffer, pieces: &pieces };
        assert_eq!(run(&disk, &Request::Read { block: 0, into: data }), Ok(()));
        assert_eq!(Arc::strong_count(&buffer), 1);
    }
}
