//! The register file: one shared-memory BAR of [`SIZE`] bytes.
//!
//! | offset | size | who writes | what |
//! |---|---|---|---|
//! | [`IDENTITY`] | 4 KiB | device | [`Identity`]: the device's identity, limits and features; constant |
//! | [`STATUS`] | 4 KiB | device | [`Status`] |
//! | [`CONTROL`] | 4 KiB | driver | [`Control`] |
//! | [`FIFO_TAIL`] | 4 B | driver | producer index of the doorbell FIFO (see [`crate::doorbell`]) |
//! | [`FIFO_EVENT`] | 4 B | device | index of the entry for which the device wants a kick |
//! | [`FIFO`] | 256 KiB | driver | doorbell FIFO entries |
//! | [`SQ_RECORDS`] … [`EQ_RECORDS`] | | both | doorbell records, 8 bytes a queue, at [`doorbell::record`] |
//!
//! Both sides can write all of this memory. A device must not trust what it reads from its own
//! pages, and a driver must copy the identity once and check the copy.

use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::doorbell::{self, RECORD_SLOTS, RECORD_TABLE};
use crate::ident;

/// Size of the register file in bytes.
pub const SIZE: usize = 1 << 20;
/// Offset of [`Identity`].
pub const IDENTITY: usize = 0x0000;
/// Offset of [`Status`].
pub const STATUS: usize = 0x1000;
/// Offset of [`Control`].
pub const CONTROL: usize = 0x2000;
/// Offset of the FIFO's producer index (u32).
pub const FIFO_TAIL: usize = 0x3000;
/// Offset of the FIFO's event index (u32), on a cache line that only the device writes.
pub const FIFO_EVENT: usize = 0x3040;
/// Offset of the FIFO's entries (u32 each).
pub const FIFO: usize = 0x1_0000;
/// Entries of the FIFO: more than there are queues with a doorbell, so it cannot overflow.
pub const FIFO_ENTRIES: u32 = 1 << 16;
/// Offset of the send queues' doorbell records.
pub const SQ_RECORDS: usize = 0x6_0000;
/// Offset of the receive queues' doorbell records.
pub const RQ_RECORDS: usize = 0x8_0000;
/// Offset of the shared receive queues' doorbell records.
pub const SRQ_RECORDS: usize = 0xa_0000;
/// Offset of the completion queues' records.
pub const CQ_RECORDS: usize = 0xc_0000;
/// Offset of the event queues' records.
pub const EQ_RECORDS: usize = 0xe_0000;
/// Offset of the admin queue's doorbell record.
pub const ADMIN_RECORD: usize = 0xf_0000;

const _: () = assert!(FIFO + FIFO_ENTRIES as usize * 4 <= SQ_RECORDS);
const _: () = assert!(SQ_RECORDS + RECORD_TABLE <= RQ_RECORDS && RQ_RECORDS + RECORD_TABLE <= SRQ_RECORDS);
const _: () = assert!(SRQ_RECORDS + RECORD_TABLE <= CQ_RECORDS && CQ_RECORDS + RECORD_TABLE <= EQ_RECORDS);
const _: () = assert!(doorbell::record(EQ_RECORDS, ident::MAX_EQS - 1) < ADMIN_RECORD);
const _: () = assert!(ident::MAX_QPS <= RECORD_SLOTS && ident::MAX_CQS <= RECORD_SLOTS);
const _: () = assert!(ident::MAX_SRQS <= RECORD_SLOTS);
const _: () = assert!(2 * ident::MAX_QPS + ident::MAX_SRQS < FIFO_ENTRIES);

/// [`Identity::magic`]: "FERRNIC1".
pub const MAGIC: u64 = u64::from_le_bytes(*b"FERRNIC1");

/// Entries of [`Identity::gids`].
pub const GIDS: usize = 16;

