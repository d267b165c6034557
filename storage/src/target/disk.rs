//! The part of a command's way that disks have.

use nvme::status::Status;
use zerocopy::FromBytes;

use super::commands::{HostData, Index, Stage};
use super::namespace::Waiting;
use super::server::Target;
use super::statistics::Counter;
use super::task::{Operation, Task};
use super::work::{self, RANGE};

/// The memory of the largest Deallocate: a page of ranges.
const RANGES: usize = nvme::dsm::MAX_RANGES * RANGE;

impl Target {
    /// Gives the disk a command's next request.
    pub(super) fn submit(&mut self, index: Index) {
        let Some(place) = self.commands[index].task.namespace() else { return };
        if !self.is_live(index) {
            return self.answer(index);
        }
        if self.follows_earlier(index, place) {
            return;
        }
        if self.is_held_back(index, place) {
            return self.wait_in(Waiting::HELD, Stage::Held, index, place);
        }
        self.submit_in_turn(index, place);
    }

    /// The same for a command that waits for no other one.
    pub(super) fn submit_in_turn(&mut self, index: Index, place: usize) {
        let has_turns = self.subsystem.namespaces[place].shares[Waiting::ROOM].has_turns();
        let port = self.commands[index].port;
        // What is refused waits for nothing.
        let waits = has_turns && self.subsystem.refusal(port, place, false).is_none();
        if waits || !self.submit_now(index) {
            self.wait_in(Waiting::ROOM, Stage::Room, index, place);
        }
    }

    /// Gives the disk a command's next request before others that wait. False if there is no room.
    pub(super) fn submit_now(&mut self, index: Index) -> bool {
        let Some(place) = self.commands[index].task.namespace() else { return true };
        if !self.is_live(index) {
            self.answer(index);
            return true;
        }
        // It may have been reserved since the command came.
        if self.conflicts(index) {
            self.respond(index, Status::RESERVATION_CONFLICT.dnr(), 0);
            return true;
        }
        // The bytes of the memory that the request has.
        let mut limit = usize::MAX;
        let (operation, uses_second) = match self.commands[index].task {
            Task::Read { block, .. } | Task::Verify { block, .. } => (Operation::Read { block }, false),
            Task::Write { block, fua, .. } => (Operation::Write { block, fua }, false),
            Task::Compare { block, .. } => (Operation::Read { block }, true),
            Task::Plain { operation, .. } => (operation, false),
            Task::Deallocate { ranges, next, .. } => match self.range(index, place, ranges, next) {
                Some(operation) => (operation, false),
                None => {
                    self.respond(index, Status::SUCCESS, 0);
                    return true;
                }
            },
            Task::Copy { ranges, progress, .. } => match self.next_of_copy(index, place, ranges, progress) {
                Some((operation, len)) => {
                    limit = len;
                    (operation, true)
                }
                None => {
                    self.respond(index, Status::SUCCESS, 0);
                    return true;
                }
            },
            Task::Nothing | Task::Held | Task::Reply { .. } | Task::Connect | Task::Reserve { .. } => {
                return true;
            }
            Task::AuthenticationSend | Task::AuthenticationReceive => return true,
        };
        let entry = &mut self.commands[index];
        if let Some(status) = self.subsystem.refusal(entry.port, place, operation == Operation::Flush) {
            self.respond(index, status, 0);
            return true;
        }
        let namespace = &mut self.subsystem.namespaces[place];
        if let Some(lease) = entry.lease.take() {
            let committed = self.commit(index, place, lease);
            return self.submitted(index, place, committed);
        }
        let submitted = match (&entry.capsule, entry.host) {
            // The data are in the capsule.
            (Some(capsule), HostData::Capsule { offset, len }) => {
                let (memory, piece) = capsule.data(offset as usize, len as usize);
                namespace.submit(index, operation, entry.port, Some(memory), &[piece])
            }
            _ => {
                let buffer = if uses_second { &entry.second } else { &entry.buffer };
                let has_data = matches!(operation, Operation::Read { .. } | Operation::Write { .. });
                let mut pieces = if has_data { buffer.pieces() } else { Default::default() };
                // Only a Copy has less than the first piece.
                pieces.iter_mut().take(1).for_each(|piece| piece.len = piece.len.min(limit));
                namespace.submit(index, operation, entry.port, None, &pieces)
            }
        };
        if namespace.lending.lends(entry.port) {
            self.count_copied(place);
        }
        self.submitted(index, place, submitted)
    }

    /// The disk has a command's request, or none. False if there is no room for it.
    fn submitted(&mut self, index: Index, place: usize, result: Result<(), block::Submit>) -> bool {
        let (entry, now) = (&mut self.commands[index], self.clock);
        match result {
            Ok(()) => {
                (entry.stage, entry.since) = (Stage::Disk, now);
                entry.age = self.subsystem.namespaces[place].ages.begin();
            }
            Err(block::Submit::Busy) => {
                return false;
            }
            Err(block::Submit::Fault(fault)) => {
                if fault == block::Fault::Gone {
                    self.lose(place);
                }
                let entry = &self.commands[index];
                let status = work::status(fault, entry.task.is_read());
                self.respond(index, status, 0);
            }
        }
        true
    }

