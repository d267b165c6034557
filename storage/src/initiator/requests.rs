//! Requests of the consumer: memory, commands, completions.

use alloc::sync::Arc;
use core::slice::from_ref;

use nvme::command::{Command, opcode};
use nvme::dsm;
use nvme::sgl::Descriptor;
use nvme::status::Status;
use platform::DmaBuffer;
use privileged_api::{
    ASPACE_KERNEL, AddrMode, DtoCompletion, DtoFlags, DtoStatus, Event, EventType, Handle, IoAddr, Iobl,
    LmrTriplet, MemPriv,
};

use super::queue::Waits;
use super::{Failure, Initiator};
use crate::Error;
use crate::error::Calling;

/// Memory of the consumer that requests may name.
pub struct Region {
    buffer: Arc<DmaBuffer>,
    address: IoAddr,
}

impl Region {
    /// The memory.
    pub fn buffer(&self) -> &Arc<DmaBuffer> {
        &self.buffer
    }
}

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
    /// Lets requests name a buffer. It lives as long as the region.
    pub fn register(&mut self, buffer: Arc<DmaBuffer>) -> Result<Region, Failure> {
        let (address, len) =
            self.ia.mem_map(buffer.addr(), ASPACE_KERNEL, buffer.len()).calling("it_mem_map")?;
        if len != buffer.len() {
            return Err(Failure::Local(Error::OutOfMemory));
        }
        Ok(Region { buffer, address })
    }

    /// Ends a region. No request that names it may be outstanding.
    pub fn unregister(&mut self, region: Region) {
        // Fails only if the IA is dead.
        let _ = self.ia.mem_unmap(region.address, region.buffer.len());
    }

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
    pub(super) fn send(
        &mut self,
        queue: usize,
        command: Command,
        data: Option<(&Region, usize, usize)>,
        is_read: bool,
        token: u64,
    ) -> Result<(), NotSent> {
        if let Some(failure) = self.failed {
            return Err(NotSent::Lost(failure));
        }
        let data = data.filter(|&(_, _, len)| len > 0);
        if let Some((region, offset, len)) = data
            && (offset.checked_add(len).is_none_or(|end| end > region.buffer.len())
                || len > self.limits.transfer)
        {
            return Err(NotSent::Invalid);
        }
        let in_capsule = if queue == 0 { 0 } else { self.limits.in_capsule };
        let ia = &self.ia;
        let queue = &mut self.queues[queue];
        let number = queue.take(token).ok_or(NotSent::Full)?;
        let slot = &mut queue.slots[usize::from(number)];
        let (mut sgl, mut inline) = (Descriptor::none(), None);
        let mut failed = Ok(());
        if let Some((region, offset, len)) = data {
            let address = IoAddr(region.address.0 + offset as u64);
            if !is_read && len <= in_capsule {
                sgl = Descriptor::offset(0, len as u32);
                inline = Some(LmrTriplet::direct(address, len as u64));
            } else {
                let none = DtoFlags::empty();
                if slot.is_linked {
                    failed = ia.lmr_unlink(slot.lmr, queue.ep, 0, none);
                }
                let privileges = if is_read {
                    MemPriv::REMOTE_WRITE | MemPriv::LOCAL_WRITE
                } else {
                    MemPriv::REMOTE_READ | MemPriv::LOCAL_READ
                };
                let list = Iobl::blocks(from_ref(&address), len as u64, 0);
                let (mode, base) = (AddrMode::Absolute, region.buffer.addr() + offset);
                let linked =
                    ia.lmr_link(slot.lmr, base, &list, len as u64, mode, privileges, queue.ep, 0, none);
                match linked {
                    Ok(Some(context)) => {
                        slot.is_linked = true;
                        sgl = Descriptor::keyed(base as u64, len as u32, u32::from_be(context.0), true);
                    }
                    Ok(None) => failed = Err(privileged_api::Error::InvalidLmr),
                    Err(error) => failed = Err(error),
                }
            }
        }
        let capsule = queue.write(number, &command.with_cid(number).with_sgl(sgl));
        let cookie = u64::from(number);
        let sent = failed.and_then(|()| match inline {
            Some(data) => ia.post_send(queue.ep, &[capsule, data], cookie, DtoFlags::COMPLETION),
            None => ia.post_send(queue.ep, &[capsule], cookie, DtoFlags::COMPLETION),
        });
        sent.map_err(|error| {
            queue.give(number);
            // The connection is over, and its event says why.
            NotSent::Lost(Failure::Local(Error::Api("it_post_send", error)))
        })
    }

    /// Takes completions, and sends a Keep Alive when it is time.
    pub(super) fn take(&mut self, into: &mut dyn FnMut(u64, Status, u64)) -> Result<usize, Failure> {
        let mut count = 0;
        for evd in [self.receives, self.requests] {
            let came = match self.ia.evd_dequeue_n(evd, &mut self.taken) {
                Ok(came) => came,
                Err(privileged_api::Error::QueueEmpty) => continue,
                Err(error) => return Err(Failure::Local(Error::Api("it_evd_dequeue", error))),
            };
            let taken = core::mem::take(&mut self.taken);
            let complete = taken.iter().take(came).map(|done| self.completed(done, into).map(usize::from));
            let complete = complete.sum::<Result<usize, Failure>>();
            self.taken = taken;
            count += complete?;
        }
        if let Some(Event::ConnDisconnect { .. } | Event::ConnBroken { .. }) = self.take_messages()? {
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
        done: &DtoCompletion,
        into: &mut dyn FnMut(u64, Status, u64),
    ) -> Result<bool, Failure> {
        let Some(place) = self.queues.iter().position(|queue| queue.ep == done.ep) else { return Ok(false) };
        if done.dto_status != DtoStatus::Success {
            return Err(Failure::Disconnected);
        }
        let queue = &mut self.queues[place];
        let number = match done.event_number {
            EventType::DTO_RC_RECV_CMPL => {
                let receive = done.cookie as u16;
                if done.transferred_length as usize != size_of::<nvme::completion::Completion>() {
                    return Err(Failure::Protocol("a response has 16 bytes"));
                }
                let response = queue.response(receive);
                // It fails only if the connection is over.
                let _ = queue.post_receive(&self.ia, receive);
                let number = response.cid.get();
                let slot = queue.slots.get_mut(usize::from(number));
                let slot = slot.filter(|slot| matches!(slot.waits, Waits::Both | Waits::Response));
                let Some(slot) = slot else {
                    return Err(Failure::Protocol("a response to a command that was not sent"));
                };
                if done.unlinked_mr_handle != Handle::NULL {
                    if done.unlinked_mr_handle != Handle::from(slot.lmr) {
                        return Err(Failure::Protocol("a response invalidated another command's key"));
                    }
                    slot.is_linked = false;
                }
                slot.response = response;
                if slot.waits == Waits::Both {
                    slot.waits = Waits::Send;
                    self.late += 1;
                    return Ok(false);
                }
                number
            }
            EventType::DTO_SEND_CMPL => {
                let number = done.cookie as u16;
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
