//! Authentication Send and Authentication Receive (fabrics 3.1 and 3.2).

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::fctype;
use crate::auth::PROTOCOL;
use crate::command::{FLAGS_SGL, opcode};
use crate::sgl::Descriptor;

/// An Authentication Send, whose data are a message to the controller, or an Authentication
/// Receive, whose data are the controller's next message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AuthenticationCommand {
    opcode: u8,
    flags: u8,
    /// Command Identifier.
    pub cid: U16,
    fctype: u8,
    _reserved_5: [u8; 19],
    /// Where the message is, or where it goes.
    pub sgl: Descriptor,
    _reserved_40: u8,
    /// SP Specific 0 and 1, and the Security Protocol.
    spsp0: u8,
    spsp1: u8,
    secp: u8,
    /// Transfer Length (TL) of a Send, Allocation Length (AL) of a Receive, in bytes.
    pub len: U32,
    _reserved_48: [u8; 16],
}

impl AuthenticationCommand {
    /// The command that sends a message of so many bytes; its data's place is missing.
    pub fn send(len: u32) -> AuthenticationCommand {
        Self::new(fctype::AUTHENTICATION_SEND, len)
    }

    /// The command that receives a message into so many bytes; their place is missing.
    pub fn receive(len: u32) -> AuthenticationCommand {
        Self::new(fctype::AUTHENTICATION_RECEIVE, len)
    }

    fn new(fctype: u8, len: u32) -> AuthenticationCommand {
        let [secp, spsp0, spsp1] = PROTOCOL;
        let (opcode, flags, len) = (opcode::FABRICS, FLAGS_SGL, len.into());
        let sgl = Descriptor::none();
        Self { opcode, flags, fctype, sgl, spsp0, spsp1, secp, len, ..Self::new_zeroed() }
    }

    /// Whether it is of the protocol that authenticates hosts of fabrics.
    pub fn is_for_hosts(&self) -> bool {
        [self.secp, self.spsp0, self.spsp1] == PROTOCOL
    }
}
