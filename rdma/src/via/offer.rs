//! What the two ends of a connection tell each other, in the private data of InfiniBand's messages,
//! which is not the consumer's.
//!
//! | bytes | REQ | REP |
//! |---|---|---|
//! | 0 | [`VERSION`] | [`VERSION`] |
//! | 1 | reliability level | reliability level |
//! | 2 | priority, at most [`HIGHEST_PRIORITY`] | priority |
//! | 3 | bit 0: accepts RDMA Write; bit 1: RDMA Read | likewise |
//! | 4..8 | bytes that one descriptor can transfer, not 0 | likewise |
//! | 8 | bytes of the asking end's own discriminator | |
//! | 9 | bytes of the discriminator that it asks for | |
//! | 10..12 | zero | |
//! | 12..28 | the first half of the SHA-256 of the discriminator asked for | |
//! | 28..92 | the asking end's own discriminator, then zeroes | |
//!
//! Two discriminators of 64 bytes do not fit into a REQ. The server compares the one that is asked
//! for, so its digest will do. It also determines the service ID of the REQ. An end whose consumer
//! has no discriminator of its own, as in IT-API, sends an empty one. Numbers are big-endian, as
//! InfiniBand's. What follows is zero.
//!
//! A reader accepts nothing else, so each message that it accepts has one form only.

use kernel_agent::Reliability;
use roce::ServiceId;

use super::names::{Digest, Discriminator, MAX_DISCRIMINATOR};

/// The version of this layout. Version 1 were two others, of IT-API and of VIPL.
pub const VERSION: u8 = 2;
/// The private data of a REQ (IBTA 12.6.5).
pub const REQ_LEN: usize = 92;
/// What of the private data of a REP is used.
pub const REP_LEN: usize = 8;
/// The highest priority; 0 is best effort.
pub const HIGHEST_PRIORITY: u8 = 7;

const WRITE: u8 = 1 << 0;
const READ: u8 = 1 << 1;

const OWN_LEN: usize = REP_LEN;
const ASKED_LEN: usize = REP_LEN + 1;
/// Where the hash begins, behind two bytes of zero.
const HASH: usize = REP_LEN + 4;
const OWN: usize = HASH + Digest::HASH_LEN;
const _: () = assert!(OWN + MAX_DISCRIMINATOR == REQ_LEN);

/// What one end of a connection is: the attributes of its virtual interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The reliability level.
    pub level: Reliability,
    /// The quality of service: a priority of the connection's packets, at most
    /// [`HIGHEST_PRIORITY`].
    pub priority: u8,
    /// The bytes that one descriptor can transfer; not 0.
    pub max_transfer: u32,
    /// Accepts the peer's RDMA Writes.
    pub accepts_write: bool,
    /// Accepts the peer's RDMA Reads.
    pub accepts_read: bool,
}

/// What both ends of a connection must have in common, and do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// The reliability level.
    Level,
    /// The bytes that one descriptor can transfer.
    MaxTransfer,
    /// The quality of service.
    Priority,
}

impl Offer {
    /// Fails unless both ends have the same level, size and quality. What one end accepts of the
    /// other is its own: a request without a right fails.
    pub fn agrees(&self, other: &Offer) -> Result<(), Conflict> {
        if self.level != other.level {
            return Err(Conflict::Level);
        }
        if self.max_transfer != other.max_transfer {
            return Err(Conflict::MaxTransfer);
        }
        if self.priority != other.priority { Err(Conflict::Priority) } else { Ok(()) }
    }

    /// The private data of a REP.
    pub fn encode(&self) -> [u8; REP_LEN] {
        let mut flags = 0;
        if self.accepts_write {
            flags |= WRITE;
        }
        if self.accepts_read {
            flags |= READ;
        }
        let [a, b, c, d] = self.max_transfer.to_be_bytes();
        [VERSION, self.level as u8, self.priority, flags, a, b, c, d]
    }

