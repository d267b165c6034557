//! The Discovery log page (fabrics 5): a header and as many entries as it says, all of one size.

use core::net::IpAddr;

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ascii::ascii;
use crate::{Nqn, set_ascii};

/// Transport types (TRTYPE).
pub mod transport {
    /// RDMA.
    pub const RDMA: u8 = 1;
    /// Fibre Channel.
    pub const FIBRE_CHANNEL: u8 = 2;
    /// TCP.
    pub const TCP: u8 = 3;
}

/// Address families (ADRFAM).
pub mod address_family {
    /// IPv4, in dotted notation.
    pub const IPV4: u8 = 1;
    /// IPv6.
    pub const IPV6: u8 = 2;
    /// InfiniBand.
    pub const INFINIBAND: u8 = 3;
}

/// Subsystem types (SUBTYPE).
pub mod subsystem {
    /// Another discovery service: a referral.
    pub const REFERRAL: u8 = 1;
    /// An NVM subsystem.
    pub const NVM: u8 = 2;
    /// The discovery subsystem that gives the page.
    pub const CURRENT_DISCOVERY: u8 = 3;
}

/// RDMA provider types ([`RdmaAddress::prtype`]).
pub mod provider {
    /// None specified.
    pub const NONE: u8 = 1;
    /// InfiniBand.
    pub const INFINIBAND: u8 = 2;
    /// RoCE v1.
    pub const ROCE: u8 = 3;
    /// RoCE v2.
    pub const ROCE_V2: u8 = 4;
    /// iWARP.
    pub const IWARP: u8 = 5;
}

/// The head of the Discovery log page.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiscoveryHeader {
    /// Generation Counter: it changes with the page.
    pub genctr: U64,
    /// Number of Records.
    pub numrec: U64,
    /// Record Format: 0.
    pub recfmt: U16,
    _reserved_18: [u8; 1006],
}

const _: () = assert!(size_of::<DiscoveryHeader>() == 1024);

impl DiscoveryHeader {
    /// The header of a page with `numrec` entries.
    pub fn new(genctr: u64, numrec: u64) -> Self {
        Self { genctr: genctr.into(), numrec: numrec.into(), ..Self::new_zeroed() }
    }
}

/// An entry of the Discovery log page.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiscoveryEntry {
    /// Transport Type: one of [`transport`].
    pub trtype: u8,
    /// Address Family: one of [`address_family`].
    pub adrfam: u8,
    /// Subsystem Type: one of [`subsystem`].
    pub subtype: u8,
    /// Transport Requirements: bits 1:0 secure channel (2: not required), bit 2: SQ flow control
    /// may be disabled.
    pub treq: u8,
    /// Port ID.
    pub portid: U16,
    /// Controller ID: [`crate::fabrics::CNTLID_DYNAMIC`] for the dynamic controller model.
    pub cntlid: U16,
    /// Admin Max SQ Size, at least 32.
    pub asqsz: U16,
    /// Entry Flags: [`EntryFlags`].
    pub eflags: U16,
    _reserved_12: [u8; 20],
    /// Transport Service Identifier, ASCII: the port.
    pub trsvcid: [u8; 32],
    _reserved_64: [u8; 192],
    /// NVM Subsystem Qualified Name.
    pub subnqn: [u8; 256],
    /// Transport Address, ASCII.
    pub traddr: [u8; 256],
    /// Transport Specific Address Subtype.
    pub tsas: RdmaAddress,
}

const _: () = assert!(size_of::<DiscoveryEntry>() == 1024);

/// The Transport Specific Address Subtype of RDMA (fabrics 7.3).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RdmaAddress {
    /// RDMA QP Service Type: 1 for reliable connected.
    pub qptype: u8,
    /// RDMA Provider Type: one of [`provider`].
    pub prtype: u8,
    /// RDMA Connection Management Service: 1 for RDMA_CM.
    pub cms: u8,
    _reserved_3: [u8; 5],
    /// Partition Key, for addresses of InfiniBand.
    pub pkey: U16,
    _reserved_10: [u8; 246],
}

const _: () = assert!(size_of::<RdmaAddress>() == 256);

bitflags! {
    /// [`DiscoveryEntry::eflags`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct EntryFlags: u16 {
        /// Entries of this subsystem give the same information as others do (DUPRETINFO).
        const DUPLICATE = 1 << 0;
        /// Explicit Persistent Connection Support for Discovery (EPCSD).
        const PERSISTENT = 1 << 1;
    }
}

