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
pub struct PageByPage(pub Arc<dyn Platform>);

// SAFETY: it returns what the other platform promised, or a part of it.
unsafe impl Platform for PageByPage {
    fn now(&self) -> Instant {
        self.0.now()
    }

    fn wait(&self, word: &AtomicU32, expected: u32, deadline: Option<Instant>) -> Wake {
        self.0.wait(word, expected, deadline)
    }

    fn wake(&self, word: &AtomicU32) {
        self.0.wake(word);
    }

    fn spawn(&self, name: &str, main: Box<dyn FnOnce() + Send>) -> Result<(), OutOfMemory> {
        self.0.spawn(name, main)
    }

    fn current_thread(&self) -> u64 {
        self.0.current_thread()
    }

    fn alloc_dma(&self, len: usize, align: usize) -> Result<RawDma, OutOfMemory> {
        self.0.alloc_dma(len, align)
    }

    unsafe fn free_dma(&self, raw: RawDma) {
        // SAFETY: the caller's promise; all memory comes from the other platform.
        unsafe { self.0.free_dma(raw) };
    }

    fn translate(&self, virt: usize) -> Option<BusExtent> {
        let extent = self.0.translate(virt)?;
        let rest = (PAGE - virt % PAGE) as u64;
        Some(BusExtent { len: extent.len.min(rest), ..extent })
    }
}
