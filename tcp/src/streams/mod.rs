//! The streams of a port, its listeners, and the calls of their owner.
//!
//! | module | subject |
//! |---|---|
//! | `input` | packets that arrive |
//! | `output` | timers, packets that leave, and how streams end |
//! | `listen` | listeners, half-open connections, acceptance |
//! | `rings` | which streams have large rings |

mod input;
mod listen;
mod output;
mod rings;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use platform::{Instant, Secret};
use smoltcp::socket::tcp::State;

use crate::address::{Tuple, is_single};
use crate::config::{Config, MAX_FORMER, MAX_HALF_OPEN};
use crate::counters::Counters;
use crate::engine::{Engine, Socket};
use crate::error::Error;
use crate::former::Formers;
use crate::half::Halves;
use crate::limiter::Limits;
use crate::stream::Stream;
use crate::table::{Place, Table};
use crate::timers::Timers;
use crate::untaken::Untaken;

use listen::Listener;
pub use output::Polled;

/// A stream. The id of a stream that was given back is never that of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    index: u32,
    generation: u32,
}

impl StreamId {
    /// A small number that no other stream has at the same time.
    pub const fn index(self) -> usize {
        self.index as usize
    }
}

/// A listener. The id of a listener that was stopped is never that of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId {
    index: u32,
    generation: u32,
}

bitflags::bitflags! {
    /// What happened to a stream since its owner was told the last time.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Happened: u8 {
        /// The connection is open.
        const CONNECTED = 1;
        /// Bytes have arrived since the owner looked.
        const READABLE = 2;
        /// There is more room to write than when the owner's latest [`Streams::send`] wrote
        /// nothing.
        const WRITABLE = 4;
        /// The peer has closed its direction. What it sent before can be taken.
        const PEER_CLOSED = 8;
        /// The connection has ended: [`Info::end`] says how. What arrived before can be taken.
        const ENDED = 16;
    }
}

/// Why a connecting stream does not reach its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// The port is down, or there is no way, or the peer does not answer to questions for its MAC.
    Link,
    /// A node reports that it knows no way to the network.
    Network,
    /// A node reports that it does not reach the peer.
    Host,
    /// The peer reports that no program has the port.
    Port,
    /// A node reports that it may not pass the packet on.
    Prohibited,
}

/// How a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Both sides have closed, and everything was acknowledged.
    Closed,
    /// The peer refused the connection.
    Refused,
    /// The peer cannot be reached.
    Unreachable(Unreachable),
    /// The peer has not answered in [`Config::connect_timeout`].
    ConnectTimeout,
    /// The peer has reset the connection.
    Reset,
    /// The peer has taken nothing of what was sent in [`Config::user_timeout`], or has not closed
    /// its direction in [`Config::linger`] after this side.
    TimedOut,
}

/// What the owner learns by [`Streams::next_event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Something happened to a stream.
    Stream(StreamId, Happened),
    /// A connection waits at a listener. Told once until [`Streams::accept`] has said that there
    /// are no more.
    Waiting(ListenerId),
}

/// The state of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// This side's address and port.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// The connection was opened.
    pub connected: bool,
    /// The most bytes of a segment on the port's own link.
    pub segment: usize,
    /// The bytes that have arrived and were not taken.
    pub readable: usize,
    /// The bytes that can be written.
    pub room: usize,
    /// The bytes that were written and that the peer has not acknowledged.
    pub unacknowledged: usize,
    /// The peer has closed its direction.
    pub peer_closed: bool,
    /// How the connection has ended.
    pub end: Option<End>,
}

/// What the owner of a stream has done with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The bytes that it has written. If the owner of the other end has taken as many, nothing is
    /// under way in this direction.
    pub written: u64,
    /// The bytes that it has taken.
    pub taken: u64,
}

/// A place for a stream.
#[derive(Default)]
struct Slot {
    generation: u32,
    stream: Option<Box<Stream>>,
    /// It is in the queue of those that have something to do, of those with events.
    ready: bool,
    told: bool,
}

