//! Random reads and writes of a namespace, which check what they read: a load, and a test.
//!
//! The namespace is divided into pieces. Each write of a piece fills it with a pattern of its
//! number and of how often it was written, so a read shows whether it got the last write that
//! completed.
//! There is one request at a time for each piece.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use nvme::status::Status;
use platform::{DmaBuffer, Platform};

use crate::Error;
use crate::initiator::{Failure, Initiator, NamespaceInfo, NotSent, Operation, Region, Request};

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
    /// The plan does not fit the namespace: what is wrong.
    Plan(&'static str),
    /// A request for this block failed.
    Failed(u64, Status),
    /// What was read at this block is not what was written.
    Corrupt(u64),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Host(failure) => failure.fmt(f),
            Trouble::Plan(what) => f.write_str(what),
            Trouble::Failed(block, status) => write!(f, "block {block}: {status}"),
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

/// A piece of the namespace.
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

/// Carries a plan out on the host's I/O queues. `progress` is called each second.
pub fn run(
    host: &mut Initiator,
    platform: &Arc<dyn Platform>,
    namespace: &NamespaceInfo,
    plan: &Plan,
    progress: &mut dyn FnMut(&Done),
) -> Result<Done, Trouble> {
    let block = namespace.block_size as usize;
    let size = namespace.blocks.saturating_mul(u64::from(namespace.block_size));
    let span = if plan.span == 0 { size } else { plan.span.min(size) };
    if plan.bytes == 0 || !plan.bytes.is_multiple_of(block) || plan.bytes > host.limits().transfer {
        return Err(Trouble::Plan(
            "a request has whole blocks, and no more than the target transfers at once",
        ));
    }
    let places = plan.depth * host.io_queues();
    let pieces = usize::try_from(span / plan.bytes as u64).unwrap_or(usize::MAX);
    if plan.depth == 0 || plan.depth >= host.depth() || places > pieces {
        return Err(Trouble::Plan("so many requests do not fit into the queue, or not onto the disk"));
    }
    if namespace.is_read_only && plan.writes > 0 {
        return Err(Trouble::Plan("the namespace is read-only"));
    }
    let mut all: Vec<Piece> = Vec::new();
    all.try_reserve_exact(pieces).map_err(|_| Failure::Local(Error::OutOfMemory))?;
    all.resize(pieces, Piece { version: 0, is_busy: false });
    let memory = DmaBuffer::new(platform, places * plan.bytes, 4096);
    let memory = Arc::new(memory.map_err(|_| Failure::Local(Error::OutOfMemory))?);
    let region = host.register(memory)?;
    let mut run = Run {
        platform,
        namespace,
        plan,
        region: &region,
        pieces: all,
        places: alloc::vec![Place { piece: 0, is_write: false }; places],
        free: (0..places).rev().collect(),
        random: plan.seed | 1,
        sent: 0,
        done: Done::default(),
    };
    let ended = run.all(host, progress);
    let done = run.done;
    host.unregister(region);
    ended.map(|()| done)
}

struct Run<'a> {
    platform: &'a Arc<dyn Platform>,
    namespace: &'a NamespaceInfo,
    plan: &'a Plan,
    region: &'a Region,
    pieces: Vec<Piece>,
    places: Vec<Place>,
    free: Vec<usize>,
    random: u64,
    sent: u64,
    done: Done,
}

impl Run<'_> {
    fn all(&mut self, host: &mut Initiator, progress: &mut dyn FnMut(&Done)) -> Result<(), Trouble> {
        let begun = self.platform.now();
        let mut report = begun + REPORT;
        let mut finished: Vec<(u64, Status)> = Vec::with_capacity(self.places.len());
        while self.sent < self.plan.requests || self.free.len() < self.places.len() {
            while self.sent < self.plan.requests
                && let Some(place) = self.free.pop()
            {
                self.send(host, place)?;
            }
            let seen = host.seen();
            finished.clear();
            host.poll(&mut |token, status, _| finished.push((token, status)))?;
            if finished.is_empty() {
                host.wait(seen, self.platform.now() + REPORT);
            }
            for &(token, status) in &finished {
                self.finish(token as usize, status)?;
            }
            let now = self.platform.now();
            self.done.time = now.since(begun);
            if now >= report {
                report = now + REPORT;
                progress(&self.done);
            }
        }
        Ok(())
    }

    /// The next number of a xorshift generator.
    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn block(&self, piece: usize) -> u64 {
        piece as u64 * (self.plan.bytes as u64 / u64::from(self.namespace.block_size))
    }

    /// Sends the next request from a place.
    fn send(&mut self, host: &mut Initiator, place: usize) -> Result<(), Trouble> {
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
        let (bytes, offset) = (self.plan.bytes, place * self.plan.bytes);
        if is_write {
            self.pieces[piece].version = self.pieces[piece].version.wrapping_add(1).max(1);
            if self.plan.verifies {
                for (at, word) in (offset..offset + bytes).step_by(WORD).zip(0..) {
                    let word = pattern(self.plan.seed, piece, self.pieces[piece].version, word);
                    // The place lies in the memory.
                    let _ = self.region.buffer().write(at, &word.to_le_bytes());
                }
            }
        }
        let request = Request {
            operation: if is_write { Operation::Write { fua: false } } else { Operation::Read },
            namespace: self.namespace.id,
            block: self.block(piece),
            blocks: bytes as u32 / self.namespace.block_size,
            data: Some((self.region, offset, bytes)),
        };
        self.sent += 1;
        host.submit(place / self.plan.depth, &request, place as u64).map_err(|error| match error {
            NotSent::Lost(failure) => Trouble::Host(failure),
            // A queue has room for the requests of its places.
            NotSent::Full | NotSent::Invalid => Trouble::Plan("a request cannot be sent"),
        })
    }

    /// A request is complete.
    fn finish(&mut self, place: usize, status: Status) -> Result<(), Trouble> {
        let Place { piece, is_write } = self.places[place];
        let block = self.block(piece);
        if !status.is_success() {
            return Err(Trouble::Failed(block, status));
        }
        let version = self.pieces[piece].version;
        if !is_write && self.plan.verifies && version > 0 {
            let offset = place * self.plan.bytes;
            for (at, word) in (offset..offset + self.plan.bytes).step_by(WORD).zip(0..) {
                let mut read = [0; WORD];
                // The place lies in the memory.
                let _ = self.region.buffer().read(at, &mut read);
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
