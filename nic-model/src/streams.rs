//! TCP streams of the port: the driver's numbers for them, and the events that tell it what
//! happened. The connections themselves are [`tcp::Streams`].
//!
//! A stream or listener has one event outstanding at most: what happens is kept until the driver
//! queries the object, and an event is raised when something happens for the first time after a
//! query.

use alloc::collections::BTreeMap;
use core::net::{IpAddr, SocketAddr};

use nic_abi::admin::{StreamEnd, StreamHappened};
use platform::{Instant, Secret};
use roce::Gid;
use tcp::{End, Event, Happened, ListenerId, StreamId, Unreachable};

use crate::tables::Table;

/// What the secret of the streams is derived by.
const PURPOSE: u64 = 2;

/// What the driver's number names.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Stream(StreamId),
    Listener(ListenerId),
}

/// A stream or a listener.
pub(crate) struct Object {
    pub kind: Kind,
    pub eq: u32,
    generation: u32,
    /// What has happened since the driver's last query.
    happened: StreamHappened,
}

/// An event for the driver.
pub(crate) struct Told {
    pub eq: u32,
    pub number: u32,
    pub generation: u32,
}

/// The streams of a port.
pub(crate) struct Streams {
    pub tcp: tcp::Streams,
    objects: Table<Object>,
    /// The driver's numbers.
    streams: BTreeMap<StreamId, u32>,
    listeners: BTreeMap<ListenerId, u32>,
    /// The wire had no room when streams had their turn.
    pub full: bool,
    /// Events of `tcp` may wait.
    pub untold: bool,
}

impl Streams {
    /// The streams of a port with this MTU.
    pub fn new(mtu: usize, secret: Secret) -> Result<Streams, tcp::Error> {
        Ok(Streams {
            tcp: tcp::Streams::new(tcp::Config::new(mtu, secret.derive(PURPOSE)))?,
            objects: Table::new(),
            streams: BTreeMap::new(),
            listeners: BTreeMap::new(),
            full: false,
            untold: false,
        })
    }

    pub fn get(&self, number: u32) -> Option<&Object> {
        self.objects.get(number)
    }

    /// The stream with this number; `None` also for a listener.
    pub fn stream(&self, number: u32) -> Option<StreamId> {
        match self.objects.get(number)?.kind {
            Kind::Stream(id) => Some(id),
            Kind::Listener(_) => None,
        }
    }

    /// The listener with this number; `None` also for a stream.
    pub fn listener(&self, number: u32) -> Option<ListenerId> {
        match self.objects.get(number)?.kind {
            Kind::Listener(id) => Some(id),
            Kind::Stream(_) => None,
        }
    }

    /// Gives a stream or a listener its number, which is free.
    pub fn add(&mut self, number: u32, kind: Kind, eq: u32, generation: u32) {
        match kind {
            Kind::Stream(id) => self.streams.insert(id, number),
            Kind::Listener(id) => self.listeners.insert(id, number),
        };
        self.objects.insert(number, Object { kind, eq, generation, happened: StreamHappened::empty() });
        // What happened before may wait.
        self.untold = true;
    }

    /// Takes a stream or a listener its number.
    pub fn remove(&mut self, number: u32) -> Option<u32> {
        let object = self.objects.remove(number)?;
        match object.kind {
            Kind::Stream(id) => self.streams.remove(&id),
            Kind::Listener(id) => self.listeners.remove(&id),
        };
        Some(object.eq)
    }

    /// What has happened since the last call. What happens next raises an event again.
    pub fn take_happened(&mut self, number: u32) -> StreamHappened {
        match self.objects.get_mut(number) {
            Some(object) => core::mem::take(&mut object.happened),
            None => StreamHappened::empty(),
        }
    }

    /// Ends everything: the driver has gone.
    pub fn clear(&mut self) {
        // Neither fails: the ids are those of objects that exist.
        for (id, _) in core::mem::take(&mut self.listeners) {
            let _ = self.tcp.stop(id);
        }
        for (id, _) in core::mem::take(&mut self.streams) {
            let _ = self.tcp.abort(id);
        }
        self.objects = Table::new();
    }

    /// When the streams must have a turn at the latest.
    pub fn deadline(&self, has_room: bool) -> Option<Instant> {
        // What waits for a wire that was full has no deadline of its own.
        let goes_on = self.untold || self.full && has_room;
        if goes_on { Some(Instant::ZERO) } else { self.tcp.deadline() }
    }

    /// Takes note of what happened next. Returns what the driver is to be told, if it was not told
    /// of this object already; `None` if nothing happened.
    pub fn next_event(&mut self) -> Option<Option<Told>> {
        let Some(next) = self.tcp.next_event() else {
            self.untold = false;
            return None;
        };
        let (number, happened) = match next {
            Event::Stream(id, happened) => (self.streams.get(&id), told(happened)),
            Event::Waiting(id) => (self.listeners.get(&id), StreamHappened::WAITING),
        };
        let Some(&number) = number else { return Some(None) };
        let Some(object) = self.objects.get_mut(number) else { return Some(None) };
        let is_first = object.happened.is_empty();
        object.happened |= happened;
        Some(is_first.then_some(Told { eq: object.eq, number, generation: object.generation }))
    }
}

fn told(happened: Happened) -> StreamHappened {
    let each = [
        (Happened::CONNECTED, StreamHappened::CONNECTED),
        (Happened::READABLE, StreamHappened::READABLE),
        (Happened::WRITABLE, StreamHappened::WRITABLE),
        (Happened::PEER_CLOSED, StreamHappened::PEER_CLOSED),
        (Happened::ENDED, StreamHappened::ENDED),
    ];
    each.iter().filter(|(own, _)| happened.contains(*own)).map(|(_, told)| *told).collect()
}

/// How a connection has ended, for the driver.
pub(crate) fn end_of(end: Option<End>) -> StreamEnd {
    match end {
        None => StreamEnd::None,
        Some(End::Closed) => StreamEnd::Closed,
        Some(End::Refused) => StreamEnd::Refused,
        Some(End::Unreachable(Unreachable::Link)) => StreamEnd::NoWay,
        Some(End::Unreachable(Unreachable::Network)) => StreamEnd::NetworkUnreachable,
        Some(End::Unreachable(Unreachable::Host)) => StreamEnd::HostUnreachable,
        Some(End::Unreachable(Unreachable::Port)) => StreamEnd::PortUnreachable,
        Some(End::Unreachable(Unreachable::Prohibited)) => StreamEnd::Prohibited,
        Some(End::ConnectTimeout) => StreamEnd::ConnectTimeout,
        Some(End::Reset) => StreamEnd::Reset,
        Some(End::TimedOut) => StreamEnd::TimedOut,
    }
}

/// The GID of an address.
pub(crate) fn gid_of(address: IpAddr) -> Gid {
    match address {
        IpAddr::V4(v4) => Gid::from_ipv4(v4),
        IpAddr::V6(v6) => Gid::from_ipv6(v6),
    }
}

/// The end of a connection, as a command names it.
pub(crate) fn socket_of(gid: [u8; 16], port: u16) -> SocketAddr {
    SocketAddr::new(Gid(gid).to_ip(), port)
}
