//! Endpoints: how they are built, what they are asked to do, and their end.
//!
//! Locks: those of `connection` and `request`; posting takes the lock of the send queue's slot, or
//! of the receive queue, in the agent.

use alloc::sync::{Arc, Weak};
use core::hint::cold_path;
use core::task::Waker;

use kernel_agent::{
    Posted, Qp, QpAttributes, QpType, Remote, Segment, SegmentLimits, SendFlags, SendSlot, Shadow, SlotParams,
};
use platform::sync::atomic::{AtomicBool, Ordering};
use platform::{Privileged, heap};
use roce::cm::ReadDepths;

use crate::completion::tag;
use crate::connection::Connection;
use crate::datagram::Headers;
use crate::error::{CreateError, PostError, RequestError};
use crate::memory::{Domain, OwnPd, RemoteMemory, Slice, WorkQueue};
use crate::nic::{EndpointHandle, Inner as NicInner};
use crate::queue::{Inner as QueueInner, Queue};
use crate::request::{Cells, Request};
use crate::shared::SharedReceives;
use crate::watch::Watch;
use crate::work::{Kind, Local, Slices, Work};

/// How many Sends and RDMA operations, and how many Receives, an endpoint has room for by default.
const DEPTH: u32 = 16;
/// How many RDMA Reads and atomic operations an endpoint has outstanding, and serves, by default.
const READS: u8 = 16;

/// Chooses the size of an endpoint: see [`Domain::endpoint`].
#[derive(Clone)]
#[must_use = "an endpoint is made by `build`"]
pub struct Builder<'a> {
    domain: &'a Domain,
    sends: u32,
    receives: u32,
    segments: u32,
    reads: u8,
    served: Option<u8>,
    queue: Option<Queue>,
    receive_queue: Option<Queue>,
    watch: Option<Waker>,
    shared: Option<SharedReceives>,
    privileged: Option<Privileged>,
    starts: bool,
}

impl<'a> Builder<'a> {
    pub(crate) fn new(domain: &'a Domain) -> Builder<'a> {
        Builder {
            domain,
            sends: DEPTH,
            receives: DEPTH,
            segments: 1,
            reads: READS,
            served: None,
            queue: None,
            receive_queue: None,
            watch: None,
            shared: None,
            privileged: None,
            starts: true,
        }
    }

    /// How many Sends, RDMA and atomic operations can be outstanding: 16 unless it is set.
    pub fn sends(self, sends: u32) -> Builder<'a> {
        Builder { sends, ..self }
    }

