//! Builds the frames of ARP (RFC 826), neighbour discovery (RFC 4861) and echo (RFC 792, RFC 4443).

use alloc::boxed::Box;
use alloc::vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use roce::Gid;
use roce::wire::{ethernet, ipv4, ipv6};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr,
    NdiscNeighborFlags, NdiscRepr, RawHardwareAddress,
};

use super::addresses::ALL_NODES;
use super::solicited_node;

/// A whole frame; `None` if it could not be built.
pub(super) type Frame = Option<Box<[u8]>>;

/// The protocol number of ICMP, and the next header of ICMPv6.
pub(super) const ICMP: u8 = 1;
pub(super) const ICMPV6: u8 = 58;
/// The protocol number of TCP.
pub(super) const TCP: u8 = 6;

/// Whether a message of ICMP reports that a packet did not reach its destination (RFC 792).
pub(super) fn reports_v4(message: &[u8]) -> bool {
    message.first() == Some(&3)
}

/// Whether a message of ICMPv6 reports that a packet did not reach its destination (RFC 4443).
pub(super) fn reports_v6(message: &[u8]) -> bool {
    message.first() == Some(&1)
}
/// The hop limit of neighbour discovery: a message that a router has forwarded has a lower one.
pub(super) const NDISC_HOP_LIMIT: u8 = 255;
/// The hop limit of echo replies.
const HOP_LIMIT: u8 = 64;

pub(super) type Mac = [u8; 6];

/// The sender of the frames: the port's MAC, and the VLAN that they are of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub mac: Mac,
    pub vlan: Option<u16>,
}

impl Origin {
    /// The header of a frame to `dst`.
    pub fn header(self, dst: Mac, ether_type: u16) -> ethernet::Repr {
        ethernet::Repr { dst, src: self.mac, vlan: self.vlan, ether_type }
    }
}

const BROADCAST: Mac = [0xff; 6];
const NO_MAC: Mac = [0; 6];

/// Asks for the MAC of `target`: the neighbour with the MAC `at`, or all.
pub(super) fn question(by: Origin, from: Gid, target: Gid, at: Option<Mac>) -> Frame {
    match (from.to_ip(), target.to_ip()) {
        (IpAddr::V4(from), IpAddr::V4(target)) => {
            arp(ArpOperation::Request, (by, from), (NO_MAC, target), at.unwrap_or(BROADCAST))
        }
        (IpAddr::V6(from), IpAddr::V6(target)) => {
            let repr = NdiscRepr::NeighborSolicit {
                target_addr: target,
                lladdr: Some(RawHardwareAddress::from_bytes(&by.mac)),
            };
            let group = solicited_node(target);
            let (to, at) = at.map_or((group, ethernet::group_mac_v6(group)), |at| (target, at));
            icmpv6(by, from, to, at, NDISC_HOP_LIMIT, &Icmpv6Repr::Ndisc(repr))
        }
        _ => None,
    }
}

/// Announces the address `own` to all neighbours.
pub(super) fn announce(by: Origin, own: Gid) -> Frame {
    match own.to_ip() {
        IpAddr::V4(own) => arp(ArpOperation::Request, (by, own), (NO_MAC, own), BROADCAST),
        IpAddr::V6(own) => {
            let repr = advert(by.mac, own, NdiscNeighborFlags::OVERRIDE);
            icmpv6(by, own, ALL_NODES, ethernet::group_mac_v6(ALL_NODES), NDISC_HOP_LIMIT, &repr)
        }
    }
}

/// Answers a request for `own`.
pub(super) fn arp_answer(by: Origin, own: Ipv4Addr, to: (Mac, Ipv4Addr)) -> Frame {
    arp(ArpOperation::Reply, (by, own), to, to.0)
}

/// Answers a solicitation of `own`. A solicitation from the unspecified address asks whether
/// another port has an address; the answer goes to all nodes.
pub(super) fn advert_answer(by: Origin, own: Ipv6Addr, to: (Mac, Ipv6Addr)) -> Frame {
    let (flags, to, at) = match to.1.is_unspecified() {
        true => (NdiscNeighborFlags::OVERRIDE, ALL_NODES, ethernet::group_mac_v6(ALL_NODES)),
        false => (NdiscNeighborFlags::OVERRIDE | NdiscNeighborFlags::SOLICITED, to.1, to.0),
    };
    icmpv6(by, own, to, at, NDISC_HOP_LIMIT, &advert(by.mac, own, flags))
}

fn advert(mac: Mac, own: Ipv6Addr, flags: NdiscNeighborFlags) -> Icmpv6Repr<'static> {
    let lladdr = Some(RawHardwareAddress::from_bytes(&mac));
    Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { flags, target_addr: own, lladdr })
}

/// Answers an echo request.
pub(super) fn echo_v4(by: Origin, own: Ipv4Addr, to: (Mac, Ipv4Addr), reply: &Icmpv4Repr<'_>) -> Frame {
    let payload_len = u16::try_from(reply.buffer_len()).ok()?;
    let ip = ipv4::Repr {
        tos: 0,
        ident: 0,
        dont_fragment: true,
        ttl: HOP_LIMIT,
        protocol: ICMP,
        src: own,
        dst: to.1,
        payload_len,
    };
    let header = by.header(to.0, ethernet::Repr::IPV4);
    let mut frame = vec![0; header.len() + ipv4::Repr::LEN + reply.buffer_len()].into_boxed_slice();
    let rest = header.emit(&mut frame).and_then(|rest| ip.emit(rest)).ok()?;
    reply.emit(&mut Icmpv4Packet::new_unchecked(rest), &ChecksumCapabilities::default());
    Some(frame)
}

/// Answers an echo request.
pub(super) fn echo_v6(by: Origin, own: Ipv6Addr, to: (Mac, Ipv6Addr), reply: &Icmpv6Repr<'_>) -> Frame {
    icmpv6(by, own, to.1, to.0, HOP_LIMIT, reply)
}

fn arp(operation: ArpOperation, from: (Origin, Ipv4Addr), to: (Mac, Ipv4Addr), at: Mac) -> Frame {
    let repr = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(from.0.mac),
        source_protocol_addr: from.1,
        target_hardware_addr: EthernetAddress(to.0),
        target_protocol_addr: to.1,
    };
    let header = from.0.header(at, ethernet::Repr::ARP);
    let mut frame = vec![0; header.len() + repr.buffer_len()].into_boxed_slice();
    repr.emit(&mut ArpPacket::new_unchecked(header.emit(&mut frame).ok()?));
    Some(frame)
}

fn icmpv6(by: Origin, src: Ipv6Addr, dst: Ipv6Addr, at: Mac, hop_limit: u8, repr: &Icmpv6Repr<'_>) -> Frame {
    let payload_len = u16::try_from(repr.buffer_len()).ok()?;
    let ip = ipv6::Repr {
        traffic_class: 0,
        flow_label: 0,
        next_header: ICMPV6,
        hop_limit,
        src: Gid::from_ipv6(src),
        dst: Gid::from_ipv6(dst),
        payload_len,
    };
    let header = by.header(at, ethernet::Repr::IPV6);
    let mut frame = vec![0; header.len() + ipv6::Repr::LEN + repr.buffer_len()].into_boxed_slice();
    let rest = header.emit(&mut frame).and_then(|rest| ip.emit(rest)).ok()?;
    repr.emit(&src, &dst, &mut Icmpv6Packet::new_unchecked(rest), &ChecksumCapabilities::default());
    Some(frame)
}
