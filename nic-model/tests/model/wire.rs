//! Frames and links: what a NIC does on the wire of its port.

use std::net::Ipv6Addr;
use std::sync::atomic::Ordering;

use nic_abi::admin::{Injection, ModifyQp, Opcode, QpMask, QpState, Status};
use nic_abi::eqe::EventType;
use nic_abi::registers::{self, CONTROL_RESET, Identity, STATUS_PORT_UP};
use nic_model::port::{Config, Dropped, Input, Port, Sender, Unsent};
use nic_model::testing::{CableEnd, QpSpec, Rig, cable};
use nic_model::{AttachError, GuestMemory, PacketDropped, Progress};
use platform::Instant;
use roce::wire::datagram::{self, Network};
use roce::wire::{bth, deth, ethernet, ipv4, ipv6, opcode, packet};
use roce::{Gid, PKey, Psn, QKey, Qpn};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr};

/// The configuration of port `n`: 10.0.0.n and fd00::n.
fn config(n: u8, mtu: u32) -> Config {
    let addresses = [format!("10.0.0.{n}/24"), format!("fd00::{n:x}/64")].map(|text| text.parse().unwrap());
    Config::new(0x0266_65ff_fe72_0000 + u64::from(n), mtu, &addresses)
}

/// A NIC that is started, on one end of a cable, and a port on the other.
pub(crate) struct Scene {
    pub rig: Rig,
    cable: CableEnd,
    peer: Port,
}

pub(crate) fn scene() -> Scene {
    let [ours, theirs] = cable();
    let mut rig = Rig::powered(1);
    rig.attach(0, ours, &config(1, 1500));
    rig.bring_up(0);
    let mut peer = Port::new(&config(2, 1500)).unwrap();
    peer.set_up(true, Instant::ZERO);
    let mut s = Scene { rig, cable: theirs, peer };
    s.settle();
    s
}

impl Scene {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.rig.now)
    }

    /// Exchanges frames until there are none; returns the neighbours that the peer has found.
    fn settle(&mut self) -> Vec<Gid> {
        let (mut found, mut into) = (Vec::new(), [0; 2000]);
        loop {
            while let Some(len) = self.peer.next_frame(&mut into) {
                self.cable.put(&into[..len]);
            }
            self.rig.run();
            if self.cable.waiting() == 0 {
                return found;
            }
            while let Some(frame) = self.cable.take() {
                if let Input::Resolved(gid) = self.peer.receive(&frame, self.now()) {
                    found.push(gid);
                }
            }
        }
    }

    /// Sends a packet of the peer to the NIC's address with this index; false if the peer has to
    /// find it first.
    fn send(&mut self, index: usize, bth: bth::Repr, payload: &[u8]) -> bool {
        let (src, dst) = (self.peer.gids()[index], self.gid(index));
        self.transmit(src, dst, packet::Repr { payload, ..packet::Repr::new(bth) })
    }

    /// Sends a datagram of a stranger to a queue pair of the NIC.
    pub fn datagram_of(&mut self, stranger: &mut Port, qpn: u32, qkey: u32, payload: &[u8]) {
        let (bth, deth) = datagram_headers(qpn, qkey);
        let packet = packet::Repr { deth: Some(deth), payload, ..packet::Repr::new(bth) };
        let network = Network::new(stranger.gids()[1], self.gid(1), 0, 64).unwrap();
        let datagram = datagram::Repr { network, src_port: 0xc001, packet };
        let mut into = [0; 2000];
        let len = stranger.transmit_datagram(&datagram, &mut into, self.now()).expect("it knows the NIC");
        self.cable.put(&into[..len]);
    }

    /// The peer answers a question of the NIC.
    pub fn answer(&mut self, question: &[u8]) {
        assert_eq!(self.peer.receive(question, self.now()), Input::Consumed);
        let mut into = [0; 2000];
        let len = self.peer.next_frame(&mut into).expect("an answer");
        self.cable.put(&into[..len]);
    }

    /// The next frame of the NIC.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        self.cable.take()
    }

    /// Sends a datagram of the peer, which knows the NIC's MAC, to a queue pair of the NIC.
    pub fn datagram(&mut self, qpn: u32, qkey: u32, payload: &[u8]) {
        let (bth, deth) = datagram_headers(qpn, qkey);
        let packet = packet::Repr { deth: Some(deth), payload, ..packet::Repr::new(bth) };
        let (src, dst) = (self.peer.gids()[1], self.gid(1));
        if !self.transmit(src, dst, packet) {
            self.settle();
            assert!(self.transmit(src, dst, packet), "the peer knows the NIC");
        }
    }

    fn transmit(&mut self, src: Gid, dst: Gid, packet: packet::Repr<'_>) -> bool {
        let network = Network::new(src, dst, 0, 64).unwrap();
        let datagram = datagram::Repr { network, src_port: 0xc001, packet };
        let mut into = [0; 2000];
        let sent = self.peer.transmit_datagram(&datagram, &mut into, self.now());
        if let Ok(len) = sent {
            self.cable.put(&into[..len]);
        }
        sent.is_ok()
    }

    fn gid(&self, index: usize) -> Gid {
        Gid(identity(&self.rig).gids[index])
    }

    fn port_up(&self) -> bool {
        self.rig.register(0, STATUS_PORT_UP).load(Ordering::Acquire) == 1
    }

    pub fn packets(&self, why: PacketDropped) -> u64 {
        self.rig.fabric.packet_counters(self.rig.nics[0].id).unwrap().dropped(why)
    }

    /// Sends echo requests to the NIC; returns all its answers.
    fn pings(&mut self, requests: &[Vec<u8>]) -> Vec<Vec<u8>> {
        for request in requests {
            self.cable.put(request);
        }
        self.rig.run();
        std::iter::from_fn(|| self.cable.take()).collect()
    }
}

