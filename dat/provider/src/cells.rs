//! The handles of C.
//!
//! `libdat2` reads the table of functions at the place to which a handle points, before it calls
//! the provider. So a handle is a pointer to a *cell*, whose first word is the table, and whose
//! place stays for the life of the process: of a freed handle too, `libdat2` reads a table. Behind
//! the table is the word by which the crate `dat` knows the object; 0 while there is none.
//!
//! A cell is used again only after [`REST`] others were freed, the oldest first, so a stale handle
//! is an error for long.
//!
//! Locks: `list`. To look a handle up takes none.
#![expect(unsafe_code, reason = "handles of C are pointers to cells, which are never given back")]

use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::abi::Handle;
use crate::opened::Adapter;
use crate::registered::Table;

/// Cells at most, those that rest included. The memory of a cell is taken when it is first used.
const MOST: usize = 1 << 19;
/// Freed cells that rest before the oldest of them is used again.
const REST: usize = 1 << 16;

/// What a handle points to.
#[repr(C)]
pub(crate) struct Cell {
    /// What `libdat2` reads.
    table: AtomicPtr<Table>,
    /// The handle in `dat`; 0 while the cell is free.
    word: AtomicU64,
    /// The IA of the object.
    adapter: AtomicPtr<Adapter>,
    /// The consumer's context of the object.
    context: AtomicU64,
    /// Of an address handle: the key of the queue pair.
    extra: AtomicU64,
}

struct List {
    used: usize,
    freed: VecDeque<usize>,
}

/// All cells: a range of memory.
pub(crate) struct Cells {
    first: *mut Cell,
    /// As many as were used at some time.
    used: AtomicUsize,
    list: Mutex<List>,
}

// SAFETY: the cells are atomics, and stay.
unsafe impl Send for Cells {}
// SAFETY: as above.
unsafe impl Sync for Cells {}

/// A word that no object ever has, and that is not null: the highest generation of the highest
/// adapter, which are never given out.
const NO_OBJECT: u64 = u64::MAX;

/// The cells of this process; `None` if there is no memory for them.
pub(crate) fn cells() -> Option<&'static Cells> {
    static CELLS: OnceLock<Option<Cells>> = OnceLock::new();
    CELLS.get_or_init(Cells::new).as_ref()
}

