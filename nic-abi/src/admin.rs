//! The admin queue: a ring of 128-byte commands and a ring of 64-byte responses, both in the driver's memory.
//!
//! Command `n` is answered at entry `n` of the response ring, in order, with a phase bit as in completions. A command
//! that is wrong changes nothing; its response says which field was wrong ([`Response::field`]: the byte offset in the
//! command).
//!
//! Numbers (QPN, keys, …) are chosen by the driver, see [`crate::ident`].

use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::wqe::ListArgs;

/// Bytes of a command.
pub const COMMAND_SIZE: usize = 128;
/// Bytes of a response.
pub const RESPONSE_SIZE: usize = 64;
/// Where a command's arguments begin.
pub const ARGS_OFFSET: usize = 16;
/// Bytes of a command's arguments.
pub const ARGS_SIZE: usize = COMMAND_SIZE - ARGS_OFFSET;
/// Bytes of a response's result.
pub const RESULT_SIZE: usize = 40;

/// A command.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Command {
    /// An [`Opcode`].
    pub opcode: u16,
    /// Bit 0: when answered, post an [`crate::eqe::EventType::Admin`] event to event queue 0 as well.
    pub flags: u16,
    /// Comes back in the response.
    pub id: u32,
    /// The object: PD, key, CQ, QP, SRQ or EQ number.
    pub object: u32,
    /// Reserved.
    pub reserved: u32,
    /// By opcode.
    pub args: [u8; ARGS_SIZE],
}

/// [`Command::flags`]: post an event when answered.
pub const FLAG_EVENT: u16 = 1;

/// A response.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Response {
    /// The command's id.
    pub id: u32,
    /// A [`Status`].
    pub status: u16,
    /// On an error: byte offset in the command of the field to blame, or [`NO_FIELD`].
    pub field: u16,
    /// By opcode.
    pub result: [u8; RESULT_SIZE],
    /// Reserved.
    pub reserved: u64,
    /// The top bit is the phase; written last.
    pub phase: u64,
}

/// [`Response::field`] where no field is to blame.
pub const NO_FIELD: u16 = u16::MAX;
/// The phase bit in [`Response::phase`].
pub const PHASE: u64 = 1 << 63;

/// What a command asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Opcode {
    /// Does nothing.
    Nop = 0x00,
    /// Creates event queue `object`: [`CreateEq`].
    CreateEq = 0x01,
    /// Destroys an event queue that no CQ uses.
    DestroyEq = 0x02,
    /// Creates a protection domain.
    CreatePd = 0x08,
    /// Destroys a protection domain that nothing uses.
    DestroyPd = 0x09,
    /// Registers a region under key `object`: [`RegisterRegion`].
    RegisterRegion = 0x10,
    /// Allocates an unlinked region under key `object`: [`AllocateRegion`].
    AllocateRegion = 0x11,
    /// Destroys a region to which no window is bound.
    DestroyRegion = 0x12,
    /// Tells of a key: [`KeyInfo`].
    QueryKey = 0x13,
    /// Allocates a window under key `object`: [`AllocateWindow`].
    AllocateWindow = 0x14,
    /// Destroys a window, bound or not.
    DestroyWindow = 0x15,
    /// Gives a region without windows another domain, other rights and, as `object`, another variant of its key: [`ModifyRegion`].
    ModifyRegion = 0x16,
    /// Registers a region under key `object` over the memory of another, which must be linked: [`ShareRegion`]. Takes no translations of its own. Neither of the two can be
    /// invalidated from then on.
    ShareRegion = 0x17,
    /// Creates a CQ: [`CreateCq`].
    CreateCq = 0x20,
    /// Destroys a CQ that no QP uses.
    DestroyCq = 0x21,
    /// Moves a CQ to a ring of another size: [`ResizeCq`]. Entries that were not consumed move along.
    ResizeCq = 0x22,
    /// Tells of a CQ: [`CqInfo`].
    QueryCq = 0x23,
    /// Creates an SRQ: [`CreateSrq`].
    CreateSrq = 0x28,
    /// Destroys an SRQ that no QP uses.
    DestroySrq = 0x29,
    /// Sets an SRQ's limit: [`ModifySrq`].
    ModifySrq = 0x2a,
    /// Tells of an SRQ: [`SrqInfo`].
    QuerySrq = 0x2b,
    /// Goes on in a ring of another size: [`ResizeSrq`]. Needs [`crate::registers::Features::SRQ_RESIZE`].
    ResizeSrq = 0x2c,
    /// Creates a QP in RESET: [`CreateQp`].
    CreateQp = 0x30,
    /// Changes a QP's state and attributes: [`ModifyQp`].
    ModifyQp = 0x31,
    /// Destroys a QP. When answered, the device touches neither its queues nor its buffers any more,
    /// and no completion of it will be written.
    DestroyQp = 0x32,
    /// Tells of a QP: [`QpInfo`].
    QueryQp = 0x33,
    /// Fault injection: [`Inject`].
    Inject = 0x80,
    /// Benchmarks: [`Bench`].
    Bench = 0x81,
}

