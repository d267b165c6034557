//! Listeners, and the requests for connections that they take.

use alloc::sync::{Arc, Weak};
use core::time::Duration;

use kernel_agent::{CmEvent, CmEventKind, ConnectionId, ListenId};
use platform::heap;
use platform::sync::Once;
use roce::cm::ReadDepths;

use crate::address::{Address, Service};
use crate::arrivals::{Arrivals, NotTaken};
use crate::connection::Connecting;
use crate::endpoint::Endpoint;
use crate::error::{ConnectError, CreateError};
use crate::nic::{Inner as NicInner, ListenerHandle, Nic};
use crate::private_data::PrivateData;

/// What waits at a listener.
pub(crate) struct Waiting {
    connection: ConnectionId,
    from: Address,
    depths: ReadDepths,
    data: PrivateData,
}

pub(crate) struct ListenerInner {
    nic: Arc<NicInner>,
    handle: u64,
    arrivals: Arrivals<Waiting>,
    listen: Once<ListenId>,
}

/// Takes peers' requests for connections with a service of a NIC, until it is dropped. Requests
/// that wait then are rejected.
pub struct Listener {
    inner: Arc<ListenerInner>,
    pub(crate) nic: Nic,
}

impl Listener {
    pub(crate) fn new(opening: &Nic, service: Service) -> Result<Listener, CreateError> {
        let nic = opening.inner();
        let place = nic.listeners.reserve()?;
        let arrivals = Arrivals::new(nic)?;
        heap::room_for_arc::<(ListenerInner, Weak<ListenerInner>)>()?;
        let handle = place.handle().as_raw();
        let inner = Arc::new(ListenerInner { nic: nic.clone(), handle, arrivals, listen: Once::new() });
        // A request may come at once.
        place.fill(Arc::new(Arc::downgrade(&inner)));
        let listener = Listener { inner, nic: opening.clone() };
        let listen = nic.client()?.listen(service.of_connections(), nic.transport.listens(), handle)?;
        listener.inner.listen.call_once(|| listen);
        Ok(listener)
    }

    /// Waits for a request.
    pub async fn accept(&self) -> Result<Incoming, CreateError> {
        core::future::poll_fn(|context| self.inner.arrivals.waiters.poll(context, || self.look())).await
    }

    /// Blocks until a request comes.
    pub fn wait(&self) -> Result<Incoming, CreateError> {
        // Without a deadline the wait does not time out.
        self.inner.arrivals.waiters.wait_for(None, || self.look()).map_err(|_| CreateError::Closed)?
    }

    /// Blocks until a request comes, or the time is over; `None` then.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Option<Incoming>, CreateError> {
        let deadline = self.nic.inner().deadline(Some(timeout));
        self.inner.arrivals.waiters.wait_for(deadline, || self.look()).ok().transpose()
    }

    /// Takes a request if one waits. Does not block.
    pub fn try_accept(&self) -> Option<Incoming> {
        let Waiting { connection, from, depths, data } = self.inner.arrivals.take()?;
        Some(Incoming { nic: self.nic.clone(), connection, from, depths, data, is_open: true })
    }

    fn look(&self) -> Option<Result<Incoming, CreateError>> {
        self.try_accept().map(Ok).or_else(|| self.nic.inner().ended().map(Err))
    }

    pub(crate) fn arrivals(&self) -> &Arrivals<Waiting> {
        &self.inner.arrivals
    }

    pub(crate) fn end(&self) -> Result<(), kernel_agent::Error> {
        let inner = &*self.inner;
        let stopped = match (inner.listen.get(), inner.nic.client()) {
            (Some(listen), Ok(client)) => client.stop_listening(*listen),
            _ => Ok(()),
        };
        inner.nic.listeners.remove(ListenerHandle::from_raw(inner.handle));
        inner.arrivals.close();
        while let Some(incoming) = self.try_accept() {
            drop(incoming);
        }
        stopped
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Fails only if the device is dead, or if it was closed before.
        let _ = self.end();
    }
}

impl ListenerInner {
    pub(crate) fn wake(&self) {
        self.arrivals.wake();
    }

    /// An event of a request that no endpoint has yet. In the dispatcher thread.
    pub(crate) fn event(&self, event: &CmEvent<'_>) {
        match event.kind {
            CmEventKind::Request { path, depths, .. } => {
                let waiting = Waiting {
                    connection: event.connection,
                    from: Address::of(path.remote_gid),
                    depths,
                    data: PrivateData::new(event.private_data),
                };
                let (Err(why), Ok(client)) = (self.arrivals.add(waiting), self.nic.client()) else { return };
                let _ = match why {
                    NotTaken::Closed => client.reject(event.connection, &[]),
                    NotTaken::Full => client.discard(event.connection),
                };
            }
            CmEventKind::Withdrawn => {
                self.arrivals.retain(|waiting| waiting.connection != event.connection);
            }
            _ => {}
        }
    }
}

/// A peer's request for a connection. Dropping it rejects it.
#[must_use = "a request that is dropped is rejected"]
pub struct Incoming {
    nic: Nic,
    connection: ConnectionId,
    from: Address,
    depths: ReadDepths,
    data: PrivateData,
    is_open: bool,
}

impl Incoming {
    /// Where the peer is.
    pub fn from(&self) -> Address {
        self.from
    }

    /// What the peer sent along.
    pub fn private_data(&self) -> &[u8] {
        self.data.bytes()
    }

    /// How many RDMA Reads and atomic operations the peer serves at a time.
    pub fn reads(&self) -> u8 {
        self.depths.responder_resources
    }

    /// Accepts the request with an endpoint.
    pub fn accept(self, endpoint: &Endpoint) -> Connecting {
        self.accept_with(endpoint, &[])
    }

    /// As [`Incoming::accept`], with a few bytes for the peer: at most 196.
    pub fn accept_with(mut self, endpoint: &Endpoint, private_data: &[u8]) -> Connecting {
        let client = self.nic.inner().client().map_err(|_| ConnectError::DeviceDead);
        let request = (self.connection, self.depths);
        let accepted = client.and_then(|client| endpoint.answer(client, request, private_data));
        self.is_open = accepted.is_err();
        Connecting::of(endpoint, accepted)
    }

    /// Rejects the request, with a few bytes for the peer: at most 148.
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), ConnectError> {
        self.is_open = false;
        let client = self.nic.inner().client().map_err(|_| ConnectError::DeviceDead)?;
        Ok(client.reject(self.connection, private_data)?)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if self.is_open
            && let Ok(client) = self.nic.inner().client()
        {
            // The peer may have given up.
            let _ = client.reject(self.connection, &[]);
        }
    }
}
