//! Links over the host's UDP port of RoCEv2. Each test has loopback addresses of its own, since the
//! port is the same for all.

extern crate ferrovia_links as links;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use links::{Dropped, Link, LinkSpec, OpenError, Udp, Wire};
use platform::Instant;
use platform::random::Random;
use roce::wire::opcode::Opcode;
use roce::wire::{bth, datagram, ethernet, packet};
use roce::{Gid, Psn, Qpn, UDP_PORT};
use rustix::event::{PollFd, PollFlags};

const NOW: Instant = Instant::ZERO;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x77];

/// An address that no other test, nor another run of these on this machine, uses.
fn address(test: u8, host: u8) -> Ipv4Addr {
    let process = std::process::id();
    Ipv4Addr::new(127, 64 | (process >> 8) as u8 & 0x3f, process as u8, test << 3 | host)
}

fn bind(address: Ipv4Addr) -> Udp {
    Udp::bind(address.into(), MAC).unwrap()
}

/// A frame with a RoCEv2 packet.
fn frame(src: impl Into<IpAddr>, dst: impl Into<IpAddr>, src_port: u16, payload: &[u8]) -> Vec<u8> {
    let network = datagram::Network::new(Gid::from(src.into()), Gid::from(dst.into()), 3, 9).unwrap();
    let bth = bth::Repr::new(Opcode::RcSendOnly, Qpn::new(0x11).unwrap(), Psn::new(7));
    let packet = packet::Repr { payload, ..packet::Repr::new(bth) };
    let roce = datagram::Repr { network, src_port, packet };
    let mut frame = vec![0; 14 + roce.len()];
    let v4 = matches!(network, datagram::Network::V4(_));
    let ether_type = if v4 { ethernet::Repr::IPV4 } else { ethernet::Repr::IPV6 };
    let rest = ethernet::Repr { dst: [9; 6], src: MAC, vlan: None, ether_type }.emit(&mut frame).unwrap();
    roce.emit(rest).unwrap();
    frame
}

/// Waits until the socket of the link is ready, and takes a frame.
fn expect_frame(link: &mut Udp) -> Vec<u8> {
    let mut into = vec![0; links::MAX_FRAME];
    if link.deadline().is_none() {
        rustix::event::poll(&mut [link.poll_fd().unwrap()], None).unwrap();
    }
    let len = link.receive(&mut into, NOW).expect("a frame is there");
    into.truncate(len);
    into
}

fn roce(frame: &[u8]) -> datagram::Repr<'_> {
    datagram::Repr::parse(&frame[14..]).unwrap()
}

#[test]
fn a_packet_arrives_with_headers_that_its_icrc_covers() {
    let (a, b) = (address(1, 1), address(1, 2));
    let (mut from, mut to) = (bind(a), bind(b));
    for src_port in [UDP_PORT, 0xc123] {
        for len in [0, 1, 4096] {
            let payload = vec![len as u8; len];
            from.send(&frame(a, b, src_port, &payload), NOW);
            let got = expect_frame(&mut to);
            let (ethernet, _) = ethernet::Repr::parse(&got).unwrap();
            assert_eq!((ethernet.dst, ethernet.src[2..].to_vec()), (MAC, a.octets().to_vec()));
            let packet = roce(&got);
            assert_eq!((packet.network.src(), packet.network.dst()), (Gid::from_ipv4(a), Gid::from_ipv4(b)));
            assert_eq!((packet.src_port, packet.packet.payload), (UDP_PORT, &payload[..]));
        }
    }
    assert_eq!((from.counters().sent, to.counters().received, to.counters().all_dropped()), (6, 6, 0));
    assert_eq!(to.receive(&mut [0; 2000], NOW), None);
    assert!(to.up() && to.has_room());
}

