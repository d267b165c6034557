//! What streams and listeners have in common: a number, a place in the agent's table from before
//! the device knows them, what the dispatcher thread has learned of them, and their end.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use nic_abi::admin::{self, Status, StreamEnd, StreamHappened, StreamInfo, TransferFlags};
use nic_hal::{CommandError, Nic};
use platform::heap;
use platform::sleep_lock::SleepGuard;
use platform::sync::Mutex;

use crate::cm::{ConnectionId, ListenId};
use crate::home::Home;
use crate::object::{Counter, Object};
use crate::table::Number;
use crate::wire::Gid;
use crate::{Error, Resource};

/// What an insertion into a client's map of objects may allocate.
const NODES: usize = 4096;

/// Who is connected by a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamEnds {
    /// The index of the port's own GID.
    pub source_gid: u8,
    /// The own port.
    pub local_port: u16,
    /// The peer's address.
    pub remote_gid: Gid,
    /// The peer's port.
    pub remote_port: u16,
}

impl StreamEnds {
    pub(crate) fn new(ends: &admin::StreamEnds) -> StreamEnds {
        StreamEnds {
            source_gid: ends.address as u8,
            local_port: ends.local_port as u16,
            remote_gid: Gid(ends.gid),
            remote_port: ends.port as u16,
        }
    }
}

/// What has happened to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamState {
    /// It has been connected.
    pub connected: bool,
    /// The peer has closed its direction. What it sent before may not have been received.
    pub peer_closed: bool,
    /// How it has ended, if it has.
    pub end: Option<StreamEnd>,
}

/// Whom the dispatcher thread tells that something has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    /// The client, with this context.
    Client(u64),
    /// The agent, which listens for connections over streams.
    Listen(ListenId),
    /// The agent, which makes this connection.
    Connection(ConnectionId),
}

/// Who makes a call about a stream or listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// Its client, by a handle.
    Client,
    /// The agent, or the end of the client.
    Agent,
}

/// A stream or a listener.
pub(crate) struct Endpoint {
    object: Object<dyn Home>,
    generation: u32,
    /// Changed with `object.control` held.
    watch: Mutex<Watch>,
    /// The client that has it among its objects, if not the one that made it.
    keeper: Mutex<Option<Arc<dyn Home>>>,
    /// All that has happened: [`StreamHappened`].
    happened: AtomicU32,
    /// A [`StreamEnd`].
    end: AtomicU32,
}

impl Endpoint {
    /// Makes an object by a command, which gets its number and generation. It is in the table
    /// before the command, so that no event is lost. `None`, and nothing is made, if the command
    /// says so.
    pub(crate) fn open<T>(
        home: &Arc<dyn Home>,
        watch: Watch,
        command: impl FnOnce(&Nic, Number) -> Result<Option<T>, nic_hal::Error>,
    ) -> Result<Option<(Arc<Endpoint>, T)>, Error> {
        let streams = home.streams();
        heap::room_for_arc::<Endpoint>()?;
        let number = streams.take().ok_or(Error::NoResources(Resource::Streams))?;
        let endpoint = Arc::new(Endpoint {
            object: Object::new(home, Counter::Streams, number.slot),
            generation: number.generation,
            watch: Mutex::new(watch),
            keeper: Mutex::new(None),
            happened: AtomicU32::new(0),
            end: AtomicU32::new(0),
        });
        streams.put(number.slot, endpoint.clone());
        let made = command(home.nic(), number).map_err(refusal);
        let Some(made) = made.inspect_err(|_| streams.undo(number.slot))? else {
            streams.undo(number.slot);
            return Ok(None);
        };
        home.adopt(&endpoint)?;
        Ok(Some((endpoint, made)))
    }

    pub(crate) fn number(&self) -> u32 {
        self.object.number()
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    pub(crate) fn watch(&self) -> Watch {
        *self.watch.lock()
    }

    /// Fails for a handle of the client if the object is not the client's own: a connection has the
    /// stream by now. With `control` held.
    fn admits(&self, by: By) -> Result<(), Error> {
        match self.watch() {
            Watch::Listen(_) | Watch::Connection(_) if by == By::Client => Err(Error::Gone),
            _ => Ok(()),
        }
    }

    /// The stream is known to be connected.
    pub(super) fn mark_connected(&self) {
        self.happened.fetch_or(StreamHappened::CONNECTED.bits(), Ordering::AcqRel);
    }

    /// Keeps other threads from the stream of a client, which has to be connected in both
    /// directions, until it has another watcher.
    pub(crate) fn take_from<C>(&self, client: *const C) -> Result<Taking<'_>, Error> {
        let _control = self.control()?;
        let keeper = self.keeper.lock().as_ref().map(Arc::as_ptr);
        if !core::ptr::addr_eq(keeper.unwrap_or(Arc::as_ptr(self.home())), client) {
            return Err(Error::Foreign);
        }
        self.admits(By::Client)?;
        let StreamState { connected, peer_closed, end } = self.state();
        if !connected || peer_closed || end.is_some() {
            return Err(Error::StreamState);
        }
        Ok(Taking { endpoint: self, _control })
    }

