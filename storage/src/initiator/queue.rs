//! A queue of a host: its connection, its commands, and their memory.

use alloc::vec::Vec;
use core::task::Waker;

use nvme::command::Command;
use nvme::completion::Completion;
use platform::Privileged;
use rdma::{Domain, Endpoint, FastRegion, PostError, Queue, Region, Slice};
use zerocopy::{FromZeros, IntoBytes};

use crate::Error;

const COMMAND: usize = size_of::<Command>();
const RESPONSE: usize = size_of::<Completion>();
/// RDMA Reads by the target that may be outstanding.
const READS: u8 = 16;

/// What a slot waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// It is free.
    Free,
    /// The response, and the completion of the Send.
    Both,
    /// The response; the Send is complete.
    Response,
    /// The completion of the Send; the response is here, with this status and result.
    Send,
}

/// A command's slot; its number is the command's identifier.
pub(super) struct Slot {
    pub(super) waits: Waits,
    /// The consumer's name for the request.
    pub(super) token: u64,
    /// The region through which the target reaches the data.
    pub(super) data: FastRegion,
    /// The response, once it is here.
    pub(super) response: Completion,
}

/// A queue.
pub(super) struct HostQueue {
    // Before the memory: its end is the end of its requests.
    pub(super) endpoint: Endpoint,
    pub(super) slots: Vec<Slot>,
    free: Vec<u16>,
    commands: Region,
    responses: Region,
}

/// What the queues of a host share.
pub(super) struct Common {
    pub(super) domain: Domain,
    pub(super) privileged: Privileged,
    /// Where Sends end, and Receives.
    pub(super) requests: Queue,
    pub(super) receives: Queue,
    /// For changes of the connections.
    pub(super) waker: Waker,
}

impl HostQueue {
    /// A queue of so many entries that is not connected yet, with a Receive for each response.
    pub(super) fn new(common: &Common, entries: u16) -> Result<HostQueue, Error> {
        let Common { domain, privileged, requests, receives, waker } = common;
        let count = usize::from(entries);
        // A command has three requests at most: unlink, link, Send.
        let endpoint = domain.endpoint().sends(4 * u32::from(entries)).receives(entries.into()).segments(2);
        let endpoint = endpoint.reads(0).served_reads(READS).privileged(*privileged).posted_only();
        let endpoint = endpoint.queue(requests).receive_queue(receives).watch(waker.clone()).build()?;
        let mut queue = HostQueue {
            endpoint,
            slots: Vec::new(),
            free: (0..entries).rev().collect(),
            commands: domain.direct(count * COMMAND, *privileged)?,
            responses: domain.direct(count * RESPONSE, *privileged)?,
        };
        for place in 0..entries {
            let data = queue.endpoint.fast_region()?;
            let response = Completion::new_zeroed();
            queue.slots.push(Slot { waits: Waits::Free, token: 0, data, response });
            queue.post_receive(place).map_err(Error::Post)?;
        }
        Ok(queue)
    }

    /// The entries.
    pub(super) fn size(&self) -> usize {
        self.slots.len()
    }

    /// Takes a slot. One always stays free: a full submission queue has one entry fewer.
    pub(super) fn take(&mut self, token: u64) -> Option<u16> {
        if self.free.len() < 2 {
            return None;
        }
        let number = self.free.pop()?;
        let slot = &mut self.slots[usize::from(number)];
        (slot.waits, slot.token) = (Waits::Both, token);
        Some(number)
    }

    /// Gives a slot back.
    pub(super) fn give(&mut self, number: u16) {
        self.slots[usize::from(number)].waits = Waits::Free;
        self.free.push(number);
    }

    /// Writes a command into its capsule, which is returned.
    pub(super) fn write(&self, number: u16, command: &Command) -> Slice<'_> {
        let capsule = piece(&self.commands, number, COMMAND);
        capsule.write(command.as_bytes());
        capsule
    }

    /// Posts the Receive of a place.
    pub(super) fn post_receive(&self, place: u16) -> Result<(), PostError> {
        self.endpoint.post_receive(piece(&self.responses, place, RESPONSE), place.into())
    }

    /// The response at a place.
    pub(super) fn response(&self, place: u16) -> Completion {
        let mut response = Completion::new_zeroed();
        piece(&self.responses, place, RESPONSE).read(response.as_mut_bytes());
        response
    }
}

/// A piece of memory that has as many as the queue has entries.
fn piece(memory: &Region, number: u16, len: usize) -> Slice<'_> {
    let at = usize::from(number) * len;
    memory.slice(at..at + len)
}
