//! The set-up of a stream of iWARP, and its framing: a frame and FPDUs out of bytes that are cut
//! where the input says.
//!
//! What must hold: parsing returns for any bytes; where the stream is cut changes nothing; whatever
//! is accepted parses to the same value after it is emitted; what both ends agree on is within what
//! this end wants.

use iwarp::Error;
use iwarp::mpa::fpdu::{self, Receiver};
use iwarp::mpa::frame::{Kind, MAX_FRAME, Parser, Repr};
use iwarp::mpa::negotiation::{self, Wishes};

pub(crate) fn run(bytes: &[u8]) {
    let Some((&[choice, piece], bytes)) = bytes.split_first_chunk() else { return };
    let piece = usize::from(piece) + 1;
    let kind = if choice & 1 == 0 { Kind::Request } else { Kind::Reply };
    // Few inputs would find the key by themselves.
    let key = if kind == Kind::Request { b"MPA ID Req Frame" } else { b"MPA ID Rep Frame" };
    let stream = if choice & 2 == 0 { [&key[..], bytes].concat() } else { bytes.to_vec() };
    let rest = frame(kind, &stream, piece);
    framing(rest.unwrap_or(bytes), choice & 4 != 0, piece);
}

/// Returns the bytes behind the frame.
fn frame(kind: Kind, stream: &[u8], piece: usize) -> Option<&[u8]> {
    let mut parser = Parser::new(kind);
    let mut taken = 0;
    let mut failure = None;
    for part in stream.chunks(piece) {
        match parser.push(part) {
            Ok(bytes) => taken += bytes,
            Err(error) => failure = Some(error),
        }
        if failure.is_some() || parser.frame().is_some() {
            break;
        }
    }
    match Repr::parse(kind, stream) {
        Ok((frame, rest)) => {
            assert_eq!((parser.frame(), failure), (Some(frame), None));
            assert_eq!(taken + rest.len(), stream.len());
            agree(&frame, rest.is_empty());
            Some(rest)
        }
        Err(Error::Truncated { .. }) => {
            assert_eq!((parser.frame(), failure, taken), (None, None, stream.len()));
            None
        }
        Err(error) => {
            assert_eq!((parser.frame(), failure), (None, Some(error)));
            None
        }
    }
}

fn agree(frame: &Repr<'_>, alone: bool) {
    let mut back = [0; MAX_FRAME];
    let len = frame.emit(&mut back).expect("room for any frame");
    assert_eq!(Repr::parse(frame.kind, &back[..len]), Ok((*frame, &[][..])));
    let wishes = Wishes { ird: 5, ord: 7, crc: false, private_data: 256 };
    if let Ok((agreed, private)) = negotiation::consider(frame, &wishes, !alone) {
        assert!(alone && agreed.ird == 5 && agreed.ord <= 7 && private.len() <= 256);
        let reply = negotiation::accept(&agreed, private).expect("private data that came is not too long");
        // Only an initiator that asked for a first message is content with one.
        let asker = Wishes { ird: u16::MAX, ord: u16::MAX, ..wishes };
        let concluded = negotiation::conclude(&reply.frame(), &asker);
        assert!(concluded.is_ok() || agreed.first.is_some() || !agreed.enhanced);
    }
    if let Ok((agreed, private)) = negotiation::conclude(frame, &wishes) {
        assert!(agreed.ird == 5 && agreed.ord <= 7 && private.len() <= 256);
    }
    if let Ok((agreed, private)) = negotiation::conclude_plain(frame, &wishes) {
        assert!(agreed.ird == 5 && agreed.ord == 7 && private.len() <= 256);
    }
    negotiation::reject(frame, negotiation::rejection(frame)).expect("the same private data fits");
}

fn framing(stream: &[u8], crc: bool, piece: usize) {
    let (mut whole, mut parts) = (Receiver::new(crc), Receiver::new(crc));
    let mut found = Vec::new();
    let mut rest = stream;
    let end = loop {
        match whole.next(&mut rest) {
            Ok(Some(ulpdu)) => found.push(ulpdu.to_vec()),
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    let mut ulpdus = found.iter();
    for mut part in stream.chunks(piece) {
        loop {
            match parts.next(&mut part) {
                Ok(Some(ulpdu)) => {
                    assert_eq!(Some(ulpdu), ulpdus.next().map(|ulpdu| &ulpdu[..]));
                    let mut back = vec![0xee; fpdu::length(ulpdu.len())];
                    assert_eq!(fpdu::emit(ulpdu, crc, &mut back), Ok(back.len()));
                    assert_eq!(Receiver::new(crc).next(&mut &back[..]), Ok(Some(ulpdu)));
                }
                Ok(None) => break,
                Err(error) => {
                    assert_eq!((end, ulpdus.next()), (Err(error), None));
                    return;
                }
            }
        }
    }
    assert_eq!((end, ulpdus.next()), (Ok(()), None));
    assert_eq!(whole.is_inside(), parts.is_inside());
}
