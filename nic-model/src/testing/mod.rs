//! A miniature driver for tests: it drives NICs of the model through their registers and rings, and
//! breaks the rules of the data sheet when a test asks for it.
//!
//! Only with the feature `testing`. The functions panic where a test cannot go on.

use core::mem::{offset_of, size_of_val};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use nic_abi::admin::{
    self, Command, CreateCq, CreateEq, CreateQp, CreateSrq, Inject, Injection, ModifyQp, Opcode,
};
use nic_abi::admin::{QpFlags, QpInfo, QpMask, QpState, QpType, RegisterRegion, Response, Status};
use nic_abi::cqe::{self, Cqe};
use nic_abi::doorbell::{self, Kind};
use nic_abi::eqe::{self, Eqe, EventType};
use nic_abi::registers::{self, Control};
use nic_abi::wqe::{self, Header, LinkFlags, ListArgs, ReceiveHeader, Segment, SendFlags, Wqe};
use platform::{Instant, SharedSlice};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

mod cable;
mod objects;
mod vi;

pub use cable::{CableEnd, Through, cable};
pub use vi::{VI_DATA, Vi, ViSpec, vi_key};

use roce::IpPrefix;

use crate::{DmaError, Fabric, Frontend, GuestMemory, NicConfig, NicId, Progress, Stats, Wire, port};

/// Bytes of the machine's memory.
pub const MEMORY: u64 = 64 << 20;
/// Log2 of the entries of work queues.
pub const LOG_ENTRIES: u32 = 6;
const ADMIN_LOG: u32 = 4;
/// Segments of a receive entry, and of a send entry.
pub const MAX_SEGMENTS: u32 = 6;
/// The message size of queue pairs.
pub const MAX_MESSAGE: u64 = 8 << 20;

/// The protection domain that [`Rig::new`] creates on each NIC.
pub const PD: u32 = 1;
/// All rights of a region.
pub const ALL_RIGHTS: LinkFlags = LinkFlags::LOCAL_READ
    .union(LinkFlags::LOCAL_WRITE)
    .union(LinkFlags::REMOTE_READ)
    .union(LinkFlags::REMOTE_WRITE)
    .union(LinkFlags::REMOTE_ATOMIC)
    .union(LinkFlags::BIND);
/// All rights of peers.
pub const REMOTE: LinkFlags =
    LinkFlags::REMOTE_READ.union(LinkFlags::REMOTE_WRITE).union(LinkFlags::REMOTE_ATOMIC);

/// Zeroed memory of a machine, or a register file; a bus address is an offset in it.
pub struct Memory(Box<[AtomicU64]>);

impl Memory {
    /// `len` bytes, a multiple of 8.
    pub fn new(len: usize) -> Memory {
        Memory(<[AtomicU64]>::new_box_zeroed_with_elems(len / 8).expect("memory for a test"))
    }
}

impl GuestMemory for Memory {
    #[inline]
    fn get(&self, addr: u64, len: u64) -> Result<SharedSlice<'_>, DmaError> {
        let (Ok(addr), Ok(len)) = (usize::try_from(addr), usize::try_from(len)) else { return Err(DmaError) };
        let at = if len == 0 { 0 } else { addr };
        SharedSlice::from(&*self.0).get(at, len).map_err(|_| DmaError)
    }
}

/// The front-end of one NIC: counts the interrupts.
pub struct Front {
    registers: Arc<Memory>,
    memory: Arc<Memory>,
    raised: Arc<Vec<AtomicU32>>,
}

impl Frontend for Front {
    type Memory = Memory;
    type Wire = Box<dyn Wire>;

    fn registers(&self) -> SharedSlice<'_> {
        self.registers.get(0, registers::SIZE as u64).expect("the register file")
    }

    fn memory(&self) -> &Memory {
        &self.memory
    }

    fn raise(&self, vector: u16) {
        self.raised[usize::from(vector)].fetch_add(1, Ordering::Relaxed);
    }
}

/// One NIC as its driver sees it.
pub struct Side {
    /// Its name in the fabric.
    pub id: NicId,
    /// Its register file.
    pub registers: Arc<Memory>,
    raised: Arc<Vec<AtomicU32>>,
    commands: u64,
    responses: u64,
    issued: u32,
    next_cq: u32,
    next_slot: u32,
    eq: Ring,
}

/// A ring that the device fills.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// Bus address.
    pub addr: u64,
    /// Log2 of the entries.
    pub log: u32,
    /// Entries consumed, free-running.
    pub head: u32,
}

