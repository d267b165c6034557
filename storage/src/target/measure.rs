//! Counting of commands by namespace, host and queue, in the target's thread.

use alloc::vec::Vec;

use nvme::command::opcode::FABRICS;
use nvme::status::Status;

use super::commands::Index;
use super::identity::{HostNumber, Kind};
use super::metrics::{Carried, Metrics, NamespaceMetrics, bucket};
use super::pool::Pool;
use super::port::Port;
use super::queue::Role;
use super::server::Target;
use super::statistics::Snapshot;
use super::task::{Operation, Task};

/// The kind of a command: its place in [`OPERATIONS`].
fn kind(task: &Task) -> Option<usize> {
    match task {
        Task::Read { .. } => Some(0),
        Task::Write { .. } => Some(1),
        Task::Compare { .. } => Some(2),
        Task::Plain { operation: Operation::Flush, .. } => Some(3),
        Task::Plain { operation: Operation::WriteZeroes { .. }, .. } => Some(4),
        Task::Deallocate { .. } => Some(5),
        _ => None,
    }
}

impl Target {
    /// Counts a command that is answered.
    pub(super) fn measure(&mut self, index: Index, status: Status) {
        let entry = &self.commands[index];
        let Some(queue) = entry.queue.and_then(|number| self.queues.get(number)) else { return };
        // Connect and authentication are no I/O.
        if !matches!(queue.role, Role::Io(_)) || entry.command.opcode == FABRICS {
            return;
        }
        if !status.is_success() {
            queue.carried.errors += 1;
            let place = entry.task.namespace().or_else(|| self.subsystem.any_place(entry.command.nsid.get()));
            if let Some(namespace) = place.and_then(|place| self.subsystem.namespaces.get_mut(place)) {
                namespace.counted.errors.count(status.code());
            }
            return;
        }
        let bytes = match entry.task {
            Task::Read { .. } | Task::Write { .. } | Task::Compare { .. } => u64::from(entry.host.len()),
            _ => 0,
        };
        match entry.task {
            Task::Read { .. } => &mut queue.carried.reads,
            Task::Write { .. } => &mut queue.carried.writes,
            _ => &mut queue.carried.others,
        }
        .add(bytes);
        let Some(kind) = kind(&entry.task) else { return };
        let place = entry.task.namespace();
        let Some(namespace) = place.and_then(|place| self.subsystem.namespaces.get_mut(place)) else {
            return;
        };
        let (timed, time) = (&mut namespace.counted.operations[kind], self.clock.saturating_sub(entry.begun));
        timed.done.add(bytes);
        timed.nanoseconds += time;
        timed.latency[bucket(time)] += 1;
    }

    /// A controller begins.
    pub(super) fn meet_host(&mut self, nqn: &str) {
        let here: Vec<HostNumber> = {
            let controllers = self.subsystem.controllers.iter_mut();
            controllers.map(|(_, controller)| HostNumber::of(&controller.host.nqn)).collect()
        };
        self.hosts.meet(HostNumber::of(nqn), nqn, |host| here.contains(&host));
    }

    /// All figures.
    pub(super) fn metrics(&mut self) -> Metrics {
        let mut metrics = self.own_metrics();
        let mut hosts = self.hosts.copy();
        let carried = |target: &Target| -> Vec<(HostNumber, Carried)> {
            target.queues.iter().map(|(_, queue)| (queue.owner, queue.carried)).collect()
        };
        let mut queues = carried(self);
        for (its, more) in self.everywhere(move |worker| (worker.own_metrics(), carried(worker))) {
            queues.extend(more);
            metrics.postponed += its.postponed;
            metrics.sleeps += its.sleeps;
            metrics.refused.merge(&its.refused);
            metrics.unconnected.merge(&its.unconnected);
            for own in &mut metrics.namespaces {
                let same = its.namespaces.iter().find(|other| other.info.nsid == own.info.nsid);
                let Some(same) = same else { continue };
                own.counted.merge(&same.counted);
                own.on_disk += same.on_disk;
                for kind in 0..own.free.len() {
                    own.free[kind] += same.free[kind];
                    own.chunks[kind] += same.chunks[kind];
                }
            }
        }
        queues.iter().for_each(|(owner, carried)| hosts.add(*owner, carried));
        metrics.hosts = hosts.into_list();
        metrics.totals = self.control().statistics();
        metrics.controllers = self.controller_infos(Kind::Io);
        metrics
    }

    /// The figures of this thread, without hosts and controllers.
    fn own_metrics(&self) -> Metrics {
        let namespaces = self.subsystem.namespaces.of_places().map(|(place, namespace)| NamespaceMetrics {
            info: self.subsystem.info(place, namespace),
            counted: namespace.counted.clone(),
            free: namespace.chunks(Pool::free),
            chunks: namespace.chunks(Pool::count),
            on_disk: namespace.on_disk,
        });
        let namespaces = namespaces.collect();
        Metrics {
            totals: Snapshot::default(),
            ports: self.ports.iter().map(Port::info).collect(),
            namespaces,
            hosts: Vec::new(),
            controllers: Vec::new(),
            postponed: self.postponed.len(),
            refused: self.refused.clone(),
            unconnected: self.unconnected.clone(),
            sleeps: self.sleeps,
        }
    }
}
