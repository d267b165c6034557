//! The port: ports that talk to each other, frames that Linux sent, and frames that no peer should
//! send.

extern crate ferrovia_nic_model as nic_model;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use nic_model::port::{Arrival, Config, Counters, Dropped, Input, Port, Unsent};
use platform::Instant;
use platform::random::Random;
use roce::wire::datagram::{self, Network};
use roce::wire::opcode::Opcode;
use roce::wire::{bth, ethernet, ipv4, ipv6, packet};
use roce::{Gid, IpPrefix, PathMtu, Psn, Qpn};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr,
    NdiscNeighborFlags, NdiscRepr, RawHardwareAddress,
};

const MTU: u32 = 1500;
/// The MAC of a peer that is no [`Port`].
const PEER: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x77];
const BROADCAST: [u8; 6] = [0xff; 6];

fn ms(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

fn prefix(text: &str) -> IpPrefix {
    text.parse().unwrap()
}

fn gid(text: &str) -> Gid {
    text.parse::<IpAddr>().unwrap().into()
}

fn v4(text: &str) -> Ipv4Addr {
    text.parse().unwrap()
}

fn v6(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

/// Port `n` of a network, up: 10.0.0.n and fd00::n.
fn port(n: u8) -> Port {
    let addresses = [prefix(&format!("10.0.0.{n}/24")), prefix(&format!("fd00::{n:x}/64"))];
    let mut port = Port::new(&Config::new(0x0266_65ff_fe72_0000 + u64::from(n), MTU, &addresses)).unwrap();
    port.set_up(true, ms(0));
    own_frames(&mut port);
    port
}

fn own_frames(port: &mut Port) -> Vec<Vec<u8>> {
    let mut into = [0; 2000];
    std::iter::from_fn(|| port.next_frame(&mut into).map(|len| into[..len].to_vec())).collect()
}

/// A small RoCEv2 datagram.
fn datagram(src: Gid, dst: Gid, payload: &[u8]) -> datagram::Repr<'_> {
    let bth = bth::Repr::new(Opcode::RcSendOnly, Qpn::new(0x11).unwrap(), Psn::new(7));
    let packet = packet::Repr { payload, ..packet::Repr::new(bth) };
    datagram::Repr { network: Network::new(src, dst, 0, 64).unwrap(), src_port: 0xc001, packet }
}

fn send(port: &mut Port, src: Gid, dst: Gid, payload: &[u8], now: Instant) -> Result<Vec<u8>, Unsent> {
    let mut into = [0; 2000];
    port.transmit_datagram(&datagram(src, dst, payload), &mut into, now).map(|len| into[..len].to_vec())
}

/// A frame with a RoCEv2 packet from [`PEER`] to `port`.
fn roce_frame(port: &Port, src: Gid, dst: Gid) -> Vec<u8> {
    let datagram = datagram(src, dst, b"payload");
    let mut frame = vec![0; 14 + datagram.len()];
    let ether_type = if dst.to_ipv4().is_some() { ethernet::Repr::IPV4 } else { ethernet::Repr::IPV6 };
    let rest = ethernet::Repr { dst: port.mac(), src: PEER, ether_type }.emit(&mut frame).unwrap();
    datagram.emit(rest).unwrap();
    frame
}

fn arp(operation: ArpOperation, mac: [u8; 6], from: &str, target: &str, dst: [u8; 6]) -> Vec<u8> {
    let repr = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(mac),
        source_protocol_addr: v4(from),
        target_hardware_addr: EthernetAddress([0; 6]),
        target_protocol_addr: v4(target),
    };
    let mut frame = vec![0; 60];
    let header = ethernet::Repr { dst, src: mac, ether_type: ethernet::Repr::ARP };
    repr.emit(&mut ArpPacket::new_unchecked(header.emit(&mut frame).unwrap()));
    frame
}

fn parse_arp(frame: &[u8]) -> (ArpOperation, [u8; 6], Ipv4Addr, Ipv4Addr) {
    let repr = ArpRepr::parse(&ArpPacket::new_checked(&frame[14..]).unwrap()).unwrap();
    let ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr,
        source_protocol_addr,
        target_protocol_addr,
        ..
    } = repr
    else {
        panic!("{repr:?}")
    };
    (operation, source_hardware_addr.0, source_protocol_addr, target_protocol_addr)
}

/// An ICMPv6 message of [`PEER`].
fn icmpv6(src: &str, dst: &str, mac: [u8; 6], hop_limit: u8, repr: &Icmpv6Repr<'_>) -> Vec<u8> {
    let (src, dst) = (v6(src), v6(dst));
    let len = repr.buffer_len();
    let mut frame = vec![0; 14 + 40 + len];
    let header = ethernet::Repr { dst: mac, src: PEER, ether_type: ethernet::Repr::IPV6 };
    let network = ipv6::Repr {
        traffic_class: 0,
        flow_label: 0,
        next_header: 58,
        hop_limit,
        src: Gid::from_ipv6(src),
        dst: Gid::from_ipv6(dst),
        payload_len: len as u16,
    };
    let rest = header.emit(&mut frame).and_then(|rest| network.emit(rest)).unwrap();
    repr.emit(&src, &dst, &mut Icmpv6Packet::new_unchecked(rest), &ChecksumCapabilities::default());
    frame
}

fn solicit(target: &str, lladdr: Option<[u8; 6]>) -> Icmpv6Repr<'static> {
    let lladdr = lladdr.map(|mac| RawHardwareAddress::from_bytes(&mac));
    Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr: v6(target), lladdr })
}

fn advert(target: &str, flags: NdiscNeighborFlags, lladdr: Option<[u8; 6]>) -> Icmpv6Repr<'static> {
    let lladdr = lladdr.map(|mac| RawHardwareAddress::from_bytes(&mac));
    Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { flags, target_addr: v6(target), lladdr })
}