/// Port 2.
pub(crate) fn peer() -> Port {
    let mut peer = Port::new(&config(2, 1500)).unwrap();
    peer.set_up(true, Instant::ZERO);
    while peer.next_frame(&mut [0; 2000]).is_some() {}
    peer
}

fn datagram_headers(qpn: u32, qkey: u32) -> (bth::Repr, deth::Repr) {
    let bth = bth::Repr::new(opcode::Opcode::UdSendOnly, Qpn::new(qpn).unwrap(), Psn::new(7));
    (bth, deth::Repr { qkey: QKey(qkey), src_qp: Qpn::new(9).unwrap() })
}

/// Port `n`, which knows the MAC of port 1 although port 1 has never heard of it.
pub(crate) fn stranger(n: u8) -> Port {
    let [mut it, mut twin] = [n, 1].map(|n| {
        let mut port = Port::new(&config(n, 1500)).unwrap();
        port.set_up(true, Instant::ZERO);
        while port.next_frame(&mut [0; 2000]).is_some() {}
        port
    });
    let (src, dst) = (it.gids()[1], twin.gids()[1]);
    let network = Network::new(src, dst, 0, 64).unwrap();
    let mut frame = [0; 2000];
    let unsent = it.transmit(&network, Sender::default(), 1, &mut frame, Instant::ZERO, |_| Ok(0));
    assert_eq!(unsent, Err(Unsent::Resolving));
    let len = it.next_frame(&mut frame).expect("a question");
    twin.receive(&frame[..len], Instant::ZERO);
    let len = twin.next_frame(&mut frame).expect("an answer");
    assert_eq!(it.receive(&frame[..len], Instant::ZERO), Input::Resolved(dst));
    it
}

fn identity(rig: &Rig) -> Identity {
    rig.nics[0].registers.load(registers::IDENTITY as u64).unwrap()
}

fn send_only(qpn: u32) -> bth::Repr {
    bth::Repr::new(opcode::Opcode::RcSendOnly, Qpn::new(qpn).unwrap(), Psn::new(7))
}

/// An echo request from 10.0.0.`from` to port 1.
fn ping(from: u8, data: &[u8]) -> Vec<u8> {
    let repr = Icmpv4Repr::EchoRequest { ident: 3, seq_no: 4, data };
    let mut frame = vec![0; 14 + 20 + repr.buffer_len()];
    let header = ethernet::Repr {
        dst: config(1, 1500).mac,
        src: config(from, 1500).mac,
        vlan: None,
        ether_type: ethernet::Repr::IPV4,
    };
    let ip = ipv4::Repr {
        tos: 0,
        ident: 9,
        dont_fragment: true,
        ttl: 64,
        protocol: 1,
        src: [10, 0, 0, from].into(),
        dst: [10, 0, 0, 1].into(),
        payload_len: repr.buffer_len() as u16,
    };
    let rest = header.emit(&mut frame).and_then(|rest| ip.emit(rest)).unwrap();
    repr.emit(&mut Icmpv4Packet::new_unchecked(rest), &ChecksumCapabilities::default());
    frame
}

