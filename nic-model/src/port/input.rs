//! Classifies an arrived frame: a packet for this port, a frame that the port handles itself, or
//! one that it drops.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use platform::Instant;
use platform::planted::{Bug, planted};
use roce::wire::datagram::Network;
use roce::wire::{ethernet, icrc, ipv4, ipv6, udp};
use roce::{Error, Gid, UDP_PORT};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, Icmpv4Message, Icmpv4Packet, Icmpv4Repr, Icmpv6Message, Icmpv6Packet,
    Icmpv6Repr, NdiscNeighborFlags, NdiscRepr, RawHardwareAddress,
};

use super::neighbours::Claim;
use super::{Port, is_unicast, messages};

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input<'f> {
    /// A RoCEv2 packet for this port.
    Packet(Arrival<'f>),
    /// An IP packet with a segment of TCP for this port, or with a report about one. Nothing above
    /// the header of IP is checked.
    Segment(&'f [u8]),
    /// The port has handled it.
    Consumed,
    /// The port has handled the frame, and now knows the MAC of this neighbour, for which packets
    /// waited.
    Resolved(Gid),
    /// It is dropped and counted.
    Dropped(Dropped),
}

/// A RoCEv2 packet for this port. Its addresses, lengths and ICRC are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival<'f> {
    /// The MAC of the frame's sender.
    pub mac: [u8; 6],
    /// The network's header: source, destination, traffic class, hop limit. It makes the GRH.
    pub network: Network,
    /// The index of the destination among the port's GIDs; for a group 0.
    pub local: u8,
    /// The sender's UDP port.
    pub src_port: u16,
    /// The packet from the BTH to the padding, as [`roce::wire::packet::Repr::parse`] takes it.
    pub packet: &'f [u8],
}

/// [`Arrival::local`] of a packet to a group.
const GROUP: u8 = 0;

impl Arrival<'_> {
    /// The multicast group to which the packet goes, if it goes to one.
    pub fn group(&self) -> Option<Gid> {
        let to = self.network.dst();
        to.to_ip().is_multicast().then_some(to)
    }

    /// Whether a switch or router marked the packet for congestion (RFC 3168).
    pub const fn is_congested(&self) -> bool {
        self.network.traffic_class() & 3 == 3
    }
}

/// Why a frame is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum Dropped {
    /// The port is down.
    Down,
    /// It ends before the end of a header, or before the length that a header gives.
    Truncated,
    /// It is longer than the link's MTU allows.
    Oversized,
    /// It is of another VLAN than the port, or of none while the port is of one.
    WrongVlan,
    /// It goes to another MAC.
    WrongMac,
    /// It goes to another IP address.
    WrongAddress,
    /// Its source cannot be a neighbour: it is a group, this port itself, or unspecified.
    BadSource,
    /// The checksum of a header or of a control message is wrong.
    BadChecksum,
    /// The ICRC is wrong.
    WrongIcrc,
    /// It is a fragment of an IP packet.
    Fragment,
    /// A field has a value that is not allowed.
    Malformed,
    /// It is none of RoCEv2, ARP, neighbour discovery, echo, and TCP if the port takes that.
    NotRoce,
    /// Too many frames of its kind came from its sender in a short time, or too many wait.
    Flood,
}

impl Dropped {
    /// All reasons, with the names that they have in files of counters.
    pub const ALL: [(Dropped, &str); 13] = [
        (Dropped::Down, "down"),
        (Dropped::Truncated, "truncated"),
        (Dropped::Oversized, "oversized"),
        (Dropped::WrongVlan, "wrong_vlan"),
        (Dropped::WrongMac, "wrong_mac"),
        (Dropped::WrongAddress, "wrong_address"),
        (Dropped::BadSource, "bad_source"),
        (Dropped::BadChecksum, "bad_checksum"),
        (Dropped::WrongIcrc, "wrong_icrc"),
        (Dropped::Fragment, "fragment"),
        (Dropped::Malformed, "malformed"),
        (Dropped::NotRoce, "not_roce"),
        (Dropped::Flood, "flood"),
    ];
}

