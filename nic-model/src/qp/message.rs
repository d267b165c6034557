//! Requests, from a requester to a responder, and their answers.

use nic_abi::wqe::{Opcode, SendFlags};
use roce::Psn;
use roce::transport::{Extra, Message, Operation, Piece, Reason, Remote};

use super::Work;
use crate::ids::NicId;
use crate::keys::Span;

/// Bytes of an atomic operation.
pub(super) const ATOMIC_BYTES: u64 = 8;
/// Bytes of one message that are moved in one part.
pub(super) const PIECE: u64 = 1 << 20;

/// A request, or the next part of one. It does not contain the data: the responder copies them from
/// one memory to the other.
pub(super) struct Request<'a> {
    pub from: NicId,
    pub source_qpn: u32,
    pub target_qpn: u32,
    pub psn: Psn,
    pub packets: u32,
    pub opcode: Opcode,
    /// The responder reads an operation code that does not exist (injection).
    pub garbled: bool,
    pub flags: SendFlags,
    pub remote_key: u32,
    pub remote_addr: u64,
    pub immediate: u32,
    pub total: u64,
    /// Bytes that earlier parts of the request have moved.
    pub done: u64,
    /// Compare or add, and swap.
    pub operands: (u64, u64),
    /// The requester's memory, already checked.
    pub local: &'a [Span],
    /// Only of a virtual interface: its slot and the descriptor's index. If the message has left
    /// already, its NIC finds with them the copy of the memory.
    pub copied: Option<(u32, u32)>,
}

impl Request<'_> {
    /// Whether it is a Send or RDMA Write.
    #[inline]
    pub fn is_payload(&self) -> bool {
        let (operation, _) = operation(self.opcode, self.operands, self.immediate);
        operation.carries_payload()
    }

    /// The piece that covers the whole message.
    #[inline(always)]
    pub fn piece(&self) -> Piece {
        let (operation, extra) = operation(self.opcode, self.operands, self.immediate);
        let payload = operation.carries_payload();
        // A message has 2 GiB at most.
        let length = self.total as u32;
        Piece {
            psn: self.psn,
            packets: if payload { self.packets } else { 1 },
            operation,
            first: true,
            last: true,
            length: if payload { length } else { 0 },
            remote: Some(Remote { addr: self.remote_addr, key: self.remote_key, length }),
            extra,
            solicited: self.flags.contains(SendFlags::SOLICITED),
            // The responder's answer reaches the requester by the call's return, so no
            // acknowledgement is requested.
            ack_request: false,
        }
    }
}

impl Work {
    /// The message that it sends, with this name for it.
    #[inline(always)]
    pub fn message(&self, id: u32) -> Message {
        let operands = match self.opcode {
            Opcode::CompareSwap | Opcode::FetchAdd => (self.atomic().compare_add, self.atomic().swap),
            _ => (0, 0),
        };
        let (operation, extra) = operation(self.opcode, operands, self.header.immediate);
        Message {
            id,
            operation,
            // The longest message has been compared with it.
            length: self.total as u32,
            addr: self.header.remote_addr,
            key: self.header.remote_key,
            extra,
            solicited: self.flags.contains(SendFlags::SOLICITED),
            fence: self.flags.intersects(SendFlags::FENCE_READS | SendFlags::FENCE_INVALIDATES),
        }
    }
}

/// The operation that a work request asks of the peer, and what its last packet carries besides the
/// payload.
#[inline(always)]
pub(super) fn operation(opcode: Opcode, operands: (u64, u64), immediate: u32) -> (Operation, Extra) {
    match opcode {
        Opcode::Write => (Operation::Write, Extra::None),
        Opcode::WriteImmediate => (Operation::Write, Extra::Immediate(immediate)),
        Opcode::Read | Opcode::ReadInvalidate => (Operation::Read, Extra::None),
        Opcode::CompareSwap => {
            (Operation::CompareSwap { compare: operands.0, swap: operands.1 }, Extra::None)
        }
        Opcode::FetchAdd => (Operation::FetchAdd { add: operands.0 }, Extra::None),
        Opcode::SendImmediate => (Operation::Send, Extra::Immediate(immediate)),
        Opcode::SendInvalidate => (Operation::Send, Extra::Invalidate(immediate)),
        // The others need no peer.
        _ => (Operation::Send, Extra::None),
    }
}

/// What comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// Nothing.
    None,
    /// This many bytes were moved; the requester continues.
    Part(u64),
    /// Done.
    Ack,
    /// An atomic operation was done; the original value.
    Original(u64),
    /// No receive is posted; the code of the timer.
    NotReady(u8),
    /// The responder refused the request for this reason, and is in the error state.
    Refused(Reason),
    /// The requester's own memory cannot be accessed.
    SourceFault,
}
