//! A command's way, from its capsule to the response.

use nvme::command::{Command, fuse, opcode};
use nvme::completion::Completion;
use nvme::sgl::Sgl;
use nvme::status::Status;
use platform::planted::{Bug, planted};
use rdma::{Operation, RemoteMemory, RequestError, Slice, Work};
use zerocopy::IntoBytes;

use super::capsule::{COMMAND, Capsule};
use super::commands::{Answer, HostData, Index, Stage};
use super::namespace::Pair;
use super::pool::MOST_PIECES;
use super::port::RESPONSE;
use super::queue::Role;
use super::reservations;
use super::server::Target;
use super::statistics::Counter;
use super::task::Task;
use super::work;

impl Target {
    /// A capsule arrived at a port, or a Receive failed, whose buffer is posted again.
    pub(super) fn capsule(&mut self, port: usize, done: &rdma::Completion) {
        if let Some(message) = self.ports[port].receives.message(done) {
            self.arrived(Capsule { endpoint: done.endpoint(), message });
        }
    }

    /// Takes a capsule that has arrived, or one again that was postponed.
    fn arrived(&mut self, capsule: Capsule) {
        let number = self.by_endpoint.get(&capsule.endpoint).copied().filter(|_| !self.is_stopping);
        if let Some(number) = number {
            self.command(number, capsule);
        }
    }

    /// Takes the capsules again for which there was no entry.
    pub(super) fn take_postponed(&mut self) {
        for _ in 0..self.postponed.len() {
            let Some(capsule) = self.postponed.pop_front() else { break };
            let number = self.by_endpoint.get(&capsule.endpoint).copied();
            if let Some(queue) = number.and_then(|number| self.queues.get(number)) {
                queue.postponed -= 1;
            }
            self.arrived(capsule);
        }
    }

    /// Takes a command out of a capsule.
    fn command(&mut self, number: u32, capsule: Capsule) {
        let len = capsule.len();
        let Some(queue) = self.queues.get(number) else { return };
        if queue.is_ending {
            return;
        }
        // A host that sends less than a command, or more commands than it said, has lost its way.
        let overruns = queue.outstanding + queue.postponed >= queue.size;
        if len < COMMAND || overruns {
            log::info!(
                "a host broke the protocol: {}",
                if overruns { "too many commands" } else { "a short capsule" }
            );
            self.statistics().count(Counter::Broken);
            self.break_queue(number);
            return;
        }
        // A long RDMA Read delays the completions of all Sends behind it, but not their arrival. So
        // a host may have had the responses of all entries, and send more.
        if queue.entries >= 2 * queue.size {
            queue.postponed += 1;
            self.postponed.push_back(capsule);
            return;
        }
        let command = capsule.command();
        let (is_new, owner, port) = (queue.begin(command.cid.get()), queue.owner, queue.port);
        let now = self.clock;
        let host = host_data(&command, len - COMMAND);
        let data = host.unwrap_or(HostData::Capsule { offset: 0, len: 0 });
        // The queue has as many entries promised as it may use.
        let Some(index) = self.commands.take(number, owner, command, data) else {
            self.break_queue(number);
            return;
        };
        let entry = &mut self.commands[index];
        (entry.is_duplicate, entry.begun, entry.port) = (!is_new, now, port);
        if let HostData::Capsule { len: 1.., .. } = data {
            entry.capsule = Some(capsule);
        } else {
            drop(capsule);
        }
        let decided = match (host, is_new) {
            (_, false) => Err((Status::CID_CONFLICT.dnr(), 0)),
            (Err(status), _) => Err((status, 0)),
            (Ok(_), true) => self.decide(number, index),
        };
        self.go_on(number, index, decided);
    }

