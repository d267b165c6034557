//! A link over the host's UDP port 4791: RoCEv2 between processes, without Ethernet.
//!
//! A socket carries the bytes after the UDP header, and hides the headers before it, which the ICRC
//! covers. So this link replaces the headers: it removes the Ethernet, IP and UDP headers of frames
//! that the port sends, and writes new ones, as the host's network uses them, for datagrams that
//! arrive. A socket that is not connected and has IP_MTU_DISCOVER set to DO sends identification 0
//! and "don't fragment". Its source port is 4791. The link computes the ICRC anew for the headers
//! that the host writes. A frame whose ICRC was wrong still has a wrong one afterwards.
//!
//! A multicast group of IPv4 that the port joins gets a socket of its own, bound to the group's
//! address: the first socket is bound to the port's, and gets nothing of groups. Groups of IPv6 are
//! not carried.
//!
//! There are no MACs and no neighbours. The link derives a MAC from an address, and answers the
//! port's ARP requests and neighbour solicitations itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, UdpSocket};

use platform::Instant;
use roce::wire::{bth, ethernet, icrc, ipv4, ipv6, udp};
use roce::{Gid, UDP_PORT};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, Icmpv6Packet, Icmpv6Repr, NdiscNeighborFlags,
    NdiscRepr, RawHardwareAddress,
};

use crate::poller::{Poller, Source};
use crate::queue::FrameQueue;
use crate::{Counters, Dropped, Link, OpenError, PollFd, Wire};

/// The hop limit of packets that arrive. The host hides the real one, which nothing needs.
const HOP_LIMIT: u8 = 64;
/// The hop limit of neighbour discovery (RFC 4861 section 7.1).
const NDISC_HOP_LIMIT: u8 = 255;
/// The next header of ICMPv6.
const ICMPV6: u8 = 58;
/// The wanted size of the host's receive buffer.
const HOST_BUFFER: usize = 4 << 20;
/// The most datagrams that one call drops.
const SHARE: u32 = 64;
/// The most answers that wait for the port.
const ANSWERS: usize = 64;

/// A link over the host's UDP port 4791.
#[derive(Debug)]
pub struct Udp {
    socket: UdpSocket,
    local: IpAddr,
    mac: [u8; 6],
    /// Answers to the port's requests for MACs.
    answers: FrameQueue,
    /// A socket for each group that the port has joined; the port bounds their number.
    groups: Vec<(Ipv4Addr, UdpSocket)>,
    /// Watches all sockets.
    poller: Poller,
    /// The socket that is looked at next: 0 the first one, else a group's.
    turn: usize,
    buffer: Vec<u8>,
    counters: Counters,
}

/// Why a frame is not sent.
type Refused = Result<(), Dropped>;

