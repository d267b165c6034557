//! A NIC that a consumer has opened, and what the agent tells it.
//!
//! Everything that was made of an opening keeps it, so values can be dropped in any order. What
//! the consumer holds ([`Nic`], `Queue`, `Endpoint`, …) owns the agent's objects, and destroys them
//! when it is dropped. The agent's events reach the other half of each value, its `Inner`, by weak
//! references in tables. So the dispatcher thread, which may have one of these at hand for a
//! moment, never is the last owner of an object: what a consumer dropped is gone when the drop
//! returns.

use alloc::sync::{Arc, Weak};
use core::time::Duration;

use kernel_agent::{
    Agent, AsyncEvent, Client, CmEvent, ConnectionId, Death, ResolutionEvent, Upcalls, gid_index,
};
use platform::{Instant, heap};

use crate::Table;
use crate::adapter::{Adapter, Face, Opening};
use crate::address::{Address, Service, own_gid};
use crate::completion::Completion;
use crate::connection;
use crate::dropped::Dropped;
use crate::endpoint::Inner as Endpoint;
use crate::error::{CreateError, RequestError};
use crate::handle::{self, ObjectHandle, Tag};
use crate::handles;
use crate::listener::{Listener, ListenerInner};
use crate::memory::Domain;
use crate::queue::{Inner as QueueInner, Queue};
use crate::request::outcome;
use crate::resolve::Services;
use crate::transport::Transport;
use crate::waiters::Waiters;

handles! {
    /// The handle of an endpoint, as the agent's events name it.
    EndpointHandle = Tag::new(0);
    /// The handle of a completion queue.
    QueueHandle = Tag::new(1);
    /// The handle of a listener.
    ListenerHandle = Tag::new(2);
    /// The handle of a request for a datagram service.
    ResolutionHandle = Tag::new(3);
    /// The handle of a datagram service that is offered.
    ServiceHandle = Tag::new(4);
    /// The handle of a stream, or of a listener for streams.
    StreamHandle = Tag::new(5);
}

/// The most listeners of an opening.
const MAX_LISTENERS: u32 = 1024;

pub(crate) struct Inner {
    adapter: Adapter<Inner>,
    pub(crate) endpoints: Table<EndpointHandle, Weak<Endpoint>>,
    pub(crate) queues: Table<QueueHandle, Weak<QueueInner>>,
    pub(crate) listeners: Table<ListenerHandle, Weak<ListenerInner>>,
    pub(crate) services: Services,
    /// Who waits for a stream, or for one that a listener takes.
    pub(crate) streams: Table<StreamHandle, Weak<Waiters>>,
    pub(crate) dropped: Dropped,
    pub(crate) transport: Transport,
}

impl Inner {
    pub(crate) fn agent(&self) -> &Arc<Agent> {
        self.adapter.agent()
    }

    pub(crate) fn client(&self) -> Result<&Arc<Client>, CreateError> {
        self.adapter.client().ok_or(CreateError::DeviceDead)
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.agent().is_dead()
    }

    /// The error of what the death of the device has ended, if it is dead or closed.
    pub(crate) fn ended<E: From<Death>>(&self) -> Option<E> {
        self.agent().death().map(E::from)
    }

    /// The number that distinguishes the opening.
    pub(crate) fn opening_number(&self) -> u32 {
        self.adapter.number()
    }

    /// The moment at which a wait of this length ends; without a length it has no end.
    pub(crate) fn deadline(&self, timeout: Option<Duration>) -> Option<Instant> {
        crate::wait::deadline(&**self.agent().platform(), timeout)
    }

    pub(crate) fn endpoint(&self, handle: u64) -> Option<Arc<Endpoint>> {
        self.endpoints.get(EndpointHandle::from_raw(handle))?.upgrade()
    }

    pub(crate) fn endpoints(&self) -> impl Iterator<Item = Arc<Endpoint>> {
        self.endpoints.all().filter_map(|endpoint| endpoint.upgrade())
    }

    /// Ends a connection, if there is one.
    pub(crate) fn disconnect(&self, connection: Option<ConnectionId>) {
        if let (Some(connection), Ok(client)) = (connection, self.client()) {
            // It may be over already.
            let _ = client.disconnect(connection, &[]);
        }
    }

    /// Passes the outcome of a started request to who waits for it.
    pub(crate) fn pass(&self, completion: &Completion) {
        if let Some(endpoint) = self.endpoint(completion.endpoint)
            && let Some(task) = endpoint.cells.end(completion.id, outcome(completion))
        {
            endpoint.queue.task_is_woken();
            task.wake();
        }
    }
}

impl Upcalls for Inner {
    fn completion(&self, context: u64) {
        if let Some(queue) = self.queues.get(QueueHandle::from_raw(context)).and_then(|queue| queue.upgrade())
        {
            queue.announced();
        }
    }

    fn asynchronous(&self, event: AsyncEvent) {
        match event {
            // No completion of its endpoints will be seen any more.
            AsyncEvent::Cq { context } => {
                let Some(queue) =
                    self.queues.get(QueueHandle::from_raw(context)).and_then(|queue| queue.upgrade())
                else {
                    return;
                };
                queue.drain();
                for endpoint in self.endpoints().filter(|endpoint| endpoint.ends_in(&queue)) {
                    endpoint.connection.end();
                    endpoint.end_requests(RequestError::Flushed);
                }
                queue.wake_all();
            }
            // Of a queue pair that broke, the end of its connection follows.
            AsyncEvent::Qp { .. }
            | AsyncEvent::StreamEnded { .. }
            | AsyncEvent::Srq { .. }
            | AsyncEvent::Vi { .. }
            | AsyncEvent::Port { .. } => {}
        }
    }

