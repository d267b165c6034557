//! Virtual interfaces of a [`Rig`]: descriptors in memory whose virtual addresses are its bus
//! addresses.

use nic_abi::admin::CqFlags;
use nic_abi::vi::{self, AddressSegment, Control, ControlSegment, DataSegment, Post, Reliability, ViError};

use super::*;

/// Bytes of memory that a descriptor takes: the control segment, an address segment, and 254 data
/// segments.
const DESCRIPTOR: u64 = 64 * 65;

/// A virtual interface, with memory for data and descriptors.
#[derive(Clone, Copy, Debug)]
pub struct Vi {
    /// The queue pair that it is.
    pub qp: Qp,
    /// Descriptors posted and taken off, of the send and of the receive queue.
    pub posted: [u32; 2],
    /// See `posted`.
    pub taken: [u32; 2],
    /// The handle of its memory.
    pub handle: u32,
    /// Its data: 64 KiB.
    pub data: u64,
    /// The place of the next descriptor.
    descriptors: u64,
    /// Its protection domain.
    pub pd: u32,
    /// Log2 of the entries of its rings.
    pub log: u32,
}

/// How to create a virtual interface.
#[derive(Clone, Copy, Debug)]
pub struct ViSpec {
    /// The level.
    pub level: Reliability,
    /// Log2 of the entries of its rings.
    pub log: u32,
    /// The longest message.
    pub max_message: u64,
    /// The CQs of its queues, send and receive.
    pub cqs: [Option<Cq>; 2],
}

impl ViSpec {
    /// Rings of 64 entries and no CQs.
    pub fn new(level: Reliability) -> ViSpec {
        ViSpec { level, log: LOG_ENTRIES, max_message: MAX_MESSAGE, cqs: [None; 2] }
    }
}

/// Bytes of a virtual interface's data.
pub const VI_DATA: u64 = 64 << 10;

/// The bit in which a region's handle, which is its remote key, differs from its local key, so that
/// neither is taken for the other.
const HANDLE_BIT: u32 = 0x4000_0000;

/// The local key of the region with this handle.
pub fn vi_key(handle: u32) -> u32 {
    handle ^ HANDLE_BIT
}

impl Rig {
    /// Creates a CQ for virtual interfaces.
    pub fn create_vi_cq(&mut self, n: usize, log: u32) -> Cq {
        let number = self.nics[n].next_cq;
        self.nics[n].next_cq += 1;
        let ring = self.alloc((cqe::SIZE << log) as u64);
        let flags = CqFlags::VI.bits();
        let args = CreateCq { ring, log_entries: log, eq: 0, generation: 1000 + number, flags };
        self.command(n, Opcode::CreateCq, number, &args).expect("a CQ");
        Cq { nic: n, number, ring: Ring { addr: ring, log, head: 0 } }
    }

    /// Arguments of CreateQp for a virtual interface, with rings in fresh memory.
    pub fn vi_args(&mut self, spec: ViSpec) -> CreateQp {
        let ring = || (vi::RING_HEAD + (vi::ENTRY << spec.log)) as u64;
        CreateQp {
            qp_type: vi::QP_TYPE,
            flags: 0,
            pd: PD,
            generation: 500,
            send_cq: spec.cqs[0].map_or(vi::NO_CQ, |cq| cq.number),
            receive_cq: spec.cqs[1].map_or(vi::NO_CQ, |cq| cq.number),
            srq: 0,
            max_send_segments: 252,
            send_ring: self.alloc(ring()),
            receive_ring: self.alloc(ring()),
            log_send_blocks: spec.log,
            log_receive_entries: spec.log,
            max_receive_segments: 252,
            eq: 0,
            max_message: spec.max_message,
            owner: 0,
        }
    }

    /// Creates a virtual interface with its memory.
    pub fn create_vi(&mut self, n: usize, spec: ViSpec) -> Vi {
        self.nics[n].next_slot += 1;
        let slot = self.nics[n].next_slot;
        let qpn = nic_abi::ident::qpn(slot, 3);
        let args = self.vi_args(spec);
        self.command(n, Opcode::CreateQp, qpn, &args).expect("a virtual interface");
        let none = Cq { nic: n, number: vi::NO_CQ, ring: Ring { addr: 0, log: 0, head: 0 } };
        let qp = Qp {
            nic: n,
            qpn,
            send_cq: spec.cqs[0].unwrap_or(none),
            receive_cq: spec.cqs[1].unwrap_or(none),
            send_ring: args.send_ring,
            receive_ring: args.receive_ring,
            send_tail: 0,
            receive_tail: 0,
            generation: args.generation,
        };
        let length = VI_DATA + 100 * DESCRIPTOR;
        let (handle, data) = self.vi_region(n, PD, length, ALL_RIGHTS);
        let descriptors = data + VI_DATA;
        let vi = Vi { qp, posted: [0; 2], taken: [0; 2], handle, data, descriptors, pd: PD, log: spec.log };
        let args = ModifyQp {
            mask: (QpMask::STATE | QpMask::LEVEL).bits(),
            state: QpState::Reset as u32,
            level: spec.level as u8,
            ..ModifyQp::default()
        };
        self.modify(&vi.qp, &args).expect("RESET");
        vi
    }

