//! Memory that a device can reach: one allocation of the process, of which pieces are allocated.
//!
//! [`Memory`] owns zeroed memory to which no plain reference exists; [`Arena`] allocates pieces of
//! it by offset.
#![expect(unsafe_code, reason = "owned memory becomes a shared slice")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nic_model::{DmaError, GuestMemory};
use platform::extents::{Extents, Node, Nodes};
use platform::{BusExtent, OutOfMemory, RawDma, SharedSlice};

use crate::memory::DmaMemory;

/// The alignment of all of it: a page.
const PAGE: usize = 4096;
/// Pieces are multiples of a cache line, so that two buffers never share one.
const LINE: usize = 64;

/// Owned, zeroed, page-aligned memory that is accessed through shared slices only.
pub(crate) struct Memory {
    /// The allocation.
    raw: NonNull<u8>,
    layout: Layout,
    /// The first whole page of it, and the number of bytes from there on.
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: it is accessed only through `SharedSlice`, which any thread may use.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn new(len: usize) -> Memory {
        // Aligned here and not by the layout: for a large alignment the standard library fills the
        // memory itself instead of taking zero pages from the system, and an unused gigabyte would
        // cost half a second.
        let layout = Layout::from_size_align(len + PAGE, 16).expect("a size that fits the address space");
        // SAFETY: the layout's size is not zero.
        let Some(raw) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        let skip = raw.as_ptr().align_offset(PAGE).min(PAGE);
        // SAFETY: at most a page, by which the allocation is longer.
        let base = unsafe { raw.add(skip) };
        Memory { raw, layout, base, len }
    }

    pub(crate) fn slice(&self) -> SharedSlice<'_> {
        // SAFETY: `self` owns the memory, and no reference to it is ever formed.
        unsafe { SharedSlice::from_raw(self.base, self.len) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout by `new`, and no slice outlives `self`.
        unsafe { dealloc(self.raw.as_ptr(), self.layout) };
    }
}

/// DMA memory. A bus address is an offset into it. The first page is never allocated, so that no
/// bus address is 0.
pub struct Arena {
    memory: Memory,
    free: Mutex<Extents<Aside>>,
    /// A bit for each line that is allocated.
    lent: Vec<AtomicU64>,
}

/// Nodes that lie in a table: memory that a device can reach is no place for them.
#[derive(Default)]
struct Aside(HashMap<usize, Node>);

impl Nodes for Aside {
    fn load(&self, addr: usize) -> Node {
        self.0[&addr]
    }

    fn store(&mut self, addr: usize, node: Node) {
        self.0.insert(addr, node);
    }

    fn forget(&mut self, addr: usize) {
        self.0.remove(&addr);
    }
}

impl Arena {
    /// An arena of `len` bytes. On the usual systems pages that are never used cost nothing.
    pub fn new(len: usize) -> Arena {
        let len = len & !(LINE - 1);
        let memory = Memory::new(len);
        let mut free = Extents::new(Aside::default(), LINE);
        if len > PAGE {
            free.release(PAGE, len - PAGE);
        }
        let lent = std::iter::repeat_with(AtomicU64::default).take(len / LINE / 64 + 1).collect();
        Arena { memory, free: Mutex::new(free), lent }
    }

    /// Notes that whole lines are allocated, or that they are not.
    fn mark(&self, addr: usize, len: usize, lent: bool) {
        for (word, mask) in words(addr, len) {
            match lent {
                true => self.lent[word].fetch_or(mask, Ordering::Relaxed),
                false => self.lent[word].fetch_and(!mask, Ordering::Relaxed),
            };
        }
    }

    /// Whether all of these bytes are allocated.
    pub fn is_lent(&self, addr: u64, len: u64) -> bool {
        let Some(end) = addr.checked_add(len).filter(|&end| end <= self.limit()) else { return false };
        words(addr as usize, (end - addr) as usize)
            .all(|(word, mask)| self.lent[word].load(Ordering::Relaxed) & mask == mask)
    }

    fn free(&self) -> MutexGuard<'_, Extents<Aside>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of bytes that are not allocated.
    pub fn available(&self) -> usize {
        self.free().free_bytes()
    }

    /// The number of bytes that are allocated.
    pub fn lent(&self) -> usize {
        self.memory.slice().len().saturating_sub(PAGE) - self.available()
    }

    /// The first address after the arena.
    pub fn limit(&self) -> u64 {
        self.memory.slice().len() as u64
    }

    /// Allocates `len` zeroed bytes, aligned to `align` (a power of two).
    pub fn alloc(&self, len: usize, align: usize) -> Result<RawDma, OutOfMemory> {
        let len = len.max(1).checked_next_multiple_of(LINE).ok_or(OutOfMemory)?;
        let offset = self.free().allocate(len, align).ok_or(OutOfMemory)?;
        let piece = self.memory.slice().get(offset, len).map_err(|_| OutOfMemory)?;
        piece.fill(0);
        let virt = NonNull::new(piece.as_ptr()).ok_or(OutOfMemory)?;
        self.mark(offset, len, true);
        Ok(RawDma { virt, bus: offset as u64, len })
    }

