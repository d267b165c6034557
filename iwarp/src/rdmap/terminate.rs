//! Terminate: the last message of an end that has found an error (RFC 5040 section 4.8), its codes,
//! and the headers that it quotes.
//!
//! Linux's software iWARP lays the message out in another way: it exchanges layer and type, counts
//! the flags from the other end of their byte, and quotes a length without header, and a header of
//! an RDMA Read whose MSN is the size. Both forms are read, as the flags tell them apart.

use core::fmt;

use crate::bytes::{Fields, Into};
use crate::mpa::fpdu;
use crate::{Error, ddp};

use super::{Control, Opcode, read};

/// Layer, type and code of an error: `0xLTCC`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code(u16);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $about:literal;)*) => {
        impl Code {
            $(
                #[doc = concat!("`", stringify!($value), "`: ", $about, ".")]
                pub const $name: Code = Code($value);
            )*

            /// Those that have a name.
            pub const ALL: &[Code] = &[$(Code::$name,)*];

            /// What it says.
            pub const fn about(self) -> &'static str {
                match self {
                    $(Code::$name => $about,)*
                    _ => "an error without a name",
                }
            }
        }
    };
}

codes! {
    LOCAL = 0x0000, "an error of the sender alone";
    READ_STAG = 0x0100, "an RDMA Read of an invalid STag";
    READ_BOUNDS = 0x0101, "an RDMA Read beyond the bounds of its source";
    RIGHT = 0x0102, "the memory does not allow the operation";
    READ_ASSOCIATION = 0x0103, "an RDMA Read of an STag that is not for this stream";
    READ_WRAP = 0x0104, "an RDMA Read whose tagged offset wraps";
    INVALIDATE = 0x0109, "the STag cannot be invalidated";
    RDMAP_VERSION = 0x0205, "another version of RDMAP";
    OPCODE = 0x0206, "an opcode that is unknown or not expected";
    STREAM = 0x0207, "the stream cannot go on";
    DDP_STAG = 0x1100, "a segment for an invalid STag";
    DDP_BOUNDS = 0x1101, "a segment beyond the bounds of its memory";
    DDP_ASSOCIATION = 0x1102, "a segment for an STag that is not for this stream";
    DDP_WRAP = 0x1103, "a segment whose tagged offset wraps";
    DDP_TAGGED_VERSION = 0x1104, "a tagged segment of another version of DDP";
    DDP_QUEUE = 0x1201, "a segment for another queue than its message's";
    DDP_NO_BUFFER = 0x1202, "a message without a buffer";
    DDP_MSN = 0x1203, "a message out of order, or one more than there may be";
    DDP_MO = 0x1204, "a segment out of its place in the message";
    DDP_TOO_LONG = 0x1205, "a message that is longer than its buffer";
    DDP_UNTAGGED_VERSION = 0x1206, "an untagged segment of another version of DDP";
    MPA_LOST = 0x2001, "the stream is lost";
    MPA_CRC = 0x2002, "a wrong CRC";
    MPA_LENGTH = 0x2003, "an FPDU whose length cannot be right";
    MPA_FRAME = 0x2004, "an invalid Request or Reply";
    MPA_LOCAL = 0x2005, "an error of the sender's MPA alone";
    MPA_IRD = 0x2006, "the peer wants more RDMA Reads than there may be";
    MPA_FIRST_MESSAGE = 0x2007, "no first message fits";
}

impl Code {
    /// A code; of the layer and the type four bits count.
    pub const fn new(layer: u8, kind: u8, code: u8) -> Code {
        Code((layer as u16 & 0xf) << 12 | (kind as u16 & 0xf) << 8 | code as u16)
    }

    /// The layer: 0 is RDMAP, 1 DDP, 2 MPA.
    pub const fn layer(self) -> u8 {
        (self.0 >> 12) as u8
    }

    /// The type, of which each layer has its own.
    pub const fn kind(self) -> u8 {
        (self.0 >> 8) as u8 & 0xf
    }

    /// The code of its type.
    pub const fn code(self) -> u8 {
        self.0 as u8
    }

