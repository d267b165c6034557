//! REJ: rejection (IBTA vol. 1 section 12.6.7, tables 108 and 109).

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{CommId, store, view};
use crate::Error;
use crate::mad::BODY_LEN;

/// Bytes of private data in a REJ.
pub const PRIVATE_DATA_LEN: usize = 148;
/// How many bytes of additional reject information a REJ carries at most.
pub const ARI_LEN: usize = 72;

/// The layout on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Body {
    /// The sender's communication id; zero if it has none.
    pub local_comm_id: U32,
    /// The receiver's communication id; zero if the sender does not know it.
    pub remote_comm_id: U32,
    /// Message rejected (2), reserved (6).
    pub message: u8,
    /// Length of the additional information (7), reserved (1).
    pub ari_len: u8,
    /// The reason.
    pub reason: U16,
    /// Additional reject information.
    pub ari: [u8; ARI_LEN],
    /// Private data.
    pub private_data: [u8; PRIVATE_DATA_LEN],
}

const _: () = assert!(size_of::<Body>() == BODY_LEN);

/// The message that a REJ rejects (section 12.6.7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Rejected {
    /// A REQ.
    Req = 0,
    /// A REP.
    Rep = 1,
    /// No message: a timeout, for instance.
    Other = 2,
}

/// Why a request or reply was rejected (table 109). Each number is allowed; the constants are those
/// that the table defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reason(pub u16);

impl Reason {
    /// No queue pair is available.
    pub const NO_QP: Reason = Reason(1);
    /// No end-to-end context is available.
    pub const NO_EEC: Reason = Reason(2);
    /// No resources are available.
    pub const NO_RESOURCES: Reason = Reason(3);
    /// The sender got no answer in time. The additional information is the sender's CA GUID.
    pub const TIMEOUT: Reason = Reason(4);
    /// The request is not supported.
    pub const UNSUPPORTED_REQUEST: Reason = Reason(5);
    /// The communication id is not known.
    pub const INVALID_COMM_ID: Reason = Reason(6);
    /// Communication id and queue pair do not belong together.
    pub const INVALID_COMM_INSTANCE: Reason = Reason(7);
    /// No consumer offers the service.
    pub const INVALID_SERVICE_ID: Reason = Reason(8);
    /// The transport service type is not supported.
    pub const INVALID_TRANSPORT_SERVICE: Reason = Reason(9);
    /// The sender still has a connection with the receiver's queue pair.
    pub const STALE_CONNECTION: Reason = Reason(10);
    /// The reliable datagram channel does not exist.
    pub const RDC_DOES_NOT_EXIST: Reason = Reason(11);
    /// The primary remote port's GID is refused.
    pub const PRIMARY_GID: Reason = Reason(12);
    /// The primary remote port's LID is refused.
    pub const PRIMARY_LID: Reason = Reason(13);
    /// The primary service level is refused.
    pub const PRIMARY_SL: Reason = Reason(14);
    /// The primary traffic class is refused.
    pub const PRIMARY_TRAFFIC_CLASS: Reason = Reason(15);
    /// The primary hop limit is refused.
    pub const PRIMARY_HOP_LIMIT: Reason = Reason(16);
    /// The primary packet rate is refused.
    pub const PRIMARY_PACKET_RATE: Reason = Reason(17);
    /// The alternate remote port's GID is refused.
    pub const ALTERNATE_GID: Reason = Reason(18);
    /// The alternate remote port's LID is refused.
    pub const ALTERNATE_LID: Reason = Reason(19);
    /// The alternate service level is refused.
    pub const ALTERNATE_SL: Reason = Reason(20);
    /// The alternate traffic class is refused.
    pub const ALTERNATE_TRAFFIC_CLASS: Reason = Reason(21);
    /// The alternate hop limit is refused.
    pub const ALTERNATE_HOP_LIMIT: Reason = Reason(22);
    /// The alternate packet rate is refused.
    pub const ALTERNATE_PACKET_RATE: Reason = Reason(23);
    /// The requester shall ask another port and communication manager.
    pub const PORT_AND_CM_REDIRECTION: Reason = Reason(24);
    /// The requester shall ask another port.
    pub const PORT_REDIRECTION: Reason = Reason(25);
    /// The path MTU is refused. The additional information is the largest acceptable one.
    pub const INVALID_PATH_MTU: Reason = Reason(26);
    /// The responder resources are too few.
    pub const INSUFFICIENT_RESPONDER_RESOURCES: Reason = Reason(27);
    /// The consumer rejected it.
    pub const CONSUMER_DEFINED: Reason = Reason(28);
    /// The RNR retry count is refused.
    pub const INVALID_RNR_RETRY: Reason = Reason(29);
    /// The communication id is in use.
    pub const DUPLICATE_COMM_ID: Reason = Reason(30);
    /// The class version is not supported.
    pub const INVALID_CLASS_VERSION: Reason = Reason(31);
    /// The primary flow label is refused.
    pub const PRIMARY_FLOW_LABEL: Reason = Reason(32);
    /// The alternate flow label is refused.
    pub const ALTERNATE_FLOW_LABEL: Reason = Reason(33);
}

/// A decoded REJ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The sender's communication id; zero if it has none.
    pub local_comm_id: CommId,
    /// The receiver's communication id; zero if the sender does not know it.
    pub remote_comm_id: CommId,
    /// The rejected message.
    pub rejected: Rejected,
    /// How many bytes of `ari` are in use; up to 72.
    pub ari_len: u8,
    /// The reason.
    pub reason: Reason,
    /// Additional reject information.
    pub ari: [u8; ARI_LEN],
    /// Private data.
    pub private_data: [u8; PRIVATE_DATA_LEN],
}

impl Repr {
    /// The part of the additional information that is in use.
    pub fn ari(&self) -> &[u8] {
        &self.ari[..usize::from(self.ari_len).min(ARI_LEN)]
    }

    /// Parses a body.
    pub fn parse(body: &[u8; BODY_LEN]) -> Result<Repr, Error> {
        let body = view::<Body>(body)?;
        let ari_len = body.ari_len >> 1;
        if usize::from(ari_len) > ARI_LEN {
            return Err(Error::Field { field: "REJ reject info length", value: ari_len.into() });
        }
        Ok(Repr {
            local_comm_id: CommId(body.local_comm_id.get()),
            remote_comm_id: CommId(body.remote_comm_id.get()),
            rejected: match body.message >> 6 {
                0 => Rejected::Req,
                1 => Rejected::Rep,
                2 => Rejected::Other,
                value => return Err(Error::Field { field: "REJ message", value: value.into() }),
            },
            ari_len,
            reason: Reason(body.reason.get()),
            ari: body.ari,
            private_data: body.private_data,
        })
    }

    /// Writes the body.
    pub fn emit(&self, body: &mut [u8; BODY_LEN]) {
        let value = Body {
            local_comm_id: self.local_comm_id.0.into(),
            remote_comm_id: self.remote_comm_id.0.into(),
            message: (self.rejected as u8) << 6,
            ari_len: self.ari_len << 1,
            reason: self.reason.0.into(),
            ari: self.ari,
            private_data: self.private_data,
        };
        store(&value, body);
    }
}
