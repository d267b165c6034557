//! Helpers of the tests: ports, frames of a peer that is not a [`Port`], and the contents of
//! frames.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use nic_model::port::{Config, Input, Port, Unsent};
use platform::{Instant, Secret};
use roce::wire::datagram::{self, Network};
use roce::wire::opcode::Opcode;
use roce::wire::{bth, ethernet, ipv4, ipv6, packet};
use roce::{Gid, IpPrefix, Psn, Qpn};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr,
    NdiscNeighborFlags, NdiscRepr, RawHardwareAddress,
};

pub(crate) const MTU: u32 = 1500;
/// The MAC of a peer that is not a [`Port`].
pub(crate) const PEER: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x77];
pub(crate) const BROADCAST: [u8; 6] = [0xff; 6];

pub(crate) fn ms(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

pub(crate) fn prefix(text: &str) -> IpPrefix {
    text.parse().unwrap()
}

pub(crate) fn gid(text: &str) -> Gid {
    text.parse::<IpAddr>().unwrap().into()
}

pub(crate) fn v4(text: &str) -> Ipv4Addr {
    text.parse().unwrap()
}

pub(crate) fn v6(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

/// Port `n` of a network, up: 10.0.0.n and fd00::n.
pub(crate) fn port(n: u8) -> Port {
    let addresses = [prefix(&format!("10.0.0.{n}/24")), prefix(&format!("fd00::{n:x}/64"))];
    let config = Config::new(0x0266_65ff_fe72_0000 + u64::from(n), MTU, &addresses);
    // Under this key, none of the tests' hosts shares all its groups with one that floods.
    let mut port = Port::new(&Config { secret: Secret::new([7, 0]), ..config }).unwrap();
    port.set_up(true, ms(0));
    own_frames(&mut port);
    port
}

pub(crate) fn own_frames(port: &mut Port) -> Vec<Vec<u8>> {
    let mut into = [0; 2000];
    std::iter::from_fn(|| port.next_frame(&mut into).map(|len| into[..len].to_vec())).collect()
}

/// A small RoCEv2 datagram.
pub(crate) fn datagram(src: Gid, dst: Gid, payload: &[u8]) -> datagram::Repr<'_> {
    let bth = bth::Repr::new(Opcode::RcSendOnly, Qpn::new(0x11).unwrap(), Psn::new(7));
    let packet = packet::Repr { payload, ..packet::Repr::new(bth) };
    datagram::Repr { network: Network::new(src, dst, 0, 64).unwrap(), src_port: 0xc001, packet }
}

pub(crate) fn send(
    port: &mut Port,
    src: Gid,
    dst: Gid,
    payload: &[u8],
    now: Instant,
) -> Result<Vec<u8>, Unsent> {
    let mut into = [0; 2000];
    port.transmit_datagram(&datagram(src, dst, payload), &mut into, now).map(|len| into[..len].to_vec())
}

/// A frame with a RoCEv2 packet from [`PEER`] to `port`.
pub(crate) fn roce_frame(port: &Port, src: Gid, dst: Gid) -> Vec<u8> {
    let datagram = datagram(src, dst, b"payload");
    let mut frame = vec![0; 14 + datagram.len()];
    let ether_type = if dst.to_ipv4().is_some() { ethernet::Repr::IPV4 } else { ethernet::Repr::IPV6 };
    let rest =
        ethernet::Repr { dst: port.mac(), src: PEER, vlan: None, ether_type }.emit(&mut frame).unwrap();
    datagram.emit(rest).unwrap();
    frame
}

pub(crate) fn arp(operation: ArpOperation, mac: [u8; 6], from: &str, target: &str, dst: [u8; 6]) -> Vec<u8> {
    let repr = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(mac),
        source_protocol_addr: v4(from),
        target_hardware_addr: EthernetAddress([0; 6]),
        target_protocol_addr: v4(target),
    };
    let mut frame = vec![0; 60];
    let header = ethernet::Repr { dst, src: mac, vlan: None, ether_type: ethernet::Repr::ARP };
    repr.emit(&mut ArpPacket::new_unchecked(header.emit(&mut frame).unwrap()));
    frame
}

pub(crate) fn parse_arp(frame: &[u8]) -> (ArpOperation, [u8; 6], Ipv4Addr, Ipv4Addr) {
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
pub(crate) fn icmpv6(src: &str, dst: &str, mac: [u8; 6], hop_limit: u8, repr: &Icmpv6Repr<'_>) -> Vec<u8> {
    let (src, dst) = (v6(src), v6(dst));
    let len = repr.buffer_len();
    let mut frame = vec![0; 14 + 40 + len];
    let header = ethernet::Repr { dst: mac, src: PEER, vlan: None, ether_type: ethernet::Repr::IPV6 };
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

pub(crate) fn solicit(target: &str, lladdr: Option<[u8; 6]>) -> Icmpv6Repr<'static> {
    let lladdr = lladdr.map(|mac| RawHardwareAddress::from_bytes(&mac));
    Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr: v6(target), lladdr })
}

pub(crate) fn advert(
    target: &str,
    flags: NdiscNeighborFlags,
    lladdr: Option<[u8; 6]>,
) -> Icmpv6Repr<'static> {
    let lladdr = lladdr.map(|mac| RawHardwareAddress::from_bytes(&mac));
    Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { flags, target_addr: v6(target), lladdr })
}

/// The contents of a port's ICMPv6 message, after a check of its checksum.
pub(crate) fn parse_icmpv6(frame: &[u8]) -> (ipv6::Repr, Icmpv6Repr<'_>) {
    let (ip, payload) = ipv6::Repr::parse(&frame[14..]).unwrap();
    let packet = Icmpv6Packet::new_checked(payload).unwrap();
    let [src, dst] = [ip.src, ip.dst].map(|gid| Ipv6Addr::from(gid.0));
    (ip, Icmpv6Repr::parse(&src, &dst, &packet, &ChecksumCapabilities::default()).unwrap())
}

/// Passes each port's own frames to the other until there are none.
pub(crate) fn settle(a: &mut Port, b: &mut Port, now: Instant) -> Vec<Gid> {
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

/// An echo request of [`PEER`] over IPv4.
pub(crate) fn ping(port: &Port, dst: &str, data: &[u8]) -> Vec<u8> {
    ping_from(port, "10.0.0.77", dst, data)
}

/// An echo request over IPv4 from this address.
pub(crate) fn ping_from(port: &Port, src: &str, dst: &str, data: &[u8]) -> Vec<u8> {
    let repr = Icmpv4Repr::EchoRequest { ident: 3, seq_no: 4, data };
    let mut frame = vec![0; 14 + 20 + repr.buffer_len()];
    let header = ethernet::Repr { dst: port.mac(), src: PEER, vlan: None, ether_type: ethernet::Repr::IPV4 };
    let ip = ipv4::Repr {
        tos: 0,
        ident: 5,
        dont_fragment: true,
        ttl: 64,
        protocol: 1,
        src: v4(src),
        dst: v4(dst),
        payload_len: repr.buffer_len() as u16,
    };
    let rest = header.emit(&mut frame).and_then(|rest| ip.emit(rest)).unwrap();
    repr.emit(&mut Icmpv4Packet::new_unchecked(rest), &ChecksumCapabilities::default());
    frame
}
