//! The allocator of pages ([`Extents`]), which keeps its nodes in the free pages.
#![expect(unsafe_code, reason = "keeps its nodes in the memory that it manages")]

use core::ptr::NonNull;

use platform::OutOfMemory;
use platform::extents::{Extents, Node, Nodes};

use crate::lock::IrqLock;
use crate::region::PAGE;

/// Nodes at the beginning of the free extents that they describe.
struct InPlace(());

static FRAMES: IrqLock<Extents<InPlace>> = IrqLock::new(Extents::new(InPlace(()), PAGE));

const _: () = assert!(size_of::<Node>() <= PAGE);

impl Nodes for InPlace {
    fn load(&self, addr: usize) -> Node {
        // SAFETY: a node was stored here, and the pages were not allocated since. RAM is mapped
        // where it lies, and free pages belong to the one instance, which lies in a lock.
        unsafe { (addr as *const Node).read() }
    }

    fn store(&mut self, addr: usize, node: Node) {
        // SAFETY: the pages are free; otherwise as in `load`.
        unsafe { (addr as *mut Node).write(node) }
    }
}

/// Makes the pages from `start` to `end` available.
pub(super) fn add(start: u64, end: u64) {
    let page = PAGE as u64;
    let (start, end) = (start.next_multiple_of(page).max(page), end & !(page - 1));
    if end > start {
        FRAMES.lock().release(start as usize, (end - start) as usize);
    }
}

/// Allocates `len` bytes, a multiple of [`PAGE`], aligned to `align` and at least to a page. They
/// are not zeroed.
pub(super) fn alloc_pages(len: usize, align: usize) -> Result<NonNull<u8>, OutOfMemory> {
    let found = FRAMES.lock().allocate(len, align.max(PAGE)).ok_or(OutOfMemory)?;
    NonNull::new(found as *mut u8).ok_or(OutOfMemory)
}

/// Releases pages.
///
/// # Safety
///
/// `pages` came from [`alloc_pages`] with this `len`, and nothing uses them any more.
pub(super) unsafe fn free_pages(pages: NonNull<u8>, len: usize) {
    FRAMES.lock().release(pages.addr().get(), len);
}

/// The number of free bytes.
pub(super) fn free_bytes() -> usize {
    FRAMES.lock().free_bytes()
}
