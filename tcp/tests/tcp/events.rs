//! Each event that the owner of a stream can learn of, and what it says.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use ferrovia_tcp::testing::{Link, MTU, Transfer, World, address, address_v6, config};
use ferrovia_tcp::{Config, Dropped, End, Error, Event, Happened, Polled, Ready, Unreachable};
use platform::Secret;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    Icmpv4DstUnreachable, Icmpv4Packet, Icmpv4Repr, Icmpv6DstUnreachable, Icmpv6Packet, Icmpv6Repr,
    IpAddress, IpProtocol, IpRepr, Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr, TcpControl,
};

use crate::raw::{Peer, segment};

#[test]
fn a_connection_bytes_room_and_the_end_are_told_once() {
    let (mut peer, listener) = Peer::listening();
    peer.send(&segment(TcpControl::Syn, 1000, None, &[])).unwrap();
    let next = peer.one().seq.wrapping_add(1);
    peer.send(&segment(TcpControl::None, 1001, Some(next), b"before")).unwrap();
    assert_eq!(peer.streams.next_event(), Some(Event::Waiting(listener)));
    assert_eq!(peer.streams.next_event(), None);
    let id = peer.streams.accept(listener).unwrap().unwrap();
    assert_eq!(peer.streams.accept(listener), Ok(None));
    let begun = Happened::CONNECTED | Happened::READABLE | Happened::WRITABLE;
    assert_eq!(peer.streams.next_event(), Some(Event::Stream(id, begun)));
    assert_eq!((peer.streams.next_event(), peer.read(id)), (None, b"before".to_vec()));
    // Several that come before the owner looks are one event.
    for n in 0..3 {
        peer.send(&segment(TcpControl::Psh, 1007 + n, Some(next), b"x")).unwrap();
    }
    assert_eq!(peer.streams.next_event(), Some(Event::Stream(id, Happened::READABLE)));
    assert_eq!((peer.streams.next_event(), peer.read(id)), (None, b"xxx".to_vec()));
    // A full ring, and room again.
    peer.sent();
    while peer.streams.send(id, |bytes| (bytes.len(), bytes.len())).unwrap() > 0 {}
    assert_eq!(peer.happened(id), Happened::empty());
    let mut ack = next;
    for _ in 0..40 {
        ack = peer.sent().iter().map(|seen| seen.seq.wrapping_add(seen.len as u32)).max().unwrap_or(ack);
        peer.send(&segment(TcpControl::None, 1010, Some(ack), &[])).unwrap();
    }
    assert_eq!(peer.happened(id), Happened::WRITABLE);
    peer.send(&segment(TcpControl::Fin, 1010, Some(ack), &[])).unwrap();
    assert_eq!(peer.happened(id), Happened::PEER_CLOSED);
    peer.send(&segment(TcpControl::Rst, 1011, Some(ack), &[])).unwrap();
    assert_eq!((peer.happened(id), peer.streams.info(id).unwrap().end), (Happened::ENDED, Some(End::Reset)));
}

#[test]
fn a_port_without_a_listener_refuses() {
    let mut world = World::new(&config(1), Link::CLEAN, 1);
    let id = world.connect(81);
    assert_eq!(world.ends[0].send(id, |_| (0, ())), Err(Error::NotConnected));
    assert_eq!(world.ends[0].receive(id, |_| (0, ())), Err(Error::NotConnected));
    assert_eq!(world.ends[0].close(id, world.now), Err(Error::NotConnected));
    world.pass(Duration::from_millis(5));
    assert_eq!(world.happened(0, id), Happened::ENDED);
    assert_eq!(world.ends[0].info(id).unwrap().end, Some(End::Refused));
    assert_eq!(world.ends[0].names(), 0);
}

