//! Set-ups, with bytes cut anywhere, and peers that keep to nothing.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use iwarp::mpa::frame::{Depth, Enhanced, Kind, MAX_FRAME, MAX_PRIVATE_DATA, Repr};
use iwarp::mpa::negotiation::{Agreed, Answer, Outgoing};
use iwarp::rdmap::terminate::Code;
use nic_abi::admin::{QpMask, QpState, StreamEnd, StreamFlags};
use nic_abi::registers::Identity;
use nic_hal::Nic;
use platform::gate::Inside;
use platform::{Instant, Platform, Signal};
use roce::Gid;
use roce::cm::ReadDepths;
use roce::cm::rej::Reason;
use zerocopy::FromZeros;

use super::bind::{Role, to_rtr, to_rts};
use super::setup::{
    ANSWER_TIME, BAD_REQUEST, REPLY_TIME, REQUEST_TIME, Report, Setup, Step, Wants, depths_of,
};
use super::state::{End, Mpa, Notice, State};
use crate::cm::ConnectionId;
use crate::home::Home;
use crate::object::{Counter, Owner};

use crate::stream::{Endpoint, StreamEnds, Streams};
use crate::{CmEventKind, Error, Upcalls};

const START: Instant = Instant::ZERO;
const OURS: ReadDepths = ReadDepths { responder_resources: 4, initiator_depth: 6 };
const THEIRS: ReadDepths = ReadDepths { responder_resources: 5, initiator_depth: 3 };

fn bytes(frame: &Outgoing) -> Vec<u8> {
    repr(&frame.frame())
}

fn repr(frame: &Repr<'_>) -> Vec<u8> {
    let mut bytes = [0; MAX_FRAME];
    let length = frame.emit(&mut bytes).unwrap();
    bytes[..length].to_vec()
}

/// A frame of revision 2 with read depths in its data, and nothing else that is optional.
fn enhanced_frame(kind: Kind, data: &[u8]) -> Repr<'_> {
    Repr { kind, markers: false, crc: false, reject: false, enhanced: true, revision: 2, data }
}

/// A set-up that has sent its Request, and the Request.
fn asking(private_data: &[u8]) -> (Setup, Vec<u8>) {
    let mut setup = Setup::initiator(OURS, false, private_data, None).unwrap();
    assert_eq!((setup.wants(), setup.deadline()), (Wants::Nothing, None));
    assert_eq!(setup.take(START, b"too early"), Step::Wait);
    let request = setup.opened(START).unwrap();
    assert!(setup.opened(START).is_none(), "it is sent once");
    (setup, bytes(&request))
}

/// Gives a set-up the bytes of a stream, in pieces of so many at most, as many as it wants. Returns
/// the first step that is not to wait, and how many bytes are left in the stream.
fn feed(setup: &mut Setup, mut stream: &[u8], piece: usize) -> (Step, usize) {
    while let Wants::Bytes(count) = setup.wants() {
        let (part, rest) = stream.split_at(count.min(piece).min(stream.len()));
        stream = rest;
        match setup.take(START, part) {
            Step::Wait if part.is_empty() => break,
            Step::Wait => {}
            step => return (step, stream.len()),
        }
    }
    (Step::Wait, stream.len())
}

/// A responder that has this Request.
fn asked(request: &[u8]) -> Setup {
    let mut setup = Setup::responder(START, false);
    assert_eq!(feed(&mut setup, request, usize::MAX), (Step::Ask, 0));
    setup
}

#[test]
fn both_ends_agree_wherever_their_frames_are_cut() {
    for piece in [1, 2, 3, 7, 19, 20, 21, 24, 100, usize::MAX] {
        for (length, behind) in [(0, 0), (1, 3), (251, 0), (MAX_PRIVATE_DATA, 40)] {
            let private_data: Vec<u8> = (0..length).map(|n| n as u8).collect();
            let (mut initiator, request) = asking(&private_data);
            let mut responder = Setup::responder(START, true);
            assert_eq!(responder.deadline(), Some(START + REQUEST_TIME));
            assert_eq!(feed(&mut responder, &request, piece), (Step::Ask, 0));
            assert_eq!((responder.wants(), responder.deadline()), (Wants::Look, Some(START + ANSWER_TIME)));
            let frame = responder.frame().unwrap();
            assert_eq!((depths_of(&frame), frame.split().unwrap().1), (OURS, &private_data[..]));
            let (reply, agreed) = responder.accept(THEIRS, &private_data).unwrap();
            assert_eq!((agreed.ird, agreed.ord, agreed.crc), (5, 3, true));
            assert_eq!((responder.wants(), responder.deadline()), (Wants::Nothing, None));
            // What is behind the Reply stays in the stream.
            let stream = [bytes(&reply), vec![0xee; behind]].concat();
            let (step, left) = feed(&mut initiator, &stream, piece);
            let Step::Bind(Role::Initiator, agreed) = step else { panic!("{step:?}") };
            assert_eq!((agreed.ird, agreed.ord, agreed.crc, left), (4, 5, true, behind));
            assert_eq!(depths_of(&initiator.frame().unwrap()), THEIRS);
            assert_eq!(initiator.closed(StreamEnd::Reset), Step::Wait, "the queue pair has the stream");
        }
    }
}

