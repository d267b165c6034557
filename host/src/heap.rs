//! The process's heap, counted: what is left when a machine is gone was leaked.
#![expect(unsafe_code, reason = "an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The system's heap that counts the bytes that live objects asked for. To be made the `#[global_allocator]` of
/// a test program.
pub struct CountedHeap {
    used: AtomicUsize,
    requests: AtomicU64,
}

impl CountedHeap {
    /// Nothing is in use yet.
    pub const fn new() -> CountedHeap {
        CountedHeap { used: AtomicUsize::new(0), requests: AtomicU64::new(0) }
    }

    /// Bytes that live objects asked for.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// How often memory was asked for.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    fn note(&self, layout: Layout) {
        self.used.fetch_add(layout.size(), Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
    }
}

impl Default for CountedHeap {
    fn default() -> CountedHeap {
        CountedHeap::new()
    }
}

// SAFETY: every request is the system's affair; only its size is noted.
unsafe impl GlobalAlloc for CountedHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.note(layout);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.note(layout);
        // SAFETY: the caller's promise. Not left to the default, which would touch every page.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        self.used.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) };
    }
}
