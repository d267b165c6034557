//! What a requester sends to a responder.

use crate::wire::opcode::Opcode;
use crate::wire::{atomic, bth, extra, packet, reth};
use crate::{PathMtu, Psn, Qpn};

use super::Service;

/// The longest message in bytes (IBTA vol. 1 section 9.3.3.1.3).
pub const MAX_MESSAGE: u32 = 1 << 31;

/// What a message asks of the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Put the payload into a receive.
    Send,
    /// Put the payload at an address.
    Write,
    /// Return the bytes at an address.
    Read,
    /// Replace the 64-bit word at an address by `swap` if it is `compare`; return its former value.
    CompareSwap {
        /// The value to compare with.
        compare: u64,
        /// The value to swap in.
        swap: u64,
    },
    /// Add to the 64-bit word at an address; return its former value.
    FetchAdd {
        /// What to add.
        add: u64,
    },
}

impl Operation {
    /// Whether the payload goes from the requester to the responder.
    pub const fn carries_payload(self) -> bool {
        matches!(self, Operation::Send | Operation::Write)
    }

    /// How many PSNs a message of so many bytes takes.
    #[inline]
    pub const fn psns(self, mtu: PathMtu, length: u32) -> u32 {
        if self.is_atomic() { 1 } else { mtu.packets(length) }
    }

    /// Whether it is an atomic operation.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Operation::CompareSwap { .. } | Operation::FetchAdd { .. })
    }
}

/// What the last packet of a message carries beside the payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extra {
    /// Nothing.
    #[default]
    None,
    /// Immediate data, for a Send or an RDMA Write.
    Immediate(u32),
    /// The key to invalidate, for a Send of a reliable connection.
    Invalidate(u32),
}

/// A piece of the responder's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// The address of the first byte.
    pub addr: u64,
    /// The key that grants access.
    pub key: u32,
    /// The number of bytes; 8 for an atomic operation.
    pub length: u32,
}

/// One request packet, or several successive ones of a message without their bytes.
///
/// A packet from a link is a piece of one packet. Between two NICs of one process a piece may cover
/// as many packets as the requester is allowed to send; the rules that apply to it are those that
/// apply to its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first packet's number.
    pub psn: Psn,
    /// How many request packets it covers. An RDMA Read is one, though it takes as many PSNs as its
    /// answer has packets.
    pub packets: u32,
    /// What the message asks for.
    pub operation: Operation,
    /// It has the first packet of the message.
    pub first: bool,
    /// It has the last packet of the message.
    pub last: bool,
    /// Bytes of payload.
    pub length: u32,
    /// The memory that the message is about: in the first piece of all messages but Sends.
    pub remote: Option<Remote>,
    /// What the last packet carries beside.
    pub extra: Extra,
    /// The receiver shall raise an event when the message completes.
    pub solicited: bool,
    /// The responder shall acknowledge at once.
    pub ack_request: bool,
}

impl Piece {
    /// Whether the payload's length is one that the packets can have (IBTA vol. 1 sections 9.7.4.1
    /// and 9.8.2.2): all packets but the last are full, and the last of several is not empty.
    pub(super) fn length_fits(&self, mtu: PathMtu) -> bool {
        let (length, mtu) = (u64::from(self.length), u64::from(mtu.bytes()));
        let full = u64::from(self.packets) * mtu;
        match self.operation {
            Operation::Send | Operation::Write if self.packets == 0 => false,
            Operation::Send | Operation::Write if !self.last => length == full,
            Operation::Send | Operation::Write if self.first && self.packets == 1 => length <= full,
            Operation::Send | Operation::Write => length <= full && length + mtu > full,
            _ => self.packets == 1 && length == 0,
        }
    }

    /// How many PSNs it takes.
    pub(super) fn psns(&self, mtu: PathMtu) -> u32 {
        match (self.operation, self.remote) {
            (Operation::Read, Some(remote)) => mtu.packets(remote.length),
            _ => self.packets,
        }
    }

    /// The piece of a request packet, and the service that its opcode belongs to. `None` if the
    /// packet is an answer, a datagram or a congestion notification.
    pub fn from_packet(packet: &packet::Repr<'_>) -> Option<(Service, Piece)> {
        let service = match packet.bth.opcode {
            opcode if opcode.is_rc() => Service::Rc,
            opcode if opcode.is_uc() => Service::Uc,
            _ => return None,
        };
        let (operation, first, last) = match packet.bth.opcode {
            Opcode::RcSendFirst | Opcode::UcSendFirst => (Operation::Send, true, false),
            Opcode::RcSendMiddle | Opcode::UcSendMiddle => (Operation::Send, false, false),
            Opcode::RcSendLast
            | Opcode::RcSendLastImmediate
            | Opcode::RcSendLastInvalidate
            | Opcode::UcSendLast
            | Opcode::UcSendLastImmediate => (Operation::Send, false, true),
            Opcode::RcSendOnly
            | Opcode::RcSendOnlyImmediate
            | Opcode::RcSendOnlyInvalidate
            | Opcode::UcSendOnly
            | Opcode::UcSendOnlyImmediate => (Operation::Send, true, true),
            Opcode::RcWriteFirst | Opcode::UcWriteFirst => (Operation::Write, true, false),
            Opcode::RcWriteMiddle | Opcode::UcWriteMiddle => (Operation::Write, false, false),
            Opcode::RcWriteLast
            | Opcode::RcWriteLastImmediate
            | Opcode::UcWriteLast
            | Opcode::UcWriteLastImmediate => (Operation::Write, false, true),
            Opcode::RcWriteOnly
            | Opcode::RcWriteOnlyImmediate
            | Opcode::UcWriteOnly
            | Opcode::UcWriteOnlyImmediate => (Operation::Write, true, true),
            Opcode::RcReadRequest => (Operation::Read, true, true),
            Opcode::RcCompareSwap => {
                let atomic = packet.atomic?;
                (Operation::CompareSwap { compare: atomic.compare, swap: atomic.swap_add }, true, true)
            }
            Opcode::RcFetchAdd => (Operation::FetchAdd { add: packet.atomic?.swap_add }, true, true),
            _ => return None,
        };
        let remote = match (packet.reth, packet.atomic) {
            (Some(reth), _) => Some(Remote { addr: reth.virt_addr, key: reth.rkey, length: reth.dma_len }),
            (_, Some(atomic)) => Some(Remote { addr: atomic.virt_addr, key: atomic.rkey, length: 8 }),
            _ => None,
        };
        let extra = match (packet.immediate, packet.invalidate) {
            (Some(immediate), _) => Extra::Immediate(immediate.0),
            (_, Some(invalidate)) => Extra::Invalidate(invalidate.0),
            _ => Extra::None,
        };
        let piece = Piece {
            psn: packet.bth.psn,
            packets: 1,
            operation,
            first,
            last,
            // A packet's length has 16 bits.
            length: u32::try_from(packet.payload.len()).ok()?,
            remote,
            extra,
            solicited: packet.bth.solicited,
            ack_request: packet.bth.ack_request,
        };
        Some((service, piece))
    }