/// An echo request from fd00::2 to fd00::1.
fn ping6(data: &[u8]) -> Vec<u8> {
    let (src, dst) = (Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1));
    let repr = Icmpv6Repr::EchoRequest { ident: 3, seq_no: 4, data };
    let mut frame = vec![0; 14 + 40 + repr.buffer_len()];
    let header = ethernet::Repr {
        dst: config(1, 1500).mac,
        src: config(2, 1500).mac,
        vlan: None,
        ether_type: ethernet::Repr::IPV6,
    };
    let ip = ipv6::Repr {
        traffic_class: 0,
        flow_label: 0,
        next_header: 58,
        hop_limit: 64,
        src: Gid::from_ipv6(src),
        dst: Gid::from_ipv6(dst),
        payload_len: repr.buffer_len() as u16,
    };
    let rest = header.emit(&mut frame).and_then(|rest| ip.emit(rest)).unwrap();
    repr.emit(&src, &dst, &mut Icmpv6Packet::new_unchecked(rest), &ChecksumCapabilities::default());
    frame
}

#[test]
fn the_identity_shows_the_addresses_and_the_mtu_of_the_port() {
    let mut rig = Rig::powered(1);
    let id = rig.nics[0].id;
    let mut many = config(1, 4200);
    many.addresses.reverse();
    many.addresses.push("192.168.1.1/16".parse().unwrap());
    rig.attach(0, cable()[0].clone(), &many);
    let identity = identity(&rig);
    let gids: Vec<_> = identity.gids.map(|gid| Gid(gid).to_string()).into();
    assert_eq!(gids[..4], ["fe80::266:65ff:fe72:1", "fd00::1", "::ffff:10.0.0.1", "::ffff:192.168.1.1"]);
    assert!(identity.gids[4..].iter().all(|gid| *gid == [0; 16]));
    assert_eq!((identity.ipv4, identity.mtu), ([10, 0, 0, 1], 4096));
    assert!(rig.fabric.wire(id).is_some());
    rig.bring_up(0);
    // The addresses survive a reset, and a NIC that is started keeps them.
    rig.control(0, CONTROL_RESET);
    assert_eq!(self::identity(&rig).gids, identity.gids);
    rig.bring_up(0);
    let attach = rig.fabric.attach(id, Box::new(cable()[0].clone()), &many);
    assert_eq!(attach, Err(AttachError::Started));
}

#[test]
fn a_bad_port_is_refused_and_changes_nothing() {
    let mut rig = Rig::powered(1);
    let before = identity(&rig);
    let bad = Config { mtu: 100, ..config(1, 1500) };
    let error = rig.fabric.attach(rig.nics[0].id, Box::new(cable()[0].clone()), &bad).unwrap_err();
    assert_eq!(error.to_string(), "an MTU of 100 is not from 340 to 65535");
    assert_eq!(identity(&rig).gids, before.gids);
    assert!(rig.fabric.wire(rig.nics[0].id).is_none());
}

#[test]
fn a_queue_pair_takes_only_an_address_that_the_port_has_as_its_source() {
    let mut s = scene();
    let qp = s.rig.create_qp(0, QpSpec::default());
    let init = ModifyQp { mask: QpMask::STATE.bits(), state: QpState::Init as u32, ..Default::default() };
    s.rig.command(0, Opcode::ModifyQp, qp.qpn, &init).unwrap();
    for (source_gid, accepted) in [(0, true), (2, true), (3, false), (15, false), (16, false), (255, false)] {
        let mask = QpMask::STATE | QpMask::PATH | QpMask::REMOTE_QPN | QpMask::MTU | QpMask::RECEIVE_PSN;
        let mask = mask | QpMask::MAX_DEST_RD_ATOMIC | QpMask::MIN_RNR_TIMER;
        let rtr = ModifyQp {
            mask: mask.bits(),
            state: QpState::Rtr as u32,
            mtu: 1024,
            source_gid,
            remote_gid: s.peer.gids()[1].0,
            ..Default::default()
        };
        let result = s.rig.command(0, Opcode::ModifyQp, qp.qpn, &rtr);
        assert_eq!(result.is_ok(), accepted, "{source_gid}");
        let refused = std::mem::offset_of!(ModifyQp, source_gid) + nic_abi::admin::ARGS_OFFSET;
        assert!(accepted || result == Err((Status::BadField, refused as u16)));
        let reset = ModifyQp { state: QpState::Reset as u32, ..init };
        s.rig.command(0, Opcode::ModifyQp, qp.qpn, &reset).unwrap();
        s.rig.command(0, Opcode::ModifyQp, qp.qpn, &init).unwrap();
    }
}