/// What an ICMPv6 message of a port says; its checksum is right.
fn parse_icmpv6(frame: &[u8]) -> (ipv6::Repr, Icmpv6Repr<'_>) {
    let (ip, payload) = ipv6::Repr::parse(&frame[14..]).unwrap();
    let packet = Icmpv6Packet::new_checked(payload).unwrap();
    let [src, dst] = [ip.src, ip.dst].map(|gid| Ipv6Addr::from(gid.0));
    (ip, Icmpv6Repr::parse(&src, &dst, &packet, &ChecksumCapabilities::default()).unwrap())
}

/// Passes each port's own frames to the other until there are none.
fn settle(a: &mut Port, b: &mut Port, now: Instant) -> Vec<Gid> {
    let mut resolved = Vec::new();
    loop {
        let (from_a, from_b) = (own_frames(a), own_frames(b));
        if from_a.is_empty() && from_b.is_empty() {
            return resolved;
        }
        for (to, frames) in [(&mut *b, from_a), (&mut *a, from_b)] {
            for frame in frames {
                match to.receive(&frame, now) {
                    Input::Resolved(gid) => resolved.push(gid),
                    other => assert_eq!(other, Input::Consumed),
                }
            }
        }
    }
}

#[test]
fn the_gids_are_the_link_local_one_and_the_addresses_in_their_order() {
    let port = port(1);
    let gids: Vec<_> = port.gids().iter().map(Gid::to_string).collect();
    assert_eq!(gids, ["fe80::266:65ff:fe72:1", "::ffff:10.0.0.1", "fd00::1"]);
    assert_eq!((port.mac(), port.path_mtu()), ([2, 0x66, 0x65, 0x72, 0, 1], PathMtu::B1024));
    assert_eq!((port.max_frame(), port.up()), (1514, true));
    let error = Port::new(&Config::new(1, 100, &[])).unwrap_err();
    assert_eq!(error.to_string(), "an MTU of 100 is not from 340 to 65535");
}

#[test]
fn two_ports_find_each_other_by_ipv4_by_ipv6_and_by_their_link_local_addresses() {
    for index in 0..3 {
        let (mut a, mut b) = (port(1), port(2));
        let (src, dst) = (a.gids()[index], b.gids()[index]);
        assert_eq!(send(&mut a, src, dst, b"hello", ms(1)), Err(Unsent::Resolving));
        assert_eq!(settle(&mut a, &mut b, ms(1)), [dst]);
        let frame = send(&mut a, src, dst, b"hello", ms(1)).unwrap();
        let Input::Packet(arrival) = b.receive(&frame, ms(1)) else { panic!() };
        let Arrival { network, local, src_port, packet } = arrival;
        assert_eq!((network.src(), network.dst(), usize::from(local)), (src, dst, index));
        assert_eq!((src_port, packet::Repr::parse(packet).unwrap().payload), (0xc001, &b"hello"[..]));
        assert!(!arrival.is_congested());
        // The other knows the way back, as it was asked.
        let frame = send(&mut b, dst, src, b"back", ms(2)).unwrap();
        assert!(matches!(a.receive(&frame, ms(2)), Input::Packet(_)));
        let (a, b) = (a.counters(), b.counters());
        assert_eq!((a.packets_out, a.packets_in, b.packets_in, b.answers), (1, 1, 1, 1));
    }
}

#[test]
fn a_packet_is_built_in_place_and_bounded_by_the_mtu() {
    let (mut a, mut b) = (port(1), port(2));
    for index in [1, 2] {
        let (src, dst) = (a.gids()[index], b.gids()[index]);
        let network = Network::new(src, dst, 2, 9).unwrap();
        let mut into = [0xee; 9000];
        // Nothing is built while the frame cannot be sent.
        let result = a.transmit(&network, 1, &mut into, ms(0), |_| panic!("built"));
        assert_eq!(result, Err(Unsent::Resolving));
        settle(&mut a, &mut b, ms(0));
        let mut room = 0;
        let len = a.transmit(&network, 0xc003, &mut into, ms(0), |packet| {
            room = packet.len();
            packet.fill(0);
            Ok(packet.len())
        });
        assert_eq!((len, into[1514]), (Ok(1514), 0xee));
        assert_eq!(room, 1500 - network.headers() - 4);
        let Input::Packet(arrival) = b.receive(&into[..1514], ms(0)) else { panic!() };
        assert_eq!((arrival.packet.len(), arrival.network.traffic_class()), (room, 2));
        // A builder that fails, one that claims too much, and a buffer without room.
        let error = roce::Error::Field { field: "test", value: 1 };
        let result = a.transmit(&network, 1, &mut into, ms(0), |_| Err(error));
        assert_eq!(result, Err(Unsent::Invalid(error)));
        for claimed in [9000, usize::MAX] {
            let result = a.transmit(&network, 1, &mut into, ms(0), |_| Ok(claimed));
            assert!(matches!(result, Err(Unsent::Invalid(_))), "{result:?}");
        }
        for have in [0, 13, 14, 45, 60] {
            let result = a.transmit_datagram(&datagram(src, dst, b"123456789"), &mut into[..have], ms(0));
            assert!(matches!(result, Err(Unsent::Invalid(roce::Error::Truncated { .. }))), "{result:?}");
        }
    }
    assert_eq!(a.counters().packets_out, 2);
}