    /// The next range of a Deallocate that is not empty, as the disk's operation; `None` behind the
    /// last one. An operation out of the disk's range is refused by the disk.
    pub(super) fn range(
        &mut self,
        index: Index,
        place: usize,
        ranges: usize,
        mut next: usize,
    ) -> Option<Operation> {
        let mut bytes = [0; RANGES];
        let bytes = &mut bytes[..ranges * RANGE];
        let entry = &mut self.commands[index];
        if next < ranges {
            self.subsystem.namespaces[place].pool(entry.port).read(&entry.buffer, bytes);
        }
        let mut found = None;
        while next < ranges && found.is_none() {
            let range = nvme::dsm::Range::read_from_bytes(&bytes[next * RANGE..][..RANGE]).ok()?;
            next += 1;
            if range.length.get() > 0 {
                let (block, blocks) = (range.slba.get(), range.length.get().into());
                found = Some(Operation::Discard { block, blocks });
            }
        }
        // If the disk has no room, the same range is tried again.
        entry.task = Task::Deallocate { namespace: place, ranges, next: next - usize::from(found.is_some()) };
        found
    }

    /// A disk has finished a request.
    pub(super) fn finished(&mut self, place: usize, token: u64, result: Result<(), block::Fault>) {
        let Some(index) = self.commands.named(token) else { return };
        let namespace = &mut self.subsystem.namespaces[place];
        let entry = &mut self.commands[index];
        if entry.stage != Stage::Disk || entry.task.namespace() != Some(place) {
            return;
        }
        namespace.on_disk -= 1;
        namespace.ages.end(entry.age);
        namespace.finished += 1;
        if let Err(fault) = result {
            self.failed(index, place, fault);
        }
        // The host has gone: no more requests for it, and no response.
        if !self.is_live(index) {
            self.unleave(index);
            return self.answer(index);
        }
        let entry = &mut self.commands[index];
        if let Err(fault) = result {
            let is_read = match entry.task {
                Task::Copy { progress, .. } => !progress.is_read,
                task => task.is_read(),
            };
            let status = work::status(fault, is_read);
            return self.respond(index, status, 0);
        }
        match &mut entry.task {
            Task::Deallocate { next, .. } => {
                *next += 1;
                self.submit(index);
            }
            Task::Copy { .. } => {
                self.advance_copy(index, place);
                self.submit(index);
            }
            Task::Compare { .. } => {
                let status = if self.are_equal(index, place) {
                    Status::SUCCESS
                } else {
                    Status::COMPARE_FAILURE.dnr()
                };
                let second = self.commands[index].partner.map(|partner| partner.index);
                if let (Some(second), true) = (second, status.is_success()) {
                    self.subsystem.namespaces[place].compared(index);
                    self.respond(index, status, 0);
                    self.submit_in_turn(second, place);
                } else {
                    self.respond(index, status, 0);
                }
            }
            _ => self.respond(index, Status::SUCCESS, 0),
        }
    }

    /// A disk reports that it did not carry out a request. That is an error of this request only.
    fn failed(&mut self, index: Index, place: usize, fault: block::Fault) {
        if fault == block::Fault::Gone {
            return self.lose(place);
        }
        if fault == block::Fault::Media {
            self.statistics().count(Counter::Media);
        }
        let (command, now) = (&self.commands[index].command, self.clock);
        let (opcode, block) = (command.opcode, command.slba());
        self.said_failed.say(
            now,
            format_args!("namespace {}: command {opcode:#04x} at block {block} failed: {fault}", place + 1),
        );
    }

    /// Whether the data of a Compare are equal to the disk's.
    fn are_equal(&self, index: Index, place: usize) -> bool {
        let entry = &self.commands[index];
        let pool = self.subsystem.namespaces[place].pool(entry.port);
        let (mut ours, mut theirs) = ([0; 512], [0; 512]);
        (0..entry.second.len()).step_by(ours.len()).all(|offset| {
            let len = ours.len().min(entry.second.len() - offset);
            let (ours, theirs) = (&mut ours[..len], &mut theirs[..len]);
            pool.read_at(&entry.second, offset, ours);
            match &entry.capsule {
                Some(capsule) => match entry.host {
                    HostData::Capsule { offset: from, .. } => {
                        capsule.read(from as usize + offset, theirs);
                    }
                    HostData::Memory { .. } => return false,
                },
                None => pool.read_at(&entry.buffer, offset, theirs),
            }
            ours == theirs
        })
    }
}