#[test]
fn neighbours_find_the_nic_by_arp_and_by_neighbour_discovery() {
    let mut s = scene();
    for index in 0..3 {
        assert!(!s.send(index, send_only(0x11), b"first"));
        assert_eq!(s.settle(), [s.gid(index)]);
        assert!(s.send(index, send_only(0x11), b"second"));
    }
    s.rig.run();
    assert_eq!((s.rig.port(0).packets_in, s.rig.port(0).answers), (3, 3));
}

#[test]
fn a_nic_answers_echo_requests_before_its_driver_starts_it_and_afterwards() {
    let [ours, theirs] = cable();
    let mut rig = Rig::powered(1);
    rig.attach(0, ours, &config(1, 1500));
    let mut s = Scene { rig, cable: theirs, peer: Port::new(&config(2, 1500)).unwrap() };
    s.pings(&[]);
    for started in [false, true] {
        if started {
            s.rig.bring_up(0);
        }
        let answers = s.pings(&[ping(2, b"four"), ping6(b"six")]);
        let [v4, v6] = &answers[..] else { panic!("{answers:x?}") };
        assert_eq!((&v4[..6], &v4[14 + 16..14 + 20]), (&config(2, 1500).mac[..], &[10, 0, 0, 2][..]));
        assert_eq!((v4[34], &v4[v4.len() - 4..]), (0, &b"four"[..]));
        assert_eq!((v6[54], &v6[v6.len() - 3..]), (129, &b"six"[..]));
    }
}

#[test]
fn a_packet_that_no_queue_pair_takes_is_counted_by_the_reason() {
    let mut s = scene();
    let qp = s.rig.create_qp(0, QpSpec::default());
    s.send(1, send_only(1), b"");
    s.settle();
    let bad = bth::Repr { pkey: PKey(0x8001), ..send_only(qp.qpn) };
    for (bth, why) in [
        (send_only(qp.qpn), PacketDropped::NotConnected),
        (send_only(qp.qpn + 1), PacketDropped::NoQueuePair),
        (send_only(qp.qpn + (1 << 14)), PacketDropped::NoQueuePair),
        (bad, PacketDropped::WrongPartition),
    ] {
        let before = s.packets(why);
        assert!(s.send(1, bth, b"payload"));
        s.rig.run();
        assert_eq!(s.packets(why), before + 1, "{why:?}");
    }
    s.rig.control(0, CONTROL_RESET);
    assert!(s.send(1, send_only(qp.qpn), b"payload"));
    s.rig.run();
    assert_eq!(s.packets(PacketDropped::NotRunning), 1);
}

#[test]
fn the_port_follows_the_link_and_reports_it() {
    let mut s = scene();
    assert!(s.port_up());
    assert_eq!(s.rig.event_types(0), []);
    s.cable.plug(false);
    s.rig.run();
    assert!(!s.port_up());
    assert_eq!(s.rig.event_types(0), [(EventType::PortDown, 0)]);
    s.rig.run();
    assert_eq!(s.rig.stats(0).link_downed, 1);
    s.cable.plug(true);
    s.rig.run();
    assert!(s.port_up());
    assert_eq!(s.rig.stats(0).link_downed, 1);
    assert_eq!(s.rig.event_types(0), [(EventType::PortUp, 0)]);
    // The NIC announces its addresses: other neighbours may be on the link now.
    assert_eq!(s.cable.waiting(), 3);
    // The driver's setting counts as well.
    s.rig.inject(0, Injection::Port, 0, 0, 0);
    assert_eq!(s.rig.event_types(0), [(EventType::PortDown, 0)]);
    for plugged in [false, true] {
        s.cable.plug(plugged);
        s.rig.run();
        assert!(!s.port_up());
    }
    assert!(s.pings(&[ping(2, b"x")]).is_empty());
    s.rig.inject(0, Injection::Port, 0, 0, 1);
    assert!(s.port_up());
    assert_eq!(s.rig.event_types(0), [(EventType::PortUp, 0)]);
}

