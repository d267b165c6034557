//! The whole memory of this process as DMA memory: a bus address is a virtual address.
//!
//! For programs that register memory of their own, wherever it is. The registers of protection are
//! the NIC's: it reaches what is registered, and its rings. Memory that a program unmaps while it
//! is registered faults the device's thread, and so the process; a NIC of hardware would keep the
//! pages.
#![expect(unsafe_code, reason = "addresses of this process become shared slices")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use nic_model::{DmaError, GuestMemory};
use platform::{BusExtent, OutOfMemory, RawDma, SharedSlice};

use crate::memory::DmaMemory;

/// The end of the addresses that Linux gives to a process on x86_64.
const LIMIT: u64 = 1 << 47;
/// Pieces are multiples of a cache line, so that two never share one.
const LINE: usize = 64;

/// See the module's documentation.
pub struct ProcessMemory {
    /// What is allocated, by address.
    layouts: Mutex<HashMap<usize, Layout>>,
}

impl ProcessMemory {
    /// The memory of this process.
    ///
    /// # Safety
    ///
    /// Whoever registers memory with a NIC on it promises that the memory stays mapped until it is
    /// deregistered, and that the process accesses what the NIC may write at that moment in ways
    /// that allow for it.
    pub unsafe fn new() -> ProcessMemory {
        ProcessMemory { layouts: Mutex::new(HashMap::new()) }
    }

    fn layouts(&self) -> std::sync::MutexGuard<'_, HashMap<usize, Layout>> {
        self.layouts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DmaMemory for ProcessMemory {
    fn alloc(&self, len: usize, align: usize) -> Result<RawDma, OutOfMemory> {
        let len = len.max(1).checked_next_multiple_of(LINE).ok_or(OutOfMemory)?;
        let layout = Layout::from_size_align(len, align.max(LINE)).map_err(|_| OutOfMemory)?;
        // SAFETY: the layout's size is not zero.
        let virt = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(OutOfMemory)?;
        let at = virt.as_ptr() as usize;
        self.layouts().insert(at, layout);
        Ok(RawDma { virt, bus: at as u64, len })
    }

    fn release(&self, raw: &RawDma) {
        let at = raw.virt.as_ptr();
        if let Some(layout) = self.layouts().remove(&(at as usize)) {
            // SAFETY: allocated with this layout by `alloc`, and released once: it is in the table
            // no more.
            unsafe { dealloc(at, layout) };
        }
    }

    fn translate(&self, virt: usize) -> Option<BusExtent> {
        let addr = virt as u64;
        (virt != 0 && addr < LIMIT).then(|| BusExtent { addr, len: LIMIT - addr })
    }

    fn limit(&self) -> u64 {
        LIMIT
    }
}

impl GuestMemory for ProcessMemory {
    #[inline]
    fn get(&self, addr: u64, len: u64) -> Result<SharedSlice<'_>, DmaError> {
        let inside = addr.checked_add(len).is_some_and(|end| end <= LIMIT);
        if len != 0 && (addr == 0 || !inside) {
            return Err(DmaError);
        }
        let (base, len) = match NonNull::new(addr as *mut u8) {
            Some(base) if len != 0 => (base, len as usize),
            _ => (NonNull::dangling(), 0),
        };
        // SAFETY: the device asks for its rings, which `alloc` returned, and for registered memory,
        // of which the caller of `new` promised that it is mapped.
        Ok(unsafe { SharedSlice::from_raw(base, len) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> ProcessMemory {
        // SAFETY: the tests name only what they have allocated.
        unsafe { ProcessMemory::new() }
    }

    #[test]
    fn an_address_is_the_same_on_the_bus() {
        let memory = memory();
        let piece = memory.alloc(100, 4096).expect("memory");
        assert_eq!((piece.bus % 4096, piece.len), (0, 128));
        assert_eq!(memory.translate(piece.virt.as_ptr() as usize).map(|extent| extent.addr), Some(piece.bus));
        memory.write(piece.bus + 4, b"abc").expect("inside");
        let mut bytes = [1; 8];
        memory.read(piece.bus, &mut bytes).expect("inside");
        assert_eq!(&bytes, b"\0\0\0\0abc\0");
        memory.release(&piece);
        memory.release(&piece);
    }

    #[test]
    fn what_no_process_has_is_out_of_reach() {
        let memory = memory();
        for (addr, len) in [(0, 1), (LIMIT, 1), (LIMIT - 1, 2), (u64::MAX, 2), (1, u64::MAX)] {
            assert!(memory.get(addr, len).is_err(), "{addr:#x} + {len:#x}");
        }
        assert!(memory.get(0, 0).is_ok_and(|slice| slice.is_empty()));
        assert_eq!(memory.translate(0), None);
        assert_eq!(memory.translate(LIMIT as usize), None);
        assert!(memory.alloc(usize::MAX, 64).is_err());
    }
}
