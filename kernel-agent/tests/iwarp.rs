//! Queue pairs of iWARP that are connected over a wire: of two agents, and of one agent with a peer
//! that the test plays.

extern crate ferrovia_kernel_agent as kernel_agent;

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::*;
use host::Machine;
use iwarp::ddp;
use iwarp::mpa::fpdu;
use iwarp::mpa::frame::{Kind, MAX_FRAME, Parser};
use iwarp::mpa::negotiation::{self, Wishes};
use iwarp::rdmap::{self, Control};
use kernel_agent::wire::Reason;
use kernel_agent::{
    AcceptParams, AsyncEvent, CmEventKind, CompletionStatus, ConnectParams, ConnectionId, Error, Handshake,
    Qp, QpAttributes, QpState, QpType, Stream, StreamEnd, StreamFault, Transports,
};
use nic_abi::wqe::{LinkFlags, Opcode};
use roce::cm::ReadDepths;
use roce::{Gid, Path, ServiceId};

const PORT: u16 = 4711;
const LISTEN: u64 = 9;
/// The context of the streams of a peer that the test plays.
const PEER: u64 = 8;
const OURS: ReadDepths = ReadDepths { responder_resources: 4, initiator_depth: 6 };
const THEIRS: ReadDepths = ReadDepths { responder_resources: 5, initiator_depth: 3 };

fn nodes() -> (Machine, Node, Node) {
    let machine = by_wire();
    let [a, b] = [0, 1].map(|nic| Node::new(&machine, &open(&machine, nic)));
    (machine, a, b)
}

fn qp(node: &Node, context: u64) -> Arc<Qp> {
    let attributes = QpAttributes { qp_type: QpType::Iwarp, ..node.attributes(context) };
    let qp = node.client.create_qp(&attributes).unwrap();
    qp.to_init(LinkFlags::REMOTE_READ | LinkFlags::REMOTE_WRITE).unwrap();
    qp
}

fn gid(node: &Node) -> Gid {
    Gid(node.agent.identity().gids[1])
}

fn listen(node: &Node) {
    node.client.listen(ServiceId(PORT.into()), Transports::IWARP, LISTEN).unwrap();
}

fn asking(from: &Node, to: &Node) -> ConnectParams {
    let path = Path::new(gid(from), gid(to));
    ConnectParams { depths: OURS, ..ConnectParams::new(path, ServiceId(PORT.into())) }
}

fn ask(from: &Node, qp: &Arc<Qp>, to: &Node, private_data: &[u8]) -> ConnectionId {
    from.client.connect(qp, &asking(from, to), Handshake::TwoWay, private_data).unwrap()
}

fn answering(depths: ReadDepths) -> AcceptParams {
    AcceptParams { depths, ..AcceptParams::default() }
}

fn request(node: &Node) -> ConnectionId {
    node.ears.cm("a request", |kind| matches!(kind, CmEventKind::Request { .. })).0
}

struct Pair {
    a: Node,
    b: Node,
    active: (Arc<Qp>, ConnectionId),
    passive: (Arc<Qp>, ConnectionId),
    /// The last to go: it has the devices.
    _machine: Machine,
}

impl Pair {
    /// A connection that is established: a message has gone each way.
    fn new() -> Pair {
        let (_machine, a, b) = nodes();
        let (qa, qb) = (qp(&a, 1), qp(&b, 2));
        listen(&b);
        let ca = ask(&a, &qa, &b, b"hello");
        let (cb, context, kind, data) =
            b.ears.cm("a request", |kind| matches!(kind, CmEventKind::Request { .. }));
        let CmEventKind::Request { depths, qp_type, .. } = kind else { unreachable!() };
        assert_eq!((context, depths, qp_type, &data[..]), (LISTEN, OURS, QpType::Iwarp, &b"hello"[..]));
        b.client.accept(cb, &qb, &answering(THEIRS), b"come in").unwrap();
        let established = a.ears.cm("established", is_established);
        let kind = CmEventKind::Established { depths: THEIRS };
        assert_eq!(established, (ca, 1, kind, b"come in".to_vec()));
        let pair = Pair { a, b, active: (qa, ca), passive: (qb, cb), _machine };
        pair.send(&pair.a, &pair.active.0, &pair.b, &pair.passive.0);
        let established = pair.b.ears.cm("established", is_established);
        assert_eq!(established, (cb, 2, CmEventKind::Established { depths: OURS }, vec![]));
        pair.send(&pair.b, &pair.passive.0, &pair.a, &pair.active.0);
        pair
    }