/// A CQ.
#[derive(Clone, Copy, Debug)]
pub struct Cq {
    /// The index of its NIC.
    pub nic: usize,
    /// Its number.
    pub number: u32,
    /// Its ring.
    pub ring: Ring,
}

/// A queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Qp {
    /// The index of its NIC.
    pub nic: usize,
    /// Its number.
    pub qpn: u32,
    /// The CQ of its send queue.
    pub send_cq: Cq,
    /// The CQ of its receive queue.
    pub receive_cq: Cq,
    /// Bus address of the send queue.
    pub send_ring: u64,
    /// Bus address of the receive queue, 0 with an SRQ.
    pub receive_ring: u64,
    /// Blocks posted.
    pub send_tail: u32,
    /// Receives posted.
    pub receive_tail: u32,
    /// Its generation.
    pub generation: u32,
}

/// How to create a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpSpec {
    /// Its type.
    pub kind: QpType,
    /// Privileged or not, with an SRQ or without.
    pub flags: QpFlags,
    /// The SRQ, if the flags say that there is one.
    pub srq: u32,
    /// The slot; a fresh one if `None`.
    pub slot: Option<u32>,
    /// Log2 of the blocks of its send queue and of the entries of its receive queue.
    pub log: u32,
    /// The name under which it binds narrow windows; 0 for its own.
    pub owner: u64,
}

impl Default for QpSpec {
    fn default() -> QpSpec {
        QpSpec { kind: QpType::Rc, flags: QpFlags::empty(), srq: 0, slot: None, log: LOG_ENTRIES, owner: 0 }
    }
}

/// A fabric, the memory of its machine, and a driver of each NIC.
pub struct Rig {
    /// The device.
    pub fabric: Fabric<Front>,
    /// The memory of the machine.
    pub memory: Arc<Memory>,
    /// The NICs as their drivers see them.
    pub nics: Vec<Side>,
    /// The time that the device is given, in nanoseconds.
    pub now: u64,
    next: u64,
    next_key: u32,
}

impl Rig {
    /// NICs that are powered on and linked to each other.
    pub fn powered(nics: u8) -> Rig {
        let mut rig = Rig::apart(nics);
        for a in &rig.nics {
            for b in &rig.nics {
                rig.fabric.connect(a.id, b.id);
            }
        }
        rig
    }

    /// NICs that are powered on.
    fn apart(nics: u8) -> Rig {
        let memory = Arc::new(Memory::new(MEMORY as usize));
        let mut fabric = Fabric::new();
        let mut sides: Vec<Side> = Vec::new();
        for n in 0..nics {
            let registers = Arc::new(Memory::new(registers::SIZE));
            let raised: Arc<Vec<AtomicU32>> = Arc::new((0..8).map(|_| AtomicU32::new(0)).collect());
            let front =
                Front { registers: registers.clone(), memory: memory.clone(), raised: raised.clone() };
            let id = fabric.add_nic(NicConfig::numbered(n, MEMORY), front).expect("a good configuration");
            let eq = Ring { addr: 0, log: 0, head: 0 };
            sides.push(Side {
                id,
                registers,
                raised,
                commands: 0,
                responses: 0,
                issued: 0,
                next_cq: 0,
                next_slot: 2,
                eq,
            });
        }
        Rig { fabric, memory, nics: sides, now: 0, next: 4096, next_key: 1 }
    }

