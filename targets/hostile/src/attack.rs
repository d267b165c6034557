//! A round of garbage: objects that are nearly valid, requests on them, and random values
//! everywhere.

use core::mem::offset_of;
use core::sync::atomic::Ordering;

use common::Failure;
use nic_abi::admin::{
    AllocateRegion, AllocateWindow, Bench, Command, CreateCq, CreateEq, CreateQp, CreateSrq, Inject,
    Injection, ModifyQp, ModifyRegion, ModifySrq, Opcode, QpMask, QpState, QpType, RegisterRegion, ResizeCq,
    ResizeSrq, ShareRegion,
};
use nic_abi::doorbell::Kind;
use nic_abi::ident;
use nic_abi::registers::{self, Control, GIDS, Identity};
use nic_abi::vi;
use nic_abi::wqe::{Header, LinkFlags, ListArgs, Opcode as Work, Segment, SendFlags, Wqe};
use zerocopy::{FromZeros, IntoBytes};

use crate::memory::{Memory, Ring, beyond};
use crate::nic::{Nic, command};
use platform::random::Random;

/// There are few numbers of queue pairs, keys and other objects, so that commands often name
/// existing objects.
const QPS: u32 = 8;
const KEYS: u32 = 12;
const OTHERS: u32 = 4;
/// Actions of a round.
const ACTIONS: u32 = 1500;
/// The most entries of a flood of the FIFO.
const FLOOD: u32 = 4000;
/// The longest list whose elements all lie in the memory for lists, in bytes.
const LIST: u64 = 64 << 10;

/// Counts of actions, for the closing line.
#[derive(Default)]
pub struct Counts {
    pub commands: u64,
    pub requests: u64,
    pub entries: u64,
    pub words: u64,
}

/// A queue pair that may exist: its rings and how much was posted.
#[derive(Clone, Copy, Default)]
struct Qp {
    send: u64,
    receive: u64,
    send_tail: u32,
    receive_tail: u32,
    /// It is a virtual interface.
    vi: bool,
}

/// One NIC in one round.
pub struct Round<'a> {
    nic: &'a mut Nic,
    memory: &'a Memory,
    gids: [[u8; 16]; 2 * GIDS],
    qps: [Qp; QPS as usize],
    shared: [(u64, u32); OTHERS as usize],
}

/// A local or remote key: there are few for each slot, so that requests often name existing ones.
fn key(random: &mut Random) -> u32 {
    ident::key(1 + random.small(KEYS), random.small(2))
}

/// A count or size: mostly small.
fn number(random: &mut Random) -> u32 {
    match random.below(8) {
        0 => random.word() as u32,
        1 => 1 << random.small(20),
        _ => random.small(9),
    }
}

/// A length: short, or longer than all memory.
fn length(random: &mut Random) -> u64 {
    if random.rarely(16) { beyond(random) } else { random.below(LIST) }
}

/// An address, and sometimes a word that is no address.
fn address(random: &mut Random, place: u64) -> u64 {
    match random.below(24) {
        0 => beyond(random),
        1 => place + random.below(64),
        _ => place,
    }
}

