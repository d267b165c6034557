//! The objects of a [`Rig`], and the requests, completions and events of their queues.

use super::*;

impl Rig {
    /// Creates an event queue in fresh memory, on vector 1.
    pub fn create_eq(&mut self, n: usize, number: u32, log: u32) {
        let ring = self.alloc((eqe::SIZE << log) as u64);
        let args = CreateEq { ring, log_entries: log, vector: 1 };
        self.command(n, Opcode::CreateEq, number, &args).expect("an event queue");
        if number == 0 {
            self.nics[n].eq = Ring { addr: ring, log, head: 0 };
        }
    }

    /// Creates a CQ in fresh memory, which reports to event queue 0.
    pub fn create_cq(&mut self, n: usize, log: u32) -> Cq {
        let number = self.nics[n].next_cq;
        self.nics[n].next_cq += 1;
        let ring = self.alloc((cqe::SIZE << log) as u64);
        let args = CreateCq { ring, log_entries: log, eq: 0, generation: 1000 + number, flags: 0 };
        self.command(n, Opcode::CreateCq, number, &args).expect("a CQ");
        Cq { nic: n, number, ring: Ring { addr: ring, log, head: 0 } }
    }

    /// Creates a queue pair and its two CQs.
    pub fn create_qp(&mut self, n: usize, spec: QpSpec) -> Qp {
        let send_cq = self.create_cq(n, 8);
        let receive_cq = self.create_cq(n, 8);
        self.create_qp_on(n, spec, send_cq, receive_cq)
    }

    /// Arguments of CreateQp, with rings in fresh memory.
    pub fn qp_args(&mut self, spec: QpSpec, send_cq: Cq, receive_cq: Cq) -> CreateQp {
        let shared = spec.flags.contains(QpFlags::SRQ);
        CreateQp {
            qp_type: spec.kind as u32,
            flags: spec.flags.bits(),
            pd: PD,
            generation: 500,
            send_cq: send_cq.number,
            receive_cq: receive_cq.number,
            srq: spec.srq,
            max_send_segments: MAX_SEGMENTS,
            send_ring: self.alloc((wqe::BLOCK << spec.log) as u64),
            receive_ring: if shared { 0 } else { self.alloc(u64::from(stride()) << spec.log) },
            log_send_blocks: spec.log,
            log_receive_entries: spec.log,
            max_receive_segments: MAX_SEGMENTS,
            eq: 0,
            max_message: MAX_MESSAGE,
            owner: spec.owner,
        }
    }

    /// Creates a queue pair on two CQs.
    pub fn create_qp_on(&mut self, n: usize, spec: QpSpec, send_cq: Cq, receive_cq: Cq) -> Qp {
        let slot = spec.slot.unwrap_or_else(|| {
            self.nics[n].next_slot += 1;
            self.nics[n].next_slot
        });
        let qpn = if slot == 1 { 1 } else { nic_abi::ident::qpn(slot, 3) };
        let mut args = self.qp_args(spec, send_cq, receive_cq);
        args.generation = 500 + slot;
        self.command(n, Opcode::CreateQp, qpn, &args).expect("a queue pair");
        Qp {
            nic: n,
            qpn,
            send_cq,
            receive_cq,
            send_ring: args.send_ring,
            receive_ring: args.receive_ring,
            send_tail: 0,
            receive_tail: 0,
            generation: args.generation,
        }
    }

    /// Creates an SRQ; returns the bus address of its ring.
    pub fn create_srq(&mut self, n: usize, number: u32, limit: u32) -> u64 {
        let ring = self.alloc(u64::from(stride()) << LOG_ENTRIES);
        let args = CreateSrq {
            ring,
            log_entries: LOG_ENTRIES,
            max_segments: MAX_SEGMENTS,
            pd: PD,
            generation: 900,
            limit,
            eq: 0,
        };
        self.command(n, Opcode::CreateSrq, number, &args).expect("an SRQ");
        ring
    }

