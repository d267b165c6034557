//! The admin queue: sequences of commands, most of them nearly valid, on rings in memory that
//! changes at the same time.
//!
//! What must hold: the device is idle after each step and answers every command with a defined
//! status; no queue pair is created on a CQ that has failed; after a reset the identity is as it
//! was; and the device can always be started and used again.

use std::sync::atomic::Ordering;

use nic_abi::admin::{
    self, ARGS_OFFSET, ARGS_SIZE, AllocateRegion, AllocateWindow, Bench, BenchKind, Command, CqInfo,
    CreateCq, CreateEq, CreateQp, CreateSrq, Group, Inject, Injection, ModifyRegion, ModifySrq, Opcode,
    QpState, RegisterRegion, ResizeCq, ResizeSrq, ShareRegion, Status,
};
use nic_abi::doorbell::Kind;
use nic_abi::registers::{self, Identity, State};
use nic_abi::wqe::{LinkFlags, ListArgs, Wqe};
use nic_abi::{ident, wqe};
use nic_model::GuestMemory;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::Input;
use nic_model::testing::{MEMORY, PD, Qp, Rig, command, stride};

/// The most steps of one input.
const STEPS: usize = 64;
/// The number of places for rings and lists, and the bytes of each.
const PLACES: usize = 16;
const PLACE: u64 = 16 << 10;

struct Scene {
    rig: Rig,
    places: u64,
    a: Qp,
    b: Qp,
    /// Whether an injection has made the device mute.
    mute: bool,
    /// The words of the identity.
    identity: Vec<u32>,
}

fn identity(rig: &Rig) -> Vec<u32> {
    let word = |at: usize| rig.register(0, registers::IDENTITY + at).load(Ordering::Relaxed);
    (0..size_of::<Identity>()).step_by(4).map(word).collect()
}

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut rig = Rig::new(2);
    let (a, b) = rig.pair();
    let places = rig.alloc(PLACES as u64 * PLACE);
    let identity = identity(&rig);
    let mut scene = Scene { rig, places, a, b, mute: false, identity };
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        scene.step(&mut input);
        // Unconsumed events would overflow the event queue and fail the device.
        for n in 0..2 {
            scene.rig.events(n);
        }
    }
    scene.end();
}

impl Scene {
    fn place(&self, input: &mut Input<'_>) -> u64 {
        self.places + input.below(PLACES) as u64 * PLACE
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.below(16) {
            0..10 => {
                let command = self.command(input);
                self.carry_out(&command);
            }
            10 => {
                // A list, or anything else that the device reads.
                let at = self.place(input) + 8 * (input.number() & 0xff);
                for i in 0..input.below(8) as u64 {
                    let element = self.places + 4096 * (input.number() & 0x3f);
                    let element = if input.rarely(8) { input.number() } else { element };
                    self.rig.memory.write(at + 8 * i, &element.to_le_bytes()).expect("a place");
                }
            }
            11 => {
                let at = self.place(input);
                let len = input.below(200);
                self.rig.memory.write(at, input.bytes(len)).expect("a place");
            }
            12 => self.rig.advance(1 << input.below(34)),
            13 => self.doorbell(input),
            14 => self.work(input),
            _ => self.register(input),
        }
    }

