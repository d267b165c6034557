//! The process's heap with counts: what is left after a machine is gone was leaked.
#![expect(unsafe_code, reason = "an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

thread_local! {
    /// Whether the thread is a device's.
    static DEVICE: Cell<bool> = const { Cell::new(false) };
}

/// From now on what this thread allocates and releases is a device's.
pub(crate) fn count_as_device() {
    DEVICE.set(true);
}

/// The system's heap, with a count of the bytes that live objects asked for. A test program makes
/// it its `#[global_allocator]`.
pub struct CountedHeap {
    used: AtomicUsize,
    requests: AtomicU64,
    /// Of `used`, what the threads of devices allocated less what they released.
    device: AtomicUsize,
    /// Of `requests`, those of the threads of devices.
    device_requests: AtomicU64,
}

impl CountedHeap {
    /// A heap of which nothing is in use yet.
    pub const fn new() -> CountedHeap {
        CountedHeap {
            used: AtomicUsize::new(0),
            requests: AtomicU64::new(0),
            device: AtomicUsize::new(0),
            device_requests: AtomicU64::new(0),
        }
    }

    /// The bytes that live objects asked for.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// [`CountedHeap::used`] without what devices use: a NIC outside of the process would have that
    /// in memory of its own. To be compared with another value while no machine comes or goes.
    pub fn used_by_driver(&self) -> usize {
        self.used().wrapping_sub(self.device.load(Ordering::Relaxed))
    }

    /// The number of requests so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// [`CountedHeap::requests`] without those of devices.
    pub fn requests_by_driver(&self) -> u64 {
        self.requests().wrapping_sub(self.device_requests.load(Ordering::Relaxed))
    }

    /// Runs `act` in a machine whose memory ends after so many requests of this thread: from then
    /// on the thread gets only what it has given back since. Requests for DMA memory and threads
    /// count too.
    pub fn ending_after<R>(requests: u64, act: impl FnOnce() -> R) -> R {
        LIMIT.set(Some(Limit { requests, free: 0 }));
        let result = act();
        LIMIT.set(None);
        result
    }

    fn count(&self, layout: Layout) {
        self.used.fetch_add(layout.size(), Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        if DEVICE.get() {
            self.device_requests.fetch_add(1, Ordering::Relaxed);
            self.device.fetch_add(layout.size(), Ordering::Relaxed);
        }
    }
}

/// What a thread may still request, see [`CountedHeap::ending_after`].
#[derive(Clone, Copy)]
struct Limit {
    requests: u64,
    /// Bytes that the thread gave back.
    free: usize,
}

thread_local! {
    static LIMIT: Cell<Option<Limit>> = const { Cell::new(None) };
}

/// Whether this thread gets so many bytes.
fn grants(size: usize) -> bool {
    // Without its variables a thread is at its end.
    let limit = LIMIT.try_with(Cell::get).unwrap_or_default();
    let Some(Limit { requests, free }) = limit else { return true };
    let left = match requests.checked_sub(1) {
        Some(requests) => Limit { requests, free },
        None => match free.checked_sub(size) {
            Some(free) => Limit { requests: 0, free },
            None => return false,
        },
    };
    LIMIT.set(Some(left));
    true
}

fn given_back(size: usize) {
    let limit = LIMIT.try_with(Cell::get).unwrap_or_default();
    if let Some(Limit { requests, free }) = limit {
        LIMIT.set(Some(Limit { requests, free: free.saturating_add(size) }));
    }
}

/// Runs `act`, which is a part of the machine and not of the stack, without the limit of
/// [`CountedHeap::ending_after`]; `None` if the limit is reached. Counts as one request of `size`
/// bytes.
pub(crate) fn as_machine<R>(size: usize, act: impl FnOnce() -> R) -> Option<R> {
    if !grants(size) {
        return None;
    }
    let limit = LIMIT.replace(None);
    let result = act();
    LIMIT.set(limit);
    Some(result)
}

impl Default for CountedHeap {
    fn default() -> CountedHeap {
        CountedHeap::new()
    }
}

// SAFETY: the system serves every request that is not refused; only the size is counted here.
unsafe impl GlobalAlloc for CountedHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !grants(layout.size()) {
            return null_mut();
        }
        self.count(layout);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !grants(layout.size()) {
            return null_mut();
        }
        self.count(layout);
        // SAFETY: the caller's promise. The default implementation would touch every page.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        given_back(layout.size());
        self.used.fetch_sub(layout.size(), Ordering::Relaxed);
        if DEVICE.get() {
            self.device.fetch_sub(layout.size(), Ordering::Relaxed);
        }
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) };
    }
}
