//! Two ports of NICs over each kind of link, as a launcher drives them.

extern crate ferrovia_links as links;

use std::collections::BTreeSet;
use std::fs::File;
use std::time::Duration;

use links::{Capture, Captured, Fault, Impaired, Link, LinkSpec, MAX_FRAME, Stream, Switch, Wire, pair};
use nic_model::port::{self, Config, Input, Port, Unsent};
use platform::Instant;
use roce::wire::opcode::Opcode;
use roce::wire::{bth, datagram, packet};
use roce::{Gid, IpPrefix, Psn, Qpn};
use rustix::event::Timespec;

/// A port on one end of a link.
struct Node {
    port: Port,
    link: Box<dyn Link>,
    buffer: Vec<u8>,
    /// The payloads that have arrived.
    arrived: Vec<Vec<u8>>,
    resolved: u32,
}

impl Node {
    fn new(config: &Config, link: impl Link + 'static) -> Node {
        let port = Port::new(config).unwrap();
        Node { port, link: Box::new(link), buffer: vec![0; MAX_FRAME], arrived: Vec::new(), resolved: 0 }
    }

    /// One turn of the loop that drives a port.
    fn turn(&mut self, now: Instant) {
        self.link.flush(now);
        self.port.set_up(self.link.up(), now);
        while let Some(len) = self.link.receive(&mut self.buffer, now) {
            match self.port.receive(&self.buffer[..len], now) {
                Input::Packet(arrival) => {
                    let packet = packet::Repr::parse(arrival.packet).expect("the ICRC was right");
                    self.arrived.push(packet.payload.to_vec());
                }
                Input::Resolved(_) => self.resolved += 1,
                Input::Segment(_) | Input::Consumed | Input::Dropped(_) => {}
            }
        }
        self.port.poll(now);
        while let Some(len) = self.port.next_frame(&mut self.buffer) {
            self.link.send(&self.buffer[..len], now);
        }
        self.link.flush(now);
    }

    fn send(&mut self, index: usize, to: Gid, payload: &[u8], now: Instant) -> Result<(), Unsent> {
        let network = datagram::Network::new(self.port.gids()[index], to, 0, 64).unwrap();
        let bth = bth::Repr::new(Opcode::RcSendOnly, Qpn::new(0x11).unwrap(), Psn::new(7));
        let packet = packet::Repr { payload, ..packet::Repr::new(bth) };
        let datagram = datagram::Repr { network, src_port: 0xc001, packet };
        let len = self.port.transmit_datagram(&datagram, &mut self.buffer, now)?;
        self.link.send(&self.buffer[..len], now);
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        [self.link.deadline(), self.port.deadline()].into_iter().flatten().min()
    }
}

fn at(us: u64) -> Instant {
    Instant::ZERO + Duration::from_micros(us)
}

fn config(n: u8) -> Config {
    let addresses = [format!("10.0.0.{n}/24"), format!("fd00::{n:x}/64")].map(|text| text.parse().unwrap());
    Config::new(0x0266_65ff_fe72_0000 + u64::from(n), 1500, &addresses)
}

/// A payload that carries its number, and bytes that follow from it.
fn payload(n: u32) -> Vec<u8> {
    (0..100 + n % 900).flat_map(|k| (n ^ k << 16).to_le_bytes()).take(64 + n as usize % 900).collect()
}

fn number(payload: &[u8]) -> u32 {
    u32::from_le_bytes(payload[..4].try_into().unwrap())
}

/// Both ends send `count` packets each, over each pair of GIDs in turn, one each ten microseconds;
/// lost ones are not repeated. Returns how many the port had no MAC for.
fn exchange(a: &mut Node, b: &mut Node, gids: &[usize], count: u32) -> u32 {
    let mut unresolved = 0;
    for n in 0..count {
        let now = at(10 * u64::from(n));
        let index = gids[n as usize % gids.len()];
        let (of_a, of_b) = (a.port.gids()[index], b.port.gids()[index]);
        for result in [a.send(index, of_b, &payload(n), now), b.send(index, of_a, &payload(n), now)] {
            match result {
                Ok(()) => {}
                Err(Unsent::Resolving | Unsent::Down | Unsent::NoAnswer) => unresolved += 1,
                Err(error) => panic!("{error}"),
            }
        }
        for _ in 0..4 {
            a.turn(now);
            b.turn(now);
        }
    }
    // What is under way arrives, and what is asked for is answered or given up.
    let mut now = at(10 * u64::from(count));
    for _ in 0..1000 {
        a.turn(now);
        b.turn(now);
        let next = [a.deadline(), b.deadline()].into_iter().flatten().min();
        let Some(next) = next else { break };
        now = next.max(now);
    }
    unresolved
}

