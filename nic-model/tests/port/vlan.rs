//! Tags of IEEE 802.1Q: frames that carry only a priority, and ports of a VLAN.

use nic_model::port::{Arrival, Config, Dropped, Input, Port, Unsent};
use roce::wire::ethernet;
use smoltcp::wire::{ArpOperation, Icmpv6Repr, NdiscNeighborFlags};

use crate::support::*;

/// The frame with a tag in front of its type.
fn tagged(frame: &[u8], control: u16) -> Vec<u8> {
    [&frame[..12], &[0x81, 0], &control.to_be_bytes(), &frame[12..]].concat()
}

/// The frame without its tag, which must be there.
#[track_caller]
fn untagged(frame: &[u8], control: u16) -> Vec<u8> {
    assert_eq!(frame[12..16], [0x81, 0, (control >> 8) as u8, control as u8]);
    [&frame[..12], &frame[16..]].concat()
}

/// Port `n` of a network, as [`port`] makes it, of a VLAN.
fn port_of(n: u8, vlan: Option<u16>) -> Port {
    let addresses = [prefix(&format!("10.0.0.{n}/24")), prefix(&format!("fd00::{n:x}/64"))];
    let config = Config::new(0x0266_65ff_fe72_0000 + u64::from(n), MTU, &addresses);
    let mut port = Port::new(&Config { vlan, ..config }).unwrap();
    port.set_up(true, ms(0));
    port
}

/// A frame of each kind that port 1 takes.
fn frames(port: &Port) -> Vec<Vec<u8>> {
    let group = [0x33, 0x33, 0xff, 0, 0, 1];
    let echo = Icmpv6Repr::EchoRequest { ident: 3, seq_no: 4, data: &[5; 40] };
    vec![
        arp(ArpOperation::Request, PEER, "10.0.0.77", "10.0.0.1", BROADCAST),
        arp(ArpOperation::Reply, PEER, "10.0.0.77", "10.0.0.1", port.mac()),
        icmpv6("fd00::77", "ff02::1:ff00:1", group, 255, &solicit("fd00::1", Some(PEER))),
        icmpv6(
            "fd00::77",
            "fd00::1",
            port.mac(),
            255,
            &advert("fd00::77", NdiscNeighborFlags::SOLICITED, None),
        ),
        ping(port, "10.0.0.1", &[5; 1400]),
        icmpv6("fd00::77", "fd00::1", port.mac(), 64, &echo),
        roce_frame(port, gid("10.0.0.77"), gid("10.0.0.1")),
        roce_frame(port, gid("fd00::77"), gid("fd00::1")),
    ]
}

#[test]
fn a_frame_of_vlan_0_is_one_without_a_tag() {
    let [mut plain, mut a] = [(); 2].map(|()| port(1));
    for frame in frames(&plain) {
        for control in [0x0000_u16, 0x6000, 0xf000] {
            let marked = tagged(&frame, control);
            let (expected, found) = (plain.receive(&frame, ms(0)), a.receive(&marked, ms(0)));
            assert!(!matches!(expected, Input::Dropped(_)), "{expected:?}");
            assert_eq!(found, expected);
            assert_eq!(own_frames(&mut a), own_frames(&mut plain), "answers have no tag");
        }
    }
    assert_eq!(a.counters(), plain.counters());
}

#[test]
fn a_port_takes_the_frames_of_its_vlan_and_no_others() {
    let dropped = |port: &mut Port, frame: &[u8]| match port.receive(frame, ms(0)) {
        Input::Dropped(why) => Some(why),
        _ => None,
    };
    let (mut none, mut seven) = (port_of(1, None), port_of(1, Some(7)));
    for frame in frames(&none) {
        for control in [7, 0x6007] {
            assert_eq!(dropped(&mut none, &tagged(&frame, control)), Some(Dropped::WrongVlan));
            assert_eq!(dropped(&mut seven, &tagged(&frame, control)), None);
        }
        for other in [frame.clone(), tagged(&frame, 0), tagged(&frame, 8), tagged(&frame, 0xfff)] {
            assert_eq!(dropped(&mut seven, &other), Some(Dropped::WrongVlan));
        }
        // Of several tags the first one counts, and what follows is no protocol of the port's.
        assert_eq!(dropped(&mut seven, &tagged(&tagged(&frame, 7), 7)), Some(Dropped::NotRoce));
        assert_eq!(dropped(&mut none, &tagged(&tagged(&frame, 0), 0)), Some(Dropped::NotRoce));
        assert_eq!(dropped(&mut seven, &tagged(&frame, 7)[..17]), Some(Dropped::Truncated));
    }
}