    /// Reads the private data of a REP; `None` unless each field is as the table says.
    pub fn decode(bytes: &[u8]) -> Option<Offer> {
        let (used, rest) = bytes.split_first_chunk()?;
        if rest.iter().any(|byte| *byte != 0) {
            return None;
        }
        Offer::read(used)
    }

    /// Reads what REQ and REP have in common.
    fn read(&[version, level, priority, flags, ref size @ ..]: &[u8; REP_LEN]) -> Option<Offer> {
        let max_transfer = u32::from_be_bytes(*size);
        let is_good = version == VERSION
            && priority <= HIGHEST_PRIORITY
            && flags & !(WRITE | READ) == 0
            && max_transfer != 0;
        let level = Reliability::from_byte(level).filter(|_| is_good)?;
        let (accepts_write, accepts_read) = (flags & WRITE != 0, flags & READ != 0);
        Some(Offer { level, priority, max_transfer, accepts_write, accepts_read })
    }
}

/// What the end that asks for a connection tells the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The attributes of its virtual interface.
    pub offer: Offer,
    /// Its own discriminator; empty if it has none.
    pub own: Discriminator,
    /// What stands for the discriminator that it asks for.
    pub asked: Digest,
}

impl Request {
    /// The private data of a REQ, which goes to the service [`Digest::service`] of `asked`.
    pub fn encode(&self) -> [u8; REQ_LEN] {
        let mut bytes = [0; REQ_LEN];
        bytes[..REP_LEN].copy_from_slice(&self.offer.encode());
        bytes[OWN_LEN] = self.own.len() as u8;
        bytes[ASKED_LEN] = self.asked.len;
        bytes[HASH..OWN].copy_from_slice(&self.asked.hash);
        bytes[OWN..].copy_from_slice(self.own.padded());
        bytes
    }

