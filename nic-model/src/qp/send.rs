//! Send queues, and their entries: read once, checked, and kept until complete.

use alloc::vec::Vec;
use core::mem::offset_of;

use nic_abi::cqe::Status;
use nic_abi::wqe::{self, AddressVector, AtomicArgs, Header, ListArgs, Opcode, Segment, SendFlags, Wqe};
use zerocopy::transmute;

use crate::limits::MAX_LIST_ELEMENTS;
use crate::memory::DmaError;

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

/// A send queue.
pub(crate) struct SendQueue {
    pub ring: u64,
    pub log: u32,
    pub max_segments: u32,
    /// Blocks taken since creation.
    pub head: u32,
    /// Blocks posted since creation, as of the last doorbell.
    pub tail: u32,
    /// The entry at the head, while `work.loaded`.
    pub work: Work,
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
