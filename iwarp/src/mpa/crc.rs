//! CRC-32C, by which MPA protects an FPDU (RFC 5044 section 4.4).
//!
//! With the feature `cpu-crc` it is computed by the CPU's instruction, if the CPU has one; without,
//! by tables, which need neither an instruction nor the standard library.

use core::fmt;

#[cfg(any(test, not(feature = "cpu-crc")))]
use crc::{CRC_32_ISCSI, Crc, Table};

/// Sixteen bytes a step, by tables of 16 KiB.
#[cfg(any(test, not(feature = "cpu-crc")))]
static TABLES: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISCSI);

/// The checksum of the bytes whose checksum is `crc`, and of `bytes` behind them, by the tables.
#[cfg(any(test, not(feature = "cpu-crc")))]
fn by_tables(crc: u32, bytes: &[u8]) -> u32 {
    // The register is the complement of the checksum. The crate takes it with its bits in the order
    // of the polynomial, which this checksum reverses.
    let mut digest = TABLES.digest_with_initial((!crc).reverse_bits());
    digest.update(bytes);
    digest.finalize()
}

#[cfg(not(feature = "cpu-crc"))]
use by_tables as append;
#[cfg(feature = "cpu-crc")]
use crc32c::crc32c_append as append;

/// A checksum that is being computed.
#[derive(Clone, Default)]
pub struct Crc32c(u32);

impl Crc32c {
    /// The checksum of no bytes.
    pub const fn new() -> Crc32c {
        Crc32c(0)
    }

    /// Adds `bytes` behind those so far.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0 = append(self.0, bytes);
    }

    /// The checksum.
    pub const fn finish(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Crc32c {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Crc32c({:#x})", self.0)
    }
}

/// The checksum of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    append(0, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_specification() {
        // RFC 3720 appendix B.4, read as the numbers that the bytes there are in little-endian
        // order.
        let ascending: [u8; 32] = core::array::from_fn(|i| i as u8);
        let examples: [(&[u8], u32); 4] = [
            (&[0; 32], 0x8a91_36aa),
            (&[0xff; 32], 0x62a8_ab43),
            (&ascending, 0x46dd_794e),
            (b"123456789", 0xe306_9283),
        ];
        for (bytes, checksum) in examples {
            assert_eq!(crc32c(bytes), checksum);
            assert_eq!(by_tables(0, bytes), checksum);
        }
    }

    #[test]
    fn the_parts_have_the_checksum_of_the_whole() {
        // Longer than what the CPU takes in one step, and than the steps that it interleaves.
        let bytes: [u8; 9000] = core::array::from_fn(|i| (i * 7 + i / 251) as u8);
        let whole = crc32c(&bytes);
        assert_eq!(by_tables(0, &bytes), whole);
        for cut in (0..100).chain([255, 256, 1023, 1024, 4096, 8191, 8999, 9000]) {
            let (front, back) = bytes.split_at(cut);
            let mut crc = Crc32c::new();
            crc.update(front);
            assert_eq!(by_tables(crc.clone().finish(), back), whole);
            crc.update(back);
            assert_eq!(crc.finish(), whole);
        }
    }
}
