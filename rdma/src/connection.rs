//! Connections: how an endpoint gets its one, and how that ends.
//!
//! InfiniBand's handshake has three messages: the active side confirms the peer's accept in the
//! agent's upcall, with no more RDMA Reads outstanding than the peer serves. That of iWARP has two,
//! and the agent does the rest.
//!
//! Locks: `state` (spins, leaf).

use alloc::sync::Arc;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;

use kernel_agent::{AcceptParams, Client, CmEvent, CmEventKind, ConnectParams, ConnectionId, Conversion};
use platform::Platform;
use platform::sync::atomic::{AtomicBool, Ordering};
use platform::sync::{Mutex, Once};
use roce::PathMtu;
use roce::cm::ReadDepths;
use roce::cm::rej::Reason;

use crate::address::{Address, Service, path_to};
use crate::endpoint::{Endpoint, Inner};
use crate::error::{ConnectError, TimedOut};
use crate::nic::Inner as NicInner;
use crate::private_data::PrivateData;
use crate::waiters::Waiters;
use crate::watch::Watch;

/// How long an attempt to connect may take unless its maker chooses.
const PATIENCE: Duration = Duration::from_secs(10);

/// How a connection has ended: see [`Endpoint::ending`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// The peer disconnected.
    ByPeer,
    /// This side disconnected.
    BySelf,
    /// It broke: a request of one of the sides failed, the peer vanished, or the device failed.
    Broken,
}

#[derive(Clone, Copy)]
enum State {
    New,
    /// Asked for, or accepted; the agent's number of it, once it is known.
    Pending(Option<ConnectionId>),
    Established(ConnectionId, PrivateData),
    /// It did not come about.
    Failed(ConnectError),
    /// It was established, and has ended.
    Over(PrivateData, Ending),
}

/// The connection of an endpoint.
pub(crate) struct Connection {
    state: Mutex<State>,
    waiters: Waiters,
    depths: ReadDepths,
    /// The consumer has disconnected it.
    left: AtomicBool,
    watch: Watch,
    /// What the peer sent along when it rejected.
    rejection: Once<PrivateData>,
}

impl Connection {
    pub(crate) fn new(platform: &Arc<dyn Platform>, depths: ReadDepths, watch: Watch) -> Connection {
        Connection {
            state: Mutex::new(State::New),
            waiters: Waiters::new(platform),
            depths,
            left: AtomicBool::new(false),
            watch,
            rejection: Once::new(),
        }
    }

    /// The agent's number of it, if it has one now.
    pub(crate) fn current(&self) -> Option<ConnectionId> {
        match *self.state.lock() {
            State::Pending(id) => id,
            State::Established(id, _) => Some(id),
            _ => None,
        }
    }

    /// Begins: an endpoint connects once.
    fn begin(&self) -> Result<(), ConnectError> {
        let mut state = self.state.lock();
        if !matches!(*state, State::New) {
            return Err(ConnectError::Used);
        }
        *state = State::Pending(None);
        Ok(())
    }

    /// Records the agent's number, unless an event was faster. False if the endpoint was
    /// disconnected meanwhile.
    fn asked(&self, id: ConnectionId) -> bool {
        let mut state = self.state.lock();
        if matches!(*state, State::Pending(None)) {
            *state = State::Pending(Some(id));
        }
        !matches!(*state, State::Failed(ConnectError::Closed))
    }

    /// The call that was to begin has failed: the endpoint is as before.
    fn undo(&self) {
        let mut state = self.state.lock();
        if matches!(*state, State::Pending(_)) {
            *state = State::New;
        }
    }

    /// Changes the state as `next` says, and wakes who waits.
    fn change(&self, next: impl FnOnce(State) -> Option<State>) {
        {
            let mut state = self.state.lock();
            let Some(next) = next(*state) else { return };
            *state = next;
        }
        self.waiters.wake();
        self.watch.wake();
    }

