//! Connections over streams, of which one end is the agent's and the other end the test's.

extern crate ferrovia_kernel_agent as kernel_agent;

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::*;
use host::Machine;
use iwarp::mpa::frame::{Depth, Enhanced, Kind, MAX_FRAME, Parser, Repr};
use kernel_agent::wire::Reason;
use kernel_agent::{
    CmEventKind, Config, ConnectionId, Error, QpType, Resource, Stream, StreamEnd, Transports,
};
use roce::cm::ReadDepths;
use roce::{Gid, ServiceId};

const PORT: u16 = 4711;
/// The context of the listening point.
const LISTEN: u64 = 9;

/// A peer that the test plays, and an agent that listens.
struct Scene {
    peer: Node,
    node: Node,
    streams: std::cell::Cell<u64>,
    /// The last to go: it has the devices.
    machine: Machine,
}

impl Scene {
    fn new() -> Scene {
        Scene::with(Config::default())
    }

    fn with(config: Config) -> Scene {
        let machine = by_wire();
        let peer = Node::new(&machine, &open(&machine, 0));
        let node = Node::new(&machine, &open_with(&machine, 1, config));
        Scene { peer, node, streams: Default::default(), machine }
    }

    fn listening() -> Scene {
        let scene = Scene::new();
        scene.node.client.listen(ServiceId(PORT.into()), Transports::IWARP, LISTEN).unwrap();
        scene
    }

    /// A stream to the agent, whose upcalls have a context of their own.
    fn stream(&self) -> Peer<'_> {
        self.stream_to(PORT)
    }

    fn stream_to(&self, port: u16) -> Peer<'_> {
        self.stream_between(1, port)
    }

    /// A stream between the addresses with this index.
    fn stream_between(&self, address: usize, port: u16) -> Peer<'_> {
        let context = self.streams.get() + 100;
        self.streams.set(context - 99);
        let gid = |node: &Node| Gid(node.agent.identity().gids[address]);
        let (local, remote) = ((gid(&self.peer), 0), (gid(&self.node), port));
        let stream = self.peer.client.connect_stream(local, remote, context).unwrap();
        let peer = Peer { node: &self.peer, stream, context };
        peer.until(|peer| peer.stream.state().connected.then_some(()));
        peer
    }

    /// A stream that has sent a Request, and what the client heard.
    fn asked(&self, private_data: &[u8]) -> (Peer<'_>, ConnectionId) {
        let peer = self.stream();
        peer.send(&request(private_data));
        (peer, self.request().0)
    }

    fn request(&self) -> (ConnectionId, CmEventKind, Vec<u8>) {
        let (id, context, kind, data) = self.node.ears.cm("a request", is_request);
        assert_eq!(context, LISTEN);
        (id, kind, data)
    }

    fn withdrawn(&self, id: ConnectionId) {
        let (of, ..) = self.node.ears.cm("the end of a request", |kind| *kind == CmEventKind::Withdrawn);
        assert_eq!(of, id);
    }

    /// Waits until the agent has no connection, and gives out what it heard of connections.
    fn all_over(&self) {
        while self.node.agent.counts().connections > 0 {
            std::thread::yield_now();
        }
        let heard = self.node.ears.all();
        assert!(!heard.iter().any(|heard| matches!(heard, Heard::Cm(..))), "{heard:?}");
    }
}

fn is_request(kind: &CmEventKind) -> bool {
    matches!(kind, CmEventKind::Request { .. })
}

/// The test's end of a stream.
struct Peer<'a> {
    node: &'a Node,
    stream: Stream,
    context: u64,
}

impl Peer<'_> {
    fn until<T>(&self, mut call: impl FnMut(&Self) -> Option<T>) -> T {
        until(self.node, self.context, || call(self))
    }

    fn send(&self, bytes: &[u8]) {
        assert_eq!(self.stream.send(bytes), Ok(bytes.len()));
    }

    fn ends(&self, end: StreamEnd) {
        self.until(|peer| (peer.stream.state().end == Some(end)).then_some(()));
    }

    /// The Reply: whether it rejects, and its private data. The stream is closed behind it.
    fn rejected(&self) -> Vec<u8> {
        let mut parser = Parser::new(Kind::Reply);
        let mut byte = [0];
        self.until(|peer| {
            while parser.missing() > 0 {
                if peer.stream.receive(&mut byte) != Ok(1) {
                    return None;
                }
                parser.push(&byte).unwrap();
            }
            Some(())
        });
        self.until(|peer| peer.stream.state().peer_closed.then_some(()));
        assert_eq!(self.stream.receive(&mut byte), Err(Error::StreamState));
        let frame = parser.frame().unwrap();
        assert!(frame.reject);
        frame.split().unwrap().1.to_vec()
    }
}