    /// How many Receives can be outstanding: 16 unless it is set.
    pub fn receives(self, receives: u32) -> Builder<'a> {
        Builder { receives, ..self }
    }

    /// How many slices a request can have: one unless it is set.
    pub fn segments(self, segments: u32) -> Builder<'a> {
        Builder { segments, ..self }
    }

    /// How many RDMA Reads and atomic operations are served at a time, and how many of its own are
    /// outstanding: 16 unless it is set, or what the NIC can do.
    pub fn reads(self, reads: u8) -> Builder<'a> {
        Builder { reads, ..self }
    }

    /// How many RDMA Reads and atomic operations of the peer it serves at a time: as many as it has
    /// outstanding itself, unless this is set.
    pub fn served_reads(self, reads: u8) -> Builder<'a> {
        Builder { served: Some(reads), ..self }
    }

    /// Where its requests end: a queue that several endpoints can share. Without this it has one of
    /// its own ([`Endpoint::queue`]). The queue has to have room for all that can be outstanding.
    pub fn queue(self, queue: &Queue) -> Builder<'a> {
        Builder { queue: Some(queue.clone()), ..self }
    }

    /// Where its Receives end, if not where its other requests do: for who sleeps until a message
    /// comes, and not until one was sent. Such Receives are posted, or shared; they cannot be
    /// started.
    pub fn receive_queue(self, queue: &Queue) -> Builder<'a> {
        Builder { receive_queue: Some(queue.clone()), ..self }
    }

    /// Has this waker woken at each change of the endpoint's connection: see
    /// [`Endpoint::is_connected`], [`Endpoint::is_closed`].
    pub fn watch(self, waker: Waker) -> Builder<'a> {
        Builder { watch: Some(waker), ..self }
    }

    /// Takes messages into the buffers of shared receives, in place of Receives of its own.
    /// [`Queue::poll`] returns the completions of those: use one queue for all endpoints that
    /// share.
    pub fn shared(self, receives: &SharedReceives) -> Builder<'a> {
        Builder { shared: Some(receives.clone()), ..self }
    }

    /// All its requests are posted, and polled. None can be started, so nothing is kept for those
    /// who would wait: some hundred bytes for each request that can be outstanding.
    pub fn posted_only(self) -> Builder<'a> {
        Builder { starts: false, ..self }
    }

    /// Lets requests name memory by its bus address ([`Domain::direct`]).
    pub fn privileged(self, privileged: Privileged) -> Builder<'a> {
        Builder { privileged: Some(privileged), ..self }
    }

    /// Makes the endpoint, which takes Receives from now on. Blocks for the device.
    pub fn build(self) -> Result<Endpoint, CreateError> {
        let (domain, shared) = (self.domain.clone(), self.shared.clone());
        let (inner, [queue, receive_queue]) = self.make(None)?;
        Ok(Endpoint { inner, queue, receive_queue, domain, _shared: shared })
    }

    /// The domain that the endpoint will be in.
    pub(crate) fn domain(&self) -> &Domain {
        self.domain
    }

    /// How many Receives can be outstanding.
    pub(crate) fn depth(&self) -> u32 {
        self.receives
    }

    /// Makes an endpoint: for datagrams with `datagrams`, which are its queue key and the headers
    /// of its Receives. With it come the queues where its requests and its Receives end.
    pub(crate) fn make(
        self,
        datagrams: Option<(u32, Headers)>,
    ) -> Result<(Arc<Inner>, [Queue; 2]), CreateError> {
        let Builder { domain, sends, receives, segments, reads, served, queue, .. } = self;
        let Builder { receive_queue, watch, shared, privileged, starts, .. } = self;
        let nic = domain.nic().inner();
        if datagrams.is_some() {
            nic.transport.has_datagrams()?;
        }
        let receives = if shared.is_some() { 0 } else { receives };
        let entries = sends.checked_add(receives).ok_or(CreateError::OutOfRange("depth"))?;
        let given = queue.iter().chain(&receive_queue);
        if given.into_iter().any(|queue| !Arc::ptr_eq(&queue.inner().nic, nic)) {
            return Err(CreateError::Foreign);
        }
        let queue = match queue {
            Some(queue) => queue,
            None => {
                // Any of the shared buffers may be taken for this endpoint.
                let shared = shared.as_ref().map_or(0, SharedReceives::count);
                Queue::create(domain.nic(), entries.saturating_add(shared))?
            }
        };
        let receive_queue = receive_queue.unwrap_or_else(|| queue.clone());
        let most = nic.agent().identity().max_rd_atomic.min(u8::MAX.into()) as u8;
        let place = nic.endpoints.reserve()?;
        let handle = place.handle().as_raw();
        let cells = Cells::new(if starts { entries } else { 0 })?;
        let slot: Arc<SendSlot> = Arc::default();
        // The header of a datagram has a segment of its own. Datagrams do not take the fast path.
        let (qp_type, headers, fast) = match &datagrams {
            None => (nic.transport.queue_pair(), 0, segments),
            Some(_) => (QpType::Ud, 1, 0),
        };
        let limits = SegmentLimits { send: fast, write: fast, read: fast };
        let qp = nic.client()?.create_qp(&QpAttributes {
            qp_type,
            privileged,
            pd: domain.pd(),
            send_cq: queue.inner().cq(),
            receive_cq: receive_queue.inner().cq(),
            srq: shared.as_ref().map(SharedReceives::srq),
            max_send_requests: sends,
            max_send_segments: segments,
            max_receive_requests: receives,
            max_receive_segments: segments.saturating_add(headers),
            max_message: 0,
            context: handle,
            owner: 0,
            reads_write: false,
            slot: Some((SlotParams { slot: &slot, handle, closed: 0 }, limits)),
        })?;
        let ready = match &datagrams {
            None => qp.to_init(nic.transport.rights()),
            Some((key, _)) => qp.start_datagrams(*key),
        };
        let ready = ready.map_err(CreateError::from);
        if let Err(error) = ready.and_then(|()| Ok(heap::room_for_arc::<(Inner, Weak<Inner>)>()?)) {
            let _ = qp.destroy();
            return Err(error);
        }
        let depths = ReadDepths {
            initiator_depth: reads.min(most),
            responder_resources: served.unwrap_or(reads).min(most),
        };
        let inner = Arc::new(Inner {
            nic: nic.clone(),
            queue: queue.inner().clone(),
            handle,
            slot,
            qp,
            cells,
            connection: Connection::new(nic.agent().platform(), depths, Watch::of(watch)),
            headers: datagrams.map(|(_, headers)| headers),
            receive_queue: receive_queue.inner().clone(),
            has_failed: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        });
        place.fill(Arc::new(Arc::downgrade(&inner)));
        if let Some(error) = nic.ended() {
            // Its death may have been reported before the endpoint was in the table.
            inner.connection.fail(error);
        }
        Ok((inner, [queue, receive_queue]))
    }
}