    /// All three as a number: `0xLTCC`.
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Whether the refused operation was not allowed to reach the memory that it names.
    pub const fn is_protection(self) -> bool {
        // RDMAP's type 1 and DDP's for tagged segments.
        matches!(self.0 >> 8, 0x01 | 0x11)
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Code({:#06x}: {})", self.0, self.about())
    }
}

/// How the message is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As RFC 5040 says.
    Standard,
    /// As Linux's software iWARP does it.
    Linux,
}

/// What a Terminate quotes of the segment that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted {
    /// The length of the segment: of header and payload, or in Linux's form of the payload alone.
    pub length: u16,
    /// Its header.
    pub header: Option<ddp::Header>,
    /// The request, if it was that of an RDMA Read.
    pub read: Option<read::Repr>,
}

/// The decoded message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Why.
    pub code: Code,
    /// How it is laid out.
    pub form: Form,
    /// What it quotes.
    pub quoted: Option<Quoted>,
}

/// The flags of what is quoted: length, header, request.
const FLAGS: [u8; 3] = [0x80, 0x40, 0x20];
const LINUX_FLAGS: [u8; 3] = [0x01, 0x02, 0x04];

impl Repr {
    /// The longest one.
    pub const MAX: usize = 4 + 2 + ddp::Header::UNTAGGED + read::Repr::LEN;

    /// Parses the payload of a Terminate. What it promises to quote and does not have is left out.
    pub fn parse(bytes: &[u8]) -> Result<Repr, Error> {
        let (mut fields, rest) = Fields::of(bytes, 4, "Terminate")?;
        let (origin, code, flags) = (fields.byte(), fields.byte(), fields.byte());
        let (high, low) = (origin >> 4, origin & 0xf);
        let standard = Code::new(high, low, code);
        let swapped = Code::new(low, high, code);
        let linux = match (flags & 0xe0 != 0, flags & 0x07 != 0) {
            (true, _) => false,
            (false, true) => true,
            // Nothing is quoted: it is the form in which the code has a name.
            (false, false) => !Code::ALL.contains(&standard) && Code::ALL.contains(&swapped),
        };
        let [length, header, read] =
            if linux { LINUX_FLAGS } else { FLAGS }.map(|flag: u8| flags & flag != 0);
        let quoted = if length { quoted(rest, header, read) } else { None };
        let (code, form) = if linux { (swapped, Form::Linux) } else { (standard, Form::Standard) };
        Ok(Repr { code, form, quoted })
    }

    /// Writes the payload of the message at the start of `into`, and returns its length.
    pub fn emit(&self, into: &mut [u8]) -> Result<usize, Error> {
        let header = self.quoted.and_then(|quoted| quoted.header);
        let read = self.quoted.and_then(|quoted| quoted.read);
        let present = [self.quoted.is_some(), header.is_some(), read.is_some()];
        let (high, low, bits) = match self.form {
            Form::Standard => (self.code.layer(), self.code.kind(), FLAGS),
            Form::Linux => (self.code.kind(), self.code.layer(), LINUX_FLAGS),
        };
        let flags = bits.into_iter().zip(present).fold(0, |all, (bit, set)| all | if set { bit } else { 0 });
        let mut bytes = [0; Repr::MAX];
        let mut len =
            Into::new(&mut bytes).put(&[high << 4 | low, self.code.code(), flags, 0]).done("Terminate")?;
        if let Some(quoted) = self.quoted {
            let rest = bytes.get_mut(len..).unwrap_or_default();
            len += Into::new(rest).put(&quoted.length.to_be_bytes()).done("Terminate")?;
        }
        if let Some(header) = header {
            len += header.emit(bytes.get_mut(len..).unwrap_or_default())?;
        }
        if let Some(read) = read {
            len += read.emit(bytes.get_mut(len..).unwrap_or_default())?;
        }
        Into::new(into).put(bytes.get(..len).unwrap_or_default()).done("Terminate")
    }

