//! A bounded table whose ids only grow and are never used twice: an id is a count of all insertions
//! and the index of an entry, in one word. Free entries are reused in the order in which they were
//! freed.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Bits of an id that are the index.
const INDEX_BITS: u32 = 24;
const INDEX: u64 = (1 << INDEX_BITS) - 1;
/// Entries that are allocated together. An entry stays in its place: a table that doubles would
/// have up to as many unused entries as used ones.
const CHUNK: usize = 16;

struct Entry<T> {
    id: u64,
    value: Option<T>,
}

/// The table. It allocates as it grows, up to `limit` entries, and keeps the memory.
pub(super) struct Slab<T> {
    chunks: Vec<Vec<Entry<T>>>,
    len: usize,
    free: VecDeque<u32>,
    limit: u32,
    /// Insertions into the whole table, so that a later id is a greater one: 40 bits, enough for a
    /// thousand a second over thirty years.
    insertions: u64,
}

/// The index in an id.
const fn index(id: u64) -> u32 {
    (id & INDEX) as u32
}

impl<T> Slab<T> {
    pub fn new(limit: u32) -> Slab<T> {
        let limit = limit.min(INDEX as u32);
        Slab { chunks: Vec::new(), len: 0, free: VecDeque::new(), limit, insertions: 0 }
    }

    pub fn len(&self) -> usize {
        self.len - self.free.len()
    }

    pub fn limit(&self) -> u32 {
        self.limit
    }

    pub fn is_full(&self) -> bool {
        self.len() >= self.limit as usize
    }

    /// Inserts what `make` returns for the new id; `None` if the table is full or there is no
    /// memory.
    pub fn insert(&mut self, make: impl FnOnce(u64) -> T) -> Option<u64> {
        let index = match self.free.pop_front() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.len).ok().filter(|&index| index < self.limit)?;
                self.grow()?;
                index
            }
        };
        // Counted before, so that no id is 0.
        self.insertions += 1;
        let id = self.insertions << INDEX_BITS | u64::from(index);
        *self.entry_mut(index)? = Entry { id, value: Some(make(id)) };
        Some(id)
    }

    /// Adds an entry without a value.
    fn grow(&mut self) -> Option<()> {
        // So that `remove` needs no memory.
        self.free.try_reserve(self.len + 1).ok()?;
        if self.len.is_multiple_of(CHUNK) {
            let mut chunk = Vec::new();
            chunk.try_reserve_exact(CHUNK).ok()?;
            self.chunks.try_reserve(1).ok()?;
            self.chunks.push(chunk);
        }
        self.chunks.last_mut()?.push(Entry { id: 0, value: None });
        self.len += 1;
        Some(())
    }

    fn entry(&self, index: u32) -> Option<&Entry<T>> {
        self.chunks.get(index as usize / CHUNK)?.get(index as usize % CHUNK)
    }

    fn entry_mut(&mut self, index: u32) -> Option<&mut Entry<T>> {
        self.chunks.get_mut(index as usize / CHUNK)?.get_mut(index as usize % CHUNK)
    }

    pub fn get(&self, id: u64) -> Option<&T> {
        self.entry(index(id)).filter(|entry| entry.id == id)?.value.as_ref()
    }

    pub fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        self.entry_mut(index(id)).filter(|entry| entry.id == id)?.value.as_mut()
    }

    pub fn remove(&mut self, id: u64) -> Option<T> {
        let entry = self.entry_mut(index(id)).filter(|entry| entry.id == id)?;
        let value = entry.value.take()?;
        self.free.push_back(index(id));
        Some(value)
    }

    /// The ids in use.
    pub fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        self.chunks.iter().flatten().filter(|entry| entry.value.is_some()).map(|entry| entry.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_not_used_twice_and_places_are_reused_in_order() {
        let mut slab = Slab::new(2);
        let a = slab.insert(|_| 'a').unwrap();
        let b = slab.insert(|_| 'b').unwrap();
        assert_eq!(slab.insert(|_| 'x'), None);
        assert_eq!(slab.remove(b), Some('b'));
        assert_eq!(slab.remove(a), Some('a'));
        assert_eq!(slab.remove(a), None);
        let c = slab.insert(|_| 'c').unwrap();
        assert_eq!(index(c), index(b));
        assert!(c > a && c > b && b > a);
        assert_eq!((slab.get(b), slab.get(c), slab.len()), (None, Some(&'c'), 1));
        assert_eq!(slab.ids().collect::<Vec<_>>(), [c]);
        assert_eq!(slab.get(0), None);
    }
}