    fn establish(&self, id: ConnectionId, data: PrivateData) {
        self.change(|state| match state {
            State::Pending(_) => Some(State::Established(id, data)),
            _ => None,
        });
    }

    /// The consumer ends it.
    fn leave(&self) {
        self.left.store(true, Ordering::Release);
    }

    /// The connection ends, or the endpoint does, and not because the peer disconnected.
    pub(crate) fn end(&self) {
        self.fail(ConnectError::Closed);
    }

    pub(crate) fn fail(&self, error: ConnectError) {
        let left = self.left.load(Ordering::Acquire);
        self.over_by(error, if left { Ending::BySelf } else { Ending::Broken });
    }

    /// It ends so if it was established; else the attempt fails with this error.
    fn over_by(&self, error: ConnectError, ending: Ending) {
        self.change(|state| match state {
            State::New | State::Pending(_) => Some(State::Failed(error)),
            State::Established(_, data) => Some(State::Over(data, ending)),
            State::Failed(_) | State::Over(..) => None,
        });
    }

    /// How the attempt has ended, if it has. An attempt that has succeeded stays so when the
    /// connection ends: who waits for it may be slower than the peer.
    fn outcome(&self) -> Option<Result<PrivateData, ConnectError>> {
        match *self.state.lock() {
            State::New | State::Pending(_) => None,
            State::Established(_, data) | State::Over(data, _) => Some(Ok(data)),
            State::Failed(error) => Some(Err(error)),
        }
    }

    fn is_established(&self) -> bool {
        matches!(*self.state.lock(), State::Established(..))
    }

    fn over(&self) -> Option<()> {
        matches!(*self.state.lock(), State::Failed(_) | State::Over(..)).then_some(())
    }

    fn wait_for<T>(
        &self,
        nic: &NicInner,
        deadline: Option<platform::Instant>,
        look: impl Fn() -> Option<T>,
    ) -> Result<T, TimedOut> {
        self.waiters.wait_for(deadline, || {
            look().or_else(|| {
                self.fail(nic.ended()?);
                look()
            })
        })
    }

    fn poll<T>(&self, context: &Context<'_>, look: impl Fn() -> Option<T>) -> Poll<T> {
        self.waiters.poll(context, look)
    }
}

/// An event of an endpoint's connection. In the dispatcher thread.
pub(crate) fn event(endpoint: &Inner, event: &CmEvent<'_>) {
    let connection = &endpoint.connection;
    let id = event.connection;
    match event.kind {
        CmEventKind::AcceptArrived { depths } => {
            let Ok(client) = endpoint.nic().client() else { return };
            let data = PrivateData::new(event.private_data);
            let reads = connection.depths.initiator_depth.min(depths.responder_resources);
            match client.establish(id, reads, &[]) {
                Ok(()) => connection.establish(id, data),
                // The attempt is over, and its event follows.
                Err(kernel_agent::Error::ConnectionState) => {}
                Err(error) => {
                    let _ = client.reject(id, &[]);
                    connection.fail(error.into());
                }
            }
        }
        CmEventKind::Established { .. } => {
            connection.establish(id, PrivateData::new(event.private_data));
        }
        CmEventKind::Rejected { reason } => connection.fail(match reason {
            Reason::CONSUMER_DEFINED => {
                connection.rejection.call_once(|| PrivateData::new(event.private_data));
                ConnectError::Rejected
            }
            Reason::INVALID_SERVICE_ID => ConnectError::NoListener,
            Reason::TIMEOUT => ConnectError::TimedOut,
            other => ConnectError::RejectedByAgent(other.0),
        }),
        CmEventKind::Unreachable | CmEventKind::AcceptTimedOut => connection.fail(ConnectError::TimedOut),
        CmEventKind::Withdrawn => connection.fail(ConnectError::Withdrawn),
        CmEventKind::Disconnected { by_peer: true } => {
            connection.over_by(ConnectError::Closed, Ending::ByPeer);
        }
        CmEventKind::Disconnected { by_peer: false } => connection.end(),
        CmEventKind::Request { .. } | CmEventKind::TransitionRequested => {}
    }
}