    /// Releases what [`Arena::alloc`] returned.
    pub fn release(&self, raw: &RawDma) {
        self.mark(raw.bus as usize, raw.len, false);
        self.free().release(raw.bus as usize, raw.len);
    }

    /// The bus address of an address of this process, if that lies in the arena.
    pub fn translate(&self, virt: usize) -> Option<BusExtent> {
        let all = self.memory.slice();
        let offset = virt.checked_sub(all.as_ptr() as usize)?;
        (offset < all.len()).then(|| BusExtent { addr: offset as u64, len: (all.len() - offset) as u64 })
    }
}

/// The words of a bitmap, with their bits, that stand for the lines of these bytes.
fn words(addr: usize, len: usize) -> impl Iterator<Item = (usize, u64)> {
    let lines = addr / LINE..(addr + len).div_ceil(LINE);
    (lines.start / 64..lines.end.div_ceil(64)).map(move |word| {
        let first = lines.start.saturating_sub(word * 64).min(64);
        let end = (lines.end - word * 64).min(64);
        let bits = end.saturating_sub(first) as u32;
        (word, u64::MAX.checked_shr(64 - bits).unwrap_or(0) << (first % 64))
    })
}

impl DmaMemory for Arena {
    fn alloc(&self, len: usize, align: usize) -> Result<RawDma, OutOfMemory> {
        self.alloc(len, align)
    }

    fn release(&self, raw: &RawDma) {
        self.release(raw);
    }

    fn translate(&self, virt: usize) -> Option<BusExtent> {
        self.translate(virt)
    }

    fn limit(&self) -> u64 {
        self.limit()
    }
}

impl GuestMemory for Arena {
    #[inline]
    fn get(&self, addr: u64, len: u64) -> Result<SharedSlice<'_>, DmaError> {
        let (Ok(addr), Ok(len)) = (usize::try_from(addr), usize::try_from(len)) else { return Err(DmaError) };
        if len == 0 {
            return self.memory.slice().get(0, 0).map_err(|_| DmaError);
        }
        self.memory.slice().get(addr, len).map_err(|_| DmaError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_do_not_overlap_and_are_released_whole() {
        let arena = Arena::new(1 << 20);
        let whole = arena.available();
        assert_eq!(arena.lent(), 0);
        let pieces: Vec<_> =
            (0..20).map(|i| arena.alloc(100 * (i + 1), 64 << (i % 7)).expect("room")).collect();
        for (i, a) in pieces.iter().enumerate() {
            assert_eq!(a.bus % (64 << (i % 7)), 0);
            for b in &pieces[i + 1..] {
                assert!(a.bus + a.len as u64 <= b.bus || b.bus + b.len as u64 <= a.bus);
            }
        }
        assert_eq!(arena.lent(), whole - arena.available());
        assert!(arena.lent() >= 21_000);
        for piece in pieces.iter().step_by(2).chain(pieces.iter().skip(1).step_by(2)) {
            arena.release(piece);
        }
        assert_eq!(arena.available(), whole);
        assert!(arena.alloc(whole, 64).is_ok(), "neighbours are merged again");
    }

    #[test]
    fn what_is_allocated_is_known_to_the_line() {
        let arena = Arena::new(1 << 20);
        for len in [1, 64, 65, 4096, 64 * 64, 64 * 65, 100_000] {
            let piece = arena.alloc(len, 64).expect("room");
            let (at, all) = (piece.bus, piece.len as u64);
            assert!(
                arena.is_lent(at, all) && arena.is_lent(at, 1) && arena.is_lent(at + all - 1, 1),
                "{len}"
            );
            assert!(!arena.is_lent(at, all + 1) && !arena.is_lent(at - 1, 2), "{len}");
            arena.release(&piece);
            assert!(!arena.is_lent(at, all) && !arena.is_lent(at + all / 2, 1), "{len}");
        }
        assert!(arena.is_lent(4096, 0) && !arena.is_lent(u64::MAX, 2) && !arena.is_lent(1 << 20, 1));
    }

    #[test]
    fn a_released_piece_is_zeroed_before_its_next_use() {
        let arena = Arena::new(1 << 16);
        let piece = arena.alloc(64, 64).expect("room");
        arena.write(piece.bus, &[7; 64]).expect("inside");
        arena.release(&piece);
        let again = arena.alloc(64, 64).expect("room");
        let mut bytes = [1; 64];
        arena.read(again.bus, &mut bytes).expect("inside");
        assert_eq!(bytes, [0; 64]);
    }

    #[test]
    fn an_access_outside_is_an_error() {
        let arena = Arena::new(1 << 16);
        for (addr, len) in
            [(1 << 16, 1), ((1 << 16) - 1, 2), (u64::MAX, 1), (u64::MAX, u64::MAX), (0, u64::MAX)]
        {
            assert_eq!(arena.get(addr, len).err(), Some(DmaError), "{addr:#x} + {len:#x}");
        }
        assert!(arena.get(u64::MAX, 0).is_ok());
        assert_eq!(arena.alloc(1 << 17, 64).err(), Some(OutOfMemory));
        assert_eq!(arena.alloc(usize::MAX, 64).err(), Some(OutOfMemory));
    }
}
