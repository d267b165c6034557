//! Streams: plain bytes over TCP connections of the NIC's port, for what two peers say before they
//! use RDMA.
//!
//! A stream becomes the connection of an endpoint of iWARP by [`Stream::convert`], or
//! [`Stream::convert_after`]. Each byte passes through the agent, command by command, so streams
//! are for a few words and not for much data.
//!
//! The agent tells by an upcall that something has happened; who waits then tries again. Locks:
//! those of `waiters`.

use alloc::sync::{Arc, Weak};
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;

use kernel_agent::{Features, StreamEnd, StreamEnds, StreamState};
use platform::heap;
use platform::sync::atomic::{AtomicBool, Ordering};

use crate::address::{Address, path_to};
use crate::connection::Connecting;
use crate::endpoint::Endpoint;
use crate::error::{ConnectError, CreateError, StreamError, TimedOut};
use crate::nic::{Nic, StreamHandle};
use crate::waiters::Waiters;

/// Streams that wait at a listener. The device keeps those beyond half-open, half as many of one
/// peer: the peer repeats itself, and gets in when there is room.
const BACKLOG: u32 = 128;

/// A place in the opening's table.
struct Place {
    nic: Nic,
    /// The agent's upcalls wake them.
    waiters: Arc<Waiters>,
    handle: u64,
}

impl Place {
    /// It is there before the agent's object, so that no upcall is lost.
    fn new(nic: &Nic) -> Result<Place, CreateError> {
        let opening = nic.inner();
        if !Features::from_bits_truncate(nic.agent().identity().features).contains(Features::STREAMS) {
            return Err(CreateError::Unsupported("streams"));
        }
        let place = opening.streams.reserve()?;
        heap::room_for_arc::<(Waiters, Weak<Waiters>)>()?;
        let waiters = Arc::new(Waiters::new(nic.agent().platform()));
        let handle = place.handle().as_raw();
        place.fill(Arc::new(Arc::downgrade(&waiters)));
        Ok(Place { nic: nic.clone(), waiters, handle })
    }

    fn wait_for<T>(&self, timeout: Option<Duration>, look: impl FnMut() -> Option<T>) -> Result<T, TimedOut> {
        self.waiters.wait_for(self.nic.inner().deadline(timeout), look)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.nic.inner().streams.remove(StreamHandle::from_raw(self.handle));
    }
}

/// Takes peers' streams at a TCP port of a NIC, until it is dropped. Streams that wait then are
/// reset.
pub struct StreamListener {
    listener: kernel_agent::StreamListener,
    place: Place,
}

impl StreamListener {
    fn new(nic: &Nic, port: u16) -> Result<StreamListener, CreateError> {
        let place = Place::new(nic)?;
        let client = nic.inner().client()?;
        let listener = client.listen_for_streams(None, port, BACKLOG, place.handle)?;
        Ok(StreamListener { listener, place })
    }

    /// Waits for a stream.
    pub async fn accept(&self) -> Result<Stream, CreateError> {
        let waiters = &self.place.waiters;
        core::future::poll_fn(|context| waiters.poll(context, || self.look())).await
    }

    /// Blocks until a stream comes.
    pub fn wait(&self) -> Result<Stream, CreateError> {
        // Without a deadline the wait does not time out.
        self.place.wait_for(None, || self.look()).map_err(|_| CreateError::Closed)?
    }

    /// Blocks until a stream comes, or the time is over; `None` then.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Option<Stream>, CreateError> {
        self.place.wait_for(Some(timeout), || self.look()).ok().transpose()
    }

    /// Takes a stream if one waits. Blocks for the device.
    pub fn try_accept(&self) -> Result<Option<Stream>, CreateError> {
        let place = Place::new(&self.place.nic)?;
        let stream = self.listener.accept(place.handle)?;
        Ok(stream.map(|stream| Stream {
            stream,
            place,
            finished: AtomicBool::new(false),
            kept: AtomicBool::new(false),
        }))
    }

    fn look(&self) -> Option<Result<Stream, CreateError>> {
        match self.place.nic.inner().ended() {
            Some(error) => Some(Err(error)),
            None => self.try_accept().transpose(),
        }
    }
}