    /// What the command asks for, which is noted in its entry; or its answer.
    fn decide(&mut self, number: u32, index: Index) -> Result<(), Answer> {
        let Some(queue) = self.queues.get(number) else { return Err((Status::INTERNAL_ERROR, 0)) };
        let (role, port, command) = (queue.role, queue.port, self.commands[index].command);
        let decided = self.gate(number, &command);
        self.check_fused(role, &command)?;
        let (task, len) = match role {
            _ if decided.is_some() => decided.unwrap_or(Err((Status::INTERNAL_ERROR, 0)))?,
            Role::New => super::connect::first(&command)?,
            Role::Admin(id, is_io) => self.admin(id, is_io, index, &command)?,
            Role::Io(id) => {
                let nsid = command.nsid.get();
                let controller = self.subsystem.controllers.get(id).filter(|one| one.is_enabled());
                let Some(controller) = controller else { return Err((Status::SEQUENCE_ERROR.dnr(), 0)) };
                controller.has_traffic = true;
                let place = match planted(Bug::HiddenServed) {
                    true => self.subsystem.any_place(nsid),
                    false => self.seen_any(id, nsid),
                };
                match (command.opcode, place) {
                    (opcode::io::RESERVATION_REPORT, Some(place)) if self.subsystem.has_reservations => {
                        let refusal = self.subsystem.ana[port].state(place).status();
                        refusal.map_or_else(|| self.report(place, &command), Err)
                    }
                    _ => work::io(&command, place, port, &self.subsystem),
                }
                .map_err(|status| (status, 0))?
            }
        };
        let entry = &mut self.commands[index];
        entry.task = task;
        if task == Task::Held {
            return Ok(());
        }
        // Without a bit in the field SGLS that allows longer ones, the length has to fit exactly.
        // But Linux always names room for 256 ranges, and two keys for a Reservation Release.
        let host = entry.host.len() as usize;
        let is_longer = host > len
            && match task {
                Task::Deallocate { .. } => true,
                Task::Reserve { .. } => len > 0 && host <= reservations::MOST_KEYS,
                _ => false,
            };
        if host != len && !is_longer {
            return Err((Status::DATA_SGL_LENGTH_INVALID.dnr(), 0));
        }
        // Data to the host cannot go into a capsule.
        if len > 0 && !task.takes_data() && matches!(entry.host, HostData::Capsule { .. }) {
            return Err((Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr(), 0));
        }
        if command.fuse() != fuse::NONE && len > Pair::MOST_BYTES {
            return Err((Status::ATOMIC_WRITE_UNIT_EXCEEDED.dnr(), 0));
        }
        if self.conflicts(index) {
            return Err((Status::RESERVATION_CONFLICT.dnr(), 0));
        }
        Ok(())
    }

    /// Fetches the command's data, if it has some.
    pub(super) fn fetch(&mut self, index: Index) {
        let entry = &mut self.commands[index];
        if !entry.task.takes_data() || entry.host.len() == 0 {
            return self.fetched(index);
        }
        let namespace = entry.task.namespace().map(|place| &self.subsystem.namespaces[place]);
        let port = entry.port;
        let pool = namespace.map_or(&self.ports[port].admin_pool, |namespace| namespace.pool(port));
        match entry.host {
            HostData::Capsule { offset, .. } => {
                if entry.buffer.len() > 0 {
                    let Some(capsule) = entry.capsule.take() else { return };
                    capsule.copy(offset as usize, pool, &entry.buffer);
                }
                self.fetched(index);
            }
            HostData::Memory { address, key, len, .. } => {
                let sinks = match (&entry.lease, namespace) {
                    (Some(lease), Some(namespace)) => namespace.lending.sinks(port, lease),
                    _ => pool.sinks(&entry.buffer),
                };
                let Some(queue) = entry.queue.and_then(|number| self.queues.get(number)) else { return };
                if !queue.is_established {
                    entry.stage = Stage::ConnectionToFetch;
                    return;
                }
                queue.posted += 1;
                self.commands.fetch(index, true);
                let from = RemoteMemory::new(address, len.into(), key);
                // It fails only if the connection is over: then the queue's end frees the entry.
                let _ = queue.endpoint.post(Work::read(&sinks[..], from).id(index.0.into()));
            }
        }
    }

