//! Takes an IP packet apart: a segment of TCP, a report that a segment could not be delivered, or
//! something that is dropped.

use core::net::IpAddr;

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    IPV4_HEADER_LEN, IPV6_HEADER_LEN, Icmpv4DstUnreachable, Icmpv4Message, Icmpv4Packet,
    Icmpv6DstUnreachable, Icmpv6Message, Icmpv6Packet, IpProtocol, Ipv4Packet, Ipv6Packet, TCP_HEADER_LEN,
    TcpControl, TcpPacket, TcpRepr,
};

use crate::address::{Tuple, is_single};
use crate::counters::Dropped;
use crate::streams::Unreachable;

/// A packet for this crate.
pub(crate) enum Packet<'p> {
    Segment(Segment<'p>),
    Report(Report),
}

/// A segment. Its lengths and checksums are right, and its addresses are those of single nodes.
pub(crate) struct Segment<'p> {
    /// The ends, as this side sees them.
    pub tuple: Tuple,
    pub tcp: TcpRepr<'p>,
}

impl Segment<'_> {
    pub const fn seq(&self) -> u32 {
        self.tcp.seq_number.0 as u32
    }

    pub fn ack(&self) -> Option<u32> {
        self.tcp.ack_number.map(|ack| ack.0 as u32)
    }

    /// The sequence number behind the segment.
    pub fn end(&self) -> u32 {
        self.seq().wrapping_add(self.tcp.segment_len() as u32)
    }

    pub fn is_rst(&self) -> bool {
        self.tcp.control == TcpControl::Rst
    }

    /// Whether it asks for a connection.
    pub fn opens(&self) -> bool {
        self.tcp.control == TcpControl::Syn && self.tcp.ack_number.is_none()
    }
}

/// A node on the way, or the peer's, reports that a segment of this side was not delivered.
pub(crate) struct Report {
    /// The connection of the segment, as this side sees it.
    pub tuple: Tuple,
    /// The segment's sequence number.
    pub seq: u32,
    pub why: Unreachable,
}

/// The bytes of a packet to this address before the payload of its segment, without options.
pub(crate) const fn headers(to: IpAddr) -> usize {
    TCP_HEADER_LEN + if to.is_ipv4() { IPV4_HEADER_LEN } else { IPV6_HEADER_LEN }
}

/// Takes a packet of at most `mtu` bytes apart. Only one that is the port's `own` may be from its
/// own address: a link has none such but forged ones.
pub(crate) fn parse(packet: &[u8], mtu: usize, own: bool) -> Result<Packet<'_>, Dropped> {
    if packet.len() > mtu {
        return Err(Dropped::Oversized);
    }
    let (src, dst, protocol, payload): (IpAddr, IpAddr, _, _) = match packet.first().map(|byte| byte >> 4) {
        Some(4) => {
            let ip = Ipv4Packet::new_checked(packet).map_err(|_| Dropped::Truncated)?;
            if !ip.verify_checksum() {
                return Err(Dropped::BadChecksum);
            }
            if ip.more_frags() || ip.frag_offset() != 0 {
                return Err(Dropped::Fragment);
            }
            (ip.src_addr().into(), ip.dst_addr().into(), ip.next_header(), ip.payload())
        }
        Some(6) => {
            let ip = Ipv6Packet::new_checked(packet).map_err(|_| Dropped::Truncated)?;
            (ip.src_addr().into(), ip.dst_addr().into(), ip.next_header(), ip.payload())
        }
        _ => return Err(Dropped::Malformed),
    };
    if !is_single(src) || !is_single(dst) || src == dst && !own {
        return Err(Dropped::BadAddress);
    }
    match (protocol, src, dst) {
        (IpProtocol::Tcp, ..) => segment(src, dst, payload).map(Packet::Segment),
        (IpProtocol::Icmp, IpAddr::V4(_), _) => report_v4(payload).map(Packet::Report),
        (IpProtocol::Icmpv6, IpAddr::V6(src), IpAddr::V6(dst)) => {
            let icmp = Icmpv6Packet::new_checked(payload).map_err(|_| Dropped::Truncated)?;
            if !icmp.verify_checksum(&src, &dst) {
                return Err(Dropped::BadChecksum);
            }
            report_v6(&icmp).map(Packet::Report)
        }
        _ => Err(Dropped::NotTcp),
    }
}

