use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};

use ferrovia::platform::{BusExtent, Instant, OutOfMemory, Platform, RawDma, Wake};

const PAGE: usize = 4096;

pub struct MyKernel {
    boot: std::time::Instant,
    /// Held to compare a word and go to sleep in one step, and to wake the sleepers.
    sleepers: Mutex<()>,
    woken: Condvar,
    /// All memory that devices can reach: lengths by address. A kernel has page tables instead.
    reachable: Mutex<BTreeMap<usize, usize>>,
}

impl MyKernel {
    pub fn new() -> MyKernel {
        // A contended lock of the stack calls this to give up the CPU. Without it, the lock only
        // spins.
        ferrovia::platform::sync::set_yield(std::thread::yield_now);
        MyKernel {
            boot: std::time::Instant::now(),
            sleepers: Mutex::new(()),
            woken: Condvar::new(),
            reachable: Mutex::new(BTreeMap::new()),
        }
    }
}

fn pages(len: usize) -> Result<Layout, OutOfMemory> {
    let len = len.max(1).checked_next_multiple_of(PAGE).ok_or(OutOfMemory)?;
    Layout::from_size_align(len, PAGE).map_err(|_| OutOfMemory)
}

// SAFETY: each piece of memory belongs to one holder until the holder frees it, and the bus address
// of a byte never changes.
unsafe impl Platform for MyKernel {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.boot.elapsed().as_nanos() as u64)
    }

    fn wait(&self, word: &AtomicU32, expected: u32, deadline: Option<Instant>) -> Wake {
        let guard = self.sleepers.lock().unwrap();
        // `wake` takes this lock: it cannot come between the comparison and the sleep.
        if word.load(Ordering::Acquire) != expected {
            return Wake::Woken;
        }
        let Some(deadline) = deadline else {
            drop(self.woken.wait(guard));
            return Wake::Woken;
        };
        let left = deadline.since(self.now());
        let (_guard, result) = self.woken.wait_timeout(guard, left).unwrap();
        if result.timed_out() { Wake::TimedOut } else { Wake::Woken }
    }

    fn wake(&self, _word: &AtomicU32) {
        // Wakes the waiters of all words, which is allowed. A kernel has a list of waiters by word.
        drop(self.sleepers.lock());
        self.woken.notify_all();
    }

    fn spawn(&self, name: &str, main: Box<dyn FnOnce() + Send>) -> Result<(), OutOfMemory> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(main);
        thread.map(drop).map_err(|_| OutOfMemory)
    }

    fn current_thread(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        thread_local!(static THIS: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
        THIS.with(|number| *number)
    }

    fn alloc_dma(&self, len: usize, align: usize) -> Result<RawDma, OutOfMemory> {
        // The stack asks for the alignment of a page at most.
        let layout = if align <= PAGE { pages(len)? } else { return Err(OutOfMemory) };
        // SAFETY: the layout has at least a page.
        let virt = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(OutOfMemory)?;
        self.reachable.lock().unwrap().insert(virt.addr().get(), layout.size());
        // What the device puts on the bus: here the virtual address; in a kernel the physical
        // address, or the one that the IOMMU maps.
        Ok(RawDma { virt, bus: virt.addr().get() as u64, len: layout.size() })
    }

    unsafe fn free_dma(&self, raw: RawDma) {
        self.reachable.lock().unwrap().remove(&raw.virt.addr().get());
        let layout = pages(raw.len).expect("alloc_dma made this length");
        // SAFETY: the caller's promise.
        unsafe { dealloc(raw.virt.as_ptr(), layout) };
    }

    fn translate(&self, virt: usize) -> Option<BusExtent> {
        let reachable = self.reachable.lock().unwrap();
        let (start, len) = reachable.range(..=virt).next_back()?;
        let left = (start + len).checked_sub(virt).filter(|&left| left > 0)?;
        // To the end of the piece, not of the page.
        Some(BusExtent { addr: virt as u64, len: left as u64 })
    }
}
