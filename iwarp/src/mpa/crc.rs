//! CRC-32C, by which MPA protects an FPDU (RFC 5044 section 4.4).

use core::fmt;

use crc::{CRC_32_ISCSI, Crc, Digest, Table};

/// Sixteen bytes a step, by tables of 16 KiB.
static CRC32C: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISCSI);

/// A checksum that is being computed.
#[derive(Clone)]
pub struct Crc32c(Digest<'static, u32, Table<16>>);

impl Crc32c {
    /// The checksum of no bytes.
    pub fn new() -> Crc32c {
        Crc32c(CRC32C.digest())
    }

    /// Adds `bytes` behind those so far.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum.
    pub fn finish(self) -> u32 {
        self.0.finalize()
    }
}

impl Default for Crc32c {
    fn default() -> Crc32c {
        Crc32c::new()
    }
}

impl fmt::Debug for Crc32c {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Crc32c({:#x})", self.clone().finish())
    }
}

/// The checksum of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    CRC32C.checksum(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_specification() {
        // RFC 3720 appendix B.4, read as the numbers that the bytes there are in little-endian
        // order.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        let ascending: [u8; 32] = core::array::from_fn(|i| i as u8);
        assert_eq!(crc32c(&ascending), 0x46dd_794e);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn the_parts_have_the_checksum_of_the_whole() {
        let bytes: [u8; 100] = core::array::from_fn(|i| (i * 7) as u8);
        for cut in 0..=100 {
            let mut crc = Crc32c::new();
            crc.update(&bytes[..cut]);
            crc.update(&bytes[cut..]);
            assert_eq!(crc.finish(), crc32c(&bytes));
        }
    }
}