/// The device's identity, limits and features. The device writes it before the function appears,
/// and never again.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Identity {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`crate::VERSION_MAJOR`].
    pub version_major: u16,
    /// [`crate::VERSION_MINOR`].
    pub version_minor: u16,
    /// Revision of the device, for display only.
    pub revision: u32,
    /// [`Features`].
    pub features: u64,
    /// EUI-64 of the node.
    pub node_guid: u64,
    /// The port's GIDs: 0 is the IPv6 link-local one; those that follow are its addresses, an IPv4
    /// address as an IPv4-mapped one. Zero where it has no more.
    pub gids: [[u8; 16]; GIDS],
    /// The port's first IPv4 address, network byte order; zero if it has none.
    pub ipv4: [u8; 4],
    /// Path MTU of the port in bytes: 256, 512, 1024, 2048 or 4096.
    pub mtu: u32,
    /// Queue pairs at most, counting the reserved slots.
    pub max_qps: u32,
    /// Completion queues at most.
    pub max_cqs: u32,
    /// Shared receive queues at most.
    pub max_srqs: u32,
    /// Event queues at most.
    pub max_eqs: u32,
    /// Protection domains at most.
    pub max_pds: u32,
    /// Memory regions and windows at most, together.
    pub max_keys: u32,
    /// 64-byte blocks of a send queue at most.
    pub max_sq_blocks: u32,
    /// Entries of a receive queue at most.
    pub max_rq_entries: u32,
    /// Entries of a shared receive queue at most.
    pub max_srq_entries: u32,
    /// Entries of a completion queue at most.
    pub max_cqes: u32,
    /// Entries of an event queue at most.
    pub max_eqes: u32,
    /// Segments of a gather or scatter list at most.
    pub max_sges: u32,
    /// Elements of a region's list at most.
    pub max_list_elements: u32,
    /// Outstanding RDMA Reads and atomics of a queue pair at most, as initiator and as responder.
    pub max_rd_atomic: u32,
    /// Payload of one message at most, bytes.
    pub max_message: u64,
    /// Length of a region at most, bytes.
    pub max_region: u64,
    /// Bus addresses below this can be reached by DMA.
    pub dma_limit: u64,
    /// Interrupt vectors.
    pub vectors: u32,
    /// Link speed in Mbit/s, for people.
    pub link_mbps: u32,
    /// Data segments of a virtual interface's descriptor at most.
    pub max_vi_segments: u32,
    /// Entries of a ring of a virtual interface at most.
    pub max_vi_entries: u32,
    /// Multicast groups that the NIC's queue pairs may have joined.
    pub max_groups: u32,
    /// Queue pairs that may have joined one group.
    pub max_group_qps: u32,
}

const _: () = assert!(size_of::<Identity>() == 400 && size_of::<Identity>() <= STATUS - IDENTITY);

bitflags! {
    /// What a device can do ([`Identity::features`]).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features: u64 {
        /// Reliable connected queue pairs.
        const RC = 1 << 0;
        /// Unreliable datagram queue pairs.
        const UD = 1 << 1;
        /// Shared receive queues.
        const SRQ = 1 << 2;
        /// 64-bit compare-and-swap and fetch-and-add, atomic among queue pairs and with the CPU.
        const ATOMICS = 1 << 3;
        /// Fast register, local and remote invalidate.
        const FAST_REGISTER = 1 << 4;
        /// Memory windows of type 2 (narrow).
        const WINDOWS_NARROW = 1 << 5;
        /// Memory windows of type 1 (wide).
        const WINDOWS_WIDE = 1 << 6;
        /// Zero-based (relative) addressing.
        const RELATIVE = 1 << 7;
        /// Lists of equal pages.
        const PAGE_LIST = 1 << 8;
        /// Lists of equal blocks of any length and alignment.
        const BLOCK_LIST = 1 << 9;
        /// Lists of pages that differ in size.
        const VARIABLE_LIST = 1 << 10;
        /// The reserved key.
        const RESERVED_KEY = 1 << 11;
        /// The admin commands that make the device misbehave, for tests.
        const FAULT_INJECTION = 1 << 12;
        /// Commands and data for benchmarks.
        const BENCH = 1 << 13;
        /// Shared receive queues whose size can be changed.
        const SRQ_RESIZE = 1 << 14;
        /// Unreliable connected queue pairs.
        const UC = 1 << 15;
        /// Virtual interfaces.
        const VI = 1 << 16;
        /// TCP streams of the port.
        const STREAMS = 1 << 17;
        /// iWARP queue pairs over streams.
        const IWARP = 1 << 18;
        /// Datagrams to multicast groups.
        const MULTICAST = 1 << 19;
    }
}

