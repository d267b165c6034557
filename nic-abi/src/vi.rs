//! Virtual interfaces (VI Architecture 1.0): the rings that name descriptors, and the descriptors.
//!
//! **Descriptors** are in the consumer's registered memory, at 64-byte boundaries, as appendix B
//! lays them out: a [`ControlSegment`], for RDMA an [`AddressSegment`], then [`DataSegment`]s. A
//! memory handle is the region's remote key: a virtual interface names memory by it on both sides.
//!
//! **A ring** has a head of [`RING_HEAD`] bytes, whose first word arms the queue as word 1 of a
//! CQ's doorbell record does, and then entries of [`ENTRY`] bytes: a [`Post`] each.
//!
//! The device completes a descriptor in place. It writes, in this order: the data; the control word
//! and the immediate data (receives); [`MARK_COMPLETING`] into the ring's entry; length and status
//! in one 64-bit store with release; [`MARK_COMPLETE`]; the entry of the completion queue, if the
//! work queue is tied to one; the event, if the ring is armed.

use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// [`crate::admin::CreateQp::qp_type`] of a virtual interface. Its reliability level decides
/// whether its packets are those of RC or of UC.
pub const QP_TYPE: u32 = 4;
/// Bytes in front of a ring's entries. The first u32 is the word that arms the queue.
pub const RING_HEAD: usize = 64;
/// Bytes of a ring's entry.
pub const ENTRY: usize = 16;
/// Alignment of a descriptor (page 29).
pub const DESCRIPTOR_ALIGN: u64 = 64;
/// Bytes of a segment that follows the control segment.
pub const SEGMENT: usize = 16;
/// In [`crate::admin::CreateQp`]: the work queue is not tied to a completion queue.
pub const NO_CQ: u32 = u32::MAX;

/// An entry of a ring: a descriptor that was posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Post {
    /// The descriptor's virtual address.
    pub address: u64,
    /// The handle of the memory region that it is in.
    pub handle: u32,
    /// What the device has done with it: [`MARK_POSTED`] and so on.
    pub mark: u32,
}

/// The driver has posted the descriptor.
pub const MARK_POSTED: u32 = 0;
/// The device is about to write the descriptor's status.
pub const MARK_COMPLETING: u32 = 1;
/// The device has written the descriptor's status.
pub const MARK_COMPLETE: u32 = 2;
/// The device has taken the descriptor off the queue and could not write its status. An event says
/// why.
pub const MARK_LOST: u32 = 3;
/// Written by the driver: it has reported the descriptor, which the device lost, to its client. The
/// device merges events, so that a lost descriptor may have none of its own.
pub const MARK_REPORTED: u32 = 4;

/// The first segment of a descriptor (10.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ControlSegment {
    /// Virtual address of the descriptor that follows on the queue.
    pub next: u64,
    /// The memory handle of that descriptor.
    pub next_handle: u32,
    /// Segments that follow this one.
    pub segments: u16,
    /// [`Control`].
    pub control: u16,
    /// Zero.
    pub reserved: u32,
    /// Immediate data.
    pub immediate: u32,
    /// Bytes of all data segments; of a completed descriptor the bytes moved.
    pub length: u32,
    /// Zero; of a completed descriptor [`Status`].
    pub status: u32,
}

/// Where the control word (segment count and control field) is in a control segment.
pub const CONTROL_WORD: usize = 12;
/// Where the immediate data is in a control segment.
pub const IMMEDIATE: usize = 20;
/// Where length and status are in a control segment: 8 bytes.
pub const COMPLETION: usize = 24;

/// The second segment of an RDMA descriptor (10.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AddressSegment {
    /// The remote buffer's virtual address.
    pub address: u64,
    /// The remote buffer's memory handle.
    pub handle: u32,
    /// Zero.
    pub reserved: u32,
}

/// A piece of local memory (10.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DataSegment {
    /// Virtual address.
    pub address: u64,
    /// Memory handle.
    pub handle: u32,
    /// Bytes.
    pub length: u32,
}

