//! A virtual interface as an endpoint's work queues.
//!
//! A descriptor for each request and each Receive that can be outstanding lies in memory that
//! belongs to the endpoint, in a ring for each queue. So a post writes the descriptor in the next
//! place, and allocates nothing.
//!
//! What was posted with a request comes from `Ring::posted`, not from the descriptor, so that only
//! what the device states of the outcome is read from shared memory.
//!
//! Locks: a queue's `Ring` (spins), then the queue's lock of the agent.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use kernel_agent::descriptor::{AddressSegment, Control, DataSegment, Descriptor, Status, descriptor_len};
use kernel_agent::{
    Agent, Client, Completion, CompletionFlags, CompletionStatus, Connectable, DESCRIPTOR_ALIGN, LinkFlags,
    MemoryList, Operation, Pd, PostError, QpChanges, Region, Remote, Request, Segment, SendFlags, Shadow, Vi,
    ViAttributes, ViPostError, ViSide, ViTaken,
};
use platform::sync::Mutex;
use platform::{DmaBuffer, heap};

use super::queue::DescriptorQueue;

/// The bit of the word that is posted with a request ([`Completion::data`]) that says of a
/// completion: it is a failure of a virtual interface, and `detail` is its descriptor's status.
pub const FAILED: u32 = 1 << 8;

/// What was posted with a request.
#[derive(Clone, Copy, Default)]
struct Posted {
    shadow: Shadow,
    /// A success has a completion.
    signalled: bool,
    /// Bytes of its segments: no more were moved, whatever the device states.
    room: u32,
}

/// The descriptors of a queue.
struct Ring {
    /// Where the first one is in the memory.
    first: usize,
    /// Bytes from one to the next.
    step: usize,
    /// Segments of one at most.
    segments: usize,
    /// By descriptor, what was posted with it.
    posted: Box<[Posted]>,
    /// The next one.
    next: usize,
}

/// How large the queues of an endpoint are.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// Requests, and Receives, that can be outstanding.
    pub entries: [u32; 2],
    /// The most local segments of each.
    pub segments: [usize; 2],
}

/// See the module's documentation.
pub struct DescriptorEndpoint {
    vi: Arc<Vi>,
    agent: Arc<Agent>,
    handle: u64,
    region: Arc<Region>,
    memory: Arc<DmaBuffer>,
    rings: [Mutex<Ring>; 2],
    /// Those of the EVDs of the send queue and of the receive queue.
    queues: [Arc<DescriptorQueue>; 2],
    entries: [u32; 2],
}

impl Ring {
    fn new(first: usize, step: usize, segments: usize, entries: u32) -> Result<Ring, kernel_agent::Error> {
        let mut posted = Vec::new();
        posted.try_reserve_exact(entries as usize).map_err(|_| kernel_agent::Error::OutOfMemory)?;
        posted.resize(entries as usize, Posted::default());
        Ok(Ring { first, step, segments, posted: posted.into_boxed_slice(), next: 0 })
    }

    /// A descriptor.
    fn descriptor<'a>(&self, memory: &'a DmaBuffer, place: usize) -> Option<Descriptor<'a>> {
        Descriptor::at(memory, self.first + place * self.step, self.segments).ok()
    }
}

/// What a request asks of the device, as a descriptor says it; `None` for a request that virtual
/// interfaces do not have.
fn control(request: &Request) -> Option<(Control, Option<Remote>, Option<u32>)> {
    let (operation, remote, immediate) = match request.operation {
        Operation::Send { immediate } => (Control::empty(), None, immediate),
        Operation::Write { to, immediate: None } => (Control::RDMA_WRITE, Some(to), None),
        Operation::Read { from } => (Control::RDMA_READ, Some(from), None),
        _ => return None,
    };
    let mut control = operation;
    control.set(Control::IMMEDIATE, immediate.is_some());
    // The fence of VIA waits for all earlier requests, and so for the RDMA Reads among them.
    control.set(Control::QUEUE_FENCE, request.flags.contains(SendFlags::FENCE_READS));
    Some((control, remote, immediate))
}

