//! Senders that do not exist do not keep a node from connecting.

extern crate ferrovia_kernel_agent as kernel_agent;

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::raw::request;
use common::*;
use links::Link;
use nic_model::{Wire, port};
use platform::Instant;
use roce::cm::Datagram;
use roce::transport::ud;
use roce::wire::datagram::{self, Network};
use roce::wire::ethernet;
use roce::{Gid, Psn, QKey, Qpn, ServiceId};

/// The time between two frames of strangers.
const EVERY: Duration = Duration::from_millis(1);

/// A link on which, beside its peer, strangers send: each connection request comes from another
/// address of fe80::/64, which no node has.
struct Crowded {
    link: Box<dyn Link + Send>,
    /// The port that gets them.
    port: port::Config,
    next: Instant,
    sent: Arc<AtomicU32>,
}

impl Crowded {
    /// A connection request of stranger `n`, in a frame.
    fn frame(&self, n: u32, into: &mut [u8]) -> usize {
        let mut from = [0; 16];
        from[..2].copy_from_slice(&[0xfe, 0x80]);
        from[12..].copy_from_slice(&n.to_be_bytes());
        let (from, to) = (Gid(from), Gid::from_ipv6(self.port.link_local));
        let message = request(from, to, ServiceId(1), n);
        let mad = Datagram { tid: n.into(), message }.emit();
        let said = ud::Datagram {
            psn: Psn::new(0),
            qkey: QKey::GSI,
            src_qp: Qpn::GSI,
            length: mad.len() as u32,
            immediate: None,
            solicited: false,
        };
        let packet = said.to_packet(Qpn::GSI, &mad).expect("a packet");
        let network = Network::new(from, to, 0, 64).expect("one family");
        let [a, b, c, d] = n.to_be_bytes();
        let header = ethernet::Repr {
            dst: self.port.mac,
            src: [2, 9, a, b, c, d],
            vlan: None,
            ether_type: ethernet::Repr::IPV6,
        };
        let rest = header.emit(into).expect("room");
        let len = datagram::Repr { network, src_port: 0xc000, packet }.emit(rest).expect("room");
        ethernet::Repr::LEN + len
    }
}

impl Wire for Crowded {
    fn send(&mut self, frame: &[u8], now: Instant) {
        self.link.send(frame, now);
    }

    fn has_room(&self) -> bool {
        self.link.has_room()
    }

    fn receive(&mut self, into: &mut [u8], now: Instant) -> Option<usize> {
        if now < self.next {
            return self.link.receive(into, now);
        }
        self.next = now + EVERY;
        let n = self.sent.fetch_add(1, Ordering::Relaxed);
        Some(self.frame(n, into))
    }

    fn flush(&mut self, now: Instant) {
        self.link.flush(now);
    }

    fn up(&self) -> bool {
        self.link.up()
    }

    fn deadline(&self) -> Option<Instant> {
        Some(self.link.deadline().map_or(self.next, |at| at.min(self.next)))
    }
}

#[test]
fn a_node_connects_while_many_that_do_not_exist_ask_for_connections() {
    let (a, b) = links::pair();
    let sent = Arc::new(AtomicU32::new(0));
    let address = "10.0.0.2/24".parse().unwrap();
    let port = port::Config::new(2, 1500, &[address]);
    let crowded = Crowded { link: Box::new(b), port, next: Instant::ZERO, sent: sent.clone() };
    let quiet: Box<dyn Link + Send> = Box::new(a);
    let machine = by_wires([Box::new(quiet), Box::new(crowded)]);
    let nodes = [0, 1].map(|n| Node::new(&machine, &open(&machine, n)));
    // As many as fill all queues, if each of them had to wait.
    while sent.load(Ordering::Relaxed) < 600 {
        std::thread::yield_now();
    }
    // Nobody waits longer than one message of the handshake may take.
    let (qa, ca, qb, _) = connect(&nodes[0], &nodes[1], 7);
    nodes[0].client.disconnect(ca, b"").unwrap();
    for node in &nodes {
        node.ears.cm("the end", |kind| matches!(kind, kernel_agent::CmEventKind::Disconnected { .. }));
    }
    qa.destroy().unwrap();
    qb.destroy().unwrap();
    nodes.iter().for_each(|node| node.client.detach());
}