bitflags! {
    /// The control field of a descriptor (10.2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Control: u16 {
        /// RDMA Write. Without it and [`Control::RDMA_READ`]: a Send or a Receive.
        const RDMA_WRITE = 0x0001;
        /// RDMA Read.
        const RDMA_READ = 0x0002;
        /// The immediate data is valid.
        const IMMEDIATE = 0x0004;
        /// Begin when all descriptors before are complete.
        const QUEUE_FENCE = 0x0008;
    }

    /// The status field of a descriptor (10.2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Status: u32 {
        /// The descriptor is complete.
        const DONE = 0x0000_0001;
        /// The descriptor has a wrong format.
        const FORMAT_ERROR = 0x0000_0002;
        /// A local segment may not be used.
        const PROTECTION_ERROR = 0x0000_0004;
        /// The lengths do not fit.
        const LENGTH_ERROR = 0x0000_0008;
        /// A part of the message was sent, or arrived.
        const PARTIAL_ERROR = 0x0000_0010;
        /// The virtual interface was disconnected.
        const DESC_FLUSHED_ERROR = 0x0000_0020;
        /// The data was lost or corrupted, or the peer does not respond.
        const TRANSPORT_ERROR = 0x0000_0040;
        /// The peer's memory may not be used.
        const RDMA_PROT_ERROR = 0x0000_0080;
        /// The peer's receive descriptor is wrong, or there is none.
        const REMOTE_DESC_ERROR = 0x0000_0100;
        /// All errors.
        const ERROR_MASK = 0x0000_01fe;
        /// The lowest bit of the completed operation: the receive queue's.
        const OP_RECEIVE = 0x0001_0000;
        /// An RDMA Write.
        const OP_RDMA_WRITE = 0x0002_0000;
        /// A peer's RDMA Write with immediate data took the receive.
        const OP_REMOTE_RDMA_WRITE = 0x0003_0000;
        /// An RDMA Read.
        const OP_RDMA_READ = 0x0004_0000;
        /// All bits of the completed operation; 0 is a Send.
        const OP_MASK = 0x0007_0000;
        /// The immediate data of a receive is valid.
        const IMMEDIATE = 0x0008_0000;
    }
}

/// How far the place of the completed operation is from bit 0 of the status.
pub const OP_SHIFT: u32 = 16;

/// The reliability level of a virtual interface (2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Reliability {
    /// Unreliable Delivery: what is lost is lost.
    #[default]
    Unreliable = 0,
    /// Reliable Delivery: a Send or RDMA Write is complete when it has left.
    Delivery = 1,
    /// Reliable Reception: a Send or RDMA Write is complete when the peer's memory has it.
    Reception = 2,
}

impl Reliability {
    /// Reads a level.
    pub const fn from_byte(byte: u8) -> Option<Reliability> {
        Some(match byte {
            0 => Reliability::Unreliable,
            1 => Reliability::Delivery,
            2 => Reliability::Reception,
            _ => return None,
        })
    }

    /// Whether the connection breaks at an error.
    pub const fn is_reliable(self) -> bool {
        !matches!(self, Reliability::Unreliable)
    }
}

/// What an event of type [`crate::eqe::EventType::ViError`] reports (9.9.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ViError {
    /// A descriptor's address and handle were not valid.
    PostDescriptor = 0,
    /// The connection is lost, and the virtual interface is in ERROR.
    ConnectionLost = 1,
    /// A message was dropped since no receive was posted.
    ReceiveQueueEmpty = 2,
    /// More descriptors were posted than the ring has entries.
    Overrun = 3,
    /// A peer's RDMA Write without immediate data reached for memory that it may not write.
    WriteProtection = 4,
    /// The data of such a Write was corrupt.
    WriteData = 5,
    /// A part of such a Write was missing.
    WriteAbort = 6,
    /// A peer's RDMA Read reached for memory that it may not read.
    ReadProtection = 7,
    /// The status of a descriptor could not be written.
    CompletionProtection = 8,
}

/// How many errors there are.
pub const ERRORS: usize = 9;

impl ViError {
    /// Reads an error.
    pub const fn from_byte(byte: u8) -> Option<ViError> {
        Some(match byte {
            0 => ViError::PostDescriptor,
            1 => ViError::ConnectionLost,
            2 => ViError::ReceiveQueueEmpty,
            3 => ViError::Overrun,
            4 => ViError::WriteProtection,
            5 => ViError::WriteData,
            6 => ViError::WriteAbort,
            7 => ViError::ReadProtection,
            8 => ViError::CompletionProtection,
            _ => return None,
        })
    }

    /// Whether it is an error of what the consumer posted, and not of the connection at whose time
    /// it happened.
    pub const fn is_of_post(self) -> bool {
        matches!(self, ViError::PostDescriptor | ViError::Overrun | ViError::CompletionProtection)
    }
}

const _: () = assert!(size_of::<ControlSegment>() == 32 && size_of::<Post>() == ENTRY);
const _: () = assert!(size_of::<AddressSegment>() == SEGMENT && size_of::<DataSegment>() == SEGMENT);
const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(ControlSegment, segments) == CONTROL_WORD);
    assert!(offset_of!(ControlSegment, immediate) == IMMEDIATE);
    assert!(offset_of!(ControlSegment, length) == COMPLETION);
    assert!(offset_of!(ControlSegment, status) == COMPLETION + 4);
};
