//! A platform on which small pieces of DMA memory share pages.
//!
//! A kernel may round each piece up to a page, and the rings of a small queue pair need a few
//! hundred bytes. A page is cut into equal pieces, at most 64 of whole cache lines, and returns to
//! the platform below with its last piece. Pieces longer than half a page are not packed.
//!
//! Several owners have pieces of one page. That is right for a device that reaches exactly the
//! bytes that its driver names, if all owners of the page name them to the same device: so each
//! driver has a `Packed` of its own. A piece that is abandoned, because a dead device may still
//! write to it, keeps its page, but not the other pieces of the page.
//!
//! There is a map of pages for each length of pieces. So the cost of a release does not depend on
//! how many pieces of other lengths there are.
//!
//! Locks: `pages` (spins, leaf).
#![expect(unsafe_code, reason = "the trait is unsafe to implement")]

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::ptr::NonNull;

use crate::sync::Mutex;
use crate::sync::atomic::AtomicU32;
use crate::{BusExtent, DmaBuffer, Instant, OutOfMemory, Platform, RawDma, Wake, heap};

/// What an insertion into a map of pages may allocate: a node on each of its levels.
const NODES: usize = 8192;
/// Bytes of a page that is cut.
const PAGE: usize = 4096;
/// Pieces are multiples of a cache line.
const LINE: usize = 64;
/// Pieces of a page at most: one bit of a word each.
const MOST: usize = PAGE / LINE;

/// Another platform, whose DMA memory it packs.
pub struct Packed {
    below: Arc<dyn Platform>,
    pages: Mutex<Pages>,
}

/// A page of which pieces are allocated.
struct Page {
    memory: DmaBuffer,
    /// A bit for each free piece.
    free: u64,
    /// The pages before and after it in the list of its class's pages with free pieces.
    before: Option<u64>,
    after: Option<u64>,
}

/// The pages that are cut into the same number of pieces.
struct Class {
    /// By bus address.
    pages: BTreeMap<u64, Page>,
    /// The first page with a free piece.
    with_room: Option<u64>,
}

/// By the number of pieces.
struct Pages([Class; MOST + 1]);

/// The length of the pieces of a page that is cut into so many. A page has no room for one more
/// piece of that length, so the length says the number, too.
const fn piece_len(pieces: usize) -> usize {
    (PAGE / pieces) & !(LINE - 1)
}

impl Page {
    /// All pieces of a page are free.
    const fn all_free(pieces: usize) -> u64 {
        u64::MAX >> (MOST - pieces)
    }

    /// Takes the lowest free piece.
    fn take(&mut self, len: usize) -> Option<RawDma> {
        let at = self.free.trailing_zeros() as usize * len;
        let slice = self.memory.slice().get(at, len).ok()?;
        let virt = NonNull::new(slice.as_ptr())?;
        self.free &= self.free - 1;
        slice.fill(0);
        Some(RawDma { virt, bus: self.memory.bus() + at as u64, len })
    }
}

impl Class {
    /// Takes a piece of this length.
    fn take(&mut self, len: usize) -> Option<RawDma> {
        let first = self.with_room?;
        let page = self.pages.get_mut(&first)?;
        let piece = page.take(len);
        if page.free == 0 {
            self.unlink(first);
        }
        piece
    }

    fn add(&mut self, memory: DmaBuffer, pieces: usize) {
        let bus = memory.bus();
        let page = Page { memory, free: Page::all_free(pieces), before: None, after: None };
        self.pages.insert(bus, page);
        self.link(bus);
    }

    fn link(&mut self, bus: u64) {
        let Some(page) = self.pages.get_mut(&bus) else { return };
        let first = self.with_room.replace(bus);
        (page.before, page.after) = (None, first);
        if let Some(next) = first.and_then(|next| self.pages.get_mut(&next)) {
            next.before = Some(bus);
        }
    }

