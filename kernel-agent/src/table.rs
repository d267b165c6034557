//! Numbered objects: slots that are used again in the order in which they became free, with a
//! generation each.
//!
//! The table itself never moves or shrinks, so a number that the device wrote can be looked up at
//! any time: an index, the slot's lock, a comparison. Locks: a slot's (see [`Slots::lock`]) and the
//! free list's (leaf); neither is taken under the other.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;

use platform::sync::{Mutex, MutexGuard};
use platform::{Chunks, OutOfMemory};

/// Slots are allocated in chunks of this many.
const CHUNK: usize = 64;

/// A table of at most so many objects.
pub(crate) struct Table<T> {
    slots: Slots<T>,
    numbers: Numbers,
}

/// The slots of a table. Two types of objects can share their numbers, and have slots of their own.
pub(crate) struct Slots<T>(Chunks<Mutex<Option<Arc<T>>>, CHUNK>);

/// A slot and its new owner's generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// A number and its generation in one word, side by side as in a completion queue entry.
#[inline(always)]
pub(crate) fn identity(number: u32, generation: u32) -> u64 {
    u64::from(number) | u64::from(generation) << 32
}

/// Slots without what is in them.
pub(crate) struct Numbers {
    free: Mutex<Free>,
    end: u32,
}

struct Free {
    /// The first slot that never had an owner.
    fresh: u32,
    /// Slots that are free again, longest first.
    used: VecDeque<u32>,
    /// By slot: the generation of its last owner.
    generations: Vec<u32>,
}

impl Numbers {
    /// Slots `first..end`.
    pub(crate) fn new(first: u32, end: u32) -> Numbers {
        let free = Free { fresh: first, used: VecDeque::new(), generations: Vec::new() };
        Numbers { free: Mutex::new(free), end }
    }

    /// Takes a slot; `None` if all have owners, or there is no memory.
    pub(crate) fn take(&self) -> Option<Number> {
        let mut free = self.free.lock();
        let slot = if free.fresh < self.end {
            let slot = free.fresh;
            let count = slot as usize + 1;
            // Also room for the slot to come back: a release cannot fail.
            let (known, used) = (free.generations.len(), free.used.len());
            free.generations.try_reserve(count - known).ok()?;
            free.used.try_reserve(count - used).ok()?;
            free.generations.resize(count, 0);
            free.fresh += 1;
            slot
        } else {
            free.used.pop_front()?
        };
        let index = slot as usize;
        let generation = free.generations[index].wrapping_add(1);
        free.generations[index] = generation;
        Some(Number { slot, generation })
    }

    /// Takes a slot whose owner goes to `slots`.
    pub(crate) fn take_in<T>(&self, slots: &Slots<T>) -> Option<Number> {
        let number = self.take()?;
        if slots.reach(number.slot).is_err() {
            self.release(number.slot);
            return None;
        }
        Some(number)
    }

    /// A new generation for the owner of a slot. No other owner of the slot has it, nor had it.
    pub(crate) fn renew(&self, slot: u32) -> u32 {
        let mut free = self.free.lock();
        let Some(generation) = free.generations.get_mut(slot as usize) else { return 0 };
        *generation = generation.wrapping_add(1);
        *generation
    }

    /// Frees a slot that [`Numbers::take`] returned. Nothing may refer to the slot any more.
    /// Allocates nothing.
    pub(crate) fn release(&self, slot: u32) {
        self.free.lock().used.push_back(slot);
    }
}

impl<T> Table<T> {
    /// `take` returns slots `first..end` only; those below `first` can be filled as well.
    pub(crate) fn new(first: u32, end: u32) -> Result<Table<T>, OutOfMemory> {
        let table = Table { slots: Slots::new(end)?, numbers: Numbers::new(first, end) };
        if first > 0 {
            table.slots.reach(first - 1)?;
        }
        Ok(table)
    }

    /// Takes a slot; `None` if all have owners, or there is no memory.
    pub(crate) fn take(&self) -> Option<Number> {
        self.numbers.take_in(&self.slots)
    }

    /// The numbers of the table's slots, for owners in slots of another type too.
    pub(crate) fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    pub(crate) fn renew(&self, slot: u32) -> u32 {
        self.numbers.renew(slot)
    }

    pub(crate) fn release(&self, slot: u32) {
        self.numbers.release(slot);
    }
}

impl<T> Deref for Table<T> {
    type Target = Slots<T>;

    #[inline(always)]
    fn deref(&self) -> &Slots<T> {
        &self.slots
    }
}

impl<T> Slots<T> {
    /// Slots `0..end`.
    pub(crate) fn new(end: u32) -> Result<Slots<T>, OutOfMemory> {
        Ok(Slots(Chunks::new(end as usize)?))
    }

    fn reach(&self, slot: u32) -> Result<(), OutOfMemory> {
        self.0.get_or_create(slot as usize, || Mutex::new(None)).map(|_| ())
    }

    /// The slot's content, which stays as it is while the guard lives.
    #[inline]
    pub(crate) fn lock(&self, slot: u32) -> Option<MutexGuard<'_, Option<Arc<T>>>> {
        Some(self.0.get(slot as usize)?.lock())
    }

    pub(crate) fn get(&self, slot: u32) -> Option<Arc<T>> {
        self.lock(slot)?.clone()
    }

    /// Fills a slot.
    pub(crate) fn put(&self, slot: u32, object: Arc<T>) {
        if let Some(mut content) = self.lock(slot) {
            *content = Some(object);
        }
    }

    /// Empties a slot.
    pub(crate) fn remove(&self, slot: u32) -> Option<Arc<T>> {
        self.lock(slot)?.take()
    }

    /// All that is in the table, each as it is when its turn comes. Allocates nothing.
    pub(crate) fn all(&self) -> impl Iterator<Item = Arc<T>> {
        self.0.iter().filter_map(|slot| slot.lock().clone())
    }

    /// Empties the table.
    pub(crate) fn clear(&self) {
        for slot in self.0.iter() {
            // Dropped after the lock.
            let content = slot.lock().take();
            drop(content);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_come_round_in_order_with_a_new_generation() {
        let numbers = Numbers::new(1, 4);
        let taken: Vec<Number> = core::iter::from_fn(|| numbers.take()).collect();
        assert_eq!(taken.iter().map(|n| n.slot).collect::<Vec<_>>(), [1, 2, 3]);
        numbers.release(2);
        numbers.release(1);
        assert_eq!(numbers.take(), Some(Number { slot: 2, generation: 2 }));
        assert_eq!(numbers.take(), Some(Number { slot: 1, generation: 2 }));
        assert_eq!(numbers.take(), None);
    }

    #[test]
    fn a_slots_next_owner_has_none_of_the_generations_of_the_former() {
        let numbers = Numbers::new(1, 3);
        assert_eq!(numbers.take(), Some(Number { slot: 1, generation: 1 }));
        assert_eq!((numbers.renew(1), numbers.renew(1)), (2, 3));
        numbers.take();
        numbers.release(1);
        assert_eq!(numbers.take(), Some(Number { slot: 1, generation: 4 }));
    }

    #[test]
    fn a_number_beyond_the_table_is_nothing() {
        let table: Table<u32> = Table::new(0, 2).unwrap();
        assert_eq!(table.take().map(|number| number.slot), Some(0));
        table.put(1, Arc::new(7));
        assert_eq!(table.get(1).as_deref(), Some(&7));
        assert!(table.get(2).is_none());
        assert!(table.get(u32::MAX).is_none());
        assert!(table.remove(1).is_some());
        assert!(table.get(1).is_none());
    }
}
