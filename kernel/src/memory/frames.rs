//! The allocator of pages: first fit over a list of free extents, in order of address.
//!
//! The list lies in the free memory itself: an extent's first bytes hold its length and the address
//! of the next extent. Neighbours are always merged, so the list is as short as it can be.
#![expect(unsafe_code, reason = "keeps its list in the memory that it manages")]

use core::ptr::NonNull;

use platform::OutOfMemory;

use crate::lock::IrqLock;
use crate::region::PAGE;

/// The beginning of a free extent.
struct Free {
    len: usize,
    next: Option<NonNull<Free>>,
}

struct Frames {
    first: Option<NonNull<Free>>,
    free: usize,
}

// SAFETY: the pointers lead to memory that the list owns.
unsafe impl Send for Frames {}

static FRAMES: IrqLock<Frames> = IrqLock::new(Frames { first: None, free: 0 });

/// Makes the pages from `start` to `end` available.
pub(super) fn add(start: u64, end: u64) {
    let page = PAGE as u64;
    let (start, end) = (start.next_multiple_of(page), end & !(page - 1));
    if let Some(pages) = NonNull::new(start as *mut u8)
        && end > start
    {
        // SAFETY: the caller names unused RAM, and names it once.
        unsafe { FRAMES.lock().free(pages, (end - start) as usize) };
    }
}

/// Allocates `len` bytes, a multiple of [`PAGE`], aligned to `align` and at least to a page. They
/// are not zeroed.
pub(super) fn alloc_pages(len: usize, align: usize) -> Result<NonNull<u8>, OutOfMemory> {
    FRAMES.lock().alloc(len, align.max(PAGE)).ok_or(OutOfMemory)
}

/// Releases pages.
///
/// # Safety
///
/// `pages` came from [`alloc_pages`] with this `len`, and nothing uses them any more.
pub(super) unsafe fn free_pages(pages: NonNull<u8>, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { FRAMES.lock().free(pages, len) };
}

/// The number of free bytes.
pub(super) fn free_bytes() -> usize {
    FRAMES.lock().free
}

impl Frames {
    fn alloc(&mut self, len: usize, align: usize) -> Option<NonNull<u8>> {
        debug_assert!(len > 0 && len.is_multiple_of(PAGE) && align.is_power_of_two());
        let mut before: Option<NonNull<Free>> = None;
        let mut at = self.first;
        while let Some(extent) = at {
            // SAFETY: the list leads to free extents, which only the list uses.
            let Free { len: extent_len, next } = unsafe { extent.read() };
            let gap = extent.addr().get().next_multiple_of(align) - extent.addr().get();
            if gap <= extent_len && extent_len - gap >= len {
                let after = extent_len - gap - len;
                // SAFETY: gap + len lies within the extent.
                let found = unsafe { extent.cast::<u8>().add(gap) };
                let mut link = next;
                if after > 0 {
                    // SAFETY: the rest begins within the extent and is at least a page.
                    let rest = unsafe { found.add(len).cast::<Free>() };
                    // SAFETY: as above.
                    unsafe { rest.write(Free { len: after, next }) };
                    link = Some(rest);
                }
                if gap > 0 {
                    // SAFETY: the extent's beginning stays free.
                    unsafe { extent.write(Free { len: gap, next: link }) };
                    link = Some(extent);
                }
                self.link(before, link);
                self.free -= len;
                return Some(found);
            }
            before = at;
            at = next;
        }
        None
    }

    fn link(&mut self, before: Option<NonNull<Free>>, to: Option<NonNull<Free>>) {
        match before {
            // SAFETY: `before` is on the list.
            Some(before) => unsafe { (*before.as_ptr()).next = to },
            None => self.first = to,
        }
    }

    /// # Safety
    ///
    /// The memory is mapped, unused, and not on the list.
    unsafe fn free(&mut self, pages: NonNull<u8>, len: usize) {
        let mut extent = pages.cast::<Free>();
        let mut before: Option<NonNull<Free>> = None;
        let mut next = self.first;
        while let Some(n) = next
            && n < extent
        {
            before = next;
            // SAFETY: on the list.
            next = unsafe { n.as_ref().next };
        }
        let mut total = len;
        if let Some(n) = next
            && extent.addr().get() + len == n.addr().get()
        {
            // SAFETY: on the list; it becomes a part of the released extent.
            let n = unsafe { n.read() };
            total += n.len;
            next = n.next;
        }
        if let Some(b) = before {
            // SAFETY: on the list.
            let b_len = unsafe { b.as_ref().len };
            if b.addr().get() + b_len == extent.addr().get() {
                total += b_len;
                extent = b;
            } else {
                self.link(before, Some(extent));
            }
        } else {
            self.first = Some(extent);
        }
        // SAFETY: the caller's memory, or the free extent that ends where it begins.
        unsafe { extent.write(Free { len: total, next }) };
        self.free += len;
    }
}
