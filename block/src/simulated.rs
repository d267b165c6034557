//! A disk for tests and the simulation, which has the faults of real disks when a test asks for
//! them.
//!
//! - Its cache is volatile. [`SimulatedDisk::power_loss`] forgets blocks that were not flushed,
//!   each or not as a seed decides, so a write of several blocks may survive in part.
//! - A request is carried out when it is polled, not when it is submitted. Which of those under way
//!   comes next, the disk's seed decides. So a consumer that changes a buffer too early, or relies
//!   on an order, gets wrong bytes.
//! - [`SimulatedDisk::fail`] makes blocks return errors, [`SimulatedDisk::stall`] holds completions
//!   back, and [`SimulatedDisk::remove`] takes the disk away.
//! - [`SimulatedDisk::resize`] makes it larger or smaller.
//!
//! Locks: `state` (spins).

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use platform::random::Random;
use platform::sync::Mutex;
use platform::{DmaBuffer, OutOfBounds};

use crate::size::Size;
use crate::watch::{Routine, Watch};
use crate::{Data, Disk, Event, Fault, Geometry, Piece, Request, Submit};

/// A disk of which only blocks that were written take memory. At first all are zero.
pub struct SimulatedDisk {
    /// All but `blocks`.
    geometry: Geometry,
    state: Mutex<State>,
}

/// How many writes of a block the cache remembers. It writes the oldest one back to make room.
const MOST_VERSIONS: usize = 8;

/// The bytes of a block.
type Block = Box<[u8]>;

/// What a write left in the cache.
struct Version {
    /// The number of the write.
    write: u64,
    bytes: Block,
}

struct State {
    random: Random,
    size: Size,
    /// What survives a loss of power.
    durable: BTreeMap<u64, Block>,
    /// What does not, the oldest version of a block first. No list is empty.
    cached: BTreeMap<u64, Vec<Version>>,
    /// How many writes were carried out.
    writes: u64,
    under_way: Vec<UnderWay>,
    failures: Vec<(Range<u64>, Fault)>,
    failing_flushes: Option<Fault>,
    is_stalled: bool,
    is_gone: bool,
    watch: Watch,
}

/// A request that was submitted and has not completed.
struct UnderWay {
    token: u64,
    /// The blocks that it is for.
    blocks: Range<u64>,
    action: Action,
}

enum Action {
    Read(Memory),
    Write {
        from: Memory,
        fua: bool,
    },
    /// Makes this many writes durable.
    Flush {
        writes: u64,
    },
    Discard,
    WriteZeroes,
}

/// The memory of a request, kept until it completes.
struct Memory {
    buffer: Arc<DmaBuffer>,
    pieces: Vec<Piece>,
}

impl Memory {
    fn of(data: &Data<'_>) -> Memory {
        Memory { buffer: data.buffer.clone(), pieces: data.pieces.to_vec() }
    }

    fn read(&self) -> Result<Vec<u8>, OutOfBounds> {
        let mut bytes = Vec::new();
        for piece in &self.pieces {
            let begin = bytes.len();
            bytes.resize(begin + piece.len, 0);
            self.buffer.read(piece.offset, &mut bytes[begin..])?;
        }
        Ok(bytes)
    }

    fn write(&self, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let mut rest = bytes;
        for piece in &self.pieces {
            let (part, behind) = rest.split_at_checked(piece.len).ok_or(OutOfBounds)?;
            self.buffer.write(piece.offset, part)?;
            rest = behind;
        }
        Ok(())
    }
}

impl SimulatedDisk {
    /// A disk whose order of completions `seed` decides. The block size of the geometry is one of
    /// [`Geometry::BLOCK_SIZES`]. Without `has_volatile_cache` every write is durable at once.
    pub fn new(geometry: Geometry, seed: u64) -> SimulatedDisk {
        let state = State {
            random: Random::new(seed),
            size: Size::new(geometry.blocks),
            durable: BTreeMap::new(),
            cached: BTreeMap::new(),
            writes: 0,
            under_way: Vec::new(),
            failures: Vec::new(),
            failing_flushes: None,
            is_stalled: false,
            is_gone: false,
            watch: Watch::new(),
        };
        SimulatedDisk { geometry, state: Mutex::new(state) }
    }