    /// The segment that carries the message: header and payload. Returns its length.
    pub fn ulpdu(&self, into: &mut [u8; Repr::MAX + ddp::Header::UNTAGGED]) -> Result<usize, Error> {
        let place = ddp::Place::Untagged { invalidate: 0, queue: ddp::queue::TERMINATE, msn: 1, mo: 0 };
        let control = Control::new(Opcode::Terminate).to_byte();
        let head = ddp::Header::new(true, control, place).emit(into)?;
        Ok(head + self.emit(into.get_mut(head..).unwrap_or_default())?)
    }

    /// The FPDU that carries the message, for an end that has no engine: an initiator that refuses
    /// a Reply. Returns its length.
    pub fn fpdu(&self, crc: bool, into: &mut [u8]) -> Result<usize, Error> {
        let mut ulpdu = [0; Repr::MAX + ddp::Header::UNTAGGED];
        let len = self.ulpdu(&mut ulpdu)?;
        fpdu::emit(ulpdu.get(..len).unwrap_or_default(), crc, into)
    }
}

impl From<Code> for Repr {
    /// The message that says so and quotes nothing.
    fn from(code: Code) -> Repr {
        Repr { code, form: Form::Standard, quoted: None }
    }
}

/// What is quoted, as far as the bytes go.
fn quoted(bytes: &[u8], header: bool, read: bool) -> Option<Quoted> {
    let (mut fields, rest) = Fields::of(bytes, 2, "Terminate").ok()?;
    let length = fields.half();
    let parsed = if header { ddp::Header::parse(rest).ok() } else { None };
    let (header, rest) = match parsed {
        Some((header, rest)) => (Some(header), rest),
        None => return Some(Quoted { length, header: None, read: None }),
    };
    let read = if read { read::Repr::parse(rest).ok().map(|(read, _)| read) } else { None };
    Some(Quoted { length, header, read })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn codes_differ_and_have_their_parts() {
        let all: BTreeSet<_> = Code::ALL.iter().collect();
        assert_eq!(all.len(), Code::ALL.len());
        for &code in Code::ALL {
            assert_eq!(Code::new(code.layer(), code.kind(), code.code()), code);
        }
        assert!(Code::READ_STAG.is_protection() && Code::DDP_BOUNDS.is_protection());
        assert!(!Code::DDP_MSN.is_protection() && !Code::OPCODE.is_protection());
    }

    #[test]
    fn a_form_without_flags_is_told_by_the_code() {
        let parse = |origin, code| Repr::parse(&[origin, code, 0, 0]).unwrap();
        assert_eq!(parse(0x20, 2), Repr { code: Code::MPA_CRC, form: Form::Standard, quoted: None });
        assert_eq!(parse(0x02, 2), Repr { code: Code::MPA_CRC, form: Form::Linux, quoted: None });
        assert_eq!(parse(0x02, 4).code, Code::MPA_FRAME);
        // Both forms have it: the standard's counts.
        assert_eq!(parse(0x02, 6).code, Code::OPCODE);
        assert_eq!(parse(0xff, 9).form, Form::Standard);
    }

    #[test]
    fn what_is_promised_and_missing_is_left_out() {
        let whole = Repr {
            code: Code::READ_STAG,
            form: Form::Standard,
            quoted: Some(Quoted {
                length: 46,
                header: Some(ddp::Header::new(
                    true,
                    0x41,
                    ddp::Place::Untagged { invalidate: 0, queue: 1, msn: 7, mo: 0 },
                )),
                read: Some(read::Repr { sink_stag: 1, sink_to: 2, size: 3, source_stag: 4, source_to: 5 }),
            }),
        };
        let mut bytes = [0; Repr::MAX];
        assert_eq!(whole.emit(&mut bytes), Ok(Repr::MAX));
        assert_eq!(Repr::parse(&bytes), Ok(whole));
        for len in 0..Repr::MAX {
            let part = Repr::parse(&bytes[..len]);
            assert_eq!(part.is_ok(), len >= 4);
            let quoted = part.ok().and_then(|part| part.quoted);
            assert_eq!(quoted.is_some(), len >= 6);
            assert_eq!(quoted.is_some_and(|quoted| quoted.header.is_some()), len >= 24);
            assert!(quoted.is_none_or(|quoted| quoted.read.is_none()));
            assert!(whole.emit(&mut [0; Repr::MAX][..len]).is_err());
        }
    }
}
