//! The calls of the connection manager. What answers or ends something works without memory, except
//! that an accept may be refused, after which the request still waits.

use super::*;

/// A call that must succeed on a machine without memory.
fn without_memory<T>(what: &str, call: impl FnOnce() -> Result<T>) -> T {
    CountedHeap::ending_after(0, call).unwrap_or_else(|error| panic!("{what} without memory: {error}"))
}

/// An IA with an endpoint and a queue for peers' requests.
struct Node {
    side: Side,
    arrivals: EvdHandle,
}

impl Node {
    fn new(world: &World) -> Node {
        let side = Side::new(world.ia(0), attributes());
        let arrivals = evd(&side.ia, EventType::CM_REQ_EVENT_STREAM);
        Node { side, arrivals }
    }

    fn ia(&self) -> &Ia {
        &self.side.ia
    }

    fn listen(&self) -> ListenHandle {
        let flags = ListenFlags::CONN_QUAL_INPUT;
        self.ia().listen_create(1, self.arrivals, flags, Some(&SERVICE)).unwrap().0
    }

    /// Makes a new endpoint from one whose connection has ended.
    fn renew(&self) {
        self.ia().ep_reset(self.side.ep).unwrap();
    }

    fn request(&self) -> ConnRequest {
        match self.side.wait(self.arrivals) {
            Event::ConnRequest(request) => request,
            other => panic!("{other:?}"),
        }
    }
}

/// A listening and a connecting node on one NIC.
struct Nodes {
    world: World,
    /// The path from `a` to `b`.
    route: Path,
    a: Node,
    b: Node,
}

impl Nodes {
    fn new() -> Nodes {
        let world = World::new(1);
        let (a, b) = (Node::new(&world), Node::new(&world));
        let route = path(a.ia(), b.ia());
        Nodes { world, route, a, b }
    }

    /// What a call that is refused must leave as it is.
    fn state(&self) -> impl PartialEq + std::fmt::Debug + use<> {
        let of = |node: &Node| (node.side.state(), node.ia().object_counts());
        (of(&self.a), of(&self.b), self.world.agents[0].counts())
    }

    fn ask(&self, flags: CnEstFlags) -> Result<()> {
        self.a.ia().ep_connect(self.a.side.ep, &self.route, None, &SERVICE, flags, b"hello")
    }

    fn connected(&self) {
        for node in [&self.a, &self.b] {
            let event = node.side.wait(node.side.connection);
            assert!(matches!(event, Event::ConnEstablished { .. }), "{event:?}");
        }
    }

    /// Connects; no listening point is left.
    fn connect(&self, flags: CnEstFlags) {
        let listen = self.b.listen();
        self.ask(flags).unwrap();
        let id = self.b.request().cn_est_id;
        self.b.ia().ep_accept(self.b.side.ep, id, b"").unwrap();
        self.b.ia().listen_free(listen).unwrap();
        if flags == CnEstFlags::TWO_WAY {
            self.connected();
        }
    }

    fn done(self) {
        for node in [&self.a, &self.b] {
            without_memory("ia_free", || node.ia().ia_free());
        }
        let counts = self.world.agents[0].counts();
        assert_eq!((counts.connections, counts.listens, counts.resolutions, counts.qps), (0, 0, 0, 0));
        self.world.agents[0].close();
    }
}

#[test]
fn a_listening_point_is_made_or_not() {
    let world = World::new(1);
    let node = Node::new(&world);
    let ia = node.ia();
    for _ in 0..2 {
        for (flags, qual) in [(ListenFlags::CONN_QUAL_INPUT, Some(&SERVICE)), (ListenFlags::empty(), None)] {
            let create = || ia.listen_create(1, node.arrivals, flags, qual);
            each_request(&world, ia, "listen_create", create, |(listen, _)| ia.listen_free(listen));
        }
    }
}

#[test]
fn a_handshake_goes_on_once_there_is_memory() {
    let nodes = Nodes::new();
    let (a, b) = (&nodes.a, &nodes.b);
    let listen = b.listen();
    for flags in [CnEstFlags::TWO_WAY, CnEstFlags::THREE_WAY] {
        until_it_succeeds("ep_connect", || nodes.state(), || nodes.ask(flags));
        let id = b.request().cn_est_id;
        let accept = || b.ia().ep_accept(b.side.ep, id, b"welcome");
        until_it_succeeds("ep_accept of a request", || nodes.state(), accept);
        if flags == CnEstFlags::THREE_WAY {
            let arrival = a.side.wait(a.side.connection);
            let Event::ConnAcceptArrival { cn_est_id, .. } = arrival else { panic!("{arrival:?}") };
            let accept = || a.ia().ep_accept(a.side.ep, cn_est_id, b"");
            until_it_succeeds("ep_accept of an accept", || nodes.state(), accept);
        }
        nodes.connected();
        without_memory("ep_disconnect", || a.ia().ep_disconnect(a.side.ep, b"bye"));
        assert_eq!(a.side.state(), EpState::Rc(EpStateRc::Nonoperational));
        let event = b.side.wait(b.side.connection);
        assert!(matches!(event, Event::ConnDisconnect { private_data: Some(_), .. }), "{event:?}");
        let event = a.side.wait(a.side.connection);
        assert!(matches!(event, Event::ConnDisconnect { .. }), "{event:?}");
        assert_eq!(nodes.world.agents[0].counts().connections, 0);
        [a, b].into_iter().for_each(Node::renew);
    }
    without_memory("listen_free", || b.ia().listen_free(listen));
    nodes.done();
}

