//! A bounded table whose ids are never used twice: index and generation in one word. Freed places are reused in the
//! order in which they were freed.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

/// The table. Memory is taken as it grows, up to `limit` entries, and kept.
pub(super) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: VecDeque<u32>,
    limit: u32,
}

/// The place that an id names.
pub(super) const fn index(id: u64) -> u32 {
    id as u32
}

/// Which use of its place an id names.
pub(super) const fn generation(id: u64) -> u32 {
    (id >> 32) as u32
}

impl<T> Slab<T> {
    pub fn new(limit: u32) -> Slab<T> {
        Slab { entries: Vec::new(), free: VecDeque::new(), limit }
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
                self.entries.push(Entry { generation: 0, value: None });
                place
            }
        };
        let entry = self.entries.get_mut(place as usize)?;
        // Never 0, so that no id is 0. A place is reused after 2^32 lives at the earliest.
        entry.generation = entry.generation.wrapping_add(1).max(1);
        let id = u64::from(entry.generation) << 32 | u64::from(place);
        entry.value = Some(make(id));
        Some(id)
    }

    fn entry(&self, id: u64) -> Option<&Entry<T>> {
        self.entries.get(index(id) as usize).filter(|entry| entry.generation == generation(id))
    }

    pub fn get(&self, id: u64) -> Option<&T> {
        self.entry(id)?.value.as_ref()
    }

    pub fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        let entry = self.entries.get_mut(index(id) as usize)?;
        if entry.generation == generation(id) { entry.value.as_mut() } else { None }
    }

    /// The id now in use at a place.
    pub fn id_at(&self, place: u32) -> Option<u64> {
        let entry = self.entries.get(place as usize)?;
        entry.value.as_ref()?;
        Some(u64::from(entry.generation) << 32 | u64::from(place))
    }

    pub fn remove(&mut self, id: u64) -> Option<T> {
        let entry = self.entries.get_mut(index(id) as usize)?;
        if entry.generation != generation(id) {
            return None;
        }
        let value = entry.value.take()?;
        self.free.push_back(index(id));
        Some(value)
    }

    /// The ids in use.
    pub fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.entries.len() as u32).filter_map(|place| self.id_at(place))
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
        assert_ne!(c, b);
        assert_eq!((slab.get(b), slab.get(c), slab.len()), (None, Some(&'c'), 1));
        assert_eq!(slab.id_at(index(c)), Some(c));
        assert_eq!(slab.id_at(index(a)), None);
        assert_eq!(slab.ids().collect::<Vec<_>>(), [c]);
        assert_eq!(slab.get(0), None);
    }
}
