//! The places of namespaces. Place `n` is that of namespace `n + 1` for as long as the target runs,
//! and namespaces come and go meanwhile.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

use super::config::MOST_NAMESPACES;
use super::namespace::Namespace;

/// All places: those up to the last one that is taken.
pub(crate) struct Namespaces {
    places: Vec<Option<Box<Namespace>>>,
    /// For each place, which removal made it free; 0 for none.
    removals: [u64; MOST_NAMESPACES],
    last_removal: u64,
}

impl Default for Namespaces {
    fn default() -> Namespaces {
        Namespaces { places: Vec::new(), removals: [0; MOST_NAMESPACES], last_removal: 0 }
    }
}

impl Namespaces {
    /// The places that may be taken are those below this one.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn get(&self, place: usize) -> Option<&Namespace> {
        self.places.get(place)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, place: usize) -> Option<&mut Namespace> {
        self.places.get_mut(place)?.as_deref_mut()
    }

    /// The namespaces.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Namespace> {
        self.places.iter().filter_map(Option::as_deref)
    }

    /// The places that are taken, with their namespaces.
    pub(crate) fn of_places(&self) -> impl Iterator<Item = (usize, &Namespace)> + Clone {
        self.places.iter().enumerate().filter_map(|(place, namespace)| Some((place, namespace.as_deref()?)))
    }

    /// Whether there was a namespace at a place that is free now.
    pub(crate) fn is_former(&self, place: usize) -> bool {
        self.get(place).is_none() && self.removals.get(place).is_some_and(|&removal| removal > 0)
    }

    /// Whether all places are taken.
    pub(crate) fn is_full(&self) -> bool {
        self.iter().count() == MOST_NAMESPACES
    }

    /// Gives a namespace a place that none had before, or else the one that has been free for the
    /// longest time: a host that still knows the former namespace of the place takes the new one
    /// for a fault. `None`: all places are taken.
    pub(crate) fn add(&mut self, namespace: Box<Namespace>) -> Option<usize> {
        let free = (0..MOST_NAMESPACES).filter(|&place| self.get(place).is_none());
        let place = free.min_by_key(|&place| self.removals[place])?;
        self.put(place, namespace);
        Some(place)
    }

    /// Puts a namespace to the place that the manager has given it.
    pub(crate) fn put(&mut self, place: usize, namespace: Box<Namespace>) {
        if self.places.len() <= place {
            self.places.resize_with(place + 1, || None);
        }
        self.places[place] = Some(namespace);
    }

    /// Takes over what the manager's table says about reservations.
    pub(crate) fn copy_reservations(&mut self, managers: &Namespaces) {
        for (own, its) in self.places.iter_mut().flatten().zip(managers.iter()) {
            own.copy_reservation(its);
        }
    }

    /// Takes a namespace away.
    pub(crate) fn remove(&mut self, place: usize) -> Option<Box<Namespace>> {
        let namespace = self.places.get_mut(place)?.take()?;
        self.last_removal += 1;
        self.removals[place] = self.last_removal;
        while self.places.last().is_some_and(Option::is_none) {
            self.places.pop();
        }
        Some(namespace)
    }
}

/// For the places of commands: a namespace stays as long as a command is about it.
impl Index<usize> for Namespaces {
    type Output = Namespace;

    fn index(&self, place: usize) -> &Namespace {
        self.get(place).expect("a namespace with commands")
    }
}

impl IndexMut<usize> for Namespaces {
    fn index_mut(&mut self, place: usize) -> &mut Namespace {
        self.get_mut(place).expect("a namespace with commands")
    }
}