impl Udp {
    /// Opens the UDP port of RoCEv2 at `local`, for a port with this MAC and that IP address.
    pub fn bind(local: IpAddr, mac: [u8; 6]) -> Result<Udp, OpenError> {
        let failed = |e| OpenError::system(format!("open UDP port {UDP_PORT} of {local}"), e);
        let socket = UdpSocket::bind((local, UDP_PORT)).map_err(|error| match error.kind() {
            std::io::ErrorKind::AddrInUse => OpenError::PortInUse(local),
            std::io::ErrorKind::AddrNotAvailable => OpenError::NotOurs(local),
            _ => failed(error),
        })?;
        socket.set_nonblocking(true).map_err(failed)?;
        match local {
            IpAddr::V4(_) => sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO),
            IpAddr::V6(_) => sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DO),
        }
        .map_err(|e| failed(e.into()))?;
        // The system may grant less.
        let _ = sockopt::set_socket_recv_buffer_size(&socket, HOST_BUFFER);
        let (answers, counters) = (FrameQueue::default(), Counters::default());
        let poller = Poller::new().map_err(|e| failed(e.into()))?;
        poller.add(&socket, Source::Listener).map_err(|e| failed(e.into()))?;
        let (groups, buffer) = (Vec::new(), Vec::new());
        Ok(Udp { socket, local, mac, answers, groups, poller, turn: 0, buffer, counters })
    }

    /// Opens the socket of a group. The host sends what goes to the group from the local address's
    /// interface, and back to the sockets of this host.
    fn join_v4(&mut self, group: Ipv4Addr, local: Ipv4Addr) -> rustix::io::Result<()> {
        let kind = rustix::net::SocketType::DGRAM;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::INET, kind, flags, None)?;
        // Each process that joins the group has such a socket.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        rustix::net::bind(&socket, &SocketAddrV4::new(group, UDP_PORT))?;
        sockopt::set_ip_add_membership(&socket, &group, &local)?;
        let _ = sockopt::set_socket_recv_buffer_size(&socket, HOST_BUFFER);
        self.poller.add(&socket, Source::Peer(self.groups.len()))?;
        self.groups.push((group, socket.into()));
        Ok(())
    }

    /// The socket whose turn it is, and the address to which its datagrams go.
    fn socket_in_turn(&self) -> (&UdpSocket, IpAddr) {
        match self.turn.checked_sub(1).and_then(|place| self.groups.get(place)) {
            Some((group, socket)) => (socket, IpAddr::V4(*group)),
            None => (&self.socket, self.local),
        }
    }

    /// The MAC for an address.
    fn mac_of(address: IpAddr) -> [u8; 6] {
        match address {
            IpAddr::V4(address) => {
                let [a, b, c, d] = address.octets();
                [0x02, 0x00, a, b, c, d]
            }
            IpAddr::V6(address) => {
                // FNV-1a. Two peers of one port rarely get the same MAC, and it does no harm if
                // they do.
                let mut hash = 0xcbf2_9ce4_8422_2325_u64;
                for byte in address.octets() {
                    hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
                }
                let [.., b, c, d, e, f] = hash.to_be_bytes();
                [0x06, b, c, d, e, f]
            }
        }
    }

    fn try_send(&mut self, frame: &[u8]) -> Refused {
        let (ethernet, packet) = ethernet::Repr::parse(frame).map_err(|_| Dropped::Runt)?;
        // The host's network has its own VLANs.
        if ethernet.vlan.is_some() {
            return Err(Dropped::Unsupported);
        }
        match ethernet.ether_type {
            ethernet::Repr::ARP => self.answer_arp(packet),
            ethernet::Repr::IPV4 => {
                let (ip, payload) = ipv4::Repr::parse(packet).map_err(|_| Dropped::Unsupported)?;
                if ip.protocol != ipv4::Repr::UDP || self.local != IpAddr::V4(ip.src) {
                    return Err(Dropped::Unsupported);
                }
                let on_wire = ipv4::Repr { ident: 0, dont_fragment: true, ..ip };
                let header = packet.get(..ipv4::Repr::LEN).ok_or(Dropped::Runt)?;
                self.send_datagram(header, payload, ip.dst.into(), |into| on_wire.emit(into).map(drop))
            }
            ethernet::Repr::IPV6 => {
                let (ip, payload) = ipv6::Repr::parse(packet).map_err(|_| Dropped::Unsupported)?;
                if self.local != ip.src.to_ip() {
                    return Err(Dropped::Unsupported);
                }
                if ip.next_header == ICMPV6 {
                    return self.answer_solicitation(&ip, payload);
                }
                if ip.next_header != ipv6::Repr::UDP {
                    return Err(Dropped::Unsupported);
                }
                let header = packet.get(..ipv6::Repr::LEN).ok_or(Dropped::Runt)?;
                self.send_datagram(header, payload, ip.dst.to_ip(), |into| ip.emit(into).map(drop))
            }
            _ => Err(Dropped::Unsupported),
        }
    }

    /// Sends the bytes after the UDP header of `segment`. `header` is the IP header that the port
    /// wrote; `emit` writes the one that the host will use.
    fn send_datagram(
        &mut self,
        header: &[u8],
        segment: &[u8],
        to: IpAddr,
        emit: impl FnOnce(&mut [u8]) -> Result<(), roce::Error>,
    ) -> Refused {
        let (udp, body) = udp::Repr::parse(segment).map_err(|_| Dropped::Unsupported)?;
        if udp.dst_port != UDP_PORT {
            return Err(Dropped::Unsupported);
        }
        let (transport, stored) = body.split_last_chunk::<{ icrc::LEN }>().ok_or(Dropped::Runt)?;
        if transport.len() < bth::Repr::LEN {
            return Err(Dropped::Runt);
        }
        // The packet as the port wrote it, to the ICRC; then with the headers that the host writes.
        let packet = &mut self.buffer;
        packet.clear();
        packet.extend_from_slice(header);
        packet.extend_from_slice(&segment[..udp::Repr::LEN]);
        packet.extend_from_slice(transport);
        let before = icrc::compute(packet).map_err(|_| Dropped::Unsupported)?;
        let (head, rest) = packet.split_at_mut(header.len());
        let on_wire = udp::Repr { src_port: UDP_PORT, checksum: 0, ..udp };
        emit(head).and_then(|()| on_wire.emit(rest).map(drop)).map_err(|_| Dropped::Unsupported)?;
        let after = icrc::compute(packet).map_err(|_| Dropped::Unsupported)?;
        // A wrong ICRC stays wrong.
        let icrc = u32::from_le_bytes(*stored) ^ before ^ after;
        packet.extend_from_slice(&icrc.to_le_bytes());
        let datagram = &packet[header.len() + udp::Repr::LEN..];
        let to = SocketAddr::new(to, UDP_PORT);
        match rustix::net::sendto(&self.socket, datagram, SendFlags::DONTWAIT, &to) {
            Ok(_) => Ok(()),
            Err(Errno::AGAIN | Errno::NOBUFS) => Err(Dropped::QueueFull),
            Err(Errno::MSGSIZE) => Err(Dropped::Oversized),
            Err(_) => Err(Dropped::System),
        }
    }

    fn answer(&mut self, frame: &[u8]) -> Refused {
        if self.answers.len() >= ANSWERS || !self.answers.push(frame) {
            return Err(Dropped::QueueFull);
        }
        Ok(())
    }

    /// Answers the port's question for a neighbour. Its other ARP messages are dropped: there is no
    /// receiver for them.
    fn answer_arp(&mut self, packet: &[u8]) -> Refused {
        let arp = ArpPacket::new_checked(packet).and_then(|arp| ArpRepr::parse(&arp));
        let Ok(ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Request,
            source_protocol_addr: asker,
            target_protocol_addr: target,
            ..
        }) = arp
        else {
            return Err(Dropped::Unsupported);
        };
        if IpAddr::V4(asker) != self.local || target == asker {
            return Err(Dropped::Unsupported);
        }
        let mac = Udp::mac_of(target.into());
        let answer = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Reply,
            source_hardware_addr: EthernetAddress(mac),
            source_protocol_addr: target,
            target_hardware_addr: EthernetAddress(self.mac),
            target_protocol_addr: asker,
        };
        let mut frame = vec![0; ethernet::Repr::LEN + answer.buffer_len()];
        let header = ethernet::Repr { dst: self.mac, src: mac, vlan: None, ether_type: ethernet::Repr::ARP };
        let rest = header.emit(&mut frame).map_err(|_| Dropped::Runt)?;
        answer.emit(&mut ArpPacket::new_unchecked(rest));
        self.answer(&frame)
    }

    /// Answers the port's solicitation of a neighbour.
    fn answer_solicitation(&mut self, ip: &ipv6::Repr, packet: &[u8]) -> Refused {
        let checksums = ChecksumCapabilities::default();
        let [src, dst] = [ip.src, ip.dst].map(|gid| Ipv6Addr::from(gid.0));
        let solicit = Icmpv6Packet::new_checked(packet)
            .and_then(|packet| Icmpv6Repr::parse(&src, &dst, &packet, &checksums).map(target_of));
        let Ok(Some(target)) = solicit else { return Err(Dropped::Unsupported) };
        if target == src {
            return Err(Dropped::Unsupported);
        }
        let mac = Udp::mac_of(target.into());
        let answer = Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert {
            flags: NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE,
            target_addr: target,
            lladdr: Some(RawHardwareAddress::from_bytes(&mac)),
        });
        let mut frame = vec![0; ethernet::Repr::LEN + ipv6::Repr::LEN + answer.buffer_len()];
        let header = ethernet::Repr { dst: self.mac, src: mac, vlan: None, ether_type: ethernet::Repr::IPV6 };
        let network = ipv6::Repr {
            traffic_class: 0,
            flow_label: 0,
            next_header: ICMPV6,
            hop_limit: NDISC_HOP_LIMIT,
            src: Gid::from_ipv6(target),
            dst: ip.src,
            payload_len: answer.buffer_len() as u16,
        };
        let rest = header.emit(&mut frame).and_then(|rest| network.emit(rest)).map_err(|_| Dropped::Runt)?;
        answer.emit(&target, &src, &mut Icmpv6Packet::new_unchecked(rest), &checksums);
        self.answer(&frame)
    }

    /// Writes the headers of a datagram of `len` bytes, which is behind the room for them.
    fn wrap(
        &self,
        (from, to): (SocketAddr, IpAddr),
        len: usize,
        into: &mut [u8],
    ) -> Result<usize, roce::Error> {
        let payload_len = (udp::Repr::LEN + len) as u16;
        let ether_type = match self.local {
            IpAddr::V4(_) => ethernet::Repr::IPV4,
            IpAddr::V6(_) => ethernet::Repr::IPV6,
        };
        let dst = ethernet::group_mac(to).unwrap_or(self.mac);
        let header = ethernet::Repr { dst, src: Udp::mac_of(from.ip()), vlan: None, ether_type };
        let rest = header.emit(into)?;
        let (rest, network) = match (from.ip(), to) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => (wrap_v4(src, dst, payload_len, rest)?, ipv4::Repr::LEN),
            (src, dst) => {
                let (src, dst) = (Gid::from(src), Gid::from(dst));
                let network = ipv6::Repr {
                    traffic_class: 0,
                    flow_label: 0,
                    next_header: ipv6::Repr::UDP,
                    hop_limit: HOP_LIMIT,
                    src,
                    dst,
                    payload_len,
                };
                (network.emit(rest)?, ipv6::Repr::LEN)
            }
        };
        let header =
            udp::Repr { src_port: from.port(), dst_port: UDP_PORT, checksum: 0, payload_len: len as u16 };
        header.emit(rest)?;
        Ok(ethernet::Repr::LEN + network + udp::Repr::LEN + len)
    }

    /// The size of the headers that the link puts in front of a datagram.
    fn headers(&self) -> usize {
        let network = if self.local.is_ipv4() { ipv4::Repr::LEN } else { ipv6::Repr::LEN };
        ethernet::Repr::LEN + network + udp::Repr::LEN
    }
}

