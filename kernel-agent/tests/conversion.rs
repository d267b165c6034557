//! Streams that clients have used for bytes of their own, and then make connections of queue pairs
//! of iWARP: between two agents, and of one agent with a peer that the test plays.

extern crate ferrovia_kernel_agent as kernel_agent;

mod common;

use std::sync::Arc;

use common::*;
use host::Machine;
use iwarp::mpa::frame::{Kind, MAX_FRAME, Parser, Repr};
use iwarp::mpa::negotiation::{self, Wishes};
use kernel_agent::wire::Reason;
use kernel_agent::{
    CmEventKind, CompletionStatus, Config, ConnectionId, Conversion, Error, Qp, QpAttributes, QpState,
    QpType, Resource, Stream, StreamEnd,
};
use nic_abi::wqe::{LinkFlags, Opcode};
use roce::Gid;
use roce::cm::ReadDepths;

const PORT: u16 = 4711;
const LISTENER: u64 = 5;
const STREAM: u64 = 6;
const DEPTHS: ReadDepths = ReadDepths { responder_resources: 4, initiator_depth: 4 };
const RECEIVE: u64 = 5;

/// One end of a stream, with a queue pair.
struct Side {
    node: Node,
    stream: Stream,
    qp: Arc<Qp>,
}

fn qp(node: &Node, context: u64) -> Arc<Qp> {
    let attributes = QpAttributes { qp_type: QpType::Iwarp, ..node.attributes(context) };
    let qp = node.client.create_qp(&attributes).unwrap();
    qp.to_init(LinkFlags::REMOTE_READ | LinkFlags::REMOTE_WRITE).unwrap();
    qp
}

/// Two ends of a stream. `a` has connected it. The machine is the last to go: it has the devices.
fn sides() -> (Machine, Side, Side) {
    let machine = by_wire();
    let [a, b] = [0, 1].map(|nic| Node::new(&machine, &open_with(&machine, nic, Config::default())));
    let gid = |node: &Node| Gid(node.agent.identity().gids[1]);
    let listener = b.client.listen_for_streams(None, PORT, 4, LISTENER).unwrap();
    let active = a.client.connect_stream((gid(&a), 0), (gid(&b), PORT), STREAM).unwrap();
    let passive = until(&b, LISTENER, || listener.accept(STREAM).unwrap());
    until(&a, STREAM, || active.state().connected.then_some(()));
    until(&b, STREAM, || passive.state().connected.then_some(()));
    listener.destroy().unwrap();
    let (qa, qb) = (qp(&a, 1), qp(&b, 2));
    (machine, Side { node: a, stream: active, qp: qa }, Side { node: b, stream: passive, qp: qb })
}

fn with_frames(message: Option<&[u8]>) -> Conversion<'_> {
    Conversion { message, frames: true, depths: DEPTHS }
}

impl Side {
    fn convert(&self, conversion: &Conversion<'_>) -> Result<ConnectionId, Error> {
        self.node.client.convert(&self.stream, &self.qp, conversion)
    }

    fn until<T>(&self, call: impl FnMut() -> Option<T>) -> T {
        until(&self.node, STREAM, call)
    }

    /// Receives so many bytes of the stream, and no more.
    fn read(&self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        let mut have = 0;
        self.until(|| {
            while have < count {
                match self.stream.receive(&mut bytes[have..]).unwrap() {
                    0 => return None,
                    some => have += some,
                }
            }
            Some(())
        });
        bytes
    }

    fn say(&self, bytes: &[u8]) {
        assert_eq!(self.stream.send(bytes), Ok(bytes.len()));
    }

    fn cm(&self, what: &str, pick: impl Fn(&CmEventKind) -> bool) -> (ConnectionId, CmEventKind) {
        let (id, context, kind, data) = self.node.ears.cm(what, pick);
        assert_eq!((context, data), (self.qp.context(), vec![]));
        (id, kind)
    }

    /// Waits until the connection is established, and checks that the event says nothing else.
    fn established(&self, id: ConnectionId) {
        let kind = CmEventKind::Established { depths: ReadDepths::default() };
        assert_eq!(self.cm("established", is_established), (id, kind));
        assert_eq!(self.qp.state(), QpState::Rts);
    }