#[test]
fn a_link_that_goes_up_and_down_cannot_fill_the_event_queue() {
    let mut s = scene();
    for _ in 0..1000 {
        for plugged in [false, true] {
            s.cable.plug(plugged);
            s.rig.run();
        }
    }
    assert_eq!(s.rig.state(0), registers::State::Ready as u32);
    assert_eq!(s.rig.stats(0).link_downed, 1000);
    assert_eq!(s.rig.event_types(0), [(EventType::PortDown, 0)]);
    // The last change is reported when the driver has consumed the first event.
    s.rig.run();
    assert_eq!(s.rig.event_types(0), [(EventType::PortUp, 0)]);
    s.rig.run();
    assert_eq!(s.rig.event_types(0), []);
}

#[test]
fn a_nic_that_is_mute_or_has_failed_drops_what_comes_until_a_reset() {
    for (injection, value) in [(Injection::Mute, 0), (Injection::Fail, 0)] {
        let mut s = scene();
        s.rig.inject(0, injection, 0, 0, value);
        let before = s.rig.port(0).dropped(Dropped::Down);
        assert!(s.pings(&[ping(2, b"x"), ping(2, b"y")]).is_empty());
        assert_eq!(s.rig.port(0).dropped(Dropped::Down), before + 2);
        // The link goes down and up; neither driver gets an event.
        s.cable.plug(false);
        s.rig.run();
        assert!(s.port_up(), "a register of a NIC that does nothing does not change");
        s.cable.plug(true);
        s.rig.run();
        assert_eq!((s.rig.event_types(0), s.rig.stats(0).link_downed), (vec![], 0));
        s.rig.control(0, CONTROL_RESET);
        assert!(s.port_up());
        s.settle();
        assert_eq!(s.pings(&[ping(2, b"x")]).len(), 1);
    }
}

#[test]
fn a_nic_that_is_powered_off_and_on_is_as_new() {
    let mut s = scene();
    s.rig.create_qp(0, QpSpec::default());
    s.rig.inject(0, Injection::Mute, 0, 0, 1);
    s.rig.fabric.power_cycle(s.rig.nics[0].id);
    let mut control = [1; 64];
    s.rig.nics[0].registers.read(registers::CONTROL as u64, &mut control).unwrap();
    assert_eq!(control, [0; 64]);
    assert_eq!(s.rig.state(0), registers::State::Idle as u32);
    assert_eq!(s.rig.register(0, registers::STATUS_ACKNOWLEDGED).load(Ordering::Relaxed), 0);
    s.settle();
    assert_eq!(s.pings(&[ping(2, b"x")]).len(), 1);
    s.rig.bring_up(0);
    s.rig.create_qp(0, QpSpec::default());
}

#[test]
fn a_flood_of_frames_takes_a_slice_of_a_turn_and_is_answered_at_a_bounded_rate() {
    let mut s = scene();
    let answered = s.pings(&vec![ping(2, &[7; 1000]); 5000]).len();
    assert!((1..=32).contains(&answered), "{answered}");
    assert!(s.rig.port(0).dropped(Dropped::Flood) >= 4900);
    // A poll takes no more than its share of frames, and then does other work.
    for _ in 0..5000 {
        s.cable.put(&ping(2, &[7; 1000]));
    }
    let mut polls = 0;
    while s.rig.fabric.poll(s.now(), 64) == Progress::Worked {
        assert!(s.rig.fabric.work_of_last_poll() <= 64);
        polls += 1;
    }
    assert!(polls > 500, "{polls}");
}

#[test]
fn own_frames_wait_while_the_wire_has_no_room() {
    let mut s = scene();
    s.cable.set_room(false);
    assert!(s.pings(&[ping(2, b"x")]).is_empty());
    s.cable.set_room(true);
    assert_eq!(s.pings(&[]).len(), 1);
}