    /// A request to the NIC is complete.
    pub(super) fn completed(&mut self, done: &rdma::Completion) {
        let Some(index) = self.commands.named(done.id()) else { return };
        let entry = &self.commands[index];
        let Some(number) = entry.queue else { return };
        let queue = self.queues.get(number).filter(|queue| queue.endpoint.id() == done.endpoint());
        // Otherwise it is of a queue that has ended, and the entry of a later command.
        let Some(queue) = queue else { return };
        if let Err(error) = done.result() {
            // The connection is over, and its end frees the entry. The host learns from the
            // connection's end that its key or its memory was wrong.
            if error != RequestError::Flushed {
                log::info!("a connection broke: {:?}: {error}", done.operation());
                self.statistics().count(Counter::Broken);
                self.break_queue(number);
            }
            return;
        }
        queue.done += 1;
        match (done.operation(), entry.stage) {
            (Operation::Read, Stage::Data) => {
                self.commands.fetch(index, false);
                self.fetched(index);
            }
            (Operation::Send, Stage::Response) => self.finish(index),
            _ => {}
        }
    }

    /// The command has its memory, and its data are here.
    pub(super) fn fetched(&mut self, index: Index) {
        if !self.is_live(index) {
            return self.answer(index);
        }
        if self.pair_has_data(index) {
            return;
        }
        match self.commands[index].task {
            Task::Held => {}
            Task::Nothing => self.respond(index, Status::SUCCESS, 0),
            Task::Reply { reply, len } => {
                self.fill(index, reply, len);
                self.respond(index, Status::SUCCESS, 0);
            }
            Task::Connect => {
                if !self.connect_waits(index) {
                    self.connect(index);
                }
            }
            Task::Reserve { .. } => self.reserve(index),
            Task::AuthenticationSend => {
                let (status, result) = self.authentication_send(index);
                self.respond(index, status, result);
            }
            Task::AuthenticationReceive => {
                let (status, result) = self.authentication_receive(index);
                self.respond(index, status, result);
            }
            Task::Copy { namespace, ranges, .. } => match self.check_copy(index, namespace, ranges) {
                Ok(()) => self.submit(index),
                Err(status) => self.respond(index, status, 0),
            },
            _ => self.submit(index),
        }
    }

    /// Notes how a command ended, and answers it.
    pub(super) fn respond(&mut self, index: Index, status: Status, result: u64) {
        self.unleave(index);
        let entry = &mut self.commands[index];
        (entry.status, entry.result) = (status, result);
        entry.capsule = None;
        let aborted = self.part(index, status);
        let is_io = status.is_success() || self.note(index, status);
        let statistics = self.statistics();
        let entry = &self.commands[index];
        match entry.task {
            // Hosts try admin commands that a target need not have.
            _ if !status.is_success() && !is_io => {}
            _ if !status.is_success() => statistics.count(Counter::Errors),
            Task::Read { .. } => statistics.has_read(entry.host.len() as usize),
            Task::Write { .. } => statistics.has_written(entry.host.len() as usize),
            _ => statistics.count(Counter::Others),
        }
        self.measure(index, status);
        self.answer(index);
        if let Some(second) = aborted {
            self.respond(second, Target::failed_by(status), 0);
        }
    }

    /// Notes a command's failure for its controller's log page. True if it was a command of an I/O
    /// queue.
    fn note(&mut self, index: Index, status: Status) -> bool {
        let entry = &self.commands[index];
        let Some(queue) = entry.queue.and_then(|number| self.queues.get(number)) else { return false };
        let (role, id, command) = (queue.role, queue.id, entry.command);
        // A queue that has not authenticated may be an impostor's: it adds nothing to the log page.
        let known = role.controller().filter(|_| queue.gate.is_open());
        if let Some(controller) = known.and_then(|(id, kind)| self.controller(id, kind)) {
            controller.note(id, &command, status);
        }
        matches!(role, Role::Io(_))
    }