/// The streams of a port.
pub struct Streams {
    config: Config,
    numbers: Secret,
    ports: Secret,
    /// How many connections have begun.
    births: u64,
    engine: Engine,
    /// A socket without rings. Its answer to a SYN has the sequence number of a seed.
    probe: Socket,
    table: Table,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// The bytes of all rings.
    memory: usize,
    /// The streams with large rings, and where among them the next one is sought that gives them
    /// up.
    large: Vec<u32>,
    hand: usize,
    timers: Timers,
    /// When the streams that were given back end at the latest. The one that was given back first
    /// is the first to end.
    leaving: Timers,
    ready: VecDeque<u32>,
    /// The link took no packet when the first of `ready` had its turn.
    full: bool,
    events: VecDeque<u32>,
    calls: VecDeque<u32>,
    /// The streams that wait for the MAC of their peer.
    parked: BTreeMap<IpAddr, Vec<u32>>,
    listeners: Vec<Listener>,
    names: BTreeMap<(u16, Option<IpAddr>), u32>,
    halves: Halves,
    untaken: Untaken,
    formers: Formers,
    limits: Limits,
    counters: Counters,
}

/// The ports of connections whose owner names none (RFC 6335 section 6).
const PORTS: core::ops::RangeInclusive<u16> = 49_152..=65_535;
/// How many of them are tried for one connection.
const TRIES: u16 = 1024;

impl Streams {
    /// No streams.
    pub fn new(config: Config) -> Result<Streams, Error> {
        config.check()?;
        let names = config.streams + MAX_HALF_OPEN + MAX_FORMER;
        Ok(Streams {
            numbers: config.secret.derive(1),
            ports: config.secret.derive(2),
            births: 0,
            engine: Engine::new(config.mtu)?,
            probe: Socket::new(0, 0)?,
            table: Table::new(names, config.secret.derive(3))?,
            slots: Vec::new(),
            free: Vec::new(),
            memory: 0,
            large: Vec::new(),
            hand: 0,
            timers: Timers::new(),
            leaving: Timers::new(),
            ready: VecDeque::new(),
            full: false,
            events: VecDeque::new(),
            calls: VecDeque::new(),
            parked: BTreeMap::new(),
            listeners: Vec::new(),
            names: BTreeMap::new(),
            halves: Halves::new(),
            untaken: Untaken::new(),
            formers: Formers::new(),
            limits: Limits::new(config.secret.derive(4)),
            counters: Counters::default(),
            config,
        })
    }

    /// What the streams have carried and dropped.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The connections of the table: streams, half-open ones, and records of former ones.
    pub fn names(&self) -> usize {
        self.table.len()
    }

    /// The bytes of all rings.
    pub const fn memory(&self) -> usize {
        self.memory
    }

    /// The half-open connections.
    pub fn half_open(&self) -> usize {
        self.halves.len()
    }

    /// The records of former connections.
    pub fn former(&self) -> usize {
        self.formers.len()
    }

    /// Begins to connect from an address of the port to a peer. [`Happened::CONNECTED`] or
    /// [`Happened::ENDED`] says what became of it.
    ///
    /// Without a `port` of its own the stream gets one that peers cannot predict. The peer may have
    /// the same address, if the caller passes such packets to [`Streams::input_own`].
    pub fn connect(
        &mut self,
        from: IpAddr,
        port: Option<u16>,
        to: SocketAddr,
        now: Instant,
    ) -> Result<StreamId, Error> {
        let right = is_single(from) && is_single(to.ip());
        // A socket that is both ends of its connection would take its own SYN for the peer's.
        let is_both = from == to.ip() && port == Some(to.port());
        if !right || is_both || from.is_ipv4() != to.is_ipv4() || port == Some(0) || to.port() == 0 {
            return Err(Error::BadAddress);
        }
        let remote = (to.ip(), to.port());
        let tuple = match port {
            Some(port) => {
                let tuple = Tuple::new((from, port), remote);
                if self.table.get(&tuple).is_some() {
                    return Err(Error::InUse);
                }
                tuple
            }
            None => self.free_port(from, remote)?,
        };
        let mut socket = self.socket()?;
        self.engine.seed(self.next_seed(&tuple));
        self.engine.connect(&mut socket, &tuple)?;
        let mut stream = Stream::new(socket, tuple, now);
        // The peer may not scale, and says so.
        stream.sent.scale = self.config.scale(false, true);
        let id = self.add(stream)?;
        self.births += 1;
        self.wake(id.index);
        Ok(id)
    }