impl Drop for StreamListener {
    fn drop(&mut self) {
        // Fails only if the device is dead.
        let _ = self.listener.destroy();
    }
}

/// A stream of bytes to a peer, and from it. When it is dropped, the peer gets what was sent, and
/// then the end.
pub struct Stream {
    stream: kernel_agent::Stream,
    place: Place,
    /// [`Stream::finish`] was called.
    finished: AtomicBool,
    /// It is not this value's to end.
    kept: AtomicBool,
}

impl Stream {
    fn ends(&self) -> &StreamEnds {
        self.stream.ends()
    }

    /// Where the peer is.
    pub fn from(&self) -> Address {
        Address::of(self.ends().remote_gid)
    }

    /// The TCP port of the peer, and that of this end.
    pub fn ports(&self) -> (u16, u16) {
        (self.ends().remote_port, self.ends().local_port)
    }

    /// Sends all bytes. It is a future; [`Sending::wait`] blocks instead.
    pub fn send<'a>(&'a self, bytes: &'a [u8]) -> Sending<'a> {
        Sending { stream: self, rest: bytes }
    }

    /// Sends bytes from the start of `bytes`, as many as there is room for now, and returns the
    /// number. Blocks for the device, not for the peer.
    pub fn try_send(&self, bytes: &[u8]) -> Result<usize, StreamError> {
        self.stream.send(bytes).map_err(|error| match error {
            kernel_agent::Error::StreamState if self.finished.load(Ordering::Acquire) => {
                StreamError::Finished
            }
            other => other.into(),
        })
    }

    /// Receives bytes when some have come: their number, or 0 if the peer sends no more. It is a
    /// future; [`Receiving::wait`] blocks instead.
    pub fn receive<'a>(&'a self, into: &'a mut [u8]) -> Receiving<'a> {
        Receiving { stream: self, into }
    }

