//! What the two ends of a connection tell each other, in the private data of InfiniBand's messages.
//!
//! | bytes | REQ | REP |
//! |---|---|---|
//! | 0 | [`VERSION`] | [`VERSION`] |
//! | 1 | reliability level | reliability level |
//! | 2 | quality of service | quality of service |
//! | 3 | bit 0: accepts RDMA Write; bit 1: RDMA Read | likewise |
//! | 4..8 | maximum transfer size, not 0 | likewise |
//! | 8 | bytes of the client's discriminator | |
//! | 9 | bytes of the discriminator that the client asks for | |
//! | 10..12 | zero | |
//! | 12..28 | the first half of the SHA-256 of the discriminator asked for | |
//! | 28..92 | the client's discriminator, then zeroes | |
//!
//! Two discriminators of 64 bytes do not fit into a REQ. The server compares the one that is asked
//! for, so its digest will do. Numbers are big-endian, as InfiniBand's. What follows is zero.

use roce::Gid;
use sha2::{Digest as _, Sha256};

use crate::address::{MAX_DISCRIMINATOR, NetAddress};
use crate::attributes::{Qos, ReliabilityLevel, ViAttributes};
use crate::handle::PtagHandle;

/// The version of this layout.
pub const VERSION: u8 = 1;
/// The private data of a REQ (IBTA 12.6.5).
pub const REQ_LEN: usize = 92;
/// What of the private data of a REP is used.
pub const REP_LEN: usize = 8;

const WRITE: u8 = 1;
const READ: u8 = 2;

/// A digest of a discriminator, which stands for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    len: u8,
    hash: [u8; 16],
}

impl Digest {
    /// The digest of a discriminator.
    pub fn of(discriminator: &[u8]) -> Digest {
        let full: [u8; 32] = Sha256::digest(discriminator).into();
        let mut hash = [0; 16];
        hash.copy_from_slice(&full[..16]);
        Digest { len: discriminator.len() as u8, hash }
    }
}

/// What a client tells the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The attributes of the client's virtual interface.
    pub attributes: ViAttributes,
    /// The client's own discriminator.
    pub discriminator: heapless::Vec<u8, MAX_DISCRIMINATOR>,
    /// What stands for the discriminator that the client asks for.
    pub asked: Digest,
}

/// The attributes, in the bytes that REQ and REP have in common.
fn put(attributes: &ViAttributes, into: &mut [u8; REP_LEN]) {
    let mut flags = 0;
    if attributes.enable_rdma_write {
        flags |= WRITE;
    }
    if attributes.enable_rdma_read {
        flags |= READ;
    }
    into[..4].copy_from_slice(&[VERSION, attributes.reliability_level as u8, attributes.qos.0 as u8, flags]);
    into[4..].copy_from_slice(&(attributes.max_transfer_size as u32).to_be_bytes());
}

fn take(from: &[u8; REP_LEN]) -> Option<ViAttributes> {
    let [version, level, qos, flags, size @ ..] = *from;
    let size = u32::from_be_bytes(size);
    if version != VERSION || flags & !(WRITE | READ) != 0 || size == 0 {
        return None;
    }
    Some(ViAttributes {
        reliability_level: ReliabilityLevel::from_byte(level)?,
        max_transfer_size: size.into(),
        qos: Qos(qos.into()),
        ptag: PtagHandle::NULL,
        enable_rdma_write: flags & WRITE != 0,
        enable_rdma_read: flags & READ != 0,
    })
}

impl Request {
    /// The private data of a REQ. The maximum transfer size has 32 bits.
    pub fn encode(attributes: &ViAttributes, own: &NetAddress, asked: &NetAddress) -> [u8; REQ_LEN] {
        let mut bytes = [0; REQ_LEN];
        let mut common = [0; REP_LEN];
        put(attributes, &mut common);
        bytes[..REP_LEN].copy_from_slice(&common);
        let (own, asked) = (own.discriminator(), Digest::of(asked.discriminator()));
        bytes[8] = own.len() as u8;
        bytes[9] = asked.len;
        bytes[12..28].copy_from_slice(&asked.hash);
        bytes[28..28 + own.len()].copy_from_slice(own);
        bytes
    }

    /// Reads the private data of a REQ; `None` unless each field is as the table says.
    pub fn decode(bytes: &[u8]) -> Option<Request> {
        let bytes: &[u8; REQ_LEN] = bytes.try_into().ok()?;
        let attributes = take(bytes.first_chunk()?)?;
        let [own_len, asked_len, 0, 0] = *bytes[8..].first_chunk()? else { return None };
        let hash = *bytes[12..].first_chunk()?;
        let (own, rest) = bytes[28..].split_at_checked(own_len.into())?;
        if usize::from(asked_len) > MAX_DISCRIMINATOR || rest.iter().any(|byte| *byte != 0) {
            return None;
        }
        let discriminator = heapless::Vec::from_slice(own).ok()?;
        Some(Request { attributes, discriminator, asked: Digest { len: asked_len, hash } })
    }