pub(crate) struct Inner {
    nic: Arc<NicInner>,
    pub(crate) queue: Arc<QueueInner>,
    pub(crate) handle: u64,
    slot: Arc<SendSlot>,
    pub(crate) qp: Arc<Qp>,
    pub(crate) cells: Cells,
    /// An endpoint for datagrams never has one.
    pub(crate) connection: Connection,
    /// What the headers of datagrams are put into; only if it takes datagrams.
    pub(crate) headers: Option<Headers>,
    /// Where its Receives end.
    pub(crate) receive_queue: Arc<QueueInner>,
    /// A request has failed: what was posted behind it may not have been executed.
    pub(crate) has_failed: AtomicBool,
    /// The queue pair was destroyed: the device accesses nothing for it any more.
    ended: AtomicBool,
}

impl Inner {
    pub(crate) fn nic(&self) -> &Arc<NicInner> {
        &self.nic
    }

    /// The slot of its send queue, and the handle that opens it.
    #[inline(always)]
    pub(crate) fn slot(&self) -> (&SendSlot, u64) {
        (&self.slot, self.handle)
    }

    /// Where the requests of one of its work queues end.
    pub(crate) fn queue_of(&self, work_queue: WorkQueue) -> &Arc<QueueInner> {
        match work_queue {
            WorkQueue::Send => &self.queue,
            WorkQueue::Receive => &self.receive_queue,
        }
    }

    /// Whether requests of it end in this queue.
    pub(crate) fn ends_in(&self, queue: &Arc<QueueInner>) -> bool {
        [&self.queue, &self.receive_queue].into_iter().any(|own| Arc::ptr_eq(own, queue))
    }

    /// Up to which request each of its queues has been posted.
    pub(crate) fn posted(&self) -> Posted {
        self.qp.posted()
    }

    /// Whether all requests that had been posted to a work queue by then have ended.
    pub(crate) fn is_past(&self, work_queue: WorkQueue, posted: Posted) -> bool {
        self.ended.load(Ordering::Acquire)
            || match work_queue {
                WorkQueue::Send => self.qp.sends_are_past(posted),
                WorkQueue::Receive => self.qp.receives_are_past(posted),
            }
    }

    /// Whether all requests that had been posted to the send queue by then have been executed with
    /// success.
    pub(crate) fn has_executed(&self, posted: Posted) -> bool {
        if !self.qp.sends_are_past(posted) {
            return false;
        }
        // Whoever takes the completion of a failure notes it under the lock of the stage.
        self.queue.settle();
        !self.has_failed.load(Ordering::Acquire)
    }

    /// Ends all started requests.
    pub(crate) fn end_requests(&self, error: RequestError) {
        self.cells.end_all(error, |task| {
            self.queue.task_is_woken();
            task.wake();
        });
        self.queue.wake_threads();
    }

    /// Destroys the queue pair, unless that was done. What is outstanding ends with `Flushed`.
    pub(crate) fn close(&self) -> Result<(), kernel_agent::Error> {
        if self.ended.load(Ordering::Acquire) {
            return Ok(());
        }
        self.nic().disconnect(self.connection.current());
        // The consumer may still poll what has completed: buffers of shared receives are among it.
        let _ = self.qp.to_error();
        self.queue.drain();
        self.receive_queue.drain();
        // Fails only if the device is dead; then the memory that it may access is kept.
        let destroyed = self.qp.destroy();
        self.ended.store(true, Ordering::Release);
        if let Some(headers) = &self.headers {
            headers.end();
        }
        // Only now: the drop of a region asks the endpoints that it finds in this table.
        self.nic().endpoints.remove(EndpointHandle::from_raw(self.handle));
        self.connection.end();
        self.end_requests(RequestError::Flushed);
        self.nic().dropped.sweep(self.nic().agent());
        self.nic().dropped.wake_closers();
        destroyed
    }

