//! The acknowledge extended transport header (IBTA vol. 1 section 9.3.5).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{put, split};
use crate::Error;
use crate::number::U24;

/// The layout on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Reserved (1), kind (2), value (5).
    pub syndrome: u8,
    /// The message sequence number.
    pub msn: U24,
}

const _: () = assert!(size_of::<Header>() == Repr::LEN);

/// Why a request was refused (table 44).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Nak {
    /// A packet is missing: the requester shall go back to this packet's PSN.
    PsnSequenceError = 0,
    /// The request is invalid.
    InvalidRequest = 1,
    /// The key, the range or a right does not allow the access.
    RemoteAccessError = 2,
    /// The responder failed.
    RemoteOperationalError = 3,
    /// As InvalidRequest, for reliable datagrams.
    InvalidRdRequest = 4,
}

/// The meaning of an acknowledgement (table 43).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// All up to this PSN arrived; the 5-bit credit count, 31 for "not counted".
    Ack(u8),
    /// No receive buffer: wait as long as the 5-bit timer code says (table 45).
    RnrNak(u8),
    /// The request is refused.
    Nak(Nak),
}

impl Syndrome {
    /// Acknowledged, without end-to-end credits.
    pub const ACK: Syndrome = Syndrome::Ack(31);

    const fn from_bits(bits: u8) -> Result<Syndrome, Error> {
        let value = bits & 0x1f;
        let nak = match (bits >> 5 & 3, value) {
            (0, _) => return Ok(Syndrome::Ack(value)),
            (1, _) => return Ok(Syndrome::RnrNak(value)),
            (3, 0) => Nak::PsnSequenceError,
            (3, 1) => Nak::InvalidRequest,
            (3, 2) => Nak::RemoteAccessError,
            (3, 3) => Nak::RemoteOperationalError,
            (3, 4) => Nak::InvalidRdRequest,
            _ => return Err(Error::Field { field: "AETH syndrome", value: bits as u64 }),
        };
        Ok(Syndrome::Nak(nak))
    }

    const fn to_bits(self) -> u8 {
        match self {
            Syndrome::Ack(credits) => credits & 0x1f,
            Syndrome::RnrNak(timer) => 0x20 | timer & 0x1f,
            Syndrome::Nak(nak) => 0x60 | nak as u8,
        }
    }
}

/// The decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Whether the request is acknowledged, or why it is not.
    pub syndrome: Syndrome,
    /// How many messages the responder has completed; 24 bits.
    pub msn: u32,
}

impl Repr {
    /// Its size in bytes.
    pub const LEN: usize = 4;

    /// Parses the header at the start of `bytes`; returns it and the bytes behind it.
    pub fn parse(bytes: &[u8]) -> Result<(Repr, &[u8]), Error> {
        let (header, rest) = split::<Header>(bytes, "AETH")?;
        Ok((Repr { syndrome: Syndrome::from_bits(header.syndrome)?, msn: header.msn.get() }, rest))
    }

    /// Writes the header at the start of `into`, and returns the rest of it.
    pub fn emit<'a>(&self, into: &'a mut [u8]) -> Result<&'a mut [u8], Error> {
        put(into, &Header { syndrome: self.syndrome.to_bits(), msn: U24::new(self.msn) }, "AETH")
    }
}