    /// Turns the power off and on. Each block of the cache loses all its writes, or the later ones,
    /// or none, as `seed` decides, and so does each block of a write that is under way. No request
    /// under way completes. Afterwards the disk is there, and not stalled.
    pub fn power_loss(&self, seed: u64) {
        let mut random = Random::new(seed);
        let mut state = self.state.lock();
        let forgotten = core::mem::take(&mut state.under_way);
        for request in &forgotten {
            state.carry_out_in_part(&self.geometry, request, &mut random);
        }
        for (block, mut versions) in core::mem::take(&mut state.cached) {
            let kept = random.below(versions.len() as u64 + 1) as usize;
            if let Some(last) = kept.checked_sub(1) {
                state.durable.insert(block, versions.swap_remove(last).bytes);
            }
        }
        (state.is_stalled, state.is_gone) = (false, false);
        drop(state);
        // Their buffers are released outside of the lock.
        drop(forgotten);
    }

    /// From now on every request for one of these blocks ends with an error. Of a write, the other
    /// blocks may be written.
    pub fn fail(&self, blocks: Range<u64>, fault: Fault) {
        self.state.lock().failures.push((blocks, fault));
    }

    /// From now on every flush ends with this error, and makes nothing durable; `None` ends that. A
    /// write with FUA fails as well, and is in the cache then.
    pub fn fail_flushes(&self, fault: Option<Fault>) {
        self.state.lock().failing_flushes = fault;
    }

    /// Ends what [`SimulatedDisk::fail`] and [`SimulatedDisk::fail_flushes`] began.
    pub fn repair(&self) {
        let mut state = self.state.lock();
        state.failures.clear();
        state.failing_flushes = None;
    }

    /// From now on requests are taken, and none completes.
    pub fn stall(&self) {
        self.state.lock().is_stalled = true;
    }

    /// Ends what [`SimulatedDisk::stall`] began.
    pub fn release(&self) {
        self.change(|state| state.is_stalled = false);
    }

    /// Takes the disk away: requests under way end with [`Fault::Gone`], and others are refused.
    /// What was in the cache is there again after [`SimulatedDisk::power_loss`], or is not.
    pub fn remove(&self) {
        self.change(|state| state.is_gone = true);
    }

    /// Makes the disk larger or smaller, for good: what lies behind the new end is lost, and what a
    /// growth adds is zero. Requests under way for blocks that the disk does not have any more end
    /// with [`Fault::OutOfRange`].
    pub fn resize(&self, blocks: u64) {
        let due = {
            let mut state = self.state.lock();
            // What is split off lies behind the end.
            let _lost = (state.durable.split_off(&blocks), state.cached.split_off(&blocks));
            if state.size.set(blocks) { state.watch.ready() } else { None }
        };
        if let Some(routine) = due {
            routine();
        }
    }

    /// Changes what requests under way wait for.
    fn change(&self, act: impl FnOnce(&mut State)) {
        let due = {
            let mut state = self.state.lock();
            act(&mut state);
            if state.under_way.is_empty() { None } else { state.watch.ready() }
        };
        if let Some(routine) = due {
            routine();
        }
    }

    /// What a read of this block returns at this moment.
    pub fn contents(&self, block: u64) -> Vec<u8> {
        self.state.lock().contents(&self.geometry, block)
    }

    /// What a read of this block returns after a loss of power, if all of the cache is lost.
    pub fn durable(&self, block: u64) -> Vec<u8> {
        let state = self.state.lock();
        state.durable.get(&block).map_or_else(|| zeros(&self.geometry), |bytes| bytes.to_vec())
    }

    /// The number of requests that were submitted and have not completed.
    pub fn under_way(&self) -> usize {
        self.state.lock().under_way.len()
    }

    /// The number of blocks whose last write a loss of power may undo.
    pub fn unflushed(&self) -> usize {
        self.state.lock().cached.len()
    }
}

fn zeros(geometry: &Geometry) -> Vec<u8> {
    vec![0; geometry.block_size as usize]
}

impl State {
    /// How many requests a poll may find complete.
    fn ready(&self) -> u64 {
        let waits = self.is_stalled && !self.is_gone;
        if waits { 0 } else { self.under_way.len() as u64 }
    }

    fn contents(&self, geometry: &Geometry, block: u64) -> Vec<u8> {
        let cached = self.cached.get(&block).and_then(|versions| versions.last()).map(|last| &last.bytes);
        let bytes = cached.or_else(|| self.durable.get(&block));
        bytes.map_or_else(|| zeros(geometry), |bytes| bytes.to_vec())
    }

