//! Objects by slot.

use alloc::boxed::Box;
use alloc::vec::Vec;

/// Objects in slots that the driver chose. A lookup is an index and a bounds check; the vector
/// grows to the highest slot in use, which the caller has bounded.
pub(crate) struct Table<T> {
    slots: Vec<Option<Box<T>>>,
}

impl<T> Table<T> {
    pub const fn new() -> Table<T> {
        Table { slots: Vec::new() }
    }

    #[inline]
    pub fn get(&self, slot: u32) -> Option<&T> {
        self.slots.get(slot as usize)?.as_deref()
    }

    #[inline]
    pub fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.slots.get_mut(slot as usize)?.as_deref_mut()
    }

    pub fn contains(&self, slot: u32) -> bool {
        self.get(slot).is_some()
    }

    /// Puts an object into a slot that is free.
    pub fn insert(&mut self, slot: u32, object: T) {
        let slot = slot as usize;
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, || None);
        }
        self.slots[slot] = Some(Box::new(object));
    }

    pub fn remove(&mut self, slot: u32) -> Option<Box<T>> {
        self.slots.get_mut(slot as usize)?.take()
    }

    /// Slots up to the highest that has been in use.
    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// All objects. Only for what may take long: failures and teardown.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|s| s.as_deref_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_independent() {
        let mut table = Table::new();
        assert_eq!((table.get(5), table.slots()), (None, 0));
        table.insert(5, 'a');
        table.insert(2, 'b');
        assert_eq!(table.slots(), 6);
        assert_eq!((table.get(5), table.get(2), table.get(3)), (Some(&'a'), Some(&'b'), None));
        assert_eq!(table.remove(5).as_deref(), Some(&'a'));
        assert_eq!(table.remove(5), None);
        assert_eq!(table.remove(u32::MAX), None);
        assert!(!table.contains(5) && table.contains(2));
        assert_eq!(table.iter_mut().collect::<Vec<_>>(), [&'b']);
    }
}
