//! Random reads and writes of a namespace or a disk, which check what they read: a load, and a
//! test.
//!
//! The blocks are divided into pieces. Each write of a piece fills it with a pattern of its number
//! and of how often it was written, so a read shows whether it got the last write that completed.
//! There is one request at a time for each piece.

mod disk;
mod host;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use block::Fault;
use nvme::status::Status;
use platform::{DmaBuffer, Instant, Platform};

use crate::Error;
use crate::initiator::Failure;

pub use disk::run_on_disk;
pub use host::{run, run_for};

/// The bytes of a pattern's word.
const WORD: usize = 8;
/// How often the progress is reported.
const REPORT: Duration = Duration::from_secs(1);

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Bytes of a request: whole blocks.
    pub bytes: usize,
    /// Requests that are outstanding on each queue.
    pub depth: usize,
    /// How many requests there are.
    pub requests: u64,
    /// How many of 100 are writes.
    pub writes: u64,
    /// How much of the namespace is used, in bytes; 0 for all of it.
    pub span: u64,
    /// Patterns are written and checked. Otherwise data are whatever they are.
    pub verifies: bool,
    /// What chooses the pieces.
    pub seed: u64,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes of both.
    pub bytes: u64,
    /// How long it took.
    pub time: Duration,
}

impl Done {
    /// Requests a second.
    pub fn iops(&self) -> u64 {
        per_second(self.reads + self.writes, self.time)
    }

    /// Bytes a second.
    pub fn rate(&self) -> u64 {
        per_second(self.bytes, self.time)
    }
}

fn per_second(count: u64, time: Duration) -> u64 {
    let nanoseconds = time.as_nanos().max(1);
    u64::try_from(u128::from(count) * 1_000_000_000 / nanoseconds).unwrap_or(u64::MAX)
}

/// Why a workload ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The controller is lost.
    Host(Failure),
    /// The plan does not fit the namespace or the disk: what is wrong.
    Plan(&'static str),
    /// The target failed a request for this block.
    Failed(u64, Status),
    /// The disk failed a request for this block.
    Fault(u64, Fault),
    /// What was read at this block is not what was written.
    Corrupt(u64),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Host(failure) => failure.fmt(f),
            Trouble::Plan(what) => f.write_str(what),
            Trouble::Failed(block, status) => write!(f, "block {block}: {status}"),
            Trouble::Fault(block, fault) => write!(f, "block {block}: {fault}"),
            Trouble::Corrupt(block) => write!(f, "block {block}: what was read is not what was written"),
        }
    }
}

impl core::error::Error for Trouble {}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Trouble {
        Trouble::Host(failure)
    }
}

/// What a medium is like: the bounds of a plan.
struct Extent {
    block_size: u32,
    blocks: u64,
    is_read_only: bool,
    /// The most bytes of a request.
    most_bytes: usize,
    /// Queues, and the most requests that are outstanding on each.
    queues: usize,
    depth: usize,
}

/// A request, from the memory of a place or into it.
struct Transfer {
    is_write: bool,
    block: u64,
    place: usize,
}

/// Why a request failed.
#[derive(Clone, Copy)]
enum Cause {
    Status(Status),
    Fault(Fault),
}

/// Where the requests go. A place has the number of a request that is outstanding, and memory:
/// [`Plan::bytes`], one place after the other.
trait Medium {
    /// Sends a request. There is room for those of all places.
    fn submit(&mut self, transfer: &Transfer) -> Result<(), Trouble>;

    /// Appends the places of completed requests to `finished`. If there are none it sleeps, until
    /// `deadline` at most, and returns.
    fn take(
        &mut self,
        finished: &mut Vec<(usize, Result<(), Cause>)>,
        deadline: Instant,
    ) -> Result<(), Trouble>;
}

/// A piece of the blocks.
#[derive(Clone, Copy)]
struct Piece {
    /// How often it was written; 0 if its contents are unknown.
    version: u32,
    is_busy: bool,
}

/// A request that is outstanding, or the place of the next one.
#[derive(Clone, Copy)]
struct Place {
    piece: usize,
    is_write: bool,
}

/// A plan while it is carried out.
struct Run<'a> {
    platform: &'a Arc<dyn Platform>,
    block_size: u32,
    plan: &'a Plan,
    memory: Arc<DmaBuffer>,
    pieces: Vec<Piece>,
    places: Vec<Place>,
    free: Vec<usize>,
    random: u64,
    sent: u64,
    done: Done,
}

