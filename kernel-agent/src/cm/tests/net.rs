//! Nodes with a state machine each, the network between them, and the time.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use core::time::Duration;

use platform::{Instant, Secret};
use roce::cm::{Datagram, Message, ReadDepths};
use roce::transport::Service;
use roce::{Gid, Path, Psn, Qpn, ServiceId};

use crate::cm::*;

pub const SERVICE: ServiceId = ServiceId::it_api(7);

pub struct Node {
    pub cm: Cm,
    pub gid: Gid,
    pub events: Vec<Event>,
}

/// What the network does to a datagram, in thousandths.
#[derive(Clone, Copy, Default)]
pub struct Weather {
    pub lost: u64,
    pub repeated: u64,
    pub late: u64,
}

pub struct Net {
    pub nodes: Vec<Node>,
    pub now: Instant,
    pub weather: Weather,
    /// By time of arrival and order of sending.
    wire: BTreeMap<(Instant, u64), (usize, Arrival, [u8; 256])>,
    /// Everything that was sent, lost or not.
    pub sent: Vec<Message>,
    /// What of it was sent to one of the nodes.
    to_nodes: Vec<(usize, Arrival, [u8; 256])>,
    random: u64,
    order: u64,
}

pub fn config() -> Config {
    Config { ca_guid: 0x1122_3344_5566_7788, secret: Secret::new([1, 2]), ..Config::default() }
}

pub fn qpn(n: u32) -> Qpn {
    Qpn::new(n).unwrap()
}

/// A queue pair whose first PSN follows from its number.
pub fn local(n: u32) -> LocalQp {
    LocalQp::new(Service::Rc, qpn(n), Psn::new(n * 16))
}

impl Net {
    pub fn new(nodes: usize) -> Net {
        Net::with(nodes, config(), 1)
    }