    /// Registers fresh contiguous memory with all rights, relative; returns its key, which is local
    /// and remote, and its bus address.
    pub fn region(&mut self, n: usize, length: u64) -> (u32, u64) {
        self.region_with(n, length, ALL_RIGHTS | LinkFlags::RELATIVE, 0)
    }

    /// A key whose slot has not been used.
    pub fn fresh_key(&mut self) -> u32 {
        self.next_key += 1;
        nic_abi::ident::key(self.next_key, 5)
    }

    /// Registers fresh contiguous memory; returns its key, which is local and remote, and its bus
    /// address.
    pub fn region_with(&mut self, n: usize, length: u64, flags: LinkFlags, base: u64) -> (u32, u64) {
        let addr = self.alloc(length.max(1));
        let key = self.fresh_key();
        let args = RegisterRegion {
            pd: PD,
            flags: (flags | LinkFlags::CONTIGUOUS).bits(),
            base,
            length,
            list: ListArgs { list: addr, remote: key, ..ListArgs::default() },
        };
        self.command(n, Opcode::RegisterRegion, key, &args).expect("a region");
        (key, addr)
    }

    /// ModifyQp.
    pub fn modify(&mut self, qp: &Qp, args: &ModifyQp) -> Result<(), (Status, u16)> {
        self.command(qp.nic, Opcode::ModifyQp, qp.qpn, args).map(|_| ())
    }

    /// ModifyQp of the state alone.
    pub fn set_state(&mut self, qp: &Qp, state: QpState) -> Result<(), (Status, u16)> {
        let args = ModifyQp { mask: QpMask::STATE.bits(), state: state as u32, ..ModifyQp::default() };
        self.modify(qp, &args)
    }

    /// QueryQp.
    pub fn query(&mut self, qp: &Qp) -> QpInfo {
        let result = self.command(qp.nic, Opcode::QueryQp, qp.qpn, &()).expect("a queue pair");
        QpInfo::read_from_prefix(&result).expect("large enough").0
    }

