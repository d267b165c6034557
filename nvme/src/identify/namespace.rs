//! The Identify Namespace data structure (base 5.15.2.1).

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The Identify Namespace data structure. All of it is 0 for an NSID that is not active.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Namespace {
    /// Namespace Size in logical blocks.
    pub nsze: U64,
    /// Namespace Capacity in logical blocks.
    pub ncap: U64,
    /// Namespace Utilization in logical blocks.
    pub nuse: U64,
    /// Namespace Features: [`Nsfeat`].
    pub nsfeat: u8,
    /// Number of LBA Formats, 0-based.
    pub nlbaf: u8,
    /// Formatted LBA Size: the index into `lbaf` in bits 3:0.
    pub flbas: u8,
    /// Metadata Capabilities.
    pub mc: u8,
    /// End-to-end Data Protection Capabilities.
    pub dpc: u8,
    /// End-to-end Data Protection Type Settings.
    pub dps: u8,
    /// Namespace Multi-path I/O and Namespace Sharing Capabilities: [`Nmic`].
    pub nmic: u8,
    /// Reservation Capabilities.
    pub rescap: u8,
    /// Format Progress Indicator.
    pub fpi: u8,
    /// Deallocate Logical Block Features: [`Dlfeat`].
    pub dlfeat: u8,
    /// Namespace Atomic Write Unit Normal in logical blocks, 0-based.
    pub nawun: U16,
    /// Namespace Atomic Write Unit Power Fail in logical blocks, 0-based.
    pub nawupf: U16,
    /// Namespace Atomic Compare & Write Unit in logical blocks, 0-based.
    pub nacwu: U16,
    /// Namespace Atomic Boundary Size Normal.
    pub nabsn: U16,
    /// Namespace Atomic Boundary Offset.
    pub nabo: U16,
    /// Namespace Atomic Boundary Size Power Fail.
    pub nabspf: U16,
    /// Namespace Optimal I/O Boundary in logical blocks.
    pub noiob: U16,
    /// NVM Capacity in bytes.
    pub nvmcap: U128,
    /// Namespace Preferred Write Granularity in logical blocks, 0-based.
    pub npwg: U16,
    /// Namespace Preferred Write Alignment in logical blocks, 0-based.
    pub npwa: U16,
    /// Namespace Preferred Deallocate Granularity in logical blocks, 0-based.
    pub npdg: U16,
    /// Namespace Preferred Deallocate Alignment in logical blocks, 0-based.
    pub npda: U16,
    /// Namespace Optimal Write Size in logical blocks, 0-based.
    pub nows: U16,
    /// Maximum Single Source Range Length of a Copy in logical blocks.
    pub mssrl: U16,
    /// Maximum Copy Length in logical blocks.
    pub mcl: U32,
    /// Maximum Source Range Count of a Copy, 0-based.
    pub msrc: u8,
    _reserved_81: [u8; 11],
    /// ANA Group Identifier.
    pub anagrpid: U32,
    _reserved_96: [u8; 3],
    /// Namespace Attributes: bit 0 for write protected.
    pub nsattr: u8,
    /// NVM Set Identifier.
    pub nvmsetid: U16,
    /// Endurance Group Identifier.
    pub endgid: U16,
    /// Namespace Globally Unique Identifier, big-endian.
    pub nguid: [u8; 16],
    /// IEEE Extended Unique Identifier, big-endian.
    pub eui64: [u8; 8],
    /// LBA Format Support.
    pub lbaf: [LbaFormat; 16],
    _reserved_192: [u8; 192],
    /// Vendor Specific.
    pub vs: [u8; 3712],
}

const _: () = assert!(size_of::<Namespace>() == super::LEN);

/// The Identify Namespace data structure that no command set owns (base 2.0, 5.17.2.8).
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IndependentNamespace {
    /// Common Namespace Features.
    pub nsfeat: u8,
    /// As [`Namespace::nmic`].
    pub nmic: u8,
    /// As [`Namespace::rescap`].
    pub rescap: u8,
    /// As [`Namespace::fpi`].
    pub fpi: u8,
    /// As [`Namespace::anagrpid`].
    pub anagrpid: U32,
    /// As [`Namespace::nsattr`].
    pub nsattr: u8,
    _reserved_9: u8,
    /// As [`Namespace::nvmsetid`].
    pub nvmsetid: U16,
    /// As [`Namespace::endgid`].
    pub endgid: U16,
    /// Namespace Status: bit 0 for ready.
    pub nstat: u8,
    _reserved_15: [u8; 4081],
}

const _: () = assert!(size_of::<IndependentNamespace>() == super::LEN);

/// An LBA Format data structure (base 5.15.2.1).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LbaFormat {
    /// Metadata Size in bytes.
    pub ms: U16,
    /// LBA Data Size: a power of two of bytes, at least 9; 0 for a format that does not exist.
    pub lbads: u8,
    /// Relative Performance in bits 1:0, 0 for the best.
    pub rp: u8,
}

const _: () = assert!(size_of::<LbaFormat>() == 4);

impl LbaFormat {
    /// A format without metadata.
    pub fn new(lbads: u8) -> Self {
        Self { ms: U16::ZERO, lbads, rp: 0 }
    }
}

impl Namespace {
    /// The format in use.
    pub fn format(&self) -> LbaFormat {
        self.lbaf[usize::from(self.flbas & 0xf)]
    }

    /// Bytes of a logical block, without metadata. Nothing if the controller claims less than 512
    /// or what 32 bits cannot hold.
    pub fn block_size(&self) -> Option<u32> {
        match self.format().lbads {
            lbads @ 9..=31 => Some(1 << lbads),
            _ => None,
        }
    }
}

bitflags! {
    /// [`Namespace::nsfeat`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Nsfeat: u8 {
        /// Thin provisioning: NCAP may be less than NSZE.
        const THIN_PROVISIONING = 1 << 0;
        /// NAWUN, NAWUPF and NACWU hold instead of the controller's.
        const ATOMIC_WRITE_UNITS = 1 << 1;
        /// Deallocated or Unwritten Logical Block errors are supported.
        const DEALLOCATED_ERROR = 1 << 2;
        /// NGUID and EUI64 are not used again.
        const UNIQUE_IDS = 1 << 3;
        /// NPWG, NPWA, NPDG, NPDA and NOWS are defined (OPTPERF).
        const OPTIMAL_PERFORMANCE = 1 << 4;
    }

    /// [`Namespace::nmic`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Nmic: u8 {
        /// Several controllers may have the namespace at the same time.
        const SHARED = 1 << 0;
    }

    /// [`Namespace::dlfeat`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Dlfeat: u8 {
        /// A deallocated block reads as zeros (bits 2:0 are 001b).
        const READS_ZEROS = 0b001;
        /// A deallocated block reads as ones (bits 2:0 are 010b).
        const READS_ONES = 0b010;
        /// Write Zeroes has a Deallocate bit.
        const WRITE_ZEROES_DEALLOCATES = 1 << 3;
    }
}