    /// Reads the private data of a REQ to this service; `None` unless each field is as the table
    /// says, and the service is that of the discriminator asked for.
    pub fn decode(bytes: &[u8], service: ServiceId) -> Option<Request> {
        let bytes: &[u8; REQ_LEN] = bytes.try_into().ok()?;
        let offer = Offer::read(bytes.first_chunk()?)?;
        let [own_len, asked_len, 0, 0] = *bytes[OWN_LEN..].first_chunk()? else { return None };
        let asked = Digest { len: asked_len, hash: *bytes[HASH..].first_chunk()? };
        let (own, rest) = bytes[OWN..].split_at_checked(own_len.into())?;
        let is_good = usize::from(asked_len) <= MAX_DISCRIMINATOR
            && rest.iter().all(|byte| *byte == 0)
            && asked.service() == service;
        let own = Discriminator::new(own).filter(|_| is_good)?;
        Some(Request { offer, own, asked })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> Offer {
        Offer {
            level: Reliability::Delivery,
            priority: 3,
            max_transfer: 0x12345,
            accepts_write: true,
            accepts_read: false,
        }
    }

    fn request(own: &[u8], asked: &[u8]) -> Request {
        let named = |name| Discriminator::new(name).unwrap();
        Request { offer: offer(), own: named(own), asked: Digest::of(&named(asked)) }
    }

    /// Reads a REQ that was sent to the service of this request.
    fn read(bytes: &[u8], of: &Request) -> Option<Request> {
        Request::decode(bytes, of.asked.service())
    }

    #[test]
    fn a_request_has_its_fields_in_their_places() {
        let request = request(b"me", b"you");
        let bytes = request.encode();
        assert_eq!(bytes[..12], [2, 1, 3, 1, 0, 1, 0x23, 0x45, 2, 3, 0, 0]);
        assert_eq!((&bytes[28..30], bytes[30..].iter().all(|byte| *byte == 0)), (&b"me"[..], true));
        assert_eq!(read(&bytes, &request), Some(request));
    }

    #[test]
    fn discriminators_of_every_length_go_along() {
        let longest = [0xab; MAX_DISCRIMINATOR];
        for len in 0..=MAX_DISCRIMINATOR {
            let request = request(&longest[..len], &longest[len..]);
            assert_eq!(read(&request.encode(), &request), Some(request));
        }
    }

    #[test]
    fn a_request_that_is_not_as_the_table_says_is_refused() {
        let request = request(b"me", b"you");
        let good = request.encode();
        assert_eq!(read(&good[..REQ_LEN - 1], &request), None);
        assert_eq!(read(&[], &request), None);
        let wrong = [
            (0, 0, "version"),
            (0, 1, "version"),
            (0, VERSION + 1, "version"),
            (1, 3, "level"),
            (2, 8, "priority"),
            (3, 4, "flags"),
            (8, 65, "own length"),
            (8, 255, "own length"),
            (8, 1, "bytes behind the discriminator"),
            (9, 65, "asked length"),
            (10, 1, "reserved"),
            (11, 1, "reserved"),
            (12, !good[12], "the digest of another service"),
            (91, 1, "bytes behind the discriminator"),
        ];
        for (at, value, what) in wrong {
            let mut bytes = good;
            bytes[at] = value;
            assert_eq!(read(&bytes, &request), None, "{what}: {value} at {at}");
        }
        let mut none = good;
        none[4..8].fill(0);
        assert_eq!(read(&none, &request), None, "no bytes to transfer");
        let other = ServiceId(request.asked.service().0 ^ 1);
        assert_eq!(Request::decode(&good, other), None, "another service");
    }

    /// Whatever a peer sends is refused, or is what the reader itself would have written.
    #[test]
    fn whatever_is_accepted_has_one_form_only() {
        for request in [request(b"", b"you"), request(&[0xff; 64], &[0; 64])] {
            let good = request.encode();
            for bit in 0..8 * REQ_LEN {
                let mut bytes = good;
                bytes[bit / 8] ^= 1 << (bit % 8);
                if let Some(read) = read(&bytes, &request) {
                    assert_eq!(read.encode(), bytes, "bit {bit}");
                }
            }
        }
        let good = offer().encode();
        for bit in 0..8 * REP_LEN {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Some(offer) = Offer::decode(&bytes) {
                assert_eq!(offer.encode(), bytes, "bit {bit}");
            }
        }
    }

    #[test]
    fn a_reply_is_read_as_it_was_written_or_refused() {
        let mut padded = [0; 196];
        padded[..REP_LEN].copy_from_slice(&offer().encode());
        assert_eq!(padded[..REP_LEN], [2, 1, 3, 1, 0, 1, 0x23, 0x45]);
        assert_eq!(Offer::decode(&padded), Some(offer()));
        let largest = Offer { max_transfer: u32::MAX, accepts_read: true, ..offer() };
        assert_eq!(Offer::decode(&largest.encode()), Some(largest));
        assert_eq!(Offer::decode(&Offer { max_transfer: 0, ..offer() }.encode()), None);
        for (at, value) in [(0, 1), (1, 9), (2, 8), (3, 0x80), (REP_LEN, 1), (195, 1)] {
            let mut bytes = padded;
            bytes[at] = value;
            assert_eq!(Offer::decode(&bytes), None, "{value} at {at}");
        }
        assert_eq!(Offer::decode(&padded[..REP_LEN - 1]), None);
    }

    #[test]
    fn both_ends_have_the_same_level_size_and_quality() {
        let ours = offer();
        assert_eq!(ours.agrees(&ours), Ok(()));
        let quality = Offer { priority: 1, ..ours };
        assert_eq!(ours.agrees(&quality), Err(Conflict::Priority));
        let size = Offer { max_transfer: 1, ..quality };
        assert_eq!(ours.agrees(&size), Err(Conflict::MaxTransfer));
        let level = Offer { level: Reliability::Reception, ..size };
        assert_eq!(ours.agrees(&level), Err(Conflict::Level));
        let rights = Offer { accepts_write: false, accepts_read: true, ..ours };
        assert_eq!(ours.agrees(&rights), Ok(()), "each end has its own");
    }
}