    /// Writes a block, as a part of the write that `self.writes` counts.
    fn put(&mut self, block: u64, bytes: &[u8], is_durable: bool) {
        if is_durable {
            self.cached.remove(&block);
            self.durable.insert(block, bytes.into());
        } else {
            let versions = self.cached.entry(block).or_default();
            if versions.len() == MOST_VERSIONS {
                self.durable.insert(block, versions.remove(0).bytes);
            }
            versions.push(Version { write: self.writes, bytes: bytes.into() });
        }
    }

    /// Makes the writes up to this number durable.
    fn flush(&mut self, writes: u64) {
        let State { cached, durable, .. } = self;
        cached.retain(|&block, versions| {
            let flushed = versions.iter().take_while(|version| version.write <= writes).count();
            if let Some(last) = versions.drain(..flushed).next_back() {
                durable.insert(block, last.bytes);
            }
            !versions.is_empty()
        });
    }

    /// The error of requests for this block.
    fn failure_of(&self, block: u64) -> Option<Fault> {
        self.failures.iter().find(|(blocks, _)| blocks.contains(&block)).map(|&(_, fault)| fault)
    }

    fn carry_out(&mut self, geometry: &Geometry, request: &UnderWay) -> Result<(), Fault> {
        if request.blocks.end > self.size.blocks() {
            return Err(Fault::OutOfRange);
        }
        let mut random = Random::new(self.random.word());
        let failure = request.blocks.clone().find_map(|block| self.failure_of(block));
        if let Some(fault) = failure {
            self.carry_out_in_part(geometry, request, &mut random);
            return Err(fault);
        }
        match &request.action {
            Action::Read(into) => {
                let blocks = request.blocks.clone();
                let bytes: Vec<u8> = blocks.flat_map(|block| self.contents(geometry, block)).collect();
                into.write(&bytes).map_err(|OutOfBounds| Fault::Media)
            }
            Action::Write { from, fua } => {
                let is_durable = !geometry.has_volatile_cache || (*fua && self.failing_flushes.is_none());
                let bytes = from.read().map_err(|OutOfBounds| Fault::Media)?;
                self.writes += 1;
                for (block, bytes) in request.blocks.clone().zip(bytes.chunks(geometry.block_size as usize)) {
                    self.put(block, bytes, is_durable);
                }
                self.failing_flushes.filter(|_| *fua).map_or(Ok(()), Err)
            }
            Action::Flush { writes } => match self.failing_flushes {
                Some(fault) => Err(fault),
                None => {
                    self.flush(*writes);
                    Ok(())
                }
            },
            Action::Discard => {
                self.carry_out_in_part(geometry, request, &mut random);
                Ok(())
            }
            Action::WriteZeroes => {
                self.writes += 1;
                for block in request.blocks.clone() {
                    self.put(block, &zeros(geometry), !geometry.has_volatile_cache);
                }
                Ok(())
            }
        }
    }

    /// Carries out what changes blocks for some of them, but for none that fails.
    fn carry_out_in_part(&mut self, geometry: &Geometry, request: &UnderWay, random: &mut Random) {
        let bytes = match &request.action {
            Action::Write { from, .. } => from.read().unwrap_or_default(),
            Action::Discard | Action::WriteZeroes => Vec::new(),
            Action::Read(_) | Action::Flush { .. } => return,
        };
        self.writes += 1;
        let zeros = zeros(geometry);
        let mut written = bytes.chunks(geometry.block_size as usize);
        for block in request.blocks.clone() {
            let bytes = written.next().unwrap_or(&zeros);
            if random.rarely(2) && self.failure_of(block).is_none() && block < self.size.blocks() {
                self.put(block, bytes, !geometry.has_volatile_cache);
            }
        }
    }
}

impl Disk for SimulatedDisk {
    fn geometry(&self) -> Geometry {
        Geometry { blocks: self.state.lock().size.blocks(), ..self.geometry }
    }

    fn submit(&self, request: &Request<'_>, token: u64) -> Result<(), Submit> {
        let mut state = self.state.lock();
        let geometry = Geometry { blocks: state.size.blocks(), ..self.geometry };
        let blocks = geometry.check(request)?;
        if state.is_gone {
            return Err(Submit::Fault(Fault::Gone));
        }
        if state.under_way.len() >= self.geometry.queue_depth {
            return Err(Submit::Busy);
        }
        let action = match request {
            Request::Read { into, .. } => Action::Read(Memory::of(into)),
            Request::Write { from, fua, .. } => Action::Write { from: Memory::of(from), fua: *fua },
            Request::Flush => Action::Flush { writes: state.writes },
            Request::Discard { .. } => Action::Discard,
            Request::WriteZeroes { .. } => Action::WriteZeroes,
        };
        state.under_way.push(UnderWay { token, blocks, action });
        let due = if state.is_stalled { None } else { state.watch.ready() };
        drop(state);
        if let Some(routine) = due {
            routine();
        }
        Ok(())
    }

