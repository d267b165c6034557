//! Recorded streams of Linux: each frame, FPDU, segment and message in one is parsed, and emitted
//! again with the same bytes.

extern crate ferrovia_iwarp as iwarp;

mod streams;

use std::collections::BTreeSet;
use std::path::Path;

use iwarp::ddp::{Header, Place};
use iwarp::mpa::fpdu::{self, Receiver};
use iwarp::mpa::frame::{Kind, Parser, Repr};
use iwarp::mpa::negotiation::{self, Refusal, Wishes};
use iwarp::rdmap::terminate::{self, Code, Form};
use iwarp::rdmap::{Control, Opcode, read};
use streams::{all, connections, direction};

const WISHES: Wishes = Wishes { ird: 128, ord: 128, crc: false, private_data: 256 };

/// What one direction of a connection has.
struct Direction {
    frame: Vec<u8>,
    ulpdus: Vec<Vec<u8>>,
    /// FPDUs ended with a wrong CRC.
    corrupt: bool,
}

impl Direction {
    fn frame(&self, kind: Kind) -> Repr<'_> {
        Repr::parse(kind, &self.frame).unwrap().0
    }
}

/// Takes a direction apart, in pieces of at most so many bytes, and checks what it is put together
/// of.
fn take_apart(bytes: &[u8], kind: Kind, crc: bool, piece: usize) -> Direction {
    let mut parser = Parser::new(kind);
    let mut at = 0;
    while parser.frame().is_none() {
        let end = bytes.len().min(at + piece);
        let taken = parser.push(&bytes[at..end]).unwrap();
        assert!(taken > 0, "a frame without an end");
        at += taken;
    }
    let frame = parser.frame().unwrap();
    let mut back = vec![0; at];
    assert_eq!(frame.emit(&mut back), Ok(at));
    assert_eq!(back, bytes[..at]);

    let mut direction = Direction { frame: back, ulpdus: Vec::new(), corrupt: false };
    let mut receiver = Receiver::new(crc);
    let mut rebuilt = Vec::new();
    for piece in bytes[at..].chunks(piece) {
        let mut piece = piece;
        loop {
            match receiver.next(&mut piece) {
                Ok(None) => break,
                Ok(Some(ulpdu)) => {
                    let mut fpdu = vec![0xee; fpdu::length(ulpdu.len())];
                    assert_eq!(fpdu::emit(ulpdu, crc, &mut fpdu), Ok(fpdu.len()));
                    rebuilt.extend(fpdu);
                    direction.ulpdus.push(ulpdu.to_vec());
                }
                Err(iwarp::Error::Checksum { .. }) => {
                    direction.corrupt = true;
                    return direction;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(!receiver.is_inside());
    assert_eq!(rebuilt, filled_with_zeroes(&bytes[at..]));
    direction
}

/// The FPDUs with zeroes in the bytes that fill them up, of which Linux leaves some as they were in
/// its memory.
fn filled_with_zeroes(fpdus: &[u8]) -> Vec<u8> {
    let mut bytes = fpdus.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let ulpdu = usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
        let end = at + fpdu::length(ulpdu);
        bytes[at + 2 + ulpdu..end - 4].fill(0);
        at = end;
    }
    bytes
}

/// Checks that a ULPDU is emitted as it was.
fn rebuild(ulpdu: &[u8], opcodes: &mut BTreeSet<Opcode>, codes: &mut BTreeSet<Code>) {
    let (header, payload) = Header::parse(ulpdu).unwrap();
    let mut back = vec![0; header.size()];
    assert_eq!(header.emit(&mut back), Ok(back.len()));
    let control = Control::parse(header.control);
    assert_eq!(control.to_byte(), header.control);
    let opcode = control.opcode().unwrap();
    opcodes.insert(opcode);
    match opcode {
        Opcode::ReadRequest => {
            let (request, rest) = read::Repr::parse(payload).unwrap();
            assert!(rest.is_empty());
            let mut bytes = [0; read::Repr::LEN];
            assert_eq!(request.emit(&mut bytes), Ok(bytes.len()));
            back.extend(bytes);
        }
        Opcode::Terminate => {
            let terminate = terminate::Repr::parse(payload).unwrap();
            assert_eq!(terminate.form, Form::Linux);
            codes.insert(terminate.code);
            let mut bytes = [0; terminate::Repr::MAX];
            let len = terminate.emit(&mut bytes).unwrap();
            back.extend(&bytes[..len]);
        }
        _ => back.extend(payload),
    }
    assert_eq!(back, ulpdu);
}

#[test]
fn every_stream_is_emitted_as_it_was() {
    let (mut opcodes, mut codes) = (BTreeSet::new(), BTreeSet::new());
    let (mut ulpdus, mut corrupt) = (0, 0);
    for path in all() {
        for records in connections(&path) {
            let [request, reply] = [false, true].map(|responder| direction(&records, responder));
            let crc = [&request, &reply].into_iter().any(|frame| frame[16] & 0x40 != 0);
            assert!(records.iter().any(|record| record.closed || record.reset), "{path:?}");
            let mut found = Vec::new();
            for (bytes, kind) in [(&request, Kind::Request), (&reply, Kind::Reply)] {
                let whole = take_apart(bytes, kind, crc, usize::MAX);
                for piece in [1, 3, 4, 100] {
                    let parts = take_apart(bytes, kind, crc, piece);
                    assert!(parts.ulpdus == whole.ulpdus && parts.corrupt == whole.corrupt, "{path:?}");
                }
                for ulpdu in &whole.ulpdus {
                    rebuild(ulpdu, &mut opcodes, &mut codes);
                }
                ulpdus += whole.ulpdus.len();
                corrupt += usize::from(whole.corrupt);
                found.push(whole);
            }
            agree(&path, &found);
        }
    }
    assert_eq!((ulpdus, corrupt), (114, 1));
    assert_eq!(opcodes.len(), 7, "{opcodes:?}");
    let refused = [
        Code::READ_STAG,
        Code::READ_BOUNDS,
        Code::DDP_STAG,
        Code::DDP_BOUNDS,
        Code::DDP_NO_BUFFER,
        Code::MPA_CRC,
    ];
    assert_eq!(codes, BTreeSet::from(refused));
}

/// What both ends make of the frames of a connection.
fn agree(path: &Path, found: &[Direction]) {
    let [request, reply] = [found[0].frame(Kind::Request), found[1].frame(Kind::Reply)];
    let name = path.file_name().unwrap().to_str().unwrap();
    let responder = negotiation::consider(&request, &WISHES, false);
    if request.markers {
        assert_eq!(responder, Err(Refusal::Markers));
        assert!(reply.reject);
        // Linux answers in the same way.
        let reject = negotiation::reject(&request, &[]).unwrap();
        assert_eq!(reject.frame(), reply);
        return;
    }
    let (agreed, private) = responder.unwrap();
    assert_eq!(agreed.enhanced, request.enhanced);
    let initiator = negotiation::conclude(&reply, &WISHES);
    match (name, reply.reject, reply.enhanced) {
        (_, true, _) => {
            assert_eq!(initiator, Err(Refusal::Rejected));
            let said = negotiation::rejection(&reply);
            match name {
                "11-reject-consumer.stream" => assert!(said.iter().copied().eq(0..20), "{said:?}"),
                _ => assert_eq!(said, [0, 0, 2, 0]),
            }
        }
        (_, _, false) => assert_eq!(initiator, Err(Refusal::OtherRevision)),
        _ if request.split().unwrap().0.unwrap().peer_to_peer => {
            // This end never asks for it, so the Reply may not.
            assert_eq!(agreed.first, Some(negotiation::First::Write));
            assert_eq!(initiator, Err(Refusal::FirstMessage));
        }
        _ => {
            let (theirs, data) = initiator.unwrap();
            assert_eq!(theirs.crc, agreed.crc || reply.crc);
            assert_eq!(theirs.ird, 128);
            if name.starts_with("12") {
                assert_eq!((private.len(), data.len()), (251, 251));
            }
            // The Reply of this end to the same Request, if it wants what Linux wants.
            let (ird, ord, _) = depths(&reply);
            let wishes = Wishes { ird, ord, crc: reply.crc, ..WISHES };
            let (agreed, _) = negotiation::consider(&request, &wishes, false).unwrap();
            assert_eq!(negotiation::accept(&agreed, data).unwrap().frame(), reply, "{name}");
        }
    }
}

fn depths(frame: &Repr<'_>) -> (u16, u16, bool) {
    let (enhanced, _) = frame.split().unwrap();
    let enhanced = enhanced.unwrap();
    (enhanced.ird.get().unwrap(), enhanced.ord.get().unwrap(), enhanced.peer_to_peer)
}

#[test]
fn a_read_that_linux_refuses_is_quoted() {
    let path = Path::new("tests/data/24-term-read-bad-stag.stream");
    let records = &connections(path)[0];
    let asked = take_apart(&direction(records, false), Kind::Request, false, usize::MAX);
    let answered = take_apart(&direction(records, true), Kind::Reply, false, usize::MAX);
    let (_, payload) = Header::parse(&asked.ulpdus[0]).unwrap();
    let (request, _) = read::Repr::parse(payload).unwrap();
    let (_, payload) = Header::parse(&answered.ulpdus[0]).unwrap();
    let terminate = terminate::Repr::parse(payload).unwrap();
    let quoted = terminate.quoted.unwrap();
    assert_eq!(quoted.read, Some(request));
    // The number of the quoted message is its size, and the length nothing.
    let Some(Place::Untagged { msn, .. }) = quoted.header.map(|header| header.place) else { panic!() };
    assert_eq!((msn, quoted.length), (request.size, 0));
}
