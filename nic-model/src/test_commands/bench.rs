//! Baselines for benchmarks: bare round trips and copies, without queues. Each poll of the device
//! runs one slice, so that a benchmark delays other work by a bounded time.

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use nic_abi::admin::{Bench, BenchKind, Command};
use platform::Instant;

use crate::memory::GuestMemory;

/// Loads of the watched word in a slice.
const SPINS: u32 = 2000;
/// Bytes that a slice copies.
const COPY_SLICE: u64 = 1 << 20;
/// Additions of a slice.
const ADD_SLICE: u32 = 4096;
/// How long a round may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// A benchmark under way.
pub(crate) struct BenchRun {
    pub kind: BenchKind,
    rounds: u32,
    source: u64,
    target: u64,
    length: u64,
    /// The watched word as last seen.
    seen: u32,
    /// Bytes that this round has copied.
    copied: u64,
    /// The driver has kicked since the last poll.
    kicked: bool,
    /// Memory could not be reached.
    pub fault: bool,
    pub started: Instant,
    deadline: Instant,
    /// The command, for the answer at the end.
    pub command: (u32, Command),
}

/// The word at a bus address, if it can be reached.
fn word<M: GuestMemory>(memory: &M, addr: u64) -> Option<&AtomicU32> {
    memory.get(addr, 4).ok()?.atomic_u32(0).ok()
}

impl BenchRun {
    pub fn new<M: GuestMemory>(
        kind: BenchKind,
        a: &Bench,
        now: Instant,
        memory: &M,
        command: (u32, Command),
    ) -> BenchRun {
        BenchRun {
            kind,
            rounds: a.rounds,
            source: a.source,
            target: a.target,
            length: a.length,
            seen: word(memory, a.target).map_or(0, |w| w.load(Ordering::Acquire)),
            copied: 0,
            kicked: false,
            fault: false,
            started: now,
            deadline: now + PATIENCE,
            command,
        }
    }

    /// Whether the command is answered at the end.
    pub fn answers_later(&self) -> bool {
        self.kind == BenchKind::Copy
    }

    /// Whether a copy is over. The poll after the last slice finds that, so that its clock shows
    /// when the slice was done.
    pub fn copy_is_over(&self) -> bool {
        self.kind == BenchKind::Copy && (self.rounds == 0 || self.length == 0 || self.fault)
    }

    /// When a benchmark that sleeps gives up.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether there is more to do.
    pub fn goes_on(&self, now: Instant) -> bool {
        match self.kind {
            BenchKind::Copy => true,
            BenchKind::AtomicAdd => self.rounds > 0,
            BenchKind::Echo | BenchKind::EchoInterrupt => self.rounds > 0 && now < self.deadline,
        }
    }

    /// The driver has kicked: returns whether to raise an interrupt for that.
    pub fn kick(&mut self) -> bool {
        let counts = self.kind == BenchKind::EchoInterrupt && self.rounds > 0;
        if counts {
            self.rounds -= 1;
            // There is no clock here; the next poll sets the deadline.
            self.kicked = true;
        }
        counts
    }

    /// Runs a slice. Returns whether it did anything.
    pub fn run<M: GuestMemory>(&mut self, memory: &M, now: Instant) -> bool {
        match self.kind {
            BenchKind::Echo => self.echo(memory, now),
            BenchKind::Copy => self.copy(memory),
            BenchKind::AtomicAdd => self.add(memory),
            BenchKind::EchoInterrupt => {
                if core::mem::take(&mut self.kicked) {
                    self.deadline = now + PATIENCE;
                }
                false
            }
        }
    }

    fn echo<M: GuestMemory>(&mut self, memory: &M, now: Instant) -> bool {
        let (Some(watched), Some(answer)) = (word(memory, self.target), word(memory, self.source)) else {
            self.rounds = 0;
            return false;
        };
        for _ in 0..SPINS {
            let value = watched.load(Ordering::Acquire);
            if value != self.seen {
                answer.store(value, Ordering::Release);
                self.seen = value;
                self.rounds = self.rounds.saturating_sub(1);
                self.deadline = now + PATIENCE;
                if self.rounds == 0 {
                    break;
                }
            }
            core::hint::spin_loop();
        }
        true
    }

    fn add<M: GuestMemory>(&mut self, memory: &M) -> bool {
        let (Some(counter), Some(done)) = (word(memory, self.target), word(memory, self.source)) else {
            self.rounds = 0;
            return false;
        };
        let slice = self.rounds.min(ADD_SLICE);
        for _ in 0..slice {
            counter.fetch_add(1, Ordering::SeqCst);
        }
        self.rounds -= slice;
        if self.rounds == 0 {
            done.store(1, Ordering::Release);
        }
        true
    }

    fn copy<M: GuestMemory>(&mut self, memory: &M) -> bool {
        let mut left = COPY_SLICE;
        while left > 0 && self.rounds > 0 && !self.fault {
            let bytes = (self.length - self.copied).min(left);
            let from = memory.get(self.source.wrapping_add(self.copied), bytes);
            let to = memory.get(self.target.wrapping_add(self.copied), bytes);
            self.fault = !matches!((from, to), (Ok(from), Ok(to)) if from.copy_to(&to).is_ok());
            self.copied += bytes;
            // A very short copy counts as a longer one, so that a slice of many rounds ends, too.
            left = left.saturating_sub(bytes.max(64));
            if self.copied == self.length {
                self.copied = 0;
                self.rounds -= 1;
            }
        }
        true
    }
}