    /// The client's address.
    pub fn address(&self, host: Gid) -> NetAddress {
        // Both lengths are within the bounds of an address.
        NetAddress::new(&host.0, &self.discriminator).unwrap_or_else(|_| NetAddress::unknown())
    }
}

/// The private data of a REP.
pub fn encode_reply(attributes: &ViAttributes) -> [u8; REP_LEN] {
    let mut bytes = [0; REP_LEN];
    put(attributes, &mut bytes);
    bytes
}

/// Reads the private data of a REP; `None` unless each field is as the table says.
pub fn decode_reply(bytes: &[u8]) -> Option<ViAttributes> {
    let (used, rest) = bytes.split_first_chunk()?;
    if rest.iter().any(|byte| *byte != 0) {
        return None;
    }
    take(used)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes() -> ViAttributes {
        ViAttributes {
            reliability_level: ReliabilityLevel::Delivery,
            max_transfer_size: 0x12345,
            qos: Qos(3),
            ptag: PtagHandle::NULL,
            enable_rdma_write: true,
            enable_rdma_read: false,
        }
    }

    fn address(discriminator: &[u8]) -> NetAddress {
        NetAddress::new(&[7; 16], discriminator).unwrap()
    }

    #[test]
    fn a_request_has_its_fields_in_their_places() {
        let bytes = Request::encode(&attributes(), &address(b"me"), &address(b"you"));
        assert_eq!(bytes[..12], [1, 1, 3, 1, 0, 1, 0x23, 0x45, 2, 3, 0, 0]);
        assert_eq!((&bytes[28..30], bytes[30..].iter().all(|byte| *byte == 0)), (&b"me"[..], true));
        let request = Request::decode(&bytes).unwrap();
        assert_eq!(request.attributes, attributes());
        assert_eq!(request.address(Gid([9; 16])), NetAddress::new(&[9; 16], b"me").unwrap());
        assert_eq!(request.asked, Digest::of(b"you"));
        assert_ne!(request.asked, Digest::of(b"yov"));
    }

    #[test]
    fn discriminators_of_every_length_go_along() {
        let longest = [0xab; MAX_DISCRIMINATOR];
        for len in 0..=MAX_DISCRIMINATOR {
            let own = address(&longest[..len]);
            let bytes = Request::encode(&attributes(), &own, &own);
            let request = Request::decode(&bytes).unwrap();
            assert_eq!(request.discriminator, longest[..len]);
            assert_eq!(request.asked, Digest::of(&longest[..len]));
        }
    }

    #[test]
    fn the_digest_of_the_empty_discriminator_is_that_of_sha_256() {
        let digest = Digest::of(b"");
        assert_eq!(digest.hash[..4], [0xe3, 0xb0, 0xc4, 0x42]);
        assert_eq!(digest.len, 0);
        assert_ne!(digest, Digest { len: 1, ..digest }, "the length counts");
    }

    #[test]
    fn requests_of_a_wrong_version_or_length_are_refused() {
        let good = Request::encode(&attributes(), &address(b"me"), &address(b"you"));
        assert!(Request::decode(&good).is_some());
        assert!(Request::decode(&good[..REQ_LEN - 1]).is_none() && Request::decode(&[]).is_none());
        let wrong = [
            (0, 0, "version"),
            (0, VERSION + 1, "version"),
            (1, 3, "level"),
            (3, 4, "flags"),
            (8, 65, "own length"),
            (8, 255, "own length"),
            (8, 1, "bytes behind the discriminator"),
            (9, 65, "asked length"),
            (10, 1, "reserved"),
            (11, 1, "reserved"),
            (91, 1, "bytes behind the discriminator"),
        ];
        for (at, value, what) in wrong {
            let mut bytes = good;
            bytes[at] = value;
            assert_eq!(Request::decode(&bytes), None, "{what}: {value} at {at}");
        }
    }

    #[test]
    fn a_reply_is_read_as_it_was_written_or_refused() {
        let mut padded = [0; 196];
        padded[..REP_LEN].copy_from_slice(&encode_reply(&attributes()));
        assert_eq!(decode_reply(&padded), Some(attributes()));
        let largest = ViAttributes { max_transfer_size: u32::MAX.into(), ..attributes() };
        assert_eq!(decode_reply(&encode_reply(&largest)), Some(largest));
        let none = ViAttributes { max_transfer_size: 0, ..attributes() };
        assert_eq!(decode_reply(&encode_reply(&none)), None);
        for (at, value) in [(0, 2), (1, 9), (3, 0x80), (REP_LEN, 1), (195, 1)] {
            let mut bytes = padded;
            bytes[at] = value;
            assert_eq!(decode_reply(&bytes), None, "{value} at {at}");
        }
        assert_eq!(decode_reply(&padded[..REP_LEN - 1]), None);
    }
}
