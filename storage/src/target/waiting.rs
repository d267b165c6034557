//! Commands that wait for memory, or for room in a disk's queue.
//!
//! The owners of a namespace's memory are the controllers. The memory of commands about no
//! namespace is a chunk for each queue, so no queue waits for another one.

use alloc::vec::Vec;

use nvme::status::Status;

use super::commands::{HostData, Index, Stage};
use super::namespace::Waiting;
use super::pool::{LONGEST, Pool, SMALL};
use super::server::Target;
use super::shares::Shares;
use super::task::Task;
use super::work::RANGE;

impl Target {
    /// Gets memory for a command, or lets the command wait for it.
    pub(super) fn begin(&mut self, index: Index) {
        if self.commands[index].task == Task::Held {
            return;
        }
        if self.receive_waits(index) {
            return;
        }
        let (first, _) = self.needs(index);
        debug_assert!(first <= LONGEST);
        let entry = &mut self.commands[index];
        match entry.task.namespace() {
            _ if first == 0 => self.fetch(index),
            None => {
                let Some(queue) = entry.queue else { return };
                (entry.owner_of_memory, entry.stage) = (queue, Stage::Memory);
                self.admin_shares.wait(&mut self.commands, queue, index);
                self.serve_admin();
            }
            Some(place) => {
                if let Some(status) = self.subsystem.refusal(entry.port, place, false) {
                    // The disk may keep the memory for ever.
                    return self.respond(index, status, 0);
                }
                if self.uses_lent_memory(index, place) {
                    return;
                }
                let owner = self.slot_of(index);
                let entry = &mut self.commands[index];
                (entry.owner_of_memory, entry.stage) = (owner, Stage::Memory);
                let kind = Waiting::memory(entry.port, first);
                self.subsystem.namespaces[place].shares[kind].wait(&mut self.commands, owner, index);
                self.serve_memory(place, kind);
            }
        }
    }

    /// The controller's slot by which a command's share is counted.
    pub(super) fn slot_of(&mut self, index: Index) -> u32 {
        let queue = self.commands[index].queue.and_then(|number| self.queues.get(number));
        let controller = queue.and_then(|queue| queue.controller());
        controller.map_or(0, |id| self.subsystem.controllers.slot(id) as u32)
    }

    /// The bytes of memory that a command needs: for its data, and in a Compare for the disk's.
    pub(super) fn needs(&self, index: Index) -> (usize, usize) {
        let entry = &self.commands[index];
        let host = entry.host.len() as usize;
        match entry.task {
            Task::Nothing | Task::Held | Task::Plain { .. } => (0, 0),
            Task::Reply { len, .. } => (len, 0),
            Task::Deallocate { ranges, .. } => (ranges * RANGE, 0),
            // The disk takes the data from the capsule.
            Task::Write { .. } if matches!(entry.host, HostData::Capsule { .. }) => (0, 0),
            Task::Connect | Task::Reserve { .. } | Task::Read { .. } | Task::Write { .. } => (host, 0),
            Task::AuthenticationSend | Task::AuthenticationReceive => (host, 0),
            Task::Compare { .. } => (host, host),
            Task::Verify { len, .. } => (len, 0),
            // Both are small chunks.
            Task::Copy { .. } => (host, SMALL),
        }
    }

    /// Lets commands go on for which there is memory of a kind now.
    fn serve_memory(&mut self, place: usize, kind: usize) {
        let port = Waiting::port(kind);
        loop {
            let turn = self.subsystem.namespaces[place].shares[kind].turn();
            let Some((owner, index)) = turn else { return };
            let refusal = self.subsystem.refusal(port, place, false);
            if refusal.is_some() || !self.is_live(index) {
                self.take_waiting(place, kind, owner);
                match refusal {
                    Some(status) if self.is_live(index) => self.respond(index, status, 0),
                    _ => self.answer(index),
                }
                continue;
            }
            let (first, second) = self.needs(index);
            // Of the same kind, as a pair's data are.
            let third = self.needs_of_partner(index);
            let (pool, shares) = self.subsystem.namespaces[place].pool_and_shares(port, kind);
            let count = Pool::chunks(first) + Pool::chunks(second) + Pool::chunks(third);
            match shares.may_use(owner, count, pool.free_for(first)) {
                // It gets a turn when it gives some back.
                None => continue,
                Some(false) => return shares.again(owner),
                Some(true) => {}
            }
            let mut take = |len| pool.take(len);
            let (Some(first), Some(second), Some(third)) = (take(first), take(second), take(third)) else {
                return;
            };
            shares.use_more(owner, count);
            self.take_waiting(place, kind, owner);
            let entry = &mut self.commands[index];
            (entry.buffer, entry.second) = (first, second);
            let partner = entry.partner.map(|partner| partner.index);
            self.fetch(index);
            if let Some(partner) = partner {
                let entry = &mut self.commands[partner];
                (entry.buffer, entry.owner_of_memory) = (third, owner);
                self.fetch(partner);
            }
        }
    }