impl Cells {
    fn new() -> Option<Cells> {
        let len = MOST * size_of::<Cell>();
        let (rights, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: new memory, of zeros, which is what a free cell is made of.
        let first = unsafe { libc::mmap(null_mut(), len, rights, flags, -1, 0) };
        if first == libc::MAP_FAILED {
            return None;
        }
        let list = Mutex::new(List { used: 0, freed: VecDeque::new() });
        Some(Cells { first: first.cast(), used: AtomicUsize::new(0), list })
    }

    fn at(&self, index: usize) -> &Cell {
        debug_assert!(index < MOST);
        // SAFETY: callers have an index below `MOST`.
        unsafe { &*self.first.add(index) }
    }

    /// The index of the cell to which C points.
    #[inline]
    fn index(&self, handle: Handle) -> Option<usize> {
        let offset = handle.addr().checked_sub(self.first.addr())?;
        let index = offset / size_of::<Cell>();
        (offset % size_of::<Cell>() == 0 && index < self.used.load(Ordering::Acquire)).then_some(index)
    }

    fn find(&self, handle: Handle) -> Option<&Cell> {
        self.index(handle).map(|index| self.at(index))
    }

    /// The cell of a new object. `None`: all are in use.
    pub(crate) fn take(&self, table: &'static Table, word: u64, adapter: &'static Adapter) -> Option<Handle> {
        let index = {
            let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
            let rested = list.freed.len() > REST || list.used == MOST;
            let oldest = if rested { list.freed.pop_front() } else { None };
            match oldest {
                Some(index) => index,
                None if list.used < MOST => {
                    list.used += 1;
                    self.used.store(list.used, Ordering::Release);
                    list.used - 1
                }
                None => return None,
            }
        };
        let cell = self.at(index);
        cell.table.store(std::ptr::from_ref(table).cast_mut(), Ordering::Relaxed);
        cell.adapter.store(std::ptr::from_ref(adapter).cast_mut(), Ordering::Relaxed);
        cell.context.store(0, Ordering::Relaxed);
        cell.extra.store(0, Ordering::Relaxed);
        cell.word.store(word, Ordering::Release);
        Some(std::ptr::from_ref(cell).cast_mut().cast())
    }

    /// The object of a handle was freed.
    pub(crate) fn free(&self, handle: Handle) {
        let Some(index) = self.index(handle) else { return };
        if self.at(index).word.swap(0, Ordering::AcqRel) != 0 {
            self.list.lock().unwrap_or_else(PoisonError::into_inner).freed.push_back(index);
        }
    }

    /// Frees the cells of all objects of an IA.
    pub(crate) fn free_all(&self, adapter: &'static Adapter) {
        self.of(adapter).for_each(|handle| self.free(handle));
    }

    /// The handles of all objects of an IA.
    pub(crate) fn of(&self, adapter: &'static Adapter) -> impl Iterator<Item = Handle> {
        let of_adapter = move |cell: &&Cell| {
            std::ptr::eq(cell.adapter.load(Ordering::Relaxed), adapter)
                && cell.word.load(Ordering::Acquire) != 0
        };
        let all = (0..self.used.load(Ordering::Acquire)).map(|index| self.at(index));
        all.filter(of_adapter).map(|cell| std::ptr::from_ref(cell).cast_mut().cast())
    }
}

/// The word of a handle; 0 of a null handle. Of a handle that is foreign or freed it is a word that
/// no object has.
#[inline]
pub(crate) fn word(handle: Handle) -> u64 {
    if handle.is_null() {
        return 0;
    }
    let word = cells().and_then(|cells| cells.find(handle)).map(|cell| cell.word.load(Ordering::Acquire));
    word.filter(|word| *word != 0).unwrap_or(NO_OBJECT)
}

/// The word of a handle, and the IA whose object it is.
#[inline]
pub(crate) fn object(handle: Handle) -> Option<(u64, &'static Adapter)> {
    let cell = cells()?.find(handle)?;
    let word = cell.word.load(Ordering::Acquire);
    // SAFETY: adapters are never given back.
    let adapter = unsafe { cell.adapter.load(Ordering::Relaxed).as_ref() }?;
    (word != 0).then_some((word, adapter))
}

/// The cell with this number, which is a handle's name in 32 bits: see [`number`].
#[inline]
pub(crate) fn numbered(number: u32) -> u64 {
    let index = number.checked_sub(1).map(|index| index as usize);
    let found = cells().zip(index).filter(|(cells, index)| *index < cells.used.load(Ordering::Acquire));
    found.map_or(0, |(cells, index)| cells.at(index).word.load(Ordering::Acquire))
}

/// The number of a handle's cell, from 1.
pub(crate) fn number(handle: Handle) -> u32 {
    cells().and_then(|cells| cells.index(handle)).map_or(0, |index| index as u32 + 1)
}

/// The consumer's context.
pub(crate) fn context(handle: Handle) -> Option<u64> {
    Some(cells()?.find(handle)?.context.load(Ordering::Relaxed))
}

/// Sets the consumer's context.
pub(crate) fn set_context(handle: Handle, context: u64) {
    if let Some(cell) = cells().and_then(|cells| cells.find(handle)) {
        cell.context.store(context, Ordering::Relaxed);
    }
}

/// What belongs to an address handle.
pub(crate) fn extra(handle: Handle) -> u64 {
    cells().and_then(|cells| cells.find(handle)).map_or(0, |cell| cell.extra.load(Ordering::Relaxed))
}

/// Sets it.
pub(crate) fn set_extra(handle: Handle, extra: u64) {
    if let Some(cell) = cells().and_then(|cells| cells.find(handle)) {
        cell.extra.store(extra, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registered::tests::made_up;

    const WORD: u64 = 7;

    fn take(cells: &Cells) -> Option<Handle> {
        cells.take(&made_up("cells")?.table, WORD, Adapter::take())
    }

    fn word_in(cells: &Cells, handle: Handle) -> Option<u64> {
        cells.find(handle).map(|cell| cell.word.load(Ordering::Relaxed))
    }

    #[test]
    fn a_freed_cell_rests() {
        let cells = Cells::new().expect("memory");
        let first = take(&cells).expect("a cell");
        assert_eq!(word_in(&cells, first), Some(WORD));
        cells.free(first);
        assert_eq!(word_in(&cells, first), Some(0));
        // Freed twice it is one cell.
        cells.free(first);
        for _ in 0..REST {
            let other = take(&cells).expect("a cell");
            assert_ne!(other, first);
            cells.free(other);
        }
        assert_eq!(take(&cells), Some(first));
    }

    #[test]
    fn when_all_cells_are_in_use_the_next_object_gets_none() {
        let cells = Cells::new().expect("memory");
        let all: Vec<Handle> = (0..MOST).map_while(|_| take(&cells)).collect();
        assert_eq!((all.len(), take(&cells)), (MOST, None));
        cells.free(all[MOST / 2]);
        assert_eq!(take(&cells), Some(all[MOST / 2]));
    }

    #[test]
    fn a_pointer_to_something_else_is_no_handle() {
        let cells = Cells::new().expect("memory");
        let handle = take(&cells).expect("a cell");
        let beside = [
            handle.wrapping_byte_add(8),
            handle.wrapping_byte_add(size_of::<Cell>()),
            (&raw const cells).cast_mut().cast(),
        ];
        for foreign in beside {
            assert_eq!(word_in(&cells, foreign), None);
        }
        assert_eq!((word(std::ptr::null_mut()), word(handle)), (0, NO_OBJECT), "another list's");
    }

    #[test]
    fn the_objects_of_an_ia_end_with_it() {
        let cells = Cells::new().expect("memory");
        let table = &made_up("cells").expect("a name").table;
        let (one, other) = (Adapter::take(), Adapter::take());
        let of = |adapter| cells.take(table, WORD, adapter).expect("a cell");
        let (first, second, third) = (of(one), of(other), of(one));
        cells.free_all(one);
        assert_eq!(
            [first, second, third].map(|handle| word_in(&cells, handle)),
            [Some(0), Some(WORD), Some(0)]
        );
        assert_eq!(cells.of(other).collect::<Vec<_>>(), [second]);
    }
}