    pub fn with(nodes: usize, config: Config, seed: u64) -> Net {
        let node = |n: usize| Node {
            cm: Cm::new(Config {
                ca_guid: config.ca_guid + n as u64,
                secret: Secret::new([config.secret.hash([0, 0]), n as u64]),
                ..config
            }),
            gid: Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, 1 + n as u8)),
            events: Vec::new(),
        };
        Net {
            nodes: (0..nodes).map(node).collect(),
            now: Instant::from_nanos(1_000_000),
            weather: Weather::default(),
            wire: BTreeMap::new(),
            sent: Vec::new(),
            to_nodes: Vec::new(),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            order: 0,
        }
    }

    pub fn random(&mut self, below: u64) -> u64 {
        // xorshift64*
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % below
    }

    /// Usual parameters from the first node to the last.
    pub fn params(&self) -> ConnectParams {
        let path = Path::new(self.nodes[0].gid, self.nodes[self.nodes.len() - 1].gid);
        let depths = ReadDepths { responder_resources: 4, initiator_depth: 3 };
        ConnectParams { depths, ..ConnectParams::new(path, SERVICE) }
    }

    /// Carries out a node's actions.
    pub fn drain(&mut self, node: usize) {
        while let Some(action) = self.nodes[node].cm.next_action() {
            match action {
                Action::Event(event) => self.nodes[node].events.push(event),
                Action::Send(out) => self.post(out),
            }
        }
    }

    fn post(&mut self, out: Outgoing) {
        self.sent.push(Datagram::parse(&out.mad).unwrap().message);
        let Some(to) = self.nodes.iter().position(|node| node.gid == out.remote_gid) else { return };
        let arrival = Arrival { local_gid: out.remote_gid, remote_gid: out.local_gid, remote_qp: Qpn::GSI };
        self.to_nodes.push((to, arrival, out.mad));
        if self.random(1000) < self.weather.lost {
            return;
        }
        let copies = 1 + u64::from(self.random(1000) < self.weather.repeated);
        for _ in 0..copies {
            let weather = self.weather;
            let late = match weather.late {
                0 => 0,
                late if self.random(1000) < late => self.random(3_000),
                _ => self.random(10),
            };
            let at = self.now + Duration::from_micros(10) + Duration::from_millis(late);
            self.order += 1;
            self.wire.insert((at, self.order), (to, arrival, out.mad));
        }
    }

    /// Delivers the next datagram or fires the next timer, whichever is earlier, if that is by
    /// `until`. Returns the node that it acted on.
    pub fn step(&mut self, until: Instant) -> Option<usize> {
        let timer = (0..self.nodes.len())
            .filter_map(|n| Some((self.nodes[n].cm.next_deadline()?, n)))
            .min()
            .filter(|(at, _)| *at <= until);
        let arrival = self.wire.first_key_value().map(|(key, _)| *key).filter(|(at, _)| *at <= until);
        let node = match (timer, arrival) {
            (Some((at, node)), arrival) if arrival.is_none_or(|(arrives, _)| at < arrives) => {
                self.now = self.now.max(at);
                let now = self.now;
                self.nodes[node].cm.poll(now);
                node
            }
            (_, Some(key)) => {
                let (node, arrival, mad) = self.wire.remove(&key).unwrap();
                self.now = self.now.max(key.0);
                let now = self.now;
                self.nodes[node].cm.receive(now, &arrival, &mad);
                node
            }
            _ => return None,
        };
        self.drain(node);
        Some(node)
    }

    /// Delivers all datagrams in the network, and those that follow from them, but fires no timer.
    pub fn deliver(&mut self) {
        for node in 0..self.nodes.len() {
            self.drain(node);
        }
        while let Some((key, (node, arrival, mad))) = self.wire.pop_first() {
            self.now = self.now.max(key.0);
            let now = self.now;
            self.nodes[node].cm.receive(now, &arrival, &mad);
            self.drain(node);
        }
    }

    /// The last datagram of the kind that `is` accepts, and how it arrived.
    pub fn last(&self, is: fn(&Message) -> bool) -> (Arrival, [u8; 256]) {
        let (_, from, mad) = self.last_to_node(is);
        (from, mad)
    }

    fn last_to_node(&self, is: fn(&Message) -> bool) -> (usize, Arrival, [u8; 256]) {
        let is_one = |(.., mad): &&(usize, Arrival, [u8; 256])| is(&Datagram::parse(mad).unwrap().message);
        *self.to_nodes.iter().rev().find(is_one).unwrap()
    }

    /// Delivers that datagram once more.
    pub fn again(&mut self, is: fn(&Message) -> bool) {
        let (node, from, mad) = self.last_to_node(is);
        let now = self.now;
        self.nodes[node].cm.receive(now, &from, &mad);
        self.drain(node);
    }

    /// Delivers a message to a node as if the other one of two had sent it.
    pub fn say(&mut self, node: usize, message: impl Into<Message>) {
        let (local_gid, remote_gid) = (self.nodes[node].gid, self.nodes[1 - node].gid);
        let from = Arrival { local_gid, remote_gid, remote_qp: Qpn::GSI };
        let now = self.now;
        let mad = Datagram { tid: 3, message: message.into() }.emit();
        self.nodes[node].cm.receive(now, &from, &mad);
        self.drain(node);
    }

    /// Loses all datagrams in the network.
    pub fn lose(&mut self) {
        for node in 0..self.nodes.len() {
            self.drain(node);
        }
        self.wire.clear();
    }

    /// Advances the time by `time`: delivers datagrams and fires timers.
    pub fn pass(&mut self, time: Duration) {
        for node in 0..self.nodes.len() {
            self.drain(node);
        }
        let until = self.now + time;
        while self.step(until).is_some() {}
        self.now = until;
    }

    pub fn take(&mut self, node: usize) -> Vec<Event> {
        core::mem::take(&mut self.nodes[node].events)
    }

    pub fn connect(&mut self, local_qpn: u32, private_data: &[u8]) -> ConnectionId {
        let (now, params) = (self.now, self.params());
        self.nodes[0].cm.connect(now, local(local_qpn), &params, private_data).unwrap()
    }

    pub fn accept(&mut self, node: usize, conn: ConnectionId, local_qpn: u32, private_data: &[u8]) {
        let depths = ReadDepths { responder_resources: 2, initiator_depth: 1 };
        let params = AcceptParams { depths, ..AcceptParams::default() };
        let now = self.now;
        self.nodes[node].cm.accept(now, conn, local(local_qpn), &params, private_data).unwrap();
    }

    /// The request that the last node reported.
    pub fn request(&mut self) -> Request {
        let last = self.nodes.len() - 1;
        let events = self.take(last);
        let [Event::ConnectRequest(request)] = events[..] else { panic!("{events:?}") };
        request
    }

    /// Two nodes; the second one has reported a request that its consumer has not answered. Returns
    /// the network and the two ends.
    pub fn asked() -> (Net, ConnectionId, ConnectionId) {
        let mut net = Net::new(2);
        net.nodes[1].cm.listen(SERVICE, Transports::RC, 1).unwrap();
        let ours = net.connect(0x11, b"");
        net.deliver();
        let theirs = net.request().conn;
        (net, ours, theirs)
    }

    /// As [`Net::asked`], after the consumer has accepted and the reply has arrived.
    pub fn replied() -> (Net, ConnectionId, ConnectionId) {
        let (mut net, ours, theirs) = Net::asked();
        net.accept(1, theirs, 0x22, b"");
        net.deliver();
        (net, ours, theirs)
    }

    /// The rejection that a node reported, and nothing else.
    #[track_caller]
    pub fn rejection(&mut self, node: usize) -> Rejection {
        let events = self.take(node);
        let [Event::Rejected(rejection)] = events[..] else { panic!("{events:?}") };
        rejection
    }

    /// The number of all nodes' connections.
    pub fn connections(&self) -> usize {
        self.nodes.iter().map(|node| node.cm.counts().connections).sum()
    }

    /// Two connected ends: the first node's and the last node's.
    pub fn connected(&mut self, active: u32, passive: u32) -> (ConnectionId, ConnectionId) {
        let last = self.nodes.len() - 1;
        if self.nodes[last].cm.listener(SERVICE).is_none() {
            self.nodes[last].cm.listen(SERVICE, Transports::RC, 16).unwrap();
        }
        let ours = self.connect(active, b"");
        self.deliver();
        let theirs = self.request().conn;
        self.accept(last, theirs, passive, b"");
        self.deliver();
        assert!(matches!(self.take(0)[..], [Event::Reply(_)]));
        let now = self.now;
        self.nodes[0].cm.establish(now, ours, b"").unwrap();
        self.deliver();
        assert!(matches!(self.take(last)[..], [Event::Established { .. }]));
        (ours, theirs)
    }

    pub fn state(&self, node: usize, conn: ConnectionId) -> State {
        self.nodes[node].cm.state(conn)
    }
}
