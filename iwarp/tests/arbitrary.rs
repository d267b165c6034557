//! Parsing arbitrary bytes never panics, and what is accepted is the same after it was emitted and
//! parsed again.

extern crate ferrovia_iwarp as iwarp;

use iwarp::ddp::Header;
use iwarp::mpa::fpdu::{self, Receiver};
use iwarp::mpa::frame::{Enhanced, Kind, MAX_FRAME, Parser, Repr};
use iwarp::mpa::negotiation::{self, Wishes};
use iwarp::rdmap::{read, terminate};
use proptest::prelude::*;

/// Bytes that begin as a frame does.
fn frame() -> impl Strategy<Value = (Kind, Vec<u8>)> {
    let kinds = prop_oneof![Just(Kind::Request), Just(Kind::Reply)];
    let rest = prop::collection::vec(any::<u8>(), 0..60);
    (kinds, any::<u8>(), 0..4_u8, 0..40_u16, rest).prop_map(|(kind, flags, revision, length, rest)| {
        let key = if kind == Kind::Request { b"MPA ID Req Frame" } else { b"MPA ID Rep Frame" };
        let mut bytes = key.to_vec();
        bytes.extend([flags, revision]);
        bytes.extend(length.to_be_bytes());
        bytes.extend(rest);
        (kind, bytes)
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 20 } else { 2000 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_bytes_are_parsed_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok((header, payload)) = Header::parse(&bytes) {
            let mut back = vec![0; header.size()];
            prop_assert_eq!(header.emit(&mut back), Ok(header.size()));
            prop_assert_eq!(Header::parse(&back).unwrap().0, header);
            prop_assert_eq!(header.size() + payload.len(), bytes.len());
            prop_assert!(header.emit(&mut back[1..]).is_err());
        }
        if let Ok((request, _)) = read::Repr::parse(&bytes) {
            let mut back = [0; read::Repr::LEN];
            prop_assert_eq!(request.emit(&mut back), Ok(read::Repr::LEN));
            prop_assert_eq!(&back[..], &bytes[..read::Repr::LEN]);
        }
        if let Ok(message) = terminate::Repr::parse(&bytes) {
            let mut back = [0; terminate::Repr::MAX];
            let len = message.emit(&mut back).unwrap();
            // What quotes nothing may be read in either form.
            let again = terminate::Repr::parse(&back[..len]);
            prop_assert!(again == Ok(message) || message.quoted.is_none());
        }
        for kind in [Kind::Request, Kind::Reply] {
            prop_assert!(Repr::parse(kind, &bytes).is_err());
            prop_assert!(bytes.is_empty() || Parser::new(kind).push(&bytes).is_err() || bytes[0] == b'M');
        }
        for crc in [false, true] {
            let mut receiver = Receiver::new(crc);
            let mut rest = &bytes[..];
            while let Ok(Some(_)) = receiver.next(&mut rest) {}
        }
    }

    #[test]
    fn a_frame_is_found_wherever_the_stream_is_cut((kind, bytes) in frame(), cut in 0..80_usize) {
        let cut = cut.min(bytes.len());
        let whole = Repr::parse(kind, &bytes);
        let mut parser = Parser::new(kind);
        let first = parser.push(&bytes[..cut]);
        let second = match first {
            Ok(taken) if taken == cut => parser.push(&bytes[cut..]).map(|more| taken + more),
            first => first,
        };
        match whole {
            Ok((frame, rest)) => {
                prop_assert_eq!(second, Ok(bytes.len() - rest.len()));
                prop_assert_eq!(parser.frame(), Some(frame));
                let mut back = [0; MAX_FRAME];
                let len = frame.emit(&mut back).unwrap();
                prop_assert_eq!(Repr::parse(kind, &back[..len]).unwrap().0, frame);
                if let Ok((Some(enhanced), private)) = frame.split() {
                    let again = Enhanced::parse(&enhanced.to_bytes()).map(|(again, _)| again);
                    prop_assert_eq!(again, Ok(enhanced));
                    prop_assert_eq!(private.len() + Enhanced::LEN, frame.data.len());
                }
                let wishes = Wishes { ird: 4, ord: 4, crc: false, private_data: 30 };
                let agreed = negotiation::consider(&frame, &wishes, !rest.is_empty());
                if let Ok((agreed, private)) = agreed {
                    prop_assert!(agreed.ord <= 4 && private.len() <= 30);
                    prop_assert!(negotiation::accept(&agreed, private).is_some());
                }
                if let Ok((agreed, _)) = negotiation::conclude(&frame, &wishes) {
                    prop_assert!(agreed.ord <= 4 && agreed.ird == 4);
                }
                prop_assert!(negotiation::reject(&frame, negotiation::rejection(&frame)).is_some());
            }
            Err(iwarp::Error::Truncated { .. }) => {
                prop_assert_eq!(second, Ok(bytes.len()));
                prop_assert_eq!(parser.frame(), None);
            }
            Err(error) => prop_assert_eq!(second, Err(error)),
        }
    }

    #[test]
    fn fpdus_come_out_as_they_went_in(
        ulpdus in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 1..6),
        crc in any::<bool>(),
        pieces in prop::collection::vec(1..30_usize, 1..20),
    ) {
        let mut stream = Vec::new();
        for ulpdu in &ulpdus {
            let mut fpdu = vec![0xee; fpdu::length(ulpdu.len())];
            fpdu::emit(ulpdu, crc, &mut fpdu).unwrap();
            stream.extend(fpdu);
        }
        let mut receiver = Receiver::new(crc);
        let mut found: Vec<Vec<u8>> = Vec::new();
        let (mut rest, mut turn) = (&stream[..], 0);
        while !rest.is_empty() {
            let (mut piece, behind) = rest.split_at(rest.len().min(pieces[turn % pieces.len()]));
            turn += 1;
            while let Some(ulpdu) = receiver.next(&mut piece).unwrap() {
                found.push(ulpdu.to_vec());
            }
            prop_assert!(piece.is_empty());
            rest = behind;
        }
        prop_assert!(!receiver.is_inside());
        prop_assert_eq!(found, ulpdus);
    }
}
