//! The set-up of a stream: frames field by field, and what the two ends agree on.

extern crate ferrovia_iwarp as iwarp;

use iwarp::Error;
use iwarp::mpa::frame::{
    Depth, Enhanced, Kind, LINUX_PRIVATE_DATA, MAX_DATA, MAX_FRAME, MAX_PRIVATE_DATA, Parser, Repr,
};
use iwarp::mpa::negotiation::{
    Agreed, Answer, First, Refusal, Wishes, accept, asked, conclude, conclude_plain, consider, plain_request,
    reject, rejection, request,
};
use iwarp::rdmap::terminate::{self, Code};

const WISHES: Wishes = Wishes { ird: 8, ord: 4, crc: false, private_data: 256 };

fn bytes(key: &[u8; 16], flags: u8, revision: u8, data: &[u8]) -> Vec<u8> {
    let mut bytes = key.to_vec();
    bytes.extend([flags, revision]);
    bytes.extend((data.len() as u16).to_be_bytes());
    bytes.extend(data);
    bytes
}

fn request_bytes(flags: u8, revision: u8, data: &[u8]) -> Vec<u8> {
    bytes(b"MPA ID Req Frame", flags, revision, data)
}

fn judge_request(flags: u8, revision: u8, data: &[u8]) -> Result<Agreed, Refusal> {
    let bytes = request_bytes(flags, revision, data);
    let (frame, rest) = Repr::parse(Kind::Request, &bytes)?;
    consider(&frame, &WISHES, !rest.is_empty()).map(|(agreed, _)| agreed)
}

fn judge_reply(flags: u8, revision: u8, data: &[u8]) -> Result<Agreed, Refusal> {
    let bytes = bytes(b"MPA ID Rep Frame", flags, revision, data);
    let (frame, _) = Repr::parse(Kind::Reply, &bytes)?;
    conclude(&frame, &WISHES).map(|(agreed, _)| agreed)
}

#[test]
fn each_field_of_a_frame_is_where_the_specification_has_it() {
    let data = [0xc0, 5, 0x40, 7, 0xaa];
    let bytes = request_bytes(0xf0, 2, &data);
    let (frame, rest) = Repr::parse(Kind::Request, &bytes).unwrap();
    assert!(rest.is_empty());
    assert!(frame.markers && frame.crc && frame.reject && frame.enhanced);
    let (enhanced, private) = frame.split().unwrap();
    let expected = Enhanced {
        ird: Depth::new(5),
        ord: Depth::new(7),
        peer_to_peer: true,
        send: true,
        write: false,
        read: true,
    };
    assert_eq!((enhanced, private), (Some(expected), &[0xaa][..]));
    for (bit, flags) in
        [(0x80, [1, 0, 0, 0]), (0x40, [0, 1, 0, 0]), (0x20, [0, 0, 1, 0]), (0x10, [0, 0, 0, 1])]
    {
        let bytes = request_bytes(bit, 2, &data);
        let (frame, _) = Repr::parse(Kind::Request, &bytes).unwrap();
        let found = [frame.markers, frame.crc, frame.reject, frame.enhanced].map(u8::from);
        assert_eq!(found, flags);
        let mut back = [0; MAX_FRAME];
        assert_eq!(frame.emit(&mut back), Ok(25));
        assert_eq!(back[..25], bytes);
        assert!(frame.emit(&mut back[..24]).is_err());
    }
    // Only revision 2 has IRD and ORD.
    for revision in [0, 1] {
        let bytes = request_bytes(0x10, revision, &data);
        let (frame, _) = Repr::parse(Kind::Request, &bytes).unwrap();
        assert_eq!(frame.split(), Ok((None, &data[..])));
    }
    assert_eq!(Depth::new(u16::MAX).get(), Some(0x3ffe));
    assert_eq!(Depth::UNSAID.get(), None);
}

