//! Datagrams: endpoints that have no connection, what they send, and where it goes.
//!
//! The device puts 40 bytes in front of each datagram that it receives: the header, which names the
//! sender. They go to memory of the endpoint's own, a place for each Receive that can be
//! outstanding, so a Receive has the message alone. Whoever takes the completion from the queue
//! reads the header, before the place is used again.
//!
//! Locks: `Headers` (spins, leaf).

use alloc::sync::Arc;
use alloc::vec::Vec;

use kernel_agent::{DatagramAddress, Operation, SendFlags, Shadow, datagram_address, gid_index};
use platform::sync::Mutex;
use platform::{DmaBuffer, Privileged};
use roce::{QKey, Qpn};

use crate::address::{Address, HEADER, path_to, sender_gid};
use crate::completion::{Completion, tag};
use crate::endpoint::{Builder, Inner};
use crate::error::{CreateError, PostError, ResolveError};
use crate::memory::{Domain, Region, WorkQueue};
use crate::nic::{Inner as NicInner, Nic};
use crate::queue::Queue;
use crate::request::Request;
use crate::work::{Local, Slices, Work};

/// The queue key that an endpoint has unless its maker chooses: rdma-core's `RDMA_UDP_QKEY`, so
/// that Linux's programs can answer, and that a sender can be answered without more.
const KEY: u32 = 0x0123_4567;
/// Keys with this bit are for privileged consumers (IBTA 10.2.5).
const CONTROLLED: u32 = 1 << 31;
/// The most places of headers that a tag can name.
const MOST: u32 = tag::POOL >> tag::POOL_SHIFT;
/// The segments of a Receive in their order: 0 is the header, the others are the consumer's.
const SEGMENTS: [u8; 256] = {
    let mut all = [0; 256];
    let mut at = 0;
    while at < all.len() {
        all[at] = at as u8;
        at += 1;
    }
    all
};

/// Who sent a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sender {
    address: Address,
    number: u32,
}

impl Sender {
    pub(crate) const NOBODY: Sender = Sender { address: Address::of(roce::Gid::UNSPECIFIED), number: 0 };

    /// The port.
    pub fn address(&self) -> Address {
        self.address
    }

    /// The number of its endpoint ([`DatagramEndpoint::number`]).
    pub fn number(&self) -> u32 {
        self.number
    }
}

/// Where datagrams go: an endpoint for datagrams at some port, with the path there. It is good for
/// all endpoints of the opening of the NIC by which it was made ([`Nic::resolve`],
/// [`Nic::destination`], [`DatagramEndpoint::to`]). Nothing says whether the endpoint there has
/// gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    pub(crate) vector: DatagramAddress,
    /// The number of the opening.
    pub(crate) opening: u32,
}

impl Destination {
    /// The port.
    pub fn address(&self) -> Address {
        Address::of(roce::Gid(self.vector.gid))
    }

    /// The number of the endpoint there.
    pub fn number(&self) -> u32 {
        self.vector.qpn
    }
}

impl NicInner {
    /// The path to a port, from the nearest address, and the index of that.
    pub(crate) fn path(&self, address: Address) -> Result<(roce::Path, u8), ResolveError> {
        let identity = self.agent().identity();
        let path = path_to(identity, address.gid()).filter(|_| self.agent().port_up());
        let path = path.ok_or(ResolveError::NoPath)?;
        Ok((path, gid_index(identity, path.local_gid).ok_or(ResolveError::NoPath)?))
    }

    fn destination(&self, address: Address, number: u32, key: u32) -> Result<Destination, ResolveError> {
        let (path, source) = self.path(address)?;
        let number = Qpn::new(number).ok_or(ResolveError::BadNumber)?;
        Ok(Destination {
            vector: datagram_address(&path, source, number, QKey(key)),
            opening: self.opening_number(),
        })
    }