    /// Whether a command's queue has not ended: otherwise nothing is done for it any more.
    pub(super) fn is_live(&mut self, index: Index) -> bool {
        let queue = self.commands[index].queue.and_then(|number| self.queues.get(number));
        queue.is_some_and(|queue| !queue.is_ending)
    }

    /// Sends the data that were read, and the response.
    pub(super) fn answer(&mut self, index: Index) {
        self.release_blocks(index);
        let entry = &mut self.commands[index];
        let queue = entry.queue.and_then(|number| self.queues.get(number));
        let Some(queue) = queue.filter(|queue| !queue.is_ending) else {
            // The connection's end frees the entry, unless that has come already.
            entry.stage = Stage::Response;
            if entry.queue.is_none() {
                self.finish(index);
            }
            return;
        };
        if !queue.is_established {
            entry.stage = Stage::ConnectionToAnswer;
            return;
        }
        entry.stage = Stage::Response;
        let identifier = entry.command.cid.get();
        // The host may use the identifier again as soon as it has the response.
        queue.end(identifier, entry.is_duplicate);
        queue.posted += 1;
        let head = queue.advance();
        let response = Completion::new(identifier, entry.status).with_result(entry.result).with_sqhd(head);
        let at = index.0 as usize * RESPONSE;
        let (place, port) = (entry.port, &self.ports[entry.port]);
        let send = port.responses.slice(at..at + RESPONSE);
        send.write(response.as_bytes());
        let is_read =
            matches!(entry.task, Task::Reply { .. } | Task::AuthenticationReceive | Task::Read { .. });
        let write: heapless::Vec<Slice<'_>, MOST_PIECES> = match entry.task.namespace() {
            _ if !is_read || !entry.status.is_success() => heapless::Vec::new(),
            None => port.admin_pool.slices(&entry.buffer),
            Some(namespace) => {
                let namespace = &self.subsystem.namespaces[namespace];
                match &entry.lease {
                    Some(lease) => namespace.lending.slices(place, lease),
                    None => namespace.pool(place).slices(&entry.buffer),
                }
            }
        };
        // A post fails only if the connection is over: then the queue's end frees the entry.
        let mut work = Work::send(send);
        if let HostData::Memory { address, key, len, invalidate } = entry.host {
            if !write.is_empty() {
                let to = RemoteMemory::new(address, len.into(), key);
                let _ = queue.endpoint.post(Work::write(&write[..], to).unsignalled().id(index.0.into()));
            }
            if invalidate && len > 0 {
                work = Work::send_and_invalidate(send, key);
            }
        }
        let _ = queue.endpoint.post(work.id(index.0.into()));
    }

    /// Frees an entry that neither the NIC nor a disk names any more.
    pub(super) fn finish(&mut self, index: Index) {
        self.unleave(index);
        self.leave_pair(index);
        self.give_memory(index);
        let entry = &mut self.commands[index];
        entry.capsule = None;
        if let Some(queue) = entry.queue.and_then(|number| self.queues.get(number)) {
            queue.entries -= 1;
        }
        self.commands.give(index);
    }
}

