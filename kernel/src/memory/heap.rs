//! The global allocator.
//!
//! Requests go three ways, by size:
//! - up to [`SMALL`] bytes: a list of free objects for each power of two, so that a small object
//!   costs a few instructions however many there are. The objects are cut from blocks that are
//!   never released;
//! - up to [`MEDIUM`] bytes: arenas of [`ARENA`] bytes, each with a `linked_list_allocator`. An
//!   arena that becomes empty is released, except for the newest;
//! - more than that: pages ([`super::frames`]).
#![expect(unsafe_code, reason = "an allocator")]

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};

use linked_list_allocator::Heap;

use super::{dma, frames};
use crate::lock::IrqLock;
use crate::region::PAGE;

/// The largest small request.
const SMALL: usize = 2048;
/// The smallest size of a small object: a free one holds a pointer.
const LEAST: usize = 16;
const CLASSES: usize = (SMALL / LEAST).ilog2() as usize + 1;
/// The size of the blocks that small objects are cut from.
const BLOCK: usize = 8192;
/// The largest request that goes to an arena.
const MEDIUM: usize = 128 * 1024;
/// An arena's size and alignment.
const ARENA: usize = 1 << 20;

/// A free small object.
struct FreeObject {
    next: Option<NonNull<FreeObject>>,
}

/// The beginning of an arena.
struct Arena {
    heap: Heap,
    next: Option<NonNull<Arena>>,
}

struct Allocator {
    classes: [Option<NonNull<FreeObject>>; CLASSES],
    arenas: Option<NonNull<Arena>>,
    used: usize,
    requests: u64,
}

// SAFETY: the pointers lead to memory that the allocator owns.
unsafe impl Send for Allocator {}

/// The type of the one instance.
struct Global(IrqLock<Allocator>);

#[global_allocator]
static GLOBAL: Global =
    Global(IrqLock::new(Allocator { classes: [None; CLASSES], arenas: None, used: 0, requests: 0 }));

/// How much memory is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that live heap objects asked for, without DMA memory.
    pub heap: usize,
    /// Bytes of DMA memory that are allocated.
    pub dma: usize,
    /// Bytes of pages that are free.
    pub free_pages: usize,
}

/// How much memory is in use. If `heap` is equal before and after an operation, the operation
/// leaked nothing. `free_pages` may differ, since the heap and stacks keep pages for their next
/// use.
pub fn usage() -> Usage {
    let heap = GLOBAL.0.lock().used;
    Usage { heap, dma: dma::allocated(), free_pages: frames::free_bytes() }
}

/// How many requests the heap has served. If it is equal before and after an operation, the
/// operation allocated nothing.
pub fn requests() -> u64 {
    GLOBAL.0.lock().requests
}

/// How a request is served.
enum Route {
    Small(usize),
    Medium(Layout),
    Pages { len: usize, align: usize },
}

fn route(layout: Layout) -> Option<Route> {
    let size = layout.size().max(layout.align()).max(LEAST);
    Some(if size <= SMALL {
        Route::Small((size.next_power_of_two() / LEAST).ilog2() as usize)
    } else if layout.size() <= MEDIUM && layout.align() <= PAGE {
        Route::Medium(layout)
    } else {
        Route::Pages { len: layout.size().max(1).checked_next_multiple_of(PAGE)?, align: layout.align() }
    })
}