    /// Looks at the header of the Receive that has completed, and gives its place back. With the
    /// completion comes the place, and the number of the sender's endpoint.
    #[cold]
    pub(crate) fn take_header(&self, completion: &mut Completion, (place, number): (u32, u32)) {
        let Some(endpoint) = self.endpoint(completion.endpoint) else { return };
        let Some(headers) = &endpoint.headers else { return };
        let header = headers.take(place);
        if completion.result().is_ok() {
            let address = header.and_then(|header| sender_gid(&header)).map(Address::of);
            let sender = address.map(|address| Sender { address, number });
            completion.came_from(HEADER as u32, sender);
        }
    }
}

impl Nic {
    /// A destination that is known otherwise than by its service: the address of its port, and the
    /// number and the queue key of its endpoint ([`DatagramEndpoint::number`],
    /// [`DatagramBuilder::key`]).
    pub fn destination(&self, address: Address, number: u32, key: u32) -> Result<Destination, ResolveError> {
        self.inner().destination(address, number, key)
    }
}

/// The places of the headers of an endpoint.
pub(crate) struct Headers(Mutex<Places>);

struct Places {
    /// None when the endpoint has ended.
    buffer: Option<Arc<DmaBuffer>>,
    free: Vec<u32>,
}

impl Headers {
    fn new(memory: &Region, count: u32) -> Result<Headers, CreateError> {
        let mut free = Vec::new();
        free.try_reserve_exact(count as usize)?;
        free.extend((0..count).rev());
        Ok(Headers(Mutex::new(Places { buffer: Some(memory.buffer().clone()), free })))
    }

    /// A place for a Receive that is about to be posted.
    fn reserve(&self) -> Option<u32> {
        self.0.lock().free.pop()
    }

    /// The Receive was not posted.
    fn give_back(&self, place: u32) {
        // There is room for all.
        self.0.lock().free.push(place);
    }

    /// The Receive has ended: what is in its place, which is free again.
    fn take(&self, place: u32) -> Option<[u8; HEADER]> {
        let mut places = self.0.lock();
        let mut header = [0; HEADER];
        let read = places.buffer.as_ref()?.read(place as usize * HEADER, &mut header).ok();
        if places.free.len() < places.free.capacity() {
            places.free.push(place);
        }
        read.map(|()| header)
    }

    /// Lets go of the memory.
    pub(crate) fn end(&self) {
        let buffer = self.0.lock().buffer.take();
        drop(buffer);
    }
}

/// Chooses the size of an endpoint for datagrams: see [`Domain::datagrams`].
#[derive(Clone)]
#[must_use = "an endpoint is made by `build`"]
pub struct DatagramBuilder<'a> {
    builder: Builder<'a>,
    key: u32,
    privileged: bool,
}

impl<'a> DatagramBuilder<'a> {
    pub(crate) fn new(domain: &'a Domain) -> DatagramBuilder<'a> {
        DatagramBuilder { builder: Builder::new(domain), key: KEY, privileged: false }
    }

    /// How many Sends can be outstanding: 16 unless it is set.
    pub fn sends(self, sends: u32) -> DatagramBuilder<'a> {
        DatagramBuilder { builder: self.builder.sends(sends), ..self }
    }

