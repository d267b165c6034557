//! A bounded table whose ids are never used twice and only grow: a count of all lives, then the place, in one word. Freed
//! places are reused in the order in which they were freed.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Bits of an id that are the place.
const PLACE_BITS: u32 = 24;
const PLACE: u64 = (1 << PLACE_BITS) - 1;

struct Entry<T> {
    id: u64,
    value: Option<T>,
}

/// The table. Memory is taken as it grows, up to `limit` entries, and kept.
pub(super) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: VecDeque<u32>,
    limit: u32,
    /// Of all places together, so that a later id is a greater one: 40 bits, enough for a thousand a second over
    /// thirty years.
    lives: u64,
}

/// The place that an id names.
pub(super) const fn index(id: u64) -> u32 {
    (id & PLACE) as u32
}

/// Which life an id names.
pub(super) const fn generation(id: u64) -> u32 {
    (id >> PLACE_BITS) as u32
}

impl<T> Slab<T> {
    pub fn new(limit: u32) -> Slab<T> {
        let limit = limit.min(PLACE as u32);
        Slab { entries: Vec::new(), free: VecDeque::new(), limit, lives: 0 }
    }

    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Enters what `make` makes of its id; `None` if the table is full or there is no memory.
    pub fn insert(&mut self, make: impl FnOnce(u64) -> T) -> Option<u64> {
        let place = match self.free.pop_front() {
            Some(place) => place,
            None => {
                let place = u32::try_from(self.entries.len()).ok().filter(|&place| place < self.limit)?;
                self.entries.try_reserve(1).ok()?;
                // So that `remove` needs no memory.
                self.free.try_reserve(self.entries.len() + 1).ok()?;
                self.entries.push(Entry { id: 0, value: None });
                place
            }
        };
        let entry = self.entries.get_mut(place as usize)?;
        // Counted before, so that no id is 0.
        self.lives += 1;
        let id = self.lives << PLACE_BITS | u64::from(place);
        *entry = Entry { id, value: Some(make(id)) };
        Some(id)
    }

    pub fn get(&self, id: u64) -> Option<&T> {
        self.entries.get(index(id) as usize).filter(|entry| entry.id == id)?.value.as_ref()
    }

    pub fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        self.entries.get_mut(index(id) as usize).filter(|entry| entry.id == id)?.value.as_mut()
    }

    /// The id now in use at a place.
    pub fn id_at(&self, place: u32) -> Option<u64> {
        let entry = self.entries.get(place as usize)?;
        entry.value.as_ref().map(|_| entry.id)
    }

    pub fn remove(&mut self, id: u64) -> Option<T> {
        let entry = self.entries.get_mut(index(id) as usize).filter(|entry| entry.id == id)?;
        let value = entry.value.take()?;
        self.free.push_back(index(id));
        Some(value)
    }

    /// The ids in use.
    pub fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        self.entries.iter().filter(|entry| entry.value.is_some()).map(|entry| entry.id)
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
        assert_eq!(slab.id_at(index(c)), Some(c));
        assert_eq!(slab.id_at(index(a)), None);
        assert_eq!(slab.ids().collect::<Vec<_>>(), [c]);
        assert_eq!(slab.get(0), None);
    }
}
