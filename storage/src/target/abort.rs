//! Abort: of commands that wait. One that the NIC or a disk has cannot be asked to stop.

use nvme::status::Status;

use super::commands::{Index, Stage};
use super::identity::{ControllerId, Kind};
use super::namespace::Waiting;
use super::server::Target;

impl Target {
    /// Aborts a command of a controller's queue, by its identifier; the command gets Command Abort
    /// Requested. False if it does not wait, or is not there.
    ///
    /// A search takes a look at all commands, so there is one in a round; other Aborts of the round
    /// abort nothing.
    pub(super) fn abort(&mut self, id: ControllerId, queue: u16, command: u16) -> bool {
        if !core::mem::take(&mut self.may_abort) {
            return false;
        }
        let found = {
            let mut queues = self.queues.iter();
            queues.find(|(_, one)| one.is_of(id, Kind::Io) && one.id == queue && !one.is_ending)
        };
        let Some(number) = found.map(|(number, _)| number) else {
            let worker = self.crew.is_manager().then(|| self.worker_of(id, queue)).flatten();
            let aborted = self.with_each(worker.into_iter(), |_| {
                move |worker: &mut Target| {
                    worker.may_abort = true;
                    worker.abort(id, queue, command)
                }
            });
            return aborted.contains(&true);
        };
        let waits = |index: &Index| {
            let entry = &self.commands[*index];
            entry.command.cid.get() == command
                && matches!(
                    entry.stage,
                    Stage::Memory | Stage::Room | Stage::Turn | Stage::Held | Stage::Event
                )
        };
        let Some(index) = self.commands.of_queue(number).find(waits) else { return false };
        if !self.stops_waiting(index, id) {
            return false;
        }
        self.respond(index, Status::ABORT_REQUESTED, 0);
        true
    }

    /// Takes a command out of where it waits.
    fn stops_waiting(&mut self, index: Index, id: ControllerId) -> bool {
        let entry = &self.commands[index];
        let (stage, owner, port) = (entry.stage, entry.owner_of_memory, entry.port);
        match (stage, entry.task.namespace()) {
            (Stage::Event, _) => {
                let Some(controller) = self.controller(id, Kind::Io) else { return false };
                controller.waiting.retain(|&waiting| waiting != index);
                true
            }
            (_, None) => self.admin_shares.remove(&mut self.commands, owner, index),
            (_, Some(place)) => {
                let kind = Waiting::of(stage, port, self.needs(index).0);
                let shares = &mut self.subsystem.namespaces[place].shares[kind];
                shares.remove(&mut self.commands, owner, index)
            }
        }
    }
}