/// [`Status::state`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// After power-on and reset: waits for a start.
    Idle = 0,
    /// The admin queue runs.
    Ready = 1,
    /// Nothing runs until a reset. [`Status::fault`] is the reason.
    Failed = 2,
}

impl State {
    /// Reads a state word.
    pub const fn from_word(word: u32) -> Option<State> {
        match word {
            0 => Some(State::Idle),
            1 => Some(State::Ready),
            2 => Some(State::Failed),
            _ => None,
        }
    }
}

/// Device to driver; each field is written as one word.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Status {
    /// A [`State`].
    pub state: u32,
    /// The last [`Control::request`] that was carried out.
    pub acknowledged: u32,
    /// Changes at least every [`HEARTBEAT_MS`] while the device works.
    pub heartbeat: u32,
    /// Why the device failed: a [`Fault`].
    pub fault: u32,
    /// 1 while the port is up.
    pub port_up: u32,
    /// Reserved.
    pub reserved: u32,
}

/// Offset of [`Status::state`] in the register file.
pub const STATUS_STATE: usize = STATUS;
/// Offset of [`Status::acknowledged`].
pub const STATUS_ACKNOWLEDGED: usize = STATUS + 4;
/// Offset of [`Status::heartbeat`].
pub const STATUS_HEARTBEAT: usize = STATUS + 8;
/// Offset of [`Status::fault`].
pub const STATUS_FAULT: usize = STATUS + 12;
/// Offset of [`Status::port_up`].
pub const STATUS_PORT_UP: usize = STATUS + 16;

/// A working device changes [`Status::heartbeat`] at least this often, milliseconds.
pub const HEARTBEAT_MS: u64 = 100;
/// After this long without a change of the heartbeat, a driver takes the device for dead, unless it
/// was told another time. A device whose process is stopped for less goes on,
/// milliseconds.
pub const HEARTBEAT_DEAD_MS: u64 = 10_000;

/// Why a device went to [`State::Failed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Fault {
    /// No failure.
    None = 0,
    /// The admin queue's description in [`Control`] is not acceptable.
    AdminQueue = 1,
    /// An event queue overflowed: events were lost, so the driver can rely on nothing.
    EventQueueOverflow = 2,
    /// A DMA to one of the device's own queues failed.
    Dma = 3,
    /// Injected by the driver.
    Injected = 4,
}

/// Driver to device.
///
/// To reset: write [`Control::command`] = [`CONTROL_RESET`], then a new value to
/// [`Control::request`], kick, and wait until [`Status::acknowledged`] shows that value. To start:
/// fill in the admin queue's fields, then the same with [`CONTROL_START`]; [`Status::state`] is
/// then `Ready` on success and `Failed` otherwise. A start in `Ready` or `Failed` is acknowledged
/// and changes nothing.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Control {
    /// Any value other than the last acknowledged one requests `command`.
    pub request: u32,
    /// [`CONTROL_RESET`] or [`CONTROL_START`].
    pub command: u32,
    /// The interface version that the driver speaks: major << 16 | minor.
    pub driver_version: u32,
    /// Entries of the admin queue as a power of two, 1 to 8.
    pub admin_log_entries: u32,
    /// Bus address of the ring of [`crate::admin::Command`], 64-byte aligned.
    pub admin_commands: u64,
    /// Bus address of the ring of [`crate::admin::Response`], 64-byte aligned.
    pub admin_responses: u64,
}

/// Offset of [`Control::request`] in the register file.
pub const CONTROL_REQUEST: usize = CONTROL;

/// Reset: when it is acknowledged, every object is gone and all DMA has ended.
pub const CONTROL_RESET: u32 = 1;
/// Start the admin queue.
pub const CONTROL_START: u32 = 2;

const _: () = assert!(size_of::<Status>() == 24 && size_of::<Control>() == 32);
