//! The admin commands that are for tests: fault injection, and benchmarks of the device itself.
//!
//! | module | subject |
//! |---|---|
//! | `faults` | what has been injected |
//! | `bench` | the benchmarks |

pub(crate) mod bench;
pub(crate) mod faults;

use nic_abi::admin::{Bench, BenchKind, Command, Inject, Injection, NO_FIELD, Opcode, Status};
use nic_abi::cqe;
use nic_abi::registers::Fault;
use platform::Instant;

use crate::Frontend;
use crate::admin::command::{CommandResult, DONE, Refusal, args, at, result};
use crate::memory::GuestMemory;
use crate::nic::Nic;
use crate::node::Node;
use crate::schedule::Schedule;
use bench::BenchRun;
use faults::Mute;

/// Units of work of a benchmark's slice.
const SLICE_WORK: u32 = 16;

impl<F: Frontend> Node<F> {
    pub(crate) fn inject(&mut self, now: Instant, command: &Command) -> CommandResult {
        let a: Inject = args(command);
        let what = Injection::from_word(a.what).ok_or(Refusal::field(at!(Inject, what)))?;
        let of_the_nic = matches!(
            what,
            Injection::Mute | Injection::Fail | Injection::DropManagement | Injection::Port | Injection::Hold
        );
        if of_the_nic {
            match what {
                Injection::Mute | Injection::Port | Injection::Hold if a.value > 1 => {
                    return Err(Refusal::field(at!(Inject, value)));
                }
                Injection::DropManagement => self.nic.drop_management = a.count,
                Injection::Hold => self.nic.held = a.value == 1,
                Injection::Port => {
                    self.nic.port_disabled = a.value == 0;
                    self.nic.follow_link(now);
                }
                // The others take effect after the answer.
                _ => {}
            }
            return Ok(DONE);
        }
        let failure = match (what, u8::try_from(a.value).ok().and_then(cqe::Status::from_byte)) {
            (Injection::Failure, None | Some(cqe::Status::Success)) => {
                return Err(Refusal::field(at!(Inject, value)));
            }
            (_, failure) => failure.unwrap_or(cqe::Status::LocalQpOperation),
        };
        let (_, qp) = self.named_qp(command)?;
        if matches!(
            what,
            Injection::Corrupt
                | Injection::Truncate
                | Injection::StallResponder
                | Injection::HoldReads
                | Injection::LoseStatus
        ) {
            let no_vi = Refusal::new(Status::BadState, at!(command.object));
            let harms = &mut qp.vi.as_mut().ok_or(no_vi)?.harms;
            match what {
                Injection::Corrupt => harms.corrupt = a.count,
                Injection::Truncate => harms.truncate = a.count,
                Injection::HoldReads => harms.hold_reads = a.count,
                Injection::LoseStatus => harms.lose_status = a.count,
                _ => harms.stall = a.count,
            }
            return Ok(DONE);
        }
        let faults = &mut qp.faults;
        faults.injected = true;
        match what {
            Injection::DropRequests => faults.drop_requests = a.count,
            Injection::DropResponses => faults.drop_responses = a.count,
            Injection::BadRequest => faults.bad_requests = a.count,
            Injection::BadResponse => faults.bad_responses = a.count,
            Injection::Failure => (faults.failures, faults.failure) = (a.count, failure),
            _ => (faults.delays, faults.delay_ns) = (a.count, a.value),
        }
        Ok(DONE)
    }
}

impl<F: Frontend> Nic<F> {
    /// What an injection that was accepted does once it has been answered.
    pub(crate) fn after_answer(&mut self, command: &Command) {
        if Opcode::from_word(command.opcode) != Some(Opcode::Inject) {
            return;
        }
        let a: Inject = args(command);
        match Injection::from_word(a.what) {
            Some(Injection::Mute) => self.mute = if a.value == 1 { Mute::ForGood } else { Mute::UntilReset },
            Some(Injection::Fail) => self.fail(Fault::Injected),
            _ => {}
        }
    }

    /// Starts a benchmark; `None` if the answer comes at its end.
    pub(crate) fn start_bench(
        &mut self,
        now: Instant,
        index: u32,
        command: &Command,
    ) -> Option<CommandResult> {
        let a: Bench = args(command);
        let Some(kind) = BenchKind::from_word(a.kind) else {
            return Some(Err(Refusal::field(at!(Bench, kind))));
        };
        let memory = self.frontend.memory();
        let size = if kind == BenchKind::Copy { a.length } else { 4 };
        for (addr, field) in [(a.source, at!(Bench, source)), (a.target, at!(Bench, target))] {
            if kind == BenchKind::EchoInterrupt {
                break;
            }
            match memory.get(addr, size) {
                Err(_) => return Some(Err(Refusal::new(Status::Dma, field))),
                Ok(word) if kind != BenchKind::Copy && word.atomic_u32(0).is_err() => {
                    return Some(Err(Refusal::field(field)));
                }
                Ok(_) => {}
            }
        }
        let run = BenchRun::new(kind, &a, now, memory, (index, *command));
        let answered_later = run.answers_later();
        self.bench = Some(run);
        (!answered_later).then_some(Ok(DONE))
    }

    /// Whether commands must wait for the benchmark's answer.
    pub(crate) fn bench_blocks(&self) -> bool {
        self.bench.as_ref().is_some_and(BenchRun::answers_later)
    }

    /// The benchmark, while the NIC runs: a mute NIC's benchmark rests until the reset.
    fn running_bench(&self) -> Option<&BenchRun> {
        self.bench.as_ref().filter(|_| self.running())
    }

    /// Whether the device must not sleep.
    pub(crate) fn bench_spins(&self) -> bool {
        self.running_bench().is_some_and(|b| b.kind != BenchKind::EchoInterrupt)
    }

    /// When a benchmark that sleeps gives up.
    pub(crate) fn bench_deadline(&self) -> Option<Instant> {
        self.running_bench().map(BenchRun::deadline)
    }

    /// The driver kicked.
    pub(crate) fn bench_kicked(&mut self) {
        if self.running() && self.bench.as_mut().is_some_and(BenchRun::kick) {
            self.stats.interrupts += 1;
            self.frontend.raise(0);
        }
    }

    /// Runs a slice of the benchmark, if there is one. Returns whether it did anything.
    pub(crate) fn run_bench(&mut self, schedule: &mut Schedule) -> bool {
        if !self.running() {
            return false;
        }
        let now = schedule.now;
        let Some(mut bench) = self.bench.take() else { return false };
        if bench.copy_is_over() {
            let (index, command) = bench.command;
            let answer = match bench.fault {
                true => Err(Refusal::new(Status::Dma, usize::from(NO_FIELD))),
                false => Ok(result(&(now.since(bench.started).as_nanos() as u64))),
            };
            self.answer(index, &command, &answer);
            return true;
        }
        let worked = bench.run(self.frontend.memory(), now);
        schedule.charge(if worked { SLICE_WORK } else { 0 });
        if bench.goes_on(now) {
            self.bench = Some(bench);
        }
        worked
    }
}
