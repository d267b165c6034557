//! Segments of local and remote memory, as posts name them.

use kernel_agent::RemoteWords;
use rdma::Piece;

use crate::handle::LmrHandle;

/// Names a local memory region in a segment. The consumer gets it when it creates the region.
///
/// C's headers give it 32 bits. Here it contains the region's whole generation, so the context of a
/// freed region names nothing.
#[doc(alias = "DAT_LMR_CONTEXT")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct LmrContext(pub(crate) LmrHandle);

impl LmrContext {
    /// The context of a region, as the consumer got it when it created the region.
    pub const fn of(lmr: LmrHandle) -> LmrContext {
        LmrContext(lmr)
    }
}

/// Names a region in requests of the peer. The number is in network byte order: consumers can send
/// its bytes to the peer as they are.
#[doc(alias = "DAT_RMR_CONTEXT")]
pub type RmrContext = u32;

/// A piece of local memory that a work request reads or writes.
#[doc(alias = "DAT_LMR_TRIPLET")]
#[doc(alias = "DAT_LMR_TRIPLE")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LmrTriplet {
    region: LmrHandle,
    address: u64,
    length: u64,
}

impl LmrTriplet {
    /// The segment of `segment_length` bytes at `virtual_address` of a region.
    #[inline(always)]
    pub const fn new(lmr_context: LmrContext, virtual_address: u64, segment_length: u64) -> LmrTriplet {
        LmrTriplet { region: lmr_context.0, address: virtual_address, length: segment_length }
    }

    /// The region.
    pub const fn lmr_context(&self) -> LmrContext {
        LmrContext(self.region)
    }

    /// The address in the region.
    pub const fn virtual_address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    pub const fn segment_length(&self) -> u64 {
        self.length
    }
}

impl Piece for LmrTriplet {
    #[inline(always)]
    fn region(&self) -> u64 {
        self.region.as_raw()
    }

    #[inline(always)]
    fn addr(&self) -> u64 {
        self.address
    }

    #[inline(always)]
    fn length(&self) -> u64 {
        self.length
    }
}

/// A part of the peer's memory that a request reads or writes.
///
/// The length of a transfer is the sum of the local segments. `segment_length` is not checked: the
/// peer's NIC checks the transfer against the size of the region.
#[doc(alias = "DAT_RMR_TRIPLET")]
#[doc(alias = "DAT_RMR_TRIPLE")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RmrTriplet {
    /// The region.
    pub rmr_context: RmrContext,
    /// The address in the peer's memory, in host byte order; an offset in a zero-based region.
    pub target_address: u64,
    /// Bytes.
    pub segment_length: u64,
}

impl RmrTriplet {
    /// The address and the context, as the driver takes them.
    #[inline(always)]
    pub(crate) fn words(&self) -> RemoteWords {
        RemoteWords { addr: self.target_address, ..RemoteWords::from_be(0, self.rmr_context) }
    }
}

/// The sum of the segments' lengths.
#[inline(always)]
pub(crate) fn total(segments: &[LmrTriplet]) -> u64 {
    match segments {
        [only] => only.segment_length(),
        several => sum(several),
    }
}

#[cold]
#[inline(never)]
fn sum(segments: &[LmrTriplet]) -> u64 {
    segments.iter().fold(0, |sum, segment| sum.saturating_add(segment.segment_length()))
}