/// What a port has carried and dropped since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that came.
    pub frames: u64,
    /// RoCEv2 packets among them that were for this port.
    pub packets_in: u64,
    /// RoCEv2 packets sent.
    pub packets_out: u64,
    /// IP packets for streams that came.
    pub segments_in: u64,
    /// IP packets of streams sent.
    pub segments_out: u64,
    /// The port's own frames sent.
    pub own_frames: u64,
    /// Questions of neighbours that the port answered.
    pub answers: u64,
    /// Echo requests that the port answered.
    pub echoes: u64,
    /// Questions to neighbours beyond the allowed rate. They are sent when they are due again.
    pub questions_delayed: u64,
    dropped: [u64; Dropped::ALL.len()],
}

impl Counters {
    /// How many frames were dropped for a reason.
    pub const fn dropped(&self, why: Dropped) -> u64 {
        self.dropped[why as usize]
    }

    /// All reasons by their names, and how many frames were dropped for each.
    pub fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Dropped::ALL.iter().map(|&(why, name)| (name, self.dropped(why)))
    }

    /// What the port carried and answered, by name.
    pub fn carried(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("frames", self.frames),
            ("packets_in", self.packets_in),
            ("packets_out", self.packets_out),
            ("segments_in", self.segments_in),
            ("segments_out", self.segments_out),
            ("own_frames", self.own_frames),
            ("answers", self.answers),
            ("echoes", self.echoes),
            ("questions_delayed", self.questions_delayed),
        ]
        .into_iter()
    }

    /// All counters by their names.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.carried().chain(self.drops())
    }

    pub(super) fn drop(&mut self, why: Dropped) {
        self.dropped[why as usize] += 1;
    }
}

impl From<Error> for Dropped {
    fn from(error: Error) -> Dropped {
        match error {
            Error::Truncated { .. } => Dropped::Truncated,
            Error::Field { field: "IPv4 fragment", .. } => Dropped::Fragment,
            Error::Field { .. } => Dropped::Malformed,
            Error::Checksum { .. } => Dropped::BadChecksum,
        }
    }
}

