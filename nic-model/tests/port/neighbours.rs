//! Neighbours: questions, answers and announcements by ARP and neighbour discovery.

use std::time::Duration;

use nic_model::port::{Dropped, Input, Unsent};
use smoltcp::wire::{ArpOperation, NdiscNeighborFlags};

use crate::support::*;

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
    // A successor with another MAC announces itself; the port uses the new MAC at once.
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
    // The announcement was not an answer, so the port asks that MAC alone whether it is true.
    let frames = own_frames(&mut a);
    assert_eq!((frames.len(), &frames[0][..6]), (1, &PEER[..]));
    // A port that probes for a free address gets an answer, and does not become a neighbour.
    let probe = arp(ArpOperation::Request, PEER, "0.0.0.0", "10.0.0.1", BROADCAST);
    assert_eq!(a.receive(&probe, ms(2)), Input::Consumed);
    assert_eq!(own_frames(&mut a).len(), 1);
}

#[test]
fn a_port_of_another_network_takes_no_neighbours_place() {
    let mut a = port(1);
    let request = arp(ArpOperation::Request, PEER, "10.0.0.77", "10.0.0.1", BROADCAST);
    assert_eq!(a.receive(&request, ms(0)), Input::Consumed);
    for n in 1..=1000_u32 {
        let from = format!("192.168.{}.{}", n / 250, 1 + n % 250);
        let request = arp(ArpOperation::Request, PEER, &from, "10.0.0.1", BROADCAST);
        a.receive(&request, ms(10 * u64::from(n)));
        own_frames(&mut a);
    }
    let own = a.gids()[1];
    let frame = send(&mut a, own, gid("10.0.0.77"), b"", ms(10_001)).expect("the neighbour is remembered");
    assert_eq!(frame[..6], PEER);
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
    own_frames(&mut a);
    // The port answers one without a MAC to the frame's, but does not remember that.
    let frame = icmpv6("fd00::78", "fd00::1", own, 255, &solicit("fd00::1", None));
    assert_eq!(a.receive(&frame, ms(0)), Input::Consumed);
    assert_eq!(own_frames(&mut a).len(), 1);
    assert_eq!(send(&mut a, src, gid("fd00::78"), b"", ms(0)), Err(Unsent::Resolving));
}

#[test]
fn groups_that_the_port_hears_are_for_neighbour_discovery_alone() {
    let mut a = port(1);
    for (dst, mac, why) in [
        ("ff02::1:ff00:1", [0x33, 0x33, 0xff, 0, 0, 1], Dropped::NotRoce),
        ("ff02::1", [0x33, 0x33, 0, 0, 0, 1], Dropped::NotRoce),
        ("ff02::1:ff00:9", [0x33, 0x33, 0xff, 0, 0, 9], Dropped::WrongAddress),
        ("fd00::9", [0x33, 0x33, 0xff, 0, 0, 1], Dropped::WrongAddress),
    ] {
        let mut frame = roce_frame(&a, gid("fd00::77"), gid(dst));
        frame[..6].copy_from_slice(&mac);
        assert_eq!(a.receive(&frame, ms(0)), Input::Dropped(why), "{dst}");
    }
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