#[test]
fn a_peer_that_never_answers_ends_the_attempt_in_time() {
    let config = Config { connect_timeout: Duration::from_secs(3), ..config(1) };
    let mut world = World::new(&config, Link { loss: 10_000, ..Link::CLEAN }, 1);
    let (begun, id) = (world.now, world.connect(80));
    assert!(world.run(Duration::from_secs(10), |world| world.ends[0].info(id).unwrap().end.is_some()));
    assert_eq!(world.ends[0].info(id).unwrap().end, Some(End::ConnectTimeout));
    assert_eq!(world.now.since(begun), Duration::from_secs(3));
    assert!(world.ends[0].counters().packets_out > 4, "the SYN was repeated");
}

#[test]
fn a_way_that_is_not_there_is_unreachable() {
    for resolving in [false, true] {
        let mut world = World::new(&config(1), Link::CLEAN, 1);
        world.outboxes[0].ready = if resolving { Ready::Resolving } else { Ready::Unreachable };
        let id = world.connect(80);
        world.pass(Duration::from_millis(100));
        assert_eq!(world.ends[0].info(id).unwrap().end.is_some(), !resolving, "{:?}", world.ends[0].info(id));
        world.outboxes[0].ready = Ready::Unreachable;
        world.ends[0].settled(address(1));
        world.poll();
        assert_eq!(world.ends[0].info(id).unwrap().end, Some(End::Unreachable(Unreachable::Link)));
    }
}

/// The report that a packet was not delivered, which quotes its first `len` bytes.
fn report_v4(reason: Icmpv4DstUnreachable, quoted: &[u8], len: usize) -> Vec<u8> {
    let ip = Ipv4Packet::new_checked(quoted).unwrap();
    let header = Ipv4Repr::parse(&ip, &ChecksumCapabilities::default()).unwrap();
    let icmp = Icmpv4Repr::DstUnreachable { reason, header, data: &quoted[20..20 + len] };
    let checksums = ChecksumCapabilities::default();
    let from: IpAddress = IpAddr::from([10, 0, 0, 99]).into();
    let outer = IpRepr::new(from, header.src_addr.into(), IpProtocol::Icmp, icmp.buffer_len(), 64);
    let mut packet = vec![0; outer.buffer_len()];
    outer.emit(&mut packet[..], &checksums);
    icmp.emit(&mut Icmpv4Packet::new_unchecked(&mut packet[20..]), &checksums);
    packet
}

fn report_v6(reason: Icmpv6DstUnreachable, quoted: &[u8], len: usize) -> Vec<u8> {
    let header = Ipv6Repr::parse(&Ipv6Packet::new_checked(quoted).unwrap()).unwrap();
    let icmp = Icmpv6Repr::DstUnreachable { reason, header, data: &quoted[40..40 + len] };
    let (from, to) = (core::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 99), header.src_addr);
    let outer = IpRepr::new(from.into(), to.into(), IpProtocol::Icmpv6, icmp.buffer_len(), 64);
    let mut packet = vec![0; outer.buffer_len()];
    let checksums = ChecksumCapabilities::default();
    outer.emit(&mut packet[..], &checksums);
    icmp.emit(&from, &to, &mut Icmpv6Packet::new_unchecked(&mut packet[40..]), &checksums);
    packet
}

