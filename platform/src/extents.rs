//! Free extents of memory, allocated first fit, in a number of steps that grows with the logarithm
//! of the number of extents: for the page allocators of kernels.
//!
//! The extents form a tree ordered by address, in which each node also has the length of the
//! longest extent below it, so that the first extent that is long enough is found on one way down.
//! The tree is a treap: a node lies above the nodes below it because of a number that is made from
//! its address. So its depth is logarithmic whatever the order of calls is. Neighbours are always
//! merged.
//!
//! [`Nodes`] decides where the nodes are kept. A kernel keeps each in the extent that it describes,
//! and so needs no other memory.

/// The node of a free extent, kept by the extent's address. Of the addresses in it 0 means none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Bytes of the extent.
    len: usize,
    /// Bytes of the longest extent in this node and below it.
    longest: usize,
    /// The node at lower addresses.
    left: usize,
    /// The node at higher addresses.
    right: usize,
}

/// Where the nodes of free extents are kept.
pub trait Nodes {
    /// The node that [`Nodes::store`] was last given for this address.
    fn load(&self, addr: usize) -> Node;
    /// Keeps a node for the extent at this address, all of which is free.
    fn store(&mut self, addr: usize, node: Node);
    /// The extent at this address is not free any more, or is a part of another one: its node will
    /// not be loaded.
    fn forget(&mut self, _addr: usize) {}
}

/// Free extents. All addresses and lengths are multiples of the granule; address 0 is never free.
pub struct Extents<N> {
    nodes: N,
    root: usize,
    /// Bytes of all free extents.
    free: usize,
    granule: usize,
}

/// The node with the higher rank lies above. Two addresses never have the same rank.
const fn rank(addr: usize) -> u64 {
    let mixed = (addr as u64 ^ (addr as u64) >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb)
}

impl<N: Nodes> Extents<N> {
    /// No free extents. `granule` is a power of two.
    pub const fn new(nodes: N, granule: usize) -> Extents<N> {
        Extents { nodes, root: 0, free: 0, granule }
    }

    /// The number of free bytes.
    pub fn free_bytes(&self) -> usize {
        self.free
    }

    /// Makes `len` bytes at `addr` free. They must not be free already.
    pub fn release(&mut self, addr: usize, len: usize) {
        debug_assert!(addr != 0 && len != 0 && (addr | len).is_multiple_of(self.granule));
        let (mut start, mut all) = (addr, len);
        let (before, after) = self.neighbours(addr);
        if before != 0 {
            let before_len = self.nodes.load(before).len;
            debug_assert!(before + before_len <= addr, "released twice");
            if before + before_len == addr {
                self.remove(before);
                (start, all) = (before, before_len + len);
            }
        }
        if after == addr + len {
            all += self.nodes.load(after).len;
            self.remove(after);
        }
        self.insert(start, all);
        self.free += len;
    }

    /// Allocates `len` bytes, a multiple of the granule, at a multiple of `align`, a power of two.
    /// They come from the first extent in which there is room at any alignment; else from one in
    /// which there happens to be room at the alignment.
    pub fn allocate(&mut self, len: usize, align: usize) -> Option<usize> {
        debug_assert!(len != 0 && len.is_multiple_of(self.granule) && align.is_power_of_two());
        let slack = align.saturating_sub(self.granule);
        let first = self.first(len).filter(|&addr| self.place(addr, len, align).is_some());
        let addr = first
            .or_else(|| self.first(len.checked_add(slack)?))
            .or_else(|| self.search(self.root, len, align))?;
        let (start, end) = (addr, addr + self.nodes.load(addr).len);
        let place = self.place(addr, len, align)?;
        self.remove(addr);
        if place > start {
            self.insert(start, place - start);
        }
        if end > place + len {
            self.insert(place + len, end - (place + len));
        }
        self.free -= len;
        Some(place)
    }

    /// Where in the extent at `addr` there is room.
    fn place(&self, addr: usize, len: usize, align: usize) -> Option<usize> {
        let place = addr.checked_next_multiple_of(align)?;
        let gap = place - addr;
        let extent = self.nodes.load(addr).len;
        (gap <= extent && len <= extent - gap).then_some(place)
    }

    fn longest(&self, addr: usize) -> usize {
        if addr == 0 { 0 } else { self.nodes.load(addr).longest }
    }

    /// The first extent of at least `len` bytes.
    fn first(&self, len: usize) -> Option<usize> {
        let mut addr = self.root;
        if self.longest(addr) < len {
            return None;
        }
        loop {
            let node = self.nodes.load(addr);
            if self.longest(node.left) >= len {
                addr = node.left;
            } else if node.len >= len {
                return Some(addr);
            } else {
                addr = node.right;
            }
        }
    }

    /// Any extent below the node `addr` with room at the alignment. Looks at every extent that is
    /// long enough: to be called when none is so long that there is room whatever its address.
    fn search(&self, addr: usize, len: usize, align: usize) -> Option<usize> {
        if self.longest(addr) < len {
            return None;
        }
        let node = self.nodes.load(addr);
        if let Some(found) = self.search(node.left, len, align) {
            return Some(found);
        }
        if self.place(addr, len, align).is_some() {
            return Some(addr);
        }
        self.search(node.right, len, align)
    }