#[test]
fn what_is_no_frame_is_refused_at_its_first_wrong_byte() {
    let good = request_bytes(0x10, 2, &[0, 1, 0, 1]);
    for at in 0..16 {
        let mut bad = good.clone();
        bad[at] ^= 0x20;
        let mut parser = Parser::new(Kind::Request);
        let wrong = Err(Error::Field { field: "MPA key", value: bad[at].into() });
        assert_eq!(parser.push(&bad[..at]), Ok(at));
        assert_eq!(parser.push(&bad[at..=at]), wrong.clone());
        assert_eq!(Repr::parse(Kind::Request, &bad).map(|_| 0), wrong);
    }
    assert!(Repr::parse(Kind::Reply, &good).is_err());
    let revision = Error::Field { field: "MPA revision", value: 3 };
    assert_eq!(judge_request(0x10, 3, &[0; 4]), Err(Refusal::Frame(revision)));
    assert_eq!(judge_request(0x10, 2, &[0; MAX_DATA]), Err(Refusal::PrivateData));
    let length = Error::Field { field: "MPA PD_Length", value: 513 };
    let long = request_bytes(0x10, 2, &[0; MAX_DATA + 1]);
    assert_eq!(Repr::parse(Kind::Request, &long), Err(length));
    assert_eq!(Parser::new(Kind::Request).push(&long[..20]), Err(length));
    // What cannot be parsed cannot be emitted.
    let frame = Repr { data: &[0; MAX_DATA + 1], ..Repr::parse(Kind::Request, &good).unwrap().0 };
    assert_eq!(frame.emit(&mut [0; 1000]), Err(length));
}

#[test]
fn a_frame_ends_where_its_length_says() {
    let mut stream = request_bytes(0x10, 2, &[1; MAX_DATA]);
    stream.extend([9; 7]);
    let mut parser = Parser::new(Kind::Request);
    for byte in &stream[..MAX_FRAME] {
        assert_eq!(parser.frame(), None);
        assert_eq!(parser.push(&[*byte]), Ok(1));
    }
    assert_eq!(parser.frame().unwrap().data, [1; MAX_DATA]);
    assert_eq!(parser.push(&stream[MAX_FRAME..]), Ok(0));
    assert_eq!(parser.len(), MAX_FRAME);
    assert_eq!(Parser::new(Kind::Request).push(&stream), Ok(MAX_FRAME));
}

#[test]
fn both_ends_find_the_depths_that_both_have() {
    let initiator = Wishes { ird: 3, ord: 20, crc: false, private_data: 256 };
    let responder = Wishes { ird: 16, ord: 9, crc: true, private_data: 256 };
    let outgoing = request(&initiator, b"question").unwrap();
    let frame = outgoing.frame();
    assert_eq!(asked(&frame), (Some(3), Some(20)));
    let (theirs, private) = consider(&frame, &responder, false).unwrap();
    assert_eq!(private, b"question");
    assert_eq!((theirs.ird, theirs.ord, theirs.crc, theirs.first), (16, 3, true, None));
    let reply = accept(&theirs, b"answer").unwrap();
    let (ours, private) = conclude(&reply.frame(), &initiator).unwrap();
    assert_eq!(private, b"answer");
    assert_eq!((ours.ird, ours.ord, ours.crc), (3, 16, true));
    assert!(!reply.frame().reject && reply.frame().crc);
}

#[test]
fn either_end_can_ask_for_crcs() {
    for (initiator, responder) in [(false, false), (false, true), (true, false), (true, true)] {
        let [initiator, responder] = [initiator, responder].map(|crc| Wishes { crc, ..WISHES });
        let outgoing = request(&initiator, &[]).unwrap();
        assert_eq!(outgoing.frame().crc, initiator.crc);
        let (theirs, _) = consider(&outgoing.frame(), &responder, false).unwrap();
        let reply = accept(&theirs, &[]).unwrap();
        let (ours, _) = conclude(&reply.frame(), &initiator).unwrap();
        assert_eq!((ours.crc, theirs.crc), (initiator.crc || responder.crc, ours.crc));
    }
}