    fn poll(&self, most: usize, into: &mut dyn FnMut(u64, Result<(), Fault>)) -> usize {
        for polled in 0..most {
            let mut state = self.state.lock();
            state.size.see();
            let ready = state.ready();
            if ready == 0 {
                return polled;
            }
            let next = state.random.below(ready) as usize;
            let request = state.under_way.swap_remove(next);
            let result = if state.is_gone {
                let mut random = Random::new(state.random.word());
                state.carry_out_in_part(&self.geometry, &request, &mut random);
                Err(Fault::Gone)
            } else {
                state.carry_out(&self.geometry, &request)
            };
            drop(state);
            let token = request.token;
            // The consumer may release the buffer as soon as the request has completed.
            drop(request);
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
        state.ready() > 0 || state.size.is_unseen()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::testing::{GEOMETRY, completions, memory, pattern, read, run, write};

    const BLOCK: usize = GEOMETRY.block_size as usize;

    fn disk(seed: u64) -> SimulatedDisk {
        SimulatedDisk::new(GEOMETRY, seed)
    }

    /// Writes blocks of a writer, whose number is in all bytes.
    #[track_caller]
    fn put(disk: &SimulatedDisk, blocks: Range<u64>, writer: u8, fua: bool) {
        let bytes: Vec<u8> = blocks.clone().flat_map(|block| pattern(block, BLOCK, writer)).collect();
        assert_eq!(write(disk, blocks.start, &bytes, fua), Ok(()));
    }

    /// Who wrote a block last; 0 if it is zero.
    #[track_caller]
    fn writer(block: u64, bytes: &[u8]) -> u8 {
        if bytes.iter().all(|&byte| byte == 0) {
            return 0;
        }
        let of_block = |writer: &u8| pattern(block, BLOCK, *writer) == bytes;
        (1..=255).find(of_block).unwrap_or_else(|| panic!("block {block} is torn"))
    }

    fn writers(disk: &SimulatedDisk, blocks: Range<u64>) -> Vec<u8> {
        blocks.map(|block| writer(block, &disk.contents(block))).collect()
    }

    #[test]
    fn what_is_written_is_read() {
        let disk = disk(1);
        put(&disk, 3..6, 1, false);
        put(&disk, 4..5, 2, true);
        let expected = [pattern(3, BLOCK, 1), pattern(4, BLOCK, 2), pattern(5, BLOCK, 1)].concat();
        assert_eq!(read(&disk, 3, 3 * BLOCK), Ok(expected));
        assert_eq!(read(&disk, 7, BLOCK), Ok(vec![0; BLOCK]));
        let zeroes = Request::WriteZeroes { block: 3, blocks: 2, may_discard: true };
        assert_eq!(run(&disk, &zeroes), Ok(()));
        assert_eq!(writers(&disk, 2..7), [0, 0, 0, 1, 0]);
    }

    #[test]
    fn discarded_blocks_are_zero_or_as_before() {
        let disk = disk(2);
        put(&disk, 0..32, 1, true);
        assert_eq!(run(&disk, &Request::Discard { block: 0, blocks: 30 }), Ok(()));
        let left = writers(&disk, 0..32);
        assert!(left[..30].contains(&0) && left[..30].contains(&1), "{left:?}");
        assert_eq!(left[30..], [1, 1]);
        assert_eq!(disk.unflushed(), left.iter().filter(|&&writer| writer == 0).count());
    }

    #[test]
    fn a_loss_of_power_takes_blocks_that_were_not_flushed_and_no_others() {
        let mut seen = BTreeSet::new();
        for seed in 0..400 {
            let disk = disk(seed);
            put(&disk, 0..2, 1, false);
            assert_eq!(run(&disk, &Request::Flush), Ok(()));
            put(&disk, 2..4, 2, true);
            put(&disk, 1..3, 3, false);
            put(&disk, 2..5, 4, false);
            assert_eq!(writers(&disk, 0..5), [1, 3, 4, 4, 4]);
            assert_eq!(disk.unflushed(), 4);
            disk.power_loss(seed);
            assert_eq!(disk.unflushed(), 0);
            let left = writers(&disk, 0..5);
            assert_eq!(left[0], 1, "it was flushed");
            assert!([1, 3].contains(&left[1]) && [2, 3, 4].contains(&left[2]), "{left:?}");
            assert!([2, 4].contains(&left[3]) && [0, 4].contains(&left[4]), "{left:?}");
            seen.insert(left);
        }
        assert_eq!(seen.len(), 2 * 3 * 2 * 2, "every combination happens");
    }

    #[test]
    fn a_flush_covers_the_writes_that_had_completed_when_it_was_submitted() {
        for seed in 0..50 {
            let disk = disk(seed);
            put(&disk, 0..1, 1, false);
            let buffer = memory(2 * BLOCK);
            buffer.write(0, &pattern(0, BLOCK, 2)).expect("within");
            buffer.write(BLOCK, &pattern(1, BLOCK, 2)).expect("within");
            let pieces = [Piece { offset: 0, len: 2 * BLOCK }];
            let from = Data { buffer: &buffer, pieces: &pieces };
            assert_eq!(disk.submit(&Request::Flush, 1), Ok(()));
            assert_eq!(disk.submit(&Request::Write { block: 0, from, fua: false }, 2), Ok(()));
            assert_eq!(completions(&disk).len(), 2);
            assert_eq!(writers(&disk, 0..2), [2, 2]);
            assert_eq!((writer(0, &disk.durable(0)), writer(1, &disk.durable(1))), (1, 0));
            assert_eq!(disk.unflushed(), 2);
        }
    }

    #[test]
    fn a_block_that_is_written_again_and_again_takes_bounded_memory() {
        let disk = disk(9);
        for writer in 1..=100 {
            put(&disk, 0..1, writer, false);
        }
        let oldest = 100 - MOST_VERSIONS as u8;
        assert_eq!((writer(0, &disk.contents(0)), writer(0, &disk.durable(0))), (100, oldest));
        disk.power_loss(2);
        assert!(writers(&disk, 0..1)[0] >= oldest);
    }

    #[test]
    fn a_disk_without_a_cache_loses_nothing_that_has_completed() {
        let disk = SimulatedDisk::new(Geometry { has_volatile_cache: false, ..GEOMETRY }, 3);
        put(&disk, 0..9, 1, false);
        assert_eq!(run(&disk, &Request::WriteZeroes { block: 1, blocks: 1, may_discard: false }), Ok(()));
        disk.power_loss(1);
        assert_eq!(writers(&disk, 0..9), [1, 0, 1, 1, 1, 1, 1, 1, 1]);
    }

    #[test]
    fn a_write_under_way_may_survive_a_loss_of_power_in_part_and_never_completes() {
        let mut survived = BTreeSet::new();
        for seed in 0..600 {
            let disk = disk(4);
            let buffer = memory(3 * BLOCK);
            for block in 0..3 {
                buffer.write(block as usize * BLOCK, &pattern(block, BLOCK, 5)).expect("within");
            }
            let pieces = [Piece { offset: 0, len: 3 * BLOCK }];
            let from = Data { buffer: &buffer, pieces: &pieces };
            assert_eq!(disk.submit(&Request::Write { block: 0, from, fua: true }, 1), Ok(()));
            assert_eq!(disk.submit(&Request::Flush, 2), Ok(()));
            assert_eq!((disk.under_way(), Arc::strong_count(&buffer)), (2, 2));
            disk.power_loss(seed);
            assert_eq!((disk.under_way(), Arc::strong_count(&buffer)), (0, 1));
            assert_eq!(completions(&disk), []);
            survived.insert(writers(&disk, 0..3));
        }
        assert_eq!(survived.len(), 8, "each block by itself: {survived:?}");
    }

    #[test]
    fn the_seed_decides_the_order_and_every_request_completes_once() {
        let order = |seed| {
            let disk = disk(seed);
            for token in 0..GEOMETRY.queue_depth as u64 {
                assert_eq!(disk.submit(&Request::Flush, token), Ok(()));
            }
            assert_eq!(disk.submit(&Request::Flush, 99), Err(Submit::Busy));
            let order: Vec<u64> = completions(&disk).into_iter().map(|(token, _)| token).collect();
            assert_eq!(disk.submit(&Request::Flush, 99), Ok(()));
            assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), GEOMETRY.queue_depth);
            order
        };
        assert_eq!(order(5), order(5));
        let orders: BTreeSet<_> = (0..20).map(order).collect();
        assert!(orders.len() > 10, "{orders:?}");
    }