    /// GID 1 of NIC `n`: its IPv4 address, mapped.
    pub fn gid(&self, n: usize) -> [u8; 16] {
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, n as u8 + 1]);
        gid
    }

    /// Takes a queue pair to INIT, with all rights of peers.
    pub fn init(&mut self, qp: &Qp) {
        let args = ModifyQp {
            mask: (QpMask::STATE | QpMask::ACCESS).bits(),
            state: QpState::Init as u32,
            access: REMOTE.bits(),
            ..ModifyQp::default()
        };
        self.modify(qp, &args).expect("INIT");
    }

    /// Arguments that take a queue pair from INIT to RTR with `peer`.
    pub fn rtr_args(&self, qp: &Qp, peer: &Qp) -> ModifyQp {
        ModifyQp {
            mask: (QpMask::STATE
                | QpMask::PATH
                | QpMask::REMOTE_QPN
                | QpMask::MTU
                | QpMask::RECEIVE_PSN
                | QpMask::MAX_DEST_RD_ATOMIC
                | QpMask::MIN_RNR_TIMER)
                .bits(),
            state: QpState::Rtr as u32,
            remote_gid: self.gid(peer.nic),
            remote_qpn: peer.qpn,
            mtu: 1024,
            receive_psn: peer.qpn & 0xffff,
            min_rnr_timer: 1,
            max_dest_rd_atomic: 4,
            source_gid: 1,
            hop_limit: qp.nic as u8 + 64,
            ..ModifyQp::default()
        }
    }

    /// Arguments that take a queue pair from RTR to RTS.
    pub fn rts_args(&self, qp: &Qp) -> ModifyQp {
        ModifyQp {
            mask: (QpMask::STATE
                | QpMask::SEND_PSN
                | QpMask::TIMEOUT
                | QpMask::RETRY_COUNT
                | QpMask::RNR_RETRY
                | QpMask::MAX_RD_ATOMIC)
                .bits(),
            state: QpState::Rts as u32,
            send_psn: qp.qpn & 0xffff,
            timeout: 10,
            retry_count: 2,
            rnr_retry: 2,
            max_rd_atomic: 4,
            ..ModifyQp::default()
        }
    }

    /// Takes a queue pair from RESET to RTS with `peer`.
    pub fn join(&mut self, qp: &Qp, peer: &Qp) {
        self.init(qp);
        let args = self.rtr_args(qp, peer);
        self.modify(qp, &args).expect("RTR");
        let args = self.rts_args(qp);
        self.modify(qp, &args).expect("RTS");
    }

    /// Two connected queue pairs.
    pub fn pair_of(&mut self, a: usize, b: usize, spec: QpSpec) -> (Qp, Qp) {
        let (x, y) = (self.create_qp(a, spec), self.create_qp(b, spec));
        self.join(&x, &y);
        self.join(&y, &x);
        (x, y)
    }

    /// Two connected queue pairs, on the first and on the last NIC.
    pub fn pair(&mut self) -> (Qp, Qp) {
        let other = self.nics.len() - 1;
        self.pair_of(0, other, QpSpec::default())
    }

    /// A datagram queue pair in RTS with a queue key; slot 1 is the general services one.
    pub fn datagram_qp(&mut self, n: usize, slot: u32, qkey: u32) -> Qp {
        let kind = if slot == 1 { QpType::Gsi } else { QpType::Ud };
        self.datagram_qp_of(n, QpSpec { kind, slot: Some(slot), ..QpSpec::default() }, qkey)
    }

    /// A queue pair for datagrams in RTS.
    pub fn datagram_qp_of(&mut self, n: usize, spec: QpSpec, qkey: u32) -> Qp {
        let qp = self.create_qp(n, spec);
        let mask = QpMask::STATE | QpMask::QKEY;
        let args = ModifyQp { mask: mask.bits(), state: QpState::Init as u32, qkey, ..ModifyQp::default() };
        self.modify(&qp, &args).expect("INIT");
        self.set_state(&qp, QpState::Rtr).expect("RTR");
        self.set_state(&qp, QpState::Rts).expect("RTS");
        qp
    }

    /// Writes an entry into the send queue, without ringing.
    pub fn write_send(&mut self, qp: &mut Qp, header: Header, args: [u64; 4], more: &[Segment]) {
        let size = 1_u32 << LOG_ENTRIES;
        let block = |index: u32| qp.send_ring + u64::from(index % size) * wqe::BLOCK as u64;
        let wqe = Wqe { header, args };
        self.memory.write(block(qp.send_tail), wqe.as_bytes()).expect("the ring");
        for (i, segments) in more.chunks(4).enumerate() {
            let mut bytes = [0; wqe::BLOCK];
            bytes[..size_of_val(segments)].copy_from_slice(segments.as_bytes());
            self.memory.write(block(qp.send_tail.wrapping_add(1 + i as u32)), &bytes).expect("the ring");
        }
        qp.send_tail = qp.send_tail.wrapping_add(u32::from(header.blocks));
    }

    /// Rings for a send queue.
    pub fn ring_send(&mut self, qp: &Qp) {
        self.ring(qp.nic, Kind::Send, nic_abi::ident::qpn_slot(qp.qpn), qp.send_tail);
    }

    /// Posts a work request with segments, signalled, and rings.
    pub fn post(&mut self, qp: &mut Qp, header: Header, segments: &[Segment]) {
        let mut args = [Segment::default(); 2];
        let here = segments.len().min(2);
        args[..here].copy_from_slice(&segments[..here]);
        let header = Header {
            segments: segments.len() as u8,
            blocks: wqe::blocks(segments.len() as u32) as u8,
            flags: header.flags | SendFlags::SIGNALED.bits(),
            ..header
        };
        self.write_send(qp, header, zerocopy::transmute!(args), &segments[here..]);
        self.ring_send(qp);
    }

    /// Posts an entry whose arguments are not segments.
    pub fn post_args(&mut self, qp: &mut Qp, header: Header, args: [u64; 4]) {
        let header = Header { blocks: 1, flags: header.flags | SendFlags::SIGNALED.bits(), ..header };
        self.write_send(qp, header, args, &[]);
        self.ring_send(qp);
    }

    /// Writes a receive entry into a ring, without ringing.
    pub fn write_receive(&mut self, ring: u64, index: u32, tag: u32, segments: &[Segment]) {
        let at = ring + u64::from(index % (1 << LOG_ENTRIES)) * u64::from(stride());
        let header = ReceiveHeader { segments: segments.len() as u32, tag, flags: 0, reserved: 0 };
        self.memory.write(at, header.as_bytes()).expect("the ring");
        self.memory.write(at + 16, segments.as_bytes()).expect("the ring");
    }

    /// Posts a receive and rings.
    pub fn post_receive(&mut self, qp: &mut Qp, tag: u32, segments: &[Segment]) {
        self.write_receive(qp.receive_ring, qp.receive_tail, tag, segments);
        qp.receive_tail = qp.receive_tail.wrapping_add(1);
        self.ring(qp.nic, Kind::Receive, nic_abi::ident::qpn_slot(qp.qpn), qp.receive_tail);
    }

    /// The next completion, if there is one.
    pub fn poll_cq(&mut self, cq: &mut Cq) -> Option<Cqe> {
        let at = cq.ring.addr + u64::from(cq.ring.head % (1 << cq.ring.log)) * cqe::SIZE as u64;
        let entry: Cqe = self.memory.load(at).expect("the ring");
        if u64::from(entry.phase) << 32 & cqe::PHASE != cqe::phase(cq.ring.head, cq.ring.log) {
            return None;
        }
        cq.ring.head += 1;
        let record = doorbell::record(registers::CQ_RECORDS, cq.number);
        self.register(cq.nic, record).store(cq.ring.head, Ordering::Release);
        Some(entry)
    }

    /// Runs, then takes the completion of a send queue, which must be there.
    pub fn sent(&mut self, qp: &mut Qp) -> Cqe {
        self.run();
        let entry = self.poll_cq(&mut qp.send_cq).expect("a completion of the send queue");
        assert_eq!((entry.qpn, entry.generation), (qp.qpn, qp.generation));
        entry
    }

    /// Runs, then takes the completion of a receive queue, which must be there.
    pub fn received(&mut self, qp: &mut Qp) -> Cqe {
        self.run();
        self.poll_cq(&mut qp.receive_cq).expect("a completion of the receive queue")
    }

    /// Arms a CQ.
    pub fn arm_cq(&self, cq: &Cq, how: u32) {
        let record = doorbell::record(registers::CQ_RECORDS, cq.number);
        self.register(cq.nic, record + 4).store(how, Ordering::SeqCst);
    }

    /// Arms event queue 0 of NIC `n`.
    pub fn arm_eq(&self, n: usize) {
        self.register(n, registers::EQ_RECORDS + 4).store(doorbell::ARM_NEXT, Ordering::SeqCst);
    }

    /// All events of event queue 0 since the last look.
    pub fn events(&mut self, n: usize) -> Vec<Eqe> {
        let mut events = Vec::new();
        loop {
            let eq = self.nics[n].eq;
            let at = eq.addr + u64::from(eq.head % (1 << eq.log)) * eqe::SIZE as u64;
            let entry: Eqe = self.memory.load(at).expect("the ring");
            if u64::from(entry.phase) << 32 & cqe::PHASE != cqe::phase(eq.head, eq.log) {
                return events;
            }
            events.push(entry);
            self.nics[n].eq.head += 1;
            self.register(n, registers::EQ_RECORDS).store(eq.head + 1, Ordering::Release);
        }
    }

    /// Types and numbers of the events since the last look.
    pub fn event_types(&mut self, n: usize) -> Vec<(EventType, u32)> {
        let events = self.events(n);
        events.iter().map(|e| (EventType::from_byte(e.event).expect("an event"), e.number)).collect()
    }

    /// Injects a fault.
    pub fn inject(&mut self, n: usize, what: Injection, object: u32, count: u32, value: u64) {
        let args = Inject { what: what as u32, count, value };
        self.command(n, Opcode::Inject, object, &args).expect("an injection");
    }
}
