//! LAP and APR: load alternate path and its response (IBTA vol. 1 section 12.8, tables 115 and
//! 116). RoCEv2 has no alternate paths, so a LAP is parsed only to be declined.

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{CommId, store, view};
use crate::mad::BODY_LEN;
use crate::number::U24;
use crate::{Error, Gid, Path, Qpn, TimeoutCode};

/// Bytes of private data in a LAP.
pub const PRIVATE_DATA_LEN: usize = 168;
/// Bytes of private data in an APR.
pub const APR_PRIVATE_DATA_LEN: usize = 148;
/// How many bytes of additional information an APR carries at most.
pub const APR_INFO_LEN: usize = 72;

/// The layout of a LAP on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Body {
    /// The sender's communication id.
    pub local_comm_id: U32,
    /// The receiver's communication id.
    pub remote_comm_id: U32,
    /// Reserved.
    pub reserved0: U32,
    /// The receiver's queue pair.
    pub remote_qpn: U24,
    /// Remote CM response timeout (5), reserved (3).
    pub remote_timeout: u8,
    /// Reserved.
    pub reserved1: U32,
    /// The sender's LID on the alternate path.
    pub local_lid: U16,
    /// The receiver's LID on the alternate path.
    pub remote_lid: U16,
    /// The sender's GID on the alternate path.
    pub local_gid: Gid,
    /// The receiver's GID on the alternate path.
    pub remote_gid: Gid,
    /// Flow label (20), reserved (4), traffic class (8).
    pub flow_class: U32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Reserved (2), packet rate (6).
    pub rate: u8,
    /// Service level (4), subnet local (1), reserved (3).
    pub sl_subnet: u8,
    /// Local ACK timeout (5), reserved (3).
    pub ack_timeout: u8,
    /// Private data.
    pub private_data: [u8; PRIVATE_DATA_LEN],
}

const _: () = assert!(size_of::<Body>() == BODY_LEN);

/// A decoded LAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The sender's communication id.
    pub local_comm_id: CommId,
    /// The receiver's communication id.
    pub remote_comm_id: CommId,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// The time within which the receiver shall answer.
    pub remote_cm_timeout: TimeoutCode,
    /// The proposed path.
    pub path: super::path::Repr,
    /// Private data.
    pub private_data: [u8; PRIVATE_DATA_LEN],
}

impl Repr {
    /// Parses a body.
    pub fn parse(body: &[u8; BODY_LEN]) -> Result<Repr, Error> {
        let body = view::<Body>(body)?;
        let flow_class = body.flow_class.get();
        Ok(Repr {
            local_comm_id: CommId(body.local_comm_id.get()),
            remote_comm_id: CommId(body.remote_comm_id.get()),
            remote_qpn: body.remote_qpn.into(),
            remote_cm_timeout: TimeoutCode::from_low_bits(body.remote_timeout >> 3),
            path: super::path::Repr {
                local_lid: body.local_lid.get(),
                remote_lid: body.remote_lid.get(),
                path: Path {
                    local_gid: body.local_gid,
                    remote_gid: body.remote_gid,
                    flow_label: flow_class >> 12,
                    packet_rate: body.rate & 0x3f,
                    traffic_class: flow_class as u8,
                    hop_limit: body.hop_limit,
                    sl: body.sl_subnet >> 4,
                    subnet_local: body.sl_subnet & 8 != 0,
                },
                local_ack_timeout: TimeoutCode::from_low_bits(body.ack_timeout >> 3),
            },
            private_data: body.private_data,
        })
    }

    /// Writes the body.
    pub fn emit(&self, body: &mut [u8; BODY_LEN]) {
        let path = &self.path.path;
        let value = Body {
            local_comm_id: self.local_comm_id.0.into(),
            remote_comm_id: self.remote_comm_id.0.into(),
            reserved0: 0.into(),
            remote_qpn: self.remote_qpn.into(),
            remote_timeout: self.remote_cm_timeout.get() << 3,
            reserved1: 0.into(),
            local_lid: self.path.local_lid.into(),
            remote_lid: self.path.remote_lid.into(),
            local_gid: path.local_gid,
            remote_gid: path.remote_gid,
            flow_class: (path.flow_label << 12 | u32::from(path.traffic_class)).into(),
            hop_limit: path.hop_limit,
            rate: path.packet_rate & 0x3f,
            sl_subnet: path.sl << 4 | u8::from(path.subnet_local) << 3,
            ack_timeout: self.path.local_ack_timeout.get() << 3,
            private_data: self.private_data,
        };
        store(&value, body);
    }
}

/// The layout of an APR on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AprBody {
    /// The sender's communication id.
    pub local_comm_id: U32,
    /// The receiver's communication id.
    pub remote_comm_id: U32,
    /// Length of the additional information.
    pub info_len: u8,
    /// The answer.
    pub status: u8,
    /// Reserved.
    pub reserved: U16,
    /// Additional information.
    pub info: [u8; APR_INFO_LEN],
    /// Private data.
    pub private_data: [u8; APR_PRIVATE_DATA_LEN],
}

const _: () = assert!(size_of::<AprBody>() == BODY_LEN);

/// A decoded APR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AprRepr {
    /// The sender's communication id.
    pub local_comm_id: CommId,
    /// The receiver's communication id.
    pub remote_comm_id: CommId,
    /// How many bytes of `info` are in use; up to 72.
    pub info_len: u8,
    /// The answer: 0 if the path was loaded, see [`AprRepr::NOT_SUPPORTED`].
    pub status: u8,
    /// Additional information.
    pub info: [u8; APR_INFO_LEN],
    /// Private data.
    pub private_data: [u8; APR_PRIVATE_DATA_LEN],
}

impl AprRepr {
    /// The status of a responder that does not support alternate paths.
    pub const NOT_SUPPORTED: u8 = 2;

    /// Parses a body.
    pub fn parse(body: &[u8; BODY_LEN]) -> Result<AprRepr, Error> {
        let body = view::<AprBody>(body)?;
        if usize::from(body.info_len) > APR_INFO_LEN {
            return Err(Error::Field {
                field: "APR additional information length",
                value: body.info_len.into(),
            });
        }
        Ok(AprRepr {
            local_comm_id: CommId(body.local_comm_id.get()),
            remote_comm_id: CommId(body.remote_comm_id.get()),
            info_len: body.info_len,
            status: body.status,
            info: body.info,
            private_data: body.private_data,
        })
    }

    /// Writes the body.
    pub fn emit(&self, body: &mut [u8; BODY_LEN]) {
        let value = AprBody {
            local_comm_id: self.local_comm_id.0.into(),
            remote_comm_id: self.remote_comm_id.0.into(),
            info_len: self.info_len,
            status: self.status,
            reserved: 0.into(),
            info: self.info,
            private_data: self.private_data,
        };
        store(&value, body);
    }
}