impl DiscoveryEntry {
    /// The entry of a subsystem that RDMA by this provider ([`provider`]) reaches at this address:
    /// a dynamic controller model, the least admin queue, no secure channel, port id 0.
    pub fn rdma(subtype: u8, subnqn: Nqn<'_>, provider: u8, (address, port): (IpAddr, u16)) -> Self {
        let mut entry = Self::new_zeroed();
        entry.trtype = transport::RDMA;
        entry.adrfam = if address.is_ipv4() { address_family::IPV4 } else { address_family::IPV6 };
        entry.subtype = subtype;
        entry.cntlid = crate::fabrics::CNTLID_DYNAMIC.into();
        entry.asqsz = crate::fabrics::ADMIN_SQ_MIN.into();
        subnqn.write(&mut entry.subnqn);
        set_display(&mut entry.traddr, address);
        set_display(&mut entry.trsvcid, port);
        entry.tsas.qptype = 1;
        entry.tsas.prtype = provider;
        entry.tsas.cms = 1;
        entry
    }

    /// Transport Address, if it is printable ASCII.
    pub fn address(&self) -> Option<&str> {
        ascii(&self.traddr)
    }

    /// Transport Service Identifier, if it is printable ASCII.
    pub fn service(&self) -> Option<&str> {
        ascii(&self.trsvcid)
    }
}

/// Writes what `value` displays, at most 63 bytes, into a field of ASCII.
fn set_display(field: &mut [u8], value: impl core::fmt::Display) {
    struct Text {
        bytes: [u8; 63],
        len: usize,
    }

    impl core::fmt::Write for Text {
        fn write_str(&mut self, text: &str) -> core::fmt::Result {
            let end = self.len + text.len();
            self.bytes.get_mut(self.len..end).ok_or(core::fmt::Error)?.copy_from_slice(text.as_bytes());
            self.len = end;
            Ok(())
        }
    }

    let mut text = Text { bytes: [0; 63], len: 0 };
    // An address and a number are shorter.
    let _ = core::fmt::write(&mut text, format_args!("{value}"));
    set_ascii(field, core::str::from_utf8(&text.bytes[..text.len]).unwrap_or(""));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nqn;

    #[test]
    fn an_entry_of_a_subsystem_on_roce() {
        let nqn = Nqn::new(b"nqn.2024-01.org.example:disk").unwrap();
        let place = ([10, 0, 0, 1].into(), 4420);
        let mut entry = DiscoveryEntry::rdma(subsystem::NVM, nqn, provider::ROCE_V2, place);
        let bytes = entry.as_bytes();
        assert_eq!(bytes[..12], [1, 1, 2, 0, 0, 0, 0xff, 0xff, 32, 0, 0, 0]);
        assert_eq!(bytes[32..64], *b"4420                            ");
        assert_eq!(bytes[256..285], *b"nqn.2024-01.org.example:disk\0");
        assert_eq!(bytes[512..522], *b"10.0.0.1  ");
        assert_eq!(bytes[767], b' ');
        assert_eq!(bytes[768..778], [1, 4, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((entry.address(), entry.service()), (Some("10.0.0.1"), Some("4420")));
        assert_eq!(Nqn::read(&entry.subnqn), Ok(nqn));
        entry.traddr[0] = 0x1b;
        entry.trsvcid[3] = 0xff;
        assert_eq!((entry.address(), entry.service()), (None, None));
    }

    #[test]
    fn an_entry_with_an_address_of_ipv6_over_iwarp() {
        let address = "2001:db8:1111:2222:3333:4444:5555:6666".parse().unwrap();
        let (kind, provider) = (subsystem::CURRENT_DISCOVERY, provider::IWARP);
        let entry = DiscoveryEntry::rdma(kind, nqn::DISCOVERY, provider, (address, 65535));
        assert_eq!((entry.adrfam, entry.subtype, entry.tsas.prtype), (2, 3, 5));
        assert_eq!(entry.address(), Some("2001:db8:1111:2222:3333:4444:5555:6666"));
        assert_eq!(entry.service(), Some("65535"));
    }

    #[test]
    fn a_text_of_the_wrong_length_is_left_out() {
        let mut field = [0; 4];
        set_display(&mut field, format_args!("{:64}", 1));
        assert_eq!(&field, b"    ");
    }

    #[test]
    fn the_header() {
        let header = DiscoveryHeader::new(0x0102, 3);
        assert_eq!(header.as_bytes()[..20], [2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
