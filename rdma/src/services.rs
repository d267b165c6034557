//! Datagram services that are offered: by one endpoint, which the agent's upcall names to whoever
//! asks, or by a consumer that answers each request with an endpoint of its choice.

use alloc::sync::Arc;
use core::task::Waker;
use core::time::Duration;

use kernel_agent::{ListenId, ResolutionAnswer, ResolutionRequestId, Transports};
use platform::heap;
use roce::cm::sidr::{self, Status};

use crate::address::{Address, Service};
use crate::arrivals::Arrivals;
use crate::datagram::DatagramEndpoint;
use crate::error::{AnswerError, CreateError};
use crate::nic::{Inner as NicInner, Nic, ServiceHandle};
use crate::private_data::PrivateData;

/// A service, in the table of its opening.
#[expect(clippy::large_enum_variant, reason = "each has an allocation of its own")]
pub(crate) enum Offered {
    Endpoint(OfEndpoint),
    Consumer(Arc<Arrivals<Waiting>>),
}

/// How peers reach the endpoint that offers a service.
pub(crate) struct OfEndpoint {
    /// Its handle.
    endpoint: u64,
    number: u32,
    key: u32,
    data: PrivateData,
}

/// A peer's request for a service.
pub(crate) struct Waiting {
    pub(crate) request: ResolutionRequestId,
    pub(crate) from: Address,
    pub(crate) data: PrivateData,
}

pub(crate) fn nothing(status: Status) -> ResolutionAnswer<'static> {
    ResolutionAnswer { status, qpn: 0, qkey: 0, private_data: &[] }
}

/// Answers a peer's request in the upcall. One that cannot be answered is forgotten: the peer asks
/// again.
pub(crate) fn answer(nic: &NicInner, request: ResolutionRequestId, answer: &ResolutionAnswer<'_>) {
    let Ok(client) = nic.client() else { return };
    if client.answer_resolution(request, answer).is_err() {
        client.disregard_resolution(request);
    }
}

impl Offered {
    /// Wakes who waits for requests.
    pub(crate) fn wake(&self) {
        if let Offered::Consumer(arrivals) = self {
            arrivals.wake();
        }
    }

    /// A peer asks for the service. In the dispatcher thread.
    pub(crate) fn asked(&self, nic: &NicInner, waiting: Waiting) {
        let request = waiting.request;
        match self {
            Offered::Endpoint(own) => answer(nic, request, &own.answer(nic)),
            Offered::Consumer(arrivals) => {
                // Of a service that has gone, or that has too many requests, the peer asks again.
                if let (Err(_), Ok(client)) = (arrivals.add(waiting), nic.client()) {
                    client.disregard_resolution(request);
                }
            }
        }
    }
}

impl OfEndpoint {
    fn answer(&self, nic: &NicInner) -> ResolutionAnswer<'_> {
        match nic.endpoint(self.endpoint) {
            Some(_) => ResolutionAnswer {
                status: Status::Valid,
                qpn: self.number,
                qkey: self.key,
                private_data: self.data.bytes(),
            },
            None => nothing(Status::NoQp),
        }
    }
}

/// The consumer's part of a service: it is offered until this is dropped.
struct Offer {
    handle: ServiceHandle,
    listen: ListenId,
    nic: Nic,
}

impl Offer {
    fn new(opening: &Nic, service: Service, offered: Offered) -> Result<Offer, CreateError> {
        let nic = opening.inner();
        nic.transport.has_datagrams()?;
        let place = nic.services.offered.reserve()?;
        heap::room_for_arc::<Offered>()?;
        let handle = place.handle();
        // A request may come at once.
        place.fill(Arc::new(offered));
        let listen = nic.client().and_then(|client| {
            Ok(client.listen(service.of_datagrams(), Transports::empty(), handle.as_raw())?)
        });
        if listen.is_err() {
            nic.services.offered.remove(handle);
        }
        Ok(Offer { handle, listen: listen?, nic: opening.clone() })
    }

    fn end(&self) -> Result<(), kernel_agent::Error> {
        let nic = self.nic.inner();
        let stopped = nic.client().map_or(Ok(()), |client| client.stop_listening(self.listen));
        nic.services.offered.remove(self.handle);
        stopped
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        // Fails only if the device is dead, or if it was closed before.
        let _ = self.end();
    }
}

/// A service that an endpoint for datagrams offers, until this is dropped. If the endpoint is
/// dropped before, peers are told that the service has no endpoint.
#[must_use = "the service is offered only until this is dropped"]
pub struct DatagramService(Offer);

impl DatagramEndpoint {
    /// Offers a service: peers that ask for it ([`Nic::resolve`]) are told of this endpoint.
    pub fn serve(&self, service: impl Into<Service>) -> Result<DatagramService, CreateError> {
        self.serve_with(service, &[])
    }

    /// As [`DatagramEndpoint::serve`], with a few bytes for who asks: at most 136.
    pub fn serve_with(
        &self,
        service: impl Into<Service>,
        data: &[u8],
    ) -> Result<DatagramService, CreateError> {
        if data.len() > sidr::REP_PRIVATE_DATA_LEN {
            return Err(CreateError::OutOfRange("private data"));
        }
        let data = PrivateData::new(data);
        let own = OfEndpoint { endpoint: self.id(), number: self.number(), key: self.key(), data };
        let nic = self.domain().nic();
        Ok(DatagramService(Offer::new(nic, service.into(), Offered::Endpoint(own))?))
    }
}

