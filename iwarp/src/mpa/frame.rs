//! The Request and Reply that begin a stream (RFC 5044 section 7.1, RFC 6581 sections 4 to 9).

use crate::Error;
use crate::bytes::{Fields, Into};

/// The most bytes that a frame has behind its header, by the format.
pub const MAX_DATA: usize = 512;
/// The most private data beside IRD and ORD, by the format.
pub const MAX_PRIVATE_DATA: usize = MAX_DATA - Enhanced::LEN;
/// The most private data, beside IRD and ORD, that Linux's software iWARP both sends and takes. A
/// Request with more it closes; a Reply whose data, with IRD and ORD, has more than 256 bytes makes
/// Linux 6.1 fail.
pub const LINUX_PRIVATE_DATA: usize = 251;
/// The longest frame.
pub const MAX_FRAME: usize = Repr::HEADER + MAX_DATA;

/// The highest revision of MPA.
pub const REVISION: u8 = 2;

const REQUEST: &[u8; 16] = b"MPA ID Req Frame";
const REPLY: &[u8; 16] = b"MPA ID Rep Frame";

const MARKERS: u8 = 0x80;
const CRC: u8 = 0x40;
const REJECT: u8 = 0x20;
const ENHANCED: u8 = 0x10;

/// Which frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The initiator's.
    Request,
    /// The responder's.
    Reply,
}

impl Kind {
    const fn key(self) -> &'static [u8; 16] {
        match self {
            Kind::Request => REQUEST,
            Kind::Reply => REPLY,
        }
    }
}

/// A decoded frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr<'a> {
    /// Which frame.
    pub kind: Kind,
    /// Its sender wants markers in what it receives.
    pub markers: bool,
    /// Its sender wants CRCs, in both directions.
    pub crc: bool,
    /// The responder rejects the connection.
    pub reject: bool,
    /// The data begins with IRD and ORD. Only revision 2 has this flag.
    pub enhanced: bool,
    /// The revision of MPA, from 0 to [`REVISION`].
    pub revision: u8,
    /// What is behind the header: IRD and ORD, if there are any, and private data.
    pub data: &'a [u8],
}

impl<'a> Repr<'a> {
    /// The size of the header.
    pub const HEADER: usize = 20;

    /// Parses a frame of that kind at the start of `bytes`; returns it and the bytes behind it.
    pub fn parse(kind: Kind, bytes: &'a [u8]) -> Result<(Repr<'a>, &'a [u8]), Error> {
        check_prefix(kind, bytes)?;
        let (mut fields, rest) = Fields::of(bytes, Repr::HEADER, "MPA frame")?;
        let _key: [u8; 16] = fields.array();
        let (flags, revision, length) = (fields.byte(), fields.byte(), usize::from(fields.half()));
        let have = rest.len();
        let (data, rest) = rest.split_at_checked(length).ok_or(Error::Truncated {
            what: "MPA frame's data",
            need: length,
            have,
        })?;
        let repr = Repr {
            kind,
            markers: flags & MARKERS != 0,
            crc: flags & CRC != 0,
            reject: flags & REJECT != 0,
            enhanced: flags & ENHANCED != 0 && revision == REVISION,
            revision,
            data,
        };
        Ok((repr, rest))
    }

    /// Writes the frame at the start of `into`, and returns its length.
    pub fn emit(&self, into: &mut [u8]) -> Result<usize, Error> {
        let length = u16::try_from(self.data.len()).unwrap_or(u16::MAX);
        if usize::from(length) > MAX_DATA {
            return Err(Error::Field { field: "MPA PD_Length", value: length.into() });
        }
        let bit = |set: bool, mask: u8| if set { mask } else { 0 };
        let flags = bit(self.markers, MARKERS)
            | bit(self.crc, CRC)
            | bit(self.reject, REJECT)
            | bit(self.enhanced, ENHANCED);
        Into::new(into)
            .put(self.kind.key())
            .put(&[flags, self.revision])
            .put(&length.to_be_bytes())
            .put(self.data)
            .done("MPA frame")
    }

    /// IRD and ORD, if the frame has them, and the private data.
    pub fn split(&self) -> Result<(Option<Enhanced>, &'a [u8]), Error> {
        if !self.enhanced {
            return Ok((None, self.data));
        }
        let (enhanced, private) = Enhanced::parse(self.data)?;
        Ok((Some(enhanced), private))
    }
}

/// Checks as much of a frame as there is.
fn check_prefix(kind: Kind, bytes: &[u8]) -> Result<(), Error> {
    let key = kind.key();
    if let Some((&byte, _)) = bytes.iter().zip(key).find(|(byte, key)| byte != key) {
        return Err(Error::Field { field: "MPA key", value: byte.into() });
    }
    if let Some(&revision) = bytes.get(17).filter(|&&revision| revision > REVISION) {
        return Err(Error::Field { field: "MPA revision", value: revision.into() });
    }
    if let Some(&[high, low]) = bytes.get(18..20).and_then(|length| length.first_chunk()) {
        let length = u16::from_be_bytes([high, low]);
        if usize::from(length) > MAX_DATA {
            return Err(Error::Field { field: "MPA PD_Length", value: length.into() });
        }
    }
    Ok(())
}