    /// A valid command, with a few fields changed.
    fn command(&mut self, input: &mut Input<'_>) -> Command {
        let opcodes: Vec<u16> =
            (0..=u8::MAX).map(u16::from).filter(|&o| Opcode::from_word(o).is_some()).collect();
        let opcode = input.pick(&opcodes).unwrap_or(0);
        let small = input.below(6) as u32;
        let key = ident::key(1 + small, 5);
        let list = ListArgs {
            list: self.place(input),
            element_length: 4096,
            first_byte_offset: 0,
            elements: 1 + input.below(4) as u32,
            remote: ident::key(1 + small, input.below(3) as u32),
        };
        let log = 1 + input.below(6) as u32;
        let (object, args) = match Opcode::from_word(opcode).unwrap_or(Opcode::Nop) {
            Opcode::Nop => (0, args(&())),
            Opcode::CreateEq => {
                (small, args(&CreateEq { ring: self.place(input), log_entries: log + 3, vector: small }))
            }
            Opcode::RegisterRegion => {
                let flags = u32::from(u16::from_le_bytes([input.byte(), input.byte() & 0x0f]));
                let length = input.number();
                (key, args(&RegisterRegion { pd: PD, flags, base: 0, length, list }))
            }
            Opcode::AllocateRegion => (key, args(&AllocateRegion { pd: PD, max_elements: list.elements })),
            Opcode::ShareRegion => {
                let of = ident::key(1 + input.below(6) as u32, 5);
                let flags = LinkFlags::LOCAL_READ | LinkFlags::RELATIVE | LinkFlags::PAGES;
                let length = u64::from(list.elements) * 4096;
                let (base, flags) = (0, flags.bits());
                (key, args(&ShareRegion { pd: PD, flags, base, length, list, of, reserved: 0 }))
            }
            Opcode::ModifyRegion => {
                let (flags, rights) = (input.byte().into(), u32::from(!input.rarely(4)));
                let pd = if input.rarely(4) { 0 } else { PD };
                (key, args(&ModifyRegion { pd, flags, rights, remote: list.remote }))
            }
            Opcode::AllocateWindow => {
                (key, args(&AllocateWindow { pd: PD, window_type: 1 + input.below(2) as u32 }))
            }
            Opcode::CreateCq => {
                let ring = self.place(input);
                (small, args(&CreateCq { ring, log_entries: log, eq: 0, generation: 9, flags: 0 }))
            }
            Opcode::ResizeCq => {
                (small, args(&ResizeCq { ring: self.place(input), log_entries: log, reserved: 0 }))
            }
            Opcode::CreateSrq => {
                let create = CreateSrq {
                    ring: self.place(input),
                    log_entries: log,
                    max_segments: 6,
                    pd: PD,
                    generation: 9,
                    limit: 0,
                    eq: 0,
                };
                (small, args(&create))
            }
            Opcode::ResizeSrq => {
                (small, args(&ResizeSrq { ring: self.place(input), log_entries: log, limit: log / 2 }))
            }
            Opcode::ModifySrq => (small, args(&ModifySrq { limit: log, reserved: 0 })),
            Opcode::CreateQp => {
                let create = CreateQp {
                    qp_type: input.below(4) as u32,
                    flags: input.below(4) as u32,
                    pd: PD,
                    generation: 9,
                    send_cq: input.below(6) as u32,
                    receive_cq: input.below(6) as u32,
                    srq: input.below(6) as u32,
                    max_send_segments: 6,
                    send_ring: self.place(input),
                    receive_ring: self.place(input),
                    log_send_blocks: log,
                    log_receive_entries: log,
                    max_receive_segments: 6,
                    eq: 0,
                    max_message: 1 << 20,
                    owner: input.below(2) as u64,
                };
                (ident::qpn(5 + small, 1), args(&create))
            }
            Opcode::ModifyQp => {
                let qp = input.pick(&[self.a, self.b]).unwrap_or(self.a);
                let peer = if qp.nic == 0 { self.b } else { self.a };
                let mut modify =
                    if input.rarely(2) { self.rig.rts_args(&qp) } else { self.rig.rtr_args(&qp, &peer) };
                if input.rarely(2) {
                    modify.state = input.below(8) as u32;
                }
                (self.qpn(input, small), args(&modify))
            }
            Opcode::QueryQp | Opcode::DestroyQp => (self.qpn(input, small), args(&())),
            Opcode::JoinGroup | Opcode::LeaveGroup => {
                let mut gid = [0; 16];
                (gid[0], gid[15]) = (0xff, small as u8);
                (self.qpn(input, small), args(&Group { gid }))
            }
            Opcode::DestroyRegion | Opcode::QueryKey | Opcode::DestroyWindow => (key, args(&())),
            Opcode::Inject => {
                let inject =
                    Inject { what: input.below(10) as u32, count: log, value: input.number() & 0xffff_ffff };
                (self.qpn(input, small), args(&inject))
            }
            Opcode::Bench => {
                let kind = input.below(5) as u32;
                let (source, target) = (self.place(input), self.place(input));
                (0, args(&Bench { kind, rounds: log, source, target, length: 4096 }))
            }
            _ => (small, args(&())),
        };
        let mut command = Command { opcode, flags: 0, id: 77, object, reserved: 0, args };
        for _ in 0..input.below(4) {
            let at = input.below(ARGS_OFFSET + ARGS_SIZE);
            let value = input.number().to_le_bytes();
            let width = [4, 8, 1, 2][input.below(4)];
            let at = at / width * width;
            command.as_mut_bytes()[at..at + width].copy_from_slice(&value[..width]);
        }
        command
    }

    fn qpn(&self, input: &mut Input<'_>, small: u32) -> u32 {
        if input.rarely(2) { ident::qpn(5 + small, 1) } else { self.a.qpn }
    }

    fn carry_out(&mut self, command: &Command) {
        let mut command = *command;
        match Opcode::from_word(command.opcode) {
            // The device would execute even a copy of 2^32 rounds, so the copy is shortened.
            Some(Opcode::Bench) => {
                let at = std::mem::offset_of!(Bench, rounds);
                command.args[at + 1..at + 4].fill(0);
                let at = std::mem::offset_of!(Bench, length);
                command.args[at + 2..at + 8].fill(0);
                // A benchmark that waits for the driver keeps the device busy for a second.
                if [BenchKind::Echo as u8, BenchKind::EchoInterrupt as u8].contains(&command.args[0]) {
                    command.args[0] = BenchKind::Copy as u8;
                }
                self.mute |= command.args[0] == BenchKind::Copy as u8;
            }
            // The kind of mute that ignores a reset is left out: the device could not be used
            // again.
            Some(Opcode::Inject) if command.args[0] == Injection::Mute as u8 => {
                command.args[std::mem::offset_of!(Inject, value)] = 0;
                self.mute = true;
            }
            _ => {}
        }
        let response = self.rig.raw_command(0, &command);
        if Opcode::from_word(command.opcode) == Some(Opcode::CreateQp)
            && response.is_some_and(|response| response.status == Status::Success as u16)
        {
            let (create, _) = CreateQp::read_from_prefix(&command.args).expect("large enough");
            self.created(&create);
        }
        if self.rig.state(0) == State::Ready as u32 && !self.mute {
            let response = response.expect("an answer");
            assert_eq!(response.id, command.id);
            let status = Status::from_word(response.status).expect("a status");
            let blamed = usize::from(response.field);
            assert!(status != Status::Success || response.field == admin::NO_FIELD);
            assert!(response.field == admin::NO_FIELD || blamed < ARGS_OFFSET + ARGS_SIZE, "field {blamed}");
        }
    }