#[test]
fn reports_about_the_syn_end_a_connection_that_is_being_opened_and_no_other() {
    use Icmpv4DstUnreachable as V4;
    use Icmpv6DstUnreachable as V6;
    let four = [
        (V4::NetUnreachable, Some(Unreachable::Network)),
        (V4::HostUnreachable, Some(Unreachable::Host)),
        (V4::PortUnreachable, Some(Unreachable::Port)),
        (V4::CommProhibited, Some(Unreachable::Prohibited)),
        (V4::FragRequired, None),
    ]
    .map(|(reason, why)| (Some(reason), None, why));
    let six = [
        (V6::NoRoute, Some(Unreachable::Network)),
        (V6::AddrUnreachable, Some(Unreachable::Host)),
        (V6::PortUnreachable, Some(Unreachable::Port)),
        (V6::AdminProhibit, Some(Unreachable::Prohibited)),
    ]
    .map(|(reason, why)| (None, Some(reason), why));
    for (v4, v6, why) in four.into_iter().chain(six) {
        let mut peer = Peer::new(config(1));
        let (from, to) = if v4.is_some() { (address(0), address(1)) } else { (address_v6(0), address_v6(1)) };
        let id = peer.streams.connect(from, None, SocketAddr::new(to, 80), peer.now).unwrap();
        peer.poll();
        let syn = peer.out.packets.pop().unwrap();
        let report = |quoted: &[u8], len: usize| match (v4, v6) {
            (Some(reason), _) => report_v4(reason, quoted, len),
            (_, Some(reason)) => report_v6(reason, quoted, len),
            _ => unreachable!(),
        };
        let mut other = syn.clone();
        let at = if v4.is_some() { 20 } else { 40 };
        other[at + 7] ^= 1;
        let mut input = |packet: &[u8]| peer.streams.input(packet, peer.now, &mut peer.out);
        assert!(input(&report(&other, 20)).is_err(), "another sequence number");
        let mut broken = report(&syn, 8);
        broken[at + 4] ^= 1;
        assert!(input(&broken).is_err(), "a wrong checksum");
        // Eight bytes of the segment are enough.
        assert_eq!(input(&report(&syn, 8)).is_ok(), why.is_some());
        assert_eq!(peer.streams.info(id).unwrap().end, why.map(End::Unreachable));
    }
    // One that is open goes on.
    let (mut peer, listener) = Peer::listening();
    let (id, ..) = peer.open(listener);
    peer.write(id, b"data");
    peer.poll();
    let data = peer.out.packets.pop().unwrap();
    let report = report_v4(V4::PortUnreachable, &data, 20);
    assert!(peer.streams.input(&report, peer.now, &mut peer.out).is_err());
    assert_eq!(peer.streams.info(id).unwrap().end, None);
}

#[test]
fn a_peer_that_vanishes_ends_the_connection_when_something_waits_for_it() {
    let config = Config { user_timeout: Duration::from_secs(5), ..config(1) };
    let mut world = World::new(&config, Link::CLEAN, 1);
    let listener = world.listen(80);
    let (a, b) = world.pair(80, listener);
    world.link.loss = 10_000;
    // Nothing waits: there is no keep-alive.
    world.pass(Duration::from_secs(10_000));
    assert_eq!(world.ends[0].info(a).unwrap().end, None);
    let begun = world.now;
    Transfer::new((0, a), (1, b), 100, 1).go_on(&mut world, 100);
    assert!(world.run(Duration::from_secs(20), |world| world.ends[0].info(a).unwrap().end.is_some()));
    assert_eq!(world.ends[0].info(a).unwrap().end, Some(End::TimedOut));
    assert_eq!(world.now.since(begun), Duration::from_secs(5));
    assert!(world.happened(0, a).contains(Happened::ENDED));
}

#[test]
fn a_full_link_is_no_work_and_changes_no_reason() {
    let mut peer = Peer::new(Config { user_timeout: Duration::from_secs(5), ..config(1) });
    let listener = peer.streams.listen(None, 80, 8).unwrap();
    let (id, seq, ack) = peer.open(listener);
    peer.write(id, &[7; 100]);
    peer.out.room = 0;
    let now = peer.now;
    assert_eq!(peer.streams.poll(now, 16, &mut peer.out), Polled::Full);
    assert_eq!(peer.streams.deadline(), None);
    // The time of the stream is over while the link is full; its reset waits for room.
    peer.now = now + Duration::from_secs(6);
    assert_eq!(peer.streams.poll(peer.now, 16, &mut peer.out), Polled::Full);
    assert_eq!(peer.send(&segment(TcpControl::Psh, seq, Some(ack), b"late")), Err(Dropped::NoConnection));
    peer.out.room = 1;
    assert_eq!(peer.one().control, TcpControl::Rst);
    assert_eq!(peer.streams.info(id).unwrap().end, Some(End::TimedOut));
}