impl Opcode {
    /// Reads an opcode.
    pub const fn from_word(word: u16) -> Option<Opcode> {
        Some(match word {
            0x00 => Opcode::Nop,
            0x01 => Opcode::CreateEq,
            0x02 => Opcode::DestroyEq,
            0x08 => Opcode::CreatePd,
            0x09 => Opcode::DestroyPd,
            0x10 => Opcode::RegisterRegion,
            0x11 => Opcode::AllocateRegion,
            0x12 => Opcode::DestroyRegion,
            0x13 => Opcode::QueryKey,
            0x14 => Opcode::AllocateWindow,
            0x15 => Opcode::DestroyWindow,
            0x16 => Opcode::ModifyRegion,
            0x17 => Opcode::ShareRegion,
            0x20 => Opcode::CreateCq,
            0x21 => Opcode::DestroyCq,
            0x22 => Opcode::ResizeCq,
            0x23 => Opcode::QueryCq,
            0x28 => Opcode::CreateSrq,
            0x29 => Opcode::DestroySrq,
            0x2a => Opcode::ModifySrq,
            0x2b => Opcode::QuerySrq,
            0x2c => Opcode::ResizeSrq,
            0x30 => Opcode::CreateQp,
            0x31 => Opcode::ModifyQp,
            0x32 => Opcode::DestroyQp,
            0x33 => Opcode::QueryQp,
            0x80 => Opcode::Inject,
            0x81 => Opcode::Bench,
            _ => return None,
        })
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// It worked.
    Success = 0,
    /// No such opcode.
    BadOpcode = 1,
    /// A field has a value that is not allowed.
    BadField = 2,
    /// A field names an object that does not exist.
    NoSuchObject = 3,
    /// The object's number is taken.
    Exists = 4,
    /// Something still uses the object.
    Busy = 5,
    /// The device has no more of that resource.
    NoResources = 6,
    /// The object is not in a state that allows it.
    BadState = 7,
    /// A bus address cannot be reached.
    Dma = 8,
}

impl Status {
    /// Reads a status.
    pub const fn from_word(word: u16) -> Option<Status> {
        Some(match word {
            0 => Status::Success,
            1 => Status::BadOpcode,
            2 => Status::BadField,
            3 => Status::NoSuchObject,
            4 => Status::Exists,
            5 => Status::Busy,
            6 => Status::NoResources,
            7 => Status::BadState,
            8 => Status::Dma,
            _ => return None,
        })
    }
}

/// Arguments of [`Opcode::CreateEq`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateEq {
    /// Bus address of the zeroed ring, 64-byte aligned.
    pub ring: u64,
    /// Entries as a power of two.
    pub log_entries: u32,
    /// Interrupt vector.
    pub vector: u32,
}

/// Arguments of [`Opcode::RegisterRegion`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegisterRegion {
    /// Protection domain.
    pub pd: u32,
    /// [`crate::wqe::LinkFlags`].
    pub flags: u32,
    /// Base address, unless relative.
    pub base: u64,
    /// Bytes; 0 is allowed and grants nothing.
    pub length: u64,
    /// The memory.
    pub list: ListArgs,
}

/// Arguments of [`Opcode::AllocateRegion`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AllocateRegion {
    /// Protection domain.
    pub pd: u32,
    /// Elements that a list may have.
    pub max_elements: u32,
}

/// Arguments of [`Opcode::ModifyRegion`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ModifyRegion {
    /// Protection domain.
    pub pd: u32,
    /// [`crate::wqe::LinkFlags`]: rights only. What is not linked has none until it is, whatever they are.
    pub flags: u32,
}

/// Arguments of [`Opcode::ShareRegion`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ShareRegion {
    /// Protection domain.
    pub pd: u32,
    /// [`crate::wqe::LinkFlags`]: rights and [`crate::wqe::LinkFlags::RELATIVE`]; the list's form is the other region's.
    pub flags: u32,
    /// Base address, unless relative.
    pub base: u64,
    /// The other region's key, with its present variant.
    pub of: u32,
    /// Reserved.
    pub reserved: u32,
}

