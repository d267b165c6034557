//! Queue pairs that wait for something that many may wait for: room in the wire, or a neighbour's
//! MAC.
//!
//! Whatever their number, a queue pair joins them, leaves them and finds its place in a few steps;
//! so do all that wait for one neighbour when they begin to go on.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use roce::Gid;

/// Marks the number of a list's own link, where the other links have a slot.
const LIST: u32 = 1 << 31;

#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
}

/// Lists of slots, in the order in which these came. A slot is in one of the lists at most.
#[derive(Debug, Default)]
struct Lists {
    /// A list is a circle of links, of which one is its own: its neighbours are the last and the
    /// first. The link of a slot that is in no list is a circle of its own.
    lists: Vec<Link>,
    slots: Vec<Link>,
}

impl Lists {
    fn link(&mut self, of: u32) -> &mut Link {
        let (links, place) = match of & LIST {
            0 => (&mut self.slots, of),
            _ => (&mut self.lists, of & !LIST),
        };
        for alone in links.len() as u32..=place {
            let alone = alone | of & LIST;
            links.push(Link { previous: alone, next: alone });
        }
        &mut links[place as usize]
    }

    fn join(&mut self, first: u32, second: u32) {
        self.link(first).next = second;
        self.link(second).previous = first;
    }

    /// Appends a slot that is in no list.
    fn push(&mut self, list: u32, slot: u32) {
        let last = self.link(list | LIST).previous;
        self.join(last, slot);
        self.join(slot, list | LIST);
    }

    /// Removes a slot from its list.
    fn remove(&mut self, slot: u32) {
        let Link { previous, next } = *self.link(slot);
        self.join(previous, next);
        self.join(slot, slot);
    }

    /// The slot behind a slot or, for a list's own link, the first one.
    fn after(&self, of: u32) -> Option<u32> {
        let links = if of & LIST == 0 { &self.slots } else { &self.lists };
        let next = links.get((of & !LIST) as usize)?.next;
        (next & LIST == 0).then_some(next)
    }

    /// Appends all slots of a list to another one.
    fn append(&mut self, from: u32, to: u32) {
        let Link { previous: last, next: first } = *self.link(from | LIST);
        if first & LIST == 0 {
            let end = self.link(to | LIST).previous;
            self.join(end, first);
            self.join(last, to | LIST);
            self.join(from | LIST, from | LIST);
        }
    }
}

/// The only list of those that wait for room.
const ROOM: u32 = 0;
/// The lists of those whose neighbour is settled: it has a MAC, or it has none.
const FOUND: u32 = 0;
const LOST: u32 = 1;

/// The queue pairs of a NIC that wait, by slot.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    room: Lists,
    neighbours: Lists,
    /// The list of each neighbour for which one waits, and lists that are empty.
    names: BTreeMap<Gid, u32>,
    unused: Vec<u32>,
}

impl Waiting {
    /// Appends a queue pair to those that wait for room.
    pub fn for_room(&mut self, slot: u32) {
        self.room.push(ROOM, slot);
    }

    /// A queue pair no longer waits for room.
    pub fn has_room(&mut self, slot: u32) {
        self.room.remove(slot);
    }

    /// The queue pair that has waited for room longest, or that behind another one.
    #[inline]
    pub fn next_for_room(&self, after: Option<u32>) -> Option<u32> {
        self.room.after(after.unwrap_or(ROOM | LIST))
    }

    /// Appends a queue pair to those that wait for this neighbour.
    pub fn for_neighbour(&mut self, slot: u32, gid: Gid) {
        let Waiting { neighbours, names, unused, .. } = self;
        let list = *names.entry(gid).or_insert_with(|| {
            // Those of the neighbours behind those of the settled ones.
            unused.pop().unwrap_or_else(|| (neighbours.lists.len() as u32).max(LOST + 1))
        });
        neighbours.push(list, slot);
    }

    /// A queue pair no longer waits for a neighbour.
    pub fn forget_neighbour(&mut self, slot: u32) {
        self.neighbours.remove(slot);
    }

    /// Those that wait for this neighbour may go on.
    pub fn settle(&mut self, gid: Gid, found: bool) {
        if let Some(list) = self.names.remove(&gid) {
            self.neighbours.append(list, if found { FOUND } else { LOST });
            self.unused.push(list);
        }
    }

    /// Whether one whose neighbour is settled has not gone on yet.
    #[inline]
    pub fn has_settled(&self) -> bool {
        [FOUND, LOST].iter().any(|list| self.neighbours.after(list | LIST).is_some())
    }

    /// Takes one whose neighbour is settled; whether the neighbour has a MAC.
    pub fn next_settled(&mut self) -> Option<(u32, bool)> {
        let first = |list: u32| Some((self.neighbours.after(list | LIST)?, list == FOUND));
        let (slot, found) = first(FOUND).or_else(|| first(LOST))?;
        self.neighbours.remove(slot);
        Some((slot, found))
    }

    /// Forgets all queue pairs.
    pub fn clear(&mut self) {
        *self = Waiting::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(n: u8) -> Gid {
        Gid::from_ipv4([10, 0, 0, n].into())
    }

    fn settled(waiting: &mut Waiting) -> Vec<(u32, bool)> {
        core::iter::from_fn(|| waiting.next_settled()).collect()
    }

    fn for_room(waiting: &Waiting) -> Vec<u32> {
        core::iter::successors(waiting.next_for_room(None), |slot| waiting.next_for_room(Some(*slot)))
            .collect()
    }

    #[test]
    fn those_that_wait_for_room_keep_their_order_whoever_leaves() {
        let mut waiting = Waiting::default();
        assert_eq!(for_room(&waiting), []);
        for slot in [7, 3, 9, 0, 5] {
            waiting.for_room(slot);
        }
        for (slot, left) in [(9, &[7, 3, 0, 5][..]), (7, &[3, 0, 5]), (5, &[3, 0]), (3, &[0]), (0, &[])] {
            waiting.has_room(slot);
            assert_eq!(for_room(&waiting), left);
        }
        waiting.for_room(9);
        waiting.for_room(7);
        assert_eq!(for_room(&waiting), [9, 7]);
        waiting.clear();
        assert_eq!(for_room(&waiting), []);
    }

    #[test]
    fn each_neighbour_has_its_own_and_they_go_on_in_their_order() {
        let mut waiting = Waiting::default();
        for slot in 0..12 {
            waiting.for_neighbour(slot, gid(slot as u8 % 3));
        }
        waiting.settle(gid(9), true);
        assert!(!waiting.has_settled());
        waiting.forget_neighbour(4);
        waiting.settle(gid(1), false);
        waiting.settle(gid(0), true);
        assert!(waiting.has_settled());
        // One of them does not wait any more, and one waits for another neighbour by now.
        waiting.forget_neighbour(6);
        waiting.forget_neighbour(7);
        waiting.for_neighbour(7, gid(2));
        let expected = [(0, true), (3, true), (9, true), (1, false), (10, false)];
        assert_eq!(settled(&mut waiting), expected);
        waiting.settle(gid(2), true);
        assert_eq!(settled(&mut waiting), [2, 5, 8, 11, 7].map(|slot| (slot, true)));
        // A list is used again.
        let lists = waiting.neighbours.lists.len();
        for n in 0..3 {
            waiting.for_neighbour(n, gid(n as u8));
        }
        assert_eq!(waiting.neighbours.lists.len(), lists);
        assert!(!waiting.has_settled());
    }
}
