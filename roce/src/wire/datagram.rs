//! A whole RoCEv2 packet, from the IP header to the ICRC (IBTA annex A17.3.1).

use core::net::IpAddr;

use super::{icrc, ipv4, ipv6, packet, udp};
use crate::{Error, Gid, UDP_PORT};

/// The network's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// IPv4.
    V4(ipv4::Repr),
    /// IPv6.
    V6(ipv6::Repr),
}

impl Network {
    /// A header as RoCEv2 peers send it; `None` if one address is IPv4 and the other is not. The
    /// payload's length is filled in by [`Repr::emit`].
    pub fn new(src: Gid, dst: Gid, traffic_class: u8, hop_limit: u8) -> Option<Network> {
        match (src.to_ip(), dst.to_ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Network::V4(ipv4::Repr {
                tos: traffic_class,
                ident: 0,
                dont_fragment: true,
                ttl: hop_limit,
                protocol: ipv4::Repr::UDP,
                src,
                dst,
                payload_len: 0,
            })),
            (IpAddr::V6(_), IpAddr::V6(_)) => Some(Network::V6(ipv6::Repr {
                traffic_class,
                flow_label: 0,
                next_header: ipv6::Repr::UDP,
                hop_limit,
                src,
                dst,
                payload_len: 0,
            })),
            _ => None,
        }
    }

    /// The packet's source.
    pub fn src(&self) -> Gid {
        match self {
            Network::V4(ip) => Gid::from_ipv4(ip.src),
            Network::V6(ip) => ip.src,
        }
    }

    /// The destination address.
    pub fn dst(&self) -> Gid {
        match self {
            Network::V4(ip) => Gid::from_ipv4(ip.dst),
            Network::V6(ip) => ip.dst,
        }
    }

    const fn len(&self) -> usize {
        match self {
            Network::V4(_) => ipv4::Repr::LEN,
            Network::V6(_) => ipv6::Repr::LEN,
        }
    }

    /// The traffic class: DSCP, and ECN in the low two bits.
    pub const fn traffic_class(&self) -> u8 {
        match self {
            Network::V4(ip) => ip.tos,
            Network::V6(ip) => ip.traffic_class,
        }
    }

    /// The same header for a packet whose sender reacts to congestion: queues that are long may
    /// mark it, where they would have to drop it otherwise (RFC 3168).
    #[must_use]
    pub const fn ecn_capable(mut self) -> Network {
        const ECT: u8 = 2;
        match &mut self {
            Network::V4(ip) if ip.tos & 3 == 0 => ip.tos |= ECT,
            Network::V6(ip) if ip.traffic_class & 3 == 0 => ip.traffic_class |= ECT,
            Network::V4(_) | Network::V6(_) => {}
        }
        self
    }

    /// How many bytes of headers, network and UDP, are in front of the packet.
    pub const fn headers(&self) -> usize {
        self.len() + udp::Repr::LEN
    }

    /// Completes a datagram in `into`: the packet, `packet_len` bytes from the BTH to the padding,
    /// lies there behind [`Network::headers`] bytes. Writes the headers and the ICRC, and returns
    /// the length of the whole.
    pub fn seal(&self, src_port: u16, packet_len: usize, into: &mut [u8]) -> Result<usize, Error> {
        let have = into.len();
        let need = packet_len.saturating_add(self.headers() + icrc::LEN);
        let into = into.get_mut(..need).ok_or(Error::Truncated { what: "datagram", need, have })?;
        let too_long = Error::Field { field: "packet length", value: need as u64 };
        let payload_len = u16::try_from(packet_len + icrc::LEN).map_err(|_| too_long)?;
        let ip_payload = payload_len.checked_add(udp::Repr::LEN as u16).ok_or(too_long)?;
        let rest = match *self {
            Network::V4(ip) => ipv4::Repr { payload_len: ip_payload, ..ip }.emit(into)?,
            Network::V6(ip) => ipv6::Repr { payload_len: ip_payload, ..ip }.emit(into)?,
        };
        udp::Repr { src_port, dst_port: UDP_PORT, checksum: 0, payload_len }.emit(rest)?;
        let short = Error::Truncated { what: "ICRC", need: icrc::LEN, have };
        let (covered, stored) = into.split_last_chunk_mut::<{ icrc::LEN }>().ok_or(short)?;
        *stored = icrc::compute(covered)?.to_le_bytes();
        Ok(need)
    }

    /// Writes the 40 bytes in front of a received datagram: the IPv6 header as GRH, or twenty bytes
    /// of zeroes and the IPv4 header (annex A17.4.5.1).
    pub fn emit_grh(&self, into: &mut [u8; ipv6::Repr::LEN]) -> Result<(), Error> {
        match self {
            Network::V4(ip) => {
                let (zeroes, header) = into.split_at_mut(ipv6::Repr::LEN - ipv4::Repr::LEN);
                zeroes.fill(0);
                ip.emit(header).map(drop)
            }
            Network::V6(ip) => ip.emit(into).map(drop),
        }
    }

    /// Reads what [`Network::emit_grh`] wrote, or a device that also writes zeroes in front of an
    /// IPv4 header, where the annex leaves the bytes undefined.
    pub fn parse_grh(grh: &[u8; ipv6::Repr::LEN]) -> Result<Network, Error> {
        // The version of the IPv6 header decides. The second half cannot: there an IPv6 header has
        // addresses, and a sender can choose one with which they are a valid IPv4 header.
        if grh[0] >> 4 == 6 {
            return Ok(Network::V6(ipv6::Repr::parse_header(grh)?.0));
        }
        Ok(Network::V4(ipv4::Repr::parse_header(&grh[ipv6::Repr::LEN - ipv4::Repr::LEN..])?.0))
    }
}

