//! MPA (RFC 5044, RFC 6581): the set-up of a stream, and its framing.
//!
//! | module | subject |
//! |---|---|
//! | [`frame`] | Request and Reply, and how they are found in a stream |
//! | [`negotiation`] | what both ends agree on, and why they do not |
//! | [`fpdu`] | the units in which the stream carries segments |
//! | [`crc`] | the checksum of an FPDU |

pub mod crc;
pub mod fpdu;
pub mod frame;
pub mod negotiation;

/// The smallest MULPDU that this crate uses. A path whose TCP segments are smaller still carries
/// FPDUs, but cuts them.
pub const MIN_MULPDU: u16 = 128;
/// The largest MULPDU.
pub const MAX_MULPDU: u16 = 64_768;

/// The longest ULPDU whose FPDU fits a TCP segment of so many bytes of payload.
pub fn mulpdu(segment: usize) -> u16 {
    // An FPDU is a multiple of four bytes; its length field takes two, its CRC four.
    let ulpdu = (segment & !3).saturating_sub(6);
    u16::try_from(ulpdu).unwrap_or(MAX_MULPDU).clamp(MIN_MULPDU, MAX_MULPDU)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_fpdu_of_the_mulpdu_fills_a_segment() {
        // Linux sends 1,428 bytes of tagged and 1,424 of untagged payload in a segment of 1,448.
        assert_eq!(mulpdu(1448), 1428 + 14);
        assert_eq!(mulpdu(1450), 1442);
        assert_eq!(mulpdu(0), MIN_MULPDU);
        assert_eq!(mulpdu(usize::MAX), MAX_MULPDU);
        for segment in 140..5000 {
            let fpdu = fpdu::length(mulpdu(segment).into());
            assert!(fpdu <= segment && fpdu + 4 > segment, "{segment}");
        }
    }
}
