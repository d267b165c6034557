//! A line of seats: each is in it once at most, and every operation takes a constant number of
//! steps, so that the lock which guards the line is held for a few instructions however long it is.

use alloc::vec::Vec;

/// The seat next to the end of the line.
const END: usize = usize::MAX;

/// The neighbours of a seat that is in the line.
#[derive(Clone, Copy)]
struct Neighbours {
    before: usize,
    behind: usize,
}

/// Seats in the order in which they were appended.
pub(super) struct Line {
    /// By seat; `None` for a seat that is not in the line.
    places: Vec<Option<Neighbours>>,
    first: usize,
    last: usize,
    len: usize,
}

impl Line {
    pub(super) const fn new() -> Line {
        Line { places: Vec::new(), first: END, last: END, len: 0 }
    }

    /// Allocates room for so many more seats; false if there is no memory.
    pub(super) fn try_reserve(&mut self, more: usize) -> bool {
        self.places.try_reserve(more).is_ok()
    }

    /// Adds a seat, the next by number, which is not in the line yet. Does not allocate if there is
    /// room.
    pub(super) fn add_seat(&mut self) {
        self.places.push(None);
    }

    /// The number of seats in the line.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn contains(&self, seat: usize) -> bool {
        matches!(self.places.get(seat), Some(Some(_)))
    }

    /// The first seat of the line.
    pub(super) fn first(&self) -> Option<usize> {
        (self.first != END).then_some(self.first)
    }

    /// Appends a seat, unless it is in the line or does not exist.
    pub(super) fn append(&mut self, seat: usize) {
        let Some(place @ None) = self.places.get_mut(seat) else { return };
        *place = Some(Neighbours { before: self.last, behind: END });
        match self.places.get_mut(self.last) {
            Some(Some(last)) => last.behind = seat,
            _ => self.first = seat,
        }
        self.last = seat;
        self.len += 1;
    }

    /// Removes a seat, if it is in the line.
    pub(super) fn remove(&mut self, seat: usize) {
        let Some(Neighbours { before, behind }) = self.places.get_mut(seat).and_then(Option::take) else {
            return;
        };
        match self.places.get_mut(before) {
            Some(Some(neighbour)) => neighbour.behind = behind,
            _ => self.first = behind,
        }
        match self.places.get_mut(behind) {
            Some(Some(neighbour)) => neighbour.before = before,
            _ => self.last = before,
        }
        self.len -= 1;
    }

    /// Removes the first seat and returns it.
    pub(super) fn take_first(&mut self) -> Option<usize> {
        let first = self.first()?;
        self.remove(first);
        Some(first)
    }

    /// Moves the first seat to the end.
    pub(super) fn first_to_end(&mut self) {
        if let Some(first) = self.take_first() {
            self.append(first);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;

    use super::*;

    /// The line from its first seat to its last, checked against the order backwards.
    fn seats(line: &Line) -> Vec<usize> {
        let follow = |start: usize, next: fn(&Neighbours) -> usize| {
            let step = |seat: &usize| line.places.get(*seat).copied().flatten().map(|at| next(&at));
            let real = |seat: &usize| *seat != END;
            core::iter::successors(Some(start).filter(real), |seat| step(seat).filter(real))
                .collect::<Vec<_>>()
        };
        let forwards = follow(line.first, |at| at.behind);
        let mut backwards = follow(line.last, |at| at.before);
        backwards.reverse();
        assert_eq!(forwards, backwards);
        assert_eq!(forwards.len(), line.len());
        forwards
    }

    #[test]
    fn a_line_keeps_the_order_of_appending_whatever_leaves_it() {
        const SEATS: usize = 9;
        let (mut line, mut expected) = (Line::new(), VecDeque::new());
        (0..SEATS).for_each(|_| line.add_seat());
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..if cfg!(miri) { 100 } else { 4000 } {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            // Also a seat that does not exist.
            let seat = (random >> 33) as usize % (SEATS + 1);
            match random >> 61 {
                0..4 => {
                    line.append(seat);
                    if seat < SEATS && !expected.contains(&seat) {
                        expected.push_back(seat);
                    }
                }
                4 => assert_eq!(line.take_first(), expected.pop_front()),
                5 => {
                    line.first_to_end();
                    expected.rotate_left(usize::from(!expected.is_empty()));
                }
                _ => {
                    line.remove(seat);
                    expected.retain(|other| *other != seat);
                }
            }
            assert_eq!(expected, seats(&line));
            assert_eq!(line.first(), expected.front().copied());
            assert_eq!(line.contains(seat), expected.contains(&seat));
        }
    }
}