    /// How many Receives can be outstanding: 16 unless it is set.
    pub fn receives(self, receives: u32) -> DatagramBuilder<'a> {
        DatagramBuilder { builder: self.builder.receives(receives), ..self }
    }

    /// How many slices a request can have: one unless it is set.
    pub fn segments(self, segments: u32) -> DatagramBuilder<'a> {
        DatagramBuilder { builder: self.builder.segments(segments), ..self }
    }

    /// Where its requests end, as [`Builder::queue`] says.
    pub fn queue(self, queue: &Queue) -> DatagramBuilder<'a> {
        DatagramBuilder { builder: self.builder.queue(queue), ..self }
    }

    /// Lets requests name memory by its bus address ([`Domain::direct`]).
    pub fn privileged(self, privileged: Privileged) -> DatagramBuilder<'a> {
        DatagramBuilder { builder: self.builder.privileged(privileged), privileged: true, ..self }
    }

    /// The queue key, which senders have to know: what comes with another one is dropped. All
    /// endpoints have the same one unless it is set, that of Linux's programs. Whoever resolves a
    /// service learns it ([`Nic::resolve`]). One with the highest bit is for privileged endpoints.
    pub fn key(self, key: u32) -> DatagramBuilder<'a> {
        DatagramBuilder { key, ..self }
    }

    /// Makes the endpoint, which sends and receives from now on. Blocks for the device.
    pub fn build(self) -> Result<DatagramEndpoint, CreateError> {
        let DatagramBuilder { builder, key, privileged } = self;
        if key & CONTROLLED != 0 && !privileged {
            return Err(CreateError::OutOfRange("queue key"));
        }
        let (domain, count) = (builder.domain().clone(), builder.depth());
        let bytes = (count.max(1) as usize).checked_mul(HEADER).filter(|_| count <= MOST);
        let headers = domain.region(bytes.ok_or(CreateError::OutOfRange("depth"))?)?;
        let (inner, [queue, _]) = builder.make(Some((key, Headers::new(&headers, count)?)))?;
        let longest = domain.nic().longest_datagram();
        Ok(DatagramEndpoint { inner, queue, headers, domain, key, longest })
    }
}

/// A message to a destination. [`DatagramEndpoint::post`] posts it for a consumer that polls,
/// [`DatagramEndpoint::start`] for one that waits.
#[derive(Clone, Copy)]
#[must_use = "a datagram is sent when it is posted or started"]
pub struct Datagram<'a> {
    work: Work<'a>,
    to: Destination,
}

impl<'a> Datagram<'a> {
    /// Sends a message to a destination.
    pub fn new(message: impl Into<Slices<'a>>, to: Destination) -> Datagram<'a> {
        Datagram { work: Work::send(message), to }
    }

    /// A number that comes back in the completion.
    pub fn id(self, id: u64) -> Datagram<'a> {
        Datagram { work: self.work.id(id), ..self }
    }

    /// Sends a number along, which the receiver finds in its completion.
    pub fn immediate(self, data: u32) -> Datagram<'a> {
        Datagram { work: self.work.immediate(data), ..self }
    }

    /// Makes the receiver's completion wake a waiter that asked for solicited ones only.
    pub fn solicited(self) -> Datagram<'a> {
        Datagram { work: self.work.solicited(), ..self }
    }

    /// Success makes no completion, as [`Work::unsignalled`] says.
    pub fn unsignalled(self) -> Datagram<'a> {
        Datagram { work: self.work.unsignalled(), ..self }
    }
}

/// An endpoint for datagrams: it sends to any destination, and receives from whoever knows its
/// queue key.
///
/// A datagram is at most one packet long ([`DatagramEndpoint::longest`]), and may be lost: nothing
/// reports whether one arrived. The device drops, and counts, one for which no Receive is posted,
/// and one that is longer than the first Receive, which then waits for the next.
///
/// Dropping the endpoint ends what is outstanding, as with an [`Endpoint`](crate::Endpoint). A drop
/// blocks for the device. All calls may be made by any thread.
pub struct DatagramEndpoint {
    pub(crate) inner: Arc<Inner>,
    queue: Queue,
    /// The device writes the headers there, so it goes after the endpoint has ended.
    headers: Region,
    domain: Domain,
    key: u32,
    longest: usize,
}

impl DatagramEndpoint {
    /// The number by which completions name the endpoint.
    pub fn id(&self) -> u64 {
        self.inner.handle
    }

    /// The number by which peers name the endpoint, with the address of its port
    /// ([`Nic::destination`]).
    pub fn number(&self) -> u32 {
        self.inner.qp.qpn()
    }

    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    /// The domain whose regions its requests name.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Where its requests end.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// How many bytes a datagram can have.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// The destination that answers to a sender go to. It is taken for granted that the sender's
    /// endpoint has the same queue key as this one.
    pub fn to(&self, sender: Sender) -> Result<Destination, ResolveError> {
        self.inner.nic().destination(sender.address, sender.number, self.key)
    }

