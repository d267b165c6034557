//! Each bit of a header or management message has a place in its decoded form, or is reserved.
#![expect(clippy::single_range_in_vec_init, reason = "lists of ranges of bits, some of which have one")]

extern crate ferrovia_roce as roce;

use core::ops::Range;

use roce::cm::{Datagram, ip_cm};
use roce::wire::{ethernet, ipv4, ipv6, packet, udp};
use roce::{Error, Gid};

/// What parsing and emitting does to bytes, one bit of which is changed at a time.
#[derive(Debug, Default, PartialEq, Eq)]
struct Bits {
    /// The bits that are lost, since they are reserved.
    lost: Vec<Range<usize>>,
    /// The bits for which the bytes are refused.
    refused: Vec<Range<usize>>,
}

fn add(ranges: &mut Vec<Range<usize>>, bit: usize) {
    match ranges.last_mut() {
        Some(last) if last.end == bit => last.end += 1,
        _ => ranges.push(bit..bit + 1),
    }
}

#[track_caller]
fn check(bits: &Bits, lost: &[Range<usize>], refused: &[Range<usize>], what: &str) {
    assert_eq!((&bits.lost[..], &bits.refused[..]), (lost, refused), "{what}");
}

/// Changes each bit of `bytes`, which must be the same after they were parsed and emitted. Bit 0 is
/// the highest one of the first byte, as the specifications draw it.
fn bits(bytes: &[u8], again: impl Fn(&[u8]) -> Option<Vec<u8>>) -> Bits {
    assert_eq!(again(bytes).as_deref(), Some(bytes));
    let mut bits = Bits::default();
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.to_vec();
        changed[bit / 8] ^= 0x80 >> (bit % 8);
        match again(&changed) {
            None => add(&mut bits.refused, bit),
            Some(back) if back == bytes => add(&mut bits.lost, bit),
            Some(back) => assert_eq!(back, changed, "bit {bit}"),
        }
    }
    bits
}

/// The reserved bits are those of the tables of IBTA vol. 1 section 12.6.
#[test]
fn each_bit_of_a_message_has_its_place() {
    type Ranges<'a> = &'a [Range<usize>];
    // The bits that are lost, and those for which a message is refused.
    let tables: [(Ranges<'_>, Ranges<'_>); 11] = [
        // REQ
        (&[32..64, 192..224, 724..730, 757..760, 765..768, 1076..1082, 1109..1112, 1117..1120], &[]),
        // MRA
        (&[66..72, 77..80], &[]),
        // REJ
        (&[66..72, 79..80], &[]),
        // REP
        (&[120..128, 152..160, 184..192, 220..224], &[]),
        // RTU
        (&[], &[]),
        // DREQ
        (&[88..96], &[]),
        // DREP
        (&[], &[]),
        // SIDR_REQ
        (&[48..64], &[]),
        // SIDR_REP: a status above 7, and more information than there is room for
        (&[48..64, 88..96], &[32..37, 40..41]),
        // LAP
        (&[64..96, 125..160, 468..472, 488..490, 501..504, 509..512], &[]),
        // APR: more information than there is room for
        (&[80..96], &[64..65]),
    ];
    for (attr, (lost, refused)) in (0x10..).zip(tables) {
        let again = |body: &[u8]| {
            let head = [1, 7, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, attr, 0, 0, 0, 0, 0, 0];
            let parsed = Datagram::parse(&[&head, body].concat()).ok()?;
            Some(parsed.emit()[24..].to_vec())
        };
        check(&bits(&[0; 232], again), lost, refused, &format!("{attr:#x}"));
    }
}

#[test]
fn a_message_carries_as_much_information_as_it_has_room_for() {
    // The length's byte in a SIDR_REP and in an APR.
    for (attr, place) in [(0x18, 24 + 5), (0x1a, 24 + 8)] {
        let mut bytes = [0; 256];
        (bytes[0], bytes[1], bytes[2], bytes[3], bytes[17]) = (1, 7, 2, 3, attr);
        for (length, fits) in [(71, true), (72, true), (73, false), (255, false)] {
            bytes[place] = length;
            assert_eq!(Datagram::parse(&bytes).is_ok(), fits, "{attr:#x} {length}");
        }
    }
}

