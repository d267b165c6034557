//! TCP streams of a NIC: who uses them, the driver's numbers for them, and the events that tell
//! it what happened. The connections themselves are [`tcp::Streams`].
//!
//! The driver uses a stream until a queue pair takes it, and with it the stream's number. A stream
//! that a queue pair gives back is *drained* ([`tcp::Streams::drain`]): this side's direction is
//! closed, and what the peer still sends is dropped until it has closed its direction, too. A reset
//! would overtake the Terminate that the peer has to read. A peer that sends on and on gets one
//! after [`MAX_DRAINED`] bytes.
//!
//! When the driver has gone, by a reset of the device or because its machine has ended, connections
//! that it has closed before go on to their ends for [`LEAVING`] at most. All others are reset.
//!
//! A stream or listener has one event outstanding at most: what happens is kept until the driver
//! queries the object, and an event is raised when something happens for the first time after a
//! query.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use nic_abi::admin::{StreamEnd, StreamHappened};
use platform::{Instant, Secret};
use roce::Gid;
use tcp::{End, Event, Happened, ListenerId, StreamId, Unreachable};

use crate::ids::NicId;
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

/// To whom the NIC reports what happened to a stream.
pub(crate) enum Told {
    /// The driver, by an event.
    Driver { eq: u32, number: u32, generation: u32 },
    /// The queue pair in this slot.
    Qp(u32),
    /// To nobody: the driver has an event already and has not queried yet.
    Nobody,
}

/// Who uses a stream.
#[derive(Clone, Copy)]
enum User {
    /// The driver, under this number.
    Driver(u32),
    /// The queue pair in this slot.
    Qp(u32),
}

/// How long closed connections go on when their driver has gone; then their peers get resets.
const LEAVING: Duration = Duration::from_secs(2);
/// How much a peer may send after the end of a queue pair's connection.
const MAX_DRAINED: usize = 1 << 20;

/// The MTU of the short cut between NICs of one process, for streams: a ring holds some segments.
pub(crate) const SHORT_CUT_MTU: usize = 16 << 10;
/// Packets that wait for the streams of a NIC, of its neighbours on the short cut.
const INBOX: usize = 128;

/// The streams of a NIC.
pub(crate) struct Streams {
    pub tcp: tcp::Streams,
    objects: Table<Object>,
    users: BTreeMap<StreamId, User>,
    /// The driver's numbers.
    listeners: BTreeMap<ListenerId, u32>,
    /// The wire, or the inbox of a neighbour, had no room when streams had their turn.
    pub full: bool,
    /// Events of `tcp` may wait.
    pub untold: bool,
    /// Packets that have come by the short cut. As by a port, none is taken before the driver has
    /// started the device.
    inbox: VecDeque<(NicId, Vec<u8>)>,
    takes: bool,
    /// The driver has gone, and until then its connections come to their ends.
    leaving: Option<Instant>,
}

impl Streams {
    /// Streams over a link with this MTU.
    pub fn new(mtu: usize, secret: Secret) -> Result<Streams, tcp::Error> {
        Ok(Streams {
            tcp: tcp::Streams::new(tcp::Config::new(mtu, secret.derive(PURPOSE)))?,
            objects: Table::new(),
            users: BTreeMap::new(),
            listeners: BTreeMap::new(),
            full: false,
            untold: false,
            inbox: VecDeque::new(),
            takes: false,
            leaving: None,
        })
    }

    /// The driver has started the device: from now on the NIC takes packets, and resets those that
    /// no stream and no listener wants. Connections of a former driver that are closing have no
    /// other end than those of this one.
    pub fn start(&mut self) {
        (self.takes, self.leaving) = (true, None);
    }

    /// Whether the driver has gone, and connections that it had come to their ends.
    pub fn are_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Whether the inbox takes another packet.
    pub fn has_room(&self) -> bool {
        self.inbox.len() < INBOX
    }

    /// Takes a packet of a NIC that has come by the short cut, unless there is no room for it: then
    /// it is lost.
    pub fn put(&mut self, from: NicId, packet: Vec<u8>) {
        if (self.takes || self.are_leaving()) && self.has_room() {
            self.inbox.push_back((from, packet));
        }
    }

