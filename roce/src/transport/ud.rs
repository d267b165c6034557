//! The unreliable datagram (IBTA vol. 1 section 9.8.3): messages of one packet between any two
//! queue pairs.

use crate::wire::opcode::Opcode;
use crate::wire::{bth, deth, extra, packet};
use crate::{Psn, QKey, Qpn};

use super::reason::Reason;

/// A datagram, without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The packet's number. The receiver does not look at it.
    pub psn: Psn,
    /// The queue key.
    pub qkey: QKey,
    /// The sender's queue pair.
    pub src_qp: Qpn,
    /// Bytes of payload.
    pub length: u32,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// The receiver shall raise an event.
    pub solicited: bool,
}

impl Datagram {
    /// The datagram in a packet; `None` if it is another kind of packet.
    pub fn from_packet(packet: &packet::Repr<'_>) -> Option<Datagram> {
        let deth = packet.deth.filter(|_| packet.bth.opcode.is_ud())?;
        Some(Datagram {
            psn: packet.bth.psn,
            qkey: deth.qkey,
            src_qp: deth.src_qp,
            length: u32::try_from(packet.payload.len()).ok()?,
            immediate: packet.immediate.map(|immediate| immediate.0),
            solicited: packet.bth.solicited,
        })
    }

    /// The packet, of the partition [`crate::PKey::DEFAULT`], that carries this datagram; `None` if
    /// its payload is not `payload`.
    pub fn to_packet<'a>(&self, dest_qp: Qpn, payload: &'a [u8]) -> Option<packet::Repr<'a>> {
        if u32::try_from(payload.len()) != Ok(self.length) {
            return None;
        }
        let opcode = match self.immediate {
            Some(_) => Opcode::UdSendOnlyImmediate,
            None => Opcode::UdSendOnly,
        };
        let mut bth = bth::Repr::new(opcode, dest_qp, self.psn);
        bth.solicited = self.solicited;
        Some(packet::Repr {
            deth: Some(deth::Repr { qkey: self.qkey, src_qp: self.src_qp }),
            immediate: self.immediate.map(extra::Immediate),
            payload,
            ..packet::Repr::new(bth)
        })
    }

    /// Whether a queue pair with this key, on a port of this MTU in bytes, takes the datagram;
    /// otherwise why it is dropped (section 9.8.3.2).
    pub fn judge(&self, qkey: QKey, mtu: u32) -> Result<(), Reason> {
        if self.qkey != qkey {
            return Err(Reason::BadQKey);
        }
        if self.length > mtu {
            return Err(Reason::BadPacketLength);
        }
        Ok(())
    }
}

/// The numbers of the datagrams that a queue pair sends.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    next: Psn,
}

impl Sender {
    /// The top bit of the key in a work request: send the queue pair's own key (section 10.2.5).
    pub const OWN_QKEY: u32 = 1 << 31;

    /// A sender that begins with this number.
    pub const fn new(psn: Psn) -> Sender {
        Sender { next: psn }
    }

    /// The next number.
    pub fn next_psn(&mut self) -> Psn {
        let psn = self.next;
        self.next = psn.add(1);
        psn
    }

    /// The key to send for the one in a work request, from a queue pair with the key `own`.
    pub const fn qkey(requested: QKey, own: QKey) -> QKey {
        if requested.0 & Sender::OWN_QKEY != 0 { own } else { requested }
    }
}
