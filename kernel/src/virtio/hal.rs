//! What the crate `virtio-drivers` asks of a kernel: memory for its rings, and bus addresses.
#![expect(unsafe_code, reason = "the trait makes promises about memory")]

use core::ptr::NonNull;

use platform::{OutOfMemory, RawDma};
use virtio_drivers::{BufferDirection, Hal, PhysAddr};

use crate::memory::{self, PAGE};

/// The kernel as the crate sees it. There is one, so the type has no values.
pub(super) enum Kernel {}

// SAFETY: DMA memory is fresh zeroed pages, allocated to one holder until they are released. All
// RAM is mapped where it lies, so a device's address of it is the address itself.
unsafe impl Hal for Kernel {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        match pages.checked_mul(PAGE).map(|len| memory::alloc_dma(len, PAGE)) {
            Some(Ok(raw)) => (raw.bus, raw.virt),
            // The crate takes address 0 for a failure.
            Some(Err(OutOfMemory)) | None => (0, NonNull::dangling()),
        }
    }

    unsafe fn dma_dealloc(bus: PhysAddr, virt: NonNull<u8>, pages: usize) -> i32 {
        // SAFETY: the caller's promise: it came from `dma_alloc` with so many pages.
        unsafe { memory::free_dma(RawDma { virt, bus, len: pages * PAGE }) };
        0
    }

    /// Only the crate's own transports call it; this kernel has its own (`pci::virtio`).
    unsafe fn mmio_phys_to_virt(address: PhysAddr, _: usize) -> NonNull<u8> {
        NonNull::new(address as *mut u8).unwrap_or(NonNull::dangling())
    }

    /// Only the address of the buffer is looked at: devices and the driver's users change its
    /// bytes.
    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        buffer.addr().get() as PhysAddr
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}