    fn send(&self, from: &Node, source: &Qp, to: &Node, sink: &Qp) {
        let (text, room) = (from.buffer(100), to.buffer(200));
        text.write(0, &[7; 100]).unwrap();
        let (text_region, room_region) = (from.register(&text), to.register(&room));
        receive(sink, segment(&room, &room_region), 5);
        post(source, Opcode::Send, segment(&text, &text_region), None, 6);
        let received = to.completion();
        assert_eq!((received.status, received.cookie, received.length), (CompletionStatus::Success, 5, 100));
        assert_eq!(from.completion().cookie, 6);
        let mut bytes = [0; 100];
        room.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 100]);
    }

    /// Waits for the end of the connection at one of the ends.
    fn disconnected(&self, node: &Node, end: &(Arc<Qp>, ConnectionId), by_peer: bool) {
        let over = |kind: &CmEventKind| matches!(kind, CmEventKind::Disconnected { .. });
        let (id, context, kind, _) = node.ears.cm("the end", over);
        assert_eq!((id, context), (end.1, end.0.context()));
        assert_eq!(kind, CmEventKind::Disconnected { by_peer });
        assert_eq!(end.0.state(), QpState::Error);
        assert_eq!(node.agent.counts().connections, 0);
    }
}

/// The fault that a client is told, and the code of the Terminate.
fn fault(node: &Node, qp: &Qp) -> (StreamFault, Option<(u16, bool)>, bool) {
    node.ears.wait_for("a fault", |heard| match heard {
        Heard::Async(AsyncEvent::StreamEnded { context, qpn, fault, terminate, completes }) => {
            assert_eq!((*context, *qpn), (qp.context(), qp.qpn()));
            Some((*fault, terminate.map(|terminate| (terminate.code, terminate.sent)), *completes))
        }
        _ => None,
    })
}

#[test]
fn messages_writes_and_reads_pass_and_a_disconnect_ends_in_order() {
    let pair = Pair::new();
    let (a, b) = (&pair.a, &pair.b);
    let (near, far) = (a.buffer(30_000), b.buffer(30_000));
    let bytes: Vec<u8> = (0..30_000).map(|n| (n % 251) as u8).collect();
    near.write(0, &bytes).unwrap();
    let (near_region, far_region) = (a.register(&near), b.register(&far));
    let (here, there) = (segment(&near, &near_region), remote(&far, &far_region));
    post(&pair.active.0, Opcode::Write, here, Some(there), 1);
    assert_eq!(a.completion().status, CompletionStatus::Success);
    let back = a.buffer(30_000);
    let back_region = a.register(&back);
    post(&pair.active.0, Opcode::Read, segment(&back, &back_region), Some(there), 2);
    assert_eq!(a.completion().status, CompletionStatus::Success);
    let mut read = vec![0; 30_000];
    back.read(0, &mut read).unwrap();
    assert!(read == bytes);
    a.client.disconnect(pair.active.1, b"").unwrap();
    pair.disconnected(a, &pair.active, false);
    pair.disconnected(b, &pair.passive, true);
    let faults = |node: &Node| {
        let is_fault = |heard: &Heard| matches!(heard, Heard::Async(AsyncEvent::StreamEnded { .. }));
        node.ears.all().iter().any(is_fault)
    };
    assert!(!faults(a) && !faults(b));
    assert_eq!(a.client.disconnect(pair.active.1, b""), Err(Error::ConnectionState));
    assert_eq!((a.agent.counts().streams, b.agent.counts().streams), (0, 1), "the listener");
    // Both can be connected again after a reset.
    for (qp, context) in [(&pair.active.0, 1), (&pair.passive.0, 2)] {
        assert_eq!(qp.context(), context);
        qp.to_reset().unwrap();
        qp.to_init(LinkFlags::empty()).unwrap();
    }
    ask(a, &pair.active.0, b, b"again");
    b.client.accept(request(b), &pair.passive.0, &answering(THEIRS), b"").unwrap();
    a.ears.cm("established", is_established);
    pair.send(a, &pair.active.0, b, &pair.passive.0);
}