/// What follows the BTH, for each opcode.
#[test]
fn each_bit_of_a_packet_has_its_place() {
    let again = |bytes: &[u8]| {
        let parsed = packet::Repr::parse(bytes).ok()?;
        let mut back = vec![0; parsed.len()];
        parsed.emit(&mut back).ok()?;
        Some(back)
    };
    // Opcodes, and the size of their packets without payload.
    let plain: (&[u8], usize) = (&[0, 1, 2, 4, 7, 8, 0xe, 0x20, 0x21, 0x22, 0x24, 0x27, 0x28, 0x81], 12);
    let immediate_or_key: (&[u8], usize) = (&[3, 5, 9, 0x16, 0x17, 0x23, 0x25, 0x29], 16);
    let reth: (&[u8], usize) = (&[6, 0xa, 0xc, 0x26, 0x2a], 28);
    let reth_and_immediate: (&[u8], usize) = (&[0xb, 0x2b], 32);
    let atomic: (&[u8], usize) = (&[0x13, 0x14], 40);
    let aeth: (&[u8], usize) = (&[0xd, 0xf, 0x10, 0x11], 16);
    let aeth_and_original: (&[u8], usize) = (&[0x12], 24);
    let datagram: (&[u8], usize) = (&[0x64], 20);
    let datagram_with_immediate: (&[u8], usize) = (&[0x65], 24);
    let mut known = Vec::new();
    for (opcodes, len) in [
        plain,
        immediate_or_key,
        reth,
        reth_and_immediate,
        atomic,
        aeth,
        aeth_and_original,
        datagram,
        datagram_with_immediate,
    ] {
        for &opcode in opcodes {
            let mut bytes = vec![0; len];
            bytes[0] = opcode;
            assert!(packet::Repr::parse(&bytes[..len - 1]).is_err(), "{opcode:#x}");
            // The opcode stays as it is.
            let found = bits(&bytes, |bytes| if bytes[0] == opcode { again(bytes) } else { None });
            // A packet without payload has no padding, and there is one version.
            let (mut lost, mut refused) = (vec![34..40, 65..72], vec![0..8, 10..16]);
            match opcode {
                // The highest bit of the syndrome; and a kind of syndromes that does not exist.
                0xd..=0x12 if opcode != 0xe => {
                    lost.push(96..97);
                    refused.push(97..98);
                }
                0x64 | 0x65 => lost.push(128..136),
                _ => {}
            }
            check(&found, &lost, &refused, &format!("{opcode:#x}"));
            known.push(opcode);
        }
    }
    for version in 1..16 {
        let mut bytes = [0; 12];
        bytes[1] = 0xf0 | version;
        let error = Error::Field { field: "BTH transport header version", value: version.into() };
        assert_eq!(packet::Repr::parse(&bytes), Err(error));
    }
    for opcode in (0..=255).filter(|opcode| !known.contains(opcode)) {
        let mut bytes = [0; 64];
        bytes[0] = opcode;
        assert!(packet::Repr::parse(&bytes).is_err(), "{opcode:#x}");
    }
}

#[test]
fn each_bit_of_a_frame_s_headers_has_its_place() {
    let (none, mut frame) = (Vec::new(), [0; 14]);
    frame[12] = 8;
    let found = bits(&frame, |bytes| {
        let mut back = vec![0; 14];
        ethernet::Repr::parse(bytes).ok()?.0.emit(&mut back).ok()?;
        Some(back)
    });
    check(&found, &none, &none, "Ethernet");
    let ip = [&[0x60, 0, 0, 0][..], &[0; 36]].concat();
    let found = bits(&ip, |bytes| {
        let mut back = vec![0; 40];
        ipv6::Repr::parse_header(bytes).ok()?.0.emit(&mut back).ok()?;
        Some(back)
    });
    check(&found, &none, &[0..4], "IPv6");
    for version in (0..16).filter(|&version| version != 6) {
        let error = Error::Field { field: "IPv6 version", value: version.into() };
        assert_eq!(ipv6::Repr::parse_header(&[&[version << 4 | 5][..], &[0; 39]].concat()), Err(error));
    }
    // Any other length than that of the bytes is too long, or shorter than the header.
    let found = bits(&[0, 0, 0, 0, 0, 8, 0, 0], |bytes| {
        let mut back = vec![0; 8];
        udp::Repr::parse(bytes).ok()?.0.emit(&mut back).ok()?;
        Some(back)
    });
    check(&found, &none, &[32..48], "UDP");
    // The minor version, reserved bits, and those in front of an IPv4 address; all major versions
    // and IP versions but one or two.
    let header = [&[0, 0x40][..], &[0; 34]].concat();
    let found = bits(&header, |bytes| {
        let mut back = vec![0; 36];
        ip_cm::Repr::parse(bytes).ok()?.0.emit(&mut back).ok()?;
        Some(back)
    });
    check(&found, &[4..8, 12..16, 32..128, 160..256], &[0..4, 8..10, 11..12], "IP CM");
}

