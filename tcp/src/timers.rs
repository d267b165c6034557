//! Timers in the order in which they are due: a binary heap that knows where each one is, so that
//! each owner has one timer at most, and the heap never holds a timer that is no longer wanted.

use alloc::vec::Vec;

use platform::Instant;

/// Not in the heap.
const NOWHERE: u32 = u32::MAX;

/// One timer for each owner, which is a small number.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: Vec<(Instant, u32)>,
    /// The place of each owner's timer in the heap.
    places: Vec<u32>,
}

impl Timers {
    pub const fn new() -> Timers {
        Timers { heap: Vec::new(), places: Vec::new() }
    }

    /// Makes room for owners below `owners`. False: there is no memory.
    pub fn reserve(&mut self, owners: usize) -> bool {
        let (places, heap) = (self.places.len(), self.heap.len());
        if self.places.try_reserve(owners.saturating_sub(places)).is_err()
            || self.heap.try_reserve(owners.saturating_sub(heap)).is_err()
        {
            return false;
        }
        if owners > places {
            self.places.resize(owners, NOWHERE);
        }
        true
    }

    /// The timer that is due first.
    pub fn first(&self) -> Option<(Instant, u32)> {
        self.heap.first().copied()
    }

    /// Sets, moves or takes away an owner's timer. Room for the owner was made.
    pub fn set(&mut self, owner: u32, at: Option<Instant>) {
        let Some(&place) = self.places.get(owner as usize) else { return };
        match (place, at) {
            (NOWHERE, None) => {}
            (NOWHERE, Some(at)) => {
                self.heap.push((at, owner));
                self.settle(self.heap.len() - 1);
            }
            (place, Some(at)) => {
                self.heap[place as usize].0 = at;
                self.settle(place as usize);
            }
            (place, None) => {
                let place = place as usize;
                self.places[owner as usize] = NOWHERE;
                self.heap.swap_remove(place);
                if place < self.heap.len() {
                    self.settle(place);
                }
            }
        }
    }

    /// Moves the timer at `at` up or down to where it belongs.
    fn settle(&mut self, mut at: usize) {
        while at > 0 && self.heap[at] < self.heap[(at - 1) / 2] {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
        loop {
            let children = 2 * at + 1..(2 * at + 3).min(self.heap.len());
            match children.min_by_key(|child| self.heap[*child]) {
                Some(child) if self.heap[child] < self.heap[at] => {
                    self.swap(at, child);
                    at = child;
                }
                _ => break,
            }
        }
        self.places[self.heap[at].1 as usize] = at as u32;
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        for place in [a, b] {
            self.places[self.heap[place].1 as usize] = place as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use platform::random::Random;

    use super::*;

    #[test]
    fn the_first_timer_is_the_one_that_is_due_first() {
        let mut random = Random::new(3);
        let (mut timers, mut model) = (Timers::new(), BTreeMap::new());
        assert!(timers.reserve(50));
        for _ in 0..20_000 {
            let owner = random.below(50) as u32;
            let at = (random.below(4) > 0).then(|| Instant::from_nanos(random.below(1000)));
            timers.set(owner, at);
            match at {
                Some(at) => model.insert(owner, at),
                None => model.remove(&owner),
            };
            assert_eq!(timers.heap.len(), model.len());
            let first = model.iter().map(|(owner, at)| (*at, *owner)).min();
            assert_eq!(timers.first(), first);
        }
    }
}
