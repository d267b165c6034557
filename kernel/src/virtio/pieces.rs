//! The pieces of the requests that are under way: lists in an array, whose places are allocated
//! once.

use alloc::vec::Vec;

use block::Piece;
use platform::OutOfMemory;

/// The end of a list.
const END: u16 = u16::MAX;

/// A place of the array.
#[derive(Clone, Copy)]
struct Place {
    piece: Piece,
    next: u16,
}

/// Lists of pieces.
pub(super) struct Pieces {
    places: Vec<Place>,
    /// The first place that is free; they are a list, too.
    free: u16,
}

/// A list in [`Pieces`].
#[derive(Clone, Copy)]
pub(super) struct List {
    first: u16,
    pub(super) len: usize,
}

impl List {
    pub(super) const EMPTY: List = List { first: END, len: 0 };
}

impl Pieces {
    /// Room for so many pieces, less than [`END`].
    pub(super) fn new(room: u16) -> Result<Pieces, OutOfMemory> {
        let mut places = Vec::new();
        places.try_reserve_exact(usize::from(room)).map_err(|_| OutOfMemory)?;
        let next = |at: u16| if at + 1 < room { at + 1 } else { END };
        places.extend((0..room).map(|at| Place { piece: Piece { offset: 0, len: 0 }, next: next(at) }));
        Ok(Pieces { places, free: if room > 0 { 0 } else { END } })
    }

    /// Keeps a list. `None` if there is no room for it.
    pub(super) fn keep(&mut self, pieces: &[Piece]) -> Option<List> {
        let mut list = List::EMPTY;
        for &piece in pieces.iter().rev() {
            let at = self.free;
            let Some(place) = self.places.get_mut(usize::from(at)) else {
                self.release(list);
                return None;
            };
            self.free = place.next;
            *place = Place { piece, next: list.first };
            list = List { first: at, len: list.len + 1 };
        }
        Some(list)
    }

    /// The pieces of a list.
    pub(super) fn iter(&self, list: List) -> impl Iterator<Item = Piece> {
        let mut at = list.first;
        core::iter::from_fn(move || {
            let place = self.places.get(usize::from(at))?;
            at = place.next;
            Some(place.piece)
        })
    }

    /// Forgets a list.
    pub(super) fn release(&mut self, list: List) {
        let mut at = list.first;
        while let Some(place) = self.places.get_mut(usize::from(at)) {
            let next = core::mem::replace(&mut place.next, self.free);
            self.free = at;
            at = next;
        }
    }
}
