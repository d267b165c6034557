//! Completion-queue entries: 32 bytes in a ring whose phase bit flips with each pass.
//!
//! The device writes the last 64-bit word last (release); the consumer reads it first (acquire).
//! The first pass over the zeroed ring has phase 1.

use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of an entry.
pub const SIZE: usize = 32;
/// 64-bit words of an entry.
pub const WORDS: usize = SIZE / 8;

/// One completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Cqe {
    /// The queue pair's number.
    pub qpn: u32,
    /// The queue pair's full generation, as given at its creation.
    pub generation: u32,
    /// The work request's tag.
    pub tag: u32,
    /// Bytes transferred, if the work request succeeded: those that a receive got (of a datagram
    /// with the 40 bytes in front), those of the segments of a send, a write or a read, 8 for
    /// atomics, 0 for what moves none.
    pub length: u32,
    /// Immediate data, or the local key of what was invalidated, according to [`CqeFlags`].
    pub immediate: u32,
    /// Datagrams: the sender's QP number. With [`CqeFlags::WRITE`]: the Write's length. With
    /// [`CqeFlags::INVALIDATED`]: the remote key that the sender named. On an error: offset of the
    /// offending field in the entry, or [`NO_FIELD`].
    pub detail: u32,
    /// A [`Status`].
    pub status: u8,
    /// [`CqeFlags`], without the phase.
    pub flags: u8,
    /// Send queue: the [`crate::wqe::Opcode`]; receive: 0.
    pub opcode: u8,
    /// Reserved.
    pub reserved: u8,
    /// Reserved; its top bit is the phase ([`PHASE`] in the last word).
    pub phase: u32,
}

/// [`Cqe::detail`] where no field is to blame.
pub const NO_FIELD: u32 = u32::MAX;
/// The phase bit in the entry's last 64-bit word.
pub const PHASE: u64 = 1 << 63;

/// The phase bit, in place, that marks the entry at free-running index `index` of a ring of
/// `1 << log` entries.
#[inline]
pub const fn phase(index: u32, log: u32) -> u64 {
    if index >> log & 1 == 0 { PHASE } else { 0 }
}

bitflags! {
    /// What `immediate` and the data contain, and which queue the entry is of.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CqeFlags: u8 {
        /// The entry is of the receive queue (or SRQ).
        const RECEIVE = 1 << 0;
        /// `immediate` is immediate data.
        const IMMEDIATE = 1 << 1;
        /// `immediate` is the local key of what the sender invalidated.
        const INVALIDATED = 1 << 2;
        /// A GRH is in the first 40 bytes.
        const GRH = 1 << 3;
        /// Solicited.
        const SOLICITED = 1 << 4;
        /// An RDMA Write with immediate data took the receive. Its data is not in the receive's
        /// segments, so `length` is 0; `detail` is the Write's length.
        const WRITE = 1 << 5;
    }
}

/// How a work request ended (IBTA 11.6.2, completion return status).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// No error.
    Success = 0,
    /// A local length is wrong: the message is too long for the QP, or the receive too short.
    LocalLength = 1,
    /// The entry is malformed; `detail` names the field.
    LocalQpOperation = 2,
    /// A local key, address, right or domain is wrong.
    LocalProtection = 3,
    /// The queue pair went to the error state before the entry was executed.
    Flushed = 4,
    /// A window bind failed.
    WindowBind = 5,
    /// The peer's answer was of an unexpected kind.
    BadResponse = 6,
    /// Responder's side: the peer had no right to the access that it asked for (local access
    /// error).
    LocalAccess = 7,
    /// The peer refused: invalid request.
    RemoteInvalidRequest = 8,
    /// The peer refused: remote access error.
    RemoteAccess = 9,
    /// The peer refused: remote operational error.
    RemoteOperation = 10,
    /// The peer did not answer.
    RetryExceeded = 11,
    /// The peer had no receive buffer, too often.
    RnrRetryExceeded = 12,
    /// A fast register or invalidate failed.
    MemoryManagement = 13,
}

impl Status {
    /// Reads a status.
    pub const fn from_byte(byte: u8) -> Option<Status> {
        Some(match byte {
            0 => Status::Success,
            1 => Status::LocalLength,
            2 => Status::LocalQpOperation,
            3 => Status::LocalProtection,
            4 => Status::Flushed,
            5 => Status::WindowBind,
            6 => Status::BadResponse,
            7 => Status::LocalAccess,
            8 => Status::RemoteInvalidRequest,
            9 => Status::RemoteAccess,
            10 => Status::RemoteOperation,
            11 => Status::RetryExceeded,
            12 => Status::RnrRetryExceeded,
            13 => Status::MemoryManagement,
            _ => return None,
        })
    }
}

const _: () = assert!(size_of::<Cqe>() == SIZE);