    /// The request packet, of the partition [`crate::PKey::DEFAULT`], that carries this piece.
    /// `None` if the piece is not one packet of the service, or its payload is not `payload`.
    pub fn to_packet<'a>(
        &self,
        service: Service,
        dest_qp: Qpn,
        payload: &'a [u8],
    ) -> Option<packet::Repr<'a>> {
        if self.packets != 1 || u32::try_from(payload.len()) != Ok(self.length) {
            return None;
        }
        let opcode = self.opcode(service)?;
        let mut bth = bth::Repr::new(opcode, dest_qp, self.psn);
        bth.solicited = self.solicited;
        bth.ack_request = self.ack_request;
        let mut packet = packet::Repr { payload, ..packet::Repr::new(bth) };
        match (self.operation, self.remote) {
            (Operation::Send, _) => {}
            (Operation::Write, _) if !self.first => {}
            (Operation::Write | Operation::Read, remote) => {
                let Remote { addr, key, length } = remote?;
                packet.reth = Some(reth::Repr { virt_addr: addr, rkey: key, dma_len: length });
            }
            (Operation::CompareSwap { compare, swap }, remote) => {
                let Remote { addr, key, .. } = remote?;
                packet.atomic = Some(atomic::Repr { virt_addr: addr, rkey: key, swap_add: swap, compare });
            }
            (Operation::FetchAdd { add }, remote) => {
                let Remote { addr, key, .. } = remote?;
                packet.atomic = Some(atomic::Repr { virt_addr: addr, rkey: key, swap_add: add, compare: 0 });
            }
        }
        match self.extra {
            _ if !self.last => {}
            Extra::None => {}
            Extra::Immediate(value) => packet.immediate = Some(extra::Immediate(value)),
            Extra::Invalidate(key) => packet.invalidate = Some(extra::Invalidate(key)),
        }
        Some(packet)
    }

    /// The opcode of the packet; `None` if the service has no such packet.
    fn opcode(&self, service: Service) -> Option<Opcode> {
        let extra = if self.last { self.extra } else { Extra::None };
        let reliable = match (self.operation, self.first, self.last, extra) {
            (Operation::Send, true, false, _) => Opcode::RcSendFirst,
            (Operation::Send, false, false, _) => Opcode::RcSendMiddle,
            (Operation::Send, false, true, Extra::None) => Opcode::RcSendLast,
            (Operation::Send, false, true, Extra::Immediate(_)) => Opcode::RcSendLastImmediate,
            (Operation::Send, false, true, Extra::Invalidate(_)) => Opcode::RcSendLastInvalidate,
            (Operation::Send, true, true, Extra::None) => Opcode::RcSendOnly,
            (Operation::Send, true, true, Extra::Immediate(_)) => Opcode::RcSendOnlyImmediate,
            (Operation::Send, true, true, Extra::Invalidate(_)) => Opcode::RcSendOnlyInvalidate,
            (Operation::Write, true, false, _) => Opcode::RcWriteFirst,
            (Operation::Write, false, false, _) => Opcode::RcWriteMiddle,
            (Operation::Write, false, true, Extra::None) => Opcode::RcWriteLast,
            (Operation::Write, false, true, Extra::Immediate(_)) => Opcode::RcWriteLastImmediate,
            (Operation::Write, true, true, Extra::None) => Opcode::RcWriteOnly,
            (Operation::Write, true, true, Extra::Immediate(_)) => Opcode::RcWriteOnlyImmediate,
            (Operation::Read, true, true, Extra::None) => Opcode::RcReadRequest,
            (Operation::CompareSwap { .. }, true, true, Extra::None) => Opcode::RcCompareSwap,
            (Operation::FetchAdd { .. }, true, true, Extra::None) => Opcode::RcFetchAdd,
            _ => return None,
        };
        match service {
            Service::Rc => Some(reliable),
            // The numbers of the unreliable connection's opcodes differ by one bit; it has none for
            // what needs an answer.
            Service::Uc => Opcode::from_u8(reliable.code() | 0x20).ok(),
        }
    }
}