/// Arguments of [`Opcode::AllocateWindow`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AllocateWindow {
    /// Protection domain.
    pub pd: u32,
    /// 1 wide (type 1), 2 narrow (type 2: belongs to the QP that binds it).
    pub window_type: u32,
}

/// Result of [`Opcode::QueryKey`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct KeyInfo {
    /// 0 region, 1 window.
    pub kind: u32,
    /// 1 while linked or bound.
    pub linked: u32,
    /// The key with its present variant.
    pub key: u32,
    /// [`crate::wqe::LinkFlags`].
    pub flags: u32,
    /// Base address.
    pub base: u64,
    /// Bytes.
    pub length: u64,
    /// Protection domain.
    pub pd: u32,
    /// Bound windows (region), or the region's key (window).
    pub windows_or_region: u32,
}

/// Arguments of [`Opcode::CreateCq`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateCq {
    /// Bus address of the zeroed ring, 64-byte aligned.
    pub ring: u64,
    /// Entries as a power of two.
    pub log_entries: u32,
    /// Event queue.
    pub eq: u32,
    /// Comes back in events.
    pub generation: u32,
    /// Reserved.
    pub reserved: u32,
}

/// Arguments of [`Opcode::ResizeCq`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ResizeCq {
    /// Bus address of the new, zeroed ring, 64-byte aligned.
    pub ring: u64,
    /// Entries as a power of two; not fewer than there are unconsumed entries.
    pub log_entries: u32,
    /// Reserved.
    pub reserved: u32,
}

/// Result of [`Opcode::ResizeCq`] and [`Opcode::QueryCq`].
///
/// After a resize both indices go on counting; the entry at free-running index `i` is at `i` modulo the new size, with the
/// phase of the new size. The device gives all other entries of the new ring the phase that says that they were not written.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CqInfo {
    /// Free-running index of the next entry that the device will write.
    pub producer: u32,
    /// 1 if the CQ has failed.
    pub failed: u32,
}

/// Arguments of [`Opcode::CreateSrq`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateSrq {
    /// Bus address of the ring, 64-byte aligned.
    pub ring: u64,
    /// Entries as a power of two.
    pub log_entries: u32,
    /// Segments that an entry has room for.
    pub max_segments: u32,
    /// Protection domain.
    pub pd: u32,
    /// Comes back in events.
    pub generation: u32,
    /// Event when fewer entries than this are left; 0 never.
    pub limit: u32,
    /// Event queue for the limit event.
    pub eq: u32,
}

/// Arguments of [`Opcode::ModifySrq`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ModifySrq {
    /// The new limit; arms the event once.
    pub limit: u32,
    /// Reserved.
    pub reserved: u32,
}

/// Arguments of [`Opcode::ResizeSrq`].
///
/// The device reads the next entry from the new ring, at the free-running index where it is, modulo the new size. So all entries that
/// may not be taken yet are there already, and while the command is under way the driver writes what it posts into both rings.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ResizeSrq {
    /// Bus address of the new ring, 64-byte aligned.
    pub ring: u64,
    /// Entries as a power of two; not fewer than there are entries that are not taken.
    pub log_entries: u32,
    /// The new limit, which arms the event once; 0 leaves the limit as it is.
    pub limit: u32,
}

/// Result of [`Opcode::QuerySrq`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SrqInfo {
    /// Entries taken since creation.
    pub taken: u32,
    /// The limit while armed, else 0.
    pub limit: u32,
}

/// Transport of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum QpType {
    /// Reliable connected.
    Rc = 0,
    /// Unreliable datagram.
    Ud = 1,
    /// General services (QP 1): datagrams with the well-known queue key.
    Gsi = 2,
}

bitflags! {
    /// Fixed properties of a queue pair.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct QpFlags: u32 {
        /// May use the reserved key and fast register (IT-API "privileged endpoint").
        const PRIVILEGED = 1 << 0;
        /// Receives come from the SRQ.
        const SRQ = 1 << 1;
    }
}

/// Arguments of [`Opcode::CreateQp`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateQp {
    /// A [`QpType`].
    pub qp_type: u32,
    /// [`QpFlags`].
    pub flags: u32,
    /// Protection domain.
    pub pd: u32,
    /// Comes back in completions and events.
    pub generation: u32,
    /// CQ of the send queue.
    pub send_cq: u32,
    /// CQ of the receive queue.
    pub receive_cq: u32,
    /// The SRQ, where [`QpFlags::SRQ`] is set.
    pub srq: u32,
    /// Segments that a send-queue entry may have.
    pub max_send_segments: u32,
    /// Bus address of the send queue's ring, 64-byte aligned.
    pub send_ring: u64,
    /// Bus address of the receive queue's ring, 64-byte aligned; 0 with an SRQ.
    pub receive_ring: u64,
    /// Blocks of the send queue as a power of two.
    pub log_send_blocks: u32,
    /// Entries of the receive queue as a power of two.
    pub log_receive_entries: u32,
    /// Segments that a receive entry has room for.
    pub max_receive_segments: u32,
    /// Event queue for the QP's events.
    pub eq: u32,
    /// Payload of one message at most, bytes.
    pub max_message: u64,
}

