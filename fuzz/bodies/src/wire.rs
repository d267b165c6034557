//! Bytes from the wire: packets and management datagrams.
//!
//! What must hold: parsing returns for any bytes, and whatever it accepts parses to the same value
//! after it is emitted.

use roce::cm::{self, ip_cm};
use roce::wire::{datagram, ethernet, icrc, ipv4, ipv6, packet, udp};

pub(crate) fn run(bytes: &[u8]) {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    match which % 8 {
        0 => {
            // Behind a tag that gives a priority only there may be another one, which would be the
            // first of what is emitted.
            let parsed = ethernet::Repr::parse(bytes).ok();
            let is_plain = |parsed: &ethernet::Repr| {
                parsed.vlan.is_some() || parsed.ether_type != ethernet::Repr::TAGGED
            };
            if let Some((parsed, rest)) = parsed.filter(|(parsed, _)| is_plain(parsed)) {
                let mut back = vec![0; parsed.len()];
                parsed.emit(&mut back).expect("room as it asks for");
                back.extend(rest);
                assert_eq!(ethernet::Repr::parse(&back), Ok((parsed, rest)));
            }
        }
        1 => drop(ipv4::Repr::parse(bytes)),
        2 => drop(ipv6::Repr::parse(bytes)),
        3 => drop(udp::Repr::parse(bytes)),
        4 => {
            if let Ok(parsed) = packet::Repr::parse(bytes) {
                let mut back = vec![0; parsed.len()];
                parsed.emit(&mut back).expect("room as it asks for");
                let again = packet::Repr::parse(&back).expect("what was emitted");
                assert_eq!(again, packet::Repr { bth: again.bth, ..parsed });
            }
        }
        5 => {
            if let Ok(parsed) = datagram::Repr::parse(bytes) {
                let mut back = vec![0; parsed.len()];
                if let Ok(len) = parsed.emit(&mut back) {
                    datagram::Repr::parse(&back[..len]).expect("what was emitted");
                }
            }
            let _ = icrc::compute(bytes);
        }
        6 => message(bytes),
        _ => {
            // A valid header, so that the parser reaches the body.
            let mut mad = vec![1, 7, 2, 3, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0x10, 0, 0, 0, 0, 0, 0];
            mad[17] += bytes.first().map_or(0, |b| b % 12);
            mad.extend(bytes.iter().skip(1));
            mad.resize(256, 0);
            message(&mad);
        }
    }
}

fn message(bytes: &[u8]) {
    let _ = ip_cm::Repr::parse(bytes);
    if let Ok(parsed) = cm::Datagram::parse(bytes) {
        assert_eq!(cm::Datagram::parse(&parsed.emit()).expect("what was emitted"), parsed);
    }
}