#[test]
fn a_request_is_refused_or_abandoned_without_memory() {
    let nodes = Nodes::new();
    let (a, b) = (&nodes.a, &nodes.b);
    let listen = b.listen();
    let refused = |expected: fn(&Event) -> bool| {
        let event = a.side.wait(a.side.connection);
        assert!(expected(&event), "{event:?}");
        a.renew();
    };

    nodes.ask(CnEstFlags::TWO_WAY).unwrap();
    let id = b.request().cn_est_id;
    without_memory("reject", || b.ia().reject(id, b"no"));
    refused(|event| matches!(event, Event::ConnPeerReject { .. }));

    // The active side rejects the accept, which it would remember for a time if it had memory.
    nodes.ask(CnEstFlags::THREE_WAY).unwrap();
    let id = b.request().cn_est_id;
    b.ia().ep_accept(b.side.ep, id, b"").unwrap();
    let arrival = a.side.wait(a.side.connection);
    let Event::ConnAcceptArrival { cn_est_id, .. } = arrival else { panic!("{arrival:?}") };
    without_memory("reject", || a.ia().reject(cn_est_id, b"no"));
    let event = b.side.wait(b.side.connection);
    assert!(matches!(event, Event::ConnPeerReject { .. }), "{event:?}");
    [a, b].into_iter().for_each(Node::renew);

    // The consumer gives up an attempt.
    nodes.ask(CnEstFlags::TWO_WAY).unwrap();
    b.request();
    without_memory("ep_disconnect", || a.ia().ep_disconnect(a.side.ep, b""));
    refused(|event| matches!(event, Event::ConnDisconnect { .. }));

    b.ia().listen_free(listen).unwrap();
    nodes.done();
}

#[test]
fn a_request_that_is_handed_over_without_memory_comes_again() {
    let nodes = Nodes::new();
    let (a, b) = (&nodes.a, &nodes.b);
    let listen = b.listen();
    nodes.ask(CnEstFlags::TWO_WAY).unwrap();
    let id = b.request().cn_est_id;
    without_memory("handoff", || b.ia().handoff(&SERVICE, 1, id));
    assert_eq!(b.ia().reject(id, b""), Err(Error::InvalidCnEstId), "the identifier is used up");
    let again = b.request().cn_est_id;
    b.ia().ep_accept(b.side.ep, again, b"").unwrap();
    nodes.connected();
    without_memory("ep_free", || a.ia().ep_free(a.side.ep));
    let event = b.side.wait(b.side.connection);
    assert!(matches!(event, Event::ConnDisconnect { .. }), "{event:?}");
    b.ia().listen_free(listen).unwrap();
    nodes.done();
}

#[test]
fn an_ia_with_connections_is_freed_without_memory() {
    let nodes = Nodes::new();
    nodes.connect(CnEstFlags::TWO_WAY);
    nodes.b.listen();
    nodes.done();
    // A connection that waits for its last message, and a request that nothing has answered.
    let nodes = Nodes::new();
    nodes.connect(CnEstFlags::THREE_WAY);
    nodes.done();
    let nodes = Nodes::new();
    nodes.b.listen();
    nodes.ask(CnEstFlags::TWO_WAY).unwrap();
    nodes.b.request();
    nodes.done();
}

#[test]
fn a_service_is_asked_for_and_answered() {
    let nodes = Nodes::new();
    let (a, b) = (&nodes.a, &nodes.b);
    let create = || {
        let (replies, route) = (a.side.connection, &nodes.route);
        a.ia().ud_service_request_handle_create(&SERVICE, replies, route, b"who are you?")
    };
    for _ in 0..2 {
        each_request(&nodes.world, a.ia(), "ud_service_request_handle_create", create, |handle| {
            a.ia().ud_service_request_handle_free(handle)
        });
    }
    b.listen();
    let handle = create().unwrap();
    for _ in 0..2 {
        until_it_succeeds("ud_service_request", || nodes.state(), || a.ia().ud_service_request(handle));
        let asked = b.side.wait(b.arrivals);
        let Event::UdServiceRequest(asked) = asked else { panic!("{asked:?}") };
        let info = RemoteEpInfo { ud_ep_id: 7, ud_ep_key: 8 };
        let (id, valid) = (asked.ud_svc_req_id, UdSvcStatus::EpInfoValid);
        without_memory("ud_service_reply", || b.ia().ud_service_reply(id, valid, info, b"me"));
        let reply = a.side.wait(a.side.connection);
        let Event::UdServiceReply(reply) = reply else { panic!("{reply:?}") };
        assert_eq!((reply.status, reply.ep_info), (valid, info));
    }
    // One that waits for its answer when the IAs are freed.
    a.ia().ud_service_request(handle).unwrap();
    b.side.wait(b.arrivals);
    nodes.done();
}