    fn requested(&self, id: ConnectionId) {
        let asked = |kind: &CmEventKind| *kind == CmEventKind::TransitionRequested;
        assert_eq!(self.cm("a request for the transition", asked).0, id);
    }

    /// Waits until the conversion has failed for that reason, with its receive flushed.
    fn failed(&self, id: ConnectionId, expected: CmEventKind) {
        let over = |kind: &CmEventKind| !matches!(kind, CmEventKind::TransitionRequested);
        assert_eq!(self.cm("a failure", over), (id, expected));
        self.flushed();
    }

    fn flushed(&self) {
        let completion = self.node.completion();
        assert_eq!((completion.status, completion.cookie), (CompletionStatus::Flushed, RECEIVE));
        let counts = self.node.agent.counts();
        assert_eq!((self.qp.state(), counts.connections), (QpState::Error, 0));
        assert_eq!(self.stream.destroy(true), Err(Error::Gone));
    }

    /// Posts a receive, which shows whether the queue pair is flushed.
    fn post_receive(&self) {
        let room = self.node.buffer(200);
        let region = self.node.register(&room);
        receive(&self.qp, segment(&room, &region), RECEIVE);
    }

    fn ends(&self, end: StreamEnd) {
        self.until(|| (self.stream.state().end == Some(end)).then_some(()));
    }

    /// Has heard of no connection.
    fn heard_nothing(&self) {
        let heard = self.node.ears.all();
        assert!(!heard.iter().any(|heard| matches!(heard, Heard::Cm(..))), "{heard:?}");
    }
}

/// A message in one direction.
fn send(from: &Side, to: &Side) {
    let (text, room) = (from.node.buffer(100), to.node.buffer(200));
    text.write(0, &[7; 100]).unwrap();
    let (text_region, room_region) = (from.node.register(&text), to.node.register(&room));
    receive(&to.qp, segment(&room, &room_region), RECEIVE);
    post(&from.qp, Opcode::Send, segment(&text, &text_region), None, 6);
    let received = to.node.completion();
    assert_eq!((received.status, received.cookie), (CompletionStatus::Success, RECEIVE));
    assert_eq!((from.node.completion().cookie, received.length), (6, 100));
    let mut bytes = [0; 100];
    room.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 100]);
}

/// An RDMA Read of memory of the other end.
fn read(by: &Side, of: &Side) {
    let (here, there) = (by.node.buffer(64), of.node.buffer(64));
    there.write(0, &[9; 64]).unwrap();
    let (region, source) = (by.node.register(&here), of.node.register(&there));
    post(&by.qp, Opcode::Read, segment(&here, &region), Some(remote(&there, &source)), 8);
    let completion = by.node.completion();
    assert_eq!((completion.status, completion.cookie), (CompletionStatus::Success, 8));
    let mut bytes = [0; 64];
    here.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [9; 64]);
}

/// Converts a stream from plain text to a connection: the one who has connected it is passive if
/// `connector_says`.
fn converts(frames: bool, connector_says: bool) {
    let (_machine, a, b) = sides();
    let (passive, active) = if connector_says { (&a, &b) } else { (&b, &a) };
    active.say(b"may we?");
    assert_eq!(passive.read(7), b"may we?");
    let message = b"yes, go on";
    let conversion = Conversion { message: Some(message), frames, depths: DEPTHS };
    let id = passive.convert(&conversion).unwrap();
    let again = passive.convert(&conversion);
    // Without frames there is nothing to wait for: the queue pair may have its stream already.
    let has_stream = !frames && matches!(again, Err(Error::QpState(_)));
    assert!(again == Err(Error::Busy) || has_stream, "{again:?}");
    assert_eq!(active.read(message.len()), message);
    if frames {
        // As long as it takes: the one waits for the Request, the other for a call.
        assert_eq!((passive.qp.state(), passive.node.agent.counts().connections), (QpState::Init, 1));
    }
    let ida = active.convert(&Conversion { message: None, frames, depths: DEPTHS }).unwrap();
    active.established(ida);
    if frames {
        passive.requested(id);
    }
    passive.established(id);
    for side in [passive, active] {
        // Their numbers have gone with the streams.
        assert_eq!(side.stream.send(b"x"), Err(Error::Gone));
        assert_eq!((side.stream.close(), side.stream.destroy(true)), (Err(Error::Gone), Err(Error::Gone)));
        assert_eq!((side.node.agent.counts().streams, side.node.agent.counts().connections), (0, 1));
    }
    send(active, passive);
    send(passive, active);
    read(active, passive);
    read(passive, active);
    active.node.client.disconnect(ida, b"").unwrap();
    let over = |kind: &CmEventKind| matches!(kind, CmEventKind::Disconnected { .. });
    assert_eq!(active.cm("the end", over), (ida, CmEventKind::Disconnected { by_peer: false }));
    assert_eq!(passive.cm("the end", over), (id, CmEventKind::Disconnected { by_peer: true }));
    for side in [passive, active] {
        assert_eq!((side.qp.state(), side.node.agent.counts().connections), (QpState::Error, 0));
        side.heard_nothing();
    }
}

