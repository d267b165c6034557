//! The numbers that distinguish the handles of one adapter from those of another.
//!
//! At any time each adapter, of whatever face, has a number of its own. A number is used again as
//! late as possible, and its next holder continues with the generations where the last one stopped.
//! So a handle that outlives its adapter names nothing in a later one.

// Of `core`: the model checker cannot have statics.
use core::sync::atomic::{AtomicU32, Ordering};

use alloc::sync::Arc;

use platform::heap;

use crate::{OutOfResources, handle};

/// How many numbers there are, from 1. The last that fits into a handle is not given out, see
/// [`handle::GENERATION_MASK`].
const COUNT: u32 = (1 << handle::ADAPTER_BITS) - 2;
/// The bit that says that a number is in use. The bits below are the last generation of its
/// handles.
const TAKEN: u32 = 1 << 31;

struct Numbers<const COUNT: usize> {
    places: [AtomicU32; COUNT],
    turn: AtomicU32,
}

static NUMBERS: Numbers<{ COUNT as usize }> = Numbers::new();

impl<const COUNT: usize> Numbers<COUNT> {
    const fn new() -> Numbers<COUNT> {
        Numbers { places: [const { AtomicU32::new(0) }; COUNT], turn: AtomicU32::new(0) }
    }

    fn take(&'static self) -> Result<Number, OutOfResources> {
        for _ in 0..COUNT {
            let index = self.turn.fetch_add(1, Ordering::Relaxed) as usize % COUNT;
            let place = &self.places[index];
            let last = place.fetch_or(TAKEN, Ordering::Acquire);
            if last & TAKEN == 0 {
                let first = handle::next_generation(last);
                let held = Held { place, number: index as u32 + 1, first, last: AtomicU32::new(first) };
                // Without memory the number is free again.
                return heap::arc(held).map(Number).map_err(|_| OutOfResources);
            }
        }
        Err(OutOfResources)
    }
}

/// An adapter's number, which each of the adapter's tables shares. It is free again when the last
/// clone is dropped.
#[derive(Clone)]
pub struct Number(Arc<Held>);

struct Held {
    place: &'static AtomicU32,
    number: u32,
    first: u32,
    last: AtomicU32,
}

impl Number {
    /// Takes a number that no adapter has. Fails if there is none, or no memory.
    pub fn take() -> Result<Number, OutOfResources> {
        NUMBERS.take()
    }

    /// The number, as handles have it.
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// The generation of the first handles.
    pub fn first_generation(&self) -> u32 {
        self.0.first
    }

    /// Records that a table gave out handles up to this generation.
    pub(crate) fn reached(&self, generation: u32) {
        self.0.last.fetch_max(generation, Ordering::Relaxed);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.place.store(*self.last.get_mut(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Table;

    crate::handles! {
        /// A handle of a number.
        Named = handle::Tag::new(0);
    }

    #[test]
    fn a_number_has_one_holder_and_goes_on_where_that_stopped() {
        static NUMBERS: Numbers<3> = Numbers::new();
        let first = NUMBERS.take().unwrap();
        let others = [NUMBERS.take().unwrap(), NUMBERS.take().unwrap()];
        assert_eq!([&first, &others[0], &others[1]].map(Number::number), [1, 2, 3]);
        assert_eq!(first.first_generation(), 1);
        assert!(matches!(NUMBERS.take().map(|_| ()), Err(OutOfResources)));
        first.reached(5);
        first.reached(4);
        drop(first);
        let again = NUMBERS.take().unwrap();
        assert_eq!((again.number(), again.first_generation()), (1, 6));
        drop(others);
        // The number that was freed last is used last.
        drop(again);
        assert_eq!([(); 3].map(|()| NUMBERS.take().unwrap().number()), [2, 3, 1]);
    }

    #[test]
    fn the_next_holder_goes_on_behind_what_the_tables_gave_out() {
        static NUMBERS: Numbers<1> = Numbers::new();
        let number = NUMBERS.take().unwrap();
        let table: Table<Named, u32> = Table::new(&number, 1, 0).unwrap();
        let first = table.reserve().unwrap().fill(Arc::new(1));
        table.remove(first);
        let second = table.reserve().unwrap().fill(Arc::new(2));
        assert!(handle::generation(second.0) > handle::generation(first.0));
        drop(number);
        assert!(matches!(NUMBERS.take().map(|_| ()), Err(OutOfResources)), "a table has it");
        drop(table);
        assert_eq!(NUMBERS.take().unwrap().first_generation(), handle::generation(second.0) + 1);
    }

    #[test]
    fn every_number_that_fits_is_given_out_but_the_last() {
        static NUMBERS: Numbers<{ COUNT as usize }> = Numbers::new();
        let all: alloc::vec::Vec<Number> = core::iter::from_fn(|| NUMBERS.take().ok()).collect();
        // 12 bits; 0 is no number.
        assert!(all.iter().map(Number::number).eq(1..=4094));
    }

    #[test]
    fn after_the_last_generation_comes_the_first() {
        static NUMBERS: Numbers<1> = Numbers::new();
        NUMBERS.take().unwrap().reached(handle::GENERATION_MASK - 1);
        assert_eq!(NUMBERS.take().unwrap().first_generation(), 1);
    }
}