#[test]
fn a_packet_that_has_no_way_is_not_sent() {
    let mut a = port(1);
    let [_, own4, own6] = a.gids() else { panic!() };
    let (own4, own6) = (*own4, *own6);
    for (src, dst, why) in [
        (own4, own4, Unsent::Own),
        (own6, own6, Unsent::Own),
        (own6, a.gids()[0], Unsent::Own),
        (gid("10.0.0.2"), gid("10.0.0.3"), Unsent::NotOurs),
        (own4, gid("10.0.1.1"), Unsent::NoRoute),
        (own4, gid("10.0.0.255"), Unsent::NoRoute),
        (own4, gid("224.0.0.1"), Unsent::NoRoute),
        (own4, gid("0.0.0.0"), Unsent::NoRoute),
        (own6, gid("fd01::1"), Unsent::NoRoute),
        (own6, gid("ff02::1"), Unsent::NoRoute),
        (own6, gid("::"), Unsent::NoRoute),
    ] {
        assert_eq!(send(&mut a, src, dst, b"", ms(0)), Err(why), "{src} {dst}");
    }
    assert_eq!((own_frames(&mut a).len(), a.deadline()), (0, None));
    a.set_up(false, ms(0));
    assert_eq!(send(&mut a, own4, gid("10.0.0.2"), b"", ms(0)), Err(Unsent::Down));
}

#[test]
fn a_neighbour_is_asked_from_the_address_in_its_network() {
    let mut a = port(1);
    let [link_local, own4, own6] = a.gids() else { panic!() };
    let (link_local, own4, own6) = (*link_local, *own4, *own6);
    assert_eq!(send(&mut a, own4, gid("10.0.0.9"), b"", ms(0)), Err(Unsent::Resolving));
    let frames = own_frames(&mut a);
    let [frame] = &frames[..] else { panic!() };
    assert_eq!(frame[..6], BROADCAST);
    assert_eq!(parse_arp(frame), (ArpOperation::Request, a.mac(), v4("10.0.0.1"), v4("10.0.0.9")));
    for (to, from) in [("fd00::9", own6), ("fe80::9", link_local)] {
        assert_eq!(send(&mut a, own6, gid(to), b"", ms(0)), Err(Unsent::Resolving));
        let frames = own_frames(&mut a);
        let [frame] = &frames[..] else { panic!() };
        assert_eq!(frame[..6], [0x33, 0x33, 0xff, 0, 0, 9]);
        let (ip, repr) = parse_icmpv6(frame);
        assert_eq!((ip.src, ip.dst, ip.hop_limit), (from, gid("ff02::1:ff00:9"), 255));
        assert_eq!(repr, solicit(to, Some(a.mac())));
    }
}

#[test]
fn an_unanswered_question_is_repeated_and_then_given_up() {
    let mut a = port(1);
    let own = a.gids()[1];
    let to = gid("10.0.0.9");
    assert_eq!(send(&mut a, own, to, b"", ms(0)), Err(Unsent::Resolving));
    let mut asked = own_frames(&mut a).len();
    let mut now = ms(0);
    while let Some(deadline) = a.deadline() {
        assert!(deadline > now);
        now = deadline;
        a.poll(now);
        asked += own_frames(&mut a).len();
    }
    assert_eq!(asked, 5);
    assert_eq!(send(&mut a, own, to, b"", now), Err(Unsent::NoAnswer));
    assert_eq!(send(&mut a, own, to, b"", now + Duration::from_secs(1)), Err(Unsent::Resolving));
}

#[test]
fn a_port_that_goes_up_announces_its_addresses_and_knows_no_neighbour() {
    let (mut a, mut b) = (port(1), port(2));
    let (src, dst) = (a.gids()[1], b.gids()[1]);
    let _ = send(&mut a, src, dst, b"", ms(0));
    settle(&mut a, &mut b, ms(0));
    assert!(send(&mut a, src, dst, b"", ms(0)).is_ok());
    a.set_up(false, ms(1));
    assert!(!a.up());
    let frame = roce_frame(&a, gid("10.0.0.77"), src);
    assert_eq!(a.receive(&frame, ms(1)), Input::Dropped(Dropped::Down));
    a.set_up(true, ms(2));
    a.set_up(true, ms(2));
    let frames = own_frames(&mut a);
    assert_eq!(frames.len(), 3);
    assert_eq!(parse_arp(&frames[1]), (ArpOperation::Request, a.mac(), v4("10.0.0.1"), v4("10.0.0.1")));
    for (frame, own) in [(&frames[0], a.gids()[0]), (&frames[2], a.gids()[2])] {
        let (ip, repr) = parse_icmpv6(frame);
        assert_eq!((ip.src, ip.dst, &frame[..6]), (own, gid("ff02::1"), &[0x33, 0x33, 0, 0, 0, 1][..]));
        assert_eq!(repr, advert(&own.to_string(), NdiscNeighborFlags::OVERRIDE, Some(a.mac())));
    }
    assert_eq!(send(&mut a, src, dst, b"", ms(2)), Err(Unsent::Resolving));
    // A successor with another MAC announces itself, and is found at once.
    let _ = send(&mut b, dst, src, b"", ms(3));
    for frame in &frames {
        b.receive(frame, ms(3));
    }
    assert!(send(&mut b, dst, src, b"", ms(3)).is_ok());
}

#[test]
fn an_arp_request_is_answered_and_its_sender_remembered() {
    let mut a = port(1);
    let request = arp(ArpOperation::Request, PEER, "10.0.0.77", "10.0.0.1", BROADCAST);
    assert_eq!(a.receive(&request, ms(0)), Input::Consumed);
    let frames = own_frames(&mut a);
    let [answer] = &frames[..] else { panic!() };
    assert_eq!((&answer[..6], &answer[6..12]), (&PEER[..], &a.mac()[..]));
    assert_eq!(parse_arp(answer), (ArpOperation::Reply, a.mac(), v4("10.0.0.1"), v4("10.0.0.77")));
    let own = a.gids()[1];
    let frame = send(&mut a, own, gid("10.0.0.77"), b"", ms(1)).unwrap();
    assert_eq!(frame[..6], PEER);
    // It was only said, so the port asks whether it is true: that MAC alone.
    let frames = own_frames(&mut a);
    assert_eq!((frames.len(), &frames[0][..6]), (1, &PEER[..]));
    // A port that looks for a free address gets an answer, and is no neighbour.
    let probe = arp(ArpOperation::Request, PEER, "0.0.0.0", "10.0.0.1", BROADCAST);
    assert_eq!(a.receive(&probe, ms(2)), Input::Consumed);
    assert_eq!(own_frames(&mut a).len(), 1);
}