impl<'a> Run<'a> {
    /// A plan that fits the medium.
    fn new(platform: &'a Arc<dyn Platform>, extent: &Extent, plan: &'a Plan) -> Result<Run<'a>, Trouble> {
        let size = extent.blocks.saturating_mul(u64::from(extent.block_size));
        let span = if plan.span == 0 { size } else { plan.span.min(size) };
        if plan.bytes == 0
            || !plan.bytes.is_multiple_of(extent.block_size as usize)
            || plan.bytes > extent.most_bytes
        {
            return Err(Trouble::Plan(
                "a request has whole blocks, and no more than the target or the disk transfers at once",
            ));
        }
        let places = plan.depth.saturating_mul(extent.queues);
        let pieces = usize::try_from(span / plan.bytes as u64).unwrap_or(usize::MAX);
        if plan.depth == 0 || plan.depth > extent.depth || places > pieces {
            return Err(Trouble::Plan("so many requests do not fit into the queue, or not onto the disk"));
        }
        if extent.is_read_only && plan.writes > 0 {
            return Err(Trouble::Plan("it is read-only"));
        }
        let no_memory = || Trouble::Host(Failure::Local(Error::OutOfMemory));
        let mut all: Vec<Piece> = Vec::new();
        all.try_reserve_exact(pieces).map_err(|_| no_memory())?;
        all.resize(pieces, Piece { version: 0, is_busy: false });
        let memory = DmaBuffer::new(platform, places * plan.bytes, 4096).map_err(|_| no_memory())?;
        Ok(Run {
            platform,
            block_size: extent.block_size,
            plan,
            memory: Arc::new(memory),
            pieces: all,
            places: alloc::vec![Place { piece: 0, is_write: false }; places],
            free: (0..places).rev().collect(),
            random: plan.seed | 1,
            sent: 0,
            done: Done::default(),
        })
    }

    /// Sends all requests, but none after `time` if there is one, and waits for them.
    fn all(
        &mut self,
        medium: &mut impl Medium,
        time: Option<Duration>,
        progress: &mut dyn FnMut(&Done),
    ) -> Result<(), Trouble> {
        let begun = self.platform.now();
        let mut report = begun + REPORT;
        let mut finished = Vec::with_capacity(self.places.len());
        loop {
            let is_over = time.is_some_and(|time| self.done.time >= time);
            let goes_on = |sent| !is_over && sent < self.plan.requests;
            while goes_on(self.sent)
                && let Some(place) = self.free.pop()
            {
                self.send(medium, place)?;
            }
            if !goes_on(self.sent) && self.free.len() == self.places.len() {
                return Ok(());
            }
            finished.clear();
            medium.take(&mut finished, self.platform.now() + REPORT)?;
            for &(place, result) in &finished {
                self.finish(place, result)?;
            }
            let now = self.platform.now();
            self.done.time = now.since(begun);
            if now >= report {
                report = now + REPORT;
                progress(&self.done);
            }
        }
    }

    /// The next number of a xorshift generator.
    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn block(&self, piece: usize) -> u64 {
        piece as u64 * (self.plan.bytes as u64 / u64::from(self.block_size))
    }

    /// Sends the next request from a place.
    fn send(&mut self, medium: &mut impl Medium, place: usize) -> Result<(), Trouble> {
        let count = self.pieces.len();
        let mut piece = self.next() as usize % count;
        // There are more pieces than places, so one is free.
        while self.pieces[piece].is_busy {
            piece = (piece + 1) % count;
        }
        let is_unknown = self.plan.verifies && self.plan.writes > 0 && self.pieces[piece].version == 0;
        let is_write = is_unknown || self.next() % 100 < self.plan.writes;
        self.pieces[piece].is_busy = true;
        self.places[place] = Place { piece, is_write };
        if is_write {
            self.pieces[piece].version = self.pieces[piece].version.wrapping_add(1).max(1);
            if self.plan.verifies {
                let offset = place * self.plan.bytes;
                for (at, word) in (offset..offset + self.plan.bytes).step_by(WORD).zip(0..) {
                    let word = pattern(self.plan.seed, piece, self.pieces[piece].version, word);
                    // The place lies in the memory.
                    let _ = self.memory.write(at, &word.to_le_bytes());
                }
            }
        }
        self.sent += 1;
        medium.submit(&Transfer { is_write, block: self.block(piece), place })
    }

    /// A request is complete.
    fn finish(&mut self, place: usize, result: Result<(), Cause>) -> Result<(), Trouble> {
        let Place { piece, is_write } = self.places[place];
        let block = self.block(piece);
        result.map_err(|cause| match cause {
            Cause::Status(status) => Trouble::Failed(block, status),
            Cause::Fault(fault) => Trouble::Fault(block, fault),
        })?;
        let version = self.pieces[piece].version;
        if !is_write && self.plan.verifies && version > 0 {
            let offset = place * self.plan.bytes;
            for (at, word) in (offset..offset + self.plan.bytes).step_by(WORD).zip(0..) {
                let mut read = [0; WORD];
                // The place lies in the memory.
                let _ = self.memory.read(at, &mut read);
                if read != pattern(self.plan.seed, piece, version, word).to_le_bytes() {
                    return Err(Trouble::Corrupt(block));
                }
            }
        }
        self.pieces[piece].is_busy = false;
        self.free.push(place);
        let counter = if is_write { &mut self.done.writes } else { &mut self.done.reads };
        *counter += 1;
        self.done.bytes += self.plan.bytes as u64;
        Ok(())
    }
}

/// A word of a piece's pattern.
fn pattern(seed: u64, piece: usize, version: u32, word: u64) -> u64 {
    let mixed = seed ^ (piece as u64) << 32 ^ u64::from(version) ^ word << 40;
    mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_add(word)
}