fn segment(src: IpAddr, dst: IpAddr, payload: &[u8]) -> Result<Segment<'_>, Dropped> {
    let packet = TcpPacket::new_checked(payload).map_err(|_| Dropped::Truncated)?;
    let (from, to) = (src.into(), dst.into());
    if !packet.verify_checksum(&from, &to) {
        return Err(Dropped::BadChecksum);
    }
    let ignored = ChecksumCapabilities::ignored();
    let tcp = TcpRepr::parse(&packet, &from, &to, &ignored).map_err(|_| Dropped::Malformed)?;
    Ok(Segment { tuple: Tuple::new((dst, tcp.dst_port), (src, tcp.src_port)), tcp })
}

/// What a report quotes: the IP header of the segment that was not delivered, and 8 bytes of the
/// segment at least, which are its ports and its sequence number.
fn quoted(packet: &[u8], why: Unreachable) -> Result<Report, Dropped> {
    let (src, dst, protocol, header): (IpAddr, IpAddr, _, _) = match packet.first().map(|byte| byte >> 4) {
        Some(4) if packet.len() >= IPV4_HEADER_LEN => {
            let ip = Ipv4Packet::new_unchecked(packet);
            (ip.src_addr().into(), ip.dst_addr().into(), ip.next_header(), usize::from(ip.header_len()))
        }
        Some(6) if packet.len() >= IPV6_HEADER_LEN => {
            let ip = Ipv6Packet::new_unchecked(packet);
            (ip.src_addr().into(), ip.dst_addr().into(), ip.next_header(), IPV6_HEADER_LEN)
        }
        _ => return Err(Dropped::Truncated),
    };
    if protocol != IpProtocol::Tcp {
        return Err(Dropped::NotTcp);
    }
    let segment = packet.get(header..).and_then(|rest| rest.first_chunk::<8>());
    let [a, b, c, d, seq @ ..] = segment.ok_or(Dropped::Truncated)?;
    let (from, to) = (u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d]));
    Ok(Report { tuple: Tuple::new((src, from), (dst, to)), seq: u32::from_be_bytes(*seq), why })
}

fn report_v4(payload: &[u8]) -> Result<Report, Dropped> {
    let icmp = Icmpv4Packet::new_checked(payload).map_err(|_| Dropped::Truncated)?;
    if !icmp.verify_checksum() {
        return Err(Dropped::BadChecksum);
    }
    if icmp.msg_type() != Icmpv4Message::DstUnreachable {
        return Err(Dropped::NotTcp);
    }
    use Icmpv4DstUnreachable as Why;
    let why = match Why::from(icmp.msg_code()) {
        Why::NetUnreachable | Why::DstNetUnknown => Unreachable::Network,
        Why::ProtoUnreachable | Why::PortUnreachable => Unreachable::Port,
        Why::NetProhibited | Why::HostProhibited | Why::CommProhibited => Unreachable::Prohibited,
        // The packets of this crate have the size of the link.
        Why::FragRequired => return Err(Dropped::NotTcp),
        _ => Unreachable::Host,
    };
    quoted(icmp.data(), why)
}

fn report_v6(icmp: &Icmpv6Packet<&[u8]>) -> Result<Report, Dropped> {
    if icmp.msg_type() != Icmpv6Message::DstUnreachable {
        return Err(Dropped::NotTcp);
    }
    use Icmpv6DstUnreachable as Why;
    let why = match Why::from(icmp.msg_code()) {
        Why::NoRoute => Unreachable::Network,
        Why::PortUnreachable => Unreachable::Port,
        Why::AdminProhibit | Why::FailedPolicy | Why::RejectRoute => Unreachable::Prohibited,
        _ => Unreachable::Host,
    };
    quoted(icmp.payload(), why)
}