#[test]
fn arp_for_others_and_from_impossible_senders_is_dropped() {
    let mut a = port(1);
    let own = a.mac();
    for (frame, why) in [
        (arp(ArpOperation::Request, PEER, "10.0.0.77", "10.0.0.2", BROADCAST), Dropped::WrongAddress),
        (arp(ArpOperation::Reply, PEER, "10.0.0.77", "10.0.0.2", own), Dropped::WrongAddress),
        (arp(ArpOperation::Request, PEER, "10.0.0.77", "10.0.0.1", PEER), Dropped::WrongMac),
        (arp(ArpOperation::Request, PEER, "10.0.0.1", "10.0.0.1", BROADCAST), Dropped::BadSource),
        (arp(ArpOperation::Request, PEER, "224.0.0.1", "10.0.0.1", BROADCAST), Dropped::BadSource),
        (arp(ArpOperation::Request, PEER, "255.255.255.255", "10.0.0.1", BROADCAST), Dropped::BadSource),
        (arp(ArpOperation::Request, own, "10.0.0.77", "10.0.0.1", BROADCAST), Dropped::BadSource),
        (arp(ArpOperation::Request, BROADCAST, "10.0.0.77", "10.0.0.1", BROADCAST), Dropped::BadSource),
        (arp(ArpOperation::Unknown(9), PEER, "10.0.0.77", "10.0.0.1", BROADCAST), Dropped::Malformed),
    ] {
        assert_eq!(a.receive(&frame, ms(0)), Input::Dropped(why));
    }
    let mut odd = arp(ArpOperation::Request, PEER, "10.0.0.77", "10.0.0.1", BROADCAST);
    odd[22..28].copy_from_slice(&BROADCAST);
    assert_eq!(a.receive(&odd, ms(0)), Input::Dropped(Dropped::BadSource));
    let good = arp(ArpOperation::Request, PEER, "10.0.0.77", "10.0.0.1", BROADCAST);
    for len in 14..42 {
        assert_eq!(a.receive(&good[..len], ms(0)), Input::Dropped(Dropped::Truncated), "{len}");
    }
    assert_eq!(own_frames(&mut a).len(), 0);
}

#[test]
fn an_announcement_changes_a_known_neighbour_only() {
    let mut a = port(1);
    let own = a.gids()[1];
    let announcement = arp(ArpOperation::Request, PEER, "10.0.0.77", "10.0.0.77", BROADCAST);
    let to = gid("10.0.0.77");
    assert_eq!(a.receive(&announcement, ms(0)), Input::Consumed);
    assert_eq!(send(&mut a, own, to, b"", ms(0)), Err(Unsent::Resolving));
    let other = [2, 0, 0, 0, 0, 9];
    let answer = arp(ArpOperation::Reply, other, "10.0.0.77", "10.0.0.1", a.mac());
    assert_eq!(a.receive(&answer, ms(1)), Input::Resolved(to));
    assert_eq!(send(&mut a, own, to, b"", ms(1)).unwrap()[..6], other);
    assert_eq!(a.receive(&announcement, ms(2)), Input::Consumed);
    assert_eq!(send(&mut a, own, to, b"", ms(2)).unwrap()[..6], PEER);
}

#[test]
fn a_solicitation_is_answered_to_an_address_to_its_group_and_to_a_port_without_one() {
    let mut a = port(1);
    let group = [0x33, 0x33, 0xff, 0, 0, 1];
    let own = a.mac();
    for (src, dst, mac, lladdr, to, flags) in [
        ("fd00::77", "ff02::1:ff00:1", group, Some(PEER), "fd00::77", NdiscNeighborFlags::SOLICITED),
        ("fd00::77", "fd00::1", own, None, "fd00::77", NdiscNeighborFlags::SOLICITED),
        ("::", "ff02::1:ff00:1", group, None, "ff02::1", NdiscNeighborFlags::empty()),
    ] {
        let frame = icmpv6(src, dst, mac, 255, &solicit("fd00::1", lladdr));
        assert_eq!(a.receive(&frame, ms(0)), Input::Consumed, "{src}");
        let frames = own_frames(&mut a);
        let [answer] = &frames[..] else { panic!() };
        let (ip, repr) = parse_icmpv6(answer);
        assert_eq!((ip.src, ip.dst, ip.hop_limit), (gid("fd00::1"), gid(to), 255));
        assert_eq!(repr, advert("fd00::1", flags | NdiscNeighborFlags::OVERRIDE, Some(own)));
        assert_eq!(&answer[..6], if to == "ff02::1" { &[0x33, 0x33, 0, 0, 0, 1] } else { &PEER });
    }
    let src = a.gids()[2];
    assert_eq!(send(&mut a, src, gid("fd00::77"), b"", ms(0)).unwrap()[..6], PEER);
}

