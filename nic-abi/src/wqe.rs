//! Work-queue entries.
//!
//! **Send queue.** A ring of 64-byte blocks; a work request takes [`Header::blocks`] consecutive
//! ones (wrapping at the ring's end). The first block is [`Wqe`]: a header, and 32 bytes whose
//! meaning depends on the opcode:
//!
//! | opcode | `args` |
//! |---|---|
//! | Send…, RDMA Write…, RDMA Read | segments 0 and 1 |
//! | Send… on a UD or GSI queue pair | [`AddressVector`]; all segments are in the blocks that follow |
//! | atomics | segment 0, then `compare` and `swap` (or `add` and 0): [`AtomicArgs`] |
//! | fast register | [`ListArgs`] with the new remote key; `remote_addr` is the region's base address, `immediate` its local key, `remote_key` is [`LinkFlags`] |
//! | bind window | [`BindArgs`] with the new remote key; `immediate` is the window's local key, `remote_key` the region's local key |
//! | local invalidate | none; `immediate` is the local key |
//!
//! The blocks that follow hold four [`Segment`]s each.
//!
//! **Receive queue and SRQ.** A ring of entries of one size, [`receive_stride`] bytes: a
//! [`ReceiveHeader`] and then the segments.

use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a block of a send queue.
pub const BLOCK: usize = 64;
/// 64-bit words of a block.
pub const BLOCK_WORDS: usize = BLOCK / 8;

/// What a send-queue entry asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// Send.
    Send = 0x00,
    /// Send with immediate data.
    SendImmediate = 0x01,
    /// Send that invalidates a remote key of the receiver.
    SendInvalidate = 0x02,
    /// RDMA Write.
    Write = 0x08,
    /// RDMA Write with immediate data, which consumes a receive.
    WriteImmediate = 0x09,
    /// RDMA Read.
    Read = 0x10,
    /// RDMA Read that invalidates a region of the reader, by its local key, when done.
    ReadInvalidate = 0x11,
    /// 64-bit compare and swap.
    CompareSwap = 0x18,
    /// 64-bit fetch and add.
    FetchAdd = 0x19,
    /// Gives a region's key a list of memory (LMR link).
    FastRegister = 0x20,
    /// Unlinks a region or unbinds a window (LMR and RMR unlink).
    LocalInvalidate = 0x21,
    /// Binds a window to part of a region (RMR link).
    BindWindow = 0x22,
}

impl Opcode {
    /// Reads an opcode.
    pub const fn from_byte(byte: u8) -> Option<Opcode> {
        Some(match byte {
            0x00 => Opcode::Send,
            0x01 => Opcode::SendImmediate,
            0x02 => Opcode::SendInvalidate,
            0x08 => Opcode::Write,
            0x09 => Opcode::WriteImmediate,
            0x10 => Opcode::Read,
            0x11 => Opcode::ReadInvalidate,
            0x18 => Opcode::CompareSwap,
            0x19 => Opcode::FetchAdd,
            0x20 => Opcode::FastRegister,
            0x21 => Opcode::LocalInvalidate,
            0x22 => Opcode::BindWindow,
            _ => return None,
        })
    }
}

bitflags! {
    /// Options of a send-queue entry.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SendFlags: u8 {
        /// Write a completion on success, too.
        const SIGNALED = 1 << 0;
        /// The receiver's completion is solicited.
        const SOLICITED = 1 << 1;
        /// Do not begin before all earlier RDMA Reads and atomics of this queue are done.
        const FENCE_READS = 1 << 2;
        /// Do not begin before all earlier entries of this queue are done (barrier fence).
        const FENCE_ALL = 1 << 3;
        /// Do not begin before all earlier invalidates of this queue are done.
        const FENCE_INVALIDATES = 1 << 4;
        /// Raise SendQueueDrained when this entry completes with success.
        const DRAINED_EVENT = 1 << 5;
    }
}

/// The first 32 bytes of a send-queue entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// An [`Opcode`].
    pub opcode: u8,
    /// [`SendFlags`].
    pub flags: u8,
    /// Segments in all.
    pub segments: u8,
    /// Blocks in all, at least 1.
    pub blocks: u8,
    /// Returned in the completion.
    pub tag: u32,
    /// Immediate data (as it goes on the wire), or a key: the local key of what is registered,
    /// bound or invalidated here, or the remote key that the receiver invalidates.
    pub immediate: u32,
    /// The remote key of an RDMA or atomic operation; see the table above for others.
    pub remote_key: u32,
    /// The remote address of an RDMA or atomic operation; the base address of a registration or
    /// bind.
    pub remote_addr: u64,
    /// The length of a registration or bind, bytes; otherwise 0.
    pub length: u64,
}

/// The first block of a send-queue entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Wqe {
    /// The header.
    pub header: Header,
    /// By opcode, see the module's table.
    pub args: [u64; 4],
}

/// One piece of local memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Segment {
    /// Address in the key's address space: absolute, relative, or a bus address for the reserved
    /// key.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// The local key.
    pub key: u32,
}

