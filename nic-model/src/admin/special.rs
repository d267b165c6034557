//! Fault injection, and the start of benchmarks.

use nic_abi::admin::{Bench, BenchKind, Command, Inject, Injection, Status};
use nic_abi::cqe;
use nic_abi::eqe::EventType;
use nic_abi::ident::qpn_slot;
use nic_abi::registers::Fault;

use super::{Answer, DONE, Refusal, args, at};
use crate::Frontend;
use crate::bench::BenchRun;
use crate::fabric::Fabric;
use crate::memory::GuestMemory;
use crate::nic::{Mute, Nic};

impl<F: Frontend> Nic<F> {
    pub(super) fn inject(&mut self, command: &Command) -> Answer {
        let a: Inject = args(command);
        let what = Injection::from_word(a.what).ok_or(Refusal::field(at!(Inject, what)))?;
        let no_such = Refusal::new(Status::NoSuchObject, at!(command.object));
        let no_qp =
            matches!(what, Injection::Mute | Injection::Fail | Injection::DropManagement | Injection::Port);
        if no_qp {
            match what {
                Injection::Mute | Injection::Port if a.value > 1 => {
                    return Err(Refusal::field(at!(Inject, value)));
                }
                Injection::DropManagement => self.drop_management = a.count,
                Injection::Port => self.set_port(a.value == 1),
                // What is left takes effect after the answer.
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
        let qp = self.qps.get_mut(qpn_slot(command.object)).filter(|qp| qp.qpn == command.object);
        let faults = &mut qp.ok_or(no_such)?.faults;
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

    fn set_port(&mut self, up: bool) {
        if self.port_up != up {
            self.port_up = up;
            self.show_status();
            let event = if up { EventType::PortUp } else { EventType::PortDown };
            self.post_event(0, event, 0, 0, 0, 0);
        }
    }
}

impl<F: Frontend> Fabric<F> {
    /// What a command does once it has been answered.
    pub(super) fn after_answer(&mut self, n: u16, command: &Command, worked: bool) {
        let nic = &mut self.nics[usize::from(n)];
        if !worked
            || nic_abi::admin::Opcode::from_word(command.opcode) != Some(nic_abi::admin::Opcode::Inject)
        {
            return;
        }
        let a: Inject = args(command);
        match Injection::from_word(a.what) {
            Some(Injection::Mute) => nic.mute = if a.value == 1 { Mute::ForGood } else { Mute::UntilReset },
            Some(Injection::Fail) => nic.fail(Fault::Injected),
            _ => {}
        }
    }

    /// Starts a benchmark; `None` if the answer comes at its end.
    pub(super) fn start_bench(&mut self, n: u16, index: u32, command: &Command) -> Option<Answer> {
        let a: Bench = args(command);
        let now = self.now;
        let nic = &mut self.nics[usize::from(n)];
        let Some(kind) = BenchKind::from_word(a.kind) else {
            return Some(Err(Refusal::field(at!(Bench, kind))));
        };
        let memory = nic.frontend.memory();
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
        let run = BenchRun::new(kind, &a, now, nic.bench_word(a.target), (index, *command));
        let answered_later = run.answers_later();
        nic.bench = Some(run);
        (!answered_later).then_some(Ok(DONE))
    }
}
