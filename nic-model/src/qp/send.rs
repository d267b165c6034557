//! Entries of a send queue: read once, checked, and kept until complete.

use alloc::vec::Vec;
use core::mem::offset_of;

use nic_abi::cqe::Status;
use nic_abi::wqe::{self, AddressVector, AtomicArgs, Header, ListArgs, Opcode, Segment, SendFlags, Wqe};
use zerocopy::transmute;

use super::{Qp, SendQueue};
use crate::Frontend;
use crate::limits::MAX_LIST_ELEMENTS;
use crate::memory::{DmaError, GuestMemory};
use crate::nic::Nic;

/// The offset of `args` in an entry.
pub(crate) const ARGS: usize = offset_of!(Wqe, args);

/// Elements of a list that a fast register reads in one unit of work.
const LIST_ELEMENTS: u32 = 64;

/// The entry that a queue pair is executing.
pub(crate) struct Work {
    /// Whether the other fields are valid.
    pub loaded: bool,
    pub opcode: Opcode,
    pub flags: SendFlags,
    pub blocks: u32,
    pub header: Header,
    pub args: [u64; 4],
    /// No more than the queue was created for. The allocation is kept for later entries.
    pub segments: Vec<Segment>,
    /// Bytes of all segments.
    pub total: u64,
    /// Bytes that have been moved.
    pub done: u64,
    /// The request is on its way. Injection drops or delays a request only before that.
    pub started: bool,
    /// Injection has delayed the request.
    pub delayed: bool,
}

impl Work {
    pub const fn new() -> Work {
        Work {
            loaded: false,
            opcode: Opcode::Send,
            flags: SendFlags::empty(),
            blocks: 0,
            header: Header {
                opcode: 0,
                flags: 0,
                segments: 0,
                blocks: 0,
                tag: 0,
                immediate: 0,
                remote_key: 0,
                remote_addr: 0,
                length: 0,
            },
            args: [0; 4],
            segments: Vec::new(),
            total: 0,
            done: 0,
            started: false,
            delayed: false,
        }
    }

    /// Begins an entry of this many blocks, of which nothing else is known yet.
    #[inline]
    pub fn begin(&mut self, blocks: u32) {
        self.loaded = true;
        self.blocks = blocks;
        self.flags = SendFlags::empty();
        self.header = Header::default();
        (self.done, self.total) = (0, 0);
        (self.started, self.delayed) = (false, false);
        self.segments.clear();
    }

    /// The arguments of an atomic operation.
    pub fn atomic(&self) -> AtomicArgs {
        transmute!(self.args)
    }

    /// `args` of a fast register.
    pub fn list(&self) -> ListArgs {
        transmute!(self.args)
    }

    /// Units of work of an entry that is executed without the peer, besides the one of every entry.
    #[inline]
    pub fn local_cost(&self) -> u32 {
        match self.opcode {
            Opcode::FastRegister => self.list().elements.min(MAX_LIST_ELEMENTS) / LIST_ELEMENTS,
            _ => 0,
        }
    }

    /// `args` of a datagram.
    pub fn address(&self) -> AddressVector {
        transmute!(self.args)
    }
}

/// Why an entry cannot be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadEntry {
    /// The field at this offset.
    Field(usize),
    /// The ring's memory cannot be accessed.
    Dma,
    /// A virtual interface's descriptor, which can only be completed with this status.
    Status(Status),
    /// A virtual interface's descriptor that cannot even be completed.
    Unreachable,
}

impl From<DmaError> for BadEntry {
    fn from(_: DmaError) -> BadEntry {
        BadEntry::Dma
    }
}

impl SendQueue {
    /// The bus address of the block with this free-running index.
    #[inline]
    pub fn block(&self, index: u32) -> u64 {
        self.ring + u64::from(index & ((1 << self.log) - 1)) * wqe::BLOCK as u64
    }

    /// Blocks that are posted and not taken.
    #[inline]
    pub fn posted(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }
}

impl Qp {
    /// Reads and checks the entry at the head of the send queue. Even of a malformed entry `work`
    /// then has the tag, the opcode byte and a number of blocks, so that it can be completed.
    #[inline]
    pub fn fetch<F: Frontend>(&mut self, nic: &Nic<F>) -> Result<(), BadEntry> {
        if self.vi.is_some() {
            return self.fetch_descriptor(nic);
        }
        let memory = nic.frontend.memory();
        let posted = self.send.posted();
        let first = self.send.block(self.send.head);
        let work = &mut self.send.work;
        // All posted blocks, unless the entry has a valid number.
        work.begin(posted);
        let entry: Wqe = memory.load(first)?;
        let header = entry.header;
        (work.header, work.args) = (header, entry.args);
        let blocks = u32::from(header.blocks);
        if blocks == 0 || blocks > posted {
            return Err(BadEntry::Field(offset_of!(Header, blocks)));
        }
        work.blocks = blocks;
        work.opcode = Opcode::from_byte(header.opcode).ok_or(BadEntry::Field(offset_of!(Header, opcode)))?;
        work.flags = SendFlags::from_bits(header.flags).ok_or(BadEntry::Field(offset_of!(Header, flags)))?;
        let segments = u32::from(header.segments);
        if !self.kind.carries_out(work.opcode) {
            return Err(BadEntry::Field(offset_of!(Header, opcode)));
        }
        let (fits, expected) = match work.opcode {
            Opcode::CompareSwap | Opcode::FetchAdd => (segments == 1, 1),
            Opcode::FastRegister | Opcode::LocalInvalidate | Opcode::BindWindow => (segments == 0, 1),
            _ => (segments <= self.send.max_segments, self.kind.blocks(segments)),
        };
        if !fits {
            return Err(BadEntry::Field(offset_of!(Header, segments)));
        }
        if blocks != expected {
            return Err(BadEntry::Field(offset_of!(Header, blocks)));
        }
        if header.length != 0 && !matches!(work.opcode, Opcode::FastRegister | Opcode::BindWindow) {
            return Err(BadEntry::Field(offset_of!(Header, length)));
        }
        self.fetch_segments(memory, segments)
    }

    #[inline]
    fn fetch_segments<M: GuestMemory>(&mut self, memory: &M, count: u32) -> Result<(), BadEntry> {
        let first: [Segment; 2] = transmute!(self.send.work.args);
        let mut left = count as usize;
        if self.kind.is_connected() {
            let here = left.min(first.len());
            self.keep(&first[..here]);
            left -= here;
        }
        let mut index = self.send.head;
        while left > 0 {
            index = index.wrapping_add(1);
            let block: [Segment; wqe::BLOCK_SEGMENTS as usize] = memory.load(self.send.block(index))?;
            let here = left.min(block.len());
            self.keep(&block[..here]);
            left -= here;
        }
        Ok(())
    }

    #[inline]
    fn keep(&mut self, segments: &[Segment]) {
        let work = &mut self.send.work;
        for segment in segments {
            work.total += u64::from(segment.length);
            work.segments.push(*segment);
        }
    }
}
