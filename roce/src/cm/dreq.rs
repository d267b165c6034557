//! DREQ: request for communication release (IBTA vol. 1 section 12.6.10, table 112).

use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{CommId, store, view};
use crate::mad::BODY_LEN;
use crate::number::U24;
use crate::{Error, Qpn};

/// Bytes of private data in a DREQ.
pub const PRIVATE_DATA_LEN: usize = 220;

/// The layout on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Body {
    /// The sender's communication id.
    pub local_comm_id: U32,
    /// The receiver's communication id.
    pub remote_comm_id: U32,
    /// The receiver's queue pair.
    pub remote_qpn: U24,
    /// Reserved.
    pub reserved: u8,
    /// Private data.
    pub private_data: [u8; PRIVATE_DATA_LEN],
}

const _: () = assert!(size_of::<Body>() == BODY_LEN);

/// A decoded DREQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The sender's communication id.
    pub local_comm_id: CommId,
    /// The receiver's communication id.
    pub remote_comm_id: CommId,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
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
            remote_qpn: body.remote_qpn.into(),
            private_data: body.private_data,
        })
    }

    /// Writes the body.
    pub fn emit(&self, body: &mut [u8; BODY_LEN]) {
        let value = Body {
            local_comm_id: self.local_comm_id.0.into(),
            remote_comm_id: self.remote_comm_id.0.into(),
            remote_qpn: self.remote_qpn.into(),
            reserved: 0,
            private_data: self.private_data,
        };
        store(&value, body);
    }
}
