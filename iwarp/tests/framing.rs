//! FPDUs in a stream that is cut anywhere.

extern crate ferrovia_iwarp as iwarp;

use iwarp::Error;
use iwarp::mpa::crc::crc32c;
use iwarp::mpa::fpdu::{self, Emission, Receiver};

fn fpdu(ulpdu: &[u8], crc: bool) -> Vec<u8> {
    let mut bytes = vec![0xee; fpdu::length(ulpdu.len())];
    assert_eq!(fpdu::emit(ulpdu, crc, &mut bytes), Ok(bytes.len()));
    bytes
}

#[test]
fn an_fpdu_is_laid_out_as_the_specification_says() {
    let bytes = fpdu(b"segment", true);
    assert_eq!(bytes[..12], *b"\0\x07segment\0\0\0");
    assert_eq!(bytes[12..], crc32c(&bytes[..12]).to_le_bytes());
    // Without CRCs the field is there, and zero.
    assert_eq!(fpdu(b"segment", false), *b"\0\x07segment\0\0\0\0\0\0\0");
    for (ulpdu, length) in
        [(0, 8), (1, 8), (2, 8), (3, 12), (14, 20), (18, 24), (1442, 1448), (65_535, 65_544)]
    {
        assert_eq!(fpdu::length(ulpdu), length);
        assert_eq!(fpdu(&vec![5; ulpdu], true).len(), length);
    }
    assert_eq!(fpdu::MAX, 65_544);
    let too_long = Error::Field { field: "ULPDU_Length", value: 65_536 };
    assert_eq!(fpdu::emit(&vec![0; 65_536], true, &mut vec![0; 70_000]), Err(too_long));
    assert!(matches!(fpdu::emit(b"segment", true, &mut [0; 15]), Err(Error::Truncated { need: 16, .. })));
}

#[test]
fn an_fpdu_that_is_whole_is_given_out_where_it_lies() {
    let stream = [fpdu(b"one", true), fpdu(b"", true), fpdu(b"three", true)].concat();
    let mut receiver = Receiver::new(true);
    let mut rest = &stream[..];
    for (expected, at) in [(&b"one"[..], 2), (b"", 14), (b"three", 22)] {
        let ulpdu = receiver.next(&mut rest).unwrap().unwrap();
        assert_eq!(ulpdu, expected);
        assert_eq!(ulpdu.as_ptr(), stream[at..].as_ptr());
    }
    assert_eq!(receiver.next(&mut rest), Ok(None));
    assert!(rest.is_empty() && !receiver.is_inside());
}

#[test]
fn the_crc_may_come_by_itself_and_with_what_follows() {
    let (first, second) = (fpdu(b"segment", true), fpdu(b"next", true));
    let stream = [first.clone(), second].concat();
    let cut = first.len() - 4;
    let mut receiver = Receiver::new(true);
    assert_eq!(receiver.next(&mut &stream[..cut]), Ok(None));
    assert!(receiver.is_inside());
    let mut rest = &stream[cut..cut + 4];
    assert_eq!(receiver.next(&mut rest), Ok(Some(&b"segment"[..])));
    assert!(rest.is_empty() && !receiver.is_inside());
    // The same, and the next FPDU behind it.
    let mut receiver = Receiver::new(true);
    assert_eq!(receiver.next(&mut &stream[..cut]), Ok(None));
    let mut rest = &stream[cut..];
    assert_eq!(receiver.next(&mut rest), Ok(Some(&b"segment"[..])));
    assert_eq!(receiver.next(&mut rest), Ok(Some(&b"next"[..])));
}

#[test]
fn the_longest_fpdu_comes_through_byte_by_byte() {
    let ulpdu: Vec<u8> = (0..65_535_u32).map(|i| (i * 31) as u8).collect();
    let bytes = fpdu(&ulpdu, true);
    let mut receiver = Receiver::new(true);
    let (last, before) = bytes.split_last().unwrap();
    for byte in before {
        assert_eq!(receiver.next(&mut &[*byte][..]), Ok(None));
    }
    assert_eq!(receiver.next(&mut &[*last][..]), Ok(Some(&ulpdu[..])));
    // And then others.
    let short = fpdu(b"short", true);
    assert_eq!(receiver.next(&mut &short[..3]), Ok(None));
    assert_eq!(receiver.next(&mut &short[3..]), Ok(Some(&b"short"[..])));
}