    pub(crate) fn home(&self) -> &Arc<dyn Home> {
        self.object.owner()
    }

    /// Queries the object after its event, which has the next event raised. `None` if it is gone.
    /// In the dispatcher thread.
    pub(crate) fn look(&self) -> Option<StreamInfo> {
        let info = self.command(By::Agent, |nic, number| nic.query_stream(number)).ok()?;
        self.end.store(info.end, Ordering::Release);
        self.happened.fetch_or(info.happened, Ordering::AcqRel);
        Some(info)
    }

    pub(crate) fn state(&self) -> StreamState {
        let happened = StreamHappened::from_bits_truncate(self.happened.load(Ordering::Acquire));
        let end = StreamEnd::from_word(self.end.load(Ordering::Acquire));
        StreamState {
            connected: happened.contains(StreamHappened::CONNECTED),
            peer_closed: happened.contains(StreamHappened::PEER_CLOSED),
            end: end.filter(|&end| end != StreamEnd::None),
        }
    }

    /// Keeps the object from being destroyed; fails if it is.
    pub(super) fn control(&self) -> Result<SleepGuard<'_>, Error> {
        self.object.control()
    }

    /// Sends a command about the object, unless it is destroyed.
    fn command<T>(
        &self,
        by: By,
        send: impl FnOnce(&Nic, u32) -> Result<T, nic_hal::Error>,
    ) -> Result<T, Error> {
        let _control = self.control()?;
        self.admits(by)?;
        send(self.home().nic(), self.number()).map_err(refusal)
    }

    pub(crate) fn send(&self, by: By, bytes: &[u8]) -> Result<usize, Error> {
        let streams = self.home().streams();
        self.command(by, |nic, number| {
            streams.transfer(self.home().platform(), |buffer| nic.send_stream(number, buffer, bytes))
        })
    }

    pub(crate) fn receive(&self, by: By, into: &mut [u8], flags: TransferFlags) -> Result<usize, Error> {
        let streams = self.home().streams();
        self.command(by, |nic, number| {
            streams.transfer(self.home().platform(), |buffer| nic.receive_stream(number, buffer, into, flags))
        })
    }

    pub(crate) fn close(&self, by: By) -> Result<(), Error> {
        self.command(by, |nic, number| nic.close_stream(number))
    }

    pub(crate) fn destroy(&self, by: By, reset: bool) -> Result<(), Error> {
        let destroying = self.object.begin_destroy()?;
        if let Err(error) = self.admits(by) {
            self.object.uses().reopen();
            return Err(error);
        }
        let answer = self.home().nic().destroy_stream(self.number(), reset);
        destroying.finish(answer, |number| self.release(number), |confirmed| self.remove(confirmed))
    }

    /// Gives the stream to a queue pair, by a call that gets its number. If that succeeds, the
    /// device knows the number no more.
    pub(crate) fn give_to(&self, queue_pair: impl FnOnce(u32) -> Result<(), Error>) -> Result<(), Error> {
        let destroying = self.object.begin_destroy()?;
        if let Err(error) = queue_pair(self.number()) {
            self.object.uses().reopen();
            return Err(error);
        }
        destroying.finish(Ok(()), |number| self.release(number), |confirmed| self.remove(confirmed))
    }

    /// Makes another client of the agent the one with which the object ends.
    pub(crate) fn hand_to(self: &Arc<Endpoint>, by: By, home: &Arc<dyn Home>) -> Result<(), Error> {
        let _control = self.object.control()?;
        self.admits(by)?;
        heap::room(NODES)?;
        home.adopt(self)?;
        let former = self.keeper.lock().replace(home.clone());
        former.as_ref().unwrap_or(self.home()).forget_object(Counter::Streams, self.number());
        Ok(())
    }

    fn remove(&self, confirmed: bool) {
        let keeper = self.keeper.lock().take();
        if let Some(keeper) = keeper {
            keeper.forget_object(Counter::Streams, self.number());
        }
        self.home().streams().remove(self.number(), confirmed);
    }

    fn release(&self, number: u32) {
        self.home().streams().release(number);
    }
}

/// The stream of a client that is about to have another watcher. Other calls about it wait.
pub(crate) struct Taking<'a> {
    endpoint: &'a Endpoint,
    _control: SleepGuard<'a>,
}

impl Taking<'_> {
    pub(crate) fn give(&self, watch: Watch) {
        *self.endpoint.watch.lock() = watch;
    }
}

/// Why the device refused a command about a stream.
fn refusal(error: nic_hal::Error) -> Error {
    match error {
        nic_hal::Error::Command(CommandError { status: Status::BadState, .. }) => Error::StreamState,
        nic_hal::Error::Command(CommandError { status: Status::Exists, .. }) => Error::ServiceInUse,
        other => other.into(),
    }
}
