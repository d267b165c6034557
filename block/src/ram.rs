//! A disk whose blocks are memory, which it lends.
//!
//! A request is carried out when it is submitted, and completes in the next poll. Neither
//! allocates. Bytes are copied under the lock `copying`, one request after the other. The lock
//! `state` is held for a few instructions; lending, committing and polling take no other.
//!
//! Readers to whom the disk has lent blocks see the contents of that time: a write to an extent
//! that one of them has goes into a fresh extent, which then replaces it (`extents`). What is
//! written to lent memory replaces whole extents at once, at [`Disk::commit`].
//!
//! [`RamDisk::resize`] makes the disk larger or smaller meanwhile.
//!
//! Locks: `copying`, then `state` (both spin).

mod extents;

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use platform::sync::Mutex;
use platform::{DmaBuffer, OutOfBounds, OutOfMemory, Platform, SharedSlice};

use self::extents::{EXTENT, Extents};
use crate::lend::{Lease, Loan};
use crate::size::Size;
use crate::watch::{Routine, Watch};
use crate::{Data, Disk, Event, Fault, Geometry, Piece, Request, Submit};

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
///
/// It lends its memory ([`Disk::lend`]): any blocks to be read, up to 1 MiB at once, and whole
/// extents of 128 KiB to be written. For that it has up to 12.125 MiB more memory than blocks. At
/// most 8 MiB, or half of a smaller disk, are lent to readers at a time, and half as much to
/// writers.
pub struct RamDisk {
    /// All but `blocks`.
    geometry: Geometry,
    blocks: AtomicU64,
    platform: Arc<dyn Platform>,
    /// Held by the thread that copies blocks, or makes the disk larger or smaller.
    copying: Mutex<()>,
    copied: AtomicU64,
    state: Mutex<State>,
}