fn request(private_data: &[u8]) -> Vec<u8> {
    let enhanced = Enhanced { ird: Depth::new(3), ord: Depth::new(2), ..Enhanced::default() };
    frame(|_| (), &[&enhanced.to_bytes(), private_data].concat())
}

/// A Request with a change.
fn frame(edit: impl Fn(&mut Repr<'_>), data: &[u8]) -> Vec<u8> {
    let kind = Kind::Request;
    let mut frame =
        Repr { kind, markers: false, crc: false, reject: false, enhanced: true, revision: 2, data };
    edit(&mut frame);
    let mut bytes = [0; MAX_FRAME];
    let length = frame.emit(&mut bytes).unwrap();
    bytes[..length].to_vec()
}

#[test]
fn a_request_is_reported_with_what_it_says_and_can_be_rejected() {
    let scene = Scene::listening();
    let peer = scene.stream();
    let bytes = request(b"let me in");
    // In pieces, as a slow peer sends them.
    for piece in bytes.chunks(7) {
        peer.send(piece);
    }
    let (id, kind, data) = scene.request();
    assert_eq!(data, b"let me in");
    let CmEventKind::Request { service, qp_type, path, source_gid, depths, .. } = kind else {
        unreachable!()
    };
    assert_eq!((service, qp_type, source_gid), (ServiceId(PORT.into()), QpType::Iwarp, 1));
    assert_eq!(path.remote_gid.0, scene.peer.agent.identity().gids[1]);
    assert_eq!(path.local_gid.0, scene.node.agent.identity().gids[1]);
    assert_eq!(depths, ReadDepths { responder_resources: 3, initiator_depth: 2 });
    assert_eq!(scene.node.agent.counts().connections, 1);
    let client = &scene.node.client;
    let other = scene.node.qp(3);
    let wrong = client.accept(id, &other, &accepted(), b"");
    assert_eq!(wrong, Err(Error::OutOfRange("queue pair type")));
    assert_eq!(client.establish(id, 1, b""), Err(Error::ConnectionState));
    assert_eq!(client.disconnect(id, b""), Err(Error::ConnectionState));
    let long = [0; iwarp::mpa::frame::MAX_PRIVATE_DATA + 1];
    assert_eq!(client.reject(id, &long), Err(Error::PrivateData(long.len() - 1)));
    client.reject_because(id, Reason::CONSUMER_DEFINED, &[], b"not today").unwrap();
    assert_eq!(client.reject(id, b""), Err(Error::ConnectionState));
    assert_eq!(peer.rejected(), b"not today");
    scene.all_over();
}

#[test]
fn a_peer_withdraws_its_request_by_an_end_or_by_bytes_behind_it() {
    let scene = Scene::listening();
    let (peer, id) = scene.asked(b"");
    peer.stream.destroy(true).unwrap();
    scene.withdrawn(id);
    let (peer, id) = scene.asked(b"");
    peer.stream.close().unwrap();
    scene.withdrawn(id);
    peer.ends(StreamEnd::Reset);
    let (peer, id) = scene.asked(b"");
    peer.send(b"too early");
    scene.withdrawn(id);
    peer.ends(StreamEnd::Reset);
    assert_eq!(scene.node.client.reject(id, b""), Err(Error::ConnectionState));
    // Behind the Request at once: the client is not asked.
    let peer = scene.stream();
    peer.send(&[request(b""), vec![0]].concat());
    peer.ends(StreamEnd::Reset);
    scene.all_over();
}

#[test]
fn what_is_no_request_is_reported_to_nobody() {
    let scene = Scene::listening();
    for bytes in [b"GET / HTTP/1.1\r\n".to_vec(), frame(|frame| frame.kind = Kind::Reply, &[0; 4])] {
        let peer = scene.stream();
        peer.send(&bytes);
        peer.ends(StreamEnd::Reset);
    }
    for bytes in [frame(|frame| frame.markers = true, &[0; 4]), frame(|_| (), &[0; 3])] {
        let peer = scene.stream();
        peer.send(&bytes);
        assert_eq!(peer.rejected(), b"");
    }
    // An end at each byte of a Request.
    let bytes = request(b"");
    for cut in 0..bytes.len() {
        let peer = scene.stream();
        if cut > 0 {
            peer.send(&bytes[..cut]);
        }
        match cut % 2 {
            0 => peer.stream.destroy(true).unwrap(),
            _ => {
                peer.stream.close().unwrap();
                peer.ends(StreamEnd::Reset);
            }
        }
    }
    scene.all_over();
}

#[test]
fn silent_connections_give_way_the_oldest_first() {
    let scene = Scene::listening();
    let mut silent: Vec<Peer<'_>> = (0..127).map(|_| scene.stream()).collect();
    // Until its Request comes, this one is the 128th.
    let (peer, id) = scene.asked(b"early");
    assert_eq!(silent[0].stream.state().end, None);
    scene.node.client.reject(id, b"").unwrap();
    assert_eq!(peer.rejected(), b"");
    silent.extend((0..2).map(|_| scene.stream()));
    silent[0].ends(StreamEnd::Reset);
    let (peer, id) = scene.asked(b"honest");
    silent[1].ends(StreamEnd::Reset);
    assert_eq!(silent[128].stream.state().end, None);
    scene.node.client.reject(id, b"").unwrap();
    assert_eq!(peer.rejected(), b"");
}

#[test]
fn one_peer_has_half_of_the_places_for_requests_at_a_listening_point() {
    let scene = Scene::listening();
    let asked: Vec<_> = (0..512).map(|_| scene.asked(b"")).collect();
    let more = scene.stream();
    more.send(&request(b""));
    more.ends(StreamEnd::Reset);
    let other = scene.stream_between(0, PORT);
    other.send(&request(b"other"));
    assert_eq!(scene.request().2, b"other");
    assert!(asked.iter().all(|(peer, _)| peer.stream.state().end.is_none()));
}

#[test]
fn one_peer_has_half_of_the_streams_in_set_ups_at_all_listening_points() {
    let scene = Scene::with(Config { max_streams: 16, ..Config::default() });
    let client = &scene.node.client;
    let ports = [PORT, PORT + 1, PORT + 2];
    for port in ports {
        client.listen(ServiceId(port.into()), Transports::IWARP, LISTEN).unwrap();
    }
    let ask = |address, port, data: &[u8]| {
        let peer = scene.stream_between(address, port);
        peer.send(&request(data));
        let (id, _, heard) = scene.request();
        assert_eq!(heard, data);
        (peer, id)
    };
    let mut asked: Vec<_> = (0..8).map(|n| ask(1, ports[n % 3], b"")).collect();
    for port in ports {
        scene.stream_to(port).ends(StreamEnd::Reset);
    }
    assert_eq!(scene.node.agent.refused_streams(), 3);
    // A peer with another address is served.
    let (other, of_other) = ask(0, ports[1], b"other");
    client.reject(of_other, b"").unwrap();
    assert_eq!(other.rejected(), b"");
    // What ends makes room, once.
    let (first, id) = asked.remove(0);
    client.reject(id, b"").unwrap();
    assert_eq!(first.rejected(), b"");
    asked.push(ask(1, ports[2], b"again"));
    scene.stream().ends(StreamEnd::Reset);
    assert_eq!(scene.node.agent.refused_streams(), 4);
    assert!(asked.iter().all(|(peer, _)| peer.stream.state().end.is_none()));
}

#[test]
fn a_client_with_enough_connections_is_not_asked() {
    let scene = Scene::listening();
    scene.node.client.limit_connections(1);
    let (first, id) = scene.asked(b"");
    let second = scene.stream();
    second.send(&request(b""));
    assert_eq!(second.rejected(), b"");
    scene.node.client.discard(id).unwrap();
    first.ends(StreamEnd::Reset);
    assert_eq!(scene.node.client.discard(id), Err(Error::ConnectionState));
    let (third, id) = scene.asked(b"");
    scene.node.client.reject(id, b"").unwrap();
    assert_eq!(third.rejected(), b"");
    scene.all_over();
}

#[test]
fn a_listening_point_that_ends_leaves_its_requests_answerable() {
    let scene = Scene::new();
    let (node, client) = (&scene.node, &scene.node.client);
    let service = ServiceId(PORT.into());
    for bad in [Transports::IWARP | Transports::RC, Transports::RC | Transports::IWARP] {
        assert!(matches!(client.listen(service, bad, 1), Err(Error::OutOfRange(_))));
    }
    for bad in [ServiceId(0), ServiceId(1 << 40), ServiceId::ip_cm(ServiceId::UDP, PORT)] {
        let refused = client.listen(bad, Transports::IWARP, 1);
        assert_eq!(refused, Err(Error::OutOfRange("service id")));
    }
    let listen = client.listen(ServiceId::it_api(PORT), Transports::IWARP, LISTEN).unwrap();
    let taken = client.listen(ServiceId::ip_cm(ServiceId::TCP, PORT), Transports::IWARP, 1);
    assert_eq!(taken, Err(Error::ServiceInUse));
    let (asked, id) = scene.asked(b"");
    let silent = scene.stream();
    assert_eq!(scene.peer.client.stop_listening(listen), Err(Error::ConnectionState));
    client.stop_listening(listen).unwrap();
    assert_eq!(client.stop_listening(listen), Err(Error::ConnectionState));
    silent.ends(StreamEnd::Reset);
    client.reject(id, b"too late").unwrap();
    assert_eq!(asked.rejected(), b"too late");
    scene.all_over();
    assert_eq!((node.agent.counts().listens, node.agent.counts().streams), (0, 0));
}

#[test]
fn another_client_can_answer_and_the_end_of_a_client_ends_all_that_it_has() {
    let scene = Scene::listening();
    let other = Node::new(&scene.machine, &scene.node.agent);
    let (peer, id) = scene.asked(b"");
    other.client.limit_connections(0);
    let refused = scene.node.client.transfer(id, &other.client, 5);
    assert_eq!(refused, Err(Error::NoResources(Resource::Connections)));
    other.client.limit_connections(1);
    scene.node.client.transfer(id, &other.client, 5).unwrap();
    assert_eq!(scene.node.client.reject(id, b""), Err(Error::ConnectionState));
    let (mine, _) = scene.asked(b"");
    let silent = scene.stream();
    scene.node.client.detach();
    mine.ends(StreamEnd::Reset);
    silent.ends(StreamEnd::Reset);
    other.client.reject(id, b"by another").unwrap();
    assert_eq!(peer.rejected(), b"by another");
    scene.all_over();
    let counts = scene.node.agent.counts();
    assert_eq!((counts.listens, counts.connections, counts.streams), (0, 0, 0));
    let gone = Arc::clone(&scene.node.client).listen(ServiceId(1), Transports::IWARP, 1);
    assert_eq!(gone, Err(Error::Gone));
}

#[test]
fn a_client_can_be_detached_while_it_is_asked() {
    let scene = Scene::listening();
    let other = Node::new(&scene.machine, &scene.node.agent);
    let _listener = other.client.listen_for_streams(None, PORT + 1, 4, 1).unwrap();
    // The dispatcher thread waits in an upcall until the Request is there, so it takes the stream
    // and the Request at once.
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    *other.ears.in_upcall.lock().unwrap() = Some(Box::new(move |_| {
        // Not for ever, if the test fails.
        let _ = wait.lock().unwrap().recv_timeout(Duration::from_secs(10));
    }));
    let client = Arc::downgrade(&scene.node.client);
    *scene.node.ears.in_upcall.lock().unwrap() = Some(Box::new(move |heard| {
        if let (Heard::Cm(..), Some(client)) = (heard, client.upgrade()) {
            client.detach();
        }
    }));
    let first = scene.stream_to(PORT + 1);
    let peer = scene.stream();
    peer.send(&request(b""));
    drop(go_on);
    peer.ends(StreamEnd::Reset);
    while scene.node.agent.counts().connections > 0 {
        std::thread::yield_now();
    }
    drop(first);
}