#[test]
fn neighbour_discovery_that_breaks_its_rules_is_dropped() {
    let mut a = port(1);
    let (own, group) = (a.mac(), [0x33, 0x33, 0xff, 0, 0, 1]);
    let (all, plain) = ([0x33, 0x33, 0, 0, 0, 1], NdiscNeighborFlags::empty());
    let peer = Some(PEER);
    for (frame, why) in [
        (icmpv6("fd00::77", "fd00::1", own, 254, &solicit("fd00::1", peer)), Dropped::Malformed),
        (icmpv6("fd00::77", "fd00::1", own, 255, &solicit("fd00::2", peer)), Dropped::WrongAddress),
        (icmpv6("fd00::77", "fd00::1", own, 255, &solicit("ff02::1", peer)), Dropped::Malformed),
        (icmpv6("::", "fd00::1", own, 255, &solicit("fd00::1", None)), Dropped::Malformed),
        (icmpv6("::", "ff02::1:ff00:1", group, 255, &solicit("fd00::1", peer)), Dropped::Malformed),
        (icmpv6("fd00::1", "ff02::1:ff00:1", group, 255, &solicit("fd00::1", peer)), Dropped::BadSource),
        (icmpv6("ff02::5", "fd00::1", own, 255, &solicit("fd00::1", peer)), Dropped::BadSource),
        (icmpv6("fd00::77", "fd00::1", own, 255, &solicit("fd00::1", Some(BROADCAST))), Dropped::BadSource),
        (icmpv6("fd00::77", "fd00::1", own, 255, &solicit("fd00::1", Some([0; 6]))), Dropped::BadSource),
        (icmpv6("fd00::77", "fd00::2", own, 255, &solicit("fd00::1", peer)), Dropped::WrongAddress),
        (icmpv6("fd00::77", "fd00::1", group, 255, &solicit("fd00::1", peer)), Dropped::WrongMac),
        (icmpv6("fd00::77", "ff02::1:ff00:9", group, 255, &solicit("fd00::1", peer)), Dropped::WrongAddress),
        (icmpv6("fd00::77", "ff02::1:ff00:1", own, 255, &solicit("fd00::1", peer)), Dropped::WrongAddress),
        (
            icmpv6("fd00::77", "ff02::1", all, 255, &advert("fd00::77", NdiscNeighborFlags::SOLICITED, peer)),
            Dropped::Malformed,
        ),
        (icmpv6("fd00::77", "ff02::1", all, 255, &advert("ff02::5", plain, peer)), Dropped::Malformed),
        (icmpv6("fd00::77", "ff02::1", all, 255, &advert("fd00::1", plain, peer)), Dropped::BadSource),
        (icmpv6("fd00::77", "ff02::1", all, 64, &advert("fd00::77", plain, peer)), Dropped::Malformed),
    ] {
        assert_eq!(a.receive(&frame, ms(0)), Input::Dropped(why));
    }
    let good = icmpv6("fd00::77", "fd00::1", own, 255, &solicit("fd00::1", peer));
    let mut bad = good.clone();
    bad[57] ^= 1;
    assert_eq!(a.receive(&bad, ms(0)), Input::Dropped(Dropped::BadChecksum));
    for len in 14..good.len() {
        assert_eq!(a.receive(&good[..len], ms(0)), Input::Dropped(Dropped::Truncated), "{len}");
    }
    assert_eq!(own_frames(&mut a).len(), 0);
}

#[test]
fn an_advertisement_replaces_a_mac_only_if_it_says_so() {
    let mut a = port(1);
    let (own, src, to) = (a.mac(), a.gids()[2], gid("fd00::77"));
    let other = [2, 0, 0, 0, 0, 9];
    assert_eq!(send(&mut a, src, to, b"", ms(0)), Err(Unsent::Resolving));
    let without =
        icmpv6("fd00::77", "fd00::1", own, 255, &advert("fd00::77", NdiscNeighborFlags::SOLICITED, None));
    assert_eq!(a.receive(&without, ms(0)), Input::Consumed);
    let answer = icmpv6(
        "fd00::77",
        "fd00::1",
        own,
        255,
        &advert("fd00::77", NdiscNeighborFlags::SOLICITED, Some(PEER)),
    );
    assert_eq!(a.receive(&answer, ms(0)), Input::Resolved(to));
    let all = [0x33, 0x33, 0, 0, 0, 1];
    let timid = icmpv6(
        "fd00::77",
        "ff02::1",
        all,
        255,
        &advert("fd00::77", NdiscNeighborFlags::empty(), Some(other)),
    );
    assert_eq!(a.receive(&timid, ms(1)), Input::Consumed);
    assert_eq!(send(&mut a, src, to, b"", ms(1)).unwrap()[..6], PEER);
    let bold = icmpv6(
        "fd00::77",
        "ff02::1",
        all,
        255,
        &advert("fd00::77", NdiscNeighborFlags::OVERRIDE, Some(other)),
    );
    assert_eq!(a.receive(&bold, ms(2)), Input::Consumed);
    assert_eq!(send(&mut a, src, to, b"", ms(2)).unwrap()[..6], other);
}

/// An echo request of [`PEER`] over IPv4.
fn ping(port: &Port, dst: &str, data: &[u8]) -> Vec<u8> {
    let repr = Icmpv4Repr::EchoRequest { ident: 3, seq_no: 4, data };
    let mut frame = vec![0; 14 + 20 + repr.buffer_len()];
    let header = ethernet::Repr { dst: port.mac(), src: PEER, ether_type: ethernet::Repr::IPV4 };
    let ip = ipv4::Repr {
        tos: 0,
        ident: 5,
        dont_fragment: true,
        ttl: 64,
        protocol: 1,
        src: v4("10.0.0.77"),
        dst: v4(dst),
        payload_len: repr.buffer_len() as u16,
    };
    let rest = header.emit(&mut frame).and_then(|rest| ip.emit(rest)).unwrap();
    repr.emit(&mut Icmpv4Packet::new_unchecked(rest), &ChecksumCapabilities::default());
    frame
}