    /// A port that has no connection to this peer's port. The first one to try differs for each
    /// peer, in a way that no other peer can predict (RFC 6056 section 3.3.3).
    fn free_port(&self, from: IpAddr, remote: (IpAddr, u16)) -> Result<Tuple, Error> {
        let start = Tuple::new((from, 0), remote).hash(&self.ports).wrapping_add(self.births);
        (0..u64::from(TRIES))
            .map(|n| {
                let offset = start.wrapping_add(n) % (PORTS.len() as u64);
                Tuple::new((from, PORTS.start() + offset as u16), remote)
            })
            .find(|tuple| tuple.local != tuple.remote && self.table.get(tuple).is_none())
            .ok_or(Error::NoPort)
    }

    /// What the sequence number of the next connection follows from.
    fn next_seed(&self, tuple: &Tuple) -> u64 {
        self.numbers.hash([tuple.hash(&self.numbers), self.births])
    }

    /// Whether there is a place and memory for one more stream, or one that gives way.
    fn has_room(&self) -> bool {
        self.room().is_ok() || self.leaving.first().is_some()
    }

    /// Fails if there is no place or no memory for one more stream. Large rings leave memory for
    /// the small ones of all streams.
    fn room(&self) -> Result<(), Error> {
        if self.slots.len() - self.free.len() >= self.config.streams {
            return Err(Error::TooMany);
        }
        if self.memory + self.config.bytes(false) > self.config.memory {
            return Err(Error::NoMemory);
        }
        Ok(())
    }

    /// A socket for a new stream. If there is no room for it, the stream gives way that was given
    /// back first: an honest peer closes its direction within a round trip. The peer gets a reset
    /// when it sends something.
    fn socket(&mut self) -> Result<Socket, Error> {
        if let Err(error) = self.room() {
            let (_, oldest) = self.leaving.first().ok_or(error)?;
            self.remove(oldest);
            self.counters.gave_way += 1;
        }
        let (receive, send) = self.config.rings(false);
        Socket::new(receive, send)
    }

    /// Gives a stream a place and a name.
    fn add(&mut self, mut stream: Stream) -> Result<StreamId, Error> {
        let index = match self.free.last() {
            Some(index) => *index,
            None => {
                let count = self.slots.len();
                // Room for whatever a stream can be in, so that nothing fails later.
                let room = self.slots.try_reserve(1).is_ok()
                    && self.free.try_reserve(count + 1).is_ok()
                    && self.ready.try_reserve(count + 1 - self.ready.len()).is_ok()
                    && self.events.try_reserve(count + 1 - self.events.len()).is_ok()
                    && self.timers.reserve(count + 1)
                    && self.leaving.reserve(count + 1);
                if !room {
                    return Err(Error::NoMemory);
                }
                count as u32
            }
        };
        self.table.insert(stream.tuple, Place::Stream(index))?;
        if self.free.pop().is_none() {
            self.slots.push(Slot::default());
        }
        self.memory += self.config.bytes(false);
        stream.may_want = self.config.bytes(false) < self.config.bytes(true);
        let slot = &mut self.slots[index as usize];
        slot.stream = Some(Box::new(stream));
        Ok(StreamId { index, generation: slot.generation })
    }

