//! I/O queues of workers: how they come to a worker, what their Connect makes of them, and their
//! end. The manager decides, and the worker has the queue.

use core::net::IpAddr;

use nvme::log::ErrorEntry;
use rdma::Incoming;

use super::commands::{Answer, Index, Stage};
use super::config::commands_of_queue;
use super::crew::{MANAGER, Placed};
use super::identity::{ControllerId, HostIdentity, HostNumber, Kind};
use super::info::QueueInfo;
use super::metrics::Carried;
use super::queue::{Queue, Role};
use super::server::Target;

/// What the Connect command of an I/O queue asks the manager for.
pub(super) struct Asked {
    pub(super) host: HostIdentity,
    /// The queue's number at the controller.
    pub(super) id: u16,
    pub(super) port: usize,
    /// The number of the subsystem that the host has named.
    pub(super) subsystem: usize,
    pub(super) controller: u16,
    /// What becomes of the queue if the manager agrees.
    pub(super) joining: Joining,
}

/// What a queue becomes by its Connect.
#[derive(Clone, Copy)]
pub(super) struct Joining {
    pub(super) owner: HostNumber,
    pub(super) entries: u16,
    pub(super) has_flow_control: bool,
}

/// A queue's command that waits for the manager.
#[derive(Clone, Copy)]
struct Waiter {
    worker: usize,
    placement: u64,
    number: u32,
    index: Index,
}

impl Target {
    /// The worker for a new I/O queue of so many entries; `None` if this thread has fewer I/O
    /// queues than each of them, or no worker has room.
    pub(super) fn worker_for(&self, entries: usize) -> Option<usize> {
        let own = self.queues.iter().filter(|(_, queue)| queue.id > 0).count();
        let load = |worker: usize| {
            let its = || self.crew.placed.values().filter(|placed| placed.worker == worker);
            (its().count(), its().map(|placed| placed.entries).sum::<usize>())
        };
        let serving = self.crew.others().filter(|&other| !self.crew.all[other].has_ended());
        let with_room = serving.map(|worker| (load(worker), worker)).filter(|((_, promised), _)| {
            // What its ended queues have left to disks, it knows itself.
            promised + entries <= self.commands.count()
        });
        let ((queues, _), worker) = with_room.min()?;
        (queues <= own || self.promised + entries > self.commands.count()).then_some(worker)
    }

    /// Gives a worker the request for a connection.
    pub(super) fn hand_over(
        &mut self,
        (worker, port): (usize, usize),
        incoming: Incoming,
        (id, size): (u16, u16),
    ) {
        let (placement, address) = (self.crew.number(), incoming.from().to_ip());
        let entries = commands_of_queue(size);
        let placed = Placed { worker, address, entries, is_stranger: true, queue: None };
        self.crew.placed.insert(placement, placed);
        // If the worker has ended, the request is dropped, which rejects it.
        if !self.crew.send(worker, move |worker| worker.take_over(port, incoming, (id, size), placement)) {
            self.crew.placed.remove(&placement);
        }
    }

    /// Takes the request for a connection from the manager.
    fn take_over(&mut self, port: usize, incoming: Incoming, (id, size): (u16, u16), placement: u64) {
        if !self.accept(port, incoming, Ok((id, size)), placement) {
            self.crew.send(MANAGER, move |manager| _ = manager.crew.placed.remove(&placement));
        }
    }

    /// Asks the manager what becomes of a worker's I/O queue.
    pub(super) fn ask_to_join(&mut self, number: u32, index: Index, asked: Asked) {
        let Some(queue) = self.queues.get(number) else { return };
        let waiter = Waiter { worker: self.crew.me, placement: queue.placement, number, index };
        self.commands[index].stage = Stage::Manager;
        self.crew.send(MANAGER, move |manager| manager.join(waiter, asked));
    }

    /// A worker asks for a place at a controller for its queue.
    fn join(&mut self, waiter: Waiter, asked: Asked) {
        let Asked { host, id, port, subsystem, controller, joining } = asked;
        let has_key = self.subsystem.hosts.find(&host.nqn).is_some_and(|host| host.key.is_some());
        let joined = self.connect_io(id, subsystem, &host, port, controller);
        let joined = joined.and_then(|controller| {
            let failed = (nvme::status::Status::INTERNAL_ERROR, 0);
            // It may have ended meanwhile.
            let placed = self.crew.placed.get_mut(&waiter.placement);
            let (Some(its), Some(placed)) = (self.subsystem.controllers.get(controller), placed) else {
                if let Some(its) = self.subsystem.controllers.get(controller) {
                    its.disconnect(id);
                }
                return Err(failed);
            };
            (placed.queue, placed.is_stranger) = (Some((controller, id)), has_key);
            Ok((controller, its.copy()))
        });
        self.crew.send(waiter.worker, move |worker| {
            let name = host.nqn;
            let waits = worker.queues.get(waiter.number).is_some_and(|queue| {
                // Otherwise the queue has ended, and the manager hears so.
                queue.placement == waiter.placement && !queue.is_ending
            });
            if !waits || worker.commands[waiter.index].stage != Stage::Manager {
                return;
            }
            let (status, result) = match joined {
                Ok((controller, copy)) => {
                    // Earlier queues have noted failures in theirs.
                    if worker.subsystem.controllers.get(controller).is_none() {
                        worker.subsystem.controllers.put(controller, copy);
                    }
                    worker.joined(waiter.number, Role::Io(controller), joining, &name)
                }
                Err(answer) => worker.refused_to_connect(answer),
            };
            worker.respond(waiter.index, status, result);
        });
    }