/// The destination of a datagram, and what its header says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AddressVector {
    /// The destination's GID.
    pub gid: [u8; 16],
    /// Flow label.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Service level.
    pub service_level: u8,
    /// Which of the port's GIDs is the source.
    pub source_gid: u8,
    /// The destination's QP number.
    pub qpn: u32,
    /// The queue key; with the top bit set the sender's own is used (IBTA 10.2.5).
    pub qkey: u32,
}

/// `args` of the atomic operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AtomicArgs {
    /// Where the original value goes: 8 bytes.
    pub sink: Segment,
    /// Compare-and-swap: the value to compare with. Fetch-and-add: the value to add.
    pub compare_add: u64,
    /// Compare-and-swap: the new value.
    pub swap: u64,
}

/// `args` of fast register, and the tail of the admin commands that register a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ListArgs {
    /// Bus address of the list: u64 bus addresses, or [`ListElement`]s where the list is variable.
    pub list: u64,
    /// Length of an element; 0 where the list is variable.
    pub element_length: u64,
    /// Bytes of the first element that are before the region.
    pub first_byte_offset: u64,
    /// Number of elements.
    pub elements: u32,
    /// The region's remote key from then on.
    pub remote: u32,
}

/// An element of a variable list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ListElement {
    /// Bus address.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
}

/// `args` of bind window; `remote_addr` is the window's first address in the region's address space
/// and `length` its length (0 unbinds a wide window).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BindArgs {
    /// [`LinkFlags`]: remote rights and addressing.
    pub flags: u32,
    /// The window's remote key from then on.
    pub remote: u32,
    /// Reserved.
    pub reserved: [u32; 6],
}

bitflags! {
    /// Rights and form of a region or window.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct LinkFlags: u32 {
        /// The device may read it for local work requests.
        const LOCAL_READ = 1 << 0;
        /// The device may write it for local work requests.
        const LOCAL_WRITE = 1 << 1;
        /// Peers may read it.
        const REMOTE_READ = 1 << 2;
        /// Peers may write it.
        const REMOTE_WRITE = 1 << 3;
        /// Peers that may also read and write it may do atomic operations on it. A queue pair's
        /// right to atomic operations needs no other.
        const REMOTE_ATOMIC = 1 << 4;
        /// Windows may be bound to it.
        const BIND = 1 << 5;
        /// Peers may do atomic operations on it, whether or not they may read and write it. Not a
        /// right of queue pairs.
        const ATOMIC_ALONE = 1 << 6;
        /// Windows of it may give peers the right to write, though it has no local write itself.
        /// Not a right, but a property of the memory, which stays when rights are modified.
        const WINDOWS_WRITE = 1 << 7;
        /// Addresses count from 0 at the first byte; otherwise from the base address.
        const RELATIVE = 1 << 8;
        /// The list's elements are pages: a power of two long, at least 4096 bytes, and aligned to
        /// their length.
        const PAGES = 1 << 9;
        /// The list is of [`ListElement`]s.
        const VARIABLE = 1 << 10;
        /// The region is one run of bus addresses: `ListArgs::list` is its first, and there is no
        /// list.
        const CONTIGUOUS = 1 << 11;
    }
}

/// The head of a receive entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReceiveHeader {
    /// Segments that follow.
    pub segments: u32,
    /// Returned in the completion.
    pub tag: u32,
    /// [`ReceiveFlags`].
    pub flags: u32,
    /// Reserved.
    pub reserved: u32,
}

bitflags! {
    /// Options of a receive entry.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ReceiveFlags: u32 {
        /// The completion is solicited even if the sender did not ask for that.
        const SOLICITED = 1 << 0;
    }
}

/// Bytes of a receive entry with room for `segments`: a multiple of 16.
pub const fn receive_stride(segments: u32) -> u32 {
    16 + 16 * segments
}

/// Segments that fit into the first block of an entry, except of a datagram.
pub const FIRST_SEGMENTS: u32 = 2;
/// Segments in each further block.
pub const BLOCK_SEGMENTS: u32 = 4;

/// Blocks of a Send, Write or Read of that many segments on a connected queue pair.
pub const fn blocks(segments: u32) -> u32 {
    1 + segments.saturating_sub(FIRST_SEGMENTS).div_ceil(BLOCK_SEGMENTS)
}

/// Blocks of a Send of that many segments on a datagram queue pair.
pub const fn datagram_blocks(segments: u32) -> u32 {
    1 + segments.div_ceil(BLOCK_SEGMENTS)
}

const _: () = assert!(size_of::<Wqe>() == BLOCK && size_of::<Header>() == 32 && size_of::<Segment>() == 16);
const _: () = assert!(size_of::<AddressVector>() == 32 && size_of::<AtomicArgs>() == 32);
const _: () = assert!(size_of::<ListArgs>() == 32 && size_of::<BindArgs>() == 32);
const _: () = assert!(size_of::<ReceiveHeader>() == 16 && size_of::<ListElement>() == 16);