#[test]
fn a_wrong_bit_anywhere_behind_the_length_is_a_wrong_crc() {
    let good = fpdu(b"a segment", true);
    for at in 2..good.len() {
        for bit in 0..8 {
            let mut bad = good.clone();
            bad[at] ^= 1 << bit;
            let whole = Receiver::new(true).next(&mut &bad[..]).map(|_| ());
            assert!(matches!(whole, Err(Error::Checksum { .. })), "{at} {bit}");
            let mut receiver = Receiver::new(true);
            assert_eq!(receiver.next(&mut &bad[..5]), Ok(None));
            let parts = receiver.next(&mut &bad[5..]).map(|_| ());
            assert_eq!(parts, whole);
            // Without CRCs nothing is wrong with it.
            assert!(Receiver::new(false).next(&mut &bad[..]).unwrap().is_some());
        }
    }
}

#[test]
fn an_fpdu_is_written_into_room_of_any_size() {
    let ulpdu: Vec<u8> = (0..50).collect();
    let whole = fpdu(&ulpdu, true);
    for room in 1..whole.len() + 2 {
        let mut emission = Emission::new(&ulpdu[..18], 32, true).unwrap();
        assert_eq!(emission.length(), whole.len());
        let mut bytes: Vec<u8> = Vec::new();
        while !emission.is_done() {
            let mut out = vec![0xee; room];
            let gather = |at: usize, into: &mut [u8]| {
                into.copy_from_slice(&ulpdu[18 + at..18 + at + into.len()]);
                Ok::<(), ()>(())
            };
            let written = emission.write(&mut out, gather).unwrap();
            assert!(written == room || emission.is_done());
            bytes.extend(&out[..written]);
        }
        assert_eq!(bytes, whole, "{room}");
    }
    let mut emission = Emission::new(&[], 4, true).unwrap();
    assert_eq!(emission.write(&mut [0; 20], |_, _| Err("gone")), Err("gone"));
    assert!(Emission::new(&[0; 70], 65_535 - 70, true).is_some());
    assert!(Emission::new(&[0; 70], 65_535 - 69, true).is_none());
    assert!(Emission::new(&[0; 71], 0, true).is_none());
    assert!(Emission::new(&[0; 1], usize::MAX, true).is_none());
}

#[test]
fn a_frame_of_the_set_up_is_no_first_fpdu() {
    // As an FPDU its length would be 19,792 bytes, which the peer does not send.
    let request = b"MPA ID Req Frame\x40\x01\0\0";
    for crc in [false, true] {
        for cut in 1..request.len() {
            let mut receiver = Receiver::new(crc);
            let mut parts = [&request[..cut], &request[cut..]];
            let taken: Vec<_> = parts.iter_mut().map(|part| receiver.next(part).map(|_| ())).collect();
            let field = Error::Field { field: "ULPDU_Length", value: 0x4d50 };
            assert_eq!(taken[usize::from(cut < 4)], Err(field), "{cut}");
            assert_eq!(taken[0].is_ok(), cut < 4, "{cut}");
        }
        // Nor is one that is as long.
        let mut bytes = fpdu(&[0; 0x4d50], crc);
        bytes[2..4].copy_from_slice(b"A ");
        assert!(Receiver::new(crc).next(&mut &bytes[..]).is_err());
        // Behind an FPDU it is judged as one.
        let mut receiver = Receiver::new(crc);
        let first = fpdu(b"segment", crc);
        assert!(receiver.next(&mut &first[..]).unwrap().is_some());
        assert_eq!(receiver.next(&mut &request[..]), Ok(None));
        assert!(receiver.is_inside());
        // In parts, too.
        let mut receiver = Receiver::new(crc);
        assert_eq!(receiver.next(&mut &first[..3]), Ok(None));
        assert!(receiver.next(&mut &first[3..]).unwrap().is_some());
        assert_eq!(receiver.next(&mut &request[..]), Ok(None));
    }
}
