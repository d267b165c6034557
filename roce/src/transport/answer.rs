//! What a responder sends to a requester.

use crate::wire::aeth;
use crate::wire::opcode::Opcode;
use crate::wire::{atomic, bth, packet};
use crate::{Psn, Qpn};

/// An answer: one packet, or several successive ones of an RDMA Read's answer without their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The first packet's number.
    pub psn: Psn,
    /// The acknowledgement that it carries. An RDMA Read's middle packets carry none.
    pub aeth: Option<aeth::Repr>,
    /// What it says.
    pub body: Body,
}

/// What an answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Acknowledged or refused, as the AETH says.
    Acknowledge,
    /// Bytes that an RDMA Read asked for.
    Read {
        /// How many packets there are.
        packets: u32,
        /// They have the answer's first packet.
        first: bool,
        /// They have the answer's last packet.
        last: bool,
        /// Bytes of payload.
        length: u32,
    },
    /// An atomic operation was carried out.
    Atomic {
        /// The word's value before.
        original: u64,
    },
}

impl Answer {
    /// The answer in a packet; `None` if the packet is not an answer, or lacks its headers.
    pub fn from_packet(packet: &packet::Repr<'_>) -> Option<Answer> {
        let read = |first, last| {
            let length = u32::try_from(packet.payload.len()).ok()?;
            Some(Body::Read { packets: 1, first, last, length })
        };
        let body = match packet.bth.opcode {
            Opcode::RcAcknowledge => Body::Acknowledge,
            Opcode::RcReadResponseFirst => read(true, false)?,
            Opcode::RcReadResponseMiddle => read(false, false)?,
            Opcode::RcReadResponseLast => read(false, true)?,
            Opcode::RcReadResponseOnly => read(true, true)?,
            Opcode::RcAtomicAcknowledge => Body::Atomic { original: packet.original?.0 },
            _ => return None,
        };
        Some(Answer { psn: packet.bth.psn, aeth: packet.aeth, body })
    }

    /// The packet, of the partition [`crate::PKey::DEFAULT`], that carries this answer. `None` if
    /// the answer is not one packet, or its payload is not `payload`.
    pub fn to_packet<'a>(&self, dest_qp: Qpn, payload: &'a [u8]) -> Option<packet::Repr<'a>> {
        let (opcode, length) = match self.body {
            Body::Acknowledge => (Opcode::RcAcknowledge, 0),
            Body::Atomic { .. } => (Opcode::RcAtomicAcknowledge, 0),
            Body::Read { packets: 1, first, last, length } => {
                let opcode = match (first, last) {
                    (true, false) => Opcode::RcReadResponseFirst,
                    (false, false) => Opcode::RcReadResponseMiddle,
                    (false, true) => Opcode::RcReadResponseLast,
                    (true, true) => Opcode::RcReadResponseOnly,
                };
                (opcode, length)
            }
            Body::Read { .. } => return None,
        };
        if u32::try_from(payload.len()) != Ok(length) {
            return None;
        }
        let bth = bth::Repr::new(opcode, dest_qp, self.psn);
        let mut packet = packet::Repr { payload, aeth: self.aeth, ..packet::Repr::new(bth) };
        if let Body::Atomic { original } = self.body {
            packet.original = Some(atomic::Original(original));
        }
        Some(packet)
    }
}
