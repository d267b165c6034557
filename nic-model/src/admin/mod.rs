//! The admin queue: commands are taken in order, checked to the last field, carried out or refused.
//!
//! | module | subject |
//! |---|---|
//! | `command` | commands as the driver wrote them, and answers |
//! | `queues` | commands about event queues, protection domains, CQs, SRQs |
//! | `keys` | about regions and windows |
//! | `qps` | about queue pairs |
//!
//! The commands for tests are in `test_commands`.

pub(crate) mod command;
mod keys;
mod qps;
mod queues;
mod streams;

use core::mem::offset_of;

use nic_abi::admin::{
    ARGS_OFFSET, COMMAND_SIZE, Command, FLAG_EVENT, MAX_STREAM_BYTES, NO_FIELD, Opcode, RESPONSE_SIZE,
    RegisterRegion, ResizeCq, Response, ShareRegion, Status, TransferStream,
};
use nic_abi::cqe;
use nic_abi::eqe::EventType;
use nic_abi::registers::Fault;

use crate::Frontend;
use crate::limits::{LOG_CQES, MAX_LIST_ELEMENTS, RING_ALIGN};
use crate::memory::GuestMemory;
use crate::nic::Nic;
use crate::node::Node;
use crate::report::event;
use crate::schedule::Schedule;
use command::{CommandResult, DONE, Refusal, args, at};

/// Elements of a list, or entries of a ring, that a command handles in a unit of work.
const ELEMENTS: u32 = 64;
/// Bytes of a stream that a command handles in a unit of work.
const BYTES: u32 = 1024;
/// Elements of a region that are released in a unit of work.
const RELEASED: u32 = 4096;

/// Units of work of a command, by what it names: a refused one may have been less.
fn cost(command: &Command) -> u32 {
    let large = match Opcode::from_word(command.opcode) {
        Some(Opcode::RegisterRegion) => {
            let list = args::<RegisterRegion>(command).list;
            list.elements.min(MAX_LIST_ELEMENTS) / ELEMENTS
        }
        Some(Opcode::ShareRegion) => {
            let list = args::<ShareRegion>(command).list;
            list.elements.min(MAX_LIST_ELEMENTS) / ELEMENTS
        }
        Some(Opcode::ResizeCq) => {
            let log = args::<ResizeCq>(command).log_entries.min(LOG_CQES);
            (1 << log) / ELEMENTS
        }
        Some(Opcode::SendStream | Opcode::ReceiveStream) => {
            args::<TransferStream>(command).length.min(MAX_STREAM_BYTES) / BYTES
        }
        // Its list may be the longest.
        Some(Opcode::DestroyRegion) => MAX_LIST_ELEMENTS / RELEASED,
        _ => 0,
    };
    1 + large
}

impl<F: Frontend> Node<F> {
    /// Carries out commands, until the slice is over. This is the only way to a command.
    #[inline]
    pub(crate) fn commands(&mut self, schedule: &mut Schedule) {
        while self.nic.has_commands() {
            self.command(schedule);
            if schedule.slice_is_over() {
                break;
            }
        }
    }

    /// Takes a command and carries it out.
    fn command(&mut self, schedule: &mut Schedule) {
        let nic = &mut self.nic;
        let Some(admin) = &mut nic.admin else { return };
        let at = admin.commands + admin.entry(admin.head) * COMMAND_SIZE as u64;
        let index = admin.head;
        admin.head = admin.head.wrapping_add(1);
        let Ok(command) = nic.frontend.memory().load::<Command>(at) else {
            return nic.fail(Fault::Dma);
        };
        schedule.charge(cost(&command));
        if let Some(answer) = self.carry_out(schedule, index, &command) {
            self.nic.answer(index, &command, &answer);
            if answer.is_ok() {
                self.nic.after_answer(&command);
            }
        }
        self.fail_queue_pairs(schedule);
    }

    /// Carries out a command; `None` if its answer comes later.
    fn carry_out(&mut self, schedule: &mut Schedule, index: u32, command: &Command) -> Option<CommandResult> {
        let Some(opcode) = Opcode::from_word(command.opcode) else {
            return Some(Err(Refusal::new(Status::BadOpcode, at!(command.opcode))));
        };
        if command.flags & !FLAG_EVENT != 0 {
            return Some(Err(Refusal::field(at!(command.flags))));
        }
        if command.reserved != 0 {
            return Some(Err(Refusal::field(at!(command.reserved))));
        }
        let nic = &mut self.nic;
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
            Opcode::CreateQp => self.create_qp(command),
            Opcode::ModifyQp => self.modify_qp(schedule, command),
            Opcode::DestroyQp => self.destroy_qp(schedule, command),
            Opcode::QueryQp => self.query_qp(command),
            Opcode::JoinGroup => self.join_group(command),
            Opcode::LeaveGroup => self.leave_group(command),
            Opcode::ListenStream => nic.listen_stream(command),
            Opcode::ConnectStream => nic.connect_stream(schedule.now, command),
            Opcode::AcceptStream => nic.accept_stream(command),
            Opcode::SendStream => nic.send_stream(command),
            Opcode::ReceiveStream => nic.receive_stream(command),
            Opcode::CloseStream => nic.close_stream(schedule.now, command),
            Opcode::QueryStream => nic.query_stream(command),
            Opcode::DestroyStream => nic.destroy_stream(schedule.now, command),
            Opcode::Inject => self.inject(schedule.now, command),
            Opcode::Bench => return nic.start_bench(schedule.now, index, command),
        })
    }
}

impl<F: Frontend> Nic<F> {
    /// Whether there are commands to be carried out now.
    pub fn has_commands(&self) -> bool {
        self.running() && !self.bench_blocks() && self.admin.as_ref().is_some_and(|a| a.head != a.tail)
    }

    /// Writes the answer to the command at `index`.
    pub fn answer(&mut self, index: u32, command: &Command, answer: &CommandResult) {
        // An event that the command raised may have failed the NIC.
        let Some(admin) = self.admin.as_ref().filter(|_| self.running()) else { return };
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
            self.post_event(0, event(EventType::Admin, 0, 0, command.id));
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

const _: () = assert!(offset_of!(Command, args) == ARGS_OFFSET);