/// The one's complement sum of a header's words (RFC 1071).
fn sum(bytes: &[u8]) -> u16 {
    bytes.chunks_exact(2).fold(0, |sum, word| {
        let (sum, carry) = sum.overflowing_add(u16::from_be_bytes([word[0], word[1]]));
        sum + u16::from(carry)
    })
}

#[test]
fn each_bit_of_an_ipv4_header_has_its_place_and_is_in_the_checksum() {
    let sealed = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes[10..12].fill(0);
        let checksum = !sum(&bytes);
        bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
        bytes
    };
    let header = [&[0x45, 0, 0x40, 20][..], &[0; 16]].concat();
    // The checksum's own bits count as zero here, and are made anew.
    let found = bits(&header, |bytes| {
        let mut back = vec![0; 20];
        ipv4::Repr::parse_header(&sealed(bytes)).ok()?.0.emit(&mut back).ok()?;
        assert_eq!(back, sealed(&back));
        back[10..12].fill(0);
        Some(back)
    });
    // Fragments, and options.
    check(&found, &[80..96], &[0..8, 48..49, 50..64], "IPv4");
    for bit in 0..160 {
        let mut changed = sealed(&header);
        changed[bit / 8] ^= 0x80 >> (bit % 8);
        assert!(ipv4::Repr::parse_header(&changed).is_err(), "bit {bit}");
    }
    // Whatever the words sum to.
    for ident in 0..=u16::MAX {
        let mut header = [0xff; 20];
        (header[0], header[6], header[7]) = (0x45, 0, 0);
        header[4..6].copy_from_slice(&ident.to_be_bytes());
        let header = sealed(&header);
        assert_eq!(sum(&header), u16::MAX);
        let (parsed, _) = ipv4::Repr::parse_header(&header).unwrap();
        let mut back = [0; 20];
        parsed.emit(&mut back).unwrap();
        assert_eq!(header, back, "{ident:#x}");
    }
}

#[test]
fn a_packet_that_is_cut_off_says_how_much_is_missing() {
    let src = core::net::Ipv4Addr::new(10, 0, 0, 1);
    let v4 = ipv4::Repr {
        tos: 0,
        ident: 0,
        dont_fragment: true,
        ttl: 1,
        protocol: 17,
        src,
        dst: src,
        payload_len: 30,
    };
    let mut bytes = [0; 60];
    v4.emit(&mut bytes).unwrap();
    assert_eq!(ipv4::Repr::parse(&bytes), Ok((v4, &bytes[20..50])), "padding is cut off");
    let short = Error::Truncated { what: "IPv4 packet", need: 50, have: 49 };
    assert_eq!(ipv4::Repr::parse(&bytes[..49]), Err(short));
    let v6 = ipv6::Repr {
        traffic_class: 0,
        flow_label: 0,
        next_header: 17,
        hop_limit: 1,
        src: Gid::from_ipv4(src),
        dst: Gid::from_ipv4(src),
        payload_len: 15,
    };
    let mut bytes = [0; 60];
    v6.emit(&mut bytes).unwrap();
    assert_eq!(ipv6::Repr::parse(&bytes), Ok((v6, &bytes[40..55])), "padding is cut off");
    let short = Error::Truncated { what: "IPv6 packet", need: 55, have: 54 };
    assert_eq!(ipv6::Repr::parse(&bytes[..54]), Err(short));
    let udp = udp::Repr { src_port: 1, dst_port: 2, checksum: 3, payload_len: 7 };
    let mut bytes = [0; 20];
    udp.emit(&mut bytes).unwrap();
    assert_eq!(udp::Repr::parse(&bytes), Ok((udp, &bytes[8..15])));
    let short = Error::Truncated { what: "UDP datagram", need: 15, have: 14 };
    assert_eq!(udp::Repr::parse(&bytes[..14]), Err(short));
}
