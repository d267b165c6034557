//! Requests of the consumer: memory, commands, completions.

use nvme::command::{Command, opcode};
use nvme::dsm;
use nvme::sgl::Descriptor;
use nvme::status::Status;
use rdma::{Access, Completion, Region, Work};

use super::queue::{Common, Waits};
use super::{Failure, Initiator};
use crate::Error;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads blocks.
    Read,
    /// Writes blocks. They are durable when the request completes, if the flag is set.
    Write {
        /// Force Unit Access.
        fua: bool,
    },
    /// Compares blocks with the data.
    Compare,
    /// Makes completed writes durable.
    Flush,
    /// Writes zeros; the target may deallocate the blocks.
    WriteZeroes,
    /// Deallocates the ranges in the data, each of 16 bytes.
    Deallocate,
}

/// A request.
pub struct Request<'a> {
    /// What.
    pub operation: Operation,
    /// The namespace.
    pub namespace: u32,
    /// The first block.
    pub block: u64,
    /// How many blocks; for a Deallocate, how many ranges.
    pub blocks: u32,
    /// The data: the memory, where they begin, and how many bytes they are.
    pub data: Option<(&'a Region, usize, usize)>,
}

/// Why a request was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// The queue is full. Take completions first.
    Full,
    /// The arguments cannot be: no such queue, data beyond their region, too long, or missing.
    Invalid,
    /// The controller is lost.
    Lost(Failure),
}

impl Initiator {
    /// Sends a request by an I/O queue, counted from 0. `token` comes back with its completion.
    pub fn submit(&mut self, queue: usize, request: &Request<'_>, token: u64) -> Result<(), NotSent> {
        let blocks = request.blocks;
        let command = match request.operation {
            Operation::Flush => Command::flush(request.namespace),
            Operation::Deallocate if (1..=dsm::MAX_RANGES as u32).contains(&blocks) => {
                Command::dataset_management(request.namespace, blocks as usize, dsm::Attributes::DEALLOCATE)
            }
            _ if !(1..=1 << 16).contains(&blocks) || request.operation == Operation::Deallocate => {
                return Err(NotSent::Invalid);
            }
            Operation::Read => Command::blocks(opcode::io::READ, request.namespace, request.block, blocks),
            Operation::Compare => {
                Command::blocks(opcode::io::COMPARE, request.namespace, request.block, blocks)
            }
            Operation::Write { fua } => {
                let command = Command::blocks(opcode::io::WRITE, request.namespace, request.block, blocks);
                if fua { command.with_fua() } else { command }
            }
            Operation::WriteZeroes => {
                Command::blocks(opcode::io::WRITE_ZEROES, request.namespace, request.block, blocks)
                    .with_deallocate()
            }
            Operation::Deallocate => return Err(NotSent::Invalid),
        };
        if queue >= self.io_queues() {
            return Err(NotSent::Invalid);
        }
        self.send(queue + 1, command, request.data, request.operation == Operation::Read, token)
    }

    /// Sends a command, with the data that it names.
    pub(super) fn send<'a>(
        &mut self,
        queue: usize,
        command: Command,
        data: Option<(&'a Region, usize, usize)>,
        is_read: bool,
        token: u64,
    ) -> Result<(), NotSent> {
        if let Some(failure) = self.failed {
            return Err(NotSent::Lost(failure));
        }
        let slice = |(region, offset, len): (&'a Region, usize, usize)| {
            let end = offset.checked_add(len).filter(|_| len <= self.limits.transfer);
            end.and_then(|end| region.get(offset..end)).ok_or(NotSent::Invalid)
        };
        let data = data.filter(|&(_, _, len)| len > 0).map(slice).transpose()?;
        let in_capsule = if queue == 0 { 0 } else { self.limits.in_capsule };
        let queue = &mut self.queues[queue];
        let number = queue.take(token).ok_or(NotSent::Full)?;
        let slot = &mut queue.slots[usize::from(number)];
        let (mut sgl, mut inline) = (Descriptor::none(), None);
        let mut linked = Ok(());
        if let Some(data) = data {
            let len = data.len() as u32;
            if !is_read && data.len() <= in_capsule {
                sgl = Descriptor::offset(0, len);
                inline = Some(data);
            } else {
                let link = slot.data.link(data, if is_read { Access::WRITE } else { Access::READ });
                linked = link.map(|to| sgl = Descriptor::keyed(to.addr(), len, to.key(), true));
            }
        }
        let capsule = queue.write(number, &command.with_cid(number).with_sgl(sgl));
        let id = u64::from(number);
        let sent = linked.and_then(|()| match inline {
            Some(data) => queue.endpoint.post(Work::send(&[capsule, data]).id(id)),
            None => queue.endpoint.post(Work::send(capsule).id(id)),
        });
        sent.map_err(|error| {
            queue.give(number);
            // The connection is over, and the next poll says so.
            NotSent::Lost(Failure::Local(Error::Post(error)))
        })
    }