    fn stream(&self, id: StreamId) -> Result<&Stream, Error> {
        let slot = self.slots.get(id.index as usize).filter(|slot| slot.generation == id.generation);
        slot.and_then(|slot| slot.stream.as_deref()).ok_or(Error::NoSuch)
    }

    fn stream_mut(&mut self, id: StreamId) -> Result<&mut Stream, Error> {
        let slot = self.slots.get_mut(id.index as usize).filter(|slot| slot.generation == id.generation);
        slot.and_then(|slot| slot.stream.as_deref_mut()).ok_or(Error::NoSuch)
    }

    /// The stream with this index, whoever owns it.
    fn at(&mut self, index: u32) -> Option<&mut Stream> {
        self.slots.get_mut(index as usize)?.stream.as_deref_mut()
    }

    /// The state of a stream.
    pub fn info(&self, id: StreamId) -> Result<Info, Error> {
        let stream = self.stream(id)?;
        let socket = stream.socket.get();
        Ok(Info {
            local: stream.tuple.local,
            remote: stream.tuple.remote,
            connected: stream.open,
            segment: self.config.mtu - crate::segment::headers(stream.tuple.remote.ip()),
            readable: socket.recv_queue(),
            room: if socket.may_send() { socket.send_capacity() - socket.send_queue() } else { 0 },
            unacknowledged: socket.send_queue(),
            peer_closed: stream.peer_closed(),
            end: stream.end,
        })
    }

    /// What the owner has done with a stream.
    pub fn progress(&self, id: StreamId) -> Result<Progress, Error> {
        Ok(self.stream(id)?.progressed)
    }

    /// The stream between these ends, if it is open and has an owner.
    pub fn find(&self, local: SocketAddr, remote: SocketAddr) -> Option<StreamId> {
        let Some(Place::Stream(index)) = self.table.get(&Tuple { local, remote }) else { return None };
        let slot = self.slots.get(index as usize)?;
        let stream = slot.stream.as_deref()?;
        let is_open = stream.open && stream.end.is_none() && !stream.orphan && stream.listener.is_none();
        is_open.then_some(StreamId { index, generation: slot.generation })
    }

    /// Lets `write` write to the start of the free bytes of the stream's ring; it returns how many
    /// it wrote, and a result. These are the free bytes in one piece: if the ring has more, the
    /// next call gets the others.
    ///
    /// If it writes none, [`Happened::WRITABLE`] follows when there is more room than now. In an
    /// empty ring there will never be more.
    pub fn send<R>(&mut self, id: StreamId, write: impl FnOnce(&mut [u8]) -> (usize, R)) -> Result<R, Error> {
        let stream = self.stream_mut(id)?;
        if stream.end.is_none() && !stream.open {
            return Err(Error::NotConnected);
        }
        if stream.end.is_some() || !stream.socket.get().may_send() {
            return Err(Error::Closed);
        }
        if stream.waits_for_rings() {
            return Ok(write(&mut []).1);
        }
        if stream.wants && stream.has_acknowledged() {
            self.grow(id.index);
        }
        let (result, written) = self.stream_mut(id)?.write(write).ok_or(Error::Closed)?;
        if written {
            self.wake(id.index);
        }
        Ok(result)
    }

    /// Lets `read` take from the start of the bytes that have arrived; it returns how many it has
    /// taken, and a result. These are the bytes in one piece: if the ring has more, the next call
    /// gets the others. If none has arrived, `read` gets none.
    pub fn receive<R>(&mut self, id: StreamId, read: impl FnOnce(&[u8]) -> (usize, R)) -> Result<R, Error> {
        let stream = self.stream_mut(id)?;
        if stream.socket.get().recv_queue() == 0 {
            return match stream {
                Stream { end: None, open: false, .. } => Err(Error::NotConnected),
                stream if stream.end.is_some() || stream.peer_closed() => Err(Error::Closed),
                _ => Ok(read(&[]).1),
            };
        }
        let (result, taken) = stream.read(read).ok_or(Error::Closed)?;
        let ended = stream.end.is_some();
        // The peer may have to learn of a larger window.
        if taken && !ended {
            self.wake(id.index);
        }
        Ok(result)
    }

