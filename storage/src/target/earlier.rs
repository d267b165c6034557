//! What an earlier connection of a host may still do to a disk.
//!
//! A host whose connection is lost sends its commands again on the next one, and writes other data
//! to the same blocks later. A disk may still carry out the first ones then, and a request that
//! ended last would undo an acknowledged write. So requests that change blocks are counted by host
//! and namespace from the moment when their queue ends, or when the same host connects once more:
//!
//! - a controller that is reset is ready again, and one that is shut down says so, when none is
//!   left;
//! - the response to a Connect of an admin queue waits for that;
//! - a command of another controller of the host (another path) that changes blocks waits for those
//!   on its namespace.
//!
//! The disk's time limit bounds the wait: a disk that keeps one of them for longer is given up, and
//! takes no request before it has ended all that it has.
//!
//! Hosts are told apart by their qualified names. Other hosts do not wait: the specification orders
//! no commands of different hosts.

use alloc::vec::Vec;

use platform::planted::{Bug, planted};

use super::commands::{Index, Stage};
use super::config::MOST_NAMESPACES;
use super::identity::{ControllerId, HostNumber, Kind};
use super::queue::Role;
use super::server::Target;

impl Target {
    /// Whether a host has requests that were left to disks which are not given up. A disk that is
    /// given up takes no other request before it has ended these.
    fn has_left(&self, host: HostNumber) -> bool {
        let mut places = self.leftovers.places(host);
        let serves = |place| self.subsystem.namespaces.get(place).is_some_and(|one| one.serves());
        places.any(serves) && !planted(Bug::LeftoverForgotten)
    }

    fn leave(&mut self, index: Index, host: HostNumber, place: usize) {
        let entry = &mut self.commands[index];
        let since = if entry.stage == Stage::Disk { entry.since } else { self.clock };
        entry.is_left = true;
        if self.leftovers.add(host, place, since) {
            self.tell_left(host, place, true);
        }
    }

    /// Tells the other threads that this one has requests of a host on a namespace that are
    /// counted, or has none any more.
    fn tell_left(&self, host: HostNumber, place: usize, some: bool) {
        let me = self.crew.me;
        self.crew.send_all(move |other| {
            if other.leftovers.are_elsewhere(me, host, place, some) {
                (other.earlier_ended, other.may_settle) = (true, true);
            }
        });
    }

    /// A command is no longer counted: it has ended, or will never reach the disk.
    pub(super) fn unleave(&mut self, index: Index) {
        let entry = &mut self.commands[index];
        if !core::mem::take(&mut entry.is_left) {
            return;
        }
        let host = entry.owner;
        if let Some(place) = entry.task.namespace()
            && self.leftovers.remove(host, place)
        {
            (self.earlier_ended, self.may_settle) = (true, true);
            self.tell_left(host, place, false);
        }
    }

    /// A queue ends: from here on none of its commands is given to a disk, and those that disks
    /// have are counted.
    pub(super) fn leave_queue(&mut self, number: u32) {
        let Some(queue) = self.queues.get(number) else { return };
        if !matches!(queue.role, Role::Io(_)) {
            return;
        }
        let host = queue.owner;
        let mut entries = core::mem::take(&mut self.ending);
        entries.extend(self.commands.of_queue(number));
        for index in entries.drain(..) {
            let entry = &self.commands[index];
            match entry.task.namespace().filter(|_| entry.task.changes()) {
                Some(place) if entry.stage == Stage::Disk && !entry.is_left => self.leave(index, host, place),
                Some(_) if entry.stage != Stage::Disk => self.unleave(index),
                _ => {}
            }
        }
        self.ending = entries;
    }

    /// A host connects once more. The target may not know yet that an earlier connection is lost,
    /// so whatever that one has sent ends first.
    fn leave_host(&mut self, host: HostNumber) {
        let mut entries = core::mem::take(&mut self.ending);
        entries.extend(self.commands.of_host(host));
        for index in entries.drain(..) {
            let entry = &self.commands[index];
            let is_over = matches!(entry.stage, Stage::Response | Stage::ConnectionToAnswer);
            if let Some(place) = entry.task.namespace()
                && entry.task.changes()
                && !is_over
                && !entry.is_left
                && entry.queue.is_some()
            {
                self.leave(index, host, place);
            }
        }
        self.ending = entries;
    }

