//! Fused Compare and Write: two commands next to each other on a queue that are carried out as one.
//! What the first one has compared does not change before the second one has written (base 3.4.2;
//! NVM command set 1.0, 2.1.4.2).
//!
//! The first command waits for the second, which has to come next on its queue. They get memory
//! together, so that no pair keeps some while it waits for more, and fetch their data. Then the
//! pair waits for its turn on its namespace, which carries out one pair at a time; the controllers
//! take turns. The pair whose turn it is
//!
//! 1. holds its blocks: a request for one of them, of whatever command and host, waits until the
//!    pair has ended;
//! 2. waits for the requests that the disk has already;
//! 3. compares, and writes if the data are equal.
//!
//! Reads wait, too, so that nobody sees half of what is written. A Read that takes its data from
//! the memory of a disk does not: such a disk shows old or new blocks at any time.
//!
//! A pair is short ([`Pair::MOST_BYTES`]), and a disk that does not answer ends it as it ends every
//! other command, so what waits for a pair waits for a disk's time limit at most. A first command
//! without a second holds nothing but its entry of the host's own queue.

use core::ops::Range;

use nvme::command::{Command, fuse, opcode};
use nvme::status::Status;
use platform::planted::{Bug, planted};

use super::commands::{Answer, Index, Partner, Stage};
use super::namespace::{Namespace, Pair, Waiting};
use super::queue::{Before, Role};
use super::server::Target;
use super::task::{Operation, Task};

impl Target {
    /// Refuses a command that cannot be a part of a pair.
    pub(super) fn check_fused(&self, role: Role, command: &Command) -> Result<(), Answer> {
        let is_known = match command.fuse() {
            fuse::NONE => return Ok(()),
            fuse::FIRST => command.opcode == opcode::io::COMPARE,
            fuse::SECOND => command.opcode == opcode::io::WRITE,
            _ => false,
        };
        match is_known && matches!(role, Role::Io(_)) && self.subsystem.has_pairs {
            true => Ok(()),
            false => Err((Status::INVALID_FIELD.dnr(), 0)),
        }
    }

    /// Goes on with a command that was looked at: alone, or with the one before it or behind it on
    /// its queue.
    pub(super) fn go_on(&mut self, number: u32, index: Index, decided: Result<(), Answer>) {
        let part = self.commands[index].command.fuse();
        let Some(queue) = self.queues.get(number) else { return };
        let before = core::mem::take(&mut queue.before);
        if let Before::First(first) = before
            && part != fuse::SECOND
        {
            self.respond(first, Status::ABORT_FUSED_MISSING.dnr(), 0);
        }
        match (part, before, decided) {
            (fuse::SECOND, Before::First(first), decided) => self.pair(first, index, decided),
            (fuse::SECOND, Before::FailedFirst(first), _) => {
                self.respond(index, Target::failed_by(first), 0);
            }
            (_, _, Err((status, result))) => {
                if part == fuse::FIRST
                    && let Some(queue) = self.queues.get(number)
                {
                    queue.before = Before::FailedFirst(status);
                }
                self.respond(index, status, result);
            }
            (fuse::SECOND, Before::Other, Ok(())) => {
                self.respond(index, Status::ABORT_FUSED_MISSING.dnr(), 0);
            }
            (fuse::FIRST, _, Ok(())) => {
                self.commands[index].stage = Stage::Partner;
                if let Some(queue) = self.queues.get(number) {
                    queue.before = Before::First(index);
                }
            }
            (_, _, Ok(())) => self.begin(index),
        }
    }

    /// The second command of a pair has come.
    fn pair(&mut self, first: Index, second: Index, decided: Result<(), Answer>) {
        let [one, two] = [first, second].map(|index| self.commands[index].command);
        let range = |command: &Command| (command.nsid, command.slba(), command.nlb());
        if two.opcode != opcode::io::WRITE || range(&one) != range(&two) {
            for index in [first, second] {
                self.respond(index, Status::INVALID_FIELD.dnr(), 0);
            }
            return;
        }
        match decided {
            Ok(()) => {
                self.commands[first].partner = Some(Partner::new(second, true));
                self.commands[second].partner = Some(Partner::new(first, false));
                self.commands[second].stage = Stage::Partner;
            }
            // How the Compare ends does not depend on whether the Write would succeed.
            Err((status, result)) => self.respond(second, status, result),
        }
        self.begin(first);
    }