    /// The last extent before `addr` and the first one after it; 0 for none.
    fn neighbours(&self, addr: usize) -> (usize, usize) {
        let (mut before, mut after) = (0, 0);
        let mut at = self.root;
        while at != 0 {
            let node = self.nodes.load(at);
            if at < addr {
                (before, at) = (at, node.right);
            } else {
                (after, at) = (at, node.left);
            }
        }
        (before, after)
    }

    /// Stores a node, with the longest extent of itself and of the two below it.
    fn store(&mut self, addr: usize, len: usize, left: usize, right: usize) {
        let longest = len.max(self.longest(left)).max(self.longest(right));
        self.nodes.store(addr, Node { len, longest, left, right });
    }

    fn insert(&mut self, addr: usize, len: usize) {
        self.root = self.inserted(self.root, addr, len);
    }

    /// Inserts an extent into the tree below the node `at`; returns the tree's top.
    fn inserted(&mut self, at: usize, addr: usize, len: usize) -> usize {
        if at == 0 || rank(addr) > rank(at) {
            let (left, right) = self.split(at, addr);
            self.store(addr, len, left, right);
            return addr;
        }
        let node = self.nodes.load(at);
        if addr < at {
            let left = self.inserted(node.left, addr, len);
            self.store(at, node.len, left, node.right);
        } else {
            let right = self.inserted(node.right, addr, len);
            self.store(at, node.len, node.left, right);
        }
        at
    }

    /// The tree below the node `at` as two: what is before `addr`, and the rest.
    fn split(&mut self, at: usize, addr: usize) -> (usize, usize) {
        if at == 0 {
            return (0, 0);
        }
        let node = self.nodes.load(at);
        if at < addr {
            let (left, right) = self.split(node.right, addr);
            self.store(at, node.len, node.left, left);
            (at, right)
        } else {
            let (left, right) = self.split(node.left, addr);
            self.store(at, node.len, right, node.right);
            (left, at)
        }
    }

    fn remove(&mut self, addr: usize) {
        self.root = self.removed(self.root, addr);
        self.nodes.forget(addr);
    }

    /// Removes an extent from the tree below the node `at`; returns the tree's top.
    fn removed(&mut self, at: usize, addr: usize) -> usize {
        if at == 0 {
            return 0;
        }
        let node = self.nodes.load(at);
        if at == addr {
            return self.joined(node.left, node.right);
        }
        if addr < at {
            let left = self.removed(node.left, addr);
            self.store(at, node.len, left, node.right);
        } else {
            let right = self.removed(node.right, addr);
            self.store(at, node.len, node.left, right);
        }
        at
    }

    /// Two trees as one; all of `left` is before all of `right`.
    fn joined(&mut self, left: usize, right: usize) -> usize {
        if left == 0 || right == 0 {
            return left | right;
        }
        let (l, r) = (self.nodes.load(left), self.nodes.load(right));
        if rank(left) > rank(right) {
            let below = self.joined(l.right, right);
            self.store(left, l.len, l.left, below);
            left
        } else {
            let below = self.joined(left, r.left);
            self.store(right, r.len, below, r.right);
            right
        }
    }
}

#[cfg(all(test, not(ferrovia_model)))]
mod tests {
    extern crate std;

    use core::cell::Cell;
    use std::collections::{BTreeMap, HashMap};
    use std::vec::Vec;

    use super::*;

    const PAGE: usize = 4096;

    /// Nodes in a table, which counts the accesses.
    #[derive(Default)]
    struct Counted {
        nodes: HashMap<usize, Node>,
        accesses: Cell<usize>,
    }

    impl Nodes for Counted {
        fn load(&self, addr: usize) -> Node {
            self.accesses.set(self.accesses.get() + 1);
            self.nodes[&addr]
        }

        fn store(&mut self, addr: usize, node: Node) {
            self.accesses.set(self.accesses.get() + 1);
            self.nodes.insert(addr, node);
        }

        fn forget(&mut self, addr: usize) {
            self.nodes.remove(&addr);
        }
    }

    impl Extents<Counted> {
        /// Checks the tree below the node `at`, all of which is in `range`; returns the length of
        /// its longest extent and the number of nodes.
        fn check(&self, at: usize, range: core::ops::Range<usize>) -> (usize, usize) {
            if at == 0 {
                return (0, 0);
            }
            let node = self.nodes.nodes[&at];
            assert!(range.contains(&at) && at + node.len <= range.end, "nodes are in order");
            for below in [node.left, node.right] {
                assert!(below == 0 || rank(below) < rank(at), "the higher rank is above");
            }
            // Neighbours would have been merged.
            let (left, before) = self.check(node.left, range.start..at.saturating_sub(1));
            let (right, after) = self.check(node.right, at + node.len + 1..range.end);
            assert_eq!(node.longest, node.len.max(left).max(right));
            (node.longest, before + 1 + after)
        }
    }