    /// Whether the Connect of an admin queue has to wait for what the host has sent before. Then it
    /// is carried out once more when that has ended.
    pub(super) fn connects_later(&mut self, index: Index, host: HostNumber) -> bool {
        if self.commands[index].owner != host {
            // The first time.
            self.commands[index].owner = host;
            self.leave_host(host);
            let left = self.everywhere(move |worker| {
                worker.leave_host(host);
                let places: Vec<usize> = worker.leftovers.own_places(host).collect();
                (worker.crew.me, places)
            });
            // The messages of the workers are on their way, and what they say later stays in force.
            for (worker, place) in
                left.iter().flat_map(|(worker, of)| of.iter().map(|&place| (*worker, place)))
            {
                self.leftovers.are_elsewhere(worker, host, place, true);
            }
        }
        self.has_left(host) && self.wait_for_earlier(index)
    }

    /// Whether a command has to wait for requests of its host's earlier connections.
    pub(super) fn follows_earlier(&mut self, index: Index, place: usize) -> bool {
        let entry = &self.commands[index];
        let waits = entry.task.changes()
            && !entry.is_left
            && self.leftovers.has(entry.owner, place)
            // What is refused waits for nothing.
            && self.subsystem.refusal(entry.port, place, false).is_none();
        waits && self.wait_for_earlier(index)
    }

    fn wait_for_earlier(&mut self, index: Index) -> bool {
        self.commands[index].stage = Stage::Earlier;
        self.for_earlier.push_back(index);
        true
    }

    /// Forgets commands that waited, and whose queue has ended.
    pub(super) fn forget_waiting_for_earlier(&mut self) {
        let commands = &self.commands;
        self.for_earlier.retain(|&index| commands[index].queue.is_some());
    }

    /// Lets commands go on whose host's earlier requests have ended, and controllers be ready.
    pub(super) fn follow_earlier(&mut self) {
        if core::mem::take(&mut self.earlier_ended) {
            for _ in 0..self.for_earlier.len() {
                let Some(index) = self.for_earlier.pop_front() else { break };
                self.commands[index].stage = Stage::Response;
                self.fetched(index);
            }
        }
        if core::mem::take(&mut self.may_settle) {
            self.settle();
        }
    }

    /// Completes the resets and shutdowns of controllers of which nothing is left.
    fn settle(&mut self) {
        let mut settling: heapless::Vec<(ControllerId, HostNumber), 64> = heapless::Vec::new();
        for (id, controller) in self.subsystem.controllers.iter_mut() {
            if controller.is_settling() && settling.push((id, HostNumber::of(&controller.host.nqn))).is_err()
            {
                // The rest comes in the next round.
                self.may_settle = true;
                break;
            }
        }
        let now = self.clock;
        for (id, host) in settling {
            let is_left = self.has_left(host);
            let has_queues =
                self.queues.iter().any(|(_, queue)| queue.role == Role::Io(id)) || self.has_placed(id);
            if let Some(controller) = self.controller(id, Kind::Io) {
                controller.settle(has_queues || is_left, is_left, now);
            }
        }
    }

    /// Gives up what keeps requests that are counted for longer than a disk may take: the disk that
    /// has one, or the connection that does not bring its data.
    pub(super) fn look_at_leftovers(&mut self, now: u64, patience: u64) {
        let is_late = |since: u64| now.saturating_sub(since) > patience;
        let mut late = Vec::new();
        for (host, place, since) in self.leftovers.iter() {
            if is_late(since) && self.subsystem.namespaces[place].serves() {
                let of_both = |index: &Index| {
                    let entry = &self.commands[*index];
                    entry.is_left && entry.task.namespace() == Some(place)
                };
                late.extend(self.commands.of_host(host).filter(of_both));
            }
        }
        let mut silent: heapless::Vec<usize, MOST_NAMESPACES> = heapless::Vec::new();
        for index in late {
            let entry = &self.commands[index];
            match (entry.stage, entry.task.namespace(), entry.queue) {
                (Stage::Disk, Some(place), _) if is_late(entry.since) && !silent.contains(&place) => {
                    // There is a place for each namespace.
                    let _ = silent.push(place);
                }
                (Stage::Disk, ..) => {}
                (_, _, Some(queue)) => self.break_queue(queue),
                _ => {}
            }
        }
        for place in silent {
            self.give_up(place);
        }
    }
}
