//! Baselines for benchmarks: bare round trips and copies, without queues. They run a slice at a time from
//! [`crate::Fabric::poll`], so that the device's time limits hold and nothing blocks it.

use core::sync::atomic::Ordering;
use core::time::Duration;

use nic_abi::admin::{Bench, BenchKind, Command, NO_FIELD, Status};
use platform::Instant;

use crate::Frontend;
use crate::admin::{Refusal, result};
use crate::memory::GuestMemory;
use crate::nic::Nic;

/// Looks at a word before poll returns.
const SPINS: u32 = 2000;
/// Bytes copied, and additions made, before poll returns.
const COPY_SLICE: u64 = 1 << 20;
const ADD_SLICE: u32 = 4096;
/// How long a round may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// A benchmark under way.
pub(crate) struct BenchRun {
    kind: BenchKind,
    rounds: u32,
    source: u64,
    target: u64,
    length: u64,
    /// The word as last seen.
    seen: u32,
    /// Bytes of this round that were copied.
    copied: u64,
    /// There was a kick since the last poll.
    kicked: bool,
    /// It could not go on.
    fault: bool,
    started: Instant,
    deadline: Instant,
    /// The command to answer at the end.
    command: (u32, Command),
}

impl BenchRun {
    pub fn new(kind: BenchKind, a: &Bench, now: Instant, seen: u32, command: (u32, Command)) -> BenchRun {
        BenchRun {
            kind,
            rounds: a.rounds,
            source: a.source,
            target: a.target,
            length: a.length,
            seen,
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
}

impl<F: Frontend> Nic<F> {
    /// The word at a bus address, 0 if there is none.
    pub fn bench_word(&self, addr: u64) -> u32 {
        let word = self.frontend.memory().get(addr, 4).ok().and_then(|m| m.atomic_u32(0).ok());
        word.map_or(0, |w| w.load(Ordering::Acquire))
    }

    /// Whether commands must wait for the benchmark's answer.
    pub fn bench_blocks(&self) -> bool {
        self.bench.as_ref().is_some_and(BenchRun::answers_later)
    }

    /// Whether the device must not sleep.
    pub fn bench_spins(&self) -> bool {
        self.bench.as_ref().is_some_and(|b| b.kind != BenchKind::EchoInterrupt)
    }

    /// When a benchmark that sleeps gives up.
    pub fn bench_deadline(&self) -> Option<Instant> {
        self.bench.as_ref().map(|b| b.deadline)
    }

    /// The driver kicked.
    pub fn bench_kicked(&mut self) {
        if !self.running() {
            return;
        }
        if let Some(bench) = &mut self.bench
            && bench.kind == BenchKind::EchoInterrupt
            && bench.rounds > 0
        {
            bench.rounds -= 1;
            // The next poll looks at the clock.
            bench.kicked = true;
            self.stats.interrupts += 1;
            self.frontend.raise(0);
        }
    }

    /// Runs a slice of the benchmark, if there is one. Says whether it did anything.
    pub fn run_bench(&mut self, now: Instant) -> bool {
        if !self.running() {
            return false;
        }
        let Some(mut bench) = self.bench.take() else { return false };
        let worked = match bench.kind {
            BenchKind::Echo => self.echo(&mut bench, now),
            BenchKind::Copy => return self.copy_slice(bench, now),
            BenchKind::AtomicAdd => self.add(&mut bench),
            BenchKind::EchoInterrupt => {
                if core::mem::take(&mut bench.kicked) {
                    bench.deadline = now + PATIENCE;
                }
                false
            }
        };
        let late = now >= bench.deadline && bench.kind != BenchKind::AtomicAdd;
        if bench.rounds > 0 && !late {
            self.bench = Some(bench);
        }
        worked
    }

    fn echo(&self, bench: &mut BenchRun, now: Instant) -> bool {
        let memory = self.frontend.memory();
        let word = |addr| memory.get(addr, 4).ok().and_then(|m| m.atomic_u32(0).ok());
        let (Some(watched), Some(answer)) = (word(bench.target), word(bench.source)) else {
            bench.rounds = 0;
            return false;
        };
        for _ in 0..SPINS {
            let value = watched.load(Ordering::Acquire);
            if value != bench.seen {
                answer.store(value, Ordering::Release);
                bench.seen = value;
                bench.rounds = bench.rounds.saturating_sub(1);
                bench.deadline = now + PATIENCE;
                if bench.rounds == 0 {
                    break;
                }
            }
            core::hint::spin_loop();
        }
        true
    }

    fn add(&self, bench: &mut BenchRun) -> bool {
        let memory = self.frontend.memory();
        let word = |addr| memory.get(addr, 4).ok().and_then(|m| m.atomic_u32(0).ok());
        let (Some(counter), Some(done)) = (word(bench.target), word(bench.source)) else {
            bench.rounds = 0;
            return false;
        };
        let slice = bench.rounds.min(ADD_SLICE);
        for _ in 0..slice {
            counter.fetch_add(1, Ordering::SeqCst);
        }
        bench.rounds -= slice;
        if bench.rounds == 0 {
            done.store(1, Ordering::Release);
        }
        true
    }

    /// Copies a slice; answers in the poll after the last one, whose clock shows when that was done.
    fn copy_slice(&mut self, mut bench: BenchRun, now: Instant) -> bool {
        if bench.rounds == 0 || bench.length == 0 || bench.fault {
            let (index, command) = bench.command;
            let answer = match bench.fault {
                true => Err(Refusal::new(Status::Dma, usize::from(NO_FIELD))),
                false => Ok(result(&(now.since(bench.started).as_nanos() as u64))),
            };
            self.answer(index, &command, &answer);
            return true;
        }
        let memory = self.frontend.memory();
        let mut left = COPY_SLICE;
        while left > 0 && bench.rounds > 0 && !bench.fault {
            let bytes = (bench.length - bench.copied).min(left);
            let from = memory.get(bench.source.wrapping_add(bench.copied), bytes);
            let to = memory.get(bench.target.wrapping_add(bench.copied), bytes);
            bench.fault = !matches!((from, to), (Ok(from), Ok(to)) if from.copy_to(&to).is_ok());
            bench.copied += bytes;
            // Very short copies count as if they were longer, so that a slice has an end.
            left = left.saturating_sub(bytes.max(64));
            if bench.copied == bench.length {
                bench.copied = 0;
                bench.rounds -= 1;
            }
        }
        self.bench = Some(bench);
        true
    }
}