#[test]
fn a_write_that_may_not_be_ends_as_a_fault_on_both_sides() {
    let pair = Pair::new();
    let (a, b) = (&pair.a, &pair.b);
    let buffer = a.buffer(100);
    let region = a.register(&buffer);
    let nowhere = remote(&buffer, &region);
    post(&pair.active.0, Opcode::Write, segment(&buffer, &region), Some(nowhere), 1);
    assert_eq!(a.completion().status, CompletionStatus::Success);
    let (found, terminate, _) = fault(b, &pair.passive.0);
    assert_eq!((found, terminate.map(|(_, sent)| sent)), (StreamFault::Write, Some(true)));
    let (found, told, completes) = fault(a, &pair.active.0);
    assert_eq!((found, completes), (StreamFault::Terminated, false));
    assert_eq!(told.map(|(code, sent)| (Some(code), sent)), Some((terminate.map(|(code, _)| code), false)));
    pair.disconnected(a, &pair.active, false);
    pair.disconnected(b, &pair.passive, false);
}

#[test]
fn a_rejection_and_a_port_without_a_listener_are_told_apart() {
    let (_machine, a, b) = nodes();
    let (qa, qb) = (qp(&a, 1), qp(&b, 2));
    let rejected = |reason| {
        let (_, context, kind, data) =
            a.ears.cm("a rejection", |kind| matches!(kind, CmEventKind::Rejected { .. }));
        assert_eq!((context, kind), (1, CmEventKind::Rejected { reason }));
        assert_eq!((qa.state(), a.agent.counts().connections), (QpState::Error, 0));
        qa.to_reset().unwrap();
        qa.to_init(LinkFlags::empty()).unwrap();
        data
    };
    ask(&a, &qa, &b, b"");
    rejected(Reason::INVALID_SERVICE_ID);
    listen(&b);
    ask(&a, &qa, &b, b"");
    b.client.reject(request(&b), b"not today").unwrap();
    assert_eq!(rejected(Reason::CONSUMER_DEFINED), b"not today");
    // A responder that wants more RDMA Reads outstanding than the initiator serves has as many.
    ask(&a, &qa, &b, b"");
    let greedy = ReadDepths { initiator_depth: OURS.responder_resources + 1, ..THEIRS };
    b.client.accept(request(&b), &qb, &answering(greedy), b"").unwrap();
    let (.., kind, _) = a.ears.cm("established", is_established);
    let depths = ReadDepths { initiator_depth: OURS.responder_resources, ..THEIRS };
    assert_eq!(kind, CmEventKind::Established { depths });
    // The initiator announces itself, whatever its client posts.
    b.ears.cm("established", is_established);
    qa.destroy().unwrap();
    let (_, context, ..) = b.ears.cm("the end", |kind| *kind == CmEventKind::Disconnected { by_peer: true });
    assert_eq!((context, qb.state()), (2, QpState::Error));
}