fn numbers(node: &Node) -> Vec<u32> {
    node.arrived
        .iter()
        .map(|arrived| {
            let n = number(arrived);
            assert_eq!(*arrived, payload(n), "what arrives is intact");
            n
        })
        .collect()
}

#[test]
fn ports_talk_over_memory_and_over_a_stream() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("link");
    let (in_memory, of_memory) = pair();
    let ends: [(Box<dyn Link>, Box<dyn Link>); 2] = [
        (Box::new(in_memory), Box::new(of_memory)),
        (Box::new(Stream::listen(&path).unwrap()), Box::new(Stream::connect(&path).unwrap())),
    ];
    for (one, other) in ends {
        let (mut a, mut b) = (Node::new(&config(1), one), Node::new(&config(2), other));
        for _ in 0..4 {
            a.turn(at(0));
            b.turn(at(0));
        }
        let unresolved = exchange(&mut a, &mut b, &[0, 1, 2], 300);
        assert!((1..=6).contains(&unresolved), "{unresolved}");
        for node in [&a, &b] {
            assert!(numbers(node).is_sorted());
            let drops: u64 = node.port.counters().drops().map(|(_, n)| n).sum();
            assert_eq!((drops, node.link.counters().all_dropped()), (0, 0));
        }
        assert_eq!(a.arrived.len() + b.arrived.len(), 600 - unresolved as usize);
        assert!(a.resolved + b.resolved >= 3);
    }
}

#[test]
fn what_an_impaired_stream_delivers_is_intact_and_the_rest_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("link");
    let impair = "loss=1%,dup=1%,reorder=1%,corrupt=1%,delay=20us,rate=5Gbit,seed=42".parse().unwrap();
    let one = Impaired::new(Stream::listen(&path).unwrap(), impair);
    let other = Stream::connect(&path).unwrap();
    let (mut a, mut b) = (Node::new(&config(1), one), Node::new(&config(2), other));
    for _ in 0..4 {
        a.turn(at(0));
        b.turn(at(0));
    }
    const COUNT: u32 = 5000;
    let unresolved = exchange(&mut a, &mut b, &[1, 2], COUNT);
    let counters = a.link.counters();
    assert!(unresolved < 100, "{unresolved}");
    for node in [&a, &b] {
        let arrived = numbers(node);
        let distinct: BTreeSet<_> = arrived.iter().collect();
        assert!(!arrived.is_sorted() && distinct.len() < arrived.len(), "reordered and duplicated");
        assert!((COUNT as usize * 95 / 100..COUNT as usize).contains(&distinct.len()));
    }
    assert!(Fault::ALL.iter().all(|&fault| counters.met(fault) > 50), "{counters:?}");
    // Each changed bit that a check covers was found.
    let found = |why| a.port.counters().dropped(why) + b.port.counters().dropped(why);
    assert!(found(port::Dropped::WrongIcrc) > 50, "{:?}", a.port.counters());
    assert!(found(port::Dropped::BadChecksum) > 0, "{:?}", a.port.counters());
}

#[test]
fn a_stream_that_is_cut_and_joined_again_goes_on_with_the_successor() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("link");
    let mut a = Node::new(&config(1), Stream::listen(&path).unwrap());
    // The successor has the address of its predecessor, and another MAC. It waits already when the
    // predecessor leaves.
    let mut predecessor = None;
    for guid in [0x0266_65ff_fe72_0002, 0x0266_65ff_fe72_0099, 0x0266_65ff_fe72_0003] {
        let successor = Config::new(guid, 1500, &config(2).addresses);
        let mut b = Node::new(&successor, Stream::connect(&path).unwrap());
        b.turn(at(0));
        drop(predecessor.take());
        a.turn(at(0));
        a.turn(at(0));
        if guid != 0x0266_65ff_fe72_0002 {
            assert!(!a.port.up(), "the port sees that its peer has left");
        }
        for _ in 0..4 {
            a.turn(at(0));
            b.turn(at(0));
        }
        assert!(a.port.up() && b.port.up());
        a.arrived.clear();
        exchange(&mut a, &mut b, &[1, 2], 50);
        assert!(a.arrived.len() > 40 && b.arrived.len() > 40);
        predecessor = Some(b);
    }
}