#[test]
fn a_stream_becomes_a_connection_by_a_request_and_a_reply() {
    converts(true, false);
    converts(true, true);
}

#[test]
fn a_stream_becomes_a_connection_without_frames() {
    converts(false, false);
    converts(false, true);
}

#[test]
fn a_last_message_that_the_stream_has_no_room_for_leaves_as_the_peer_takes_it() {
    let (_machine, a, b) = sides();
    let message: Vec<u8> = (0..600_000_u32).map(|n| (n % 251) as u8).collect();
    let id = a.convert(&with_frames(Some(&message))).unwrap();
    assert!(b.read(message.len()) == message);
    let idb = b.convert(&with_frames(None)).unwrap();
    b.established(idb);
    a.requested(id);
    a.established(id);
    send(&b, &a);
}

#[test]
fn a_request_that_the_stream_has_no_room_for_leaves_as_the_peer_takes_what_is_before_it() {
    let (_machine, a, b) = sides();
    let text: Vec<u8> = (0..100_000_u32).map(|n| (n % 253) as u8).collect();
    // Both rings are full: the peer, which this test plays, has taken nothing.
    let mut sent = 0;
    loop {
        let count = a.stream.send(&text[sent % text.len()..]).unwrap();
        if count == 0 {
            break;
        }
        sent += count;
    }
    let id = a.convert(&with_frames(None)).unwrap();
    let mut read = 0;
    while read < sent {
        let count = (sent - read).min(text.len() - read % text.len());
        let from = read % text.len();
        assert!(b.read(count) == text[from..from + count]);
        read += count;
    }
    assert_eq!(b.read(Repr::HEADER), frame(|frame| frame.crc = true));
    b.say(&frame(|frame| frame.kind = Kind::Reply));
    a.established(id);
    a.node.client.disconnect(id, b"").unwrap();
}

#[test]
fn what_has_not_been_received_belongs_to_the_conversion() {
    let (_machine, a, b) = sides();
    // The whole Request is there before the passive end converts.
    let request = frame(|_| ());
    b.say(&[b"hello", &request[..]].concat());
    assert_eq!(a.read(5), b"hello");
    let mut look = [0; Repr::HEADER];
    a.until(|| (a.stream.look(&mut look).unwrap() == look.len()).then_some(()));
    let id = a.convert(&with_frames(Some(b"now"))).unwrap();
    a.requested(id);
    let mut reply = b.read(3 + Repr::HEADER);
    assert_eq!(reply.drain(..3).collect::<Vec<u8>>(), b"now");
    let mut parser = Parser::new(Kind::Reply);
    parser.push(&reply).unwrap();
    let reply = parser.frame().unwrap();
    assert!(!reply.reject && reply.data.is_empty());
    // The first FPDU has not come.
    let accepted = a
        .node
        .ears
        .all()
        .iter()
        .any(|heard| matches!(heard, Heard::Cm(_, _, kind, _) if is_established(kind)));
    assert!(!accepted);
    a.node.client.disconnect(id, b"").unwrap();
}