    /// Ends first commands whose second does not come for `patience`, or will not be taken.
    pub(super) fn look_at_firsts(&mut self, now: u64, patience: u64) {
        let mut late: heapless::Vec<Index, 16> = heapless::Vec::new();
        for (_, queue) in self.queues.iter_mut() {
            if let Before::First(first) = queue.before
                && (self.is_stopping || now.saturating_sub(self.commands[first].begun) > patience)
                // Those for which there is no place here come in the next tick.
                && late.push(first).is_ok()
            {
                queue.before = Before::Other;
            }
        }
        for first in late {
            self.respond(first, Status::ABORT_FUSED_MISSING.dnr(), 0);
        }
    }

    /// The bytes of memory that the second command of a pair needs, which it gets with the first.
    pub(super) fn needs_of_partner(&self, index: Index) -> usize {
        self.commands[index].partner.map_or(0, |partner| self.needs(partner.index).0)
    }

    /// The data of one of a pair are here. False if it is one of no pair.
    pub(super) fn pair_has_data(&mut self, index: Index) -> bool {
        let Some(partner) = &mut self.commands[index].partner else { return false };
        partner.has_data = true;
        let Partner { index: other, is_first, .. } = *partner;
        self.commands[index].stage = Stage::Partner;
        let (first, second) = if is_first { (index, other) } else { (other, index) };
        if !self.commands[other].partner.is_some_and(|partner| partner.has_data) {
            return true;
        }
        let Some(place) = self.commands[first].task.namespace() else { return true };
        // What is refused waits for nothing.
        if let Some(status) = self.subsystem.refusal(self.commands[first].port, place, false) {
            self.respond(first, status, 0);
            return true;
        }
        if planted(Bug::PairAtOnce) {
            self.submit_in_turn(first, place);
            return true;
        }
        // Before the pair holds blocks, for which an earlier write of the host may wait.
        if self.follows_earlier(second, place) {
            return true;
        }
        self.wait_in(Waiting::TURN, Stage::Turn, first, place);
        self.serve_pairs(place);
        true
    }

    /// Lets a command wait in one of a namespace's lists.
    pub(super) fn wait_in(&mut self, kind: usize, stage: Stage, index: Index, place: usize) {
        let owner = self.slot_of(index);
        let entry = &mut self.commands[index];
        (entry.owner_of_memory, entry.stage) = (owner, stage);
        self.subsystem.namespaces[place].shares[kind].wait(&mut self.commands, owner, index);
    }

    /// Lets the next pairs of a namespace have their turn.
    pub(super) fn serve_pairs(&mut self, place: usize) {
        loop {
            let had_pair = self.subsystem.namespaces[place].pair.is_some();
            self.begin_pair(place);
            let namespace = &mut self.subsystem.namespaces[place];
            if had_pair && namespace.pair.is_none() {
                // It has ended at once.
                self.serve_held_back(place);
                continue;
            }
            let Some((owner, first)) = namespace.shares[Waiting::TURN].turn() else { return };
            let refusal = self.subsystem.refusal(self.commands[first].port, place, false);
            // What is refused need not wait.
            if had_pair && refusal.is_none() {
                return self.subsystem.namespaces[place].shares[Waiting::TURN].again(owner);
            }
            self.take_waiting(place, Waiting::TURN, owner);
            let entry = &self.commands[first];
            let blocks = entry.command.slba()..entry.command.slba() + u64::from(entry.command.nlb());
            let second = entry.partner.map(|partner| partner.index);
            if !self.is_live(first) {
                self.answer(first);
                continue;
            }
            let second = match (refusal, second) {
                (None, Some(second)) => second,
                (refusal, _) => {
                    self.respond(first, refusal.unwrap_or(Status::INTERNAL_ERROR), 0);
                    continue;
                }
            };
            self.commands[first].stage = Stage::Partner;
            self.subsystem.namespaces[place].pair = Some(Pair { first, second, blocks, has_begun: false });
        }
    }

    /// Has the disk read for the pair whose turn it is, once it has ended what it had before.
    pub(super) fn begin_pair(&mut self, place: usize) {
        let pair = self.subsystem.namespaces[place].pair.as_ref();
        let Some(first) = pair.filter(|pair| !pair.has_begun).map(|pair| pair.first) else { return };
        if let Some(status) = self.subsystem.refusal(self.commands[first].port, place, false) {
            return self.respond(first, status, 0);
        }
        let Namespace { pair, ages, .. } = &mut self.subsystem.namespaces[place];
        if ages.have_passed(first)
            && let Some(pair) = pair
        {
            pair.has_begun = true;
            self.submit_in_turn(first, place);
        }
    }