/// State of a queue pair (IBTA 10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum QpState {
    /// Nothing may be posted.
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drained.
    Sqd = 4,
    /// Everything is flushed.
    Error = 6,
}

impl QpState {
    /// Reads a state.
    pub const fn from_word(word: u32) -> Option<QpState> {
        Some(match word {
            0 => QpState::Reset,
            1 => QpState::Init,
            2 => QpState::Rtr,
            3 => QpState::Rts,
            4 => QpState::Sqd,
            6 => QpState::Error,
            _ => return None,
        })
    }
}

bitflags! {
    /// Which fields of [`ModifyQp`] count.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct QpMask: u32 {
        /// `state`.
        const STATE = 1 << 0;
        /// `access`.
        const ACCESS = 1 << 1;
        /// `qkey`.
        const QKEY = 1 << 2;
        /// `remote_gid`, `source_gid`, `hop_limit`, `traffic_class`, `flow_label`.
        const PATH = 1 << 3;
        /// `remote_qpn`.
        const REMOTE_QPN = 1 << 4;
        /// `mtu`.
        const MTU = 1 << 5;
        /// `send_psn`.
        const SEND_PSN = 1 << 6;
        /// `receive_psn`.
        const RECEIVE_PSN = 1 << 7;
        /// `timeout`.
        const TIMEOUT = 1 << 8;
        /// `retry_count`.
        const RETRY_COUNT = 1 << 9;
        /// `rnr_retry`.
        const RNR_RETRY = 1 << 10;
        /// `min_rnr_timer`.
        const MIN_RNR_TIMER = 1 << 11;
        /// `max_rd_atomic` (initiator depth).
        const MAX_RD_ATOMIC = 1 << 12;
        /// `max_dest_rd_atomic` (responder resources).
        const MAX_DEST_RD_ATOMIC = 1 << 13;
        /// `soft_watermark` and `hard_watermark`.
        const WATERMARKS = 1 << 14;
        /// `max_message`; in any state.
        const MAX_MESSAGE = 1 << 15;
    }
}

/// Arguments of [`Opcode::ModifyQp`]. All or nothing.
///
/// Required fields: to INIT none (`access`, or `qkey` on datagrams, may be set); INIT to RTR on RC: PATH, REMOTE_QPN, MTU,
/// RECEIVE_PSN, MAX_DEST_RD_ATOMIC, MIN_RNR_TIMER; RTR to RTS on RC: SEND_PSN, TIMEOUT, RETRY_COUNT, RNR_RETRY, MAX_RD_ATOMIC; RTR to RTS on datagrams:
/// none. Any state to RESET or ERROR: none.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ModifyQp {
    /// [`QpMask`].
    pub mask: u32,
    /// A [`QpState`].
    pub state: u32,
    /// Remote rights that connected peers have at all: [`crate::wqe::LinkFlags`] REMOTE_*.
    pub access: u32,
    /// Queue key of a datagram QP.
    pub qkey: u32,
    /// The peer's GID.
    pub remote_gid: [u8; 16],
    /// The peer's QP number.
    pub remote_qpn: u32,
    /// Path MTU in bytes.
    pub mtu: u32,
    /// First PSN to send.
    pub send_psn: u32,
    /// First PSN expected.
    pub receive_psn: u32,
    /// Flow label.
    pub flow_label: u32,
    /// Source GID's index.
    pub source_gid: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Local ACK timeout: 4.096 us * 2^timeout; 0 is for ever.
    pub timeout: u8,
    /// Retries after a timeout or sequence error, 0 to 7.
    pub retry_count: u8,
    /// Retries after RNR NAK, 0 to 7; 7 is for ever.
    pub rnr_retry: u8,
    /// RNR NAK timer field that this side sends (IBTA table 46), 0 to 31.
    pub min_rnr_timer: u8,
    /// Outstanding RDMA Reads and atomics as initiator.
    pub max_rd_atomic: u8,
    /// Outstanding RDMA Reads and atomics as responder.
    pub max_dest_rd_atomic: u8,
    /// Reserved.
    pub reserved: [u8; 3],
    /// With an SRQ: receives in use by this QP above which an event is raised once; 0 none.
    pub soft_watermark: u32,
    /// With an SRQ: receives in use by this QP above which the connection is broken; 0 none.
    pub hard_watermark: u32,
    /// Payload of one message at most, bytes; replaces what the queue pair was created with.
    pub max_message: u64,
}