    fn extents(pages: usize) -> Extents<Counted> {
        let mut extents = Extents::new(Counted::default(), PAGE);
        extents.release(PAGE, pages * PAGE);
        extents
    }

    /// Allocates and releases in random order, and compares with a list of free pages.
    #[test]
    fn it_allocates_what_a_plain_list_allocates() {
        const PAGES: usize = 200;
        let mut seed = 1u64;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        for _ in 0..if cfg!(miri) { 2 } else { 40 } {
            let mut extents = extents(PAGES);
            let mut free = [true; PAGES + 1];
            free[0] = false;
            let mut taken: Vec<(usize, usize)> = Vec::new();
            for _ in 0..600 {
                if random(5) < 3 {
                    let (len, align) = (1 + random(9), 1 << random(4));
                    let fits =
                        |at: &usize| free[*at..].len() >= len && free[*at..at + len].iter().all(|f| *f);
                    let found = extents.allocate(len * PAGE, align * PAGE).map(|addr| addr / PAGE);
                    let first = (1..=PAGES).filter(|at| at % align == 0).find(fits);
                    assert_eq!(found.is_some(), first.is_some());
                    if let Some(at) = found {
                        assert!(at % align == 0 && fits(&at));
                        assert!(align > 1 || found == first, "first fit");
                        free[at..at + len].fill(false);
                        taken.push((at, len));
                    }
                } else if !taken.is_empty() {
                    let (at, len) = taken.swap_remove(random(taken.len()));
                    extents.release(at * PAGE, len * PAGE);
                    free[at..at + len].fill(true);
                }
                let nodes = extents.check(extents.root, PAGE..(PAGES + 1) * PAGE).1;
                assert_eq!(nodes, extents.nodes.nodes.len());
                assert_eq!(extents.free_bytes(), free.iter().filter(|f| **f).count() * PAGE);
            }
            for (at, len) in taken {
                extents.release(at * PAGE, len * PAGE);
            }
            assert_eq!(extents.nodes.nodes.len(), 1, "neighbours are merged again");
            assert_eq!(extents.allocate(PAGES * PAGE, PAGE), Some(PAGE));
            assert_eq!(extents.allocate(PAGE, PAGE), None);
        }
    }

    #[test]
    fn a_length_or_an_alignment_beyond_the_memory_finds_nothing() {
        let mut extents = extents(4);
        let whole = usize::MAX & !(PAGE - 1);
        for (len, align) in [(5 * PAGE, PAGE), (PAGE, 1 << 40), (whole, PAGE), (whole, 1 << 62)] {
            assert_eq!(extents.allocate(len, align), None, "{len:#x} {align:#x}");
        }
        assert_eq!(extents.free_bytes(), 4 * PAGE);
    }

    #[test]
    fn the_first_extent_with_room_at_any_alignment_is_preferred_to_one_that_happens_to_fit() {
        // A page at an odd place, one at an even place, and two or three at an odd place.
        for last in [2, 3] {
            let mut extents = Extents::new(Counted::default(), PAGE);
            extents.release(PAGE, PAGE);
            extents.release(4 * PAGE, PAGE);
            extents.release(7 * PAGE, last * PAGE);
            assert_eq!(extents.allocate(PAGE, 2 * PAGE), Some(8 * PAGE));
            assert_eq!(extents.allocate(PAGE, 2 * PAGE), Some(4 * PAGE));
            assert_eq!(extents.allocate(PAGE, 2 * PAGE), None);
            assert_eq!(extents.allocate(PAGE, PAGE), Some(PAGE));
        }
    }

    /// Accesses to nodes for each call, with that many holes in the memory.
    fn accesses_with_holes(holes: usize) -> usize {
        let mut extents = extents(4 * holes);
        let pieces: Vec<usize> = (0..2 * holes).filter_map(|_| extents.allocate(PAGE, PAGE)).collect();
        pieces.iter().step_by(2).for_each(|&piece| extents.release(piece, PAGE));
        assert_eq!(extents.nodes.nodes.len(), holes + 1);
        extents.nodes.accesses.set(0);
        // Longer than the holes, so that the list of holes would be searched to its end.
        let calls: Vec<usize> = (0..holes / 2).filter_map(|_| extents.allocate(2 * PAGE, PAGE)).collect();
        assert_eq!(calls.len(), holes / 2);
        calls.iter().rev().for_each(|&piece| extents.release(piece, 2 * PAGE));
        extents.nodes.accesses.get() / holes
    }

    #[test]
    fn the_steps_of_a_call_grow_with_the_logarithm_of_the_number_of_extents() {
        let (few, many) = (accesses_with_holes(64), accesses_with_holes(if cfg!(miri) { 256 } else { 8192 }));
        // 128 times as many extents: the depth grows by at most 3 · ln 128 levels or so.
        assert!(many < 5 * few && many < 500, "{few} and {many} accesses");
    }

    #[test]
    fn two_addresses_have_two_ranks() {
        let mut ranks = BTreeMap::new();
        for page in 0..if cfg!(miri) { 100 } else { 100_000 } {
            assert_eq!(ranks.insert(rank(page * PAGE), page), None);
        }
    }
}