    fn unlink(&mut self, bus: u64) {
        let Some(&Page { before, after, .. }) = self.pages.get(&bus) else { return };
        match before.and_then(|before| self.pages.get_mut(&before)) {
            Some(before) => before.after = after,
            None => self.with_room = after,
        }
        if let Some(after) = after.and_then(|after| self.pages.get_mut(&after)) {
            after.before = before;
        }
    }
}

impl Pages {
    /// Takes a piece of a page that is cut into so many.
    fn take(&mut self, pieces: usize) -> Option<RawDma> {
        self.0.get_mut(pieces)?.take(piece_len(pieces))
    }

    fn add(&mut self, memory: DmaBuffer, pieces: usize) {
        if let Some(class) = self.0.get_mut(pieces) {
            class.add(memory, pieces);
        }
    }

    /// Releases a piece. The memory to which it belongs if that is no page of these; a page with it
    /// as soon as all its pieces are free.
    fn give(&mut self, piece: RawDma) -> Given {
        let pieces = PAGE.checked_div(piece.len).unwrap_or(0);
        let Some(class) = self.0.get_mut(pieces) else { return Given::Foreign(piece) };
        // Pages are aligned to their length.
        let bus = piece.bus & !(PAGE as u64 - 1);
        let Some(page) = class.pages.get_mut(&bus) else { return Given::Foreign(piece) };
        let was_full = page.free == 0;
        page.free |= 1 << ((piece.bus - bus) as usize / piece.len);
        if page.free == Page::all_free(pieces) {
            if !was_full {
                class.unlink(bus);
            }
            return class.pages.remove(&bus).map_or(Given::Kept, |page| Given::Page(page.memory));
        }
        if was_full {
            class.link(bus);
        }
        Given::Kept
    }
}

/// What becomes of a piece that is released.
enum Given {
    /// Its page has other pieces.
    Kept,
    /// It was the last piece of this page.
    Page(DmaBuffer),
    /// It came from the platform below as it is.
    Foreign(RawDma),
}

impl Packed {
    /// Packs memory of this platform.
    pub fn new(below: Arc<dyn Platform>) -> Packed {
        let class = |_| Class { pages: BTreeMap::new(), with_room: None };
        Packed { below, pages: Mutex::new(Pages(core::array::from_fn(class))) }
    }
}

impl Drop for Packed {
    fn drop(&mut self) {
        // Each buffer holds its platform, so the pieces that are missing now were abandoned.
        for class in &self.pages.lock().0 {
            class.pages.values().for_each(|page| page.memory.abandon());
        }
    }
}

// SAFETY: a piece belongs to one holder, since its bit is set from `take` until `give` only while
// it is free; and its page is released when all pieces are free. The rest is the other platform's.
unsafe impl Platform for Packed {
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
        if len > PAGE / 2 || align > LINE {
            return self.below.alloc_dma(len, align);
        }
        let pieces = PAGE / len.max(1).next_multiple_of(LINE);
        if let Some(piece) = self.pages.lock().take(pieces) {
            return Ok(piece);
        }
        // Not under the lock: the platform below may take long.
        let page = DmaBuffer::new(&self.below, PAGE, PAGE)?;
        heap::room(NODES)?;
        let mut pages = self.pages.lock();
        pages.add(page, pieces);
        pages.take(pieces).ok_or(OutOfMemory)
    }

    unsafe fn free_dma(&self, raw: RawDma) {
        let given = self.pages.lock().give(raw);
        match given {
            Given::Kept => {}
            Given::Page(page) => drop(page),
            // SAFETY: the caller's promise; it lies in no page of ours, so it came from below.
            Given::Foreign(raw) => unsafe { self.below.free_dma(raw) },
        }
    }

    fn entropy(&self) -> Option<u64> {
        self.below.entropy()
    }

    fn translate(&self, virt: usize) -> Option<BusExtent> {
        self.below.translate(virt)
    }
}