// SAFETY: every block comes from memory that the allocator owns, is as large and as aligned as its
// layout asks, and is on no free list until it is released. Nothing here unwinds.
unsafe impl GlobalAlloc for Global {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(route) = route(layout) else { return ptr::null_mut() };
        let (mut allocator, memory) = match route {
            Route::Pages { len, align } => {
                let pages = frames::alloc_pages(len, align).ok();
                (self.0.lock(), pages)
            }
            Route::Medium(layout) => {
                let mut allocator = self.0.lock();
                let memory = allocator.alloc_medium(layout);
                (allocator, memory)
            }
            Route::Small(class) => {
                let mut allocator = self.0.lock();
                let memory = allocator.alloc_small(class);
                (allocator, memory)
            }
        };
        let Some(memory) = memory else { return ptr::null_mut() };
        allocator.used += layout.size();
        allocator.requests += 1;
        memory.as_ptr()
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        let Some(memory) = NonNull::new(memory) else { return };
        let Some(route) = route(layout) else { return };
        let mut allocator = self.0.lock();
        allocator.used -= layout.size();
        match route {
            Route::Pages { len, .. } => {
                drop(allocator);
                // SAFETY: `alloc` got it from there for the same layout.
                unsafe { frames::free_pages(memory, len) };
            }
            // SAFETY: as above.
            Route::Medium(layout) => unsafe { allocator.free_medium(memory, layout) },
            // SAFETY: as above.
            Route::Small(class) => unsafe { allocator.free_small(memory, class) },
        }
    }
}

impl Allocator {
    fn alloc_small(&mut self, class: usize) -> Option<NonNull<u8>> {
        if self.classes[class].is_none() {
            let size = LEAST << class;
            let block = self.alloc_medium(Layout::from_size_align(BLOCK, SMALL).ok()?)?;
            for offset in (0..BLOCK).step_by(size) {
                // SAFETY: within the block, and aligned to `size`, since the block is aligned to
                // more.
                unsafe { self.free_small(block.add(offset), class) };
            }
        }
        let object = self.classes[class]?;
        // SAFETY: the list leads to free objects.
        self.classes[class] = unsafe { object.as_ref().next };
        Some(object.cast())
    }

    /// # Safety
    ///
    /// The memory is unused, has the class's size, and belongs to the allocator.
    unsafe fn free_small(&mut self, memory: NonNull<u8>, class: usize) {
        let object = memory.cast::<FreeObject>();
        // SAFETY: the caller's promise; every class is large enough and aligned for it.
        unsafe { object.write(FreeObject { next: self.classes[class] }) };
        self.classes[class] = Some(object);
    }

    fn alloc_medium(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        let mut at = self.arenas;
        while let Some(mut arena) = at {
            // SAFETY: arenas on the list belong to the allocator.
            let arena = unsafe { arena.as_mut() };
            if let Ok(memory) = arena.heap.allocate_first_fit(layout) {
                return Some(memory);
            }
            at = arena.next;
        }
        self.add_arena()?.heap.allocate_first_fit(layout).ok()
    }

    fn add_arena(&mut self) -> Option<&mut Arena> {
        let memory = frames::alloc_pages(ARENA, ARENA).ok()?;
        let mut arena = memory.cast::<Arena>();
        let offset = size_of::<Arena>().next_multiple_of(LEAST);
        // SAFETY: fresh pages: the arena's head at their beginning, its heap in the rest.
        unsafe {
            let heap = Heap::new(memory.add(offset).as_ptr(), ARENA - offset);
            arena.write(Arena { heap, next: self.arenas });
            self.arenas = Some(arena);
            Some(arena.as_mut())
        }
    }

    /// # Safety
    ///
    /// The memory came from [`Allocator::alloc_medium`] with this layout and is unused.
    unsafe fn free_medium(&mut self, memory: NonNull<u8>, layout: Layout) {
        let mut arena =
            memory.map_addr(|a| core::num::NonZero::new(a.get() & !(ARENA - 1)).unwrap_or(a)).cast::<Arena>();
        // SAFETY: arenas are aligned to their size, so this is the arena that contains the memory.
        let this = unsafe { arena.as_mut() };
        // SAFETY: the caller's promise.
        unsafe { this.heap.deallocate(memory, layout) };
        // The newest arena stays, so that a program that allocates and releases by turns does not
        // get an arena from the pages each time.
        if this.heap.used() == 0 && self.arenas != Some(arena) {
            let next = this.next;
            let mut at = self.arenas;
            while let Some(mut a) = at {
                // SAFETY: on the list.
                let a = unsafe { a.as_mut() };
                if a.next == Some(arena) {
                    a.next = next;
                    // SAFETY: it is empty, and no longer on the list.
                    unsafe { frames::free_pages(arena.cast(), ARENA) };
                    return;
                }
                at = a.next;
            }
        }
    }
}
