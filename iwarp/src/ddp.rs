//! DDP (RFC 5041): the headers of segments, and how a message is divided into segments.

use crate::Error;
use crate::bytes::{Fields, Into};

/// The version of DDP.
pub const VERSION: u8 = 1;

const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;
const VERSION_MASK: u8 = 0x03;

/// The queues of untagged messages (RFC 5040 section 4.1).
pub mod queue {
    /// The Sends.
    pub const SEND: u32 = 0;
    /// The requests of RDMA Reads.
    pub const READ: u32 = 1;
    /// The Terminate.
    pub const TERMINATE: u32 = 2;
}

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// It is the last segment of its message.
    pub last: bool,
    /// The version of DDP, of two bits.
    pub version: u8,
    /// The byte that RDMAP has in each header ([`crate::rdmap::Control`]).
    pub control: u8,
    /// Where the payload goes.
    pub place: Place,
}

/// Where the payload of a segment goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Into memory that its sender names.
    Tagged {
        /// The region or window.
        stag: u32,
        /// The tagged offset.
        to: u64,
    },
    /// Into the next buffer of a queue.
    Untagged {
        /// The word that RDMAP has in each untagged header: the STag to invalidate, or zero.
        invalidate: u32,
        /// The queue.
        queue: u32,
        /// The number of the message in its queue, from 1.
        msn: u32,
        /// Where in the message the segment begins.
        mo: u32,
    },
}

impl Header {
    /// The size of a tagged header.
    pub const TAGGED: usize = 14;
    /// The size of an untagged header.
    pub const UNTAGGED: usize = 18;

    /// A header of this version.
    pub const fn new(last: bool, control: u8, place: Place) -> Header {
        Header { last, version: VERSION, control, place }
    }

    /// Parses the header at the start of `ulpdu`; returns it and the payload. Versions are not
    /// judged: what to do about another one depends on the kind of header.
    pub fn parse(ulpdu: &[u8]) -> Result<(Header, &[u8]), Error> {
        let tagged = ulpdu.first().is_some_and(|flags| flags & TAGGED != 0);
        let (need, what) = if tagged {
            (Header::TAGGED, "tagged DDP header")
        } else {
            (Header::UNTAGGED, "untagged DDP header")
        };
        let (mut fields, payload) = Fields::of(ulpdu, need, what)?;
        let (flags, control) = (fields.byte(), fields.byte());
        let place = if tagged {
            Place::Tagged { stag: fields.word(), to: fields.long() }
        } else {
            let (invalidate, queue) = (fields.word(), fields.word());
            Place::Untagged { invalidate, queue, msn: fields.word(), mo: fields.word() }
        };
        let header = Header { last: flags & LAST != 0, version: flags & VERSION_MASK, control, place };
        Ok((header, payload))
    }

    /// Writes the header at the start of `into`, and returns its length.
    pub fn emit(&self, into: &mut [u8]) -> Result<usize, Error> {
        let flags = self.version & VERSION_MASK | if self.last { LAST } else { 0 };
        match self.place {
            Place::Tagged { stag, to } => Into::new(into)
                .put(&[TAGGED | flags, self.control])
                .put(&stag.to_be_bytes())
                .put(&to.to_be_bytes())
                .done("tagged DDP header"),
            Place::Untagged { invalidate, queue, msn, mo } => Into::new(into)
                .put(&[flags, self.control])
                .put(&invalidate.to_be_bytes())
                .put(&queue.to_be_bytes())
                .put(&msn.to_be_bytes())
                .put(&mo.to_be_bytes())
                .done("untagged DDP header"),
        }
    }

    /// Its size in bytes.
    pub const fn size(&self) -> usize {
        match self.place {
            Place::Tagged { .. } => Header::TAGGED,
            Place::Untagged { .. } => Header::UNTAGGED,
        }
    }
}

/// A part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Bytes of payload.
    pub length: u32,
    /// It is the last one.
    pub last: bool,
}

/// The segment of a message of `total` bytes that begins at `offset`, if segments carry at most
/// `most` bytes. An empty message has one segment.
pub fn segment(total: u32, offset: u32, most: u32) -> Segment {
    let left = total.saturating_sub(offset);
    let length = left.min(most.max(1));
    Segment { length, last: length == left }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_divided_into_full_segments_and_a_last_one() {
        assert_eq!(segment(0, 0, 1428), Segment { length: 0, last: true });
        assert_eq!(segment(1428, 0, 1428), Segment { length: 1428, last: true });
        assert_eq!(segment(1429, 0, 1428), Segment { length: 1428, last: false });
        assert_eq!(segment(1429, 1428, 1428), Segment { length: 1, last: true });
        assert_eq!(segment(u32::MAX, u32::MAX - 1, u32::MAX), Segment { length: 1, last: true });
        // A message always has an end.
        assert_eq!(segment(5, 0, 0), Segment { length: 1, last: false });
        assert_eq!(segment(5, 9, 4), Segment { length: 0, last: true });
    }
}