#[test]
fn a_queue_pair_gets_its_stream_with_what_was_agreed_on() {
    let agreed = Agreed { crc: true, revision: 2, enhanced: true, ird: 4, ord: 5, first: None };
    let modify = to_rtr(&agreed, Role::Initiator, true, 77);
    let mask = QpMask::STATE | QpMask::STREAM | QpMask::MAX_RD_ATOMIC | QpMask::MAX_DEST_RD_ATOMIC;
    assert_eq!((modify.mask, modify.state), (mask.bits(), QpState::Rtr as u32));
    let flags = StreamFlags::CRC | StreamFlags::ANNOUNCE;
    assert_eq!((modify.stream, modify.stream_flags), (77, flags.bits()));
    assert_eq!((modify.max_dest_rd_atomic, modify.max_rd_atomic), (4, 5));
    let modify = to_rtr(&Agreed { crc: false, ..agreed }, Role::Responder, true, 77);
    assert_eq!(modify.stream_flags, (StreamFlags::RESPONDER | StreamFlags::UNASKED).bits());
    // Without frames a peer that is silent may still wait for plain bytes.
    let modify = to_rtr(&agreed, Role::Responder, false, 77);
    assert_eq!(modify.stream_flags, (StreamFlags::RESPONDER | StreamFlags::CRC).bits());
    let modify = to_rts();
    assert_eq!((modify.mask, modify.state), (QpMask::STATE.bits(), QpState::Rts as u32));
}

#[test]
fn each_end_has_its_time() {
    let reports = [
        (Setup::responder(START, false), Some(START + REQUEST_TIME), Answer::Close, Report::Nothing),
        (asking(b"").0, Some(START + REPLY_TIME), Answer::Close, Report::Unreachable),
        (asked(&asking(b"").1), Some(START + ANSWER_TIME), Answer::Reject, Report::Withdrawn),
    ];
    for (mut setup, deadline, answer, report) in reports {
        assert_eq!(setup.deadline(), deadline);
        assert_eq!(setup.expired(), Step::Over(answer, report));
        assert_eq!((setup.expired(), setup.wants()), (Step::Wait, Wants::Nothing));
        assert_eq!(setup.accept(OURS, b"").err(), Some(Error::ConnectionState));
    }
    // The client may give the attempt less, from the start.
    let limit = START + Duration::from_secs(1);
    let mut setup = Setup::initiator(OURS, false, b"", Some(limit)).unwrap();
    assert_eq!(setup.deadline(), Some(limit));
    setup.opened(START);
    assert_eq!(setup.deadline(), Some(limit));
    assert_eq!(setup.expired(), Step::Over(Answer::Close, Report::Unreachable));
}