/// A connection that is being made. It is a future of its private data; [`Connecting::wait`] blocks
/// instead.
///
/// Dropping it does not end the attempt; dropping the endpoint does.
#[must_use = "the endpoint is connected only when this has ended with success"]
pub struct Connecting(Result<Arc<Inner>, ConnectError>);

impl Connecting {
    /// Whether the attempt has begun: for who watches the endpoint
    /// ([`Builder::watch`](crate::Builder::watch)) and does not wait for this.
    pub fn begun(self) -> Result<(), ConnectError> {
        self.0.map(drop)
    }

    pub(crate) fn of(endpoint: &Endpoint, begun: Result<(), ConnectError>) -> Connecting {
        Connecting(begun.map(|()| endpoint.inner.clone()))
    }

    /// Blocks until the endpoint is connected, or cannot be. If the peer has ended the connection
    /// since, this is a success, too: what it sent is there.
    pub fn wait(self) -> Result<PrivateData, ConnectError> {
        // Without a deadline the wait does not time out; the agent's own timer ends the attempt.
        self.wait_for(None).map_err(|_| ConnectError::TimedOut)?
    }

    /// Blocks until the endpoint is connected, or cannot be, or the time is over; then this is
    /// returned, and the attempt goes on.
    pub fn wait_timeout(self, timeout: Duration) -> Result<Result<PrivateData, ConnectError>, Connecting> {
        self.wait_for(Some(timeout)).map_err(|TimedOut| self)
    }

    fn wait_for(&self, timeout: Option<Duration>) -> Result<Result<PrivateData, ConnectError>, TimedOut> {
        let endpoint = match &self.0 {
            Ok(endpoint) => endpoint,
            Err(error) => return Ok(Err(*error)),
        };
        let (nic, connection) = (endpoint.nic(), &endpoint.connection);
        connection.wait_for(nic, nic.deadline(timeout), || connection.outcome())
    }
}

impl Future for Connecting {
    type Output = Result<PrivateData, ConnectError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &self.0 {
            Ok(endpoint) => endpoint.connection.poll(context, || endpoint.connection.outcome()),
            Err(error) => Poll::Ready(Err(*error)),
        }
    }
}

impl Endpoint {
    /// Asks for a connection with who listens at this service of this port.
    pub fn connect(&self, address: Address, service: impl Into<Service>) -> Connecting {
        self.connect_with(address, service, &[])
    }

    /// As [`Endpoint::connect`], with a few bytes for the listener: at most 92, or 56 for a port of
    /// rdma-core's connection manager.
    pub fn connect_with(
        &self,
        address: Address,
        service: impl Into<Service>,
        private_data: &[u8],
    ) -> Connecting {
        Connecting::of(self, self.ask(address, service.into(), private_data))
    }

    fn ask(&self, address: Address, service: Service, private_data: &[u8]) -> Result<(), ConnectError> {
        let (endpoint, nic) = (&*self.inner, self.inner.nic());
        let identity = nic.agent().identity();
        let path = path_to(identity, address.gid()).filter(|_| nic.agent().port_up());
        let params = ConnectParams {
            path_mtu: PathMtu::at_most(identity.mtu),
            timeout: Some(PATIENCE),
            depths: endpoint.connection.depths,
            ..ConnectParams::new(path.ok_or(ConnectError::NoPath)?, service.of_connections())
        };
        endpoint.connection.begin()?;
        let asked = nic.client().map_err(|_| ConnectError::DeviceDead).and_then(|client| {
            Ok(client.connect(&endpoint.qp, &params, nic.transport.handshake(), private_data)?)
        });
        self.note(asked)
    }

