//! The base transport header (IBTA vol. 1 section 9.2).

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::opcode::Opcode;
use super::{put, split};
use crate::number::U24;
use crate::{Error, PKey, Psn, Qpn};

/// The layout on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// The opcode.
    pub opcode: u8,
    /// Solicited event (1), migration state (1), pad count (2), transport header version (4).
    pub flags: u8,
    /// The partition key.
    pub pkey: U16,
    /// FECN (1), BECN (1), reserved (6). Does not count for the ICRC.
    pub congestion: u8,
    /// The destination queue pair.
    pub dest_qp: U24,
    /// Acknowledge request (1), reserved (7).
    pub ack_req: u8,
    /// The packet sequence number.
    pub psn: U24,
}

const _: () = assert!(size_of::<Header>() == Repr::LEN);

const SOLICITED: u8 = 0x80;
const MIGRATED: u8 = 0x40;
const ACK_REQUEST: u8 = 0x80;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;

/// The decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The opcode.
    pub opcode: Opcode,
    /// The receiver shall raise an event when the message completes.
    pub solicited: bool,
    /// The path migration state is "migrated".
    pub migrated: bool,
    /// How many bytes (0 to 3) fill the payload up to a multiple of four.
    pub pad: u8,
    /// The partition key.
    pub pkey: PKey,
    /// Forward explicit congestion notification.
    pub fecn: bool,
    /// Backward explicit congestion notification.
    pub becn: bool,
    /// The destination queue pair.
    pub dest_qp: Qpn,
    /// The responder shall acknowledge at once.
    pub ack_request: bool,
    /// The packet sequence number.
    pub psn: Psn,
}

impl Repr {
    /// Its size in bytes.
    pub const LEN: usize = 12;

    /// A header of the default partition, with all flags clear.
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Repr {
        Repr {
            opcode,
            solicited: false,
            migrated: false,
            pad: 0,
            pkey: PKey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qp,
            ack_request: false,
            psn,
        }
    }

    /// Parses the header at the start of `bytes`; returns it and the bytes behind it.
    pub fn parse(bytes: &[u8]) -> Result<(Repr, &[u8]), Error> {
        let (header, rest) = split::<Header>(bytes, "BTH")?;
        if header.flags & 0xf != 0 {
            let value = (header.flags & 0xf).into();
            return Err(Error::Field { field: "BTH transport header version", value });
        }
        let repr = Repr {
            opcode: Opcode::from_u8(header.opcode)?,
            solicited: header.flags & SOLICITED != 0,
            migrated: header.flags & MIGRATED != 0,
            pad: header.flags >> 4 & 3,
            pkey: PKey(header.pkey.get()),
            fecn: header.congestion & FECN != 0,
            becn: header.congestion & BECN != 0,
            dest_qp: header.dest_qp.into(),
            ack_request: header.ack_req & ACK_REQUEST != 0,
            psn: header.psn.into(),
        };
        Ok((repr, rest))
    }

    /// Writes the header at the start of `into`, and returns the rest of it.
    pub fn emit<'a>(&self, into: &'a mut [u8]) -> Result<&'a mut [u8], Error> {
        let bit = |set: bool, mask: u8| if set { mask } else { 0 };
        let header = Header {
            opcode: self.opcode.code(),
            flags: bit(self.solicited, SOLICITED) | bit(self.migrated, MIGRATED) | (self.pad & 3) << 4,
            pkey: self.pkey.0.into(),
            congestion: bit(self.fecn, FECN) | bit(self.becn, BECN),
            dest_qp: self.dest_qp.into(),
            ack_req: bit(self.ack_request, ACK_REQUEST),
            psn: self.psn.into(),
        };
        put(into, &header, "BTH")
    }
}
