//! REQ: request for communication (IBTA vol. 1 section 12.6.5, table 106).

use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{CommId, ReadDepths, path, store, view};
use crate::mad::BODY_LEN;
use crate::number::U24;
use crate::transport::Service;
use crate::{Error, PKey, Psn, QKey, Qpn, ServiceId, TimeoutCode};

/// Bytes of private data in a REQ.
pub const PRIVATE_DATA_LEN: usize = 92;

/// The layout on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Body {
    /// The sender's communication id.
    pub local_comm_id: U32,
    /// Reserved.
    pub reserved0: U32,
    /// The service that the sender asks for.
    pub service_id: U64,
    /// The sender's channel adapter.
    pub local_ca_guid: U64,
    /// Reserved.
    pub reserved1: U32,
    /// The sender's queue key; for reliable datagrams.
    pub local_qkey: U32,
    /// The sender's queue pair.
    pub local_qpn: U24,
    /// How many RDMA Reads and atomics the sender serves at once.
    pub responder_resources: u8,
    /// The sender's end-to-end context; for reliable datagrams.
    pub local_eecn: U24,
    /// How many RDMA Reads and atomics the sender has outstanding at once.
    pub initiator_depth: u8,
    /// The receiver's end-to-end context; for reliable datagrams.
    pub remote_eecn: U24,
    /// Remote CM response timeout (5), transport service type (2), end-to-end flow control (1).
    pub remote_timeout_type_flow: u8,
    /// The receiver's first PSN.
    pub starting_psn: U24,
    /// Local CM response timeout (5), retry count (3).
    pub local_timeout_retry: u8,
    /// Partition key.
    pub pkey: U16,
    /// Path MTU (4), RDC exists (1), RNR retry count (3).
    pub mtu_rdc_rnr: u8,
    /// Max CM retries (4), SRQ (1), extended transport type (3).
    pub retries_srq_type: u8,
    /// The primary path.
    pub primary_path: path::Body,
    /// The alternate path.
    pub alternate_path: path::Body,
    /// Private data.
    pub private_data: [u8; PRIVATE_DATA_LEN],
}

const _: () = assert!(size_of::<Body>() == BODY_LEN);

/// The kind of connection that the sender asks for (section 12.7.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TransportService {
    /// Reliable connection.
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Reliable datagram.
    Rd = 2,
    /// The one that the extended transport type names.
    Extended = 3,
}

impl TransportService {
    /// The service of the queue pairs; `None` if it is neither RC nor UC.
    pub const fn connected(self) -> Option<Service> {
        match self {
            TransportService::Rc => Some(Service::Rc),
            TransportService::Uc => Some(Service::Uc),
            TransportService::Rd | TransportService::Extended => None,
        }
    }
}

impl From<Service> for TransportService {
    fn from(service: Service) -> TransportService {
        match service {
            Service::Rc => TransportService::Rc,
            Service::Uc => TransportService::Uc,
        }
    }
}

/// A decoded REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The sender's communication id.
    pub local_comm_id: CommId,
    /// The service that the sender asks for.
    pub service_id: ServiceId,
    /// The sender's channel adapter.
    pub local_ca_guid: u64,
    /// The sender's queue key; for reliable datagrams.
    pub local_qkey: QKey,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// The sender's read depths.
    pub depths: ReadDepths,
    /// The sender's end-to-end context; for reliable datagrams.
    pub local_eecn: u32,
    /// The receiver's end-to-end context; for reliable datagrams.
    pub remote_eecn: u32,
    /// The time within which the receiver shall answer.
    pub remote_cm_timeout: TimeoutCode,
    /// The kind of connection.
    pub transport_service: TransportService,
    /// Whether the sender's receive queue reports end-to-end credits.
    pub flow_control: bool,
    /// The first PSN that the *receiver* of this message shall send (section 12.7.31).
    pub starting_psn: Psn,
    /// The time within which the sender will answer the reply.
    pub local_cm_timeout: TimeoutCode,
    /// How often the receiver's queue pair shall retry; 3 bits.
    pub retry_count: u8,
    /// Partition key.
    pub pkey: PKey,
    /// The path MTU's code; 4 bits, see [`crate::PathMtu`].
    pub path_mtu: u8,
    /// Whether a reliable datagram channel exists.
    pub rdc_exists: bool,
    /// How often the receiver's queue pair shall retry after RNR NAK; 3 bits, 7 is without limit.
    pub rnr_retry_count: u8,
    /// How often either side sends a message again; 4 bits.
    pub max_cm_retries: u8,
    /// Whether the sender's queue pair takes its receive buffers from a shared queue.
    pub srq: bool,
    /// The extended transport; 3 bits.
    pub extended_transport: u8,
    /// The primary path.
    pub primary_path: path::Repr,
    /// The alternate path; all zeroes for none.
    pub alternate_path: path::Repr,
    /// Private data.
    pub private_data: [u8; PRIVATE_DATA_LEN],
}