    /// Closes this side's direction: the peer learns it behind the bytes that were written. The
    /// peer's direction stays open; it has to be closed in [`Config::linger`] after the peer has
    /// sent or acknowledged anything.
    pub fn close(&mut self, id: StreamId, now: Instant) -> Result<(), Error> {
        let stream = self.stream_mut(id)?;
        if stream.end.is_some() {
            return Err(Error::Closed);
        }
        if !stream.open {
            return Err(Error::NotConnected);
        }
        stream.socket.get_mut().close();
        stream.progress = now;
        self.wake(id.index);
        Ok(())
    }

    /// Gives a stream back; its id is void. If the connection has not ended, it is closed as by
    /// [`Streams::close`], and the peer gets what was written. It gets a reset if it has sent
    /// anything that the owner has not taken, or sends more; and after [`Config::user_timeout`],
    /// whatever it does.
    pub fn release(&mut self, id: StreamId, now: Instant) -> Result<(), Error> {
        self.drain(id, 0, now)
    }

    /// As [`Streams::release`], but so many bytes of the peer are dropped before it gets a reset,
    /// which would overtake what was written.
    pub fn drain(&mut self, id: StreamId, drops: usize, now: Instant) -> Result<(), Error> {
        let until = now + self.config.user_timeout;
        let stream = self.stream_mut(id)?;
        if stream.end.is_some() {
            self.remove(id.index);
            return Ok(());
        }
        stream.drops = drops;
        if !stream.open || !stream.drop_arrived() {
            return self.abort(id);
        }
        stream.socket.get_mut().close();
        stream.progress = now;
        stream.orphan = true;
        self.leaving.set(id.index, Some(until));
        self.disown(id.index);
        self.wake(id.index);
        Ok(())
    }

    /// Ends a connection at once and gives the stream back; its id is void. The peer gets a reset.
    pub fn abort(&mut self, id: StreamId) -> Result<(), Error> {
        let stream = self.stream_mut(id)?;
        if stream.end.is_some() {
            self.remove(id.index);
            return Ok(());
        }
        self.doom(id.index);
        Ok(())
    }

    /// Ends all connections at once, those of streams that were given back as well; all ids of
    /// streams are void. The peers get resets.
    pub fn abort_all(&mut self) {
        for index in 0..self.slots.len() as u32 {
            match self.at(index) {
                Some(stream) if stream.dying => {}
                Some(stream) if stream.end.is_some() => self.remove(index),
                Some(_) => self.doom(index),
                None => {}
            }
        }
    }

    /// Whether no stream has a place.
    pub fn is_empty(&self) -> bool {
        self.slots.len() == self.free.len()
    }

    /// Whether all peers know of the ends: of what was written to streams that were closed and of
    /// their ends each peer has acknowledged everything, and the resets have left. Looks at all
    /// streams.
    pub fn are_settled(&self) -> bool {
        let mut streams = self.slots.iter().filter_map(|slot| slot.stream.as_deref());
        streams.all(|stream| {
            let waits = matches!(stream.state(), State::FinWait1 | State::Closing | State::LastAck);
            stream.end.is_some() || !(waits || stream.dying || stream.given_up.is_some())
        })
    }

    /// Takes the stream at `index` its name, and leaves it nothing but to send a reset.
    fn doom(&mut self, index: u32) {
        let Some(stream) = self.at(index) else { return };
        stream.socket.get_mut().abort();
        (stream.dying, stream.orphan) = (true, true);
        let tuple = stream.tuple;
        self.table.remove(&tuple);
        self.leave_listener(index);
        self.timers.set(index, None);
        self.leaving.set(index, None);
        self.unpark(index);
        self.disown(index);
        self.wake(index);
    }