    /// Posts a datagram whose completion somebody takes from the queue ([`Queue::poll`]). It
    /// completes when it is sent, whether it arrives or not. Does not block.
    pub fn post(&self, datagram: Datagram<'_>) -> Result<(), PostError> {
        self.send_as(datagram, 0)
    }

    /// Posts a Receive whose completion, with the number `id`, somebody takes from the queue. Does
    /// not block.
    pub fn post_receive<'a>(&self, into: impl Into<Slices<'a>>, id: u64) -> Result<(), PostError> {
        self.receive_as(into.into().0, id, 0)
    }

    /// Posts a datagram and returns it, for somebody who waits until it is sent. Does not block.
    pub fn start(&self, datagram: Datagram<'_>) -> Result<Request, PostError> {
        let Datagram { work, to } = datagram;
        let work = Work { flags: work.flags.union(SendFlags::SIGNALED), ..work };
        self.inner.start_by(|id| self.send_as(Datagram { work: Work { id, ..work }, to }, tag::STARTED))
    }

    /// Starts to send a datagram.
    pub fn send<'a>(&self, message: impl Into<Slices<'a>>, to: Destination) -> Result<Request, PostError> {
        self.start(Datagram::new(message, to))
    }

    /// Starts to receive a datagram. Receives take datagrams in the order in which they were
    /// posted. [`Done::sender`](crate::Done::sender) says who has sent it.
    pub fn receive<'a>(&self, into: impl Into<Slices<'a>>) -> Result<Request, PostError> {
        let into = into.into().0;
        self.inner.start_by(|id| self.receive_as(into, id, tag::STARTED))
    }

    fn send_as(&self, Datagram { work, to }: Datagram<'_>, more: u32) -> Result<(), PostError> {
        if to.opening != self.inner.nic().opening_number() {
            return Err(PostError::BadDestination);
        }
        let slices = work.local.slices();
        let length = slices.iter().try_fold(0usize, |sum, slice| sum.checked_add(slice.len()));
        if length.is_none_or(|length| length > self.longest) {
            return Err(PostError::TooLong(self.longest));
        }
        for slice in slices {
            slice.memory.used_by(self.inner.handle, WorkQueue::Send);
        }
        let operation = match work.immediate {
            None => Operation::Datagram { to: to.vector },
            Some(immediate) => Operation::DatagramImmediate { to: to.vector, immediate },
        };
        let shadow = Shadow { cookie: work.id, data: tag::SEND | more };
        let request = kernel_agent::Request { operation, flags: work.flags, shadow };
        self.inner.qp.post(&request, slices, |slice| slice.segment(&self.domain.0.pd))?;
        Ok(())
    }

    fn receive_as(&self, into: Local<'_>, id: u64, more: u32) -> Result<(), PostError> {
        let Some(headers) = &self.inner.headers else { return Err(PostError::NoReceives) };
        let slices = into.slices();
        let order = SEGMENTS.get(..=slices.len()).ok_or(PostError::TooManySlices)?;
        let place = headers.reserve().ok_or(PostError::Full)?;
        for slice in slices {
            slice.memory.used_by(self.inner.handle, WorkQueue::Receive);
        }
        let begin = place as usize * HEADER;
        let segment = |&at: &u8| match usize::from(at).checked_sub(1) {
            None => self.headers.get(begin..begin + HEADER)?.segment(&self.domain.0.pd),
            Some(at) => slices.get(at)?.segment(&self.domain.0.pd),
        };
        let shadow = Shadow { cookie: id, data: tag::DATAGRAM | more | place << tag::POOL_SHIFT };
        let posted = self.inner.qp.post_receive(false, order, segment, shadow);
        if posted.is_err() {
            headers.give_back(place);
        }
        Ok(posted?)
    }
}

impl Drop for DatagramEndpoint {
    fn drop(&mut self) {
        let _ = self.inner.close();
    }
}
