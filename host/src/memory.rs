//! Memory that devices of this process can reach.

use nic_model::GuestMemory;
use platform::{BusExtent, OutOfMemory, RawDma};

/// What [`HostPlatform`](crate::HostPlatform) allocates DMA memory from.
pub trait DmaMemory: GuestMemory + Send + Sync + 'static {
    /// Allocates `len` zeroed bytes, aligned to `align` (a power of two).
    fn alloc(&self, len: usize, align: usize) -> Result<RawDma, OutOfMemory>;

    /// Releases what [`DmaMemory::alloc`] returned.
    fn release(&self, raw: &RawDma);

    /// The bus address of an address of this process, and how many bytes from there on are
    /// contiguous; `None` if no device reaches it.
    fn translate(&self, virt: usize) -> Option<BusExtent>;

    /// The first bus address that no device reaches.
    fn limit(&self) -> u64;
}
