//! Virtual interfaces on the device itself: any descriptors and rings. The consumer, and a peer's
//! RDMA Writes, write and rewrite them at any moment, in memory that is deregistered or moved to
//! another domain at the same time; on every level, by the short cut and over a cable.
//!
//! What must hold: the device becomes idle and stays ready; it accesses no memory except rings and
//! registered memory; events are well formed; a transition to RESET completes everything that was
//! posted; afterwards every object can be destroyed, and a fresh pair moves a message.

use nic_abi::admin::{Injection, ModifyQp, ModifyRegion, Opcode, QpMask, QpState, RegisterRegion, ResizeCq};
use nic_abi::cqe;
use nic_abi::doorbell::Kind;
use nic_abi::eqe::EventType;
use nic_abi::ident;
use nic_abi::registers::State;
use nic_abi::vi::{self, AddressSegment, Control, ControlSegment, DataSegment, Post, Reliability, ViError};
use nic_abi::wqe::{LinkFlags, ListArgs};
use nic_model::GuestMemory;
use nic_model::testing::{ALL_RIGHTS, CableEnd, Cq, PD, REMOTE, Rig, VI_DATA, Vi, ViSpec, cable, vi_key};
use zerocopy::IntoBytes;

use crate::Input;

const STEPS: usize = 96;
/// A domain of each NIC beside the rig's.
const OTHER_PD: u32 = 2;
/// The most virtual interfaces that a run creates.
const MOST: usize = 12;
/// The distance of the places for descriptors, in bytes.
const STEP: u64 = 256;
/// The number of places for descriptors.
const PLACES: usize = 8;
/// Bytes of memory that belongs to no region and no ring, and lies between memory that does.
const CANARY: usize = 4096;
/// Bytes of each region, besides those of the interfaces' memory.
const REGION: u64 = 4096;
/// Enough time for a queue pair to give up.
const LONG: u64 = 1 << 30;

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut scene = Scene::new(&mut input);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        scene.step(&mut input);
        scene.reap();
    }
    scene.end();
}

/// A virtual interface as its driver sees it.
struct Interface {
    vi: Vi,
    cqs: [Option<Cq>; 2],
    alive: bool,
    /// For each queue: whether only posts for which there was room were written to the ring.
    honest: [bool; 2],
    /// The rest of the rings' pages, which belongs to no ring.
    slack: [(u64, usize); 2],
}

/// Memory that is registered, or was.
struct Region {
    nic: usize,
    key: u32,
    handle: u32,
    at: u64,
    length: u64,
    flags: LinkFlags,
    /// The contents of the memory when it was deregistered; `None` while it is registered.
    before: Option<Vec<u8>>,
}

struct Scene {
    rig: Rig,
    cable: Option<[CableEnd; 2]>,
    level: Reliability,
    vis: Vec<Interface>,
    regions: Vec<Region>,
    /// Memory that must not change, and its contents.
    canaries: Vec<(u64, Vec<u8>)>,
}

/// The operation of a descriptor, which may be undefined, and its whole control field.
pub(crate) fn operation(input: &mut Input<'_>) -> (Control, Control) {
    let operation = Control::from_bits_retain(match input.below(8) {
        0..3 => 0,
        3 | 4 => 1,
        5 | 6 => 2,
        _ => input.byte().into(),
    });
    let mut control = operation;
    control.set(Control::IMMEDIATE, input.rarely(4));
    control.set(Control::QUEUE_FENCE, input.rarely(8));
    (operation, control)
}