    /// Two NICs that are started, whose ports are plugged into these wires. There is no short cut
    /// between them. The link's MTU is so many bytes.
    pub fn wired(wires: [impl Wire + 'static; 2], mtu: u32) -> Rig {
        let mut rig = Rig::apart(2);
        for (n, wire) in wires.into_iter().enumerate() {
            let address = IpPrefix::new([10, 0, 0, n as u8 + 1].into(), 24).expect("an address");
            rig.attach(n, wire, &port::Config::new(n as u64 + 1, mtu, &[address]));
            rig.bring_up(n);
        }
        rig
    }

    /// NICs that are started, each with a protection domain and an event queue 0 on vector 1.
    pub fn new(nics: u8) -> Rig {
        let mut rig = Rig::powered(nics);
        for n in 0..usize::from(nics) {
            rig.bring_up(n);
        }
        rig
    }

    /// Starts NIC `n`, with a protection domain and an event queue 0 on vector 1.
    pub fn bring_up(&mut self, n: usize) {
        self.start(n);
        self.command(n, Opcode::CreatePd, PD, &()).expect("a domain");
        self.create_eq(n, 0, 6);
    }

    /// Plugs NIC `n`, which is not started, into a wire.
    pub fn attach(&mut self, n: usize, wire: impl Wire + 'static, config: &port::Config) {
        self.fabric.attach(self.nics[n].id, Box::new(wire), config).expect("a good configuration");
    }

    /// The port's counters of NIC `n`.
    pub fn port(&self, n: usize) -> &port::Counters {
        self.fabric.port_counters(self.nics[n].id).expect("a port")
    }

    /// Memory of the machine, zeroed.
    pub fn alloc(&mut self, len: u64) -> u64 {
        let at = self.next;
        self.next += len.next_multiple_of(4096);
        assert!(self.next <= MEMORY, "the rig's memory is used up");
        at
    }

    /// A register of NIC `n`.
    pub fn register(&self, n: usize, offset: usize) -> &AtomicU32 {
        let registers = self.nics[n].registers.get(0, registers::SIZE as u64).expect("the register file");
        registers.atomic_u32(offset).expect("a register")
    }

    /// How often NIC `n` raised a vector.
    pub fn raised(&self, n: usize, vector: usize) -> u32 {
        self.nics[n].raised[vector].load(Ordering::Relaxed)
    }

    /// The counters of NIC `n`.
    pub fn stats(&self, n: usize) -> Stats {
        *self.fabric.stats(self.nics[n].id).expect("a NIC")
    }

    /// Polls the device until it has nothing to do at this moment.
    pub fn run(&mut self) {
        for _ in 0..100_000 {
            if self.fabric.poll(Instant::from_nanos(self.now), 64) == Progress::Idle {
                return;
            }
        }
        panic!("the device finds no rest");
    }

    /// Polls the device once, with the smallest budget.
    pub fn step(&mut self) {
        self.fabric.poll(Instant::from_nanos(self.now), 1);
    }

    /// Lets time pass, and polls the device until it has nothing to do.
    pub fn advance(&mut self, ns: u64) {
        self.now += ns;
        self.run();
    }

    /// Writes a control request and polls the device; returns the request's value.
    pub fn control(&mut self, n: usize, command: u32) -> u32 {
        let present = self.register(n, registers::CONTROL_REQUEST).load(Ordering::Relaxed);
        let acknowledged = self.register(n, registers::STATUS_ACKNOWLEDGED).load(Ordering::Relaxed);
        let others = [1, 2].map(|more| acknowledged.wrapping_add(more));
        let value = if others[0] == present { others[1] } else { others[0] };
        let at = registers::CONTROL + offset_of!(Control, command);
        self.register(n, at).store(command, Ordering::Relaxed);
        self.register(n, registers::CONTROL_REQUEST).store(value, Ordering::Release);
        self.run();
        value
    }

    /// The state word of NIC `n`.
    pub fn state(&self, n: usize) -> u32 {
        self.register(n, registers::STATUS_STATE).load(Ordering::Acquire)
    }

    /// Describes the admin queue in the control page.
    pub fn describe_admin(&mut self, n: usize, log: u32, version: u32, commands: u64, responses: u64) {
        let control = Control {
            request: self.register(n, registers::CONTROL_REQUEST).load(Ordering::Relaxed),
            command: 0,
            driver_version: version,
            admin_log_entries: log,
            admin_commands: commands,
            admin_responses: responses,
        };
        self.nics[n]
            .registers
            .write(registers::CONTROL as u64, control.as_bytes())
            .expect("the control page");
    }

    /// Starts NIC `n` with an admin queue in fresh memory.
    pub fn start(&mut self, n: usize) {
        let commands = self.alloc((admin::COMMAND_SIZE << ADMIN_LOG) as u64);
        let responses = self.alloc((admin::RESPONSE_SIZE << ADMIN_LOG) as u64);
        self.describe_admin(n, ADMIN_LOG, u32::from(nic_abi::VERSION_MAJOR) << 16, commands, responses);
        self.control(n, registers::CONTROL_START);
        assert_eq!(self.state(n), registers::State::Ready as u32);
        let side = &mut self.nics[n];
        (side.commands, side.responses, side.issued) = (commands, responses, 0);
    }

    /// Rings for a queue as the data sheet says; true if the device wants a kick.
    pub fn ring(&self, n: usize, kind: Kind, slot: u32, tail: u32) -> bool {
        let records = match kind {
            Kind::Send => registers::SQ_RECORDS,
            Kind::Receive => registers::RQ_RECORDS,
            Kind::SharedReceive => registers::SRQ_RECORDS,
            Kind::Admin => registers::ADMIN_RECORD,
        };
        let at = doorbell::record(records, slot);
        self.register(n, at).store(tail, Ordering::Release);
        self.register(n, at + 4).swap(0, Ordering::AcqRel) == 1 && self.push_doorbell(n, kind, slot)
    }

    /// Writes an entry of the FIFO, whether the queue is armed or not; true if the device wants a
    /// kick.
    pub fn push_doorbell(&self, n: usize, kind: Kind, slot: u32) -> bool {
        let index = self.register(n, registers::FIFO_TAIL).fetch_add(1, Ordering::AcqRel);
        let entry = registers::FIFO + (index % registers::FIFO_ENTRIES) as usize * 4;
        self.register(n, entry).store(doorbell::entry(kind, slot, index), Ordering::Release);
        fence(Ordering::SeqCst);
        self.register(n, registers::FIFO_EVENT).load(Ordering::SeqCst) == index
    }

    /// Posts a command and rings; returns the index of its answer.
    pub fn issue(&mut self, n: usize, command: &Command) -> u32 {
        let side = &mut self.nics[n];
        let index = side.issued;
        side.issued += 1;
        let at = side.commands + u64::from(index % (1 << ADMIN_LOG)) * admin::COMMAND_SIZE as u64;
        let tail = side.issued;
        self.memory.write(at, command.as_bytes()).expect("the ring");
        self.ring(n, Kind::Admin, 0, tail);
        index
    }

    /// The answer at an index, if it is there.
    pub fn answer(&self, n: usize, index: u32) -> Option<Response> {
        let at = self.nics[n].responses + u64::from(index % (1 << ADMIN_LOG)) * admin::RESPONSE_SIZE as u64;
        let response: Response = self.memory.load(at).expect("the ring");
        (response.phase == cqe::phase(index, ADMIN_LOG)).then_some(response)
    }

    /// Has a command carried out; `None` if there is no answer.
    pub fn raw_command(&mut self, n: usize, command: &Command) -> Option<Response> {
        let index = self.issue(n, command);
        self.run();
        self.answer(n, index)
    }

    /// Has a command carried out; returns its result, or the status and the field of a refusal.
    pub fn command<A: IntoBytes + Immutable>(
        &mut self,
        n: usize,
        opcode: Opcode,
        object: u32,
        args: &A,
    ) -> Result<[u8; admin::RESULT_SIZE], (Status, u16)> {
        let command = Command { object, ..command(opcode, args) };
        let response = self.raw_command(n, &command).expect("an answer");
        assert_eq!(response.id, 77);
        match Status::from_word(response.status).expect("a status") {
            Status::Success => Ok(response.result),
            status => Err((status, response.field)),
        }
    }

    /// Fills memory with a pattern that repeats itself every 256 bytes.
    pub fn fill(&self, addr: u64, len: usize, seed: u8) {
        let period: Vec<u8> = (0..=u8::MAX).map(|i| i.wrapping_mul(31).wrapping_add(seed)).collect();
        let bytes = period.repeat(len.div_ceil(period.len()));
        self.memory.write(addr, &bytes[..len]).expect("memory");
    }

    /// A copy of memory.
    pub fn bytes(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(addr, &mut bytes).expect("memory");
        bytes
    }
}

/// A command with these arguments, about object 0.
pub fn command<A: IntoBytes + Immutable>(opcode: Opcode, args: &A) -> Command {
    let mut command = Command {
        opcode: opcode as u16,
        flags: 0,
        id: 77,
        object: 0,
        reserved: 0,
        args: [0; admin::ARGS_SIZE],
    };
    let bytes = args.as_bytes();
    command.args[..bytes.len()].copy_from_slice(bytes);
    command
}

/// Bytes of a receive entry of the rig's queues.
pub fn stride() -> u32 {
    wqe::receive_stride(MAX_SEGMENTS)
}

/// A segment.
pub fn segment(key: u32, addr: u64, length: u32) -> Segment {
    Segment { addr, length, key }
}

/// A header with opcode and tag.
pub fn header(opcode: wqe::Opcode, tag: u32) -> Header {
    Header { opcode: opcode as u8, tag, ..Header::default() }
}

/// A header of an RDMA operation.
pub fn rdma(opcode: wqe::Opcode, tag: u32, key: u32, addr: u64) -> Header {
    Header { remote_key: key, remote_addr: addr, ..header(opcode, tag) }
}

/// The status of a completion.
pub fn status(entry: &Cqe) -> cqe::Status {
    cqe::Status::from_byte(entry.status).expect("a status")
}
