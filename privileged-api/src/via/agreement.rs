//! What the two ends of a connection tell each other, in the private data of InfiniBand's messages,
//! which is not the consumer's.
//!
//! | bytes | REQ | REP |
//! |---|---|---|
//! | 0 | [`VERSION`] | likewise |
//! | 1 | reliability level | likewise |
//! | 2 | bit 0: peers may write; bit 1: peers may read | likewise |
//! | 3 | bytes of the discriminator that is asked for | 0 |
//! | 4..8 | the longest message, big-endian | likewise |
//! | 8..72 | the discriminator, then zeroes | |
//!
//! What follows is zero. A reader accepts nothing else. Whether the rights of peers fit, no end
//! decides: a request without a right fails.

use crate::attributes::EpAttributes;
use crate::via::LEVEL;
use crate::via::names::Discriminator;

/// The version of this layout.
const VERSION: u8 = 1;
/// What of the private data of a REQ is used.
pub(super) const REQ_LEN: usize = 72;
/// What of the private data of a REP is used.
pub(super) const REP_LEN: usize = 8;
const WRITE: u8 = 1;
const READ: u8 = 2;

/// What one end tells the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// The longest message, which has to be equal at both ends.
    pub(crate) longest: u32,
    rights: u8,
}

impl Offer {
    /// That of an endpoint.
    pub(crate) fn of(attr: &EpAttributes) -> Offer {
        let mut rights = 0;
        if attr.rc.rdma_write_enable {
            rights |= WRITE;
        }
        if attr.rc.rdma_read_enable {
            rights |= READ;
        }
        // Checked when the endpoint got it.
        Offer { longest: attr.max_dto_payload_size as u32, rights }
    }

    /// The private data of a REP.
    pub(super) fn encode(&self) -> [u8; REP_LEN] {
        let [a, b, c, d] = self.longest.to_be_bytes();
        [VERSION, LEVEL as u8, self.rights, 0, a, b, c, d]
    }

    /// Reads the private data of a REP.
    pub(super) fn decode(bytes: &[u8]) -> Option<Offer> {
        let (&[version, level, rights, 0, ref longest @ ..], rest) = bytes.split_first_chunk::<REP_LEN>()?
        else {
            return None;
        };
        let good = version == VERSION && level == LEVEL as u8 && rights & !(WRITE | READ) == 0;
        let good = good && rest.iter().all(|byte| *byte == 0);
        good.then_some(Offer { longest: u32::from_be_bytes(*longest), rights })
    }

    /// The private data of a REQ.
    pub(super) fn encode_request(&self, asked: &Discriminator) -> [u8; REQ_LEN] {
        let mut bytes = [0; REQ_LEN];
        let (common, name) = bytes.split_at_mut(REP_LEN);
        common.copy_from_slice(&self.encode());
        name.copy_from_slice(asked.padded());
        bytes[3] = asked.len() as u8;
        bytes
    }

    /// Reads the private data of a REQ, and the discriminator that it asks for.
    pub(crate) fn decode_request(bytes: &[u8]) -> Option<(Offer, Discriminator)> {
        let (&used, rest) = bytes.split_first_chunk::<REQ_LEN>()?;
        if rest.iter().any(|byte| *byte != 0) {
            return None;
        }
        let (common, name) = used.split_first_chunk::<REP_LEN>()?;
        let mut common = *common;
        let len = core::mem::take(&mut common[3]);
        let asked = Discriminator::new(name.get(..len.into())?)?;
        let rest = name.get(len.into()..)?;
        let offer = Offer::decode(&common)?;
        rest.iter().all(|byte| *byte == 0).then_some((offer, asked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> Offer {
        Offer { longest: 0x12345, rights: READ }
    }

    #[test]
    fn a_request_is_read_as_it_was_written() {
        for len in 1..=64 {
            let asked = Discriminator::new(&[0xab; 64][..len]).unwrap();
            let mut padded = [0; 92];
            padded[..REQ_LEN].copy_from_slice(&offer().encode_request(&asked));
            assert_eq!(padded[..8], [1, 2, 2, len as u8, 0, 1, 0x23, 0x45]);
            assert_eq!(Offer::decode_request(&padded), Some((offer(), asked)));
        }
    }

    #[test]
    fn what_is_not_as_the_table_says_is_refused() {
        let asked = Discriminator::new(b"disk").unwrap();
        let mut good = [0; 92];
        good[..REQ_LEN].copy_from_slice(&offer().encode_request(&asked));
        for (at, value) in
            [(0, 2), (1, 0), (1, 1), (2, 4), (3, 0), (3, 65), (3, 255), (3, 3), (12, 1), (91, 1)]
        {
            let mut bytes = good;
            bytes[at] = value;
            assert_eq!(Offer::decode_request(&bytes), None, "{value} at {at}");
        }
        assert_eq!(Offer::decode_request(&good[..REQ_LEN - 1]), None);
        let mut reply = [0; 196];
        reply[..REP_LEN].copy_from_slice(&offer().encode());
        assert_eq!(Offer::decode(&reply), Some(offer()));
        for (at, value) in [(0, 0), (1, 1), (2, 8), (3, 1), (REP_LEN, 1), (195, 1)] {
            let mut bytes = reply;
            bytes[at] = value;
            assert_eq!(Offer::decode(&bytes), None, "{value} at {at}");
        }
        assert_eq!(Offer::decode(&reply[..REP_LEN - 1]), None);
    }
}