/// A frame as it comes out of a stream that is cut anywhere. It has room for the longest frame, so
/// what the peer names decides no allocation.
#[derive(Clone, Debug)]
pub struct Parser {
    kind: Kind,
    bytes: [u8; MAX_FRAME],
    len: usize,
}

impl Parser {
    /// One that expects a frame of that kind.
    pub const fn new(kind: Kind) -> Parser {
        Parser { kind, bytes: [0; MAX_FRAME], len: 0 }
    }

    /// Takes bytes of the stream, and returns how many belong to the frame; those behind it are the
    /// caller's. Fails as soon as the bytes so far begin no frame.
    pub fn push(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        let mut taken = 0;
        // First the header, then what it announces.
        loop {
            let part = bytes.get(taken..).unwrap_or_default();
            let part = part.get(..self.missing()).unwrap_or(part);
            if part.is_empty() {
                return Ok(taken);
            }
            let place = self.bytes.get_mut(self.len..self.len + part.len());
            place.ok_or(Error::NoMemory)?.copy_from_slice(part);
            self.len += part.len();
            taken += part.len();
            check_prefix(self.kind, self.bytes.get(..self.len).unwrap_or_default())?;
        }
    }

    /// The length of the frame, as far as it is known.
    fn need(&self) -> usize {
        if self.len < Repr::HEADER {
            return Repr::HEADER;
        }
        Repr::HEADER + usize::from(u16::from_be_bytes([self.bytes[18], self.bytes[19]]))
    }

    /// How many more bytes belong to the frame, as far as that is known: first those of the header,
    /// then those that it announces. 0 once all of it has come. A caller that takes no more than
    /// that out of the stream leaves what is behind the frame there.
    pub fn missing(&self) -> usize {
        self.need().saturating_sub(self.len)
    }

    /// The frame, once all of it has come.
    pub fn frame(&self) -> Option<Repr<'_>> {
        if self.len < self.need() {
            return None;
        }
        let (repr, _) = Repr::parse(self.kind, self.bytes.get(..self.len)?).ok()?;
        Some(repr)
    }

    /// How many bytes have come.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether no byte has come.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A count of RDMA Reads, or [`Depth::UNSAID`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth(u16);

impl Depth {
    /// The sender says nothing, and leaves it to its consumer.
    pub const UNSAID: Depth = Depth(0x3fff);

    /// The count, at most 0x3ffe.
    pub const fn new(count: u16) -> Depth {
        Depth(if count < 0x3fff { count } else { 0x3ffe })
    }

    /// The count; `None` if the sender says nothing.
    pub const fn get(self) -> Option<u16> {
        if self.0 == 0x3fff { None } else { Some(self.0) }
    }
}

/// IRD, ORD and the choice of the first message (RFC 6581 section 9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Enhanced {
    /// How many RDMA Reads of the peer the sender takes at a time.
    pub ird: Depth,
    /// How many RDMA Reads the sender may have outstanding.
    pub ord: Depth,
    /// A: the initiator promises a first message that its consumer does not see, so that the
    /// responder may send.
    pub peer_to_peer: bool,
    /// B: the first message may be, in a Reply shall be, an empty Send.
    pub send: bool,
    /// C: it may be, in a Reply shall be, an empty RDMA Write.
    pub write: bool,
    /// D: it may be, in a Reply shall be, an empty RDMA Read.
    pub read: bool,
}

const HIGH: u16 = 0x8000;
const LOW: u16 = 0x4000;

impl Enhanced {
    /// Its size in bytes.
    pub const LEN: usize = 4;

    /// Parses it at the start of a frame's data; returns it and the private data.
    pub fn parse(data: &[u8]) -> Result<(Enhanced, &[u8]), Error> {
        let (mut fields, private) = Fields::of(data, Enhanced::LEN, "MPA IRD and ORD")?;
        let (ird, ord) = (fields.half(), fields.half());
        let enhanced = Enhanced {
            ird: Depth(ird & 0x3fff),
            ord: Depth(ord & 0x3fff),
            peer_to_peer: ird & HIGH != 0,
            send: ird & LOW != 0,
            write: ord & HIGH != 0,
            read: ord & LOW != 0,
        };
        Ok((enhanced, private))
    }

    /// Its bytes.
    pub fn to_bytes(self) -> [u8; Enhanced::LEN] {
        let bit = |set: bool, mask: u16| if set { mask } else { 0 };
        let [a, b] = (bit(self.peer_to_peer, HIGH) | bit(self.send, LOW) | self.ird.0).to_be_bytes();
        let [c, d] = (bit(self.write, HIGH) | bit(self.read, LOW) | self.ord.0).to_be_bytes();
        [a, b, c, d]
    }
}