#[test]
fn packets_to_a_group_reach_those_that_have_joined_it() {
    let [a, b, c] = [1, 2, 3].map(|host| address(20, host));
    let [mut from, mut to, mut stranger] = [a, b, c].map(bind);
    let group = Ipv4Addr::new(239, 200, a.octets()[1], a.octets()[2]);
    to.join(group.into());
    to.join(Ipv4Addr::new(239, 201, a.octets()[1], a.octets()[2]).into());
    for payload in [&b"one"[..], b"two"] {
        from.send(&frame(a, group, 0xc123, payload), NOW);
        let got = expect_frame(&mut to);
        let (ethernet, _) = ethernet::Repr::parse(&got).unwrap();
        let [_, x, y, z] = group.octets();
        assert_eq!(ethernet.dst, [0x01, 0, 0x5e, x & 0x7f, y, z]);
        let packet = roce(&got);
        assert_eq!((packet.network.src(), packet.network.dst()), (Gid::from_ipv4(a), Gid::from_ipv4(group)));
        assert_eq!(packet.packet.payload, payload);
        // The sockets take turns.
        from.send(&frame(a, b, 0xc123, b"to one"), NOW);
        assert_eq!(roce(&expect_frame(&mut to)).packet.payload, b"to one");
    }
    to.leave(group.into());
    from.send(&frame(a, group, 0xc123, b"nobody"), NOW);
    from.send(&frame(a, b, 0xc123, b"to one"), NOW);
    assert_eq!(roce(&expect_frame(&mut to)).packet.payload, b"to one");
    for link in [&mut to, &mut stranger, &mut from] {
        assert_eq!(link.receive(&mut [0; 2000], NOW), None);
    }
}

#[test]
fn a_wrong_icrc_stays_wrong() {
    let (a, b) = (address(2, 1), address(2, 2));
    let (mut from, mut to) = (bind(a), bind(b));
    for src_port in [UDP_PORT, 0xc123] {
        let mut bad = frame(a, b, src_port, &[1; 32]);
        let last = bad.len() - 1;
        bad[last - 10] ^= 1;
        from.send(&bad, NOW);
        let got = expect_frame(&mut to);
        let error = datagram::Repr::parse(&got[14..]).unwrap_err();
        assert!(matches!(error, roce::Error::Checksum { what: "ICRC", .. }), "{error}");
    }
}

#[test]
fn a_plain_socket_is_a_peer() {
    let (a, b) = (address(3, 1), address(3, 2));
    let mut link = bind(b);
    // Any source port is good.
    let peer = UdpSocket::bind((a, 0)).unwrap();
    let port = peer.local_addr().unwrap().port();
    let sent = frame(a, b, port, b"from a socket");
    peer.send_to(&sent[42..], (b, UDP_PORT)).unwrap();
    let got = expect_frame(&mut link);
    assert_eq!((roce(&got).packet.payload, roce(&got).src_port), (&b"from a socket"[..], port));
    // Datagrams that are no packets become frames, too; the port drops them.
    for len in [0, 1, 15] {
        peer.send_to(&vec![0; len], (b, UDP_PORT)).unwrap();
        assert_eq!(expect_frame(&mut link).len(), 42 + len);
    }
    // What the link sends is the packet from the BTH on.
    let peer = UdpSocket::bind((a, UDP_PORT)).unwrap();
    let sent = frame(b, a, UDP_PORT, b"to a socket");
    link.send(&sent, NOW);
    let mut got = [0; 100];
    let (len, from) = peer.recv_from(&mut got).unwrap();
    assert_eq!(from, SocketAddr::new(b.into(), UDP_PORT));
    assert_eq!(got[..len], sent[42..]);
}

#[test]
fn the_hosts_headers_are_those_that_the_link_assumes() {
    // A raw socket sees the headers; it needs a privilege, so without it this shows nothing.
    let (a, b) = (address(4, 1), address(4, 2));
    use rustix::net::{AddressFamily, Protocol, SocketType};
    let protocol = Protocol::from_raw(17.try_into().unwrap());
    let Ok(raw) = rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(protocol)) else { return };
    rustix::net::bind(&raw, &SocketAddr::new(b.into(), 0)).unwrap();
    let mut from = bind(a);
    let _to = bind(b);
    from.send(&frame(a, b, 0xc123, &[5; 100]), NOW);
    let mut got = [0; 300];
    // Before it was bound, the socket got what other tests sent.
    let len = loop {
        rustix::event::poll(&mut [PollFd::new(&raw, PollFlags::IN)], None).unwrap();
        let (len, _) = rustix::net::recv(&raw, &mut got[..], rustix::net::RecvFlags::empty()).unwrap();
        if got[16..20] == b.octets() {
            break len;
        }
    };
    let packet = datagram::Repr::parse(&got[..len]).unwrap();
    assert_eq!(packet.packet.payload, [5; 100]);
    let datagram::Network::V4(ip) = packet.network else { panic!() };
    assert!(ip.ident == 0 && ip.dont_fragment);
}