impl Scene {
    /// Two connected pairs, the second with completion queues.
    fn new(input: &mut Input<'_>) -> Scene {
        let choice = input.byte();
        let level = Reliability::from_byte(choice % 3).unwrap_or_default();
        let (rig, cable) = if choice & 0x80 != 0 {
            let ends = cable();
            (Rig::wired(ends.clone(), 1500), Some(ends))
        } else {
            (Rig::new(2), None)
        };
        let mut scene =
            Scene { rig, cable, level, vis: Vec::new(), regions: Vec::new(), canaries: Vec::new() };
        for n in 0..2 {
            scene.rig.command(n, Opcode::CreatePd, OTHER_PD, &()).expect("a domain");
        }
        for log in [4, 2] {
            for n in 0..2 {
                let cqs = match log {
                    4 => [None; 2],
                    _ => [Some(scene.rig.create_vi_cq(n, 3)), Some(scene.rig.create_vi_cq(n, 2))],
                };
                scene.create(n, log, cqs);
            }
        }
        for which in 0..scene.vis.len() {
            let (vi, peer) = (scene.vis[which].vi, scene.vis[which ^ 1].vi);
            scene.rig.join(&vi.qp, &peer.qp);
        }
        for n in 0..2 {
            let local = LinkFlags::LOCAL_READ | LinkFlags::LOCAL_WRITE;
            for (pd, flags) in [(PD, local), (PD, LinkFlags::LOCAL_READ), (OTHER_PD, ALL_RIGHTS)] {
                let (handle, at) = scene.rig.vi_region(n, pd, REGION, flags);
                scene.region(n, handle, at, REGION, flags);
                scene.canary();
            }
        }
        // Memory that neither the peer nor the device may write.
        let constant = LinkFlags::LOCAL_READ | LinkFlags::REMOTE_READ;
        let (handle, at) = scene.rig.vi_region(1, PD, REGION, constant);
        scene.rig.fill(at, CANARY, 5);
        scene.region(1, handle, at, REGION, constant);
        scene.canaries.push((at, scene.rig.bytes(at, CANARY)));
        scene
    }

    fn canary(&mut self) {
        let at = self.rig.alloc(CANARY as u64);
        self.rig.fill(at, CANARY, 77);
        self.canaries.push((at, self.rig.bytes(at, CANARY)));
    }

    fn region(&mut self, nic: usize, handle: u32, at: u64, length: u64, flags: LinkFlags) {
        let key = vi_key(handle);
        self.regions.push(Region { nic, key, handle, at, length, flags, before: None });
    }

    /// Creates a virtual interface between two canaries.
    fn create(&mut self, n: usize, log: u32, cqs: [Option<Cq>; 2]) {
        self.canary();
        let vi = self.rig.create_vi(n, ViSpec { log, cqs, ..ViSpec::new(self.level) });
        let end = self.rig.alloc(1);
        self.region(n, vi.handle, vi.data, end - vi.data, ALL_RIGHTS);
        let ring = vi::RING_HEAD + (vi::ENTRY << log);
        let slack = [vi.qp.send_ring, vi.qp.receive_ring].map(|at| (at + ring as u64, CANARY - ring));
        self.canary();
        self.vis.push(Interface { vi, cqs, alive: true, honest: [true; 2], slack });
    }

    /// Does what the input says with one of the interfaces.
    fn step(&mut self, input: &mut Input<'_>) {
        let which = input.below(self.vis.len());
        match input.below(16) {
            0..6 => {
                let at = self.descriptor(which, input);
                self.post(which, at, input);
            }
            6 => self.rewrite(which, input),
            7 => self.scribble(which, input),
            8 => self.memory(input),
            9 => self.modify(which, input),
            10 => self.inject(which, input),
            11 => self.rig.advance(1 << input.below(34)),
            12 => (0..1 + input.below(8)).for_each(|_| self.rig.step()),
            13 => self.join(which),
            14 => self.link(input),
            _ => self.objects(which, input),
        }
        // Often something is still in progress when the next step begins.
        if input.rarely(2) {
            self.rig.run();
        }
    }

    /// Writes memory of the consumer, unless it was deregistered: from then on a change is an
    /// error.
    fn write(&self, at: u64, bytes: &[u8]) {
        let registered = |region: &Region| {
            let inside = at.checked_sub(region.at).is_some_and(|offset| offset < region.length);
            inside && region.before.is_none() && at + bytes.len() as u64 <= region.at + region.length
        };
        let constant =
            self.canaries.iter().any(|(canary, _)| (*canary..*canary + CANARY as u64).contains(&at));
        if !constant && self.regions.iter().any(registered) {
            self.rig.memory.write(at, bytes).expect("memory");
        }
    }

    /// An address and a handle that are likely to fit.
    fn place(&self, nic: usize, input: &mut Input<'_>) -> (u64, u32) {
        let of_nic = |region: &&Region| region.nic == nic;
        let regions: Vec<(u64, u64, u32)> = self
            .regions
            .iter()
            .filter(of_nic)
            .map(|region| (region.at, region.length, region.handle))
            .collect();
        let (at, length, handle) = input.pick(&regions).unwrap_or_default();
        let handle = match input.below(16) {
            0 => input.pick(&regions).map_or(0, |(_, _, handle)| handle),
            1 => input.number() as u32,
            2 => handle ^ 1 << input.below(32),
            _ => handle,
        };
        let at = match input.below(8) {
            0..3 => at + 8 * input.below(256) as u64,
            // Descriptors, so that data lands in them.
            3 | 4 if length > VI_DATA => {
                at + VI_DATA + STEP * input.below(PLACES) as u64 + input.below(64) as u64
            }
            5 => at + length - input.below(128) as u64,
            6 => at.wrapping_add(input.number()),
            _ => at,
        };
        (at, handle)
    }

