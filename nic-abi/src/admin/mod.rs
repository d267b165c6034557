//! The admin queue: a ring of 128-byte commands and a ring of 64-byte responses, both in the
//! driver's memory.
//!
//! Command `n` is answered at entry `n` of the response ring, in order, with a phase bit as in
//! completions. A command that is refused changes nothing; its response names the field to blame
//! ([`Response::field`]: the byte offset in the command).
//!
//! The driver chooses all numbers (QPN, keys, …), see [`crate::ident`].

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

mod memory;
mod qp;
mod queues;
mod streams;
mod testing;

pub use memory::{AllocateRegion, AllocateWindow, KeyInfo, ModifyRegion, RegisterRegion, ShareRegion};
pub use qp::{CreateQp, DestroyQp, Group, ModifyQp, QpFlags, QpInfo, QpMask, QpState, QpType, StreamFlags};
pub use queues::{CqFlags, CqInfo, CreateCq, CreateEq, CreateSrq, ModifySrq, ResizeCq, ResizeSrq, SrqInfo};
pub use streams::{
    AcceptStream, ConnectStream, DestroyStream, EVERY_ADDRESS, ListenStream, MAX_STREAM_BYTES, StreamEnd,
    StreamEnds, StreamHappened, StreamInfo, StreamTransferred, TransferFlags, TransferStream,
};
pub use testing::{Bench, BenchKind, Inject, Injection};

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
    /// Bit 0: when answered, post an [`crate::eqe::EventType::Admin`] event to event queue 0 as
    /// well.
    pub flags: u16,
    /// Returned in the response.
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
    /// Queries a key: [`KeyInfo`].
    QueryKey = 0x13,
    /// Allocates a window under key `object`: [`AllocateWindow`].
    AllocateWindow = 0x14,
    /// Destroys a window, bound or not.
    DestroyWindow = 0x15,
    /// Gives a region without windows another domain, other rights or both, and another remote key:
    /// [`ModifyRegion`].
    ModifyRegion = 0x16,
    /// Registers a region under key `object` on the memory of another, which must be linked to the
    /// same memory: [`ShareRegion`]. The new region needs no translations. Neither of the two can
    /// be invalidated from then on.
    ShareRegion = 0x17,
    /// Creates a CQ: [`CreateCq`].
    CreateCq = 0x20,
    /// Destroys a CQ that no QP uses.
    DestroyCq = 0x21,
    /// Moves a CQ and its unconsumed entries to a ring of another size: [`ResizeCq`].
    ResizeCq = 0x22,
    /// Queries a CQ: [`CqInfo`].
    QueryCq = 0x23,
    /// Creates an SRQ: [`CreateSrq`].
    CreateSrq = 0x28,
    /// Destroys an SRQ that no QP uses.
    DestroySrq = 0x29,
    /// Sets an SRQ's limit: [`ModifySrq`].
    ModifySrq = 0x2a,
    /// Queries an SRQ: [`SrqInfo`].
    QuerySrq = 0x2b,
    /// Moves an SRQ to a ring of another size: [`ResizeSrq`]. Needs
    /// [`crate::registers::Features::SRQ_RESIZE`].
    ResizeSrq = 0x2c,
    /// Creates a QP in RESET: [`CreateQp`].
    CreateQp = 0x30,
    /// Changes a QP's state and attributes: [`ModifyQp`].
    ModifyQp = 0x31,
    /// Destroys a QP: [`DestroyQp`]. After the answer the device accesses neither its queues nor
    /// its buffers, and writes no completion of it.
    DestroyQp = 0x32,
    /// Queries a QP: [`QpInfo`].
    QueryQp = 0x33,
    /// Attaches a UD QP to a multicast group, whose datagrams it takes from then on: [`Group`].
    /// Needs [`crate::registers::Features::MULTICAST`], as the next one does.
    JoinGroup = 0x34,
    /// Detaches a QP from a group: [`Group`].
    LeaveGroup = 0x35,
    /// Listens for streams: [`ListenStream`]. This and the following need
    /// [`crate::registers::Features::STREAMS`].
    ListenStream = 0x40,
    /// Connects a stream: [`ConnectStream`], [`StreamEnds`]. An event says what became of it.
    ConnectStream = 0x41,
    /// Takes the stream that has waited longest at a listener: [`AcceptStream`], [`StreamEnds`].
    AcceptStream = 0x42,
    /// Sends bytes, as many as there is room for: [`TransferStream`], [`StreamTransferred`].
    SendStream = 0x43,
    /// Receives bytes that have arrived: [`TransferStream`], [`StreamTransferred`].
    ReceiveStream = 0x44,
    /// Closes the own direction: the peer learns it behind what was sent.
    CloseStream = 0x45,
    /// Queries a stream or a listener, and has the next event raised: [`StreamInfo`].
    QueryStream = 0x46,
    /// Gives a stream up, or ends a listener: [`DestroyStream`].
    DestroyStream = 0x47,
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
            0x34 => Opcode::JoinGroup,
            0x35 => Opcode::LeaveGroup,
            0x40 => Opcode::ListenStream,
            0x41 => Opcode::ConnectStream,
            0x42 => Opcode::AcceptStream,
            0x43 => Opcode::SendStream,
            0x44 => Opcode::ReceiveStream,
            0x45 => Opcode::CloseStream,
            0x46 => Opcode::QueryStream,
            0x47 => Opcode::DestroyStream,
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
    /// No error.
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
    /// The object's state does not allow the command.
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

const _: () = assert!(size_of::<Command>() == COMMAND_SIZE && size_of::<Response>() == RESPONSE_SIZE);
