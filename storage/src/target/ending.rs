//! The end of a target.

use core::time::Duration;

use platform::Instant;

use super::namespace::Namespace;
use super::pool::Pool;
use super::server::{TICK, Target};
use crate::Error;

/// How long the commands that are outstanding may take at the end.
const ANSWERING: Duration = Duration::from_secs(2);
/// How long the end of a target may take in all: that of the last commands, connections and disk
/// requests.
const ENDING: Duration = Duration::from_secs(5);

impl Target {
    /// Ends all connections, after the commands that are outstanding, waits for the disks, and
    /// frees everything.
    pub(super) fn end(mut self) -> Result<(), Error> {
        self.shared.close();
        self.ports.iter_mut().for_each(|port| port.listener = None);
        // Commands that come from now on get no response, so their hosts send them again elsewhere.
        self.is_stopping = true;
        if self.crew.is_manager() {
            self.crew.others().for_each(|other| self.crew.all[other].stop());
        }
        let begun = self.platform.now();
        let answered = self.work_until(begun + ANSWERING, |target| {
            // The end of an admin queue is that of its I/O queues.
            target.has_answered() && !target.awaits_workers()
        });
        self.break_all_queues();
        let ended = answered.and_then(|()| {
            self.work_until(begun + ENDING, |target| {
                target.queues.len() == 0 && target.commands.used() == 0 && !target.awaits_workers()
            })
        });
        // A host that is gone does not say goodbye. But a disk must not find its memory in use for
        // something else.
        let is_busy = self.subsystem.namespaces.iter().any(|namespace| namespace.on_disk > 0)
            || self.reservations.is_busy();
        let failed = match ended {
            Ok(()) if is_busy => Err(Error::Config("a disk did not finish its requests")),
            ended => ended,
        };
        for namespace in self.subsystem.namespaces.iter() {
            namespace.disk.watch(None);
        }
        self.reservations.close();
        // No command keeps its memory, unless the disk or the host did not end in time.
        let of_namespaces = self.subsystem.namespaces.iter().flat_map(Namespace::pools);
        let mut pools = of_namespaces.chain(self.ports.iter().map(|port| &port.admin_pool));
        debug_assert!(self.commands.used() > 0 || pools.all(Pool::is_whole));
        failed
    }

    /// Whether this is the manager, and workers have not ended.
    fn awaits_workers(&self) -> bool {
        let runs = |other: usize| !self.crew.all[other].has_ended();
        self.crew.is_manager() && self.crew.others().any(runs)
    }

    /// Whether all commands are answered, but for those that wait for an event.
    pub(super) fn has_answered(&mut self) -> bool {
        let controllers = self.subsystem.controllers.iter_mut().chain(self.discovery.iter_mut());
        let waiting: usize = controllers.map(|(_, controller)| controller.waiting.len()).sum();
        self.commands.used() == waiting
    }

    /// Works until something holds, or until a time.
    fn work_until(&mut self, deadline: Instant, holds: impl Fn(&mut Target) -> bool) -> Result<(), Error> {
        loop {
            let seen = self.shared.attention.signal.value();
            self.take_messages();
            if holds(self) || self.platform.now() >= deadline {
                return Ok(());
            }
            if !self.round()? && !self.arm_disks() && !self.reservations.arm() {
                let next = deadline.min(self.platform.now() + TICK);
                self.shared.attention.signal.wait(seen, Some(next));
            }
        }
    }
}