impl DatagramService {
    pub(crate) fn end(&self) -> (&Nic, Result<(), kernel_agent::Error>) {
        (&self.0.nic, self.0.end())
    }
}

/// Takes peers' requests for a datagram service, until it is dropped: for a consumer that gives
/// each peer an endpoint of its own. Where all have the same, [`DatagramEndpoint::serve`] is less.
/// Peers whose requests wait when it is dropped are told that the service has no endpoint.
pub struct DatagramListener {
    arrivals: Arc<Arrivals<Waiting>>,
    offer: Offer,
}

impl Nic {
    /// Listens for requests for a datagram service.
    pub fn listen_for_datagrams(&self, service: impl Into<Service>) -> Result<DatagramListener, CreateError> {
        heap::room_for_arc::<Arrivals<Waiting>>()?;
        let arrivals = Arc::new(Arrivals::new(self.inner())?);
        let offer = Offer::new(self, service.into(), Offered::Consumer(arrivals.clone()))?;
        Ok(DatagramListener { arrivals, offer })
    }
}

impl DatagramListener {
    /// Has this waker woken each time that a request comes, as
    /// [`Listener::watch`](crate::Listener::watch) says.
    pub fn watch(&self, waker: Waker) {
        self.arrivals.watch(waker);
    }

    /// Waits for a request.
    pub async fn accept(&self) -> Result<ServiceRequest, CreateError> {
        core::future::poll_fn(|context| self.arrivals.waiters.poll(context, || self.look())).await
    }

    /// Blocks until a request comes.
    pub fn wait(&self) -> Result<ServiceRequest, CreateError> {
        // Without a deadline the wait does not time out.
        self.arrivals.waiters.wait_for(None, || self.look()).map_err(|_| CreateError::Closed)?
    }

    /// Blocks until a request comes, or the time is over; `None` then.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Option<ServiceRequest>, CreateError> {
        let deadline = self.offer.nic.inner().deadline(Some(timeout));
        self.arrivals.waiters.wait_for(deadline, || self.look()).ok().transpose()
    }

    /// Takes a request if one waits. Does not block.
    pub fn try_accept(&self) -> Option<ServiceRequest> {
        let waiting = self.arrivals.take()?;
        Some(ServiceRequest { nic: self.offer.nic.clone(), waiting, is_open: true })
    }

    fn look(&self) -> Option<Result<ServiceRequest, CreateError>> {
        self.try_accept().map(Ok).or_else(|| self.offer.nic.inner().ended().map(Err))
    }

    pub(crate) fn end(&self) -> (&Nic, Result<(), kernel_agent::Error>) {
        let stopped = self.offer.end();
        self.arrivals.close();
        while let Some(request) = self.try_accept() {
            drop(request);
        }
        (&self.offer.nic, stopped)
    }
}

impl Drop for DatagramListener {
    fn drop(&mut self) {
        // Fails only if the device is dead, or if it was closed before.
        let _ = self.end();
    }
}

/// A peer's request for a datagram service. If it is dropped the peer is told that the service has
/// no endpoint.
#[must_use = "who drops a request has no endpoint for the peer"]
pub struct ServiceRequest {
    nic: Nic,
    waiting: Waiting,
    is_open: bool,
}

impl ServiceRequest {
    /// Where the peer is.
    pub fn from(&self) -> Address {
        self.waiting.from
    }

    /// What the peer sent along.
    pub fn private_data(&self) -> &[u8] {
        self.waiting.data.bytes()
    }

    /// Tells the peer to send to this endpoint.
    pub fn answer(self, endpoint: &DatagramEndpoint) -> Result<(), AnswerError> {
        self.answer_with(endpoint, &[])
    }

    /// As [`ServiceRequest::answer`], with a few bytes for the peer: at most 136.
    pub fn answer_with(
        mut self,
        endpoint: &DatagramEndpoint,
        private_data: &[u8],
    ) -> Result<(), AnswerError> {
        if endpoint.domain().nic().inner().opening_number() != self.nic.inner().opening_number() {
            return Err(AnswerError::Foreign);
        }
        let (qpn, qkey) = (endpoint.number(), endpoint.key());
        let answered = self.reply(&ResolutionAnswer { status: Status::Valid, qpn, qkey, private_data });
        self.is_open = answered.is_err();
        answered
    }

    fn reply(&self, answer: &ResolutionAnswer<'_>) -> Result<(), AnswerError> {
        let nic = self.nic.inner();
        let client = nic.client().map_err(|_| AnswerError::DeviceDead)?;
        nic.ended().map_or(Ok(()), Err::<(), AnswerError>)?;
        Ok(client.answer_resolution(self.waiting.request, answer)?)
    }
}

impl Drop for ServiceRequest {
    fn drop(&mut self) {
        if self.is_open {
            answer(self.nic.inner(), self.waiting.request, &nothing(Status::NoQp));
        }
    }
}