    /// Makes a stream its connection: see [`crate::Stream::convert`].
    pub(crate) fn take_stream(
        &self,
        stream: &kernel_agent::Stream,
        message: Option<&[u8]>,
    ) -> Result<(), ConnectError> {
        let (endpoint, nic) = (&*self.inner, self.inner.nic());
        let conversion = Conversion { message, frames: true, depths: endpoint.connection.depths };
        endpoint.connection.begin()?;
        let client = nic.client().map_err(|_| ConnectError::DeviceDead);
        let begun = client.and_then(|client| Ok(client.convert(stream, &endpoint.qp, &conversion)?));
        self.note(begun)
    }

    /// Notes the agent's number of an attempt, or that there is none.
    fn note(&self, begun: Result<ConnectionId, ConnectError>) -> Result<(), ConnectError> {
        let (connection, nic) = (&self.inner.connection, self.inner.nic());
        let id = begun.inspect_err(|_| connection.undo())?;
        if !connection.asked(id) {
            nic.disconnect(Some(id));
        }
        Ok(())
    }

    /// Accepts a peer's request, which is outstanding in the agent.
    pub(crate) fn answer(
        &self,
        client: &Client,
        (request, peer): (ConnectionId, ReadDepths),
        private_data: &[u8],
    ) -> Result<(), ConnectError> {
        let inner = &*self.inner;
        inner.connection.begin()?;
        inner.connection.asked(request);
        let own = inner.connection.depths;
        let depths = ReadDepths { initiator_depth: own.initiator_depth.min(peer.responder_resources), ..own };
        let params = AcceptParams { depths, ..AcceptParams::default() };
        let accepted = client.accept(request, &inner.qp, &params, private_data);
        if accepted.is_err() {
            inner.connection.undo();
        }
        Ok(accepted?)
    }

    /// Whether the endpoint is connected at this moment.
    pub fn is_connected(&self) -> bool {
        self.inner.connection.is_established()
    }

    /// Whether the endpoint's connection has ended, or could not be made.
    pub fn is_closed(&self) -> bool {
        self.inner.connection.over().is_some()
    }

    /// How the attempt to connect has ended, if it has: with the private data of the peer's accept.
    /// The connection may have ended since ([`Endpoint::ending`]).
    pub fn outcome(&self) -> Option<Result<PrivateData, ConnectError>> {
        self.inner.connection.outcome()
    }

    /// How the endpoint's connection has ended, if it was established and has ended. A request that
    /// was flushed may be seen before: [`Endpoint::wait_closed`] waits for the end.
    pub fn ending(&self) -> Option<Ending> {
        match *self.inner.connection.state.lock() {
            State::Over(_, ending) => Some(ending),
            _ => None,
        }
    }

    /// What the peer's consumer sent along when it rejected the endpoint's request, if it did
    /// ([`ConnectError::Rejected`]).
    pub fn rejection(&self) -> Option<&PrivateData> {
        self.inner.connection.rejection.get()
    }

    /// Ends the connection: what is outstanding ends with
    /// [`RequestError::Flushed`](crate::RequestError::Flushed), and the peer is told. Does not wait
    /// for it: see [`Endpoint::closed`]. An attempt to connect ends at once, with
    /// [`ConnectError::Closed`]. The endpoint cannot be connected any more.
    pub fn disconnect(&self) {
        let connection = &self.inner.connection;
        connection.leave();
        self.inner.nic().disconnect(connection.current());
        // Of an attempt no event follows.
        if !connection.is_established() {
            connection.end();
        }
    }

    /// Waits until the connection has ended, whoever ended it.
    pub async fn closed(&self) {
        core::future::poll_fn(|context| self.poll_closed(context)).await;
    }

    pub(crate) fn poll_closed(&self, context: &Context<'_>) -> Poll<()> {
        let connection = &self.inner.connection;
        connection.poll(context, || connection.over())
    }

    /// Blocks until the connection has ended, whoever ended it, or the time is over.
    pub fn wait_closed(&self, timeout: Option<Duration>) -> Result<(), TimedOut> {
        let connection = &self.inner.connection;
        let nic = self.inner.nic();
        connection.wait_for(nic, nic.deadline(timeout), || connection.over())
    }
}