#[test]
fn an_end_at_each_byte_is_reported_once_and_names_its_cause() {
    let (_, request) = asking(b"hello");
    let reply = bytes(&asked(&request).accept(THEIRS, b"come in").unwrap().0);
    let broken = Report::Rejected(Reason::UNSUPPORTED_REQUEST);
    for end in [StreamEnd::None, StreamEnd::Closed, StreamEnd::Reset] {
        for cut in 0..request.len() {
            let mut setup = Setup::responder(START, false);
            assert_eq!(feed(&mut setup, &request[..cut], usize::MAX), (Step::Wait, 0));
            assert_eq!(setup.closed(end), Step::Over(Answer::Close, Report::Nothing));
            assert_eq!(setup.closed(end), Step::Wait);
        }
        for cut in 0..reply.len() {
            let (mut setup, _) = asking(b"hello");
            assert_eq!(feed(&mut setup, &reply[..cut], usize::MAX), (Step::Wait, 0));
            assert_eq!(setup.closed(end), Step::Over(Answer::Close, broken));
            assert_eq!(setup.closed(end), Step::Wait);
        }
        let mut setup = asked(&request);
        assert_eq!(setup.closed(end), Step::Over(Answer::Close, Report::Withdrawn));
    }
    let causes = [
        (StreamEnd::Refused, Report::Rejected(Reason::INVALID_SERVICE_ID)),
        (StreamEnd::PortUnreachable, Report::Rejected(Reason::INVALID_SERVICE_ID)),
        (StreamEnd::NoWay, Report::Rejected(Reason::PRIMARY_GID)),
        (StreamEnd::NetworkUnreachable, Report::Rejected(Reason::PRIMARY_GID)),
        (StreamEnd::HostUnreachable, Report::Rejected(Reason::PRIMARY_GID)),
        (StreamEnd::Prohibited, Report::Rejected(Reason::PRIMARY_GID)),
        (StreamEnd::ConnectTimeout, Report::Unreachable),
        (StreamEnd::TimedOut, Report::Unreachable),
    ];
    for (end, report) in causes {
        let mut setup = Setup::initiator(OURS, false, b"", None).unwrap();
        assert_eq!(setup.closed(end), Step::Over(Answer::Close, report));
    }
}

#[test]
fn what_is_no_request_gets_no_answer_and_is_reported_to_nobody() {
    let (_, good) = asking(b"hello");
    // A wrong key, a revision that does not exist, a length beyond the format.
    for (at, value) in [(0, b'N'), (15, 0), (17, 3), (18, 3)] {
        let mut bad = good.clone();
        bad[at] = value;
        for piece in [1, usize::MAX] {
            let mut setup = Setup::responder(START, false);
            let (step, _) = feed(&mut setup, &bad, piece);
            assert_eq!(step, Step::Over(Answer::Close, Report::Nothing));
        }
    }
    let of = |markers, data| repr(&Repr { markers, ..enhanced_frame(Kind::Request, data) });
    for request in [of(true, &[0; 4]), of(false, &[0; 3])] {
        let mut setup = Setup::responder(START, false);
        let (step, _) = feed(&mut setup, &request, usize::MAX);
        assert_eq!(step, Step::Over(Answer::Reject, Report::Nothing));
        let reply = setup.rejection(b"").unwrap();
        assert!(reply.frame().reject && reply.frame().kind == Kind::Reply);
    }
    // Bytes behind the Request, when the client has been asked.
    let mut setup = asked(&good);
    assert_eq!(setup.take(START, b""), Step::Wait);
    assert_eq!(setup.take(START, b"x"), Step::Over(Answer::Close, Report::Withdrawn));
    // A Reply in place of a Request.
    let reply = bytes(&asked(&good).accept(THEIRS, b"").unwrap().0);
    let mut setup = Setup::responder(START, false);
    assert_eq!(feed(&mut setup, &reply, 1).0, Step::Over(Answer::Close, Report::Nothing));
}

#[test]
fn what_is_no_reply_is_answered_by_a_terminate() {
    let reply = |edit: fn(&mut Repr<'_>), data: &[u8]| {
        let mut frame = enhanced_frame(Kind::Reply, data);
        edit(&mut frame);
        repr(&frame)
    };
    let enhanced = |ird, ord| Enhanced { ird: Depth::new(ird), ord: Depth::new(ord), ..Enhanced::default() };
    let usual = enhanced(5, 3).to_bytes();
    let (terminate, bad) = (Answer::Terminate, Report::Rejected(Reason::INVALID_CLASS_VERSION));
    let greedy = Report::Rejected(Reason::INSUFFICIENT_RESPONDER_RESOURCES);
    let first = Enhanced { peer_to_peer: true, write: true, ..enhanced(5, 3) }.to_bytes();
    let cases = [
        (reply(|frame| frame.markers = true, &usual), Answer::Close, bad),
        (reply(|frame| frame.enhanced = false, &usual), terminate(Code::MPA_FRAME), bad),
        (reply(|frame| frame.revision = 1, &usual), terminate(Code::MPA_FRAME), bad),
        (reply(|_| (), &usual[..3]), terminate(Code::MPA_FRAME), bad),
        (reply(|_| (), &first), terminate(Code::MPA_FIRST_MESSAGE), bad),
        (reply(|_| (), &enhanced(5, 5).to_bytes()), terminate(Code::MPA_IRD), greedy),
        (b"HTTP/1.1 400 Bad Request".to_vec(), terminate(Code::MPA_FRAME), bad),
    ];
    for (reply, answer, report) in cases {
        for piece in [1, usize::MAX] {
            let (mut setup, _) = asking(b"");
            let (step, _) = feed(&mut setup, &reply, piece);
            assert_eq!(step, Step::Over(answer, report), "{reply:?}");
            assert_eq!(setup.take(START, &usual), Step::Wait);
        }
    }
}

