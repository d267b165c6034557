//! SIDR_REQ and SIDR_REP: service id resolution for datagrams (IBTA vol. 1 section 12.11, tables
//! 117 and 118).

use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{store, view};
use crate::mad::BODY_LEN;
use crate::number::U24;
use crate::{Error, PKey, QKey, Qpn, ServiceId};

/// Bytes of private data in a SIDR_REQ.
pub const REQ_PRIVATE_DATA_LEN: usize = 216;
/// Bytes of private data in a SIDR_REP.
pub const REP_PRIVATE_DATA_LEN: usize = 136;
/// How many bytes of additional information a SIDR_REP carries at most.
pub const INFO_LEN: usize = 72;

/// The layout of a SIDR_REQ on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReqBody {
    /// The request's id.
    pub request_id: U32,
    /// Partition key.
    pub pkey: U16,
    /// Reserved.
    pub reserved: U16,
    /// The service that the sender asks for.
    pub service_id: U64,
    /// Private data.
    pub private_data: [u8; REQ_PRIVATE_DATA_LEN],
}

const _: () = assert!(size_of::<ReqBody>() == BODY_LEN);

/// A decoded SIDR_REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReqRepr {
    /// The request's id.
    pub request_id: u32,
    /// Partition key.
    pub pkey: PKey,
    /// The service that the sender asks for.
    pub service_id: ServiceId,
    /// Private data.
    pub private_data: [u8; REQ_PRIVATE_DATA_LEN],
}

impl ReqRepr {
    /// Parses a body.
    pub fn parse(body: &[u8; BODY_LEN]) -> Result<ReqRepr, Error> {
        let body = view::<ReqBody>(body)?;
        Ok(ReqRepr {
            request_id: body.request_id.get(),
            pkey: PKey(body.pkey.get()),
            service_id: ServiceId(body.service_id.get()),
            private_data: body.private_data,
        })
    }

    /// Writes the body.
    pub fn emit(&self, body: &mut [u8; BODY_LEN]) {
        let value = ReqBody {
            request_id: self.request_id.into(),
            pkey: self.pkey.0.into(),
            reserved: 0.into(),
            service_id: self.service_id.0.into(),
            private_data: self.private_data,
        };
        store(&value, body);
    }
}

/// The layout of a SIDR_REP on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RepBody {
    /// The id of the request.
    pub request_id: U32,
    /// The answer's status.
    pub status: u8,
    /// Length of the additional information.
    pub info_len: u8,
    /// Reserved.
    pub reserved0: U16,
    /// The service's queue pair.
    pub qpn: U24,
    /// Reserved.
    pub reserved1: u8,
    /// The service that the request asked for.
    pub service_id: U64,
    /// The service's queue key.
    pub qkey: U32,
    /// Additional information.
    pub info: [u8; INFO_LEN],
    /// Private data.
    pub private_data: [u8; REP_PRIVATE_DATA_LEN],
}

const _: () = assert!(size_of::<RepBody>() == BODY_LEN);

/// The answer to a request (table 119).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// The queue pair and the key are valid.
    Valid = 0,
    /// No consumer offers the service.
    ServiceIdNotSupported = 1,
    /// The service refused.
    Rejected = 2,
    /// The service has no queue pair to spare.
    NoQp = 3,
    /// The requester shall ask the port in the additional information.
    Redirected = 4,
    /// The class version is not supported.
    VersionNotSupported = 5,
}

/// A decoded SIDR_REP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepRepr {
    /// The id of the request.
    pub request_id: u32,
    /// The answer.
    pub status: Status,
    /// How many bytes of `info` are in use; up to 72.
    pub info_len: u8,
    /// The service's queue pair.
    pub qpn: Qpn,
    /// The service that the request asked for.
    pub service_id: ServiceId,
    /// The service's queue key.
    pub qkey: QKey,
    /// Additional information: with [`Status::Redirected`], the ClassPortInfo of the other port.
    pub info: [u8; INFO_LEN],
    /// Private data.
    pub private_data: [u8; REP_PRIVATE_DATA_LEN],
}

impl RepRepr {
    /// Parses a body.
    pub fn parse(body: &[u8; BODY_LEN]) -> Result<RepRepr, Error> {
        let body = view::<RepBody>(body)?;
        if usize::from(body.info_len) > INFO_LEN {
            let value = body.info_len.into();
            return Err(Error::Field { field: "SIDR_REP additional information length", value });
        }
        Ok(RepRepr {
            request_id: body.request_id.get(),
            status: match body.status {
                0 => Status::Valid,
                1 => Status::ServiceIdNotSupported,
                2 => Status::Rejected,
                3 => Status::NoQp,
                4 => Status::Redirected,
                5 => Status::VersionNotSupported,
                value => return Err(Error::Field { field: "SIDR_REP status", value: value.into() }),
            },
            info_len: body.info_len,
            qpn: body.qpn.into(),
            service_id: ServiceId(body.service_id.get()),
            qkey: QKey(body.qkey.get()),
            info: body.info,
            private_data: body.private_data,
        })
    }

    /// Writes the body.
    pub fn emit(&self, body: &mut [u8; BODY_LEN]) {
        let value = RepBody {
            request_id: self.request_id.into(),
            status: self.status as u8,
            info_len: self.info_len,
            reserved0: 0.into(),
            qpn: self.qpn.into(),
            reserved1: 0,
            service_id: self.service_id.0.into(),
            qkey: self.qkey.0.into(),
            info: self.info,
            private_data: self.private_data,
        };
        store(&value, body);
    }
}