    /// A queue has become something. Returns the answer to its Connect.
    pub(super) fn joined(&mut self, number: u32, role: Role, joining: Joining, host: &str) -> Answer {
        let Some((controller, kind)) = role.controller() else {
            return (nvme::status::Status::INTERNAL_ERROR, 0);
        };
        if let Some(queue) = self.queues.get(number) {
            queue.role = role;
            queue.owner = joining.owner;
            queue.entries_of_host = joining.entries;
            queue.has_flow_control = joining.has_flow_control;
        }
        let required = if kind == Kind::Io { self.require_authentication(number, host) } else { 0 };
        (nvme::status::Status::SUCCESS, u64::from(controller.0) | required)
    }

    /// The host of a worker's queue has authenticated on it.
    pub(super) fn has_proved(&self, placement: u64) {
        if placement != 0 {
            self.crew.send(MANAGER, move |manager| {
                if let Some(placed) = manager.crew.placed.get_mut(&placement) {
                    placed.is_stranger = false;
                }
            });
        }
    }

    /// A queue of a worker has ended: tells the manager.
    pub(super) fn tell_end(&mut self, placement: u64, role: Role, owner: HostNumber, carried: Carried) {
        let errors = match role {
            Role::Io(id) if !self.queues.iter().any(|(_, queue)| queue.role == role) => {
                // With the last queue the copy of the controller goes.
                self.subsystem.controllers.remove(id).map(|mut copy| (id, copy.take_errors()))
            }
            _ => None,
        };
        self.crew.send(MANAGER, move |manager| {
            if let Some((id, (count, last))) = errors {
                manager.take_over_errors(id, count, last);
            }
            manager.hosts.add(owner, &carried);
            let placed = manager.crew.placed.remove(&placement);
            if let Some((id, queue)) = placed.and_then(|placed| placed.queue)
                && let Some(controller) = manager.subsystem.controllers.get(id)
            {
                controller.disconnect(queue);
            }
            manager.may_settle = true;
        });
    }

    fn take_over_errors(&mut self, id: ControllerId, count: u64, last: Option<ErrorEntry>) {
        if let Some(controller) = self.subsystem.controllers.get(id) {
            controller.add_errors(count, last);
        }
    }

    /// Collects the failures of a controller's commands that workers have noted.
    pub(super) fn collect_errors(&mut self, id: ControllerId) {
        let noted = self
            .everywhere(move |worker| worker.subsystem.controllers.get(id).map(|copy| copy.take_errors()));
        for (count, last) in noted.into_iter().flatten() {
            self.take_over_errors(id, count, last);
        }
    }

    /// Whether commands of a controller have come to workers since its timer has run.
    pub(super) fn has_traffic_elsewhere(&self, id: ControllerId) -> bool {
        let traffic = self.everywhere(move |worker| {
            let copy = worker.subsystem.controllers.get(id);
            copy.is_some_and(|copy| core::mem::take(&mut copy.has_traffic))
        });
        traffic.contains(&true)
    }

    /// Whether workers have queues of a controller.
    pub(super) fn has_placed(&self, id: ControllerId) -> bool {
        self.crew.placed.values().any(|placed| placed.queue.is_some_and(|(its, _)| its == id))
    }

    /// Queues of workers that are strangers: those of an address, or all.
    pub(super) fn placed_strangers(&self, address: Option<IpAddr>) -> usize {
        let is_meant =
            |placed: &&Placed| placed.is_stranger && address.is_none_or(|address| placed.address == address);
        self.crew.placed.values().filter(is_meant).count()
    }

    /// The worker that has a queue of a controller.
    pub(super) fn worker_of(&self, id: ControllerId, queue: u16) -> Option<usize> {
        let mut placed = self.crew.placed.values();
        placed.find(|placed| placed.queue == Some((id, queue))).map(|placed| placed.worker)
    }
}

impl Queue {
    /// What an operator sees of it, by the number of its thread.
    pub(super) fn info(&self, thread: usize) -> QueueInfo {
        QueueInfo { id: self.id, entries: self.entries_of_host, outstanding: self.outstanding, thread }
    }
}