impl<'a> Round<'a> {
    /// Starts a NIC and creates the objects that most commands name.
    pub fn begin(
        nic: &'a mut Nic,
        memory: &'a Memory,
        random: &mut Random,
        gids: [[u8; 16]; 2 * GIDS],
    ) -> Result<Round<'a>, Failure> {
        nic.start(memory, random)?;
        let shared = core::array::from_fn(|_| (memory.ring(random, Ring::Receive), 0));
        let mut round = Round { nic, memory, gids, qps: Default::default(), shared };
        let eq = CreateEq { ring: memory.payload(random), log_entries: 14, vector: 1 };
        round.post(&command(Opcode::CreateEq, 0, &eq))?;
        round.post(&command(Opcode::CreatePd, 1, &()))?;
        for number in 0..OTHERS {
            let ring = memory.payload(random);
            let cq = CreateCq { ring, log_entries: 8, eq: 0, generation: 1 << 16, flags: number & 1 };
            round.post(&command(Opcode::CreateCq, number, &cq))?;
        }
        for slot in 0..QPS {
            round.create_qp(random, slot)?;
            for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
                let modify = round.modify(random, to);
                round.post(&command(Opcode::ModifyQp, ident::qpn(2 + slot, 1), &modify))?;
            }
        }
        for slot in 0..KEYS / 2 {
            let list = round.list(random, ident::key(1 + slot, 0));
            let flags = LinkFlags::from_bits_truncate(0x3f) | LinkFlags::RELATIVE | LinkFlags::VARIABLE;
            let register = RegisterRegion { pd: 1, flags: flags.bits(), base: 0, length: 64, list };
            round.post(&command(Opcode::RegisterRegion, ident::key(1 + slot, 0), &register))?;
        }
        Ok(round)
    }

    fn post(&mut self, command: &Command) -> Result<(), Failure> {
        self.nic.post(self.memory, command)
    }

    /// Writes a list of pairs of address and length, and describes it, for a region with this
    /// remote key.
    fn list(&mut self, random: &mut Random, remote: u32) -> ListArgs {
        let at = self.memory.list(random, true);
        for pair in 0..8 {
            let element = [self.memory.payload(random), 1 + random.below(LIST)];
            self.memory.write(at + 16 * pair, &element);
        }
        let elements = 1 + random.small(8);
        ListArgs { list: at, element_length: 0, first_byte_offset: 0, elements, remote }
    }

    /// As [`Round::list`], for a region with these flags and this local key: a list of any form,
    /// with any fault. A list is always read from an address to which lists are written: each of
    /// its words is an address, a length, or neither.
    fn any_list(&mut self, random: &mut Random, flags: u32, local: u32) -> ListArgs {
        let remote = ident::key(ident::key_slot(local), random.small(2));
        let mut list = self.list(random, remote);
        if random.rarely(2) {
            list.element_length = [4096, 1 + random.below(LIST)][random.small(2) as usize];
            list.list = self.memory.list(random, false);
            for element in 0..8 {
                self.memory.write(list.list + 8 * element, &[self.memory.payload(random)]);
            }
        }
        if flags & LinkFlags::CONTIGUOUS.bits() != 0 {
            list.list = self.memory.payload(random);
        }
        if random.rarely(24) {
            list.list = beyond(random);
        }
        if random.rarely(4) {
            list.first_byte_offset = length(random);
        }
        if random.rarely(4) {
            list.elements = number(random);
        }
        if random.rarely(16) {
            list.remote = key(random);
        }
        list
    }

    fn create_qp(&mut self, random: &mut Random, slot: u32) -> Result<(), Failure> {
        let (send, receive) = (self.memory.ring(random, Ring::Send), self.memory.ring(random, Ring::Receive));
        if random.rarely(3) {
            return self.create_vi(random, slot);
        }
        let shared = random.rarely(4);
        self.qps[slot as usize] = Qp { send, receive, send_tail: 0, receive_tail: 0, vi: false };
        let create = CreateQp {
            qp_type: match random.below(8) {
                0 | 1 => QpType::Ud,
                2 => QpType::Uc,
                _ => QpType::Rc,
            } as u32,
            flags: u32::from(random.rarely(2)) | u32::from(shared) << 1,
            pd: 1,
            generation: 1 << 16,
            send_cq: random.small(OTHERS),
            receive_cq: random.small(OTHERS),
            srq: random.small(OTHERS),
            max_send_segments: 6,
            send_ring: address(random, send),
            receive_ring: if shared { 0 } else { address(random, receive) },
            log_send_blocks: if random.rarely(16) { number(random) } else { 6 },
            log_receive_entries: if random.rarely(16) { number(random) } else { 6 },
            max_receive_segments: 6,
            eq: 0,
            max_message: if random.rarely(8) { length(random) } else { 8 << 20 },
            owner: random.below(2),
        };
        self.post(&command(Opcode::CreateQp, ident::qpn(2 + slot, 1), &create))
    }

    /// Creates a virtual interface, whose rings are in memory that the device writes.
    fn create_vi(&mut self, random: &mut Random, slot: u32) -> Result<(), Failure> {
        let (send, receive) = (self.memory.payload(random), self.memory.payload(random));
        self.qps[slot as usize] = Qp { send, receive, send_tail: 0, receive_tail: 0, vi: true };
        let cq = |random: &mut Random| if random.rarely(2) { vi::NO_CQ } else { random.small(OTHERS) };
        let create = CreateQp {
            qp_type: vi::QP_TYPE,
            pd: 1,
            generation: 1 << 16,
            send_cq: cq(random),
            receive_cq: cq(random),
            max_send_segments: if random.rarely(8) { number(random) } else { 252 },
            send_ring: address(random, send),
            receive_ring: address(random, receive),
            log_send_blocks: if random.rarely(16) { number(random) } else { 6 },
            log_receive_entries: if random.rarely(16) { number(random) } else { 6 },
            max_receive_segments: 252,
            max_message: if random.rarely(8) { length(random) } else { 8 << 20 },
            ..CreateQp::default()
        };
        self.post(&command(Opcode::CreateQp, ident::qpn(2 + slot, 1), &create))
    }

    /// Posts descriptors on a queue of a virtual interface: nearly valid ones, in regions.
    fn descriptors(&mut self, random: &mut Random, slot: u32, receive: bool) -> Result<u64, Failure> {
        let count = 1 + random.small(12);
        for _ in 0..count {
            let mut words = [0; 32];
            for word in &mut words[4..] {
                // Pairs of words: an address; then a handle and a length, or zero.
                *word = random.below(256);
            }
            for pair in words[4..].chunks_exact_mut(2) {
                pair[1] = u64::from(key(random)) | random.below(64) << 32;
            }
            let segments = if random.rarely(16) { number(random) } else { random.small(6) };
            let control = if random.rarely(16) { random.word() as u32 } else { random.small(16) };
            words[1] = u64::from(segments & 0xffff) << 32 | u64::from(control & 0xffff) << 48;
            words[3] = random.below(64);
            let place = self.memory.payload(random);
            for at in 0..8 {
                self.memory.write_payload(place + 512 * at, &words);
            }
            let qp = &mut self.qps[slot as usize];
            let (ring, tail) = match receive {
                true => (qp.receive, &mut qp.receive_tail),
                false => (qp.send, &mut qp.send_tail),
            };
            let post = [64 * random.below(64) + random.below(64) / 63, u64::from(key(random))];
            self.memory.write_payload(ring + 64 + u64::from(*tail % 64) * 16, &post);
            *tail = tail.wrapping_add(1);
            if random.rarely(8) {
                self.memory.write_payload(ring, &[1]);
            }
        }
        let qp = &self.qps[slot as usize];
        let tail = if receive { qp.receive_tail } else { qp.send_tail };
        let tail = if random.rarely(200) { random.word() as u32 } else { tail };
        self.nic.ring(if receive { Kind::Receive } else { Kind::Send }, 2 + slot, tail)?;
        Ok(u64::from(count))
    }

    fn modify(&self, random: &mut Random, to: QpState) -> ModifyQp {
        let mut modify = ModifyQp {
            state: to as u32,
            access: 0x1c,
            remote_gid: self.gids[random.small(self.gids.len() as u32) as usize],
            remote_qpn: ident::qpn(2 + random.small(QPS), 1),
            mtu: 1024,
            timeout: random.small(12) as u8,
            retry_count: random.small(8) as u8,
            rnr_retry: random.small(8) as u8,
            min_rnr_timer: random.small(32) as u8,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            ..ModifyQp::new_zeroed()
        };
        let receiver = QpMask::PATH
            | QpMask::REMOTE_QPN
            | QpMask::MTU
            | QpMask::RECEIVE_PSN
            | QpMask::MAX_DEST_RD_ATOMIC
            | QpMask::MIN_RNR_TIMER;
        let sender = QpMask::SEND_PSN
            | QpMask::TIMEOUT
            | QpMask::RETRY_COUNT
            | QpMask::RNR_RETRY
            | QpMask::MAX_RD_ATOMIC;
        if to == QpState::Reset && random.rarely(2) {
            modify.mask = (QpMask::STATE | QpMask::LEVEL | QpMask::PD).bits();
            (modify.level, modify.pd) = (random.small(4) as u8, random.small(OTHERS));
            return modify;
        }
        let mask = match to {
            QpState::Init => QpMask::ACCESS,
            QpState::Rtr => receiver,
            QpState::Rts => sender,
            _ => QpMask::empty(),
        };
        modify.mask = (QpMask::STATE | mask).bits();
        modify
    }

    /// A command that is nearly valid.
    fn any_command(&mut self, random: &mut Random) -> Result<(), Failure> {
        let memory = self.memory;
        let other = random.small(OTHERS + 1);
        let log = if random.rarely(8) { number(random) } else { 4 + random.small(6) };
        let large = if random.rarely(40) { 20 } else { log };
        let qpn = ident::qpn(2 + random.small(QPS), 1);
        let (payload, ring) = (memory.payload(random), memory.ring(random, Ring::Receive));
        let (payload, ring) = (address(random, payload), address(random, ring));
        let flags = random.word() as u32 & 0x0fff;
        let mut posted = match random.below(24) {
            0 => {
                command(Opcode::CreateEq, other, &CreateEq { ring: payload, log_entries: log, vector: other })
            }
            1 => command(Opcode::DestroyEq, 1 + other, &()),
            2 => command(Opcode::CreatePd, other, &()),
            3 => command(Opcode::DestroyPd, other, &()),
            4 | 5 => {
                let key = key(random);
                let list = self.any_list(random, flags, key);
                let register =
                    RegisterRegion { pd: 1, flags, base: random.word(), length: length(random), list };
                command(Opcode::RegisterRegion, key, &register)
            }
            6 => {
                let max_elements = number(random);
                command(Opcode::AllocateRegion, key(random), &AllocateRegion { pd: 1, max_elements })
            }
            7 => command(Opcode::DestroyRegion, key(random), &()),
            8 => {
                let (key, rights) = (key(random), random.small(2));
                let remote = ident::key(ident::key_slot(key), random.small(2));
                let modify = ModifyRegion { pd: other, flags: (flags & 0x3f) * rights, rights, remote };
                command(Opcode::ModifyRegion, key, &modify)
            }
            9 => {
                let (key, of) = (key(random), key(random));
                let list = self.any_list(random, flags, key);
                let length = length(random);
                let share =
                    ShareRegion { pd: 1, flags: flags & 0x13f, base: 0, length, list, of, reserved: 0 };
                command(Opcode::ShareRegion, key, &share)
            }
            10 => {
                let window_type = random.small(4);
                command(Opcode::AllocateWindow, key(random), &AllocateWindow { pd: 1, window_type })
            }
            11 => command(Opcode::DestroyWindow, key(random), &()),
            12 => {
                let create = CreateCq {
                    ring: payload,
                    log_entries: large,
                    eq: 0,
                    generation: 1 << 16,
                    flags: other & 1,
                };
                command(Opcode::CreateCq, other, &create)
            }
            13 => command(Opcode::DestroyCq, other, &()),
            14 => {
                command(Opcode::ResizeCq, other, &ResizeCq { ring: payload, log_entries: large, reserved: 0 })
            }
            15 => {
                let create = CreateSrq {
                    ring: self.shared[(other % OTHERS) as usize].0,
                    log_entries: 6,
                    max_segments: 6,
                    pd: 1,
                    generation: 1 << 16,
                    limit: other,
                    eq: 0,
                };
                command(Opcode::CreateSrq, other, &create)
            }
            16 => command(Opcode::DestroySrq, other, &()),
            17 => command(Opcode::ModifySrq, other, &ModifySrq { limit: number(random), reserved: 0 }),
            18 => command(Opcode::ResizeSrq, other, &ResizeSrq { ring, log_entries: log, limit: other }),
            19 => return self.create_qp(random, qpn % QPS),
            20 => {
                use QpState::{Error, Init, Reset, Rtr, Rts, Sqd};
                let to = [Reset, Init, Rtr, Rts, Sqd, Error][random.small(6) as usize];
                command(Opcode::ModifyQp, qpn, &self.modify(random, to))
            }
            21 => command(Opcode::DestroyQp, qpn, &()),
            22 => {
                // Not Mute: a heartbeat that stops on request proves nothing.
                let what = Injection::Fail as u32 + u32::from(!random.rarely(32)) * (1 + random.small(12));
                let value = if random.rarely(4) { random.below(1 << 20) } else { 1 };
                command(Opcode::Inject, qpn, &Inject { what, count: random.small(4), value })
            }
            _ => {
                let (source, target) = (memory.payload(random), memory.payload(random));
                let bench = Bench {
                    kind: random.small(5),
                    rounds: number(random),
                    source,
                    target: address(random, target),
                    length: length(random),
                };
                command(Opcode::Bench, 0, &bench)
            }
        };
        if random.rarely(16) {
            posted.flags = 1;
        }
        if random.rarely(32) {
            posted.object = random.word() as u32;
        }
        if random.rarely(64) {
            posted.reserved = 1;
        }
        self.post(&posted)
    }

    fn segment(&self, random: &mut Random, reserved: bool) -> Segment {
        let (addr, key) = match reserved {
            true => (self.memory.payload(random), 0),
            false => (random.below(256), key(random)),
        };
        Segment { addr, length: if random.rarely(64) { number(random) } else { random.small(256) }, key }
    }

    /// Posts requests on a queue pair: nearly valid ones, some without ringing the doorbell.
    fn requests(&mut self, random: &mut Random) -> Result<u64, Failure> {
        let slot = random.small(QPS);
        if self.qps[slot as usize].vi {
            return self.descriptors(random, slot, false);
        }
        let opcodes = [
            Work::Send,
            Work::SendImmediate,
            Work::SendInvalidate,
            Work::Write,
            Work::WriteImmediate,
            Work::Read,
            Work::ReadInvalidate,
            Work::CompareSwap,
            Work::FetchAdd,
            Work::FastRegister,
            Work::LocalInvalidate,
            Work::BindWindow,
        ];
        let count = 1 + random.small(12);
        for _ in 0..count {
            let opcode = opcodes[random.small(opcodes.len() as u32) as usize];
            let local = matches!(opcode, Work::FastRegister | Work::LocalInvalidate | Work::BindWindow);
            let segments = if local { 0 } else { 1 + random.small(2) };
            let header = Header {
                opcode: if random.rarely(64) { random.word() as u8 } else { opcode as u8 },
                flags: SendFlags::SIGNALED.bits() | if random.rarely(16) { random.word() as u8 } else { 0 },
                segments: if random.rarely(64) { random.word() as u8 } else { segments as u8 },
                blocks: if random.rarely(64) { random.word() as u8 } else { 1 },
                tag: 1 << 31,
                immediate: key(random),
                remote_key: if opcode == Work::FastRegister {
                    random.word() as u32 & 0xfff
                } else {
                    key(random)
                },
                remote_addr: random.below(256),
                length: if local { random.below(256) } else { 0 },
            };
            let args: [u64; 4] = match opcode {
                Work::FastRegister => {
                    zerocopy::transmute!(self.any_list(random, header.remote_key, header.immediate))
                }
                Work::LocalInvalidate => [0; 4],
                Work::BindWindow => {
                    let remote = ident::key(ident::key_slot(header.immediate), random.small(2));
                    let flags = random.word() as u32 & 0x11c;
                    [u64::from(flags) | u64::from(remote) << 32, 0, 0, 0]
                }
                _ => {
                    // The reserved key, which only privileged queue pairs may use.
                    let reserved = random.rarely(8);
                    let segments = [self.segment(random, reserved), self.segment(random, false)];
                    zerocopy::transmute!(segments)
                }
            };
            let qp = &mut self.qps[slot as usize];
            let words: [u64; 8] = zerocopy::transmute!(Wqe { header, args });
            self.memory.write(qp.send + u64::from(qp.send_tail % 64) * 64, &words);
            qp.send_tail = qp.send_tail.wrapping_add(1);
        }
        let tail = self.qps[slot as usize].send_tail;
        let tail = if random.rarely(200) { random.word() as u32 } else { tail };
        self.nic.ring(Kind::Send, 2 + slot, tail)?;
        Ok(u64::from(count))
    }

    /// Posts receives of a queue pair or an SRQ.
    fn receives(&mut self, random: &mut Random) -> Result<(), Failure> {
        let reserved = random.rarely(8);
        let segment = self.segment(random, reserved);
        let words: [u64; 2] = zerocopy::transmute!(segment);
        let entry = |tail: u32| u64::from(tail % 64) * u64::from(nic_abi::wqe::receive_stride(6));
        let segments = if random.rarely(32) { random.word() as u32 } else { 1 };
        let header = [u64::from(segments) | 1 << 56, 0];
        if random.rarely(3) {
            let number = random.small(OTHERS);
            let (ring, tail) = &mut self.shared[number as usize];
            self.memory.write(*ring + entry(*tail) + 16, &words);
            self.memory.write(*ring + entry(*tail), &header);
            *tail = tail.wrapping_add(1);
            let tail = if random.rarely(64) { random.word() as u32 } else { *tail };
            return self.nic.ring(Kind::SharedReceive, number, tail);
        }
        let slot = random.small(QPS);
        if self.qps[slot as usize].vi {
            return self.descriptors(random, slot, true).map(|_| ());
        }
        let qp = &mut self.qps[slot as usize];
        let ring = qp.receive;
        self.memory.write(ring + entry(qp.receive_tail) + 16, &words);
        self.memory.write(ring + entry(qp.receive_tail), &header);
        qp.receive_tail = qp.receive_tail.wrapping_add(1);
        let tail = if random.rarely(64) { random.word() as u32 } else { qp.receive_tail };
        self.nic.ring(Kind::Receive, 2 + slot, tail)
    }

    /// Writes any value into any register, except the addresses of the admin rings, which a later
    /// start might use.
    fn register(&self, random: &mut Random) -> Result<(), Failure> {
        let offset = match random.below(8) {
            0 => registers::CONTROL + random.below(64) as usize,
            1 => registers::FIFO_TAIL + random.below(128) as usize,
            2 => random.below((registers::CONTROL) as u64) as usize,
            3 => registers::CQ_RECORDS + random.below(1024) as usize,
            4 => registers::EQ_RECORDS + random.below(1024) as usize,
            _ => random.below(registers::SIZE as u64) as usize,
        };
        let offset = offset & !3;
        let rings = registers::CONTROL + offset_of!(Control, admin_commands);
        if (rings..rings + 16).contains(&offset) {
            return Ok(());
        }
        // The value must not be a reset or a start too often, which would end the round.
        let request = (registers::CONTROL..rings).contains(&offset);
        if request && !random.rarely(8) {
            return Ok(());
        }
        self.nic.register(offset)?.store(number(random), Ordering::Release);
        Ok(())
    }

    /// Does one thing.
    fn act(&mut self, random: &mut Random, counts: &mut Counts) -> Result<(), Failure> {
        match random.below(16) {
            0..6 => {
                counts.commands += 1;
                self.any_command(random)?;
            }
            6..11 => counts.requests += self.requests(random)?,
            11 | 12 => {
                counts.requests += 1;
                self.receives(random)?;
            }
            13 => {
                // Overwrites rings and commands while the device reads them.
                for _ in 0..8 {
                    let qp = self.qps[random.small(QPS) as usize];
                    let ring = if random.rarely(2) { qp.send } else { qp.receive };
                    let word = beyond(random);
                    self.memory.write(ring + 8 * random.below(512), &[word]);
                }
                self.nic.spoil(self.memory, random);
                counts.words += 9;
            }
            14 => {
                self.register(random)?;
                counts.words += 1;
            }
            _ => {
                let entries = 1 + if random.rarely(16) { random.small(FLOOD) } else { random.small(16) };
                let admin = random.rarely(4);
                for _ in 0..entries {
                    let entry = if admin { 3 << 28 } else { random.word() as u32 };
                    self.nic.push(entry)?;
                }
                counts.entries += u64::from(entries);
            }
        }
        Ok(())
    }
}

/// Gives all NICs garbage for one round.
pub fn round(
    nics: &mut [Nic],
    memory: &Memory,
    random: &mut Random,
    counts: &mut Counts,
) -> Result<(), Failure> {
    let mut gids = [[0; 16]; 2 * GIDS];
    for (nic, gids) in nics.iter().zip(gids.chunks_exact_mut(GIDS)) {
        // The other driver may have overwritten it; a reset restores it.
        nic.reset(random)?;
        let mut identity = Identity::new_zeroed();
        let read = nic.transport.registers().read(registers::IDENTITY, identity.as_mut_bytes());
        read.map_err(|_| Failure::new("the register file is too short"))?;
        gids.copy_from_slice(&identity.gids);
    }
    let mut rounds = alloc::vec::Vec::new();
    for nic in nics {
        rounds.push(Round::begin(nic, memory, random, gids)?);
    }
    for _ in 0..ACTIONS {
        let nic = random.small(rounds.len() as u32) as usize;
        rounds[nic].act(random, counts)?;
    }
    Ok(())
}