#[test]
fn echo_requests_are_answered_with_their_data() {
    let mut a = port(1);
    for len in [0, 1, 56, 1472] {
        let data = vec![0x5a; len];
        let request = ping(&a, "10.0.0.1", &data);
        assert_eq!(a.receive(&request, ms(0)), Input::Consumed);
        let frames = own_frames(&mut a);
        let [answer] = &frames[..] else { panic!() };
        assert_eq!(answer[..6], PEER);
        let (ip, payload) = ipv4::Repr::parse(&answer[14..]).unwrap();
        assert_eq!((ip.src, ip.dst), (v4("10.0.0.1"), v4("10.0.0.77")));
        let packet = Icmpv4Packet::new_checked(payload).unwrap();
        let repr = Icmpv4Repr::parse(&packet, &ChecksumCapabilities::default()).unwrap();
        assert_eq!(repr, Icmpv4Repr::EchoReply { ident: 3, seq_no: 4, data: &data });
    }
    let data = [7; 100];
    let request = Icmpv6Repr::EchoRequest { ident: 3, seq_no: 4, data: &data };
    let frame = icmpv6("fd00::77", "fd00::1", a.mac(), 64, &request);
    assert_eq!(a.receive(&frame, ms(0)), Input::Consumed);
    let frames = own_frames(&mut a);
    let (ip, repr) = parse_icmpv6(&frames[0]);
    assert_eq!((ip.src, ip.dst), (gid("fd00::1"), gid("fd00::77")));
    assert_eq!(repr, Icmpv6Repr::EchoReply { ident: 3, seq_no: 4, data: &data });
    assert_eq!(a.counters().echoes, 5);
    // Wrong checksums, other messages, and requests to all.
    let mut bad = ping(&a, "10.0.0.1", &data);
    bad[40] ^= 1;
    assert_eq!(a.receive(&bad, ms(0)), Input::Dropped(Dropped::BadChecksum));
    let mut reply = ping(&a, "10.0.0.1", &data);
    reply[34] = 0;
    assert_eq!(a.receive(&reply, ms(0)), Input::Dropped(Dropped::NotRoce));
    let mut bad = frame.clone();
    bad[80] ^= 1;
    assert_eq!(a.receive(&bad, ms(0)), Input::Dropped(Dropped::BadChecksum));
    let all = icmpv6("fd00::77", "ff02::1", [0x33, 0x33, 0, 0, 0, 1], 64, &request);
    assert_eq!(a.receive(&all, ms(0)), Input::Dropped(Dropped::NotRoce));
    assert_eq!(own_frames(&mut a).len(), 0);
}

#[test]
fn floods_are_answered_at_a_bounded_rate_and_do_not_starve_each_other() {
    let mut a = port(1);
    let request = arp(ArpOperation::Request, PEER, "10.0.0.77", "10.0.0.1", BROADCAST);
    let echo = ping(&a, "10.0.0.1", b"");
    let mut sent = 0;
    // Ten thousand of each in one second.
    for n in 0..10_000 {
        let now = Instant::from_nanos(n * 100_000);
        a.receive(&request, now);
        a.receive(&echo, now);
        sent += own_frames(&mut a).len();
    }
    let Counters { answers, echoes, .. } = *a.counters();
    assert!((100..130).contains(&answers) && (100..130).contains(&echoes), "{answers} {echoes}");
    assert_eq!(sent as u64, answers + echoes);
    assert_eq!(a.counters().dropped(Dropped::Flood), 20_000 - answers - echoes);
    // Another neighbour is served meanwhile.
    let other = arp(ArpOperation::Request, [2, 0, 0, 0, 0, 9], "10.0.0.78", "10.0.0.1", BROADCAST);
    while a.receive(&request, ms(1000)) == Input::Consumed {}
    assert_eq!(a.receive(&other, ms(1000)), Input::Consumed);
    // A flood from all addresses has a bound, too.
    let mut a = port(1);
    for n in 0..100_000_u32 {
        let from = format!("10.0.0.{}", 2 + n % 253);
        a.receive(&arp(ArpOperation::Request, PEER, &from, "10.0.0.1", BROADCAST), Instant::ZERO);
        own_frames(&mut a);
    }
    assert_eq!(a.counters().answers, 64 * 16);
    // An owner that does not send them costs bounded memory, and echoes leave room for the rest.
    let mut a = port(1);
    for n in 0..10_000 {
        a.receive(&echo, ms(n));
    }
    a.receive(&request, ms(10_000));
    let frames = own_frames(&mut a);
    assert_eq!((frames.len(), &frames[32][12..14]), (33, &[0x08, 0x06][..]));
}

#[test]
fn questions_to_many_addresses_are_asked_at_a_bounded_rate() {
    let mut a = port(1);
    let own = a.gids()[1];
    for n in 2..250 {
        let to = Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, n));
        assert_eq!(send(&mut a, own, to, b"", ms(0)), Err(Unsent::Resolving));
    }
    assert_eq!(own_frames(&mut a).len(), 64);
    assert_eq!(a.counters().questions_delayed, 248 - 64);
    // Those that were too many are asked when they are due again.
    let deadline = a.deadline().unwrap();
    a.poll(deadline);
    assert!(!own_frames(&mut a).is_empty());
}

