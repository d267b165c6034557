//! The admin queue: commands are taken in order, checked to the last field, carried out or refused.
//!
//! | module | commands |
//! |---|---|
//! | `queues` | event queues, protection domains, CQs, SRQs |
//! | `keys` | regions and windows |
//! | `qps` | queue pairs |
//! | `special` | fault injection and benchmarks |

mod keys;
mod qps;
mod queues;
mod special;

use core::mem::offset_of;

use nic_abi::admin::{
    ARGS_OFFSET, COMMAND_SIZE, Command, FLAG_EVENT, NO_FIELD, Opcode, RESPONSE_SIZE, RESULT_SIZE, Response,
    Status,
};
use nic_abi::cqe;
use nic_abi::eqe::EventType;
use nic_abi::registers::Fault;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::Frontend;
use crate::control::RING_ALIGN;
use crate::fabric::Fabric;
use crate::memory::GuestMemory;
use crate::nic::Nic;

/// Commands carried out before other work gets its turn.
const BATCH: u32 = 16;

/// The admin queue.
pub(crate) struct AdminQueue {
    commands: u64,
    responses: u64,
    pub log: u32,
    /// Commands taken since the start.
    pub head: u32,
    /// Commands posted since the start, as of the last doorbell.
    pub tail: u32,
}

impl AdminQueue {
    pub const fn new(commands: u64, responses: u64, log: u32) -> AdminQueue {
        AdminQueue { commands, responses, log, head: 0, tail: 0 }
    }

    fn entry(&self, index: u32) -> u64 {
        u64::from(index & ((1 << self.log) - 1))
    }
}

/// Why a command is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub status: Status,
    /// Offset of the field to blame.
    pub field: u16,
}

impl Refusal {
    pub const fn new(status: Status, field: usize) -> Refusal {
        Refusal { status, field: field as u16 }
    }

    /// A field has a value that is not allowed.
    pub const fn field(field: usize) -> Refusal {
        Refusal::new(Status::BadField, field)
    }
}

/// A command's result.
pub(crate) type Answer = Result<[u8; RESULT_SIZE], Refusal>;

/// The offset in a command of one of its fields, or of a field of its arguments.
macro_rules! at {
    (command.$name:ident) => {
        core::mem::offset_of!(nic_abi::admin::Command, $name)
    };
    ($args:ty, $name:ident) => {
        nic_abi::admin::ARGS_OFFSET + core::mem::offset_of!($args, $name)
    };
}
pub(crate) use at;

/// A result without content.
pub(crate) const DONE: [u8; RESULT_SIZE] = [0; RESULT_SIZE];

/// A result with content.
pub(crate) fn result<T: IntoBytes + Immutable>(value: &T) -> [u8; RESULT_SIZE] {
    let mut bytes = DONE;
    let value = value.as_bytes();
    let n = value.len().min(RESULT_SIZE);
    bytes[..n].copy_from_slice(&value[..n]);
    bytes
}

/// The arguments of a command.
pub(crate) fn args<T: FromBytes + IntoBytes>(command: &Command) -> T {
    let mut value = T::new_zeroed();
    let bytes = value.as_mut_bytes();
    let n = bytes.len().min(command.args.len());
    bytes[..n].copy_from_slice(&command.args[..n]);
    value
}

impl<F: Frontend> Fabric<F> {
    /// Carries out commands of one NIC. Says whether there were any.
    pub(crate) fn commands(&mut self, n: u16) -> bool {
        for done in 0..BATCH {
            let nic = &mut self.nics[usize::from(n)];
            if !nic.has_commands() {
                return done > 0;
            }
            let Some(admin) = &mut nic.admin else { return done > 0 };
            let at = admin.commands + admin.entry(admin.head) * COMMAND_SIZE as u64;
            let index = admin.head;
            admin.head = admin.head.wrapping_add(1);
            let command: Command = match nic.frontend.memory().load(at) {
                Ok(command) => command,
                Err(_) => {
                    nic.fail(Fault::Dma);
                    return true;
                }
            };
            let answer = self.carry_out(n, index, &command);
            let nic = &mut self.nics[usize::from(n)];
            if let Some(answer) = answer {
                nic.answer(index, &command, &answer);
            }
            self.after_answer(n, &command, answer.as_ref().is_some_and(Result::is_ok));
        }
        true
    }