    /// The fast path takes one slice without immediate data, of memory that this endpoint was the
    /// first to use. There is no call on it, so the compiler saves no registers for one.
    #[inline(always)]
    fn post(&self, work: Work<'_>, more: u32, domain: &OwnPd) -> Result<(), PostError> {
        if let (Local::One(slice), None) = (work.local, work.immediate)
            && slice.memory.is_first_used_by(self.handle, WorkQueue::Send)
        {
            let make = || Some((work.kind.transfer(work.flags, work.id, more)?, slice.segment(domain)?));
            if self.slot.post_single(self.handle, |limits| limits.send > 0, make).is_some() {
                return Ok(());
            }
        }
        cold_path();
        self.post_on(work, more, domain)
    }

    /// Goes on with what [`Inner::post`] does not post at once: memory that another endpoint was
    /// the first to use takes the fast path here. The request comes by value, and there is one
    /// call: so the compiler makes it in memory only on the way here.
    #[inline(never)]
    fn post_on(&self, work: Work<'_>, more: u32, domain: &OwnPd) -> Result<(), PostError> {
        if let (Local::One(slice), None) = (work.local, work.immediate) {
            let was_tried = slice.memory.is_first_used_by(self.handle, WorkQueue::Send);
            slice.memory.used_by(self.handle, WorkQueue::Send);
            let make = || Some((work.kind.transfer(work.flags, work.id, more)?, slice.segment(domain)?));
            if !was_tried && self.slot.post_single(self.handle, |limits| limits.send > 0, make).is_some() {
                return Ok(());
            }
        } else {
            let slices = work.local.slices();
            slices.iter().for_each(|slice| slice.memory.used_by(self.handle, WorkQueue::Send));
        }
        self.post_slowly(work, more, domain)
    }

    /// Posts any request, or finds the reason why it cannot be posted. Its memory is noted.
    #[cold]
    #[inline(never)]
    fn post_slowly(&self, work: Work<'_>, more: u32, domain: &OwnPd) -> Result<(), PostError> {
        use kernel_agent::Operation;
        let is_extension = work.immediate.is_some() || work.kind.is_atomic();
        if is_extension && !self.nic.transport.has_extensions() {
            return Err(PostError::Unsupported);
        }
        let slices = work.local.slices();
        let remote = |memory: RemoteMemory| Remote { addr: memory.addr, key: memory.key };
        let sink = || {
            let segment = slices.first().and_then(|slice| slice.segment(domain));
            segment.filter(|segment| segment.length == 8).ok_or(PostError::BadSlice)
        };
        let (kind, operation, slices) = match work.kind {
            Kind::SendInvalidate(key) => (tag::SEND, Operation::SendInvalidate { key }, slices),
            Kind::Send => (tag::SEND, Operation::Send { immediate: work.immediate }, slices),
            Kind::Write(to) => {
                (tag::WRITE, Operation::Write { to: remote(to), immediate: work.immediate }, slices)
            }
            Kind::Read(from) => (tag::READ, Operation::Read { from: remote(from) }, slices),
            Kind::CompareSwap { at, compare, swap } => {
                let operation = Operation::CompareSwap { remote: remote(at), sink: sink()?, compare, swap };
                (tag::ATOMIC, operation, &slices[..0])
            }
            Kind::FetchAdd { at, add } => {
                (tag::ATOMIC, Operation::FetchAdd { remote: remote(at), sink: sink()?, add }, &slices[..0])
            }
        };
        let shadow = Shadow { cookie: work.id, data: kind | more };
        let request = kernel_agent::Request { operation, flags: work.flags, shadow };
        self.qp.post(&request, slices, |slice| slice.segment(domain))?;
        Ok(())
    }

    #[inline(always)]
    fn post_receive(&self, into: Local<'_>, shadow: Shadow, domain: &OwnPd) -> Result<(), PostError> {
        if let Local::One(slice) = into
            && slice.memory.is_first_used_by(self.handle, WorkQueue::Receive)
            && self.qp.post_single_receive(|| slice.segment(domain), shadow).is_some()
        {
            return Ok(());
        }
        cold_path();
        self.post_receive_slowly(into, shadow, domain)
    }

    #[inline(never)]
    fn post_receive_slowly(&self, into: Local<'_>, shadow: Shadow, domain: &OwnPd) -> Result<(), PostError> {
        let slices = into.slices();
        slices.iter().for_each(|slice| slice.memory.used_by(self.handle, WorkQueue::Receive));
        let segment = |slice: &Slice<'_>| -> Option<Segment> { slice.segment(domain) };
        Ok(self.qp.post_receive(false, slices, segment, shadow)?)
    }

