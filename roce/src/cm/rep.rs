//! REP: reply to a request for communication (IBTA vol. 1 section 12.6.8, table 110).

use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{CommId, ReadDepths, store, view};
use crate::mad::BODY_LEN;
use crate::number::U24;
use crate::{Error, Psn, QKey, Qpn, TimeoutCode};

/// Bytes of private data in a REP.
pub const PRIVATE_DATA_LEN: usize = 196;

/// The layout on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Body {
    /// The sender's communication id.
    pub local_comm_id: U32,
    /// The receiver's communication id.
    pub remote_comm_id: U32,
    /// The sender's queue key; for reliable datagrams.
    pub local_qkey: U32,
    /// The sender's queue pair.
    pub local_qpn: U24,
    /// Reserved.
    pub reserved0: u8,
    /// The sender's end-to-end context; for reliable datagrams.
    pub local_eecn: U24,
    /// Reserved.
    pub reserved1: u8,
    /// The receiver's first PSN.
    pub starting_psn: U24,
    /// Reserved.
    pub reserved2: u8,
    /// How many RDMA Reads and atomics the sender serves at once.
    pub responder_resources: u8,
    /// How many RDMA Reads and atomics the sender has outstanding at once.
    pub initiator_depth: u8,
    /// Target ACK delay (5), failover accepted (2), end-to-end flow control (1).
    pub delay_failover_flow: u8,
    /// RNR retry count (3), SRQ (1), reserved (4).
    pub rnr_srq: u8,
    /// The sender's channel adapter.
    pub local_ca_guid: U64,
    /// Private data.
    pub private_data: [u8; PRIVATE_DATA_LEN],
}

const _: () = assert!(size_of::<Body>() == BODY_LEN);

/// A decoded REP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The sender's communication id.
    pub local_comm_id: CommId,
    /// The receiver's communication id.
    pub remote_comm_id: CommId,
    /// The sender's queue key; for reliable datagrams.
    pub local_qkey: QKey,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// The sender's end-to-end context; for reliable datagrams.
    pub local_eecn: u32,
    /// The first PSN that the *receiver* of this message shall send (section 12.7.31).
    pub starting_psn: Psn,
    /// The sender's read depths.
    pub depths: ReadDepths,
    /// How long the sender may take to acknowledge a packet.
    pub target_ack_delay: TimeoutCode,
    /// Whether the sender accepts the alternate path; 2 bits.
    pub failover_accepted: u8,
    /// Whether the sender's receive queue reports end-to-end credits.
    pub flow_control: bool,
    /// How often the receiver's queue pair shall retry after RNR NAK; 3 bits, 7 is without limit.
    pub rnr_retry_count: u8,
    /// Whether the sender's queue pair takes its receive buffers from a shared queue.
    pub srq: bool,
    /// The sender's channel adapter.
    pub local_ca_guid: u64,
    /// Private data.
    pub private_data: [u8; PRIVATE_DATA_LEN],
}

impl Repr {
    /// Parses a body.
    pub fn parse(body: &[u8; BODY_LEN]) -> Result<Repr, Error> {
        let body = view::<Body>(body)?;
        Ok(Repr {
            local_comm_id: CommId(body.local_comm_id.get()),
            remote_comm_id: CommId(body.remote_comm_id.get()),
            local_qkey: QKey(body.local_qkey.get()),
            local_qpn: body.local_qpn.into(),
            local_eecn: body.local_eecn.get(),
            starting_psn: body.starting_psn.into(),
            depths: ReadDepths {
                responder_resources: body.responder_resources,
                initiator_depth: body.initiator_depth,
            },
            target_ack_delay: TimeoutCode::from_low_bits(body.delay_failover_flow >> 3),
            failover_accepted: body.delay_failover_flow >> 1 & 3,
            flow_control: body.delay_failover_flow & 1 != 0,
            rnr_retry_count: body.rnr_srq >> 5,
            srq: body.rnr_srq & 0x10 != 0,
            local_ca_guid: body.local_ca_guid.get(),
            private_data: body.private_data,
        })
    }

    /// Writes the body.
    pub fn emit(&self, body: &mut [u8; BODY_LEN]) {
        let value = Body {
            local_comm_id: self.local_comm_id.0.into(),
            remote_comm_id: self.remote_comm_id.0.into(),
            local_qkey: self.local_qkey.0.into(),
            local_qpn: self.local_qpn.into(),
            reserved0: 0,
            local_eecn: U24::new(self.local_eecn),
            reserved1: 0,
            starting_psn: self.starting_psn.into(),
            reserved2: 0,
            responder_resources: self.depths.responder_resources,
            initiator_depth: self.depths.initiator_depth,
            delay_failover_flow: self.target_ack_delay.get() << 3
                | (self.failover_accepted & 3) << 1
                | u8::from(self.flow_control),
            rnr_srq: self.rnr_retry_count << 5 | u8::from(self.srq) << 4,
            local_ca_guid: self.local_ca_guid.into(),
            private_data: self.private_data,
        };
        store(&value, body);
    }
}