impl Port {
    pub(super) fn classify<'f>(&mut self, frame: &'f [u8], now: Instant) -> Result<Input<'f>, Dropped> {
        let (ethernet, packet) = ethernet::Repr::parse(frame)?;
        if packet.len() > self.mtu {
            return Err(Dropped::Oversized);
        }
        if ethernet.vlan != self.vlan {
            return Err(Dropped::WrongVlan);
        }
        let to_us = ethernet.dst == self.mac;
        if !to_us && is_unicast(ethernet.dst) {
            return Err(Dropped::WrongMac);
        }
        if !is_unicast(ethernet.src) || ethernet.src == self.mac {
            return Err(Dropped::BadSource);
        }
        match ethernet.ether_type {
            ethernet::Repr::IPV4 if to_us => self.ipv4(&ethernet, packet, now),
            ethernet::Repr::IPV6 => self.ipv6(&ethernet, packet, now),
            ethernet::Repr::ARP => self.arp(ethernet.src, packet, now),
            ethernet::Repr::IPV4 => self.group_v4(&ethernet, packet),
            _ => Err(Dropped::NotRoce),
        }
    }

    fn ipv4<'f>(
        &mut self,
        ethernet: &ethernet::Repr,
        packet: &'f [u8],
        now: Instant,
    ) -> Result<Input<'f>, Dropped> {
        let (ip, payload) = ipv4::Repr::parse(packet)?;
        let local = self.addresses.index_of(Gid::from_ipv4(ip.dst)).ok_or(Dropped::WrongAddress)?;
        self.check_source(Gid::from_ipv4(ip.src))?;
        match ip.protocol {
            ipv4::Repr::UDP => udp(Network::V4(ip), ethernet.src, local, packet, payload),
            messages::TCP if self.takes_segments => Ok(Input::Segment(packet)),
            messages::ICMP if self.takes_segments && messages::reports_v4(payload) => {
                Ok(Input::Segment(packet))
            }
            messages::ICMP => self.icmpv4(ethernet, &ip, payload, now),
            _ => Err(Dropped::NotRoce),
        }
    }

    /// A packet over IPv4 to a group, or to all: only RoCEv2 to a group that queue pairs have
    /// joined is for this port.
    fn group_v4<'f>(&self, ethernet: &ethernet::Repr, packet: &'f [u8]) -> Result<Input<'f>, Dropped> {
        let (ip, payload) = ipv4::Repr::parse(packet).map_err(|_| Dropped::WrongMac)?;
        let group = Gid::from_ipv4(ip.dst);
        if !self.is_for_group(ethernet, group) {
            return Err(Dropped::WrongMac);
        }
        self.check_source(Gid::from_ipv4(ip.src))?;
        match ip.protocol {
            ipv4::Repr::UDP => udp(Network::V4(ip), ethernet.src, GROUP, packet, payload),
            _ => Err(Dropped::NotRoce),
        }
    }

    /// Whether queue pairs have joined a group, and the frame goes to its MAC.
    fn is_for_group(&self, ethernet: &ethernet::Repr, group: Gid) -> bool {
        self.groups.contains(&group) && ethernet::group_mac(group.to_ip()) == Some(ethernet.dst)
    }

    fn ipv6<'f>(
        &mut self,
        ethernet: &ethernet::Repr,
        packet: &'f [u8],
        now: Instant,
    ) -> Result<Input<'f>, Dropped> {
        let (ip, payload) = ipv6::Repr::parse(packet)?;
        // An IPv4 address in an IPv6 header would look like a packet over IPv4.
        let (IpAddr::V6(src), IpAddr::V6(dst)) = (ip.src.to_ip(), ip.dst.to_ip()) else {
            return Err(Dropped::Malformed);
        };
        let Some(local) = self.addresses.index_of(ip.dst) else {
            let heard = self.addresses.hears(dst) && ethernet.dst == ethernet::group_mac_v6(dst);
            if ip.next_header == ipv6::Repr::UDP && self.is_for_group(ethernet, ip.dst) {
                self.check_source(ip.src)?;
                return udp(Network::V6(ip), ethernet.src, GROUP, packet, payload);
            }
            return match ip.next_header {
                messages::ICMPV6 if heard => self.icmpv6(ethernet, &ip, (src, dst), payload, now),
                _ if heard => Err(Dropped::NotRoce),
                _ => Err(Dropped::WrongAddress),
            };
        };
        if ethernet.dst != self.mac {
            return Err(Dropped::WrongMac);
        }
        match ip.next_header {
            ipv6::Repr::UDP => {
                self.check_source(ip.src)?;
                udp(Network::V6(ip), ethernet.src, local, packet, payload)
            }
            messages::TCP if self.takes_segments => {
                self.check_source(ip.src)?;
                Ok(Input::Segment(packet))
            }
            messages::ICMPV6 if self.takes_segments && messages::reports_v6(payload) => {
                self.check_source(ip.src)?;
                Ok(Input::Segment(packet))
            }
            messages::ICMPV6 => self.icmpv6(ethernet, &ip, (src, dst), payload, now),
            _ => Err(Dropped::NotRoce),
        }
    }

    /// Whether a source address can be a neighbour's.
    fn check_source(&self, src: Gid) -> Result<(), Dropped> {
        let single = match src.to_ip() {
            IpAddr::V4(v4) => !(v4.is_multicast() || v4.is_broadcast() || v4.is_unspecified()),
            IpAddr::V6(v6) => !(v6.is_multicast() || v6.is_unspecified()),
        };
        match single && self.addresses.index_of(src).is_none() {
            true => Ok(()),
            false => Err(Dropped::BadSource),
        }
    }

    fn arp(&mut self, from: [u8; 6], packet: &[u8], now: Instant) -> Result<Input<'static>, Dropped> {
        let packet = ArpPacket::new_checked(packet).map_err(|_| Dropped::Truncated)?;
        let Ok(ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr,
            source_protocol_addr: asker,
            target_protocol_addr: target,
            ..
        }) = ArpRepr::parse(&packet)
        else {
            return Err(Dropped::Malformed);
        };
        let mac = source_hardware_addr.0;
        if !is_unicast(mac) || mac == self.mac {
            return Err(Dropped::BadSource);
        }
        let ours = self.addresses.index_of(Gid::from_ipv4(target)).is_some();
        // A port that has no address yet asks whether another port has the address that it wants
        // (RFC 5227).
        let probes = asker == Ipv4Addr::UNSPECIFIED;
        let gid = Gid::from_ipv4(asker);
        if !probes {
            self.check_source(gid)?;
        }
        match operation {
            ArpOperation::Request if ours => {
                let waited = !probes && self.reaches(gid) && self.neighbours.asked_by(gid, mac, now);
                let frame = messages::arp_answer(self.origin(), target, (mac, asker));
                let answered = self.answer((from, gid), frame, now);
                if waited { Ok(Input::Resolved(gid)) } else { answered }
            }
            ArpOperation::Reply if ours => {
                self.claim(gid, Claim { mac, solicited: true, replaces: true }, now)
            }
            // The announcement of a neighbour has its own address as sender and as target.
            ArpOperation::Request | ArpOperation::Reply if target == asker => {
                self.claim(gid, Claim { mac, solicited: false, replaces: true }, now)
            }
            ArpOperation::Request | ArpOperation::Reply => Err(Dropped::WrongAddress),
            ArpOperation::Unknown(_) => Err(Dropped::Malformed),
        }
    }

    fn reaches(&self, gid: Gid) -> bool {
        matches!(self.addresses.route(gid), super::Route::Neighbour { .. })
    }

    fn claim(&mut self, gid: Gid, claim: Claim, now: Instant) -> Result<Input<'static>, Dropped> {
        Ok(match self.neighbours.claim(gid, claim, now) {
            true => Input::Resolved(gid),
            false => Input::Consumed,
        })
    }

    fn icmpv4(
        &mut self,
        ethernet: &ethernet::Repr,
        ip: &ipv4::Repr,
        payload: &[u8],
        now: Instant,
    ) -> Result<Input<'static>, Dropped> {
        let packet = Icmpv4Packet::new_checked(payload).map_err(|_| Dropped::Truncated)?;
        if packet.msg_type() != Icmpv4Message::EchoRequest {
            return Err(Dropped::NotRoce);
        }
        if !packet.verify_checksum() {
            return Err(Dropped::BadChecksum);
        }
        match Icmpv4Repr::parse(&packet, &ChecksumCapabilities::default()) {
            Ok(Icmpv4Repr::EchoRequest { ident, seq_no, data }) => {
                let reply = Icmpv4Repr::EchoReply { ident, seq_no, data };
                let frame = messages::echo_v4(self.origin(), ip.dst, (ethernet.src, ip.src), &reply);
                self.echo((ethernet.src, Gid::from_ipv4(ip.src)), frame, now)
            }
            _ => Err(Dropped::Malformed),
        }
    }

    /// ICMPv6 to an address of this port, or to a group that it receives.
    fn icmpv6(
        &mut self,
        ethernet: &ethernet::Repr,
        ip: &ipv6::Repr,
        (src, dst): (Ipv6Addr, Ipv6Addr),
        payload: &[u8],
        now: Instant,
    ) -> Result<Input<'static>, Dropped> {
        let packet = Icmpv6Packet::new_checked(payload).map_err(|_| Dropped::Truncated)?;
        let kind = packet.msg_type();
        let ndisc = matches!(kind, Icmpv6Message::NeighborSolicit | Icmpv6Message::NeighborAdvert);
        let echo = kind == Icmpv6Message::EchoRequest && !dst.is_multicast();
        if !ndisc && !echo {
            return Err(Dropped::NotRoce);
        }
        if !packet.verify_checksum(&src, &dst) {
            return Err(Dropped::BadChecksum);
        }
        // RFC 4861 section 7.1: a message that a router has forwarded is not from this link.
        if packet.msg_code() != 0 || ndisc && ip.hop_limit != messages::NDISC_HOP_LIMIT {
            return Err(Dropped::Malformed);
        }
        match Icmpv6Repr::parse(&src, &dst, &packet, &ChecksumCapabilities::default()) {
            Ok(Icmpv6Repr::EchoRequest { ident, seq_no, data }) => {
                self.check_source(ip.src)?;
                let reply = Icmpv6Repr::EchoReply { ident, seq_no, data };
                let frame = messages::echo_v6(self.origin(), dst, (ethernet.src, src), &reply);
                self.echo((ethernet.src, ip.src), frame, now)
            }
            Ok(Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr, lladdr })) => {
                self.solicited(ethernet, (src, dst), target_addr, lladdr, now)
            }
            Ok(Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { flags, target_addr, lladdr })) => {
                self.advertised((ip.src, dst), flags, target_addr, lladdr, now)
            }
            _ => Err(Dropped::Malformed),
        }
    }

    /// A neighbour solicitation (RFC 4861 section 7.2.3).
    fn solicited(
        &mut self,
        ethernet: &ethernet::Repr,
        (src, dst): (Ipv6Addr, Ipv6Addr),
        target: Ipv6Addr,
        lladdr: Option<RawHardwareAddress>,
        now: Instant,
    ) -> Result<Input<'static>, Dropped> {
        let probes = src.is_unspecified();
        // A port that probes for an address asks the address's group, and gives no MAC.
        if target.is_multicast() || probes && (!dst.is_multicast() || lladdr.is_some()) {
            return Err(Dropped::Malformed);
        }
        if self.addresses.index_of(Gid::from_ipv6(target)).is_none() {
            return Err(Dropped::WrongAddress);
        }
        let gid = Gid::from_ipv6(src);
        let mac = match lladdr {
            Some(address) => mac_in(address)?,
            None => ethernet.src,
        };
        let mut waited = false;
        if !probes {
            self.check_source(gid)?;
            waited = lladdr.is_some() && self.reaches(gid) && self.neighbours.asked_by(gid, mac, now);
        }
        let frame = messages::advert_answer(self.origin(), target, (mac, src));
        let answered = self.answer((ethernet.src, gid), frame, now);
        if waited { Ok(Input::Resolved(gid)) } else { answered }
    }

    /// A neighbour advertisement (RFC 4861 section 7.2.5).
    fn advertised(
        &mut self,
        (src, dst): (Gid, Ipv6Addr),
        flags: NdiscNeighborFlags,
        target: Ipv6Addr,
        lladdr: Option<RawHardwareAddress>,
        now: Instant,
    ) -> Result<Input<'static>, Dropped> {
        let solicited = flags.contains(NdiscNeighborFlags::SOLICITED);
        if target.is_multicast() || solicited && dst.is_multicast() {
            return Err(Dropped::Malformed);
        }
        self.check_source(src)?;
        let gid = Gid::from_ipv6(target);
        self.check_source(gid)?;
        // Without a MAC the advertisement is useless to this port: it solicits groups, and does not
        // accept an answer without a MAC.
        let Some(address) = lladdr else { return Ok(Input::Consumed) };
        let replaces = flags.contains(NdiscNeighborFlags::OVERRIDE);
        self.claim(gid, Claim { mac: mac_in(address)?, solicited, replaces }, now)
    }
}

