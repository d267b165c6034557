//! The work path: any entries on any queues, between two NICs that are set up as a driver does.
//!
//! What must hold: the device becomes idle; there are no more completions than requests, and each
//! is well formed; an unprivileged queue pair accesses only memory that a region covers; afterwards
//! every object can be destroyed, which shows that none is in use.

use nic_abi::admin::{
    AllocateRegion, AllocateWindow, Injection, ModifyQp, Opcode, QpFlags, QpMask, QpState, QpType, ResizeCq,
    ResizeSrq,
};
use nic_abi::cqe::{self, Cqe};
use nic_abi::doorbell::Kind;
use nic_abi::ident;
use nic_abi::registers::State;
use nic_abi::wqe::{self, Header, LinkFlags, ListArgs, Segment, SendFlags};
use nic_model::GuestMemory;
use zerocopy::IntoBytes;

use crate::Input;
use nic_model::testing::{ALL_RIGHTS, Cq, LOG_ENTRIES, PD, Qp, QpSpec, REMOTE, Rig, segment, stride};

const STEPS: usize = 96;
const CANARY: usize = 8192;
/// Bytes of each region.
const REGION: u64 = 8192;
/// Entries of the queues of the rig.
const ENTRIES: u32 = 64;
const QKEY: u32 = 0x1234;

pub(crate) struct Scene {
    pub(crate) rig: Rig,
    qps: Vec<Queue>,
    /// Keys of both NICs, valid or not.
    regions: Vec<(usize, u32)>,
    windows: Vec<(usize, u32)>,
    /// Bus addresses of the regions.
    memory: Vec<u64>,
    srqs: Vec<(usize, u32, u64, u32)>,
    canary: (u64, Vec<u8>),
    privileged: bool,
}

struct Queue {
    qp: Qp,
    datagram: bool,
    /// Upper bounds of the entries posted to the send and to the receive queue; `None` after an
    /// invented tail.
    posted: Option<[u32; 2]>,
    completions: [u32; 2],
    alive: bool,
}

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut scene = Scene::new(Rig::new(2), input.rarely(2));
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        scene.step(&mut input);
        scene.reap();
    }
    scene.end();
}

impl Scene {
    /// Queue pairs and memory on two NICs.
    pub(crate) fn new(mut rig: Rig, privileged: bool) -> Scene {
        let flags = if privileged { QpFlags::PRIVILEGED } else { QpFlags::empty() };
        let canary = rig.alloc(CANARY as u64);
        rig.fill(canary, CANARY, 77);
        let canary = (canary, rig.bytes(canary, CANARY));
        let mut qps = Vec::new();
        let mut add = |qp, datagram| {
            qps.push(Queue { qp, datagram, posted: Some([0; 2]), completions: [0; 2], alive: true });
        };
        let (a, b) = rig.pair_of(0, 1, QpSpec { flags, ..QpSpec::default() });
        add(a, false);
        add(b, false);
        let mut srqs = Vec::new();
        for n in 0..2 {
            let ring = rig.create_srq(n, 3, 4);
            srqs.push((n, 3, ring, 0));
        }
        let spec = QpSpec { flags: flags | QpFlags::SRQ, srq: 3, ..QpSpec::default() };
        let (a, b) = rig.pair_of(0, 1, spec);
        add(a, false);
        add(b, false);
        for n in 0..2 {
            add(rig.datagram_qp(n, 40, QKEY), true);
        }
        let (mut regions, mut windows, mut memory) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..2 {
            let rights = [ALL_RIGHTS, LinkFlags::LOCAL_READ, ALL_RIGHTS.difference(REMOTE)];
            for flags in rights {
                let (key, at) = rig.region_with(n, REGION, flags | LinkFlags::RELATIVE, 0);
                regions.push((n, key));
                memory.push(at);
            }
            let key = rig.fresh_key();
            let args = AllocateRegion { pd: PD, max_elements: 4 };
            rig.command(n, Opcode::AllocateRegion, key, &args).expect("a region");
            regions.push((n, key));
            for window_type in [1, 2] {
                let key = rig.fresh_key();
                rig.command(n, Opcode::AllocateWindow, key, &AllocateWindow { pd: PD, window_type })
                    .expect("a window");
                windows.push((n, key));
            }
        }
        Scene { rig, qps, regions, windows, memory, srqs, canary, privileged }
    }

