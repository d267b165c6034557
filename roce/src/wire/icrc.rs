//! The invariant CRC (IBTA vol. 1 section 7.8.1, annex A17.3.3): the CRC-32 of Ethernet over the
//! packet, in which the fields that a switch or router may change are set to ones.

use crc32fast::Hasher;
use zerocopy::IntoBytes;
use zerocopy::byteorder::network_endian::{U16, U32};

use super::{bth, ipv4, ipv6, split, udp};
use crate::Error;

/// The size of the ICRC in bytes.
pub const LEN: usize = 4;

/// The dummy local route header in front of the packet (section 7.8.1: LRH all ones).
const DUMMY_LRH: [u8; 8] = [0xff; 8];

/// The ICRC of a packet, which begins with the IP header and ends before the ICRC. It is stored
/// least significant byte first.
pub fn compute(packet: &[u8]) -> Result<u32, Error> {
    let mut crc = Hasher::new();
    crc.update(&DUMMY_LRH);
    let version = packet.first().map_or(0, |byte| byte >> 4);
    let rest = match version {
        4 => {
            let (header, rest) = split::<ipv4::Header>(packet, "IPv4 header")?;
            if header.version_ihl != 0x45 {
                let value = header.version_ihl.into();
                return Err(Error::Field { field: "IPv4 version and header length", value });
            }
            let masked = ipv4::Header { tos: 0xff, ttl: 0xff, checksum: U16::new(0xffff), ..*header };
            crc.update(masked.as_bytes());
            rest
        }
        6 => {
            let (header, rest) = split::<ipv6::Header>(packet, "IPv6 header")?;
            let version_class_flow = U32::new(header.version_class_flow.get() | 0x0fff_ffff);
            let masked = ipv6::Header { version_class_flow, hop_limit: 0xff, ..*header };
            crc.update(masked.as_bytes());
            rest
        }
        _ => return Err(Error::Field { field: "IP version", value: version.into() }),
    };
    let (header, rest) = split::<udp::Header>(rest, "UDP header")?;
    crc.update(udp::Header { checksum: U16::new(0xffff), ..*header }.as_bytes());
    let (header, rest) = split::<bth::Header>(rest, "BTH")?;
    crc.update(bth::Header { congestion: 0xff, ..*header }.as_bytes());
    crc.update(rest);
    Ok(crc.finalize())
}