    /// Takes completions, and sends a Keep Alive when it is time.
    pub(super) fn take(&mut self, into: &mut dyn FnMut(u64, Status, u64)) -> Result<usize, Failure> {
        let mut count = 0;
        let mut taken = core::mem::take(&mut self.taken);
        for are_receives in [true, false] {
            let Common { receives, requests, .. } = &self.common;
            let came = if are_receives { receives } else { requests }.poll(&mut taken);
            let complete = taken.iter().take(came).map(|done| self.completed(done, into).map(usize::from));
            let complete = complete.sum::<Result<usize, Failure>>();
            match complete {
                Ok(complete) => count += complete,
                Err(failure) => {
                    self.taken = taken;
                    return Err(failure);
                }
            }
        }
        self.taken = taken;
        if self.common.domain.nic().is_dead() {
            return Err(Error::DeviceDead.into());
        }
        if self.attention.take_connections() && self.is_disconnected() {
            return Err(Failure::Disconnected);
        }
        let now = self.platform.now();
        if !self.options.keep_alive.is_zero() && now >= self.next_keep_alive {
            self.next_keep_alive = now + self.options.keep_alive / 2;
            if !self.keep_alive {
                let command = Command::new(opcode::admin::KEEP_ALIVE);
                self.keep_alive = self.send(0, command, None, false, super::admin::KEEP_ALIVE).is_ok();
            }
        }
        Ok(count)
    }

    /// A Send or a Receive is complete. True if a request of the consumer is complete by it.
    fn completed(
        &mut self,
        done: &Completion,
        into: &mut dyn FnMut(u64, Status, u64),
    ) -> Result<bool, Failure> {
        let place = self.queues.iter().position(|queue| queue.endpoint.id() == done.endpoint());
        let Some(place) = place else { return Ok(false) };
        let Ok(len) = done.result() else { return Err(Failure::Disconnected) };
        let queue = &mut self.queues[place];
        let number = match done.operation() {
            rdma::Operation::Receive => {
                let receive = done.id() as u16;
                if len != size_of::<nvme::completion::Completion>() {
                    return Err(Failure::Protocol("a response has 16 bytes"));
                }
                let response = queue.response(receive);
                // It fails only if the connection is over.
                let _ = queue.post_receive(receive);
                let number = response.cid.get();
                let slot = queue.slots.get_mut(usize::from(number));
                let slot = slot.filter(|slot| matches!(slot.waits, Waits::Both | Waits::Response));
                let Some(slot) = slot else {
                    return Err(Failure::Protocol("a response to a command that was not sent"));
                };
                if !slot.data.is_ended_by(done) && done.invalidated().is_some() {
                    return Err(Failure::Protocol("a response invalidated another command's key"));
                }
                slot.response = response;
                if slot.waits == Waits::Both {
                    slot.waits = Waits::Send;
                    self.late += 1;
                    return Ok(false);
                }
                number
            }
            rdma::Operation::Send => {
                let number = done.id() as u16;
                let Some(slot) = queue.slots.get_mut(usize::from(number)) else { return Ok(false) };
                if slot.waits == Waits::Both {
                    slot.waits = Waits::Response;
                    return Ok(false);
                }
                self.late -= usize::from(slot.waits == Waits::Send);
                number
            }
            _ => return Ok(false),
        };
        let slot = &queue.slots[usize::from(number)];
        let (token, response) = (slot.token, slot.response);
        queue.give(number);
        if place == 0 {
            self.answered(token, &response);
            return Ok(false);
        }
        into(token, response.status(), response.result.get());
        Ok(true)
    }

    /// Reads blocks into memory, and waits for that.
    pub fn read(
        &mut self,
        namespace: u32,
        block: u64,
        blocks: u32,
        into: (&Region, usize, usize),
    ) -> Result<(), Failure> {
        let request = Request { operation: Operation::Read, namespace, block, blocks, data: Some(into) };
        self.carry_out("Read", &request)
    }

    /// Writes blocks, and waits for that.
    pub fn write(
        &mut self,
        namespace: u32,
        block: u64,
        blocks: u32,
        from: (&Region, usize, usize),
    ) -> Result<(), Failure> {
        let operation = Operation::Write { fua: false };
        let request = Request { operation, namespace, block, blocks, data: Some(from) };
        self.carry_out("Write", &request)
    }

    /// Flushes, and waits for that.
    pub fn flush(&mut self, namespace: u32) -> Result<(), Failure> {
        let request = Request { operation: Operation::Flush, namespace, block: 0, blocks: 0, data: None };
        self.carry_out("Flush", &request)
    }

    /// Sends a request by the first queue, and waits for its completion. No other request may be
    /// outstanding.
    pub fn carry_out(&mut self, what: &'static str, request: &Request<'_>) -> Result<(), Failure> {
        let (mut answer, token) = (None, 0);
        self.submit(0, request, token).map_err(|error| match error {
            NotSent::Lost(failure) => failure,
            NotSent::Full => Failure::Local(Error::Config("the queue is full")),
            NotSent::Invalid => Failure::Local(Error::Config("the request's arguments cannot be")),
        })?;
        let deadline = self.platform.now() + self.options.patience;
        while answer.is_none() {
            let seen = self.seen();
            if self.poll(&mut |_, status, result| answer = Some((status, result)))? == 0 {
                if self.platform.now() >= deadline {
                    return Err(Failure::Silent);
                }
                self.wait(seen, deadline);
            }
        }
        match answer {
            Some((status, result)) if !status.is_success() => Err(Failure::Command(what, status, result)),
            _ => Ok(()),
        }
    }
}