#[test]
fn each_wrong_packet_is_dropped_for_its_reason() {
    for (src, dst) in [("10.0.0.77", "10.0.0.1"), ("fd00::77", "fd00::1")] {
        let mut a = port(1);
        let good = roce_frame(&a, gid(src), gid(dst));
        assert!(matches!(a.receive(&good, ms(0)), Input::Packet(_)));
        // Padding of Ethernet is ignored.
        let padded = [&good[..], &[0; 20]].concat();
        assert!(matches!(a.receive(&padded, ms(0)), Input::Packet(_)));
        let is_v4 = gid(dst).to_ipv4().is_some();
        let mut check = |why: Dropped, change: &dyn Fn(&mut Vec<u8>)| {
            let mut bad = good.clone();
            change(&mut bad);
            assert_eq!(a.receive(&bad, ms(0)), Input::Dropped(why), "{src}");
        };
        check(Dropped::WrongMac, &|f| f[5] ^= 1);
        check(Dropped::WrongMac, &|f| f[..6].copy_from_slice(&BROADCAST));
        check(Dropped::BadSource, &|f| f[6] |= 1);
        check(Dropped::BadSource, &|f| f[6..12].fill(0));
        check(Dropped::NotRoce, &|f| f[12] = 0x81);
        check(Dropped::WrongIcrc, &|f| *f.last_mut().unwrap() ^= 1);
        check(Dropped::WrongIcrc, &|f| {
            let last = f.len() - 6;
            f[last] ^= 1;
        });
        check(Dropped::Oversized, &|f| f.resize(1515, 0));
        if is_v4 {
            check(Dropped::BadChecksum, &|f| f[22] ^= 1);
            check(Dropped::Malformed, &|f| f[14] = 0x46);
        } else {
            check(Dropped::Malformed, &|f| f[14] = 0x46);
            check(Dropped::NotRoce, &|f| f[20] = 6);
            check(Dropped::WrongAddress, &|f| f[53] = 9);
            check(Dropped::BadSource, &|f| f[22..38].copy_from_slice(&gid("fd00::1").0));
            check(Dropped::BadSource, &|f| f[22..38].copy_from_slice(&gid("ff02::7").0));
            check(Dropped::Malformed, &|f| f[22..38].copy_from_slice(&gid("10.0.0.7").0));
            check(Dropped::WrongAddress, &|f| f[38..54].copy_from_slice(&gid("ff02::5").0));
        }
        let udp = good.len() - 4 - 8 - 12 - 8;
        check(Dropped::NotRoce, &|f| f[udp + 3] ^= 1);
        check(Dropped::Truncated, &|f| f[udp + 4] = 0x20);
        check(Dropped::Malformed, &|f| f[udp + 4..udp + 6].fill(0));
        check(Dropped::Truncated, &|f| f[udp + 4..udp + 6].copy_from_slice(&[0, 10]));
        check(Dropped::Truncated, &|f| f[udp + 4..udp + 6].copy_from_slice(&[0, 20]));
        for len in 0..good.len() {
            check(Dropped::Truncated, &|f| f.truncate(len));
        }
        let drops: u64 = a.counters().drops().map(|(_, n)| n).sum();
        assert_eq!((a.counters().packets_in, drops + 2), (2, a.counters().frames));
    }
}

#[test]
fn ipv4_packets_that_are_not_for_this_port_are_dropped_for_their_reason() {
    let mut a = port(1);
    // The header's checksum is right in all of these.
    let frame = |change: &dyn Fn(&mut ipv4::Repr), offset: u16| {
        let port = port(1);
        let mut frame = roce_frame(&port, gid("10.0.0.77"), gid("10.0.0.1"));
        let (mut ip, _) = ipv4::Repr::parse(&frame[14..]).unwrap();
        change(&mut ip);
        ip.emit(&mut frame[14..]).unwrap();
        let fragment = u16::from_be_bytes([frame[20], frame[21]]) & 0x4000 | offset;
        let sum = u32::from(!u16::from_be_bytes([frame[24], frame[25]])) + u32::from(offset);
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        frame[20..22].copy_from_slice(&fragment.to_be_bytes());
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame
    };
    assert!(matches!(a.receive(&frame(&|_| {}, 0), ms(0)), Input::Packet(_)));
    for (bad, why) in [
        (frame(&|ip| ip.dst = v4("10.0.0.9"), 0), Dropped::WrongAddress),
        (frame(&|ip| ip.dst = v4("10.0.0.255"), 0), Dropped::WrongAddress),
        (frame(&|ip| ip.src = v4("10.0.0.1"), 0), Dropped::BadSource),
        (frame(&|ip| ip.src = v4("0.0.0.0"), 0), Dropped::BadSource),
        (frame(&|ip| ip.src = v4("224.0.0.7"), 0), Dropped::BadSource),
        (frame(&|ip| ip.protocol = 6, 0), Dropped::NotRoce),
        (frame(&|ip| ip.src = v4("10.0.0.78"), 0), Dropped::WrongIcrc),
        (frame(&|_| {}, 0x2000), Dropped::Fragment),
        (frame(&|_| {}, 0x0007), Dropped::Fragment),
    ] {
        assert_eq!(a.receive(&bad, ms(0)), Input::Dropped(why));
    }
    // Routers may change the traffic class, and mark congestion.
    let marked = frame(&|ip| (ip.tos, ip.ttl) = (3, 1), 0);
    let Input::Packet(arrival) = a.receive(&marked, ms(0)) else { panic!() };
    assert!(arrival.is_congested());
}

#[test]
#[cfg_attr(miri, ignore = "the captures are files")]
fn the_port_answers_as_the_linux_guest_did_whose_place_it_takes() {
    for name in ["03-read.pcap", "40-drop-rep.pcap"] {
        let path = std::path::Path::new("../roce/tests/data").join(name);
        let mut reader = pcap_file::pcap::PcapReader::new(std::fs::File::open(path).unwrap()).unwrap();
        let linux = [0x52, 0x54, 0, 0x12, 0x34, 2];
        let config = Config {
            mac: linux,
            link_local: v6("fe80::5054:ff:fe12:3402"),
            mtu: MTU,
            addresses: vec![prefix("10.0.0.2/24")],
        };
        let mut port = Port::new(&config).unwrap();
        port.set_up(true, ms(0));
        own_frames(&mut port);
        let (mut packets, mut answers, mut ignored) = (0, Vec::new(), 0);
        while let Some(packet) = reader.next_packet() {
            let frame = packet.unwrap().data.into_owned();
            if frame[6..12] == linux {
                if frame[12..14] == [0x08, 0x06] {
                    // What Linux answered is what the port has answered.
                    assert_eq!(answers.pop(), Some(frame));
                }
                continue;
            }
            match port.receive(&frame, ms(1)) {
                Input::Packet(arrival) => {
                    packets += 1;
                    packet::Repr::parse(arrival.packet).unwrap();
                }
                Input::Consumed => {}
                // Router solicitations and reports of multicast listeners.
                Input::Dropped(why) => {
                    assert!(matches!(why, Dropped::WrongAddress | Dropped::NotRoce), "{why:?}");
                    ignored += 1;
                }
                Input::Resolved(_) => panic!("nothing was asked"),
            }
            answers.extend(own_frames(&mut port));
        }
        assert!(answers.is_empty() && packets > 5 && ignored > 0, "{name}: {packets} {ignored}");
        assert_eq!(port.counters().answers, 1, "{name}");
        let own = port.gids()[1];
        assert!(send(&mut port, own, gid("10.0.0.1"), b"", ms(2)).is_ok(), "the asker is known");
    }
}