/// A packet with its network and UDP headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr<'a> {
    /// The network's header. Its length is derived when emitting.
    pub network: Network,
    /// The sender's UDP port: entropy for load balancing.
    pub src_port: u16,
    /// The packet.
    pub packet: packet::Repr<'a>,
}

impl<'a> Repr<'a> {
    /// How many bytes [`Repr::emit`] writes.
    pub fn len(&self) -> usize {
        self.network.headers() + self.packet.len() + icrc::LEN
    }

    /// Always false: a packet has at least its headers.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Parses the packet at the start of `bytes` and verifies its lengths and checksums. Bytes
    /// behind its end, such as Ethernet's padding, are ignored.
    pub fn parse(bytes: &'a [u8]) -> Result<Repr<'a>, Error> {
        let (network, protocol, payload) = match bytes.first().map_or(0, |byte| byte >> 4) {
            4 => {
                let (ip, payload) = ipv4::Repr::parse(bytes)?;
                (Network::V4(ip), ip.protocol, payload)
            }
            6 => {
                let (ip, payload) = ipv6::Repr::parse(bytes)?;
                (Network::V6(ip), ip.next_header, payload)
            }
            version => return Err(Error::Field { field: "IP version", value: version.into() }),
        };
        if protocol != ipv4::Repr::UDP {
            return Err(Error::Field { field: "IP protocol", value: protocol.into() });
        }
        let (udp, body) = udp::Repr::parse(payload)?;
        if udp.dst_port != UDP_PORT {
            return Err(Error::Field { field: "UDP destination port", value: udp.dst_port.into() });
        }
        let short = Error::Truncated { what: "ICRC", need: icrc::LEN, have: body.len() };
        let (body, stored) = body.split_last_chunk::<{ icrc::LEN }>().ok_or(short)?;
        let found = u32::from_le_bytes(*stored);
        let covered = network.len() + udp::Repr::LEN + body.len();
        let computed = icrc::compute(bytes.get(..covered).ok_or(short)?)?;
        if found != computed {
            return Err(Error::Checksum { what: "ICRC", found, computed });
        }
        Ok(Repr { network, src_port: udp.src_port, packet: packet::Repr::parse(body)? })
    }

    /// Writes the packet at the start of `into`, ICRC included, and returns its length.
    pub fn emit(&self, into: &mut [u8]) -> Result<usize, Error> {
        let len = self.len();
        let have = into.len();
        let into = into.get_mut(..len).ok_or(Error::Truncated { what: "datagram", need: len, have })?;
        let (_, rest) = into.split_at_mut(self.network.headers());
        self.packet.emit(rest)?;
        self.network.seal(self.src_port, self.packet.len(), into)
    }
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::wire::bth;
    use crate::wire::opcode::Opcode;
    use crate::{Psn, Qpn};

    fn send<'a>(network: Network, payload: &'a [u8]) -> Repr<'a> {
        let bth = bth::Repr::new(Opcode::RcSendOnly, Qpn::new(0x1234).unwrap(), Psn::new(7));
        Repr { network, src_port: 0xc000, packet: packet::Repr { payload, ..packet::Repr::new(bth) } }
    }

    fn v4() -> Network {
        let (src, dst) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        Network::new(Gid::from_ipv4(src), Gid::from_ipv4(dst), 3, 64).unwrap()
    }

    fn v6() -> Network {
        let (src, dst) = (Ipv6Addr::LOCALHOST, Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2));
        Network::new(Gid::from_ipv6(src), Gid::from_ipv6(dst), 3, 64).unwrap()
    }

    #[test]
    fn both_networks_carry_a_packet() {
        for network in [v4(), v6()] {
            let sent = send(network, b"hello");
            let mut bytes = [0; 128];
            let len = sent.emit(&mut bytes).unwrap();
            assert_eq!(len, sent.len());
            assert!(!sent.is_empty() && !sent.packet.is_empty());
            let got = Repr::parse(&bytes).unwrap();
            assert_eq!(got.packet.payload, b"hello");
            assert_eq!((got.network.src(), got.network.dst()), (network.src(), network.dst()));
            assert!(matches!(sent.emit(&mut bytes[..len - 1]), Err(Error::Truncated { .. })));
        }
    }

    #[test]
    fn routers_may_change_what_the_icrc_leaves_out_and_nothing_else() {
        for network in [v4(), v6()] {
            let mut bytes = [0; 128];
            let len = send(network, b"hello").emit(&mut bytes).unwrap();
            let ip = network.len();
            let free: &[usize] = if ip == 20 { &[1, 8, 10, 11] } else { &[0, 1, 2, 3, 7] };
            for at in 0..len {
                let mut changed = bytes;
                changed[at] ^= 1;
                let bad = icrc::compute(&changed[..len - 4]) != icrc::compute(&bytes[..len - 4]);
                let masked = free.contains(&at) || at == ip + 6 || at == ip + 7 || at == ip + 12;
                assert_eq!(bad, !masked && at < len - 4, "byte {at}");
            }
            bytes[len - 1] ^= 0x80;
            assert!(matches!(Repr::parse(&bytes), Err(Error::Checksum { what: "ICRC", .. })));
        }
    }

    #[test]
    fn addresses_of_two_families_are_refused() {
        assert_eq!(Network::new(v4().src(), v6().dst(), 0, 64), None);
    }

    #[test]
    fn the_grh_of_a_received_datagram_names_both_ends() {
        for network in [v4(), v6()] {
            let mut grh = [0xee; 40];
            network.emit_grh(&mut grh).unwrap();
            assert_eq!(Network::parse_grh(&grh), Ok(network));
        }
        assert!(Network::parse_grh(&[0; 40]).is_err());
    }

    #[test]
    fn an_ipv6_address_that_makes_an_ipv4_header_of_its_own_header_is_still_one_of_ipv6() {
        let ours = Gid::from_ipv6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1));
        // The last word makes the checksum right.
        let theirs = Gid::from_ipv6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0x4500, 0xbdfd));
        let sent = Network::new(theirs, ours, 0, 64).unwrap();
        let mut grh = [0; 40];
        sent.emit_grh(&mut grh).unwrap();
        assert!(ipv4::Repr::parse_header(&grh[20..]).is_ok(), "it imitates one");
        assert_eq!(Network::parse_grh(&grh), Ok(sent));
    }
}