#[test]
fn a_rejection_brings_the_private_data_of_the_peers_client() {
    let (mut setup, request) = asking(b"");
    let reply = asked(&request).rejection(b"not today").unwrap();
    let (step, _) = feed(&mut setup, &bytes(&reply), 5);
    assert_eq!(step, Step::Over(Answer::Close, Report::Rejected(Reason::CONSUMER_DEFINED)));
    let frame = setup.frame().unwrap();
    assert_eq!(iwarp::mpa::negotiation::rejection(&frame), b"not today");
    let long = [0; MAX_PRIVATE_DATA + 1];
    assert!(asked(&request).rejection(&long).is_none());
    assert_eq!(asked(&request).accept(OURS, &long).err(), Some(Error::PrivateData(MAX_PRIVATE_DATA)));
    let too_long = Setup::initiator(OURS, false, &long, None).err();
    assert_eq!(too_long, Some(Error::PrivateData(MAX_PRIVATE_DATA)));
}

#[test]
fn a_peer_to_peer_set_up_by_a_read_needs_that_one_is_served() {
    let first = Enhanced { peer_to_peer: true, read: true, ..Enhanced::default() }.to_bytes();
    let mut setup = asked(&repr(&enhanced_frame(Kind::Request, &first)));
    let none = ReadDepths { responder_resources: 0, ..OURS };
    assert_eq!(setup.accept(none, b"").err(), Some(Error::OutOfRange("number of RDMA Reads")));
    assert!(setup.waits_for_answer() && setup.accept(OURS, b"").is_ok());
}

#[test]
fn a_request_without_read_depths_shows_none() {
    let plain = enhanced_frame(Kind::Request, b"old");
    let request = Repr { crc: true, enhanced: false, revision: 1, ..plain };
    let mut setup = asked(&repr(&request));
    assert_eq!(depths_of(&setup.frame().unwrap()), ReadDepths::default());
    let (reply, agreed) = setup.accept(OURS, b"").unwrap();
    assert_eq!((agreed.ird, agreed.ord, agreed.crc, reply.frame().revision), (4, 6, true, 1));
}

/// A conversion that has sent its last message, or its Request.
fn converting(message: Option<&[u8]>, crc: bool) -> (Setup, Vec<u8>) {
    let mut setup = Setup::conversion(OURS, crc, message, true).unwrap();
    assert!(setup.opened(START).is_none());
    let sent = setup.take_leaving().unwrap();
    assert!(message.is_none_or(|message| message == sent));
    assert_eq!(setup.wants(), Wants::Nothing);
    assert_eq!(setup.left(vec![]), Step::Wait);
    assert!(setup.take_leaving().is_none() && setup.opened(START).is_none());
    assert!(setup.converts() && !setup.waits_for_answer());
    (setup, sent)
}