    #[test]
    fn a_write_takes_the_bytes_that_are_there_when_it_is_carried_out() {
        let disk = disk(6);
        let buffer = memory(BLOCK);
        let pieces = [Piece { offset: 0, len: BLOCK }];
        let from = Data { buffer: &buffer, pieces: &pieces };
        assert_eq!(disk.submit(&Request::Write { block: 0, from, fua: false }, 1), Ok(()));
        buffer.write(0, &pattern(0, BLOCK, 9)).expect("within");
        assert_eq!(completions(&disk), [(1, Ok(()))]);
        assert_eq!(writers(&disk, 0..1), [9]);
    }

    #[test]
    fn errors_are_those_of_the_blocks_and_end_with_the_repair() {
        let disk = disk(7);
        put(&disk, 0..16, 1, true);
        disk.fail(4..6, Fault::Media);
        disk.fail(9..10, Fault::OutOfRange);
        assert_eq!(read(&disk, 0, 4 * BLOCK).map(|bytes| bytes.len()), Ok(4 * BLOCK));
        assert_eq!(read(&disk, 3, 2 * BLOCK), Err(Fault::Media));
        assert_eq!(read(&disk, 6, 3 * BLOCK).map(|bytes| bytes.len()), Ok(3 * BLOCK));
        assert_eq!(read(&disk, 8, 2 * BLOCK), Err(Fault::OutOfRange));
        let zeroes = |block, blocks| Request::WriteZeroes { block, blocks, may_discard: false };
        assert_eq!(run(&disk, &zeroes(5, 1)), Err(Fault::Media));
        assert_eq!(run(&disk, &Request::Discard { block: 9, blocks: 1 }), Err(Fault::OutOfRange));
        assert_eq!(write(&disk, 0, &vec![0; 16 * BLOCK], false), Err(Fault::Media));
        let left = writers(&disk, 0..16);
        assert!(left.contains(&0), "some are written: {left:?}");
        assert_eq!((left[4], left[5], left[9]), (1, 1, 1));
        disk.fail_flushes(Some(Fault::Media));
        assert_eq!(run(&disk, &Request::Flush), Err(Fault::Media));
        assert_eq!(write(&disk, 20, &pattern(20, BLOCK, 2), true), Err(Fault::Media));
        assert_eq!(writer(20, &disk.durable(20)), 0);
        disk.repair();
        put(&disk, 0..16, 3, true);
        assert_eq!(run(&disk, &Request::Flush), Ok(()));
        assert_eq!(disk.unflushed(), 0);
        assert_eq!(writer(20, &disk.durable(20)), 2);
    }