/// Where the host's data are, or the status of a command that says it wrongly. `capsule` is the
/// number of bytes behind the command.
fn host_data(command: &Command, capsule: usize) -> Result<HostData, Status> {
    if command.psdt() != 1 {
        return Err(Status::INVALID_FIELD.dnr());
    }
    match command.sgl.parse().map_err(Status::dnr)? {
        Sgl::Keyed { addr, len, key, invalidate } => {
            Ok(HostData::Memory { address: addr, key, len, invalidate })
        }
        Sgl::Offset { offset, len } => {
            let end = offset.checked_add(len.into()).filter(|&end| end <= capsule as u64);
            end.ok_or(Status::SGL_OFFSET_INVALID.dnr())?;
            Ok(HostData::Capsule { offset: offset as u32, len })
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use alloc::vec;
    use std::thread;
    use std::time::{Duration, Instant};

    use block::ram::RamDisk;
    use nvme::fabrics::{Property, PropertyGet};
    use nvme::private_data::Request;

    use super::*;
    use crate::target::{Config, Export, PORT};
    use crate::testing::{End, RawQueue};

    const SIZE: u16 = 8;

    /// Lets the target work until `done`.
    fn work(target: &mut Target, what: &str, mut done: impl FnMut(&mut Target) -> bool) {
        let begun = Instant::now();
        while !done(target) {
            target.round().expect("an interface adapter that works");
            assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        }
    }

    /// A target that works only in [`work`], and a host whose queue has no entry left: as if a long
    /// RDMA Read held up the completions of as many responses.
    fn without_entries(test: impl FnOnce(&mut Target, &mut RawQueue)) {
        let machine = host::Machine::new(2);
        let platform = machine.platform();
        let node = common::Node::start(platform.clone(), machine.privileged(), machine.transports());
        let node = node.expect("two NICs of our own");
        let disk = Arc::new(RamDisk::new(&platform, 512, 64).expect("memory"));
        let disks = vec![Export::new(disk, [1; 16])];
        let config = Config {
            commands: 256,
            depth: 64,
            memory: 4 << 20,
            ..Config::new("nqn.2026-01.org.ferrovia:test", disks)
        };
        let nic = node.nic(0).expect("an opening");
        let mut target = Target::new(&[nic], machine.privileged(), config).expect("a target");
        let (control, place) = (target.control(), (target.addresses()[0], PORT));
        let nic = node.nic(1).expect("an opening");
        let connecting =
            thread::spawn(move || RawQueue::connect(&nic, place, Request::new(0, SIZE, SIZE - 1).as_bytes()));
        work(&mut target, "no connection", |_| connecting.is_finished());
        let mut host = connecting.join().expect("no panic").expect("resources");
        assert_eq!(host.end(), None);
        work(&mut target, "not established", |target| {
            target.queues.get(0).is_some_and(|queue| queue.is_established)
        });
        let queue = target.queues.get(0).expect("the queue");
        queue.entries += 2 * queue.size;
        test(&mut target, &mut host);
        control.stop();
        target.run().expect("its end");
    }

    fn send(host: &mut RawQueue, cid: u16) {
        host.send(PropertyGet::new(Property::Csts).command().with_cid(cid).as_bytes());
    }

    #[test]
    fn a_command_for_which_there_is_no_entry_waits_for_one() {
        without_entries(|target, host| {
            send(host, 1);
            send(host, 2);
            work(target, "not postponed", |target| target.postponed.len() == 2);
            let queue = target.queues.get(0).expect("the queue");
            queue.entries -= 2 * queue.size;
            work(target, "not taken", |target| target.postponed.is_empty());
            for cid in [1, 2] {
                work(target, "no response", |_| host.has_response());
                assert_eq!(host.response().expect("a response").cid.get(), cid);
            }
            assert_eq!(target.queues.get(0).expect("the queue").postponed, 0);
        });
    }

    #[test]
    fn commands_that_wait_for_an_entry_are_outstanding() {
        without_entries(|target, host| {
            let size = target.queues.get(0).expect("the queue").size;
            (0..size).for_each(|cid| send(host, cid));
            work(target, "not postponed", |target| target.postponed.len() == usize::from(size));
            assert_eq!(host.end(), None);
            send(host, size);
            work(target, "not broken", |target| {
                assert!(target.postponed.len() <= usize::from(size), "one more is postponed");
                host.end().is_some()
            });
            assert_eq!(host.end(), Some(End::Disconnected));
            work(target, "places that are kept", |target| target.postponed.is_empty());
        });
    }
}