/// Writes a descriptor, and returns the bytes of its segments. Fails if it has no room for them, or
/// if one is refused.
fn write<T>(
    descriptor: &Descriptor<'_>,
    (control, remote, immediate): (Control, Option<Remote>, Option<u32>),
    segments: &[T],
    segment: impl Fn(&T) -> Option<Segment>,
) -> Result<u32, PostError> {
    let first = usize::from(remote.is_some());
    let mut length = 0_u64;
    for (place, each) in (first..).zip(segments) {
        let Segment { addr, length: bytes, key } = segment(each).ok_or(PostError::Segment)?;
        length += u64::from(bytes);
        let data = DataSegment { address: addr, handle: key, length: bytes };
        descriptor.set_data(place, &data).map_err(|_| PostError::Segments)?;
    }
    if let Some(Remote { addr, key }) = remote {
        let to = AddressSegment { address: addr, handle: key, reserved: 0 };
        descriptor.set_address(&to).map_err(|_| PostError::Segments)?;
    }
    let count = u16::try_from(first + segments.len()).map_err(|_| PostError::Segments)?;
    descriptor.set_next(0, 0);
    descriptor.set_control(count, control);
    descriptor.set_reserved(0);
    descriptor.set_immediate(immediate.unwrap_or(0));
    // The device refuses a length that is not the sum of the segments' lengths.
    let room = length.min(u32::MAX.into()) as u32;
    descriptor.set_length(room);
    descriptor.set_status(Status::empty());
    Ok(room)
}

impl DescriptorEndpoint {
    /// Makes the virtual interface of the endpoint with this handle, and its descriptors. Its
    /// completions go to `queues`, which have room for them; if it fails, the caller gives the room
    /// back.
    pub fn create(
        client: &Arc<Client>,
        handle: u64,
        pd: &Arc<Pd>,
        attributes: &ViAttributes,
        sizes: &Sizes,
        queues: [&Arc<DescriptorQueue>; 2],
    ) -> Result<Arc<DescriptorEndpoint>, kernel_agent::Error> {
        use kernel_agent::Error;
        // A request may have an address segment before its data.
        let segments = [sizes.segments[0] + 1, sizes.segments[1]];
        let align = DESCRIPTOR_ALIGN as usize;
        let steps = segments.map(|segments| descriptor_len(segments).next_multiple_of(align));
        let [sends, receives] = sizes.entries;
        // Both factors have bounds far below the half of 64 bits.
        let lengths = [steps[0] * sends as usize, steps[1] * receives as usize];
        let rings = [
            Ring::new(0, steps[0], segments[0], sends)?,
            Ring::new(lengths[0], steps[1], segments[1], receives)?,
        ];
        let length = lengths[0] + lengths[1];
        let memory = DmaBuffer::new(client.agent().platform(), length, align)?;
        heap::room_for_arc::<DmaBuffer>()?;
        let memory = Arc::new(memory);
        let list = MemoryList::Contiguous { bus: memory.bus(), length: length as u64 };
        let rights = LinkFlags::LOCAL_READ | LinkFlags::LOCAL_WRITE;
        let register = || client.register(pd, rights, memory.addr() as u64, &list);
        let region = client.agent().registering(&memory, register)?;
        let cqs = queues.map(|queue| Some(queue.cq()));
        let vi = client.create_vi(pd, attributes, cqs, sizes.entries, handle).inspect_err(|_| {
            client.agent().release(memory.clone(), region.destroy());
        })?;
        let ep = DescriptorEndpoint {
            vi,
            agent: client.agent().clone(),
            handle,
            region,
            memory,
            rings: rings.map(Mutex::new),
            queues: queues.map(Arc::clone),
            entries: sizes.entries,
        };
        let ep = heap::arc(ep).map_err(|ep| {
            let _ = ep.end();
            Error::OutOfMemory
        })?;
        // Both may be the same one.
        let joined = ep.queues.iter().try_for_each(|queue| queue.join(handle, &ep));
        if let Err(error) = joined {
            let _ = ep.end();
            ep.leave();
            return Err(error);
        }
        Ok(ep)
    }