    /// Carries out a command; `None` if its answer comes later.
    fn carry_out(&mut self, n: u16, index: u32, command: &Command) -> Option<Answer> {
        let nic = &mut self.nics[usize::from(n)];
        let Some(opcode) = Opcode::from_word(command.opcode) else {
            return Some(Err(Refusal::new(Status::BadOpcode, at!(command.opcode))));
        };
        if command.flags & !FLAG_EVENT != 0 {
            return Some(Err(Refusal::field(at!(command.flags))));
        }
        if command.reserved != 0 {
            return Some(Err(Refusal::field(at!(command.reserved))));
        }
        Some(match opcode {
            Opcode::Nop => Ok(DONE),
            Opcode::CreateEq => nic.create_eq(command),
            Opcode::DestroyEq => nic.destroy_eq(command),
            Opcode::CreatePd => nic.create_pd(command),
            Opcode::DestroyPd => nic.destroy_pd(command),
            Opcode::RegisterRegion => nic.register_region(command),
            Opcode::AllocateRegion => nic.allocate_region(command),
            Opcode::ModifyRegion => nic.modify_region(command),
            Opcode::ShareRegion => nic.share_region(command),
            Opcode::DestroyRegion => nic.destroy_region(command),
            Opcode::QueryKey => nic.query_key(command),
            Opcode::AllocateWindow => nic.allocate_window(command),
            Opcode::DestroyWindow => nic.destroy_window(command),
            Opcode::CreateCq => nic.create_cq(command),
            Opcode::DestroyCq => nic.destroy_cq(command),
            Opcode::ResizeCq => nic.resize_cq(command),
            Opcode::ResizeSrq => nic.resize_srq(command),
            Opcode::QueryCq => nic.query_cq(command),
            Opcode::CreateSrq => nic.create_srq(command),
            Opcode::DestroySrq => nic.destroy_srq(command),
            Opcode::ModifySrq => nic.modify_srq(command),
            Opcode::QuerySrq => nic.query_srq(command),
            Opcode::CreateQp => nic.create_qp(command),
            Opcode::ModifyQp => self.modify_qp(n, command),
            Opcode::DestroyQp => self.destroy_qp(n, command),
            Opcode::QueryQp => nic.query_qp(command),
            Opcode::Inject => nic.inject(command),
            Opcode::Bench => return self.start_bench(n, index, command),
        })
    }
}

impl<F: Frontend> Nic<F> {
    /// Whether there are commands to be carried out now.
    pub fn has_commands(&self) -> bool {
        self.running() && !self.bench_blocks() && self.admin.as_ref().is_some_and(|a| a.head != a.tail)
    }

    /// Writes the answer to the command at `index`.
    pub fn answer(&mut self, index: u32, command: &Command, answer: &Answer) {
        let Some(admin) = &self.admin else { return };
        let (status, field, result) = match answer {
            Ok(result) => (Status::Success, NO_FIELD, *result),
            Err(refusal) => {
                self.stats.refused_commands += 1;
                (refusal.status, refusal.field, DONE)
            }
        };
        let response = Response {
            id: command.id,
            status: status as u16,
            field,
            result,
            reserved: 0,
            phase: cqe::phase(index, admin.log),
        };
        let words: [u64; RESPONSE_SIZE / 8] = zerocopy::transmute!(response);
        let at = admin.responses + admin.entry(index) * RESPONSE_SIZE as u64;
        if self.frontend.memory().publish(at, words).is_err() {
            return self.fail(Fault::Dma);
        }
        if command.flags & FLAG_EVENT != 0 {
            self.post_event(0, EventType::Admin, 0, 0, 0, command.id);
        }
    }

    /// Checks a ring: alignment, and that `entries` of `size` bytes can be reached.
    pub fn check_ring(&self, ring: u64, entries: u64, size: u64, field: usize) -> Result<(), Refusal> {
        if !ring.is_multiple_of(RING_ALIGN) {
            return Err(Refusal::field(field));
        }
        let reachable = self.frontend.memory().get(ring, entries * size);
        reachable.map(|_| ()).map_err(|_| Refusal::new(Status::Dma, field))
    }
}

/// Checks the log of a size.
pub(crate) fn check_log(
    log: u32,
    range: core::ops::RangeInclusive<u32>,
    field: usize,
) -> Result<(), Refusal> {
    if range.contains(&log) { Ok(()) } else { Err(Refusal::field(field)) }
}

const _: () = assert!(offset_of!(Command, args) == ARGS_OFFSET);