struct State {
    extents: Extents,
    size: Size,
    /// Requests that have completed and were not polled, in order. Its room for [`DEPTH`] was
    /// allocated at first.
    done: VecDeque<(u64, Result<(), Fault>)>,
    /// Requests that were submitted and not polled.
    taken: usize,
    watch: Watch,
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
        let extents = Extents::new(platform, bytes(&geometry, blocks)?)?;
        let mut done = VecDeque::new();
        done.try_reserve_exact(DEPTH).map_err(|_| NewError::OutOfMemory)?;
        let state = State { extents, size: Size::new(blocks), done, taken: 0, watch: Watch::new() };
        Ok(RamDisk {
            geometry,
            blocks: AtomicU64::new(blocks),
            platform: platform.clone(),
            copying: Mutex::new(()),
            copied: AtomicU64::new(0),
            state: Mutex::new(state),
        })
    }

    /// Makes the disk larger or smaller. Blocks that it gets are zero. Memory of blocks that it
    /// loses is kept for later growth. After an error the disk has the size that it had.
    pub fn resize(&self, blocks: u64) -> Result<(), OutOfMemory> {
        let due = {
            let alone = self.copying.lock();
            let blocks_before = self.state.lock().size.blocks();
            let before = bytes(&self.geometry, blocks_before)?;
            let end = bytes(&self.geometry, blocks)?;
            if self.state.lock().extents.count() * EXTENT < end {
                self.grow(before, end)?;
            } else {
                self.state.lock().extents.resize(end);
            }
            // What the last extent holds from before the disk shrank. It lies within the extents.
            if before < end {
                let held = before.next_multiple_of(EXTENT).min(end);
                let _ = self.fill_with_zeros(before, held - before);
            }
            drop(alone);
            let mut state = self.state.lock();
            self.blocks.store(blocks, Ordering::Release);
            if state.size.set(blocks) { state.watch.ready() } else { None }
        };
        if let Some(routine) = due {
            routine();
        }
        Ok(())
    }

    /// Gives the disk more extents, which are zero.
    fn grow(&self, before: usize, end: usize) -> Result<(), OutOfMemory> {
        // Only a thread that has the lock `copying` changes what is computed here.
        let growth = self.state.lock().extents.growth(&self.platform, end)?;
        {
            let mut state = self.state.lock();
            state.extents.grow(growth);
            state.extents.resize(end);
        }
        let first = before.next_multiple_of(EXTENT).min(end);
        // Memory that was in use before holds anything. The extents are there.
        let _ = self.fill_with_zeros(first, end - first);
        Ok(())
    }

    /// How many bytes were copied: between blocks and the memory of requests, and for readers who
    /// see what was there before. Zeros that are written are no copies.
    pub fn copied(&self) -> u64 {
        self.copied.load(Ordering::Acquire)
    }

    fn has_copied(&self, bytes: usize) {
        self.copied.fetch_add(bytes as u64, Ordering::Release);
    }

    /// Passes each slice of the disk's memory from `at` on, with the number of bytes before it:
    /// what lies in one extent. The caller has the lock `copying`.
    fn each(
        &self,
        at: usize,
        len: usize,
        changes: bool,
        mut act: impl FnMut(usize, SharedSlice<'_>) -> Result<(), OutOfBounds>,
    ) -> Result<(), OutOfBounds> {
        let mut done = 0;
        while done < len {
            let (extent, within) = ((at + done) / EXTENT, (at + done) % EXTENT);
            let part = (len - done).min(EXTENT - within);
            let (memory, former, fresh) = {
                let extents = &mut self.state.lock().extents;
                let (former, fresh) = match changes {
                    true => extents.copy_into(extent).ok_or(OutOfBounds)?,
                    false => (extents.copy_from(extent).ok_or(OutOfBounds)?, None),
                };
                (extents.memory.clone(), former, fresh)
            };
            let mut change = || {
                let Some(fresh) = fresh else { return act(done, memory.extent(former)?.get(within, part)?) };
                let (from, into) = (memory.extent(former)?, memory.extent(fresh)?);
                let end = within + part;
                for (at, len) in [(0, within), (end, EXTENT - end)] {
                    from.get(at, len)?.copy_to(&into.get(at, len)?)?;
                    self.has_copied(len);
                }
                act(done, into.get(within, part)?)
            };
            let result = change();
            let extents = &mut self.state.lock().extents;
            match fresh {
                Some(fresh) if result.is_ok() => extents.replace(extent, former, fresh),
                _ => {
                    extents.copied(former);
                    fresh.into_iter().for_each(|fresh| extents.copied(fresh));
                }
            }
            result?;
            done += part;
        }
        Ok(())
    }

    /// Passes each slice of the disk's memory from `at` on, with the slice of the request's memory
    /// that belongs to it. All of an extent is passed before readers can be lent it, so they find
    /// no block in parts.
    fn each_pair(
        &self,
        at: usize,
        data: &Data<'_>,
        changes: bool,
        mut copy: impl FnMut(SharedSlice<'_>, SharedSlice<'_>) -> Result<(), OutOfBounds>,
    ) -> Result<(), OutOfBounds> {
        let (mut pieces, mut next) = (data.pieces.iter(), None);
        let len = data.pieces.iter().map(|piece| piece.len).sum();
        self.each(at, len, changes, |_, memory| {
            self.has_copied(memory.len());
            let mut done = 0;
            while done < memory.len() {
                let Piece { offset, len } =
                    next.take().or_else(|| pieces.next().copied()).ok_or(OutOfBounds)?;
                let now = len.min(memory.len() - done);
                copy(memory.get(done, now)?, data.buffer.slice().get(offset, now)?)?;
                next = (now < len).then_some(Piece { offset: offset + now, len: len - now });
                done += now;
            }
            Ok(())
        })
    }

    fn fill_with_zeros(&self, at: usize, len: usize) -> Result<(), OutOfBounds> {
        self.each(at, len, true, |_, memory| {
            memory.fill(0);
            Ok(())
        })
    }

    /// Carries out a request that was checked. What it names lies in the buffer, and in the disk
    /// unless that has shrunk since.
    fn carry_out(&self, request: &Request<'_>) -> Result<(), OutOfBounds> {
        // Below the disk's length in bytes, which is a `usize`.
        let bytes = |blocks: u64| blocks as usize * self.geometry.block_size as usize;
        match *request {
            Request::Flush | Request::Discard { .. } => Ok(()),
            Request::Read { block, into } => {
                let _alone = self.copying.lock();
                self.each_pair(bytes(block), &into, false, |disk, memory| disk.copy_to(&memory))
            }
            Request::Write { block, from, .. } => {
                let _alone = self.copying.lock();
                self.each_pair(bytes(block), &from, true, |disk, memory| memory.copy_to(&disk))
            }
            Request::WriteZeroes { block, blocks, .. } => {
                let _alone = self.copying.lock();
                self.fill_with_zeros(bytes(block), bytes(blocks))
            }
        }
    }

    /// Adds a completion.
    fn complete(&self, token: u64, result: Result<(), Fault>) {
        let due = {
            let mut state = self.state.lock();
            state.done.push_back((token, result));
            state.watch.ready()
        };
        if let Some(routine) = due {
            routine();
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
        {
            let mut state = self.state.lock();
            if state.taken == DEPTH {
                return Err(Submit::Busy);
            }
            state.taken += 1;
        }
        let result = self.carry_out(request).map_err(|OutOfBounds| Fault::OutOfRange);
        self.complete(token, result);
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

    fn memory(&self) -> Vec<Arc<DmaBuffer>> {
        let memory = self.state.lock().extents.memory.clone();
        memory.buffers.to_vec()
    }

    fn lend(&self, blocks: Range<u64>, loan: Loan) -> Option<Lease> {
        let size = self.geometry.block_size as usize;
        let count = blocks.end.checked_sub(blocks.start).filter(|&count| count > 0)?;
        if blocks.end > self.blocks.load(Ordering::Acquire) || count > u64::from(MOST_BYTES) {
            return None;
        }
        let (at, len) = (blocks.start as usize * size, count as usize * size);
        let lease = self.state.lock().extents.lend(at, len, loan)?;
        Some(Lease { block: blocks.start, ..lease })
    }

    fn commit(&self, lease: Lease, _fua: bool, token: u64) -> Result<(), (Submit, Lease)> {
        let at = lease.block as usize * self.geometry.block_size as usize;
        let due = {
            let mut state = self.state.lock();
            if state.taken == DEPTH {
                return Err((Submit::Busy, lease));
            }
            state.taken += 1;
            let result = if state.extents.commit(&lease, at) { Ok(()) } else { Err(Fault::OutOfRange) };
            state.done.push_back((token, result));
            state.watch.ready()
        };
        if let Some(routine) = due {
            routine();
        }
        Ok(())
    }

    fn cancel(&self, lease: Lease) {
        self.state.lock().extents.cancel(&lease);
    }

    fn copied(&self) -> u64 {
        RamDisk::copied(self)
    }

    fn is_durable(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::vec::Vec;

    use super::*;
    use crate::LentPiece;
    use crate::testing::{completions, memory, pattern, platform, read, run, write};

    const BLOCK: u32 = 512;
    /// More than an extent, so that what crosses its end crosses that of an extent.
    const BLOCKS_OF_A_CHUNK: u64 = 8 * EXTENT as u64 / BLOCK as u64;

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

    /// The contents of lent memory.
    fn contents(disk: &RamDisk, lease: &Lease) -> Vec<u8> {
        let (buffers, mut all) = (disk.memory(), Vec::new());
        for LentPiece { buffer, offset, len } in lease.pieces() {
            let mut piece = std::vec![0; len];
            buffers[buffer].read(offset, &mut piece).expect("within");
            all.extend(piece);
        }
        all
    }

    /// Brings contents into lent memory.
    fn bring(disk: &RamDisk, lease: &Lease, mut bytes: &[u8]) {
        for LentPiece { buffer, offset, len } in lease.pieces() {
            let (now, later) = bytes.split_at(len);
            disk.memory()[buffer].write(offset, now).expect("within");
            bytes = later;
        }
    }

    /// Commits what a lease has brought.
    fn commit(disk: &RamDisk, lease: Lease) -> Result<(), Fault> {
        disk.commit(lease, false, 77).expect("room");
        let done = completions(disk);
        let [(77, result)] = done[..] else { panic!("{done:?}") };
        result
    }

    fn is_whole(disk: &RamDisk) -> bool {
        disk.state.lock().extents.is_whole()
    }

    const PER_EXTENT: u64 = EXTENT as u64 / BLOCK as u64;

    #[test]
    fn readers_keep_what_was_lent_whatever_is_written_meanwhile() {
        let disk = disk(8 * PER_EXTENT);
        // From the middle of an extent on.
        let (from, len) = (PER_EXTENT / 2, 2 * EXTENT);
        let blocks = from..from + 2 * PER_EXTENT;
        let old = pattern(3, len, 1);
        assert_eq!(write(&disk, from, &old, false), Ok(()));
        let lend = || disk.lend(blocks.clone(), Loan::Read).expect("a lease");
        let (first, before) = (lend(), disk.copied());
        let one = pattern(9, BLOCK as usize, 2);
        assert_eq!(write(&disk, from + 1, &one, false), Ok(()));
        assert_eq!(disk.copied() - before, EXTENT as u64, "the extent that is replaced, and no more");
        let zeroes = Request::WriteZeroes { block: from, blocks: 1, may_discard: false };
        assert_eq!(run(&disk, &zeroes), Ok(()));
        let second = lend();
        let lease = disk.lend(PER_EXTENT..2 * PER_EXTENT, Loan::Write).expect("a lease");
        let new = pattern(5, EXTENT, 3);
        bring(&disk, &lease, &new);
        assert_eq!(contents(&disk, &second)[EXTENT / 2..], old[EXTENT / 2..], "not committed");
        assert_eq!(commit(&disk, lease), Ok(()));
        assert_eq!(contents(&disk, &first), old);
        let mut middle = old.clone();
        middle[..BLOCK as usize].fill(0);
        middle[BLOCK as usize..2 * BLOCK as usize].copy_from_slice(&one);
        assert_eq!(contents(&disk, &second), middle);
        let mut last = middle.clone();
        last[EXTENT / 2..EXTENT / 2 + EXTENT].copy_from_slice(&new);
        assert_eq!(read(&disk, from, len), Ok(last.clone()));
        let third = lend();
        assert_eq!(contents(&disk, &third), last);
        [first, second, third].into_iter().for_each(|lease| disk.cancel(lease));
        assert!(is_whole(&disk));
    }

    #[test]
    fn what_was_brought_and_not_committed_is_seen_by_nobody() {
        let disk = disk(4 * PER_EXTENT);
        let old = pattern(3, EXTENT, 1);
        assert_eq!(write(&disk, PER_EXTENT, &old, false), Ok(()));
        let lend = || disk.lend(PER_EXTENT..2 * PER_EXTENT, Loan::Write).expect("a lease");
        let lease = lend();
        bring(&disk, &lease, &pattern(4, EXTENT, 2)[..EXTENT]);
        disk.cancel(lease);
        assert_eq!(read(&disk, PER_EXTENT, EXTENT), Ok(old));
        let lease = lend();
        disk.resize(PER_EXTENT + 1).expect("memory");
        assert_eq!(commit(&disk, lease), Ok(()), "the extent is there");
        let lease = lend_all(&disk, PER_EXTENT..2 * PER_EXTENT);
        assert!(lease.is_none(), "beyond the disk's end");
        disk.resize(4 * PER_EXTENT).expect("memory");
        let lease = lend();
        disk.resize(PER_EXTENT).expect("memory");
        assert_eq!(commit(&disk, lease), Err(Fault::OutOfRange));
        disk.resize(4 * PER_EXTENT).expect("memory");
        assert_eq!(read(&disk, PER_EXTENT, EXTENT), Ok(std::vec![0; EXTENT]));
        let lease = lend();
        (0..DEPTH as u64).for_each(|token| assert_eq!(disk.submit(&Request::Flush, token), Ok(())));
        let (refused, lease) = disk.commit(lease, true, 1).expect_err("no room");
        assert_eq!((refused, completions(&disk).len()), (Submit::Busy, DEPTH));
        disk.cancel(lease);
        assert!(is_whole(&disk));
    }

    fn lend_all(disk: &RamDisk, blocks: Range<u64>) -> Option<Lease> {
        disk.lend(blocks, Loan::Write)
    }

    #[test]
    fn what_is_lent_has_a_bound_and_whoever_writes_never_waits_for_it() {
        let extents = 24;
        let disk = disk(extents * PER_EXTENT);
        let one = |n: u64, loan| disk.lend(n * PER_EXTENT..(n + 1) * PER_EXTENT, loan);
        let mut leases: Vec<_> = (0..extents).map_while(|n| one(n, Loan::Read)).collect();
        assert_eq!(leases.len(), 13, "half of it, and one");
        leases.push(one(0, Loan::Read).expect("what is lent already is lent again"));
        let written: Vec<_> = (0..extents).map_while(|n| one(n, Loan::Write)).collect();
        assert_eq!(written.len(), 7, "a quarter of it, and one");
        leases.extend(written);
        for round in 0..3 {
            for n in 0..extents {
                let bytes = pattern(n, BLOCK as usize, round);
                assert_eq!(write(&disk, n * PER_EXTENT + 5, &bytes, false), Ok(()));
                assert_eq!(read(&disk, n * PER_EXTENT + 5, BLOCK as usize), Ok(bytes));
            }
        }
        leases.into_iter().for_each(|lease| disk.cancel(lease));
        assert!(is_whole(&disk));
        for (blocks, loan) in [
            (0..0, Loan::Read),
            (Range { start: 5, end: 4 }, Loan::Read),
            (extents * PER_EXTENT - 1..extents * PER_EXTENT + 1, Loan::Read),
            (u64::MAX - 1..u64::MAX, Loan::Write),
            (0..PER_EXTENT - 1, Loan::Write),
            (1..PER_EXTENT + 1, Loan::Write),
            (0..9 * PER_EXTENT + 1, Loan::Read),
        ] {
            assert_eq!(disk.lend(blocks.clone(), loan), None, "{blocks:?}");
        }
        let most = disk.lend(1..8 * PER_EXTENT + 2, Loan::Read).expect("nine extents");
        assert_eq!(most.pieces().count(), crate::MOST_LENT);
        disk.cancel(most);
    }

    #[test]
    fn memory_that_comes_back_by_growth_is_zero() {
        let disk = disk(2 * PER_EXTENT);
        let all = pattern(1, 2 * EXTENT, 1);
        assert_eq!(write(&disk, 0, &all, false), Ok(()));
        let lease = disk.lend(0..PER_EXTENT, Loan::Read).expect("a lease");
        disk.resize(1).expect("memory");
        let buffers = disk.memory().len();
        disk.resize(20 * PER_EXTENT).expect("memory");
        assert!(disk.memory().len() > buffers, "more is appended");
        let mut expected = std::vec![0; 20 * EXTENT];
        expected[..BLOCK as usize].copy_from_slice(&all[..BLOCK as usize]);
        assert_eq!(read(&disk, 0, 20 * EXTENT), Ok(expected));
        assert_eq!(contents(&disk, &lease), all[..EXTENT], "what is lent is as it was");
        disk.cancel(lease);
        assert!(is_whole(&disk));
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