    fn connection(&self, event: CmEvent<'_>) {
        let event = &event;
        match handle::claimed(event.context) {
            Some(EndpointHandle::TAG) => {
                if let Some(endpoint) = self.endpoint(event.context) {
                    connection::event(&endpoint, event);
                }
            }
            Some(ListenerHandle::TAG) => {
                match self
                    .listeners
                    .get(ListenerHandle::from_raw(event.context))
                    .and_then(|listener| listener.upgrade())
                {
                    Some(listener) => listener.event(event),
                    // The listener has gone meanwhile.
                    None => {
                        if let (kernel_agent::CmEventKind::Request { .. }, Ok(client)) =
                            (event.kind, self.client())
                        {
                            let _ = client.reject(event.connection, &[]);
                        }
                    }
                }
            }
            _ => {}
        }
    }

    fn stream(&self, context: u64) {
        let stream = self.streams.get(StreamHandle::from_raw(context));
        if let Some(stream) = stream.and_then(|stream| stream.upgrade()) {
            stream.wake();
        }
    }

    fn resolution(&self, event: ResolutionEvent<'_>) {
        self.services.event(self, &event);
    }

    fn catastrophic(&self, _death: Death) {
        self.adapter.disable(self);
    }
}

impl Face for Inner {
    fn adapter(&self) -> &Adapter<Inner> {
        &self.adapter
    }

    /// The agent closes the queues of a device that is dead.
    fn close_queues(&self) {}

    fn wake_all(&self) {
        let Some(death) = self.agent().death() else { return };
        for endpoint in self.endpoints() {
            endpoint.connection.fail(death.into());
            endpoint.end_requests(death.into());
        }
        for queue in self.queues.all().filter_map(|queue| queue.upgrade()) {
            queue.wake_all();
        }
        for listener in self.listeners.all().filter_map(|listener| listener.upgrade()) {
            listener.wake();
        }
        for stream in self.streams.all().filter_map(|stream| stream.upgrade()) {
            stream.wake();
        }
        self.services.end(death);
        self.dropped.wake_closers();
    }

    /// The consumer has dropped all others.
    fn destroy_objects(&self) {
        self.dropped.release_all(self.agent());
    }
}

/// The consumer's part of an opening.
pub(crate) struct Consumer(Arc<Inner>);

impl Consumer {
    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.0.adapter.dropped(&self.0);
    }
}

/// A NIC that is open. A clone is the same opening. Everything that is made of it keeps it open.
#[derive(Clone)]
pub struct Nic(pub(crate) Arc<Consumer>);

impl Nic {
    /// Opens the NIC of an agent, for connections of InfiniBand.
    pub fn open(agent: &Arc<Agent>) -> Result<Nic, CreateError> {
        Nic::open_over(agent, Transport::InfiniBand)
    }

    /// Opens the NIC of an agent, for connections of a transport.
    pub fn open_over(agent: &Arc<Agent>, transport: Transport) -> Result<Nic, CreateError> {
        transport.check(agent.identity().features)?;
        let opening = Opening::begin(agent.clone(), "rdma")?;
        let (number, identity) = (opening.number(), agent.identity());
        let endpoints = Table::new(number, identity.max_qps, 0)?;
        let queues = Table::new(number, identity.max_cqs, 0)?;
        let listeners = Table::new(number, MAX_LISTENERS, 0)?;
        let services = Services::new(number)?;
        let streams = Table::new(number, agent.config().max_streams, 0)?;
        heap::room_for_arc::<Consumer>()?;
        let inner = opening.open(u32::MAX, None, |adapter| Inner {
            adapter,
            endpoints,
            queues,
            listeners,
            services,
            streams,
            dropped: Dropped::new(agent.platform()),
            transport,
        })?;
        Ok(Nic(Arc::new(Consumer(inner))))
    }

    #[inline]
    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0.0
    }

    pub(crate) fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// The agent that owns the NIC.
    pub fn agent(&self) -> &Arc<Agent> {
        self.inner().agent()
    }

    /// The transport of its connections.
    pub fn transport(&self) -> Transport {
        self.inner().transport
    }

    /// Whether the device is dead: no request of this opening will be carried out any more.
    pub fn is_dead(&self) -> bool {
        self.inner().is_dead()
    }

    /// The port's addresses, for peers. The first one is the port's own, which every port has.
    pub fn addresses(&self) -> impl Iterator<Item = Address> {
        let gids = self.agent().identity().gids.iter();
        gids.filter(|gid| **gid != [0; 16]).map(|gid| Address::of(roce::Gid(*gid)))
    }

    /// The address for peers: the first that the host gave the port, or else the one that every
    /// port has.
    pub fn address(&self) -> Address {
        Address::of(own_gid(&self.agent().identity().gids))
    }

    /// Whether the port has this address.
    pub fn has(&self, address: Address) -> bool {
        gid_index(self.agent().identity(), address.gid()).is_some()
    }

    /// How many bytes a datagram can have.
    pub fn longest_datagram(&self) -> usize {
        self.agent().identity().mtu as usize
    }

    /// A protection domain. Blocks for the device.
    pub fn domain(&self) -> Result<Domain, CreateError> {
        Domain::new(self)
    }

    /// A completion queue that several endpoints can share, with room for so many requests that
    /// have ended. Blocks for the device.
    pub fn queue(&self, entries: u32) -> Result<Queue, CreateError> {
        Queue::create(self, entries)
    }

    /// Listens at a service.
    pub fn listen(&self, service: impl Into<Service>) -> Result<Listener, CreateError> {
        Listener::new(self, service.into())
    }
}