#[test]
fn a_plain_request_says_nothing_but_whether_there_are_crcs() {
    for crc in [false, true] {
        let outgoing = plain_request(crc);
        let frame = outgoing.frame();
        let expected = request_bytes(if crc { 0x40 } else { 0 }, 1, &[]);
        let mut bytes = [0; MAX_FRAME];
        let length = frame.emit(&mut bytes).unwrap();
        assert_eq!((&bytes[..length], asked(&frame)), (&expected[..], (None, None)));
        let (theirs, private) = consider(&frame, &Wishes { crc: true, ..WISHES }, false).unwrap();
        assert_eq!((theirs.ird, theirs.ord, theirs.crc, private), (8, 4, true, &b""[..]));
        let reply = accept(&theirs, &[]).unwrap();
        let wishes = Wishes { ird: 1, ord: 9, crc, private_data: 0 };
        let (ours, _) = conclude_plain(&reply.frame(), &wishes).unwrap();
        assert_eq!((ours.ird, ours.ord, ours.crc, ours.enhanced), (1, 9, true, false));
    }
    let judge = |flags, revision, data: &[u8]| {
        let bytes = bytes(b"MPA ID Rep Frame", flags, revision, data);
        let (frame, _) = Repr::parse(Kind::Reply, &bytes).unwrap();
        conclude_plain(&frame, &WISHES).map(|_| ())
    };
    assert_eq!(judge(0, 1, &[0; 256]), Ok(()));
    assert_eq!(judge(0, 1, &[0; 257]), Err(Refusal::PrivateData));
    assert_eq!(judge(0x20, 1, &[]), Err(Refusal::Rejected));
    assert_eq!(judge(0x80, 1, &[]), Err(Refusal::Markers));
    for (flags, revision) in [(0x10, 2), (0, 2), (0, 0)] {
        assert_eq!(judge(flags, revision, &[0; 4]), Err(Refusal::OtherRevision));
    }
}

#[test]
fn a_peer_that_does_not_say_its_depths_leaves_them_as_they_are() {
    // All bits are set: the consumers agree on the depths.
    let agreed = judge_request(0x10, 2, &[0x3f, 0xff, 0x3f, 0xff]).unwrap();
    assert_eq!((agreed.ird, agreed.ord), (8, 4));
    let agreed = judge_reply(0x10, 2, &[0x3f, 0xff, 0x3f, 0xff]).unwrap();
    assert_eq!((agreed.ird, agreed.ord), (8, 4));
    for revision in [0, 1] {
        let agreed = judge_request(0, revision, b"private").unwrap();
        assert_eq!((agreed.ird, agreed.ord, agreed.enhanced, agreed.revision), (8, 4, false, revision));
        let reply = accept(&agreed, b"data").unwrap();
        assert_eq!((reply.frame().enhanced, reply.frame().data), (false, &b"data"[..]));
        assert_eq!(reply.frame().revision, revision);
    }
}

#[test]
fn a_responder_names_what_it_refuses_and_answers_as_linux_does() {
    let answer = |refusal: Refusal| refusal.answer(Kind::Request);
    let cases = [
        (judge_request(0x90, 2, &[0; 4]), Refusal::Markers, Answer::Reject),
        (judge_request(0x80, 1, &[]), Refusal::Markers, Answer::Reject),
        (judge_request(0x10, 2, &[0; 3]), Refusal::Short, Answer::Reject),
        (judge_request(0x10, 2, &[0; 261]), Refusal::PrivateData, Answer::Close),
        // Only an empty Send is offered as first message.
        (judge_request(0x10, 2, &[0xc0, 1, 0, 1]), Refusal::NoFirstMessage, Answer::Reject),
    ];
    for (judged, refusal, expected) in cases {
        assert_eq!(judged, Err(refusal));
        assert_eq!(answer(refusal), expected, "{refusal}");
    }
    let outgoing = request(&WISHES, &[]).unwrap();
    let behind = consider(&outgoing.frame(), &WISHES, true);
    assert_eq!(behind, Err(Refusal::BytesBehind));
    assert_eq!(answer(Refusal::BytesBehind), Answer::Close);
    assert_eq!(answer(Refusal::Frame(Error::NoMemory)), Answer::Close);

    let rejected = reject(&outgoing.frame(), b"no").unwrap();
    assert!(rejected.frame().reject && rejected.frame().enhanced);
    assert_eq!(conclude(&rejected.frame(), &WISHES), Err(Refusal::Rejected));
    assert_eq!(rejection(&rejected.frame()), b"no");
    let old = request_bytes(0, 1, &[]);
    let (old, _) = Repr::parse(Kind::Request, &old).unwrap();
    let rejected = reject(&old, b"no").unwrap();
    assert_eq!((rejected.frame().revision, rejected.frame().data), (1, &b"no"[..]));
}

