//! Parsing arbitrary bytes never panics, and a packet that it accepts is the same after it was
//! emitted and parsed again.

extern crate ferrovia_roce as roce;

use proptest::prelude::*;
use roce::cm::{self, ip_cm};
use roce::wire::{datagram, ethernet, icrc, ipv4, ipv6, packet, udp};

/// A datagram with a sound header and any body.
fn cm_datagram() -> impl Strategy<Value = Vec<u8>> {
    (0x0f_u8..0x1c, prop::collection::vec(any::<u8>(), 232)).prop_map(|(attr, body)| {
        let mut mad = vec![1, 7, 2, 3, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, attr, 0, 0, 0, 0, 0, 0];
        mad.extend(body);
        mad
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 20 } else { 2000 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_bytes_are_parsed_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = ethernet::Repr::parse(&bytes);
        let _ = ipv4::Repr::parse(&bytes);
        let _ = ipv6::Repr::parse(&bytes);
        let _ = udp::Repr::parse(&bytes);
        let _ = packet::Repr::parse(&bytes);
        let _ = datagram::Repr::parse(&bytes);
        let _ = icrc::compute(&bytes);
        let _ = cm::Datagram::parse(&bytes);
        let _ = ip_cm::Repr::parse(&bytes);
    }

    #[test]
    fn an_accepted_packet_is_stable(
        mut bytes in prop::collection::vec(any::<u8>(), 12..120),
        op in 0..0x18_u8,
    ) {
        bytes[0] = op;
        bytes[1] &= 0xf0;
        if let Ok(parsed) = packet::Repr::parse(&bytes) {
            let mut back = vec![0; parsed.len()];
            prop_assert_eq!(parsed.emit(&mut back).unwrap().len(), 0);
            prop_assert_eq!(packet::Repr::parse(&back).unwrap(), packet::Repr { bth: parsed.bth, ..parsed });
        }
    }

    #[test]
    fn an_accepted_message_is_stable(bytes in cm_datagram()) {
        if let Ok(parsed) = cm::Datagram::parse(&bytes) {
            let back = parsed.emit();
            prop_assert_eq!(cm::Datagram::parse(&back).unwrap(), parsed);
        } else {
            // Refused are only values without a meaning: another attribute, or an undefined choice
            // in a field.
            prop_assert!(matches!(bytes[17], 0x0f | 0x1b | 0x11 | 0x12 | 0x18 | 0x1a));
        }
    }
}