    /// Receives what has come, and returns the number of bytes, or 0 if the peer sends no more;
    /// `None` if nothing has come. Blocks for the device, not for the peer.
    pub fn try_receive(&self, into: &mut [u8]) -> Result<Option<usize>, StreamError> {
        match self.stream.receive(into) {
            Ok(0) if into.is_empty() => Ok(Some(0)),
            Ok(0) => Ok(None),
            Ok(count) => Ok(Some(count)),
            Err(kernel_agent::Error::StreamState) => match self.stream.state() {
                // The agent is about to tell why.
                StreamState { peer_closed: false, end: None, .. } => Ok(None),
                StreamState { end: None | Some(StreamEnd::Closed), .. } => Ok(Some(0)),
                _ => Err(StreamError::Broken),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// Ends this end's direction: the peer learns it behind what was sent. What the peer sends
    /// still comes.
    pub fn finish(&self) -> Result<(), StreamError> {
        self.finished.store(true, Ordering::Release);
        Ok(self.stream.close()?)
    }

    /// Ends the stream at once: the peer gets a reset, in place of what has not left.
    pub fn reset(self) {
        // Fails only if the device is dead.
        let _ = self.stream.destroy(true);
    }

    /// Makes the stream the connection of an endpoint of iWARP, which was not connected: by a
    /// Request to the peer, which has to call [`Stream::convert_after`] before. What that sends as
    /// its last message has to have been received. `endpoint` is of the same opening.
    ///
    /// What the peer has sent and was not received belongs to the connection. There is no time
    /// limit: [`Endpoint::disconnect`] and a drop of the endpoint give the conversion up. The ends
    /// do not exchange how many RDMA Reads they serve, so both endpoints are built for the same
    /// number ([`Builder::reads`](crate::Builder::reads)).
    pub fn convert(self, endpoint: &Endpoint) -> Connecting {
        Connecting::of(endpoint, endpoint.take_stream(&self.stream, None))
    }

    /// As [`Stream::convert`], for the other end: it sends a last message, of one byte at least,
    /// behind which the peer converts its end, and waits for the peer's Request. What is longer
    /// than the stream has room for now is copied.
    pub fn convert_after(self, endpoint: &Endpoint, message: &[u8]) -> Connecting {
        Connecting::of(endpoint, endpoint.take_stream(&self.stream, Some(message)))
    }

    /// The agent's stream, for a face that converts it: from now on it is the face's to end.
    pub fn into_agents(self) -> kernel_agent::Stream {
        let stream = self.stream.clone();
        self.kept.store(true, Ordering::Release);
        stream
    }

    fn send_look(&self, rest: &mut &[u8]) -> Option<Result<(), StreamError>> {
        while !rest.is_empty() {
            match self.try_send(rest) {
                Ok(0) => return self.place.nic.inner().ended().map(Err),
                Ok(count) => *rest = rest.get(count..).unwrap_or_default(),
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Ok(()))
    }

    fn receive_look(&self, into: &mut [u8]) -> Option<Result<usize, StreamError>> {
        match self.try_receive(into).transpose() {
            None => self.place.nic.inner().ended().map(Err),
            found => found,
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.kept.load(Ordering::Acquire) {
            // Fails if it is a connection's by now, was reset, or the device is dead.
            let _ = self.stream.destroy(false);
        }
    }
}

/// Bytes that are being sent: see [`Stream::send`]. Dropping it leaves out what has not left.
#[must_use = "nothing is sent before this is awaited"]
pub struct Sending<'a> {
    stream: &'a Stream,
    rest: &'a [u8],
}

impl<'a> Sending<'a> {
    /// Blocks until all bytes are on their way.
    pub fn wait(self) -> Result<(), StreamError> {
        // Without a deadline the wait does not time out.
        self.wait_for(None).unwrap_or(Err(StreamError::Closed))
    }

    /// Blocks until all bytes are on their way, or the time is over; then what is left is returned.
    pub fn wait_timeout(self, timeout: Duration) -> Result<Result<(), StreamError>, Sending<'a>> {
        self.wait_for(Some(timeout))
    }

    fn wait_for(mut self, timeout: Option<Duration>) -> Result<Result<(), StreamError>, Sending<'a>> {
        let (stream, rest) = (self.stream, &mut self.rest);
        stream.place.wait_for(timeout, || stream.send_look(rest)).map_err(|TimedOut| self)
    }

    /// What is not on its way.
    pub fn rest(&self) -> &[u8] {
        self.rest
    }
}

impl Future for Sending<'_> {
    type Output = Result<(), StreamError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Sending { stream, rest } = &mut *self;
        stream.place.waiters.poll(context, || stream.send_look(rest))
    }
}

/// Bytes that are awaited: see [`Stream::receive`]. Nothing is received unless it ends.
#[must_use = "nothing is received before this is awaited"]
pub struct Receiving<'a> {
    stream: &'a Stream,
    into: &'a mut [u8],
}

impl Receiving<'_> {
    /// Blocks until bytes have come, or the peer sends no more.
    pub fn wait(self) -> Result<usize, StreamError> {
        // Without a deadline the wait does not time out.
        self.wait_for(None).unwrap_or(Err(StreamError::Closed))
    }

    /// Blocks until bytes have come, or the peer sends no more, or the time is over; `None` then.
    pub fn wait_timeout(self, timeout: Duration) -> Result<Option<usize>, StreamError> {
        self.wait_for(Some(timeout)).ok().transpose()
    }

    fn wait_for(self, timeout: Option<Duration>) -> Result<Result<usize, StreamError>, TimedOut> {
        let Receiving { stream, into } = self;
        stream.place.wait_for(timeout, || stream.receive_look(into))
    }
}

impl Future for Receiving<'_> {
    type Output = Result<usize, StreamError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Receiving { stream, into } = &mut *self;
        stream.place.waiters.poll(context, || stream.receive_look(into))
    }
}

/// A stream that is being connected. It is a future of the stream; [`StreamConnecting::wait`]
/// blocks instead. Dropping it gives the attempt up.
#[must_use = "there is a stream only when this has ended with success"]
pub struct StreamConnecting(Result<Option<Stream>, ConnectError>);

