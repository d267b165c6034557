//! Packets that a port sends: their form, their longest length, and the MAC that they go to.

use nic_model::port::{Arrival, Config, Input, Port, Sender, Unsent};
use roce::wire::datagram::Network;
use roce::wire::packet;
use roce::{Gid, PathMtu};

use crate::support::*;

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
        let Arrival { mac, network, local, src_port, packet } = arrival;
        assert_eq!(mac, a.mac());
        assert_eq!((network.src(), network.dst(), usize::from(local)), (src, dst, index));
        assert_eq!((src_port, packet::Repr::parse(packet).unwrap().payload), (0xc001, &b"hello"[..]));
        assert!(!arrival.is_congested());
        // The other port knows the MAC already, since it was asked for its own.
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
        let result = a.transmit(&network, Sender::default(), 1, &mut into, ms(0), |_| panic!("built"));
        assert_eq!(result, Err(Unsent::Resolving));
        settle(&mut a, &mut b, ms(0));
        let mut room = 0;
        let len = a.transmit(&network, Sender::default(), 0xc003, &mut into, ms(0), |packet| {
            room = packet.len();
            packet.fill(0);
            Ok(packet.len())
        });
        assert_eq!((len, into[1514]), (Ok(1514), 0xee));
        assert_eq!(room, 1500 - network.headers() - 4);
        let Input::Packet(arrival) = b.receive(&into[..1514], ms(0)) else { panic!() };
        assert_eq!((arrival.packet.len(), arrival.network.traffic_class()), (room, 2));
        // A builder that fails, one that returns too long a length, and a buffer without room.
        let error = roce::Error::Field { field: "test", value: 1 };
        let result = a.transmit(&network, Sender::default(), 1, &mut into, ms(0), |_| Err(error));
        assert_eq!(result, Err(Unsent::Invalid(error)));
        for claimed in [9000, usize::MAX] {
            let result = a.transmit(&network, Sender::default(), 1, &mut into, ms(0), |_| Ok(claimed));
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
