//! The Ethernet II header, with a tag of IEEE 802.1Q or without, as far as a RoCEv2 port needs it.

use core::net::{IpAddr, Ipv6Addr};

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{put, split};
use crate::Error;

/// The layout on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// The destination address.
    pub dst: [u8; 6],
    /// The source address.
    pub src: [u8; 6],
    /// The protocol of the payload; [`Repr::TAGGED`] if a tag follows.
    pub ether_type: U16,
}

/// The layout of a tag behind its type.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Tag {
    /// Priority (3 bits), drop eligibility, and the number of the VLAN (12 bits).
    pub control: U16,
    /// The protocol of the payload.
    pub ether_type: U16,
}

const _: () = assert!(size_of::<Header>() == Repr::LEN && size_of::<Tag>() == Repr::TAG);

/// The MAC of a multicast group (RFC 1112 section 6.4, RFC 2464 section 7); `None` for the address
/// of a node.
pub fn group_mac(address: IpAddr) -> Option<[u8; 6]> {
    match address {
        IpAddr::V4(group) if group.is_multicast() => {
            let [_, a, b, c] = group.octets();
            Some([0x01, 0x00, 0x5e, a & 0x7f, b, c])
        }
        IpAddr::V6(group) if group.is_multicast() => Some(group_mac_v6(group)),
        _ => None,
    }
}

/// The MAC of a multicast group of IPv6.
pub fn group_mac_v6(group: Ipv6Addr) -> [u8; 6] {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

/// The decoded header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The destination address.
    pub dst: [u8; 6],
    /// The source address.
    pub src: [u8; 6],
    /// The VLAN that the frame is of. A frame without a tag is of none, and so is one whose tag has
    /// number 0: that tag only gives a priority (IEEE 802.1Q section 9.6).
    pub vlan: Option<u16>,
    /// The protocol of the payload.
    pub ether_type: u16,
}

impl Repr {
    /// The size in bytes of a header without a tag.
    pub const LEN: usize = 14;
    /// How many bytes a tag adds.
    pub const TAG: usize = 4;
    /// The type of a frame that carries IPv4.
    pub const IPV4: u16 = 0x0800;
    /// The type of a frame that carries IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// The type of a frame that carries ARP.
    pub const ARP: u16 = 0x0806;
    /// The type in front of a tag of IEEE 802.1Q.
    pub const TAGGED: u16 = 0x8100;
    /// The largest number of a VLAN: 4,095 is reserved.
    pub const MAX_VLAN: u16 = 0xffe;

    /// The size in bytes of the header that [`Repr::emit`] writes.
    pub const fn len(&self) -> usize {
        match self.vlan {
            Some(_) => Repr::LEN + Repr::TAG,
            None => Repr::LEN,
        }
    }

    /// Always false.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Parses the header at the start of `bytes`, with its tag; returns it and the bytes behind it.
    /// Of several tags it parses the first one only, so `ether_type` is then that of the second.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Repr, &[u8]), Error> {
        let (header, rest) = split::<Header>(bytes, "Ethernet header")?;
        let repr = Repr { dst: header.dst, src: header.src, vlan: None, ether_type: header.ether_type.get() };
        if repr.ether_type != Repr::TAGGED {
            return Ok((repr, rest));
        }
        let (tag, rest) = split::<Tag>(rest, "802.1Q tag")?;
        let vlan = Some(tag.control.get() & 0xfff).filter(|number| *number != 0);
        Ok((Repr { vlan, ether_type: tag.ether_type.get(), ..repr }, rest))
    }

    /// Writes the header at the start of `into`, with a tag of priority 0 if the frame is of a
    /// VLAN, and returns the rest of it.
    #[inline]
    pub fn emit<'a>(&self, into: &'a mut [u8]) -> Result<&'a mut [u8], Error> {
        let ether_type = if self.vlan.is_some() { Repr::TAGGED } else { self.ether_type };
        let header = Header { dst: self.dst, src: self.src, ether_type: ether_type.into() };
        let rest = put(into, &header, "Ethernet header")?;
        match self.vlan {
            Some(number) => {
                let tag = Tag { control: number.into(), ether_type: self.ether_type.into() };
                put(rest, &tag, "802.1Q tag")
            }
            None => Ok(rest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Repr = Repr { dst: [1; 6], src: [2; 6], vlan: None, ether_type: Repr::IPV4 };

    #[test]
    fn a_header_is_read_as_it_was_written_with_its_tag_or_without() {
        for (repr, len) in [(PLAIN, 14), (Repr { vlan: Some(Repr::MAX_VLAN), ..PLAIN }, 18)] {
            let mut frame = [7; 20];
            assert_eq!((repr.len(), repr.emit(&mut frame).unwrap().len()), (len, 20 - len));
            assert_eq!(Repr::parse(&frame), Ok((repr, &[7; 20][len..])));
            assert!(repr.emit(&mut frame[..len - 1]).is_err());
            assert!(Repr::parse(&frame[..len - 1]).is_err());
        }
        let mut tagged = [0; 18];
        Repr { vlan: Some(5), ..PLAIN }.emit(&mut tagged).unwrap();
        assert_eq!(tagged[12..], [0x81, 0, 0, 5, 8, 0]);
    }

    #[test]
    fn a_tag_of_vlan_0_gives_a_priority_only() {
        let mut frame = [0; 18];
        Repr { vlan: Some(1), ..PLAIN }.emit(&mut frame).unwrap();
        for control in [0x0000_u16, 0x6000, 0xe000, 0xf000] {
            frame[14..16].copy_from_slice(&control.to_be_bytes());
            assert_eq!(Repr::parse(&frame), Ok((PLAIN, &[][..])), "{control:#x}");
        }
        frame[14..16].copy_from_slice(&[0x70, 5]);
        assert_eq!(Repr::parse(&frame), Ok((Repr { vlan: Some(5), ..PLAIN }, &[][..])));
    }
}