    /// Takes the first command of an owner, whose next one gets a turn behind the other owners.
    pub(super) fn take_waiting(&mut self, place: usize, kind: usize, owner: u32) {
        let shares = &mut self.subsystem.namespaces[place].shares[kind];
        shares.take(&mut self.commands, owner);
        shares.queue(owner);
    }

    /// The same for commands about no namespace. Each queue has a chunk for one at a time.
    fn serve_admin(&mut self) {
        while let Some((queue, index)) = self.admin_shares.turn() {
            let is_live = self.is_live(index);
            if is_live && self.admin_shares.used(queue) > 0 {
                continue;
            }
            self.admin_shares.take(&mut self.commands, queue);
            self.admin_shares.queue(queue);
            let (first, _) = self.needs(index);
            if !is_live {
                self.answer(index);
                continue;
            }
            let port = self.commands[index].port;
            match self.ports[port].admin_pool.take(first) {
                Some(buffer) => {
                    self.admin_shares.use_more(queue, 1);
                    self.commands[index].buffer = buffer;
                    self.fetch(index);
                }
                // It is longer than a chunk, and other queues have those for long ones.
                None => self.respond(index, Status::INTERNAL_ERROR, 0),
            }
        }
    }

    /// Takes back the memory of a command that has ended.
    pub(super) fn give_memory(&mut self, index: Index) {
        self.give_lease(index);
        let entry = &mut self.commands[index];
        let (first, second) = (core::mem::take(&mut entry.buffer), core::mem::take(&mut entry.second));
        let (owner, port) = (entry.owner_of_memory, entry.port);
        let count = Pool::chunks(first.len()) + Pool::chunks(second.len());
        match entry.task.namespace() {
            None => {
                self.admin_shares.give(owner, count.min(1));
                self.ports[port].admin_pool.give(first);
            }
            Some(place) => {
                let kind = Waiting::memory(port, first.len());
                let (pool, shares) = self.subsystem.namespaces[place].pool_and_shares(port, kind);
                shares.give(owner, count);
                pool.give(first);
                pool.give(second);
            }
        }
    }

    /// Lets the owner of a command that waits have a turn, at which commands whose queues have
    /// ended are freed.
    pub(super) fn let_have_turn(&mut self, index: Index) {
        let entry = &self.commands[index];
        let (owner, len) = (entry.owner_of_memory, self.needs(index).0);
        match entry.task.namespace() {
            None => self.admin_shares.queue(owner),
            Some(place) => {
                let kind = Waiting::of(entry.stage, entry.port, len);
                self.subsystem.namespaces[place].shares[kind].queue(owner);
            }
        }
    }

    /// Lets commands go on that waited for memory, or for room in a disk's queue.
    pub(super) fn serve_waiting(&mut self) {
        for place in 0..self.subsystem.namespaces.len() {
            let Some(namespace) = self.subsystem.namespaces.get(place) else { continue };
            if namespace.pair.is_none() && !namespace.shares.iter().any(Shares::has_turns) {
                continue;
            }
            let kinds = namespace.shares.len();
            self.serve_room(place);
            self.serve_held_back(place);
            self.serve_pairs(place);
            for kind in Waiting::MEMORY..kinds {
                self.serve_memory(place, kind);
            }
        }
        if self.admin_shares.has_turns() {
            self.serve_admin();
        }
    }

    /// Answers the commands of a port that wait for other commands of a namespace, since hosts do
    /// not reach it by this port any more. Those of other ports, behind or before them, wait on.
    pub(super) fn refuse_waiting(&mut self, port: usize, place: usize, status: Status) {
        for kind in [Waiting::ROOM, Waiting::TURN, Waiting::HELD] {
            for owner in 0..self.config.controllers as u32 {
                let mut waiting = Vec::new();
                let shares = &mut self.subsystem.namespaces[place].shares[kind];
                while let Some(index) = shares.take(&mut self.commands, owner) {
                    waiting.push(index);
                }
                for index in waiting {
                    if !self.is_live(index) {
                        self.answer(index);
                    } else if self.commands[index].port == port {
                        self.respond(index, status, 0);
                    } else {
                        let shares = &mut self.subsystem.namespaces[place].shares[kind];
                        shares.wait(&mut self.commands, owner, index);
                    }
                }
            }
        }
    }

    fn serve_room(&mut self, place: usize) {
        while let Some((owner, index)) = self.subsystem.namespaces[place].shares[Waiting::ROOM].turn() {
            if self.is_held_back(index, place) {
                self.take_waiting(place, Waiting::ROOM, owner);
                self.wait_in(Waiting::HELD, Stage::Held, index, place);
                continue;
            }
            if !self.submit_now(index) {
                return self.subsystem.namespaces[place].shares[Waiting::ROOM].again(owner);
            }
            self.take_waiting(place, Waiting::ROOM, owner);
        }
    }
}
