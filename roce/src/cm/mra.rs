//! MRA: message receipt acknowledgement (IBTA vol. 1 section 12.6.6, table 107).

use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{CommId, store, view};
use crate::mad::BODY_LEN;
use crate::{Error, TimeoutCode};

/// Bytes of private data in an MRA.
pub const PRIVATE_DATA_LEN: usize = 222;

/// The layout on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Body {
    /// The sender's communication id.
    pub local_comm_id: U32,
    /// The receiver's communication id.
    pub remote_comm_id: U32,
    /// Message MRAed (2), reserved (6).
    pub message: u8,
    /// Service timeout (5), reserved (3).
    pub service_timeout: u8,
    /// Private data.
    pub private_data: [u8; PRIVATE_DATA_LEN],
}

const _: () = assert!(size_of::<Body>() == BODY_LEN);

/// Which message an MRA acknowledges (section 12.6.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Acknowledged {
    /// A REQ.
    Req = 0,
    /// A REP.
    Rep = 1,
    /// A LAP.
    Lap = 2,
}

/// A decoded MRA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The sender's communication id.
    pub local_comm_id: CommId,
    /// The receiver's communication id.
    pub remote_comm_id: CommId,
    /// The acknowledged message.
    pub acknowledged: Acknowledged,
    /// How long the sender needs for its answer.
    pub service_timeout: TimeoutCode,
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
            acknowledged: match body.message >> 6 {
                0 => Acknowledged::Req,
                1 => Acknowledged::Rep,
                2 => Acknowledged::Lap,
                value => return Err(Error::Field { field: "MRA message", value: value.into() }),
            },
            service_timeout: TimeoutCode::from_low_bits(body.service_timeout >> 3),
            private_data: body.private_data,
        })
    }

    /// Writes the body.
    pub fn emit(&self, body: &mut [u8; BODY_LEN]) {
        let value = Body {
            local_comm_id: self.local_comm_id.0.into(),
            remote_comm_id: self.remote_comm_id.0.into(),
            message: (self.acknowledged as u8) << 6,
            service_timeout: self.service_timeout.get() << 3,
            private_data: self.private_data,
        };
        store(&value, body);
    }
}
