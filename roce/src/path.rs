//! A path between two ports: the one record that requests, connections and address vectors are made
//! of.

use crate::Gid;

/// A path between two ports, as the port at its local end sees it (IBTA vol. 1 section 12.7.9 and
/// following).
///
/// Of these RoCEv2 uses the GIDs, the traffic class, the flow label and the hop limit; the rest is
/// carried as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Path {
    /// The local port.
    pub local_gid: Gid,
    /// The remote port.
    pub remote_gid: Gid,
    /// Flow label; 20 bits.
    pub flow_label: u32,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level; 4 bits.
    pub sl: u8,
    /// Packet rate; 6 bits.
    pub packet_rate: u8,
    /// Whether both ports are in one subnet.
    pub subnet_local: bool,
}

impl Path {
    /// The largest flow label.
    pub const MAX_FLOW_LABEL: u32 = 0xf_ffff;
    /// The largest service level.
    pub const MAX_SL: u8 = 0xf;
    /// The largest packet rate.
    pub const MAX_PACKET_RATE: u8 = 0x3f;
    /// The hop limit of a path whose maker names none.
    pub const HOP_LIMIT: u8 = 64;

    /// A path with [`Path::HOP_LIMIT`] and zeroes in all other fields.
    pub fn new(local_gid: Gid, remote_gid: Gid) -> Path {
        Path { local_gid, remote_gid, hop_limit: Path::HOP_LIMIT, ..Path::default() }
    }
}

/// The largest payload of a packet (IBTA vol. 1 section 12.7.15).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum PathMtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl PathMtu {
    /// The MTU of a code.
    pub const fn from_code(code: u8) -> Option<PathMtu> {
        Some(match code {
            1 => PathMtu::B256,
            2 => PathMtu::B512,
            3 => PathMtu::B1024,
            4 => PathMtu::B2048,
            5 => PathMtu::B4096,
            _ => return None,
        })
    }

    /// The largest MTU of at most `bytes` bytes; the smallest one if there is none.
    pub const fn at_most(bytes: u32) -> PathMtu {
        match bytes {
            4096.. => PathMtu::B4096,
            2048.. => PathMtu::B2048,
            1024.. => PathMtu::B1024,
            512.. => PathMtu::B512,
            _ => PathMtu::B256,
        }
    }

    /// Its code.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Its size in bytes.
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// How many packets a message of so many bytes takes: at least one.
    pub const fn packets(self, length: u32) -> u32 {
        if length == 0 { 1 } else { length.div_ceil(self.bytes()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_codes_and_sizes_convert_both_ways() {
        for code in 1..=5 {
            let mtu = PathMtu::from_code(code).unwrap();
            assert_eq!((mtu.code(), PathMtu::at_most(mtu.bytes())), (code, mtu));
            assert_eq!(PathMtu::at_most(mtu.bytes() * 2 - 1), mtu);
        }
        assert_eq!([0, 1, 256, 257, 1 << 31].map(|n| PathMtu::B256.packets(n)), [1, 1, 1, 2, 1 << 23]);
        assert_eq!((PathMtu::from_code(0), PathMtu::from_code(6)), (None, None));
        assert_eq!((PathMtu::at_most(0), PathMtu::at_most(u32::MAX)), (PathMtu::B256, PathMtu::B4096));
    }
}