fn wrap_v4(
    src: Ipv4Addr,
    dst: Ipv4Addr,
    payload_len: u16,
    into: &mut [u8],
) -> Result<&mut [u8], roce::Error> {
    let network = ipv4::Repr {
        tos: 0,
        ident: 0,
        dont_fragment: true,
        ttl: HOP_LIMIT,
        protocol: ipv4::Repr::UDP,
        src,
        dst,
        payload_len,
    };
    network.emit(into)
}

/// The neighbour that a solicitation is for.
fn target_of(repr: Icmpv6Repr<'_>) -> Option<Ipv6Addr> {
    match repr {
        Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr, .. }) => Some(target_addr),
        _ => None,
    }
}

impl Wire for Udp {
    fn send(&mut self, frame: &[u8], _now: Instant) {
        if !self.counters.check_size(frame) {
            return;
        }
        match self.try_send(frame) {
            Ok(()) => self.counters.count_sent(frame.len()),
            Err(why) => self.counters.drop(why),
        }
    }

    /// Always: the host drops datagrams for a slow receiver, and reports nothing.
    fn has_room(&self) -> bool {
        true
    }

    fn receive(&mut self, into: &mut [u8], _now: Instant) -> Option<usize> {
        while let Some(answer) = self.answers.pop() {
            if let Some(len) = self.counters.deliver(&answer, into) {
                return Some(len);
            }
        }
        let headers = self.headers();
        let mut empty = 0;
        for _ in 0..SHARE + self.groups.len() as u32 {
            let (_, room) = into.split_at_mut_checked(headers).unwrap_or_default();
            let space = room.len();
            let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
            let (socket, to) = self.socket_in_turn();
            let (len, from) = match rustix::net::recvfrom(socket, room, flags) {
                Ok((_, len, from)) => (len, from.and_then(|from| SocketAddr::try_from(from).ok())),
                Err(Errno::INTR) => continue,
                // There is no datagram; or the error of an earlier one, which this call has
                // cleared. The last call of the owner looks at each socket.
                Err(_) => {
                    empty += 1;
                    if empty > self.groups.len() {
                        return None;
                    }
                    self.turn = (self.turn + 1) % (self.groups.len() + 1);
                    continue;
                }
            };
            empty = 0;
            let Some(from) = from.filter(|_| len <= space) else {
                self.counters.drop(Dropped::Oversized);
                continue;
            };
            match self.wrap((from, to), len, into) {
                Ok(len) => {
                    // No socket keeps the others waiting.
                    self.turn = (self.turn + 1) % (self.groups.len() + 1);
                    self.counters.count_received(len);
                    return Some(len);
                }
                Err(_) => self.counters.drop(Dropped::Oversized),
            }
        }
        None
    }

    fn flush(&mut self, _now: Instant) {}

    fn up(&self) -> bool {
        true
    }

    fn deadline(&self) -> Option<Instant> {
        (self.answers.len() > 0).then_some(Instant::ZERO)
    }

    fn join(&mut self, group: IpAddr) {
        if let (IpAddr::V4(group), IpAddr::V4(local)) = (group, self.local)
            && self.join_v4(group, local).is_err()
        {
            self.counters.drop(Dropped::System);
        }
    }

    fn leave(&mut self, group: IpAddr) {
        // A closed socket has left the group, and is not watched.
        self.groups.retain(|(joined, _)| IpAddr::V4(*joined) != group);
        self.turn = 0;
    }
}

impl Link for Udp {
    fn poll_fd(&self) -> Option<PollFd<'_>> {
        Some(self.poller.poll_fd())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
