//! This kernel as a [`Platform`].
#![expect(unsafe_code, reason = "the trait asks for promises about memory")]

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use platform::{BusExtent, Instant, OutOfMemory, Platform, RawDma, Wake};

use crate::memory::{self, PAGE};
use crate::{clock, thread};

/// The kernel's services; there is only one kernel, so it has no state.
pub(crate) struct Services;

/// Bytes of DMA memory that are lent.
static LENT: AtomicUsize = AtomicUsize::new(0);

/// Bytes of DMA memory that are lent.
pub(crate) fn lent() -> usize {
    LENT.load(Ordering::Relaxed)
}

// SAFETY: DMA memory is pages that nobody else has until they come back; RAM is never unmapped.
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
        let len = len.max(1).checked_next_multiple_of(PAGE).ok_or(OutOfMemory)?;
        let virt = memory::alloc_pages(len, align)?;
        // SAFETY: fresh pages of that length. Zeroed here, where interrupts are on.
        unsafe { virt.write_bytes(0, len) };
        LENT.fetch_add(len, Ordering::Relaxed);
        Ok(RawDma { virt, bus: virt.addr().get() as u64, len })
    }

    unsafe fn free_dma(&self, raw: RawDma) {
        LENT.fetch_sub(raw.len, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { memory::free_pages(raw.virt, raw.len) };
    }

    fn translate(&self, virt: usize) -> Option<BusExtent> {
        memory::translate(virt)
    }
}