/// Result of [`Opcode::QueryQp`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QpInfo {
    /// A [`QpState`].
    pub state: u32,
    /// Send-queue blocks taken since creation.
    pub send_head: u32,
    /// Receive entries taken since creation.
    pub receive_head: u32,
    /// The status that moved it to ERROR, a [`crate::cqe::Status`].
    pub error: u32,
    /// Next PSN to send.
    pub send_psn: u32,
    /// Next PSN expected.
    pub receive_psn: u32,
}

/// Arguments of [`Opcode::Inject`] (feature [`crate::registers::Features::FAULT_INJECTION`]).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Inject {
    /// An [`Injection`].
    pub what: u32,
    /// How often; 0 ends it.
    pub count: u32,
    /// By injection.
    pub value: u64,
}

/// What to do wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Injection {
    /// After answering: no heartbeat, no doorbell, no answer, until reset. A reset is not heard either if `value` is 1.
    Mute = 1,
    /// After answering: go to [`crate::registers::State::Failed`] with an event-less death.
    Fail = 2,
    /// Lose the next `count` requests of queue pair `object` on the way to the responder (the requester times out).
    DropRequests = 3,
    /// Lose the next `count` answers to queue pair `object`.
    DropResponses = 4,
    /// Let the next `count` answers to queue pair `object` carry an unexpected opcode.
    BadResponse = 5,
    /// Delay the next `count` requests of queue pair `object` by `value` nanoseconds.
    Delay = 6,
    /// Lose the next `count` datagrams of the GSI queue pair (connection management).
    DropManagement = 7,
    /// Take the port down (`value` 0) or up (1).
    Port = 8,
    /// Let the next `count` requests of queue pair `object` reach the responder with an operation code that there is not.
    BadRequest = 9,
    /// Let the next `count` work requests of queue pair `object` end with the [`crate::cqe::Status`] `value`, an error.
    Failure = 10,
}

impl Injection {
    /// Reads an injection.
    pub const fn from_word(word: u32) -> Option<Injection> {
        Some(match word {
            1 => Injection::Mute,
            2 => Injection::Fail,
            3 => Injection::DropRequests,
            4 => Injection::DropResponses,
            5 => Injection::BadResponse,
            6 => Injection::Delay,
            7 => Injection::DropManagement,
            8 => Injection::Port,
            9 => Injection::BadRequest,
            10 => Injection::Failure,
            _ => return None,
        })
    }
}

/// Arguments of [`Opcode::Bench`] (feature [`crate::registers::Features::BENCH`]): baselines for the benchmarks.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Bench {
    /// A [`BenchKind`].
    pub kind: u32,
    /// Rounds.
    pub rounds: u32,
    /// Bus address: the word to answer at, or the source of the copy.
    pub source: u64,
    /// Bus address: the word to watch, or the target of the copy.
    pub target: u64,
    /// Bytes of a copy.
    pub length: u64,
}

/// Which baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum BenchKind {
    /// Answer, then echo: each time the u32 at `target` changes, store it at `source`; `rounds` times, at most a second between two.
    Echo = 1,
    /// Copy `length` bytes from `source` to `target`, `rounds` times; the result's first u64 is the time in nanoseconds.
    Copy = 2,
    /// Answer, then for each kick raise vector 0 and nothing else; `rounds` times, at most a second between two.
    EchoInterrupt = 3,
    /// Litmus: answer, then add 1 to the u32 at `target` `rounds` times with an atomic operation, then store 1 at the u32 at `source`.
    AtomicAdd = 4,
}

impl BenchKind {
    /// Reads a kind.
    pub const fn from_word(word: u32) -> Option<BenchKind> {
        Some(match word {
            1 => BenchKind::Echo,
            2 => BenchKind::Copy,
            3 => BenchKind::EchoInterrupt,
            4 => BenchKind::AtomicAdd,
            _ => return None,
        })
    }
}

const _: () = assert!(size_of::<Command>() == COMMAND_SIZE && size_of::<Response>() == RESPONSE_SIZE);
const _: () = assert!(size_of::<ModifyQp>() <= ARGS_SIZE && size_of::<CreateQp>() <= ARGS_SIZE);
const _: () = assert!(size_of::<RegisterRegion>() <= ARGS_SIZE && size_of::<KeyInfo>() <= RESULT_SIZE);
const _: () = assert!(size_of::<QpInfo>() <= RESULT_SIZE);