    /// Writes a descriptor; returns its address.
    fn descriptor(&mut self, which: usize, input: &mut Input<'_>) -> u64 {
        let Vi { qp, data, .. } = self.vis[which].vi;
        let at = data + VI_DATA + STEP * input.below(PLACES) as u64;
        let (operation, control) = operation(input);
        let count = match input.below(16) {
            0..13 => input.below(4),
            13 | 14 => input.below(16),
            _ => 250 + input.below(6),
        };
        let mut bytes = Vec::new();
        let mut segments = count;
        if operation.intersects(Control::RDMA_WRITE | Control::RDMA_READ) && !input.rarely(16) {
            let (address, handle) = self.place(1 - qp.nic, input);
            let reserved = if input.rarely(32) { 1 } else { 0 };
            bytes.extend_from_slice(AddressSegment { address, handle, reserved }.as_bytes());
            segments += 1;
        }
        let mut length = 0_u32;
        let shared = (count > 16).then(|| self.place(qp.nic, input));
        for _ in 0..count {
            let (address, handle) = shared.unwrap_or_else(|| self.place(qp.nic, input));
            let some = match input.below(16) {
                0..12 => 8 * input.below(64) as u32,
                12..15 => input.below(256) as u32 * 33,
                _ => input.number() as u32,
            };
            length = length.wrapping_add(some);
            bytes.extend_from_slice(DataSegment { address, handle, length: some }.as_bytes());
        }
        let control = ControlSegment {
            segments: if input.rarely(16) { input.number() as u16 } else { segments as u16 },
            control: control.bits(),
            reserved: if input.rarely(32) { input.number() as u32 } else { 0 },
            immediate: 0x1234_5678,
            length: if input.rarely(8) { input.number() as u32 } else { length },
            ..ControlSegment::default()
        };
        self.write(at, control.as_bytes());
        self.write(at + 32, &bytes);
        at
    }

    /// Posts a descriptor, mostly as a driver does.
    fn post(&mut self, which: usize, at: u64, input: &mut Input<'_>) {
        let queue = input.below(2);
        let own = self.vis[which].vi;
        let (address, handle) = match input.below(16) {
            0 => self.place(own.qp.nic, input),
            1 => (at + 8 * input.below(8) as u64, own.handle),
            2 => {
                let regions: Vec<(u64, u64, u32)> =
                    self.regions.iter().map(|region| (region.at, region.length, region.handle)).collect();
                let (at, length, handle) = input.pick(&regions).unwrap_or_default();
                (at + length - 64 * input.below(3) as u64, handle)
            }
            3 => (at, input.number() as u32),
            _ => (at, own.handle),
        };
        if !self.has_room(which, queue) {
            if !input.rarely(8) {
                return;
            }
            self.vis[which].honest[queue] = false;
        }
        let interface = &mut self.vis[which];
        if interface.alive {
            self.rig.post_descriptor(&mut interface.vi, queue, address, handle);
        }
    }

    /// Takes completed descriptors off a queue, and returns whether there is room.
    fn has_room(&mut self, which: usize, queue: usize) -> bool {
        let interface = &mut self.vis[which];
        let vi = &mut interface.vi;
        while vi.taken[queue] != vi.posted[queue] && is_done(&self.rig, vi, queue, vi.taken[queue]) {
            vi.taken[queue] = vi.taken[queue].wrapping_add(1);
        }
        vi.posted[queue].wrapping_sub(vi.taken[queue]) < 1 << vi.log
    }

    /// Overwrites a part of a descriptor, posted or not.
    fn rewrite(&mut self, which: usize, input: &mut Input<'_>) {
        let vi = self.vis[which].vi;
        let at = vi.data + VI_DATA + STEP * input.below(PLACES) as u64 + input.below(96) as u64;
        let len = 1 + input.below(32);
        let bytes = input.bytes(len);
        self.write(at, bytes);
    }