    /// Makes the ids of the stream at `index` void.
    fn disown(&mut self, index: u32) {
        if let Some(slot) = self.slots.get_mut(index as usize) {
            slot.generation = slot.generation.wrapping_add(1);
        }
    }

    /// Frees the place of the stream at `index`.
    fn remove(&mut self, index: u32) {
        self.unpark(index);
        self.timers.set(index, None);
        self.leaving.set(index, None);
        self.disown(index);
        let Some(stream) = self.slots.get_mut(index as usize).and_then(|slot| slot.stream.take()) else {
            return;
        };
        if self.table.get(&stream.tuple) == Some(Place::Stream(index)) {
            self.table.remove(&stream.tuple);
        }
        self.memory -= self.config.bytes(stream.large.is_some());
        if let Some(place) = stream.large {
            self.forget_large(place);
        }
        self.free.push(index);
    }

    /// The stream at `index` has something to do.
    fn wake(&mut self, index: u32) {
        if let Some(slot) = self.slots.get_mut(index as usize)
            && !core::mem::replace(&mut slot.ready, true)
        {
            self.ready.push_back(index);
        }
    }

    /// The owner of the stream at `index` has to be told something, if there is anything.
    /// [`Streams::next_event`] passes over a stream that has no owner.
    fn tell(&mut self, index: u32) {
        if let Some(slot) = self.slots.get_mut(index as usize)
            && slot.stream.as_ref().is_some_and(|stream| !stream.happened.is_empty())
            && !core::mem::replace(&mut slot.told, true)
        {
            self.events.push_back(index);
        }
    }

    /// What happened next. Each stream and each listener is in the queue once at most, with all
    /// that has happened to it, so nothing is lost and the queue does not grow.
    pub fn next_event(&mut self) -> Option<Event> {
        while let Some(index) = self.calls.pop_front() {
            if let Some(id) = self.called(index) {
                return Some(Event::Waiting(id));
            }
        }
        while let Some(index) = self.events.pop_front() {
            let Some(slot) = self.slots.get_mut(index as usize) else { continue };
            slot.told = false;
            let id = StreamId { index, generation: slot.generation };
            if let Some(stream) = slot.stream.as_deref_mut()
                && !stream.orphan
                && stream.listener.is_none()
            {
                let happened = core::mem::replace(&mut stream.happened, Happened::empty());
                if !happened.is_empty() {
                    return Some(Event::Stream(id, happened));
                }
            }
        }
        None
    }

    /// The port has learned a peer's MAC, or has given it up: the streams that wait for it go on.
    pub fn settled(&mut self, peer: IpAddr) {
        for index in self.parked.remove(&peer).unwrap_or_default() {
            if let Some(stream) = self.at(index) {
                stream.parked = None;
            }
            self.wake(index);
        }
    }

    /// Lets the stream at `index` wait for the MAC of its peer.
    fn park(&mut self, index: u32) {
        let Some(stream) = self.slots.get_mut(index as usize).and_then(|slot| slot.stream.as_deref_mut())
        else {
            return;
        };
        if stream.parked.is_none() {
            let list = self.parked.entry(stream.tuple.remote.ip()).or_default();
            stream.parked = Some(list.len() as u32);
            list.push(index);
        }
    }

    /// The stream at `index` no longer waits for a MAC.
    fn unpark(&mut self, index: u32) {
        let Some(stream) = self.at(index) else { return };
        let Some(place) = stream.parked.take() else { return };
        let peer = stream.tuple.remote.ip();
        let Some(list) = self.parked.get_mut(&peer) else { return };
        list.swap_remove(place as usize);
        let moved = list.get(place as usize).copied();
        if list.is_empty() {
            self.parked.remove(&peer);
        }
        if let Some(stream) = moved.and_then(|index| self.at(index)) {
            stream.parked = Some(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_can_hand_streams_to_another() {
        fn is_send<T: Send>() {}
        is_send::<Streams>();
    }
}