    /// A disk, and the calls of its routine.
    fn watched() -> (SimulatedDisk, Arc<AtomicUsize>) {
        let (disk, calls) = (disk(8), Arc::new(AtomicUsize::new(0)));
        let counted = calls.clone();
        disk.watch(Some(Arc::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        })));
        assert!(!disk.arm());
        (disk, calls)
    }

    #[test]
    fn a_stalled_disk_completes_nothing_until_it_is_released() {
        let (disk, calls) = watched();
        disk.stall();
        for token in [1, 2] {
            assert_eq!(disk.submit(&Request::Flush, token), Ok(()));
        }
        assert_eq!(completions(&disk), []);
        assert_eq!(calls.load(Ordering::SeqCst), 0);
        disk.release();
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        assert!(disk.arm());
        assert_eq!(completions(&disk).len(), 2);
        disk.stall();
        disk.release();
        assert_eq!(calls.load(Ordering::SeqCst), 1, "nothing was under way");
        assert_eq!(disk.submit(&Request::Flush, 3), Ok(()));
        assert_eq!(calls.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_disk_that_is_removed_ends_its_requests_and_takes_no_more() {
        let (disk, calls) = watched();
        disk.stall();
        assert_eq!(disk.submit(&Request::Flush, 1), Ok(()));
        disk.remove();
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        assert_eq!(completions(&disk), [(1, Err(Fault::Gone))]);
        assert_eq!(disk.submit(&Request::Flush, 2), Err(Submit::Fault(Fault::Gone)));
        disk.power_loss(1);
        assert!(!disk.arm());
        assert_eq!(run(&disk, &Request::Flush), Ok(()));
        assert_eq!(calls.load(Ordering::SeqCst), 2);
        assert!(!disk.arm());
        disk.watch(None);
        assert_eq!(disk.submit(&Request::Flush, 2), Ok(()));
        assert_eq!(calls.load(Ordering::SeqCst), 2);
    }
}