    /// Starts what `post` posts. If there is no room, takes what has completed, and tries once
    /// more: the consumer may have dropped the requests that have ended.
    pub(crate) fn start_by(
        self: &Arc<Inner>,
        post: impl Fn(u64) -> Result<(), PostError>,
    ) -> Result<Request, PostError> {
        if self.cells.is_none() {
            return Err(PostError::NotStarted);
        }
        self.try_to_start(&post).or_else(|error| match error {
            PostError::Full => {
                self.queue.drain();
                self.try_to_start(&post)
            }
            error => Err(error),
        })
    }

    fn try_to_start(
        self: &Arc<Inner>,
        post: impl Fn(u64) -> Result<(), PostError>,
    ) -> Result<Request, PostError> {
        let id = self.cells.take().ok_or(PostError::Full)?;
        match post(id) {
            Ok(()) => Ok(Request::new(self.clone(), id)),
            Err(error) => {
                self.cells.give_back(id);
                Err(error)
            }
        }
    }
}

/// One end of a reliable connection.
///
/// It takes Receives as soon as it is built, and other requests while it is connected. It has one
/// connection in its life. Dropping it ends the connection; requests that are outstanding then end
/// with [`RequestError::Flushed`], and their memory is free again. A drop blocks for the device.
///
/// Requests are carried out in the order in which they are posted. All calls may be made by any
/// thread.
pub struct Endpoint {
    pub(crate) inner: Arc<Inner>,
    queue: Queue,
    receive_queue: Queue,
    domain: Domain,
    /// Lives as long as the endpoint.
    _shared: Option<SharedReceives>,
}

impl Endpoint {
    /// The number by which completions name the endpoint.
    pub fn id(&self) -> u64 {
        self.inner.handle
    }

    /// The number of its queue pair, by which packets and captures name it.
    pub fn number(&self) -> u32 {
        self.inner.qp.qpn()
    }

    /// The domain whose regions its requests name.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Where its requests end.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Where its Receives end: with its other requests unless it was built otherwise.
    pub fn receive_queue(&self) -> &Queue {
        &self.receive_queue
    }

    #[inline(always)]
    pub(crate) fn pd(&self) -> &OwnPd {
        &self.domain.0.pd
    }

    /// Posts a request whose completion somebody takes from the queue ([`Queue::poll`]). Does not
    /// block.
    #[inline(always)]
    pub fn post(&self, work: Work<'_>) -> Result<(), PostError> {
        self.inner.post(work, 0, self.pd())
    }

    /// Posts a Receive whose completion, with the number `id`, somebody takes from the queue. Does
    /// not block.
    #[inline(always)]
    pub fn post_receive<'a>(&self, into: impl Into<Slices<'a>>, id: u64) -> Result<(), PostError> {
        self.inner.post_receive(into.into().0, Shadow { cookie: id, data: tag::RECEIVE }, self.pd())
    }

    /// Posts a request and returns it, for somebody who waits for its end. Does not block.
    pub fn start(&self, work: Work<'_>) -> Result<Request, PostError> {
        let work = Work { flags: work.flags.union(SendFlags::SIGNALED), ..work };
        self.inner.start_by(|id| self.inner.post(Work { id, ..work }, tag::STARTED, self.pd()))
    }

    /// Starts to send a message.
    pub fn send<'a>(&self, message: impl Into<Slices<'a>>) -> Result<Request, PostError> {
        self.start(Work::send(message))
    }

    /// Starts to write to a peer's memory.
    pub fn write<'a>(&self, from: impl Into<Slices<'a>>, to: RemoteMemory) -> Result<Request, PostError> {
        self.start(Work::write(from, to))
    }

    /// Starts to read a peer's memory.
    pub fn read<'a>(&self, into: impl Into<Slices<'a>>, from: RemoteMemory) -> Result<Request, PostError> {
        self.start(Work::read(into, from))
    }

    /// Starts to receive a message. Receives take messages in the order in which they were posted.
    pub fn receive<'a>(&self, into: impl Into<Slices<'a>>) -> Result<Request, PostError> {
        if !Arc::ptr_eq(&self.inner.queue, &self.inner.receive_queue) {
            return Err(PostError::NotStarted);
        }
        let into = into.into().0;
        self.inner.start_by(|id| {
            let shadow = Shadow { cookie: id, data: tag::RECEIVE | tag::STARTED };
            self.inner.post_receive(into, shadow, self.pd())
        })
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let _ = self.inner.close();
    }
}