    fn ring(&self, side: ViSide) -> &Mutex<Ring> {
        let [send, receive] = &self.rings;
        match side {
            ViSide::Send => send,
            ViSide::Receive => receive,
        }
    }

    /// The memory of its descriptors.
    pub fn memory(&self) -> &Arc<DmaBuffer> {
        &self.memory
    }

    /// The number of the queue pair that it is.
    pub fn number(&self) -> u32 {
        self.vi.qpn()
    }

    /// What the agent connects.
    pub fn connectable(&self) -> Connectable {
        Connectable::from(&self.vi)
    }

    /// Requests and Receives whose completions were not taken.
    pub fn outstanding(&self) -> (u32, u32) {
        (self.vi.queued(ViSide::Send), self.vi.queued(ViSide::Receive))
    }

    /// Posts a request.
    pub fn post<T>(
        &self,
        request: &Request,
        segments: &[T],
        segment: impl Fn(&T) -> Option<Segment>,
    ) -> Result<(), PostError> {
        let form = control(request).ok_or(PostError::Kind)?;
        let signalled = request.flags.contains(SendFlags::SIGNALED);
        let posted = Posted { shadow: request.shadow, signalled, room: 0 };
        self.post_descriptor(ViSide::Send, posted, form, segments, segment)
    }

    /// Posts a Receive.
    pub fn post_receive<T>(
        &self,
        segments: &[T],
        segment: impl Fn(&T) -> Option<Segment>,
        shadow: Shadow,
    ) -> Result<(), PostError> {
        let posted = Posted { shadow, signalled: true, room: 0 };
        self.post_descriptor(ViSide::Receive, posted, (Control::empty(), None, None), segments, segment)
    }

    fn post_descriptor<T>(
        &self,
        side: ViSide,
        posted: Posted,
        form: (Control, Option<Remote>, Option<u32>),
        segments: &[T],
        segment: impl Fn(&T) -> Option<Segment>,
    ) -> Result<(), PostError> {
        let mut ring = self.ring(side).lock();
        // Descriptors are taken off in order and under this lock, so the next place is free if the
        // queue has room.
        if self.vi.queued(side) as usize >= ring.posted.len() {
            return Err(PostError::QueueFull);
        }
        let place = ring.next;
        let descriptor = ring.descriptor(&self.memory, place).ok_or(PostError::Segments)?;
        let room = write(&descriptor, form, segments, segment)?;
        *ring.posted.get_mut(place).ok_or(PostError::QueueFull)? = Posted { room, ..posted };
        let address = descriptor.address();
        self.vi.post(side, address, self.region.remote_key(), |_, _| ()).map_err(|why| match why {
            ViPostError::Full => PostError::QueueFull,
            ViPostError::Gone => PostError::Gone,
        })?;
        ring.next = if place + 1 < ring.posted.len() { place + 1 } else { 0 };
        Ok(())
    }

    /// Takes the oldest descriptor off a queue if it is complete. `Some(None)`: it was, and was to
    /// have no completion.
    pub fn take(&self, side: ViSide) -> Option<Option<Completion>> {
        let ring = self.ring(side).lock();
        let at = |address: u64| {
            let offset = (address as usize).checked_sub(self.memory.addr())?.checked_sub(ring.first)?;
            let place = offset / ring.step;
            Some((place, ring.descriptor(&self.memory, place)?))
        };
        let is_done = |address, _| at(address).is_some_and(|(_, descriptor)| descriptor.is_done());
        let taken = match self.vi.take(side, is_done) {
            ViTaken::Lost => {
                self.vi.skip_lost(side);
                self.vi.take(side, is_done)
            }
            taken => taken,
        };
        let ViTaken::Done { address, .. } = taken else { return None };
        // The address is the one that was posted, which the agent remembers.
        let (place, descriptor) = at(address)?;
        let posted = *ring.posted.get(place)?;
        // Acquire: what is read afterwards is final.
        let status = descriptor.status();
        let mut flags = CompletionFlags::empty();
        if side == ViSide::Receive {
            // Each Receive notifies: VIA has no bit for a Send that asks for it.
            flags |= CompletionFlags::RECEIVE | CompletionFlags::SOLICITED;
            flags.set(CompletionFlags::IMMEDIATE, status.contains(Status::IMMEDIATE));
            // A peer's consumer of VIPL may write with immediate data. `detail`, the Write's
            // length, stays 0: VIA does not tell it.
            let operation = status.intersection(Status::OP_MASK);
            flags.set(CompletionFlags::WRITE, operation == Status::OP_REMOTE_RDMA_WRITE);
        }
        let failed = failure(status);
        if failed.is_none() && !posted.signalled {
            return Some(None);
        }
        let (mut data, mut detail) = (posted.shadow.data, 0);
        if failed.is_some() {
            (data, detail) = (data | FAILED, status.bits());
        }
        Some(Some(Completion {
            status: failed.unwrap_or(CompletionStatus::Success),
            flags,
            context: self.handle,
            cookie: posted.shadow.cookie,
            data,
            qpn: self.number(),
            opcode: 0,
            length: descriptor.length().min(posted.room),
            immediate: descriptor.immediate(),
            detail,
        }))
    }

