//! The division of a resource of which there is not enough for all: memory, and room in a disk's
//! queue.
//!
//! Commands wait by owner (a controller, or a queue that has none), in order, and the owners take
//! turns. An owner that has nothing may take whatever is free. One that has something takes no more
//! than it leaves free: so whatever some owners do, there is something left for the others, and one
//! that is alone uses half.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::commands::{Commands, Index};

/// What an owner has, and its commands that wait.
#[derive(Clone, Copy, Default)]
struct Share {
    used: usize,
    waiting: Option<(Index, Index)>,
    /// It is among the turns. An owner with commands that wait is not while it has its share: then
    /// it gets a turn when it gives something back.
    has_turn: bool,
}

/// The shares of one resource.
pub(crate) struct Shares {
    of: Vec<Share>,
    turns: VecDeque<u32>,
    /// How many commands wait.
    waiting: usize,
}

impl Shares {
    /// For so many owners.
    pub(crate) fn new(owners: usize) -> Shares {
        Shares {
            of: alloc::vec![Share::default(); owners],
            turns: VecDeque::with_capacity(owners),
            waiting: 0,
        }
    }

    fn share(&mut self, owner: u32) -> &mut Share {
        &mut self.of[owner as usize]
    }

    /// Lets an owner have a turn if commands of it wait.
    pub(crate) fn queue(&mut self, owner: u32) {
        let share = self.share(owner);
        if share.waiting.is_some() && !core::mem::replace(&mut share.has_turn, true) {
            self.turns.push_back(owner);
        }
    }

    /// Lets all owners have a turn of which commands wait.
    pub(crate) fn queue_all(&mut self) {
        (0..self.of.len() as u32).for_each(|owner| self.queue(owner));
    }

    /// A command of an owner waits.
    pub(crate) fn wait(&mut self, commands: &mut Commands, owner: u32, index: Index) {
        self.waiting += 1;
        commands[index].next = None;
        let share = self.share(owner);
        share.waiting = match share.waiting {
            None => Some((index, index)),
            Some((first, last)) => {
                commands[last].next = Some(index);
                Some((first, index))
            }
        };
        if share.used == 0 || share.waiting == Some((index, index)) {
            self.queue(owner);
        }
    }

    /// Whether commands wait.
    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// Whether an owner has a turn.
    pub(crate) fn has_turns(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Takes the turn of the owner whose turn it is; its first command.
    pub(crate) fn turn(&mut self) -> Option<(u32, Index)> {
        loop {
            let owner = self.turns.pop_front()?;
            let share = self.share(owner);
            share.has_turn = false;
            if let Some((first, _)) = share.waiting {
                return Some((owner, first));
            }
        }
    }

    /// The owner whose turn was taken has the next one, too: there was not enough.
    pub(crate) fn again(&mut self, owner: u32) {
        if !core::mem::replace(&mut self.share(owner).has_turn, true) {
            self.turns.push_front(owner);
        }
    }

    /// Takes an owner's first command.
    pub(crate) fn take(&mut self, commands: &mut Commands, owner: u32) -> Option<Index> {
        let share = self.share(owner);
        let (first, last) = share.waiting?;
        share.waiting = commands[first].next.take().map(|next| (next, last));
        self.waiting -= 1;
        Some(first)
    }

    /// Takes one of an owner's commands out of the order. False if it does not wait.
    pub(crate) fn remove(&mut self, commands: &mut Commands, owner: u32, index: Index) -> bool {
        let Some((first, last)) = self.share(owner).waiting else { return false };
        if first == index {
            return self.take(commands, owner).is_some();
        }
        let mut before = first;
        while let Some(next) = commands[before].next {
            if next == index {
                commands[before].next = commands[index].next.take();
                let last = if last == index { before } else { last };
                self.share(owner).waiting = Some((first, last));
                self.waiting -= 1;
                return true;
            }
            before = next;
        }
        false
    }

    /// Whether an owner may take so much of what is free: `None` while it has its share, and false
    /// if there is not enough.
    pub(crate) fn may_use(&self, owner: u32, count: usize, free: usize) -> Option<bool> {
        match self.of[owner as usize].used {
            used if used > 0 && used + 2 * count > free => None,
            _ => Some(count <= free),
        }
    }

    /// An owner has so much more.
    pub(crate) fn use_more(&mut self, owner: u32, count: usize) {
        self.share(owner).used += count;
    }

    /// An owner has given so much back.
    pub(crate) fn give(&mut self, owner: u32, count: usize) {
        if count > 0 {
            self.share(owner).used -= count;
            self.queue(owner);
        }
    }

    /// What an owner has.
    pub(crate) fn used(&self, owner: u32) -> usize {
        self.of[owner as usize].used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_takes_no_more_than_it_leaves_and_another_one_finds_something() {
        let (mut shares, mut free) = (Shares::new(3), 96);
        for owner in 0..2 {
            while shares.may_use(owner, 8, free) == Some(true) {
                shares.use_more(owner, 8);
                free -= 8;
            }
            assert_eq!(shares.may_use(owner, 8, free), None);
        }
        assert_eq!((shares.used(0), shares.used(1), free), (48, 24, 24));
        assert_eq!(shares.may_use(2, 8, free), Some(true));
        assert_eq!((shares.may_use(2, 25, free), shares.may_use(2, 24, free)), (Some(false), Some(true)));
    }

    #[test]
    fn a_command_that_is_removed_leaves_the_others_in_their_order() {
        for gone in 0..4 {
            let (mut shares, mut commands) = (Shares::new(1), Commands::new(8));
            (0..4).for_each(|index| shares.wait(&mut commands, 0, Index(index)));
            assert!(shares.remove(&mut commands, 0, Index(gone)));
            assert!(!shares.remove(&mut commands, 0, Index(gone)));
            shares.wait(&mut commands, 0, Index(4));
            let mut left = Vec::new();
            while let Some(index) = shares.take(&mut commands, 0) {
                left.push(index.0);
            }
            let expected: Vec<u32> = (0..5).filter(|&index| index != gone).collect();
            assert_eq!((left, shares.has_waiting()), (expected, false));
        }
    }

    #[test]
    fn owners_take_turns_and_each_one_s_commands_keep_their_order() {
        let (mut shares, mut commands) = (Shares::new(2), Commands::new(8));
        for (owner, index) in [(0, 0), (0, 1), (0, 2), (1, 3)] {
            shares.wait(&mut commands, owner, Index(index));
        }
        let mut order = Vec::new();
        while let Some((owner, first)) = shares.turn() {
            assert_eq!(shares.take(&mut commands, owner), Some(first));
            order.push(first.0);
            shares.queue(owner);
        }
        assert_eq!(order, [0, 3, 1, 2]);
        assert!(!shares.has_waiting() && !shares.has_turns());
        // One that has its share gets a turn when it gives something back.
        shares.use_more(1, 5);
        shares.wait(&mut commands, 1, Index(4));
        assert!(shares.turn().is_some() && shares.turn().is_none());
        shares.wait(&mut commands, 1, Index(5));
        assert!(shares.turn().is_none());
        shares.give(1, 1);
        assert_eq!(shares.turn(), Some((1, Index(4))));
        shares.again(1);
        assert_eq!(shares.turn(), Some((1, Index(4))));
    }
}
