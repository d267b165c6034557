//! Frames from the wire: malformed ones, frames for other nodes, frames that Linux sent, random
//! ones.

use std::net::Ipv6Addr;
use std::time::Duration;

use nic_model::port::{Config, Dropped, Input, Port};
use platform::Instant;
use platform::random::Random;
use roce::wire::{ipv4, ipv6, packet};
use smoltcp::wire::{ArpOperation, Icmpv6Packet, Icmpv6Repr, NdiscNeighborFlags};

use crate::support::*;

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
        check(Dropped::NotRoce, &|f| f[12] = 0x88);
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
            ..Config::new(0, MTU, &[prefix("10.0.0.2/24")])
        };
        let mut port = Port::new(&config).unwrap();
        port.set_up(true, ms(0));
        own_frames(&mut port);
        let (mut packets, mut answers, mut ignored) = (0, Vec::new(), 0);
        while let Some(packet) = reader.next_packet() {
            let frame = packet.unwrap().data.into_owned();
            if frame[6..12] == linux {
                if frame[12..14] == [0x08, 0x06] {
                    // The port's answer equals the answer of Linux.
                    assert_eq!(answers.pop(), Some(frame));
                }
                continue;
            }
            match port.receive(&frame, ms(1)) {
                Input::Packet(arrival) => {
                    packets += 1;
                    packet::Repr::parse(arrival.packet).unwrap();
                }
                Input::Segment(_) => panic!("the port takes no segments"),
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
        // Few changes, mostly after the Ethernet header; sometimes with a corrected checksum.
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
            Input::Segment(_) => panic!("the port takes no segments"),
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