    /// The control field of the request that was posted last; `None` if there was none.
    pub fn last_control(&self) -> Option<Control> {
        let ring = self.ring(ViSide::Send).lock();
        let last = ring.next.checked_sub(1).unwrap_or(ring.posted.len() - 1);
        let descriptor = ring.descriptor(&self.memory, last)?;
        // Memory that was never used is zero, as is the length of its segments.
        Some(descriptor.control())
    }

    /// Changes attributes: those that virtual interfaces have.
    pub fn change(&self, changes: &QpChanges) -> Result<(), kernel_agent::Error> {
        let rights = LinkFlags::REMOTE_READ | LinkFlags::REMOTE_WRITE;
        match (changes.access.map(|access| access & rights), changes.max_message) {
            (None, None) => Ok(()),
            (access, longest) => self.vi.change(access, longest),
        }
    }

    /// Has everything flushed that is posted, and that will be.
    pub fn to_error(&self) -> Result<(), kernel_agent::Error> {
        self.vi.to_error()
    }

    /// Destroys the virtual interface, and ends its connection. When this returns, the device
    /// touches none of its descriptors, and its completions are lost that were not taken. Fails if
    /// it was destroyed before or if the device is dead.
    pub fn destroy(&self) -> Result<(), kernel_agent::Error> {
        let ended = self.end();
        if ended != Err(kernel_agent::Error::Gone) {
            self.leave();
            for (queue, entries) in self.queues.iter().zip(self.entries) {
                queue.give_back(entries);
            }
        }
        ended
    }

    /// Leaves the EVDs.
    fn leave(&self) {
        for queue in &self.queues {
            queue.leave(self.handle, self);
        }
    }

    /// Destroys what the agent has of it.
    fn end(&self) -> Result<(), kernel_agent::Error> {
        let destroyed = self.vi.destroy();
        if destroyed == Err(kernel_agent::Error::Gone) {
            return destroyed;
        }
        self.agent.release(self.memory.clone(), self.region.destroy());
        destroyed
    }
}

/// Whether a descriptor that is complete has failed, and whether it was only flushed. Which error
/// it is says the descriptor's status, which goes along.
fn failure(status: Status) -> Option<CompletionStatus> {
    let errors = status & Status::ERROR_MASK;
    if errors.is_empty() {
        None
    } else if errors == Status::DESC_FLUSHED_ERROR {
        Some(CompletionStatus::Flushed)
    } else {
        Some(CompletionStatus::LocalQpOperation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_bit_is_a_failure_and_only_that_of_a_flush_alone_says_so() {
        assert_eq!(failure(Status::DONE | Status::OP_RDMA_READ | Status::IMMEDIATE), None);
        assert_eq!(failure(Status::DONE | Status::DESC_FLUSHED_ERROR), Some(CompletionStatus::Flushed));
        for error in (Status::ERROR_MASK - Status::DESC_FLUSHED_ERROR).iter() {
            for other in [Status::empty(), Status::DESC_FLUSHED_ERROR] {
                let expected = Some(CompletionStatus::LocalQpOperation);
                assert_eq!(failure(Status::DONE | error | other), expected, "{error:?}");
            }
        }
    }
}