#[test]
fn ports_on_a_switch_reach_the_owner_and_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("link");
    let mut owner = Node::new(&config(1), Switch::listen(&path, config(1).mac).unwrap());
    let [mut a, mut b] = [2, 3].map(|n| Node::new(&config(n), Stream::connect(&path).unwrap()));
    while owner.link.counters().peers < 2 {
        [&mut a, &mut b, &mut owner].into_iter().for_each(|node| node.turn(at(0)));
    }
    for peer in [&mut a, &mut b] {
        exchange(&mut owner, peer, &[1, 2], 50);
        assert!(owner.arrived.len() > 40 && peer.arrived.len() > 40);
        owner.arrived.clear();
        peer.arrived.clear();
    }
    for n in 0..50 {
        // The first ones find no MAC.
        let gids = [1 + n as usize % 2; 2];
        let _ = a.send(gids[0], b.port.gids()[gids[1]], &payload(n), at(0));
        let _ = b.send(gids[1], a.port.gids()[gids[0]], &payload(n), at(0));
        for _ in 0..4 {
            [&mut a, &mut b, &mut owner].into_iter().for_each(|node| node.turn(at(0)));
        }
    }
    assert!(a.arrived.len() > 40 && b.arrived.len() > 40 && owner.arrived.is_empty());
    assert_eq!(owner.link.counters().all_dropped(), 0);
}

#[test]
fn ports_talk_over_udp_and_a_capture_has_what_crossed() {
    // Addresses that no other test, nor another run of this one, uses.
    let process = std::process::id();
    let address =
        |host: u8| IpPrefix::new([127, 128 | (process >> 8) as u8 & 0x3f, process as u8, host].into(), 8);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("udp.pcap");
    let capture = Capture::create(&file).unwrap();
    let [mut a, mut b] = [1, 2].map(|n| {
        let address = address(n).unwrap();
        let config = Config::new(n.into(), 4200, &[address]);
        let link = LinkSpec::Udp(address.address()).open(config.mac, &[address]).unwrap();
        let captured: Captured<Box<dyn Link + Send>> = capture.tap(link);
        Node::new(&config, captured)
    });
    a.turn(at(0));
    b.turn(at(0));
    let unresolved = exchange(&mut a, &mut b, &[1], 300);
    assert_eq!(unresolved, 2);
    for node in [&mut a, &mut b] {
        // The host may deliver a datagram later than it was sent.
        while node.arrived.len() < 299 {
            let minute = Timespec { tv_sec: 60, tv_nsec: 0 };
            let fd = node.link.poll_fd().expect("a socket");
            assert_eq!(rustix::event::poll(&mut [fd], Some(&minute)), Ok(1), "a datagram is missing");
            node.turn(at(5000));
        }
        assert_eq!(numbers(node), (1..300).collect::<Vec<_>>());
    }
    let sent = [&a, &b].map(|node| node.link.counters());
    drop((a, b));
    let mut reader = pcap_file::pcap::PcapReader::new(File::open(&file).unwrap()).unwrap();
    let (mut packets, mut arp) = (0, 0);
    while let Some(packet) = reader.next_packet() {
        let frame = packet.unwrap().data;
        match frame[12..14] {
            [0x08, 0x06] => arp += 1,
            _ => packets += u64::from(datagram::Repr::parse(&frame[14..]).is_ok()),
        }
    }
    // Each packet is there as it was sent, and as it arrived.
    assert_eq!(packets, 4 * 299);
    let crossed: u64 = sent.iter().map(|counters| counters.sent + counters.received).sum();
    assert_eq!(packets + arp, crossed);
}
