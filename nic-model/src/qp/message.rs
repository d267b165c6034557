//! What goes from a requester to a responder, and what comes back.

use core::time::Duration;

use nic_abi::wqe::{Opcode, SendFlags};

use crate::ids::NicId;
use crate::keys::Span;

/// Bytes of an atomic operation.
pub(super) const ATOMIC_BYTES: u64 = 8;

/// A request, or the next part of one. It does not contain the data: the responder copies them from
/// one memory to the other.
pub(super) struct Request<'a> {
    pub from: NicId,
    pub source_qpn: u32,
    pub target_qpn: u32,
    pub psn: u32,
    pub packets: u32,
    pub opcode: Opcode,
    /// The responder reads an operation code that does not exist (injection).
    pub garbled: bool,
    pub flags: SendFlags,
    pub remote_key: u32,
    pub remote_addr: u64,
    pub immediate: u32,
    pub total: u64,
    /// Bytes that earlier parts have moved.
    pub done: u64,
    /// Compare or add, and swap.
    pub operands: (u64, u64),
    /// The requester's memory, checked.
    pub local: &'a [Span],
}

/// Why a responder refused a request (IBTA 9.7.5.2.8, NAK codes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nak {
    InvalidRequest,
    Access,
    Operational,
}

/// What comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Nothing.
    None,
    /// So many bytes were moved; go on.
    Part(u64),
    /// Done.
    Ack,
    /// An atomic operation was done; the original value.
    Original(u64),
    /// No receive is posted.
    NotReady(Duration),
    /// Refused; the responder is in the error state.
    Refused(Nak),
    /// The requester's own memory could not be reached.
    SourceFault,
}

/// RNR NAK timer field to time, in units of 10 us (IBTA table 46).
const RNR_TIMER: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// The time that an RNR NAK's timer field asks for.
pub(crate) fn rnr_delay(field: u8) -> Duration {
    Duration::from_micros(10 * u64::from(RNR_TIMER[usize::from(field & 31)]))
}