#[test]
fn the_link_answers_the_ports_arp_requests() {
    use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress};
    let (a, b) = (address(5, 1), address(5, 2));
    let mut link = bind(a);
    let request = |operation, source, target| {
        let repr = ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr: EthernetAddress(MAC),
            source_protocol_addr: source,
            target_hardware_addr: EthernetAddress([0; 6]),
            target_protocol_addr: target,
        };
        let mut frame = vec![0; 60];
        let header = ethernet::Repr { dst: [0xff; 6], src: MAC, vlan: None, ether_type: ethernet::Repr::ARP };
        repr.emit(&mut ArpPacket::new_unchecked(header.emit(&mut frame).unwrap()));
        frame
    };
    link.send(&request(ArpOperation::Request, a, b), NOW);
    let answer = expect_frame(&mut link);
    assert_eq!((&answer[..6], link.deadline()), (&MAC[..], None));
    let arp = ArpRepr::parse(&ArpPacket::new_checked(&answer[14..]).unwrap()).unwrap();
    let ArpRepr::EthernetIpv4 { operation, source_hardware_addr, source_protocol_addr, .. } = arp else {
        panic!()
    };
    assert_eq!((operation, source_protocol_addr), (ArpOperation::Reply, b));
    assert_eq!(source_hardware_addr.as_bytes(), &answer[6..12]);
    // What arrives from the neighbour comes from that MAC.
    let mut peer = bind(b);
    peer.send(&frame(b, a, UDP_PORT, b""), NOW);
    assert_eq!(expect_frame(&mut link)[6..12], answer[6..12]);
    // Announcements and answers have no hearer, and an address of another port is no neighbour.
    for other in [
        request(ArpOperation::Request, a, a),
        request(ArpOperation::Reply, a, b),
        request(ArpOperation::Request, b, a),
    ] {
        link.send(&other, NOW);
    }
    assert_eq!((link.counters().dropped(Dropped::Unsupported), link.deadline()), (3, None));
    for _ in 0..1000 {
        link.send(&request(ArpOperation::Request, a, b), NOW);
    }
    assert_eq!(link.counters().dropped(Dropped::QueueFull), 1000 - 64);
}

#[test]
fn ipv6_works_where_the_machine_has_it() {
    let localhost: IpAddr = "::1".parse().unwrap();
    // Another run of this test may have the port, as `::1` is the only address of its kind.
    let Ok(mut link) = Udp::bind(localhost, MAC) else { return };
    link.send(&frame(localhost, localhost, 0xc001, b"to itself"), NOW);
    let got = expect_frame(&mut link);
    let packet = roce(&got);
    assert_eq!((packet.packet.payload, packet.src_port), (&b"to itself"[..], UDP_PORT));
    assert_eq!(packet.network.dst().to_ip(), localhost);
    // The port looks for a neighbour.
    use smoltcp::phy::ChecksumCapabilities;
    use smoltcp::wire::{Icmpv6Packet, Icmpv6Repr, Ipv6Address, NdiscRepr};
    let (us, target): (Ipv6Address, Ipv6Address) = ("::1".parse().unwrap(), "fd00::2".parse().unwrap());
    let group: Ipv6Address = "ff02::1:ff00:2".parse().unwrap();
    let solicit = Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr: target, lladdr: None });
    let mut frame = vec![0; 14 + 40 + solicit.buffer_len()];
    let header = ethernet::Repr { dst: [0x33; 6], src: MAC, vlan: None, ether_type: ethernet::Repr::IPV6 };
    let network = roce::wire::ipv6::Repr {
        traffic_class: 0,
        flow_label: 0,
        next_header: 58,
        hop_limit: 255,
        src: Gid::from_ipv6(us),
        dst: Gid::from_ipv6(group),
        payload_len: solicit.buffer_len() as u16,
    };
    let rest = header.emit(&mut frame).and_then(|rest| network.emit(rest)).unwrap();
    let checksums = ChecksumCapabilities::default();
    solicit.emit(&us, &group, &mut Icmpv6Packet::new_unchecked(rest), &checksums);
    link.send(&frame, NOW);
    let answer = expect_frame(&mut link);
    let packet = Icmpv6Packet::new_checked(&answer[54..]).unwrap();
    let advert = Icmpv6Repr::parse(&target, &us, &packet, &checksums).unwrap();
    let Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { target_addr, lladdr, .. }) = advert else { panic!() };
    assert_eq!((target_addr, lladdr.unwrap().as_bytes()), (target, &answer[6..12]));
}