    /// Overwrites a part of a ring, or rings with an invented tail.
    fn scribble(&mut self, which: usize, input: &mut Input<'_>) {
        let queue = input.below(2);
        let interface = &mut self.vis[which];
        if !interface.alive {
            return;
        }
        let Vi { qp, log, .. } = interface.vi;
        let ring = if queue == 0 { qp.send_ring } else { qp.receive_ring };
        match input.below(4) {
            // Arming a ring is an allowed write.
            0 => self.rig.memory.write(ring, &u32::from(input.byte()).to_le_bytes()).expect("the ring"),
            1 | 2 => {
                interface.honest[queue] = false;
                let at = ring + input.below(vi::RING_HEAD + (vi::ENTRY << log.min(4)) - 4) as u64;
                self.rig.memory.write(at, &(input.number() as u32).to_le_bytes()).expect("the ring");
            }
            _ => {
                interface.honest[queue] = false;
                let kind = if queue == 0 { Kind::Send } else { Kind::Receive };
                let tail = match input.below(2) {
                    0 => interface.vi.posted[queue].wrapping_add(input.below(32) as u32),
                    _ => input.number() as u32,
                };
                self.rig.ring(qp.nic, kind, ident::qpn_slot(qp.qpn), tail);
            }
        }
    }

    /// Deregisters memory, registers it again, or gives it another domain or other rights.
    fn memory(&mut self, input: &mut Input<'_>) {
        let number = input.below(self.regions.len());
        let how = input.below(4);
        let region = &mut self.regions[number];
        let (n, key) = (region.nic, region.key);
        match (how, &region.before) {
            (0 | 1, None) => {
                self.rig.command(n, Opcode::DestroyRegion, key, &()).expect("no window is bound");
                region.before = Some(self.rig.bytes(region.at, region.length as usize));
            }
            (_, None) => {
                let flags = REMOTE.union(ALL_RIGHTS).bits() & u32::from(input.byte());
                let rights = u32::from(input.rarely(2));
                // Constant memory stays constant.
                let grants = rights == 1 && region.flags.contains(LinkFlags::LOCAL_WRITE);
                let args = ModifyRegion {
                    pd: input.below(4) as u32,
                    flags: if grants { flags } else { 0 },
                    rights: u32::from(grants),
                    remote: region.handle,
                };
                let _ = self.rig.command(n, Opcode::ModifyRegion, key, &args);
            }
            (_, Some(_)) => {
                self.check(number);
                let region = &mut self.regions[number];
                let args = RegisterRegion {
                    pd: if input.rarely(8) { OTHER_PD } else { PD },
                    flags: (region.flags | LinkFlags::CONTIGUOUS).bits(),
                    base: region.at,
                    length: region.length,
                    list: ListArgs { list: region.at, remote: region.handle, ..ListArgs::default() },
                };
                self.rig.command(n, Opcode::RegisterRegion, key, &args).expect("it was registered before");
                region.before = None;
            }
        }
    }

    /// Checks that memory was not touched since it was deregistered.
    fn check(&self, number: usize) {
        let Region { at, length, before, .. } = &self.regions[number];
        if let Some(before) = before {
            assert!(self.rig.bytes(*at, *length as usize) == *before, "memory that was deregistered changed");
        }
    }

    fn modify(&mut self, which: usize, input: &mut Input<'_>) {
        if !self.vis[which].alive {
            return;
        }
        let (vi, peer) = (self.vis[which].vi, self.vis[which ^ 1].vi);
        let reset =
            ModifyQp { mask: QpMask::STATE.bits(), state: QpState::Reset as u32, ..ModifyQp::default() };
        let mut args = match input.below(6) {
            0 => self.rig.rtr_args(&vi.qp, &peer.qp),
            1 => self.rig.rts_args(&vi.qp),
            2 => ModifyQp { state: QpState::Error as u32, ..reset },
            3 => ModifyQp {
                mask: (QpMask::STATE | QpMask::ACCESS).bits(),
                state: QpState::Init as u32,
                access: input.byte().into(),
                ..ModifyQp::default()
            },
            4 => reset,
            _ => {
                let any = QpMask::ACCESS
                    | QpMask::MAX_MESSAGE
                    | QpMask::LEVEL
                    | QpMask::PD
                    | QpMask::QPN
                    | QpMask::KEEP_RECEIVES;
                let chosen = u32::from(input.byte()) << 12 | u32::from(input.byte()) & 3;
                ModifyQp {
                    mask: reset.mask | chosen & any.bits(),
                    level: input.below(4) as u8,
                    pd: input.below(3) as u32,
                    access: input.byte().into(),
                    max_message: input.number(),
                    qpn: ident::qpn(ident::qpn_slot(vi.qp.qpn), input.byte().into()),
                    ..reset
                }
            }
        };
        if input.rarely(8) {
            args.state = input.below(8) as u32;
        }
        if input.rarely(8) {
            args.mask ^= 1 << input.below(20);
        }
        let modified = self.rig.modify(&vi.qp, &args);
        if modified.is_ok() && args.mask & QpMask::QPN.bits() != 0 {
            self.vis[which].vi.qp.qpn = args.qpn;
        }
    }