#[test]
fn an_initiator_names_what_it_refuses() {
    let answer = |refusal: Refusal| refusal.answer(Kind::Reply);
    let depths = [0, 8, 0, 8];
    assert!(judge_reply(0x10, 2, &depths).is_ok());
    let cases = [
        (judge_reply(0x30, 2, &depths), Refusal::Rejected, Answer::Close),
        (judge_reply(0x20, 1, &[]), Refusal::Rejected, Answer::Close),
        (judge_reply(0x90, 2, &depths), Refusal::Markers, Answer::Close),
        (judge_reply(0x10, 1, &depths), Refusal::OtherRevision, Answer::Terminate(Code::MPA_FRAME)),
        (judge_reply(0, 2, &depths), Refusal::OtherRevision, Answer::Terminate(Code::MPA_FRAME)),
        (judge_reply(0x10, 2, &depths[..3]), Refusal::Short, Answer::Terminate(Code::MPA_FRAME)),
        (judge_reply(0x10, 2, &[0, 8, 0, 9]), Refusal::Ird, Answer::Terminate(Code::MPA_IRD)),
        (
            judge_reply(0x10, 2, &[0x80, 8, 0x80, 8]),
            Refusal::FirstMessage,
            Answer::Terminate(Code::MPA_FIRST_MESSAGE),
        ),
        (judge_reply(0x10, 2, &[0; 261]), Refusal::PrivateData, Answer::Terminate(Code::MPA_FRAME)),
    ];
    for (judged, refusal, expected) in cases {
        assert_eq!(judged, Err(refusal));
        assert_eq!(answer(refusal), expected, "{refusal}");
    }
    // What the initiator sends to say so.
    let Answer::Terminate(code) = answer(Refusal::Ird) else { panic!() };
    let mut fpdu = [0xee; 40];
    assert_eq!(terminate::Repr::from(code).fpdu(false, &mut fpdu), Ok(28));
    let expected =
        [0, 22, 0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0x20, 6, 0, 0, 0, 0, 0, 0];
    assert_eq!(fpdu[..28], expected);
}

#[test]
fn a_first_message_is_agreed_to_if_it_is_a_write_or_a_read() {
    let first = |write: u8, read: u8| {
        let agreed = judge_request(0x10, 2, &[0xc0, 1, write | read, 1]).unwrap();
        let reply = accept(&agreed, &[]).unwrap();
        let (enhanced, _) = reply.frame().split().unwrap();
        let Enhanced { peer_to_peer, send, write, read, .. } = enhanced.unwrap();
        assert!(peer_to_peer && !send && write != read);
        agreed.first
    };
    assert_eq!(first(0x80, 0), Some(First::Write));
    assert_eq!(first(0x80, 0x40), Some(First::Write));
    assert_eq!(first(0, 0x40), Some(First::Read));
    // An RDMA Read needs a place.
    let bytes = request_bytes(0x10, 2, &[0x80, 1, 0x40, 1]);
    let (frame, _) = Repr::parse(Kind::Request, &bytes).unwrap();
    let refused = consider(&frame, &Wishes { ird: 0, ..WISHES }, false);
    assert_eq!(refused, Err(Refusal::NoFirstMessage));
}

#[test]
fn private_data_has_the_limits_of_the_format_and_of_the_consumer() {
    assert_eq!(MAX_PRIVATE_DATA, 508);
    const { assert!(LINUX_PRIVATE_DATA + Enhanced::LEN < 256) };
    let most = [7; MAX_PRIVATE_DATA];
    let outgoing = request(&WISHES, &most).unwrap();
    assert!(request(&WISHES, &[7; MAX_PRIVATE_DATA + 1]).is_none());
    assert_eq!(consider(&outgoing.frame(), &WISHES, false), Err(Refusal::PrivateData));
    let wide = Wishes { private_data: MAX_PRIVATE_DATA, ..WISHES };
    let (agreed, private) = consider(&outgoing.frame(), &wide, false).unwrap();
    assert_eq!(private, most);
    assert!(accept(&agreed, &most).is_some());
    assert!(accept(&agreed, &[7; MAX_PRIVATE_DATA + 1]).is_none());
    assert!(reject(&outgoing.frame(), &[7; MAX_PRIVATE_DATA + 1]).is_none());
    let exact = request(&WISHES, &[7; 256]).unwrap();
    assert!(consider(&exact.frame(), &WISHES, false).is_ok());
}
