//! RTU, ready to use, and DREP, reply to a request for communication release: each has two
//! communication ids and private data (IBTA vol. 1 sections 12.6.9 and 12.6.11, tables 111 and
//! 113).

use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{CommId, store, view};
use crate::Error;
use crate::mad::BODY_LEN;

/// Bytes of private data in each of them.
pub const PRIVATE_DATA_LEN: usize = 224;

/// The layout of both on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Body {
    /// The sender's communication id.
    pub local_comm_id: U32,
    /// The receiver's communication id.
    pub remote_comm_id: U32,
    /// Private data.
    pub private_data: [u8; PRIVATE_DATA_LEN],
}

const _: () = assert!(size_of::<Body>() == BODY_LEN);

macro_rules! pair_of_ids {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            /// The sender's communication id.
            pub local_comm_id: CommId,
            /// The receiver's communication id.
            pub remote_comm_id: CommId,
            /// Private data.
            pub private_data: [u8; PRIVATE_DATA_LEN],
        }

        impl $name {
            /// Parses a body.
            pub fn parse(body: &[u8; BODY_LEN]) -> Result<$name, Error> {
                let body = view::<Body>(body)?;
                Ok($name {
                    local_comm_id: CommId(body.local_comm_id.get()),
                    remote_comm_id: CommId(body.remote_comm_id.get()),
                    private_data: body.private_data,
                })
            }

            /// Writes the body.
            pub fn emit(&self, body: &mut [u8; BODY_LEN]) {
                let value = Body {
                    local_comm_id: self.local_comm_id.0.into(),
                    remote_comm_id: self.remote_comm_id.0.into(),
                    private_data: self.private_data,
                };
                store(&value, body);
            }
        }
    };
}

pair_of_ids! {
    /// The active side confirms the reply: the connection is established.
    Rtu
}

pair_of_ids! {
    /// The connection has ended on this side too.
    Drep
}