    /// Does what the input says on one of the queues.
    pub(crate) fn step(&mut self, input: &mut Input<'_>) {
        let which = input.below(self.qps.len());
        match input.below(16) {
            0..7 => self.send(which, input),
            7 | 8 => self.receive(which, input),
            9 => self.shared_receive(input),
            10 => self.raw(which, input),
            11 => self.rig.advance(1 << input.below(34)),
            12 => self.modify(which, input),
            13 => self.inject(which, input),
            14 => self.other(which, input),
            _ => {
                // Invents a tail: it covers whatever is in the ring.
                let queue = &mut self.qps[which];
                queue.posted = None;
                let (n, slot) = (queue.qp.nic, ident::qpn_slot(queue.qp.qpn));
                let kind =
                    input.pick(&[Kind::Send, Kind::Receive, Kind::SharedReceive]).unwrap_or(Kind::Send);
                let tail = input.number() as u32;
                match kind {
                    Kind::SharedReceive => drop(self.rig.ring(n, kind, 3, tail)),
                    _ => drop(self.rig.ring(n, kind, slot, tail)),
                }
                if kind == Kind::SharedReceive {
                    self.qps.iter_mut().for_each(|queue| queue.posted = None);
                }
            }
        }
        if !input.rarely(4) {
            self.rig.run();
        }
    }

    fn key(&self, input: &mut Input<'_>) -> u32 {
        let key = match input.below(8) {
            0..5 => input.pick(&self.regions).map_or(0, |(_, key)| key),
            5 | 6 => input.pick(&self.windows).map_or(0, |(_, key)| key),
            _ => input.number() as u32,
        };
        // Each link gives the region another remote key.
        if input.rarely(4) { key ^ ident::key(0, u32::from(input.byte() & 3)) } else { key }
    }

    /// A remote key for a link or bind of the region or window with this local key.
    fn remote(&self, local: u32, input: &mut Input<'_>) -> u32 {
        match input.rarely(8) {
            true => input.number() as u32,
            false => local ^ ident::key(0, u32::from(input.byte() & 3)),
        }
    }

