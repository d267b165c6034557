//! RDMAP (RFC 5040): the messages, in the payload of DDP's segments and in a byte of each header.
//!
//! | module | subject |
//! |---|---|
//! | [`read`] | the request of an RDMA Read |
//! | [`terminate`] | Terminate, its codes, and the headers that it quotes |

pub mod read;
pub mod terminate;

/// The version of RDMAP.
pub const VERSION: u8 = 1;

/// The byte of RDMAP in each header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// The version of RDMAP, of two bits.
    pub version: u8,
    /// The opcode, of four bits.
    pub opcode: u8,
}

impl Control {
    /// The control byte of an operation, of this version.
    pub const fn new(opcode: Opcode) -> Control {
        Control { version: VERSION, opcode: opcode as u8 }
    }

    /// Decodes it.
    pub const fn parse(byte: u8) -> Control {
        Control { version: byte >> 6, opcode: byte & 0xf }
    }

    /// Encodes it.
    pub const fn to_byte(self) -> u8 {
        self.version << 6 | self.opcode & 0xf
    }

    /// The operation; `None` if RDMAP has no such opcode.
    pub fn opcode(self) -> Option<Opcode> {
        Opcode::ALL.get(usize::from(self.opcode)).copied()
    }
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Opcode {
    /// RDMA Write.
    Write = 0,
    /// The request of an RDMA Read.
    ReadRequest = 1,
    /// The response to an RDMA Read.
    ReadResponse = 2,
    /// Send.
    Send = 3,
    /// Send that invalidates an STag of the receiver.
    SendInvalidate = 4,
    /// Send whose completion raises an event.
    SendSolicited = 5,
    /// Send that does both.
    SendSolicitedInvalidate = 6,
    /// Terminate.
    Terminate = 7,
}

impl Opcode {
    /// All of them; an opcode's place is its number.
    pub const ALL: [Opcode; 8] = [
        Opcode::Write,
        Opcode::ReadRequest,
        Opcode::ReadResponse,
        Opcode::Send,
        Opcode::SendInvalidate,
        Opcode::SendSolicited,
        Opcode::SendSolicitedInvalidate,
        Opcode::Terminate,
    ];

    /// Whether its segments have tagged headers.
    pub const fn is_tagged(self) -> bool {
        matches!(self, Opcode::Write | Opcode::ReadResponse)
    }

    /// The Send that does this.
    pub const fn send(solicited: bool, invalidates: bool) -> Opcode {
        match (solicited, invalidates) {
            (false, false) => Opcode::Send,
            (false, true) => Opcode::SendInvalidate,
            (true, false) => Opcode::SendSolicited,
            (true, true) => Opcode::SendSolicitedInvalidate,
        }
    }

    /// Whether its completion at the receiver raises an event.
    pub const fn is_solicited(self) -> bool {
        matches!(self, Opcode::SendSolicited | Opcode::SendSolicitedInvalidate)
    }

    /// Whether it invalidates an STag of the receiver.
    pub const fn invalidates(self) -> bool {
        matches!(self, Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_control_byte_is_encoded_as_it_was_but_for_reserved_bits() {
        for byte in 0..=u8::MAX {
            assert_eq!(Control::parse(byte).to_byte(), byte & 0xcf);
        }
        for (number, opcode) in Opcode::ALL.into_iter().enumerate() {
            assert_eq!(opcode as usize, number);
            assert_eq!(Control::new(opcode).opcode(), Some(opcode));
        }
        assert_eq!(Control::parse(0x48).opcode(), None);
        for solicited in [false, true] {
            for invalidates in [false, true] {
                let send = Opcode::send(solicited, invalidates);
                assert_eq!((send.is_solicited(), send.invalidates()), (solicited, invalidates));
                assert!(!send.is_tagged());
            }
        }
    }
}