#[test]
fn a_peer_that_does_not_close_its_direction_is_given_up() {
    let config = Config { linger: Duration::from_secs(4), ..config(1) };
    for orphan in [false, true] {
        let mut world = World::new(&config, Link::CLEAN, 1);
        let listener = world.listen(80);
        let (a, b) = world.pair(80, listener);
        let begun = world.now;
        match orphan {
            true => world.ends[0].release(a, begun).unwrap(),
            false => world.ends[0].close(a, begun).unwrap(),
        }
        if !orphan {
            // What it sends gives it time.
            world.pass(Duration::from_secs(3));
            Transfer::new((1, b), (0, a), 100, 1).go_on(&mut world, 100);
            world.pass(Duration::from_secs(3));
            assert_eq!(world.ends[0].info(a).unwrap().end, None);
        }
        world.pass(Duration::from_secs(5));
        if !orphan {
            assert_eq!(world.ends[0].info(a).unwrap().end, Some(End::TimedOut));
        }
        assert_eq!((world.ends[0].names(), world.ends[1].info(b).unwrap().end), (0, Some(End::Reset)));
    }
}

#[test]
fn an_owner_that_takes_no_events_loses_none_and_keeps_few() {
    let mut world = World::new(&config(1), Link::CLEAN, 1);
    let listener = world.listen(80);
    let (a, b) = world.pair(80, listener);
    let mut there = Transfer::new((0, a), (1, b), 1 << 20, 1);
    assert!(world.run(Duration::from_secs(10), |world| there.go_on(world, 1 << 20)));
    world.ends[0].abort(a).unwrap();
    world.pass(Duration::from_millis(10));
    let events = world.events(1);
    assert_eq!(events[0], Event::Waiting(listener));
    let all = Happened::CONNECTED | Happened::READABLE | Happened::WRITABLE | Happened::ENDED;
    assert_eq!(events[1..], [Event::Stream(b, all)]);
}

#[test]
fn calls_name_what_is_wrong() {
    let secret = Secret::new([1, 2]);
    let wrong = [
        ("mtu", Config::new(100, secret)),
        ("streams", Config { streams: 0, ..Config::new(MTU, secret) }),
        ("streams", Config { streams: 20_000, ..Config::new(MTU, secret) }),
        ("send_ring", Config { send_ring: 100, ..Config::new(MTU, secret) }),
        ("receive_ring", Config { receive_ring: 1 << 21, ..Config::new(MTU, secret) }),
        ("linger", Config { linger: Duration::ZERO, ..Config::new(MTU, secret) }),
    ];
    for (field, config) in wrong {
        assert_eq!(ferrovia_tcp::Streams::new(config).err(), Some(Error::Config(field)));
    }
    let mut peer = Peer::new(config(1));
    let to = |ip, port| SocketAddr::new(ip, port);
    let mut connect = |from, port, to| peer.streams.connect(from, port, to, peer.now).map(|_| ());
    let (own, other) = (address(0), address(1));
    assert_eq!(connect(own, Some(7), to(other, 80)), Ok(()));
    assert_eq!(connect(own, Some(7), to(other, 80)), Err(Error::InUse));
    assert_eq!(connect(own, Some(7), to(other, 81)), Ok(()));
    for (from, port, to) in [
        (own, Some(0), to(other, 80)),
        (own, None, to(other, 0)),
        (own, Some(80), to(own, 80)),
        (own, None, to(address_v6(1), 80)),
        (own, None, to([224, 0, 0, 1].into(), 80)),
        (IpAddr::from([0; 4]), None, to(other, 80)),
    ] {
        assert_eq!(connect(from, port, to), Err(Error::BadAddress), "{from} {port:?} {to}");
    }
}