#[test]
fn both_ends_of_a_conversion_agree_wherever_their_frames_are_cut() {
    for piece in [1, 3, 19, 20, 21, usize::MAX] {
        for (crcs, behind) in [([false, true], 0), ([false, false], 7)] {
            let (mut active, request) = converting(None, crcs[0]);
            let (mut passive, _) = converting(Some(b"go on"), crcs[1]);
            assert_eq!((active.deadline(), passive.deadline()), (None, None));
            let (step, left) = feed(&mut passive, &request, piece);
            let Step::Answer(agreed) = step else { panic!("{step:?}") };
            assert_eq!((agreed.ird, agreed.ord, agreed.crc, left), (4, 6, crcs[1], 0));
            // By RFC 5044, with nothing in it: neither private data nor IRD and ORD.
            assert_eq!((request.len(), request[17]), (Repr::HEADER, 1));
            assert_eq!((passive.answer(&agreed), passive.wants()), (Step::Wait, Wants::Nothing));
            let reply = passive.take_leaving().unwrap();
            assert_eq!((reply.len(), reply[17]), (Repr::HEADER, 1));
            // The queue pair gets the stream when all of the Reply has left.
            assert_eq!(passive.left(reply[9..].to_vec()), Step::Wait);
            assert_eq!(passive.take_leaving().unwrap(), reply[9..]);
            assert_eq!(passive.left(vec![]), Step::Bind(Role::Responder, agreed));
            let (step, left) = feed(&mut active, &[reply, vec![0xee; behind]].concat(), piece);
            let Step::Bind(Role::Initiator, agreed) = step else { panic!("{step:?}") };
            assert_eq!((agreed.ird, agreed.ord, agreed.crc, left), (4, 6, crcs[1], behind));
            assert_eq!((active.deadline(), passive.deadline()), (None, None));
            for mut setup in [active, passive] {
                assert_eq!((setup.closed(StreamEnd::Reset), setup.wants()), (Step::Wait, Wants::Nothing));
                assert_eq!(setup.accept(OURS, b"").err(), Some(Error::ConnectionState));
            }
        }
    }
    // A peer that says its depths has them considered, and gets those of this end.
    let (mut passive, _) = converting(Some(b"go on"), false);
    let (_, request) = asking(b"unasked");
    let Step::Answer(agreed) = feed(&mut passive, &request, 5).0 else { panic!() };
    assert_eq!((agreed.enhanced, agreed.ird, agreed.ord), (true, 4, 4));
}

#[test]
fn nothing_is_read_before_the_last_message_has_left() {
    let mut setup = Setup::conversion(OURS, false, Some(b"all of it"), true).unwrap();
    for rest in [b"all of it".to_vec(), b"of it".to_vec(), b"t".to_vec()] {
        assert!(!setup.take_leaving().unwrap().is_empty());
        assert_eq!(setup.left(rest.clone()), Step::Wait);
        assert_eq!((setup.wants(), setup.take(START, b"MPA")), (Wants::Nothing, Step::Wait));
    }
    assert_eq!(setup.take_leaving(), Some(b"t".to_vec()));
    assert_eq!(setup.left(vec![]), Step::Wait);
    assert_eq!(setup.wants(), Wants::Bytes(Repr::HEADER));
    assert_eq!(setup.left(b"late".to_vec()), Step::Wait);
    let empty = Setup::conversion(OURS, false, Some(b""), true).err();
    assert_eq!(empty, Some(Error::OutOfRange("last message")));
}

#[test]
fn without_frames_the_queue_pair_gets_the_stream_behind_the_last_message() {
    for (message, role) in [(Some(&b"go on"[..]), Role::Responder), (None, Role::Initiator)] {
        let mut setup = Setup::conversion(OURS, true, message, false).unwrap();
        assert!(setup.opened(START).is_none());
        assert_eq!(setup.take_leaving().as_deref(), Some(message.unwrap_or_default()));
        let Step::Bind(as_role, agreed) = setup.left(vec![]) else { panic!() };
        assert_eq!((as_role, agreed.ird, agreed.ord, agreed.crc), (role, 4, 6, true));
        assert_eq!((setup.wants(), setup.deadline()), (Wants::Nothing, None));
        assert_eq!((setup.closed(StreamEnd::Reset), setup.left(vec![])), (Step::Wait, Step::Wait));
    }
}