impl StreamConnecting {
    fn begin(nic: &Nic, address: Address, port: u16) -> Result<Stream, ConnectError> {
        let agent = nic.agent();
        let path = path_to(agent.identity(), address.gid()).filter(|_| agent.port_up());
        let path = path.ok_or(ConnectError::NoPath)?;
        let place = Place::new(nic).map_err(|error| match error {
            CreateError::OutOfMemory => ConnectError::OutOfMemory,
            CreateError::Unsupported(what) => ConnectError::OutOfRange(what),
            _ => ConnectError::NoResources,
        })?;
        let client = nic.inner().client().map_err(|_| ConnectError::DeviceDead)?;
        let stream = client.connect_stream((path.local_gid, 0), (path.remote_gid, port), place.handle)?;
        Ok(Stream { stream, place, finished: AtomicBool::new(false), kept: AtomicBool::new(false) })
    }

    /// Blocks until the stream is connected, or cannot be.
    pub fn wait(self) -> Result<Stream, ConnectError> {
        // Without a deadline the wait does not time out; the NIC's own timer ends the attempt.
        self.wait_for(None).unwrap_or(Err(ConnectError::TimedOut))
    }

    /// Blocks until the stream is connected, or cannot be, or the time is over; then this is
    /// returned, and the attempt goes on.
    pub fn wait_timeout(self, timeout: Duration) -> Result<Result<Stream, ConnectError>, StreamConnecting> {
        self.wait_for(Some(timeout))
    }

    fn wait_for(
        mut self,
        timeout: Option<Duration>,
    ) -> Result<Result<Stream, ConnectError>, StreamConnecting> {
        let outcome = match &self.0 {
            Ok(Some(stream)) => stream.place.wait_for(timeout, || connected(stream)),
            Ok(None) => Ok(Err(ConnectError::Used)),
            Err(error) => Ok(Err(*error)),
        };
        match outcome {
            Ok(outcome) => Ok(self.end(outcome)),
            Err(TimedOut) => Err(self),
        }
    }

    fn end(&mut self, outcome: Result<(), ConnectError>) -> Result<Stream, ConnectError> {
        let stream = self.0.as_mut().ok().and_then(Option::take);
        outcome.and_then(|()| stream.ok_or(ConnectError::Used))
    }
}

/// What has become of an attempt, if that is known.
fn connected(stream: &Stream) -> Option<Result<(), ConnectError>> {
    match stream.stream.state() {
        StreamState { connected: true, .. } => Some(Ok(())),
        StreamState { end: Some(end), .. } => Some(Err(match end {
            StreamEnd::ConnectTimeout | StreamEnd::TimedOut => ConnectError::TimedOut,
            StreamEnd::Refused | StreamEnd::PortUnreachable => ConnectError::NoListener,
            StreamEnd::NoWay
            | StreamEnd::NetworkUnreachable
            | StreamEnd::HostUnreachable
            | StreamEnd::Prohibited => ConnectError::NoPath,
            StreamEnd::None | StreamEnd::Closed | StreamEnd::Reset => ConnectError::Withdrawn,
        })),
        _ => stream.place.nic.inner().ended().map(Err),
    }
}

impl Future for StreamConnecting {
    type Output = Result<Stream, ConnectError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = match &self.0 {
            Ok(Some(stream)) => {
                core::task::ready!(stream.place.waiters.poll(context, || connected(stream)))
            }
            Ok(None) => Err(ConnectError::Used),
            Err(error) => Err(*error),
        };
        Poll::Ready(self.end(outcome))
    }
}

impl Nic {
    /// Listens for streams at a TCP port, from 1 on, at all addresses of the NIC. Blocks for the
    /// device.
    pub fn listen_for_streams(&self, port: u16) -> Result<StreamListener, CreateError> {
        StreamListener::new(self, port)
    }

    /// Connects a stream to a peer's TCP port.
    pub fn connect_stream(&self, address: Address, port: u16) -> StreamConnecting {
        StreamConnecting(StreamConnecting::begin(self, address, port).map(Some))
    }
}
