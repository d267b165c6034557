//! Echo requests, and floods of requests and questions.

use std::net::Ipv4Addr;

use nic_model::port::{Counters, Dropped, Input, Port, Sender, Unsent};
use platform::Instant;
use roce::Gid;
use roce::wire::datagram::Network;
use roce::wire::ipv4;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{ArpOperation, Icmpv4Packet, Icmpv4Repr, Icmpv6Repr};

use crate::support::*;

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
    // Wrong checksums, other messages, and requests to broadcast addresses.
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
    // Ten thousand of each kind in one second.
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
    // Another neighbour is still served.
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
    assert!((16..=2 * 64 * 16).contains(&a.counters().answers), "{}", a.counters().answers);
    // If the owner does not send the replies, they use bounded memory, and leave room for other
    // frames.
    let mut a = port(1);
    for n in 0..10_000 {
        a.receive(&echo, ms(n));
    }
    a.receive(&request, ms(10_000));
    let frames = own_frames(&mut a);
    assert_eq!((frames.len(), &frames[32][12..14]), (33, &[0x08, 0x06][..]));
}

/// One host floods, with each kind of request: from its address, or from all. Then each of the
/// other hosts asks once for each.
#[test]
fn no_flood_of_one_host_leaves_another_one_without_an_answer() {
    let requests = |mac: [u8; 6], n: u8, own: &Port| {
        let (from, from6) = (format!("10.0.0.{n}"), format!("fd00::{n:x}"));
        let group = [0x33, 0x33, 0xff, 0, 0, 1];
        let mut all = [
            arp(ArpOperation::Request, mac, &from, "10.0.0.1", BROADCAST),
            ping_from(own, &from, "10.0.0.1", b""),
            icmpv6(&from6, "ff02::1:ff00:1", group, 255, &solicit("fd00::1", Some(mac))),
        ];
        all.iter_mut().for_each(|frame| frame[6..12].copy_from_slice(&mac));
        all
    };
    let mac = |n| [2, 0, 0, 0, 0, n];
    for forges in [false, true] {
        let mut a = port(1);
        let mut now = Instant::ZERO;
        for n in 0..3000_u32 {
            now = Instant::from_nanos(u64::from(n) * 10_000);
            let from = if forges { (n % 250) as u8 + 2 } else { 200 };
            requests(mac(200), from, &a).iter().for_each(|frame| _ = a.receive(frame, now));
            own_frames(&mut a);
        }
        assert!(a.counters().dropped(Dropped::Flood) > 0);
        for n in (2..=250).filter(|n| *n != 200) {
            for frame in requests(mac(n), n, &a) {
                let before = a.counters().dropped(Dropped::Flood);
                a.receive(&frame, now);
                assert_eq!(a.counters().dropped(Dropped::Flood), before, "{n}, forges: {forges}");
                assert_eq!(own_frames(&mut a).len(), 1, "{n}, forges: {forges}");
            }
        }
    }
}

#[test]
fn questions_to_many_addresses_are_asked_at_a_bounded_rate() {
    let mut a = port(1);
    let own = a.gids()[1];
    for n in 2..250 {
        let to = Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, n));
        let network = Network::new(own, to, 0, 64).unwrap();
        // One sender has a smaller share.
        let sender = Sender { number: n.into(), datagrams: false };
        let unsent = a.transmit(&network, sender, 1, &mut [0; 2000], ms(0), |_| Ok(0));
        assert_eq!(unsent, Err(Unsent::Resolving));
    }
    assert_eq!(own_frames(&mut a).len(), 64);
    assert_eq!(a.counters().questions_delayed, 248 - 64);
    // Questions beyond the allowed rate are sent when they are due again.
    let deadline = a.deadline().unwrap();
    a.poll(deadline);
    assert!(!own_frames(&mut a).is_empty());
}