#[test]
fn a_conversion_that_fails_is_always_reported() {
    let broken = Report::Rejected(Reason::UNSUPPORTED_REQUEST);
    let reports = [
        (StreamEnd::None, broken),
        (StreamEnd::Closed, broken),
        (StreamEnd::Reset, broken),
        (StreamEnd::TimedOut, Report::Unreachable),
    ];
    let (_, request) = converting(None, false);
    let agreed = Agreed { crc: false, revision: 1, enhanced: false, ird: 1, ord: 1, first: None };
    let reply = bytes(&iwarp::mpa::negotiation::accept(&agreed, b"").unwrap());
    for (end, report) in reports {
        for cut in 0..Repr::HEADER {
            for (message, stream) in [(Some(&b"go on"[..]), &request), (None, &reply)] {
                let (mut setup, _) = converting(message, false);
                assert_eq!(feed(&mut setup, &stream[..cut], usize::MAX), (Step::Wait, 0));
                assert_eq!(setup.closed(end), Step::Over(Answer::Close, report));
                assert_eq!(setup.closed(end), Step::Wait);
            }
        }
        // While the last message leaves.
        let mut setup = Setup::conversion(OURS, false, Some(b"go on"), true).unwrap();
        setup.take_leaving();
        assert_eq!(setup.closed(end), Step::Over(Answer::Close, report));
        assert_eq!(setup.left(vec![]), Step::Wait);
        // While the Reply leaves: the peer may count on the connection.
        let (mut setup, _) = converting(Some(b"go on"), false);
        let Step::Answer(agreed) = feed(&mut setup, &request, 3).0 else { panic!() };
        assert_eq!(setup.answer(&agreed), Step::Wait);
        assert_eq!(setup.closed(end), Step::Over(Answer::Close, Report::Unconfirmed));
        assert_eq!(setup.left(vec![]), Step::Wait);
    }
    // What is no Request, and what is one that cannot be taken.
    let markers = repr(&Repr { markers: true, ..enhanced_frame(Kind::Request, &[0; 4]) });
    for (bad, answer) in
        [(&b"GET / HTTP/1.1"[..], Answer::Close), (&reply, Answer::Close), (&markers, Answer::Reject)]
    {
        let (mut setup, _) = converting(Some(b"go on"), false);
        assert_eq!(feed(&mut setup, bad, 3).0, Step::Over(answer, BAD_REQUEST));
    }
    // A Reply with IRD and ORD is none to a Request without, nor is one of another revision.
    let enhanced = repr(&enhanced_frame(Kind::Reply, &[0; 4]));
    let other = repr(&Repr { enhanced: false, ..enhanced_frame(Kind::Reply, b"") });
    for bad in [&enhanced, &other, &request] {
        let (mut setup, _) = converting(None, false);
        let answer = Answer::Terminate(Code::MPA_FRAME);
        assert_eq!(feed(&mut setup, bad, 3).0, Step::Over(answer, BAD_REQUEST));
    }
    let (mut setup, _) = converting(None, false);
    let rejects =
        repr(&Repr { reject: true, enhanced: false, revision: 1, ..enhanced_frame(Kind::Reply, b"") });
    let report = Report::Rejected(Reason::CONSUMER_DEFINED);
    assert_eq!(feed(&mut setup, &rejects, 3).0, Step::Over(Answer::Close, report));
}

/// A client without an agent.
struct Nobody;

impl Owner for Nobody {
    fn platform(&self) -> &Arc<dyn Platform> {
        unreachable!("no call of this test")
    }

    fn forget_object(&self, _: Counter, _: u32) {}
}

impl Home for Nobody {
    fn nic(&self) -> &Nic {
        unreachable!("no call of this test")
    }

    fn streams(&self) -> &Streams {
        unreachable!("no call of this test")
    }

    fn adopt(&self, _: &Arc<Endpoint>) -> Result<(), Error> {
        Ok(())
    }

    fn enter(&self) -> Result<Inside<'_>, Error> {
        Err(Error::Gone)
    }

    fn take_connection(&self) -> bool {
        true
    }

    fn leave_connection(&self) {}

    fn tell(&self, _: &mut dyn FnMut(&dyn Upcalls)) {}
}

/// A client's call may have taken a connection out of the tables before the agent was closed, and
/// reach for them again afterwards. A client refers to its agent, so what stayed would keep both.
#[test]
fn nothing_that_refers_to_a_client_enters_after_the_agent_was_closed() {
    for closed in [false, true] {
        let platform: Arc<dyn Platform> = host::Machine::new(0).platform();
        let signal = Arc::new(Signal::new(platform.clone()));
        let mpa = Mpa::new(platform, Identity::new_zeroed(), signal, (4, 4, 4), false);
        let home = Arc::new(Nobody);
        let ends = StreamEnds { source_gid: 0, local_port: 1, remote_gid: Gid::default(), remote_port: 2 };
        let end = End {
            client: home.clone(),
            context: 0,
            ends,
            queue_pair: None,
            state: State::Established,
            place: None,
            counts: false,
            deadline: None,
        };
        if closed {
            mpa.clear();
        }
        let over = CmEventKind::Disconnected { by_peer: false };
        mpa.notify(Notice::Over(ConnectionId(1), Box::new(end), over));
        assert_eq!(Arc::strong_count(&home), if closed { 1 } else { 2 });
        mpa.clear();
        assert_eq!(Arc::strong_count(&home), 1);
    }
}