    /// Connects a pair again.
    fn join(&mut self, which: usize) {
        let pair = [which, which ^ 1];
        if pair.iter().any(|&which| !self.vis.get(which).is_some_and(|interface| interface.alive)) {
            return;
        }
        for which in pair {
            let vi = self.vis[which].vi;
            self.rig.end_vi(&vi.clone(), &ModifyQp::default()).expect("RESET at any time");
        }
        let [a, b] = pair.map(|which| self.vis[which].vi.qp);
        self.rig.join(&a, &b);
        self.rig.join(&b, &a);
    }

    fn inject(&mut self, which: usize, input: &mut Input<'_>) {
        let what = input.pick(&[
            Injection::DropRequests,
            Injection::DropResponses,
            Injection::BadResponse,
            Injection::BadRequest,
            Injection::Delay,
            Injection::Failure,
            Injection::Corrupt,
            Injection::Truncate,
            Injection::StallResponder,
            Injection::HoldReads,
            Injection::Port,
        ]);
        let Some(what) = what else { return };
        let interface = &self.vis[which];
        if interface.alive {
            let value = match what {
                Injection::Port => input.below(2) as u64,
                Injection::Failure => 1 + input.below(12) as u64,
                _ => 1 << input.below(30),
            };
            let args = nic_abi::admin::Inject { what: what as u32, count: input.below(8) as u32, value };
            let Vi { qp, .. } = interface.vi;
            let _ = self.rig.command(qp.nic, Opcode::Inject, qp.qpn, &args);
        }
    }

    /// Makes the link lose frames, or leaves it no room for them.
    fn link(&mut self, input: &mut Input<'_>) {
        let Some(ends) = &self.cable else { return };
        let end = &ends[input.below(2)];
        match input.below(4) {
            0 => drop(end.take()),
            1 => end.set_room(input.rarely(2)),
            2 => {
                if let Some(mut frame) = end.take() {
                    let at = input.below(256) % frame.len().max(1);
                    frame[at] ^= input.byte();
                    end.put(&frame);
                }
            }
            _ => {
                end.plug(false);
                self.rig.step();
                end.plug(true);
            }
        }
    }

    /// Destroys an interface and creates another, or changes its completion queue.
    fn objects(&mut self, which: usize, input: &mut Input<'_>) {
        let room = self.vis.len() < MOST;
        let interface = &mut self.vis[which];
        let n = interface.vi.qp.nic;
        match input.below(3) {
            0 if interface.alive && input.rarely(2) => {
                self.rig
                    .command(n, Opcode::DestroyQp, interface.vi.qp.qpn, &())
                    .expect("an interface can be destroyed at any time");
                interface.alive = false;
            }
            1 if room => {
                // Both interfaces of a pair, so that the peer is the neighbour.
                for n in [n, 1 - n] {
                    self.create(n, 1 + input.below(6) as u32, [None; 2]);
                }
                self.join(self.vis.len() - 1);
            }
            _ => {
                if let Some(cq) = &mut interface.cqs[input.below(2)] {
                    let log = input.below(7) as u32;
                    let ring = self.rig.alloc((cqe::SIZE << log) as u64);
                    let args = ResizeCq { ring, log_entries: log, reserved: 0 };
                    if self.rig.command(n, Opcode::ResizeCq, cq.number, &args).is_ok() {
                        (cq.ring.addr, cq.ring.log) = (ring, log);
                    }
                }
            }
        }
    }

    /// Takes entries and events, and checks them.
    fn reap(&mut self) {
        for interface in &mut self.vis {
            for (queue, cq) in interface.cqs.iter_mut().enumerate() {
                let Some(cq) = cq else { continue };
                while let Some(entry) = self.rig.poll_cq(cq) {
                    assert_eq!(ident::qpn_slot(entry.qpn), ident::qpn_slot(interface.vi.qp.qpn), "{entry:?}");
                    assert_eq!(usize::from(entry.flags), queue, "{entry:?}");
                    assert_eq!(entry.generation, interface.vi.qp.generation, "{entry:?}");
                }
            }
        }
        for n in 0..2 {
            for event in self.rig.events(n) {
                match EventType::from_byte(event.event) {
                    Some(EventType::ViError) => {
                        assert!(ViError::from_byte(event.status).is_some(), "{event:?}");
                    }
                    Some(EventType::ViCompletion) => assert!(event.detail < 2, "{event:?}"),
                    Some(
                        EventType::CommunicationEstablished
                        | EventType::SendQueueDrained
                        | EventType::PortUp
                        | EventType::PortDown,
                    ) => {}
                    other => panic!("{other:?}: {event:?}"),
                }
            }
        }
    }