#[test]
fn all_that_a_port_of_a_vlan_sends_has_its_tag() {
    let (mut plain, mut a) = (port_of(1, None), port_of(1, Some(7)));
    let compare = |plain: &mut Port, a: &mut Port| {
        let (expected, found) = (own_frames(plain), own_frames(a));
        assert_eq!(found.iter().map(|frame| untagged(frame, 7)).collect::<Vec<_>>(), expected);
        expected.len()
    };
    assert_eq!(compare(&mut plain, &mut a), 3, "announcements");
    // Answers to each kind of question, and questions; then packets.
    let mut answers = 0;
    for frame in frames(&plain) {
        plain.receive(&frame, ms(0));
        a.receive(&tagged(&frame, 7), ms(0));
        answers += compare(&mut plain, &mut a);
    }
    assert_eq!(answers, 4);
    for to in ["10.0.0.9", "fd00::9"] {
        let index = if to.contains(':') { 2 } else { 1 };
        for port in [&mut plain, &mut a] {
            let own = port.gids()[index];
            assert_eq!(send(port, own, gid(to), b"x", ms(0)), Err(Unsent::Resolving));
        }
        assert_eq!(compare(&mut plain, &mut a), 1, "a question");
    }
    for to in ["10.0.0.77", "fd00::77"] {
        let index = if to.contains(':') { 2 } else { 1 };
        let [expected, found] = [&mut plain, &mut a].map(|port| {
            let own = port.gids()[index];
            send(port, own, gid(to), b"payload", ms(0)).unwrap()
        });
        assert_eq!(untagged(&found, 7), expected, "a packet");
    }
}

#[test]
fn the_tag_comes_on_top_of_the_mtu() {
    let (mut a, mut b) = (port_of(1, Some(7)), port_of(2, Some(7)));
    assert_eq!((a.max_frame(), a.path_mtu()), (1518, port(1).path_mtu()));
    settle(&mut a, &mut b, ms(0));
    let (from, to) = (a.gids()[1], b.gids()[1]);
    let _ = send(&mut a, from, to, b"", ms(0));
    settle(&mut a, &mut b, ms(0));
    // The longest payload in IPv4, UDP, BTH and ICRC, in steps of 4 bytes.
    let longest = [3; 1500 - 20 - 8 - 12 - 4];
    let frame = send(&mut a, from, to, &longest, ms(0)).unwrap();
    assert_eq!(frame.len(), 1518);
    let taken = b.receive(&frame, ms(0));
    assert!(matches!(taken, Input::Packet(Arrival { local: 1, .. })), "{taken:?}");
    assert!(matches!(send(&mut a, from, to, &[3; 1460], ms(0)), Err(Unsent::Invalid(_))));
    // A longer packet is too long, with a tag or without.
    let too_long = [&frame[..], &[0]].concat();
    assert_eq!(b.receive(&too_long, ms(0)), Input::Dropped(Dropped::Oversized));
    let mut plain = port(1);
    let priority = tagged(&ping(&plain, "10.0.0.1", &[5; 1472]), 0xe000);
    assert_eq!(
        (priority.len(), plain.receive(&priority, ms(0))),
        (ethernet::Repr::LEN + 1504, Input::Consumed)
    );
}

#[test]
fn ports_of_two_vlans_do_not_find_each_other() {
    for (one, other) in [(Some(7), None), (Some(7), Some(8)), (None, Some(8))] {
        let (mut a, mut b) = (port_of(1, one), port_of(2, other));
        let (from, to) = (a.gids()[1], b.gids()[1]);
        let _ = send(&mut a, from, to, b"", ms(0));
        let (from_a, from_b) = (own_frames(&mut a), own_frames(&mut b));
        for (to, frames) in [(&mut b, from_a), (&mut a, from_b)] {
            for frame in frames {
                assert_eq!(to.receive(&frame, ms(0)), Input::Dropped(Dropped::WrongVlan));
            }
        }
        assert_eq!((a.counters().answers, b.counters().answers), (0, 0));
    }
}