    fn segments(&self, input: &mut Input<'_>) -> Vec<Segment> {
        let one = |input: &mut Input<'_>| {
            let length = if input.rarely(8) { input.number() as u32 } else { 8 * input.below(200) as u32 };
            let addr = if input.rarely(8) { input.number() } else { 8 * input.below(64) as u64 };
            segment(self.key(input), addr, length)
        };
        (0..input.below(7)).map(|_| one(input)).collect()
    }

    /// A bus address within the regions' memory.
    fn bus(&self, input: &mut Input<'_>) -> u64 {
        input.pick(&self.memory).unwrap_or(0)
    }

    fn send(&mut self, which: usize, input: &mut Input<'_>) {
        let opcodes: Vec<wqe::Opcode> = (0..=u8::MAX).filter_map(wqe::Opcode::from_byte).collect();
        let opcode = input.pick(&opcodes).unwrap_or(wqe::Opcode::Send);
        let segments = self.segments(input);
        let mut header = Header {
            opcode: opcode as u8,
            flags: (SendFlags::SIGNALED.bits() | input.byte()) & 0x3f,
            segments: segments.len() as u8,
            blocks: 1,
            tag: input.byte().into(),
            immediate: self.key(input),
            remote_key: self.key(input),
            remote_addr: 8 * input.below(64) as u64,
            length: 0,
        };
        if input.rarely(8) {
            header.remote_addr = input.number();
        }
        let datagram = self.qps[which].datagram;
        let (mut args, mut more) = ([0_u64; 4], segments.clone());
        match opcode {
            wqe::Opcode::FastRegister => {
                let at = self.bus(input);
                let elements = input.below(4) as u32;
                // A list in the regions' own memory, of the regions' pages.
                for i in 0..u64::from(elements) {
                    let page = self.bus(input) + 4096 * (input.below(2) as u64);
                    self.rig.memory.write(at + 8 * i, &page.to_le_bytes()).expect("a region");
                }
                let list = ListArgs {
                    list: at,
                    element_length: 4096,
                    first_byte_offset: if input.rarely(4) { input.number() & 0xfff } else { 0 },
                    elements,
                    remote: self.remote(header.immediate, input),
                };
                args = zerocopy::transmute!(list);
                header.remote_key =
                    u32::from(input.byte()) | LinkFlags::PAGES.bits() | LinkFlags::RELATIVE.bits();
                header.length =
                    u64::from(elements) * 4096 - list.first_byte_offset.min(u64::from(elements) * 4096);
                (header.segments, more) = (0, Vec::new());
            }
            wqe::Opcode::BindWindow => {
                let flags = u64::from(input.byte()) | u64::from(LinkFlags::RELATIVE.bits());
                header.length = 8 * input.below(128) as u64;
                header.immediate = input.pick(&self.windows).map_or(0, |(_, key)| key);
                args[0] = flags | u64::from(self.remote(header.immediate, input)) << 32;
                (header.segments, more) = (0, Vec::new());
            }
            wqe::Opcode::LocalInvalidate => (header.segments, more) = (0, Vec::new()),
            wqe::Opcode::CompareSwap | wqe::Opcode::FetchAdd => {
                let mut sink = segments.first().copied().unwrap_or_default();
                sink.length = 8;
                let halves: [u64; 2] = zerocopy::transmute!(sink);
                args = [halves[0], halves[1], input.number(), input.number()];
                (header.segments, more) = (1, Vec::new());
            }
            _ if datagram => {
                let peer = self.qps[4 + input.below(2)].qp;
                let vector = wqe::AddressVector {
                    gid: self.rig.gid(peer.nic),
                    flow_label: 0,
                    hop_limit: 64,
                    traffic_class: 0,
                    service_level: 0,
                    source_gid: 1,
                    qpn: if input.rarely(8) { input.number() as u32 } else { peer.qpn },
                    qkey: if input.rarely(8) { input.number() as u32 } else { QKEY },
                };
                args = zerocopy::transmute!(vector);
                header.blocks = wqe::datagram_blocks(segments.len() as u32) as u8;
            }
            _ => {
                let mut first = [Segment::default(); 2];
                let here = segments.len().min(2);
                first[..here].copy_from_slice(&segments[..here]);
                args = zerocopy::transmute!(first);
                more = segments[here..].to_vec();
                header.blocks = wqe::blocks(segments.len() as u32) as u8;
            }
        }
        // Sometimes one field has a random value.
        if input.rarely(8) {
            let at = input.below(32);
            header.as_mut_bytes()[at] = input.byte();
        }
        if !self.privileged && input.rarely(16) {
            args[input.below(4)] = input.number();
        }
        let blocks = u32::from(header.blocks).max(1);
        if !self.has_room(which, blocks + more.len().div_ceil(4) as u32) {
            return;
        }
        let queue = &mut self.qps[which];
        self.rig.write_send(&mut queue.qp, header, args, &more);
        if let Some(posted) = &mut queue.posted {
            // An entry takes at least one block, even if its header has another number.
            posted[0] += u32::from(header.blocks);
        }
        self.rig.ring_send(&queue.qp);
    }

    /// Whether so many blocks fit into the send queue, according to QueryQp.
    fn has_room(&mut self, which: usize, blocks: u32) -> bool {
        let qp = self.qps[which].qp;
        if !self.qps[which].alive || self.rig.state(qp.nic) != State::Ready as u32 {
            return false;
        }
        self.rig.run();
        let head = self.rig.query(&qp).send_head;
        let queue = &mut self.qps[which];
        if queue.posted.is_none() {
            queue.qp.send_tail = head;
        }
        queue.qp.send_tail.wrapping_sub(head).saturating_add(blocks) <= ENTRIES
    }

    fn receive(&mut self, which: usize, input: &mut Input<'_>) {
        let segments: Vec<Segment> = self.segments(input).into_iter().take(6).collect();
        let queue = &mut self.qps[which];
        if !queue.alive || queue.qp.receive_ring == 0 {
            return;
        }
        if let Some(posted) = &mut queue.posted {
            posted[1] += 1;
        }
        self.rig.post_receive(&mut queue.qp, 9, &segments);
        if input.rarely(16) {
            let index = queue.qp.receive_tail.wrapping_sub(1) % ENTRIES;
            let at = queue.qp.receive_ring + u64::from(index) * u64::from(stride());
            self.rig.memory.write(at + input.below(16) as u64, &[input.byte()]).expect("the ring");
        }
    }

    fn shared_receive(&mut self, input: &mut Input<'_>) {
        let segments: Vec<Segment> = self.segments(input).into_iter().take(6).collect();
        let (n, number, ring, tail) = &mut self.srqs[input.below(2)];
        self.rig.write_receive(*ring, *tail, 5, &segments);
        *tail = tail.wrapping_add(1);
        self.rig.ring(*n, Kind::SharedReceive, *number, *tail);
    }

    /// A block of random bytes.
    fn raw(&mut self, which: usize, input: &mut Input<'_>) {
        let mut block = [0; wqe::BLOCK];
        let taken = input.bytes(wqe::BLOCK);
        block[..taken.len()].copy_from_slice(taken);
        if !self.has_room(which, 1) {
            return;
        }
        let queue = &mut self.qps[which];
        // An invented list of a privileged queue pair may name any memory.
        if self.privileged && block[0] == wqe::Opcode::FastRegister as u8 {
            block[0] = 0;
        }
        if self.privileged {
            block[36..64].fill(0);
        }
        let at = queue.qp.send_ring + u64::from(queue.qp.send_tail % ENTRIES) * wqe::BLOCK as u64;
        self.rig.memory.write(at, &block).expect("the ring");
        queue.qp.send_tail = queue.qp.send_tail.wrapping_add(1);
        if let Some(posted) = &mut queue.posted {
            posted[0] += 1;
        }
        self.rig.ring_send(&queue.qp);
    }

    fn modify(&mut self, which: usize, input: &mut Input<'_>) {
        let (qp, peer) = (self.qps[which].qp, self.qps[which ^ 1].qp);
        let mut args = match input.below(4) {
            0 => self.rig.rtr_args(&qp, &peer),
            1 => self.rig.rts_args(&qp),
            2 => ModifyQp { mask: QpMask::STATE.bits(), state: QpState::Error as u32, ..ModifyQp::default() },
            _ => ModifyQp {
                mask: (QpMask::STATE | QpMask::ACCESS).bits(),
                state: QpState::Init as u32,
                access: input.byte().into(),
                ..ModifyQp::default()
            },
        };
        if input.rarely(2) {
            args.state = input.below(8) as u32;
        }
        if input.rarely(4) {
            args.mask ^= 1 << input.below(16);
        }
        let reset = args.mask & QpMask::STATE.bits() != 0 && args.state == QpState::Reset as u32;
        if self.rig.modify(&qp, &args).is_ok() && reset {
            // Its queues begin empty again.
            let queue = &mut self.qps[which];
            (queue.qp.send_tail, queue.qp.receive_tail) = (0, 0);
        }
    }

    fn inject(&mut self, which: usize, input: &mut Input<'_>) {
        let what = input
            .pick(&[
                Injection::DropRequests,
                Injection::DropResponses,
                Injection::BadResponse,
                Injection::Delay,
                Injection::Port,
            ])
            .unwrap_or(Injection::Delay);
        let qp = self.qps[which].qp;
        let value = if what == Injection::Port { input.below(2) as u64 } else { 1 << input.below(30) };
        if self.qps[which].alive {
            self.rig.inject(qp.nic, what, qp.qpn, input.below(8) as u32, value);
        }
    }

    fn other(&mut self, which: usize, input: &mut Input<'_>) {
        let n = self.qps[which].qp.nic;
        match input.below(5) {
            0 => {
                if let Some((n, key)) = input.pick(&self.regions) {
                    let _ = self.rig.command(n, Opcode::DestroyRegion, key, &());
                }
            }
            1 => {
                if let Some((n, key)) = input.pick(&self.windows) {
                    let _ = self.rig.command(n, Opcode::DestroyWindow, key, &());
                }
            }
            2 => {
                let queue = &mut self.qps[which];
                let number = if input.rarely(2) { &mut queue.qp.send_cq } else { &mut queue.qp.receive_cq };
                let log = 6 + input.below(4) as u32;
                let ring = self.rig.alloc((cqe::SIZE << log) as u64);
                let args = ResizeCq { ring, log_entries: log, reserved: 0 };
                if self.rig.command(n, Opcode::ResizeCq, number.number, &args).is_ok() {
                    (number.ring.addr, number.ring.log) = (ring, log);
                }
            }
            3 => {
                let (n, number, ring, _) = &mut self.srqs[input.below(2)];
                let bytes = u64::from(stride()) << LOG_ENTRIES;
                let to = self.rig.alloc(bytes);
                let entries = self.rig.bytes(*ring, bytes as usize);
                self.rig.memory.write(to, &entries).expect("the ring");
                let args = ResizeSrq { ring: to, log_entries: LOG_ENTRIES, limit: input.below(9) as u32 };
                if self.rig.command(*n, Opcode::ResizeSrq, *number, &args).is_ok() {
                    *ring = to;
                }
            }
            _ => {
                let queue = &mut self.qps[which];
                if queue.alive && input.rarely(4) {
                    self.rig
                        .command(n, Opcode::DestroyQp, queue.qp.qpn, &())
                        .expect("a queue pair can be destroyed at any time");
                    queue.alive = false;
                }
            }
        }
    }

    /// Takes completions and events, and checks them.
    pub(crate) fn reap(&mut self) {
        let srq_made_up = self.qps.iter().any(|queue| queue.posted.is_none());
        for (index, queue) in self.qps.iter_mut().enumerate() {
            let (mut send_cq, mut receive_cq) = (queue.qp.send_cq, queue.qp.receive_cq);
            for (direction, cq) in [&mut send_cq, &mut receive_cq].into_iter().enumerate() {
                while let Some(entry) = self.rig.poll_cq(cq) {
                    check_entry(&entry, &queue.qp, direction);
                    queue.completions[direction] += 1;
                }
            }
            (queue.qp.send_cq, queue.qp.receive_cq) = (send_cq, receive_cq);
            if let Some(posted) = queue.posted {
                assert!(
                    queue.completions[0] <= posted[0],
                    "queue pair {index}: more completions than requests"
                );
                let own = queue.qp.receive_ring != 0;
                let taken = queue.completions[1];
                assert!(!own || taken <= posted[1], "queue pair {index}: more completions than receives");
            }
        }
        if !srq_made_up {
            let taken: u32 = self
                .qps
                .iter()
                .filter(|queue| queue.qp.receive_ring == 0)
                .map(|queue| queue.completions[1])
                .sum();
            let posted: u32 = self.srqs.iter().map(|(_, _, _, tail)| tail).sum();
            assert!(taken <= posted, "more completions than shared receives");
        }
        for n in 0..2 {
            self.rig.events(n);
        }
    }

    /// Lets all work in progress end, and destroys everything.
    pub(crate) fn end(mut self) {
        for _ in 0..12 {
            self.rig.advance(1 << 29);
            self.reap();
        }
        assert!(
            self.privileged || self.rig.bytes(self.canary.0, CANARY) == self.canary.1,
            "memory outside all regions and rings changed"
        );
        for n in 0..2 {
            assert_eq!(self.rig.state(n), State::Ready as u32, "no entry fails the device");
        }
        for queue in self.qps.iter().filter(|queue| queue.alive) {
            self.rig
                .command(queue.qp.nic, Opcode::DestroyQp, queue.qp.qpn, &())
                .expect("the queue pair can be destroyed");
        }
        for (n, key) in self.windows.clone() {
            // The input may have destroyed the object already, so this may fail.
            let _ = self.rig.command(n, Opcode::DestroyWindow, key, &());
        }
        for (n, key) in self.regions.clone() {
            let _ = self.rig.command(n, Opcode::DestroyRegion, key, &());
        }
        for (n, number, ..) in self.srqs.clone() {
            self.rig.command(n, Opcode::DestroySrq, number, &()).expect("the SRQ can be destroyed");
        }
        let cqs: Vec<Cq> =
            self.qps.iter().flat_map(|queue| [queue.qp.send_cq, queue.qp.receive_cq]).collect();
        for cq in cqs {
            self.rig.command(cq.nic, Opcode::DestroyCq, cq.number, &()).expect("the CQ goes");
        }
        for n in 0..2 {
            self.rig.command(n, Opcode::DestroyPd, PD, &()).expect("nothing is left in the domain");
            self.rig.command(n, Opcode::DestroyEq, 0, &()).expect("nothing uses the event queue");
        }
    }
}

fn check_entry(entry: &Cqe, qp: &Qp, direction: usize) {
    assert_eq!((entry.qpn, entry.generation), (qp.qpn, qp.generation));
    assert!(cqe::Status::from_byte(entry.status).is_some());
    let flags = cqe::CqeFlags::from_bits(entry.flags).expect("known flags");
    assert_eq!(flags.contains(cqe::CqeFlags::RECEIVE), direction == 1);
    assert_eq!(entry.reserved, 0);
}

const _: () = assert!(QpType::Rc as u32 == 0 && size_of::<Header>() == 32);
