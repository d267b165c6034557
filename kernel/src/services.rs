//! This kernel as a [`Platform`].
#![expect(unsafe_code, reason = "the trait asks for promises about memory")]

use alloc::boxed::Box;
use core::sync::atomic::AtomicU32;

use platform::{BusExtent, Instant, OutOfMemory, Platform, RawDma, Wake};

use crate::{clock, memory, random, thread};

/// The kernel's services. There is one kernel, so the value has no state.
pub(crate) struct Services;

// SAFETY: the pages of DMA memory are allocated to one holder until it releases them, and RAM is
// never unmapped.
unsafe impl Platform for Services {
    fn now(&self) -> Instant {
        clock::now()
    }

    fn wait(&self, word: &AtomicU32, expected: u32, deadline: Option<Instant>) -> Wake {
        thread::wait(word, expected, deadline)
    }

    fn wake(&self, word: &AtomicU32) {
        thread::wake(word);
    }

    fn spawn(&self, name: &str, main: Box<dyn FnOnce() + Send>) -> Result<(), OutOfMemory> {
        thread::spawn_boxed(name, main)
    }

    fn current_thread(&self) -> u64 {
        thread::current_id()
    }

    fn alloc_dma(&self, len: usize, align: usize) -> Result<RawDma, OutOfMemory> {
        memory::alloc_dma(len, align)
    }

    unsafe fn free_dma(&self, raw: RawDma) {
        // SAFETY: the caller's promise.
        unsafe { memory::free_dma(raw) };
    }

    fn translate(&self, virt: usize) -> Option<BusExtent> {
        memory::translate(virt)
    }

    fn entropy(&self) -> Option<u64> {
        random::entropy()
    }
}