#[test]
fn what_cannot_be_asked_for_is_refused() {
    let (_machine, a, b) = nodes();
    let qa = qp(&a, 1);
    let params = asking(&a, &b);
    let connect = |params: &ConnectParams, handshake| a.client.connect(&qa, params, handshake, b"").err();
    assert_eq!(connect(&params, Handshake::ThreeWay), Some(Error::OutOfRange("handshake")));
    let deep = ReadDepths { responder_resources: 255, ..OURS };
    let params_of = |depths| ConnectParams { depths, ..params };
    let refused = connect(&params_of(deep), Handshake::TwoWay);
    assert_eq!(refused, Some(Error::OutOfRange("number of RDMA Reads")));
    let elsewhere = ConnectParams { path: Path::new(gid(&b), gid(&b)), ..params };
    assert_eq!(connect(&elsewhere, Handshake::TwoWay), Some(Error::OutOfRange("source GID")));
    let no_port = ConnectParams { service: ServiceId(1 << 20), ..params };
    assert_eq!(connect(&no_port, Handshake::TwoWay), Some(Error::OutOfRange("service id")));
    let id = ask(&a, &qa, &b, b"");
    assert_eq!(connect(&params, Handshake::TwoWay), Some(Error::Busy));
    assert_eq!(a.client.disconnect(id, b"x"), Err(Error::PrivateData(0)));
    assert_eq!(a.agent.counts().streams, 1);
}

/// A peer of `a` on `b` that the test plays.
struct Played<'a> {
    a: &'a Node,
    b: &'a Node,
    listener: kernel_agent::StreamListener,
}

impl<'a> Played<'a> {
    fn new(a: &'a Node, b: &'a Node) -> Played<'a> {
        let listener = b.client.listen_for_streams(None, PORT, 4, PEER).unwrap();
        Played { a, b, listener }
    }

    fn until<T>(&self, call: impl FnMut() -> Option<T>) -> T {
        until(self.b, PEER, call)
    }

    /// The stream of a new attempt of `a`, and its Request.
    fn asked(&self, qp: &Arc<Qp>) -> (ConnectionId, Stream, Parser) {
        let id = ask(self.a, qp, self.b, b"");
        let stream = self.until(|| self.listener.accept(PEER).unwrap());
        let mut parser = Parser::new(Kind::Request);
        let mut byte = [0];
        while parser.missing() > 0 {
            self.until(|| (stream.receive(&mut byte).unwrap() == 1).then_some(()));
            parser.push(&byte).unwrap();
        }
        (id, stream, parser)
    }

    /// The Reply that accepts.
    fn accept(&self, parser: &Parser) -> Vec<u8> {
        let wishes = Wishes { ird: 5, ord: 3, crc: false, private_data: 508 };
        let (agreed, _) = negotiation::consider(&parser.frame().unwrap(), &wishes, false).unwrap();
        let reply = negotiation::accept(&agreed, b"").unwrap();
        let mut bytes = [0; MAX_FRAME];
        let length = reply.frame().emit(&mut bytes).unwrap();
        bytes[..length].to_vec()
    }
}

#[test]
fn what_comes_right_behind_a_reply_is_for_the_queue_pair() {
    let (_machine, a, b) = nodes();
    let played = Played::new(&a, &b);
    let qa = qp(&a, 1);
    let room = a.buffer(200);
    let region = a.register(&room);
    receive(&qa, segment(&room, &region), 5);
    let (id, stream, parser) = played.asked(&qa);
    let mut bytes = played.accept(&parser);
    let reply = bytes.len();
    // A Send of four bytes, as an FPDU.
    let place = ddp::Place::Untagged { invalidate: 0, queue: ddp::queue::SEND, msn: 1, mo: 0 };
    let control = Control::new(rdmap::Opcode::Send).to_byte();
    let mut ulpdu = [0; 64];
    let head = ddp::Header::new(true, control, place).emit(&mut ulpdu).unwrap();
    ulpdu[head..head + 4].copy_from_slice(b"soon");
    bytes.resize(reply + 128, 0);
    let length = fpdu::emit(&ulpdu[..head + 4], true, &mut bytes[reply..]).unwrap();
    bytes.truncate(reply + length);
    // In one segment.
    assert_eq!(stream.send(&bytes), Ok(bytes.len()));
    let (of, ..) = a.ears.cm("established", is_established);
    assert_eq!(of, id);
    let received = a.completion();
    assert_eq!((received.status, received.cookie, received.length), (CompletionStatus::Success, 5, 4));
    let mut text = [0; 4];
    room.read(0, &mut text).unwrap();
    assert_eq!(&text, b"soon");
    // The peer closes between messages.
    stream.close().unwrap();
    let over = |kind: &CmEventKind| *kind == CmEventKind::Disconnected { by_peer: true };
    assert_eq!(a.ears.cm("the end", over).0, id);
}

