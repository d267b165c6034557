//! DMA memory: whole pages, counted while they are allocated.
#![expect(unsafe_code, reason = "allocates and releases memory")]

use core::sync::atomic::{AtomicUsize, Ordering};

use platform::{OutOfMemory, RawDma};

use super::frames;
use crate::region::PAGE;

/// Bytes that are allocated and not released.
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

/// Bytes that are allocated and not released.
pub(super) fn allocated() -> usize {
    ALLOCATED.load(Ordering::Relaxed)
}

/// See [`platform::Platform::alloc_dma`].
pub(crate) fn alloc_dma(len: usize, align: usize) -> Result<RawDma, OutOfMemory> {
    let len = len.max(1).checked_next_multiple_of(PAGE).ok_or(OutOfMemory)?;
    let virt = frames::alloc_pages(len, align)?;
    // SAFETY: fresh pages of that length. Zeroed here and not under the allocator's lock, where
    // interrupts are off.
    unsafe { virt.write_bytes(0, len) };
    ALLOCATED.fetch_add(len, Ordering::Relaxed);
    Ok(RawDma { virt, bus: virt.addr().get() as u64, len })
}

/// See [`platform::Platform::free_dma`].
///
/// # Safety
///
/// `raw` came from [`alloc_dma`], is released once, and neither a device nor a view uses it any
/// more.
pub(crate) unsafe fn free_dma(raw: RawDma) {
    ALLOCATED.fetch_sub(raw.len, Ordering::Relaxed);
    // SAFETY: the caller's promise.
    unsafe { frames::free_pages(raw.virt, raw.len) };
}