    /// The packet that has waited longest, and whose it is.
    pub fn next_packet(&mut self) -> Option<(NicId, Vec<u8>)> {
        self.inbox.pop_front()
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
            Kind::Stream(id) => _ = self.users.insert(id, User::Driver(number)),
            Kind::Listener(id) => _ = self.listeners.insert(id, number),
        }
        self.objects.insert(number, Object { kind, eq, generation, happened: StreamHappened::empty() });
        // What happened before may wait.
        self.untold = true;
    }

    /// Takes a stream or a listener its number.
    pub fn remove(&mut self, number: u32) -> Option<u32> {
        let object = self.objects.remove(number)?;
        match object.kind {
            Kind::Stream(id) => _ = self.users.remove(&id),
            Kind::Listener(id) => _ = self.listeners.remove(&id),
        }
        Some(object.eq)
    }

    /// Gives the stream with this number to the queue pair in a slot. The number is free then;
    /// returns the stream and the event queue that the number has used.
    pub fn bind(&mut self, number: u32, slot: u32) -> Option<(StreamId, u32)> {
        let id = self.stream(number)?;
        let eq = self.remove(number)?;
        self.users.insert(id, User::Qp(slot));
        Some((id, eq))
    }

    /// The slot of the queue pair that has the stream between these ends.
    pub fn qp_between(&self, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
        let id = self.tcp.find(local, remote)?;
        match self.users.get(&id)? {
            User::Qp(slot) => Some(*slot),
            User::Driver(_) => None,
        }
    }

    /// Takes a stream back from a queue pair: closes it, and drops what the peer still sends.
    pub fn drain(&mut self, id: StreamId, now: Instant) {
        self.users.remove(&id);
        // It may have ended.
        let _ = self.tcp.drain(id, MAX_DRAINED, now);
    }

    /// Takes a stream back from a queue pair, and resets it.
    pub fn cut(&mut self, id: StreamId) {
        self.users.remove(&id);
        // It may have ended.
        let _ = self.tcp.abort(id);
    }

    /// What has happened since the last call. What happens next raises an event again.
    pub fn take_happened(&mut self, number: u32) -> StreamHappened {
        match self.objects.get_mut(number) {
            Some(object) => core::mem::take(&mut object.happened),
            None => StreamHappened::empty(),
        }
    }

    /// Ends everything, because the driver has gone: resets connections, except those that are
    /// closed, which go on.
    pub fn clear(&mut self, now: Instant) {
        // Neither fails: the ids are those of objects that exist.
        for (id, _) in core::mem::take(&mut self.listeners) {
            let _ = self.tcp.stop(id);
        }
        // Those that were given back are nobody's here, and go on.
        for (id, _) in core::mem::take(&mut self.users) {
            let _ = self.tcp.abort(id);
        }
        self.objects = Table::new();
        self.takes = false;
        // A second reset gives no more time.
        let until = self.leaving.unwrap_or(now + LEAVING);
        self.leaving = (!self.tcp.is_empty()).then_some(until);
        if !self.are_leaving() {
            self.inbox.clear();
        }
    }

    /// Resets what has not come to its end in time: this is the last turn of the streams then, and
    /// as many resets are sent as one turn sends packets.
    pub fn leave(&mut self, now: Instant) {
        if self.leaving.is_some_and(|until| until <= now) {
            self.tcp.abort_all();
        }
    }

    /// The turn at this moment is over. Returns whether streams whose driver has gone had their
    /// last one.
    pub fn has_left(&mut self, now: Instant) -> bool {
        let over = self.leaving.is_some_and(|until| until <= now || self.tcp.is_empty());
        if over {
            self.leaving = None;
            self.inbox.clear();
        }
        over
    }

    /// When the streams must have a turn at the latest.
    pub fn deadline(&self, has_room: bool) -> Option<Instant> {
        // What waits for a wire that was full has no deadline of its own.
        let goes_on = self.untold || !self.inbox.is_empty() || self.full && has_room;
        if goes_on {
            return Some(Instant::ZERO);
        }
        self.tcp.deadline().into_iter().chain(self.leaving).min()
    }

    /// Takes note of what happened next, and returns to whom the NIC reports it; `None` if nothing
    /// happened.
    pub fn next_event(&mut self) -> Option<Told> {
        let Some(next) = self.tcp.next_event() else {
            self.untold = false;
            return None;
        };
        let (number, happened) = match next {
            Event::Stream(id, happened) => match self.users.get(&id) {
                Some(&User::Driver(number)) => (number, told(happened)),
                Some(&User::Qp(slot)) => return Some(Told::Qp(slot)),
                None => return Some(Told::Nobody),
            },
            Event::Waiting(id) => match self.listeners.get(&id) {
                Some(&number) => (number, StreamHappened::WAITING),
                None => return Some(Told::Nobody),
            },
        };
        let Some(object) = self.objects.get_mut(number) else { return Some(Told::Nobody) };
        let is_first = object.happened.is_empty();
        object.happened |= happened;
        Some(match is_first {
            true => Told::Driver { eq: object.eq, number, generation: object.generation },
            false => Told::Nobody,
        })
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