#[test]
fn what_is_no_rocev2_of_this_port_is_dropped_and_counted() {
    let (a, b) = (address(6, 1), address(6, 2));
    let mut link = bind(a);
    let good = frame(a, b, UDP_PORT, &[1; 50]);
    let changed = |at: usize, to: u8| {
        let mut bad = good.clone();
        bad[at] = to;
        bad
    };
    for bad in [
        changed(12, 0x11),          // ethertype
        changed(23, 6),             // protocol, and so the checksum
        changed(36, 0),             // destination port
        good[..40].to_vec(),        // cut
        frame(b, a, UDP_PORT, &[]), // another's address
    ] {
        link.send(&bad, NOW);
    }
    assert_eq!(link.counters().dropped(Dropped::Unsupported), 5);
    link.send(&good[..10], NOW);
    assert_eq!((link.counters().dropped(Dropped::Runt), link.counters().sent), (1, 0));
    // A datagram that the owner's buffer has no room for.
    let mut to = bind(b);
    link.send(&good, NOW);
    rustix::event::poll(&mut [to.poll_fd().unwrap()], None).unwrap();
    assert_eq!(to.receive(&mut [0; 60], NOW), None);
    link.send(&good, NOW);
    rustix::event::poll(&mut [to.poll_fd().unwrap()], None).unwrap();
    assert_eq!(to.receive(&mut [0; 10], NOW), None);
    assert_eq!(to.counters().dropped(Dropped::Oversized), 2);
}

#[test]
fn an_address_that_cannot_be_opened_gets_a_line_that_says_what_to_do() {
    let a = address(7, 1);
    let link = bind(a);
    let error = LinkSpec::Udp(a.into()).open(MAC, &[]).map(drop).unwrap_err();
    assert!(
        matches!(error, OpenError::PortInUse(_)) && error.to_string().contains("choose another"),
        "{error}"
    );
    drop(link);
    assert!(LinkSpec::Udp(a.into()).open(MAC, &[]).is_ok_and(|link| link.up()));
    let error = Udp::bind([192, 0, 2, 1].into(), MAC).unwrap_err();
    assert!(matches!(error, OpenError::NotOurs(_)), "{error}");
}

#[test]
fn arbitrary_frames_and_datagrams_do_no_harm() {
    let (a, b) = (address(8, 1), address(8, 2));
    let mut link = bind(a);
    let peer = UdpSocket::bind((b, 0)).unwrap();
    let mut random = Random::new(1);
    let good = frame(a, b, UDP_PORT, &[1; 50]);
    let mut into = [0; 2000];
    for _ in 0..3000 {
        let mut bytes = good.clone();
        for _ in 0..random.small(8) {
            let at = random.small(bytes.len() as u32) as usize;
            bytes[at] = random.word() as u8;
        }
        bytes.truncate(random.small(bytes.len() as u32 + 1) as usize);
        link.send(&bytes, NOW);
        peer.send_to(&bytes, (a, UDP_PORT)).unwrap();
        while link.receive(&mut into, NOW).is_some() {}
    }
}