    /// A command has ended like this, and is one of a pair no longer. Returns the second command if
    /// the first one failed: it has to be aborted.
    pub(super) fn part(&mut self, index: Index, status: Status) -> Option<Index> {
        let partner = self.unpair(index)?;
        (partner.is_first && !status.is_success()).then_some(partner.index)
    }

    /// The status of a second command whose first one has ended like this.
    pub(super) fn failed_by(first: Status) -> Status {
        let failed = Status::ABORT_FUSED_FAILED;
        if first.is_dnr() { failed.dnr() } else { failed }
    }

    fn unpair(&mut self, index: Index) -> Option<Partner> {
        let partner = self.commands[index].partner.take()?;
        self.commands[partner.index].partner = None;
        Some(partner)
    }

    /// A command gets no further: if it was one of the pair that holds blocks, they are free. What
    /// waits for them goes on at the end of the round.
    pub(super) fn release_blocks(&mut self, index: Index) {
        let Some(place) = self.commands[index].task.namespace() else { return };
        let is_paired = self.commands[index].partner.is_some();
        let Some(namespace) = self.subsystem.namespaces.get_mut(place) else { return };
        // The second command of a first one that has failed ends behind it.
        let is_over = |pair: &mut Pair| pair.second == index || pair.first == index && is_paired;
        if let Some(pair) = namespace.pair.take_if(is_over) {
            namespace.ages.forget(pair.first);
        }
    }

    /// Frees what a command has of a pair: its entry is about to be free.
    pub(super) fn leave_pair(&mut self, index: Index) {
        self.release_blocks(index);
        self.unpair(index);
    }

    /// Whether a command that is to reach the disk has to wait until a pair has ended.
    pub(super) fn is_held_back(&mut self, index: Index, place: usize) -> bool {
        let Some(pair) = &self.subsystem.namespaces[place].pair else { return false };
        let blocks = pair.blocks.clone();
        if pair.first == index || pair.second == index {
            return false;
        }
        let port = self.commands[index].port;
        if self.subsystem.refusal(port, place, false).is_some() || !self.is_live(index) {
            return false;
        }
        let wanted = self.blocks_of(index, place);
        wanted.is_some_and(|wanted| wanted.start < blocks.end && blocks.start < wanted.end)
    }

    /// The blocks that a command's next request is about.
    fn blocks_of(&mut self, index: Index, place: usize) -> Option<Range<u64>> {
        let entry = &self.commands[index];
        let (nlb, shift) = (u64::from(entry.command.nlb()), self.subsystem.namespaces[place].shift());
        let of_bytes = |operation, bytes: usize| match operation {
            Operation::Read { block } | Operation::Write { block, .. } => {
                Some((block, bytes as u64 >> shift))
            }
            Operation::Discard { block, blocks } | Operation::WriteZeroes { block, blocks, .. } => {
                Some((block, blocks))
            }
            Operation::Flush => None,
        };
        let (block, blocks) = match entry.task {
            Task::Read { block, .. }
            | Task::Write { block, .. }
            | Task::Compare { block, .. }
            | Task::Verify { block, .. } => Some((block, nlb)),
            Task::Plain { operation, .. } => of_bytes(operation, 0),
            Task::Deallocate { ranges, next, .. } => {
                self.range(index, place, ranges, next).and_then(|operation| of_bytes(operation, 0))
            }
            Task::Copy { ranges, progress, .. } => {
                let next = self.next_of_copy(index, place, ranges, progress);
                next.and_then(|(operation, bytes)| of_bytes(operation, bytes))
            }
            _ => None,
        }?;
        Some(block..block.saturating_add(blocks))
    }

    /// Lets commands go on that waited for a pair.
    pub(super) fn serve_held_back(&mut self, place: usize) {
        let namespace = &self.subsystem.namespaces[place];
        if namespace.pair.is_some() && namespace.refusal(false).is_none() {
            return;
        }
        while let Some((owner, index)) = self.subsystem.namespaces[place].shares[Waiting::HELD].turn() {
            self.take_waiting(place, Waiting::HELD, owner);
            self.submit(index);
        }
    }
}