#[test]
fn no_frame_makes_the_port_panic_or_grow() {
    let mut random = Random::new(1);
    let mut a = port(1);
    let own = a.mac();
    let group = [0x33, 0x33, 0xff, 0, 0, 1];
    let seeds = [
        roce_frame(&a, gid("10.0.0.77"), gid("10.0.0.1")),
        roce_frame(&a, gid("fd00::77"), gid("fd00::1")),
        arp(ArpOperation::Request, PEER, "10.0.0.77", "10.0.0.1", BROADCAST),
        arp(ArpOperation::Reply, PEER, "10.0.0.77", "10.0.0.1", own),
        icmpv6("fd00::77", "ff02::1:ff00:1", group, 255, &solicit("fd00::1", Some(PEER))),
        icmpv6(
            "fd00::77",
            "fd00::1",
            own,
            255,
            &advert("fd00::77", NdiscNeighborFlags::SOLICITED, Some(PEER)),
        ),
        icmpv6(
            "fd00::77",
            "fd00::1",
            own,
            64,
            &Icmpv6Repr::EchoRequest { ident: 1, seq_no: 2, data: b"data" },
        ),
        ping(&a, "10.0.0.1", b"data"),
    ];
    let rounds = if cfg!(miri) { 200 } else { 100_000 };
    let mut kinds = [0_u32; 4];
    let mut now = Instant::ZERO;
    let mut into = [0; 1514];
    for round in 0..rounds {
        let mut below = |bound: usize| random.below(bound as u64) as usize;
        now = now + Duration::from_micros(below(2000) as u64);
        let mut frame = seeds[below(seeds.len())].clone();
        // Few changes, mostly behind the Ethernet header; sometimes with a checksum made right.
        for _ in 0..below(4) {
            let at = if below(8) == 0 { below(frame.len()) } else { 12 + below(frame.len() - 12) };
            frame[at] = match below(3) {
                0 => below(256) as u8,
                1 => frame[at] ^ 1 << below(8),
                _ => [0, 1, 0x7f, 0x80, 0xff][below(5)],
            };
        }
        if below(4) == 0 {
            frame.truncate(below(frame.len() + 1));
        } else if below(8) == 0 {
            frame.resize(frame.len() + below(1600), 0);
        }
        if below(2) == 0 {
            mend(&mut frame);
        }
        let kind = match a.receive(&frame, now) {
            Input::Packet(arrival) => {
                assert!(arrival.packet.len() <= frame.len());
                0
            }
            Input::Consumed => 1,
            Input::Resolved(_) => 2,
            Input::Dropped(_) => 3,
        };
        kinds[kind] += 1;
        let src = a.gids()[1 + round % 2];
        let to = if round % 2 == 0 { gid("10.0.0.77") } else { gid("fd00::77") };
        let _ = a.transmit_datagram(&datagram(src, to, b"x"), &mut into, now);
        if a.deadline().is_some_and(|deadline| deadline <= now) {
            a.poll(now);
        }
        if below(4) == 0 {
            assert!(own_frames(&mut a).len() <= 128);
        }
        if below(5000) == 0 {
            a.set_up(false, now);
            a.set_up(true, now);
        }
    }
    assert!(cfg!(miri) || kinds.iter().all(|&count| count > 0), "{kinds:?}");
    let drops: u64 = a.counters().drops().map(|(_, n)| n).sum();
    assert_eq!(a.counters().frames, rounds as u64);
    assert_eq!(u64::from(kinds[3]), drops);
}

/// Makes the checksum of an ICMPv6 message right.
fn mend(frame: &mut [u8]) {
    let Ok((ip, payload)) = ipv6::Repr::parse(frame.get(14..).unwrap_or(&[])) else { return };
    if ip.next_header != 58 || payload.len() < 4 {
        return;
    }
    let len = payload.len();
    let [src, dst] = [ip.src, ip.dst].map(|gid| Ipv6Addr::from(gid.0));
    let mut packet = Icmpv6Packet::new_unchecked(&mut frame[54..54 + len]);
    packet.fill_checksum(&src, &dst);
}

#[test]
fn a_port_of_a_jumbo_link_carries_the_largest_packets() {
    let jumbo = |n: u64| {
        let mut port = Port::new(&Config::new(n, 4200, &[prefix(&format!("10.0.0.{n}/24"))])).unwrap();
        port.set_up(true, ms(0));
        own_frames(&mut port);
        port
    };
    let (mut a, mut b) = (jumbo(1), jumbo(2));
    assert_eq!(a.path_mtu(), PathMtu::B4096);
    let (src, dst) = (a.gids()[1], b.gids()[1]);
    let _ = send(&mut a, src, dst, b"", ms(0));
    settle(&mut a, &mut b, ms(0));
    let payload = vec![1; 4096];
    let mut into = vec![0; a.max_frame()];
    let len = a.transmit_datagram(&datagram(src, dst, &payload), &mut into, ms(0)).unwrap();
    let Input::Packet(arrival) = b.receive(&into[..len], ms(0)) else { panic!() };
    assert_eq!(packet::Repr::parse(arrival.packet).unwrap().payload, payload);
}