#[test]
fn a_responder_that_keeps_to_nothing_ends_the_attempt() {
    let (_machine, a, b) = nodes();
    let played = Played::new(&a, &b);
    let qa = qp(&a, 1);
    let again = || {
        assert_eq!((qa.state(), a.agent.counts().connections), (QpState::Error, 0));
        qa.to_reset().unwrap();
        qa.to_init(LinkFlags::empty()).unwrap();
    };
    let rejected = |reason| {
        let (.., kind, data) = a.ears.cm("a rejection", |kind| matches!(kind, CmEventKind::Rejected { .. }));
        assert_eq!((kind, &data[..]), (CmEventKind::Rejected { reason }, &b""[..]));
        again();
    };
    // What is no Reply is answered by a Terminate, and a close.
    let (_, stream, _) = played.asked(&qa);
    stream.send(b"HTTP/1.1 400").unwrap();
    rejected(Reason::INVALID_CLASS_VERSION);
    played.until(|| stream.state().peer_closed.then_some(()));
    let mut bytes = [0; 64];
    assert!(stream.receive(&mut bytes).unwrap() > 20, "a Terminate");
    // More RDMA Reads than the Request offers.
    let (_, stream, parser) = played.asked(&qa);
    let mut reply = played.accept(&parser);
    reply[23] = 9;
    stream.send(&reply).unwrap();
    rejected(Reason::INSUFFICIENT_RESPONDER_RESOURCES);
    // An end before, and in the middle of a Reply.
    for (cut, reset) in [(0, true), (0, false), (21, true), (21, false)] {
        let (_, stream, parser) = played.asked(&qa);
        if cut > 0 {
            stream.send(&played.accept(&parser)[..cut]).unwrap();
        }
        stream.destroy(reset).unwrap();
        rejected(Reason::UNSUPPORTED_REQUEST);
    }
    // Silence, for as long as the client wants.
    let params = ConnectParams { timeout: Some(Duration::from_millis(50)), ..asking(&a, &b) };
    a.client.connect(&qa, &params, Handshake::TwoWay, b"").unwrap();
    a.ears.cm("a timeout", |kind| *kind == CmEventKind::Unreachable);
    again();
}

#[test]
fn an_attempt_that_is_given_up_resets_its_stream_and_is_not_reported() {
    let (_machine, a, b) = nodes();
    let played = Played::new(&a, &b);
    let qa = qp(&a, 1);
    let reset = |stream: &Stream| {
        played.until(|| (stream.state().end == Some(StreamEnd::Reset)).then_some(()));
    };
    let (id, stream, _) = played.asked(&qa);
    a.client.disconnect(id, b"").unwrap();
    reset(&stream);
    assert_eq!(qa.state(), QpState::Error);
    qa.to_reset().unwrap();
    qa.to_init(LinkFlags::empty()).unwrap();
    let (_, stream, _) = played.asked(&qa);
    qa.destroy().unwrap();
    reset(&stream);
    let qa = qp(&a, 1);
    let (_, stream, _) = played.asked(&qa);
    a.client.detach();
    reset(&stream);
    assert!(!a.ears.all().iter().any(|heard| matches!(heard, Heard::Cm(..))));
    let counts = a.agent.counts();
    assert_eq!((counts.connections, counts.streams), (0, 0));
}
