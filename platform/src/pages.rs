//! A platform on which memory is contiguous for devices within a page only, as behind many IOMMUs:
//! for tests of code that builds lists of memory.
#![expect(unsafe_code, reason = "the trait is unsafe to implement")]

use crate::sync::atomic::AtomicU32;
use alloc::boxed::Box;
use alloc::sync::Arc;

use crate::{BusExtent, Instant, OutOfMemory, Platform, RawDma, Wake};

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// Another platform, whose memory it translates page by page.
pub struct PageByPage {
    below: Arc<dyn Platform>,
    bus: fn(u64) -> u64,
}

impl PageByPage {
    /// Pages have the bus addresses that they have on the platform `below`.
    pub fn new(below: Arc<dyn Platform>) -> PageByPage {
        PageByPage { below, bus: |page| page }
    }

    /// As [`PageByPage::new`], but `bus` makes the address of a page of the one on the platform
    /// `below`: for tests that look at translations.
    ///
    /// # Safety
    ///
    /// Devices find the same page at the address that `bus` returns, or no device gets it.
    pub unsafe fn with_bus(below: Arc<dyn Platform>, bus: fn(u64) -> u64) -> PageByPage {
        PageByPage { below, bus }
    }
}

// SAFETY: it returns what the other platform promised, or a part of it; for other bus addresses
// their maker answers.
unsafe impl Platform for PageByPage {
    fn now(&self) -> Instant {
        self.below.now()
    }

    fn wait(&self, word: &AtomicU32, expected: u32, deadline: Option<Instant>) -> Wake {
        self.below.wait(word, expected, deadline)
    }

    fn wake(&self, word: &AtomicU32) {
        self.below.wake(word);
    }

    fn spawn(&self, name: &str, main: Box<dyn FnOnce() + Send>) -> Result<(), OutOfMemory> {
        self.below.spawn(name, main)
    }

    fn current_thread(&self) -> u64 {
        self.below.current_thread()
    }

    fn alloc_dma(&self, len: usize, align: usize) -> Result<RawDma, OutOfMemory> {
        self.below.alloc_dma(len, align)
    }

    unsafe fn free_dma(&self, raw: RawDma) {
        // SAFETY: the caller's promise; all memory comes from the other platform.
        unsafe { self.below.free_dma(raw) };
    }

    fn entropy(&self) -> Option<u64> {
        self.below.entropy()
    }

    fn translate(&self, virt: usize) -> Option<BusExtent> {
        let extent = self.below.translate(virt)?;
        let at = virt % PAGE;
        let addr = (self.bus)(extent.addr - at as u64) + at as u64;
        Some(BusExtent { addr, len: extent.len.min((PAGE - at) as u64) })
    }
}