impl Repr {
    /// Parses a body.
    pub fn parse(body: &[u8; BODY_LEN]) -> Result<Repr, Error> {
        let body = view::<Body>(body)?;
        Ok(Repr {
            local_comm_id: CommId(body.local_comm_id.get()),
            service_id: ServiceId(body.service_id.get()),
            local_ca_guid: body.local_ca_guid.get(),
            local_qkey: QKey(body.local_qkey.get()),
            local_qpn: body.local_qpn.into(),
            depths: ReadDepths {
                responder_resources: body.responder_resources,
                initiator_depth: body.initiator_depth,
            },
            local_eecn: body.local_eecn.get(),
            remote_eecn: body.remote_eecn.get(),
            remote_cm_timeout: TimeoutCode::from_low_bits(body.remote_timeout_type_flow >> 3),
            transport_service: match body.remote_timeout_type_flow >> 1 & 3 {
                0 => TransportService::Rc,
                1 => TransportService::Uc,
                2 => TransportService::Rd,
                _ => TransportService::Extended,
            },
            flow_control: body.remote_timeout_type_flow & 1 != 0,
            starting_psn: body.starting_psn.into(),
            local_cm_timeout: TimeoutCode::from_low_bits(body.local_timeout_retry >> 3),
            retry_count: body.local_timeout_retry & 7,
            pkey: PKey(body.pkey.get()),
            path_mtu: body.mtu_rdc_rnr >> 4,
            rdc_exists: body.mtu_rdc_rnr & 8 != 0,
            rnr_retry_count: body.mtu_rdc_rnr & 7,
            max_cm_retries: body.retries_srq_type >> 4,
            srq: body.retries_srq_type & 8 != 0,
            extended_transport: body.retries_srq_type & 7,
            primary_path: path::Repr::parse(&body.primary_path),
            alternate_path: path::Repr::parse(&body.alternate_path),
            private_data: body.private_data,
        })
    }

    /// Writes the body.
    pub fn emit(&self, body: &mut [u8; BODY_LEN]) {
        let value = Body {
            local_comm_id: self.local_comm_id.0.into(),
            reserved0: 0.into(),
            service_id: self.service_id.0.into(),
            local_ca_guid: self.local_ca_guid.into(),
            reserved1: 0.into(),
            local_qkey: self.local_qkey.0.into(),
            local_qpn: self.local_qpn.into(),
            responder_resources: self.depths.responder_resources,
            local_eecn: U24::new(self.local_eecn),
            initiator_depth: self.depths.initiator_depth,
            remote_eecn: U24::new(self.remote_eecn),
            remote_timeout_type_flow: self.remote_cm_timeout.get() << 3
                | (self.transport_service as u8) << 1
                | u8::from(self.flow_control),
            starting_psn: self.starting_psn.into(),
            local_timeout_retry: self.local_cm_timeout.get() << 3 | self.retry_count & 7,
            pkey: self.pkey.0.into(),
            mtu_rdc_rnr: self.path_mtu << 4 | u8::from(self.rdc_exists) << 3 | self.rnr_retry_count & 7,
            retries_srq_type: self.max_cm_retries << 4
                | u8::from(self.srq) << 3
                | self.extended_transport & 7,
            primary_path: self.primary_path.body(),
            alternate_path: self.alternate_path.body(),
            private_data: self.private_data,
        };
        store(&value, body);
    }
}