/// The MAC in an option of neighbour discovery.
fn mac_in(address: RawHardwareAddress) -> Result<[u8; 6], Dropped> {
    match <[u8; 6]>::try_from(address.as_bytes()) {
        Ok(mac) if is_unicast(mac) => Ok(mac),
        Ok(_) => Err(Dropped::BadSource),
        Err(_) => Err(Dropped::Malformed),
    }
}

/// A UDP datagram to this port; `packet` begins with the IP header.
fn udp<'f>(
    network: Network,
    mac: [u8; 6],
    local: u8,
    packet: &'f [u8],
    payload: &'f [u8],
) -> Result<Input<'f>, Dropped> {
    let (udp, body) = udp::Repr::parse(payload)?;
    if udp.dst_port != UDP_PORT {
        return Err(Dropped::NotRoce);
    }
    let (transport, stored) = body.split_last_chunk::<{ icrc::LEN }>().ok_or(Dropped::Truncated)?;
    let covered = packet.get(..network.headers() + transport.len()).ok_or(Dropped::Truncated)?;
    if icrc::compute(covered)? != u32::from_le_bytes(*stored) && !planted(Bug::CorruptTaken) {
        return Err(Dropped::WrongIcrc);
    }
    Ok(Input::Packet(Arrival { mac, network, local, src_port: udp.src_port, packet: transport }))
}