    /// A queue pair was created on these CQs. Checks that neither has failed: its completions would
    /// vanish.
    fn created(&mut self, create: &CreateQp) {
        for number in [create.send_cq, create.receive_cq] {
            let query = Command { object: number, ..command(Opcode::QueryCq, &()) };
            let Some(response) = self.rig.raw_command(0, &query) else { continue };
            if response.status == Status::Success as u16 {
                let (info, _) = CqInfo::read_from_prefix(&response.result).expect("large enough");
                assert_eq!(info.failed, 0, "CQ {number}");
            }
        }
    }

    fn doorbell(&mut self, input: &mut Input<'_>) {
        let kind = input.pick(&[Kind::Send, Kind::Receive, Kind::SharedReceive]).unwrap_or(Kind::Send);
        let slot = if input.rarely(2) { ident::qpn_slot(self.a.qpn) } else { input.number() as u32 };
        if slot < 64 {
            self.rig.ring(0, kind, slot, input.number() as u32);
        } else {
            self.rig.push_doorbell(0, kind, slot);
        }
        self.rig.run();
    }

    /// Posts a work request to the queue pair that exists from the beginning, or a receive to its
    /// peer.
    fn work(&mut self, input: &mut Input<'_>) {
        let (mut a, mut b) = (self.a, self.b);
        let key = ident::key(1 + input.below(6) as u32, 5);
        let segment = nic_model::testing::segment(key, input.number(), input.byte().into());
        if input.rarely(2) {
            self.rig.post_receive(&mut b, 3, &[segment]);
        } else {
            let opcode = wqe::Opcode::from_byte(input.byte() & 0x3f).unwrap_or(wqe::Opcode::Send);
            let header = nic_model::testing::rdma(opcode, 4, key, input.number());
            let header = wqe::Header { immediate: key, length: input.byte().into(), ..header };
            self.rig.post(&mut a, header, &[segment]);
        }
        (self.a, self.b) = (a, b);
        self.rig.run();
        while self.rig.poll_cq(&mut self.a.send_cq).is_some() {}
        while self.rig.poll_cq(&mut self.b.receive_cq).is_some() {}
    }

    /// Writes any value into any register, also into those that the device writes.
    fn register(&mut self, input: &mut Input<'_>) {
        let words = registers::SIZE / 4;
        let at = match input.below(4) {
            0 => registers::CONTROL / 4 + input.below(16),
            1 => registers::CQ_RECORDS / 4 + 16 * input.below(16) + input.below(2),
            2 => registers::ADMIN_RECORD / 4 + input.below(4),
            _ => input.number() as usize % words,
        };
        self.mute = true;
        self.rig.register(0, at * 4).store(input.number() as u32, Ordering::Release);
        self.rig.run();
    }

    fn end(mut self) {
        for _ in 0..8 {
            self.rig.advance(1 << 28);
            for n in 0..2 {
                self.rig.events(n);
            }
        }
        // The fuzz input may have overwritten the word `acknowledged`. Then the first request may
        // equal the one that the device acknowledged last; the second does not.
        for _ in 0..2 {
            self.rig.control(0, registers::CONTROL_RESET);
        }
        assert_eq!(self.rig.state(0), State::Idle as u32, "a reset ends everything");
        assert_eq!(identity(&self.rig), self.identity, "a reset restores the identity");
        self.rig.start(0);
        self.rig.command(0, Opcode::CreatePd, PD, &()).expect("a domain, as none is left");
        self.rig.create_eq(0, 0, 6);
        let fresh =
            nic_model::testing::QpSpec { slot: Some(ident::qpn_slot(self.a.qpn)), ..Default::default() };
        let qp = self.rig.create_qp(0, fresh);
        assert_eq!(self.rig.query(&qp).state, QpState::Reset as u32);
        assert!(self.places + PLACES as u64 * PLACE <= MEMORY && stride() > 0);
    }
}

fn args<T: IntoBytes + Immutable>(value: &T) -> [u8; ARGS_SIZE] {
    let mut args = [0; ARGS_SIZE];
    let bytes = value.as_bytes();
    args[..bytes.len()].copy_from_slice(bytes);
    args
}

const _: () = assert!(size_of::<Wqe>() == wqe::BLOCK);