/// A Request without private data, with a change.
fn frame(edit: impl Fn(&mut Repr<'_>)) -> Vec<u8> {
    let kind = Kind::Request;
    let mut frame =
        Repr { kind, markers: false, crc: false, reject: false, enhanced: false, revision: 1, data: &[] };
    edit(&mut frame);
    let mut bytes = [0; MAX_FRAME];
    let length = frame.emit(&mut bytes).unwrap();
    bytes[..length].to_vec()
}

fn rejected(reason: Reason) -> CmEventKind {
    CmEventKind::Rejected { reason }
}

#[test]
fn a_peer_that_sends_something_else_than_a_request_ends_the_conversion() {
    let bytes = [
        b"GET / HTTP/1.1\r\n".to_vec(),
        frame(|frame| frame.kind = Kind::Reply),
        [frame(|_| ()), b"too early".to_vec()].concat(),
        frame(|frame| frame.markers = true),
    ];
    for bytes in bytes {
        let (_machine, a, b) = sides();
        a.post_receive();
        let id = a.convert(&with_frames(Some(b"go on"))).unwrap();
        assert_eq!(b.read(5), b"go on");
        b.say(&bytes);
        a.failed(id, rejected(Reason::INVALID_CLASS_VERSION));
        b.until(|| (b.stream.state().end.is_some() || b.stream.state().peer_closed).then_some(()));
    }
}

#[test]
fn a_peer_that_sends_something_else_than_a_reply_ends_the_conversion() {
    let (_machine, a, b) = sides();
    a.post_receive();
    let id = a.convert(&with_frames(None)).unwrap();
    // The client cannot take back what it has given.
    assert_eq!(a.stream.destroy(true), Err(Error::Gone));
    let mut parser = Parser::new(Kind::Request);
    parser.push(&b.read(Repr::HEADER)).unwrap();
    assert!(parser.frame().unwrap().data.is_empty());
    b.say(b"HTTP/1.1 400 Bad Request");
    a.failed(id, rejected(Reason::INVALID_CLASS_VERSION));
}

#[test]
fn an_end_of_the_stream_ends_the_conversion() {
    for (message, reset) in
        [(Some(&b"go on"[..]), true), (Some(b"go on"), false), (None, true), (None, false)]
    {
        for cut in [0, 7] {
            let (_machine, a, b) = sides();
            a.post_receive();
            let id = a.convert(&with_frames(message)).unwrap();
            match message {
                Some(message) => assert_eq!(b.read(message.len()), message),
                None => _ = b.read(Repr::HEADER),
            }
            let kind = if message.is_some() { Kind::Request } else { Kind::Reply };
            if cut > 0 {
                b.say(&frame(|frame| frame.kind = kind)[..cut]);
            }
            b.stream.destroy(reset).unwrap();
            a.failed(id, rejected(Reason::UNSUPPORTED_REQUEST));
        }
    }
}

#[test]
fn an_end_before_the_first_message_is_that_of_an_accept() {
    for (frames, reset) in [(true, true), (true, false), (false, true), (false, false)] {
        let (_machine, a, b) = sides();
        a.post_receive();
        let id = a.convert(&Conversion { frames, ..with_frames(Some(b"go on")) }).unwrap();
        assert_eq!(b.read(5), b"go on");
        if frames {
            b.say(&frame(|_| ()));
            a.requested(id);
            let wishes = Wishes { ird: 1, ord: 1, crc: false, private_data: 0 };
            let mut parser = Parser::new(Kind::Reply);
            parser.push(&b.read(Repr::HEADER)).unwrap();
            assert!(negotiation::conclude_plain(&parser.frame().unwrap(), &wishes).is_ok());
        }
        b.stream.destroy(reset).unwrap();
        a.failed(id, CmEventKind::AcceptTimedOut);
    }
}

#[test]
fn a_request_where_messages_are_to_come_breaks_the_connection() {
    let request = frame(|_| ());
    for (bytes, closes) in [(&request[..], false), (&request[..4], false), (b"GET /", true)] {
        let (_machine, a, b) = sides();
        a.post_receive();
        let id = a.convert(&Conversion { frames: false, ..with_frames(Some(b"go on")) }).unwrap();
        assert_eq!(b.read(5), b"go on");
        b.say(bytes);
        if closes {
            b.stream.close().unwrap();
        }
        a.failed(id, CmEventKind::Disconnected { by_peer: false });
    }
    // The other end, which waits for a Reply, is not left without an answer.
    let (_machine, a, b) = sides();
    b.post_receive();
    a.convert(&Conversion { frames: false, ..with_frames(Some(b"go on")) }).unwrap();
    assert_eq!(b.read(5), b"go on");
    let id = b.convert(&with_frames(None)).unwrap();
    b.failed(id, rejected(Reason::INVALID_CLASS_VERSION));
}

#[test]
fn a_conversion_is_given_up_by_a_disconnect_and_by_the_end_of_its_queue_pair() {
    for message in [Some(&b"go on"[..]), None] {
        let (_machine, a, b) = sides();
        a.post_receive();
        let id = a.convert(&with_frames(message)).unwrap();
        b.until(|| (b.stream.look(&mut [0]).unwrap() == 1).then_some(()));
        a.node.client.disconnect(id, b"").unwrap();
        a.flushed();
        b.ends(StreamEnd::Reset);
        assert_eq!(a.node.client.disconnect(id, b""), Err(Error::ConnectionState));
        a.heard_nothing();
        let (_machine, a, b) = sides();
        a.convert(&with_frames(message)).unwrap();
        a.qp.destroy().unwrap();
        b.ends(StreamEnd::Reset);
        a.heard_nothing();
        let (_machine, a, b) = sides();
        a.convert(&with_frames(message)).unwrap();
        a.node.client.detach();
        b.ends(StreamEnd::Reset);
        assert_eq!((a.node.agent.counts().connections, a.node.agent.counts().streams), (0, 0));
    }
}

#[test]
fn a_client_can_give_up_in_the_upcall_that_says_that_the_request_has_come() {
    let (_machine, a, b) = sides();
    let client = Arc::downgrade(&a.node.client);
    *a.node.ears.in_upcall.lock().unwrap() = Some(Box::new(move |heard| {
        if let (Heard::Cm(id, _, CmEventKind::TransitionRequested, _), Some(client)) =
            (heard, client.upgrade())
        {
            client.disconnect(*id, b"").unwrap();
        }
    }));
    let id = a.convert(&with_frames(Some(b"go on"))).unwrap();
    assert_eq!(b.read(5), b"go on");
    b.say(&frame(|_| ()));
    a.requested(id);
    b.ends(StreamEnd::Reset);
    assert_eq!((a.qp.state(), a.node.agent.counts().connections), (QpState::Error, 0));
    a.heard_nothing();
}

#[test]
fn what_cannot_be_converted_is_refused_and_unchanged() {
    let (machine, a, b) = sides();
    let both = Node::new(&machine, &a.node.agent);
    let foreign = both.client.convert(&a.stream, &a.qp, &with_frames(None));
    assert_eq!(foreign, Err(Error::Foreign));
    assert_eq!(a.node.client.convert(&b.stream, &a.qp, &with_frames(None)), Err(Error::Foreign));
    let others = qp(&both, 3);
    assert_eq!(both.client.convert(&a.stream, &others, &with_frames(None)), Err(Error::Foreign));
    let rc = a.node.qp(4);
    let kind = Error::OutOfRange("queue pair type");
    assert_eq!(a.node.client.convert(&a.stream, &rc, &with_frames(None)), Err(kind));
    assert_eq!(a.convert(&with_frames(Some(b""))), Err(Error::OutOfRange("last message")));
    let deep = ReadDepths { responder_resources: 255, ..DEPTHS };
    let refused = a.convert(&Conversion { depths: deep, ..with_frames(None) });
    assert_eq!(refused, Err(Error::OutOfRange("number of RDMA Reads")));
    a.node.client.limit_connections(0);
    assert_eq!(a.convert(&with_frames(None)), Err(Error::NoResources(Resource::Connections)));
    a.node.client.limit_connections(1);
    a.qp.to_reset().unwrap();
    assert_eq!(a.convert(&with_frames(None)), Err(Error::QpState(QpState::Reset)));
    a.qp.to_init(LinkFlags::empty()).unwrap();
    // The stream is still the client's.
    a.say(b"still here");
    assert_eq!(b.read(10), b"still here");
    b.stream.close().unwrap();
    a.until(|| a.stream.state().peer_closed.then_some(()));
    assert_eq!(a.convert(&with_frames(None)), Err(Error::StreamState));
    a.stream.destroy(true).unwrap();
    assert_eq!(a.convert(&with_frames(None)), Err(Error::Gone));
    a.heard_nothing();
}