    /// Lets all work in progress end, destroys everything, and tries a fresh pair.
    fn end(mut self) {
        if let Some(ends) = &self.cable {
            ends.iter().for_each(|end| end.set_room(true));
        }
        for n in 0..2 {
            self.rig.inject(n, Injection::Port, 0, 1, 1);
        }
        for _ in 0..6 {
            self.rig.advance(LONG);
            self.reap();
        }
        for which in 0..self.vis.len() {
            self.end_interface(which);
            self.reap();
        }
        self.rig.advance(LONG);
        self.reap();
        for number in 0..self.regions.len() {
            self.check(number);
        }
        for (at, before) in &self.canaries {
            assert!(self.rig.bytes(*at, CANARY) == *before, "memory outside all regions and rings changed");
        }
        for (at, length) in self.vis.iter().flat_map(|interface| interface.slack) {
            assert!(self.rig.bytes(at, length).iter().all(|byte| *byte == 0), "memory behind a ring changed");
        }
        for n in 0..2 {
            assert_eq!(self.rig.state(n), State::Ready as u32, "no descriptor fails the device");
        }
        self.fresh();
    }

    /// Everything that was posted is complete when the interface is in RESET.
    fn end_interface(&mut self, which: usize) {
        if !self.vis[which].alive {
            return;
        }
        let vi = self.vis[which].vi;
        self.rig.end_vi(&vi, &ModifyQp::default()).expect("RESET at any time");
        let own = &self.vis[which];
        for queue in 0..2 {
            let mut posted = vi.taken[queue];
            while own.honest[queue] && posted != vi.posted[queue] {
                let mark = self.rig.mark(&vi, queue, posted);
                assert!(mark == vi::MARK_COMPLETE || mark == vi::MARK_LOST, "mark {mark} of a flushed entry");
                posted = posted.wrapping_add(1);
            }
        }
        self.rig
            .command(vi.qp.nic, Opcode::DestroyQp, vi.qp.qpn, &())
            .expect("the interface can be destroyed");
        for cq in own.cqs.iter().flatten() {
            self.rig.command(vi.qp.nic, Opcode::DestroyCq, cq.number, &()).expect("the CQ goes");
        }
    }

    /// A fresh pair moves a message.
    fn fresh(&mut self) {
        let [mut a, mut b] = self.rig.vi_pair(ViSpec::new(self.level));
        self.rig.fill(a.data, 3000, 9);
        let to = self.rig.post_vi_receive(&mut b, 4096);
        let from = self.rig.post_request(&mut a, Control::empty(), None, 3000);
        for _ in 0..64 {
            if [from, to].iter().all(|at| self.rig.vi_status(*at).contains(vi::Status::DONE)) {
                break;
            }
            self.rig.advance(1 << 22);
        }
        assert_eq!(self.rig.vi_status(from), vi::Status::DONE);
        assert_eq!(self.rig.vi_status(to), vi::Status::DONE | vi::Status::OP_RECEIVE);
        let at = b.data + VI_DATA / 2;
        assert!(self.rig.bytes(at, 3000) == self.rig.bytes(a.data, 3000), "the message arrived");
    }
}

/// Whether the device has completed a ring's entry, so that the driver may take it.
fn is_done(rig: &Rig, vi: &Vi, queue: usize, index: u32) -> bool {
    match rig.mark(vi, queue, index) {
        vi::MARK_COMPLETE | vi::MARK_LOST => true,
        vi::MARK_COMPLETING => {
            let ring = if queue == 0 { vi.qp.send_ring } else { vi.qp.receive_ring };
            let at = ring + vi::RING_HEAD as u64 + u64::from(index % (1 << vi.log)) * vi::ENTRY as u64;
            let Post { address, .. } = rig.memory.load(at).expect("the ring");
            rig.memory
                .load::<ControlSegment>(address)
                .is_ok_and(|control| vi::Status::from_bits_retain(control.status).contains(vi::Status::DONE))
        }
        _ => false,
    }
}