    /// Registers fresh memory whose virtual addresses are its bus addresses; its handle, and its
    /// address.
    pub fn vi_region(&mut self, n: usize, pd: u32, length: u64, flags: LinkFlags) -> (u32, u64) {
        let addr = self.alloc(length);
        let key = self.fresh_key();
        let handle = key ^ HANDLE_BIT;
        let args = RegisterRegion {
            pd,
            flags: (flags | LinkFlags::CONTIGUOUS).bits(),
            base: addr,
            length,
            list: ListArgs { list: addr, remote: handle, ..ListArgs::default() },
        };
        self.command(n, Opcode::RegisterRegion, key, &args).expect("a region");
        (handle, addr)
    }

    /// Two connected virtual interfaces, on the first and on the last NIC.
    pub fn vi_pair(&mut self, spec: ViSpec) -> [Vi; 2] {
        let last = self.nics.len() - 1;
        let (a, b) = (self.create_vi(0, spec), self.create_vi(last, spec));
        self.join(&a.qp, &b.qp);
        self.join(&b.qp, &a.qp);
        [a, b]
    }

    /// Writes a descriptor to a fresh place in a virtual interface's memory, with the length that
    /// its segments have; returns its address.
    pub fn descriptor(
        &mut self,
        vi: &mut Vi,
        control: ControlSegment,
        address: Option<AddressSegment>,
        data: &[DataSegment],
    ) -> u64 {
        let at = vi.descriptors;
        vi.descriptors += DESCRIPTOR;
        assert!(vi.descriptors <= vi.data + VI_DATA + 100 * DESCRIPTOR, "its memory is used up");
        let segments = data.len() as u16 + u16::from(address.is_some());
        let length = data.iter().fold(0u32, |sum, one| sum.wrapping_add(one.length));
        let control = ControlSegment { segments, length, ..control };
        self.memory.write(at, control.as_bytes()).expect("memory");
        let mut next = at + 32;
        if let Some(address) = address {
            self.memory.write(next, address.as_bytes()).expect("memory");
            next += 16;
        }
        self.memory.write(next, data.as_bytes()).expect("memory");
        at
    }

    /// Posts a descriptor to the send (0) or receive (1) queue, and rings.
    pub fn post_descriptor(&mut self, vi: &mut Vi, queue: usize, address: u64, handle: u32) {
        let ring = if queue == 0 { vi.qp.send_ring } else { vi.qp.receive_ring };
        let index = vi.posted[queue];
        let at = ring + 64 + u64::from(index % (1 << vi.log)) * 16;
        let post = Post { address, handle, mark: vi::MARK_POSTED };
        self.memory.write(at, post.as_bytes()).expect("the ring");
        vi.posted[queue] = index.wrapping_add(1);
        let kind = if queue == 0 { Kind::Send } else { Kind::Receive };
        self.ring(vi.qp.nic, kind, nic_abi::ident::qpn_slot(vi.qp.qpn), vi.posted[queue]);
    }

    /// Posts a descriptor in its own memory, and rings.
    pub fn post_own(&mut self, vi: &mut Vi, queue: usize, address: u64) {
        let handle = vi.handle;
        self.post_descriptor(vi, queue, address, handle);
    }

    /// Posts a request of one data segment at the front of its data; returns the descriptor.
    pub fn post_request(
        &mut self,
        vi: &mut Vi,
        control: Control,
        to: Option<(u32, u64)>,
        length: u32,
    ) -> u64 {
        let segment = DataSegment { address: vi.data, handle: vi.handle, length };
        let address = to.map(|(handle, address)| AddressSegment { address, handle, reserved: 0 });
        let control = ControlSegment { control: control.bits(), ..ControlSegment::default() };
        let at = self.descriptor(vi, control, address, &[segment]);
        self.post_own(vi, 0, at);
        at
    }

    /// Posts a receive of one data segment in the second half of its data; returns the descriptor.
    pub fn post_vi_receive(&mut self, vi: &mut Vi, length: u32) -> u64 {
        let segment = DataSegment { address: vi.data + VI_DATA / 2, handle: vi.handle, length };
        let at = self.descriptor(vi, ControlSegment::default(), None, &[segment]);
        self.post_own(vi, 1, at);
        at
    }

    /// The control segment of a descriptor.
    pub fn control_segment(&self, at: u64) -> ControlSegment {
        self.memory.load(at).expect("memory")
    }

    /// The status of a descriptor.
    pub fn vi_status(&self, at: u64) -> vi::Status {
        vi::Status::from_bits_retain(self.control_segment(at).status)
    }

    /// The mark of an entry of the send (0) or receive (1) ring.
    pub fn mark(&self, vi: &Vi, queue: usize, index: u32) -> u32 {
        let ring = if queue == 0 { vi.qp.send_ring } else { vi.qp.receive_ring };
        let at = ring + 64 + u64::from(index % (1 << vi.log)) * 16;
        self.memory.load::<Post>(at).expect("the ring").mark
    }

    /// Ends a virtual interface's connection, and gives it these attributes.
    pub fn end_vi(&mut self, vi: &Vi, args: &ModifyQp) -> Result<(), (Status, u16)> {
        let mask = args.mask | QpMask::STATE.bits();
        self.modify(&vi.qp, &ModifyQp { mask, state: QpState::Reset as u32, ..*args })
    }

    /// Errors of virtual interfaces since the last look, with their operations and descriptors.
    /// Other events must not have come.
    pub fn vi_errors(&mut self, n: usize) -> Vec<(ViError, u32, u64)> {
        let events = self.events(n);
        let each = events.iter().map(|event| {
            assert_eq!(EventType::from_byte(event.event), Some(EventType::ViError), "{event:?}");
            (ViError::from_byte(event.status).expect("an error"), event.detail, event.address)
        });
        each.collect()
    }
}
