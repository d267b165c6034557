//! A switch: a port for its owner, and one for each peer that connects to a UNIX socket.
//!
//! The destination address decides where a frame goes: to the owner, to the peer that has sent from
//! that address, or, for a group, to all. So the peers can reach the owner and each other. A frame
//! to an address from which no peer has sent is dropped. That loses nothing, since hosts find each
//! other by frames to groups; and a frame for one peer never reaches another one.
//!
//! An address belongs to the first peer that sends from it, until that peer leaves. Frames of other
//! peers from the same address are dropped, so no peer can get the frames of another one.
//!
//! Peers are served in turn, a frame of each, and after a few frames the switch looks for peers
//! that have become readable, have connected or have left. A peer that does not take its frames
//! loses them when its queue is full. The owner waits for room only while it has no other peer that
//! it could keep waiting.
//!
//! When all places are taken, a newcomer replaces a peer that has never sent a frame, a second
//! after that one connected, or else the peer that has been silent for longest, if that is at least
//! five minutes. So a peer that does not use its place does not keep it.

mod peer;

use std::path::Path;

use platform::Instant;
use rustix::event::epoll::Event;

use crate::frame::{Mac, addresses, is_group};
use crate::poller::{NO_EVENT, Poller, Source};
use crate::stream::{BadLength, Connection, Listener};
use crate::{Counters, Dropped, Link, OpenError, PollFd, Wire};
use peer::{Peer, Sender};

/// The most peers at a time. Further ones wait in the socket's queue until a place is free, or
/// until a peer yields its place.
const PEERS: usize = 16;
/// The most frames to handle, and reads, in one call.
const SHARE: u32 = 64;
/// After how many frames and reads the switch looks for events again although there are more.
const LOOK: u32 = 16;

/// A set of places.
#[derive(Clone, Copy, Debug, Default)]
struct Places(u32);

const _: () = assert!(PEERS <= 32);

impl Places {
    fn insert(&mut self, place: usize) {
        self.0 |= 1 << place;
    }

    fn remove(&mut self, place: usize) {
        self.0 &= !(1 << place);
    }

    fn contains(self, place: usize) -> bool {
        self.0 & 1 << place != 0
    }

    /// The first peer of the set at or after `turn`, in cyclic order.
    fn next(self, turn: usize) -> Option<usize> {
        (turn..PEERS).chain(0..turn).find(|place| self.contains(*place))
    }
}

/// A switch, of which the owner has one port.
#[derive(Debug)]
pub struct Switch {
    /// The owner's address.
    mac: Mac,
    poller: Poller,
    listener: Listener,
    /// Whether the poller watches the listener.
    listens: bool,
    peers: [Option<Box<Peer>>; PEERS],
    /// Peers with bytes that were read and not handled, or that may be read.
    active: Places,
    /// The active peers whose sockets have bytes to read.
    readable: Places,
    /// The index of the peer that is served next.
    turn: usize,
    /// How many frames and reads there were since the last look for events.
    unlooked: u32,
    /// The time of the last call.
    now: Instant,
    /// The time of the last call that left frames of peers unhandled.
    again: Option<Instant>,
    counters: Counters,
}

impl Switch {
    /// Listens at `path` for peers of an owner whose port has the address `mac`. The socket exists
    /// when this returns, and is removed when the switch is dropped. A socket that a process left
    /// there when it ended is replaced.
    pub fn listen(path: &Path, mac: [u8; 6]) -> Result<Switch, OpenError> {
        let failed = |error| OpenError::system("watch the sockets of a switch", error);
        let mut switch = Switch {
            mac,
            poller: Poller::new().map_err(failed)?,
            listener: Listener::bind(path)?,
            listens: false,
            peers: Default::default(),
            active: Places::default(),
            readable: Places::default(),
            turn: 0,
            unlooked: 0,
            now: Instant::ZERO,
            again: None,
            counters: Counters::default(),
        };
        switch.poller.add(&switch.listener, Source::Listener).map_err(failed)?;
        switch.listens = true;
        Ok(switch)
    }

    /// Watches the listener while a peer that connects would get a place, and only then.
    fn watch_listener(&mut self) {
        let rests = self.listener.deadline().is_some_and(|until| self.now < until);
        let wanted = !rests && self.place().is_some();
        let changed = match (self.listens, wanted) {
            (false, true) => self.poller.add(&self.listener, Source::Listener),
            (true, false) => self.poller.remove(&self.listener),
            _ => return,
        };
        if changed.is_ok() {
            self.listens = wanted;
        }
    }

    /// The place for a peer that connects now: a free one, or that of a peer that yields it. One
    /// whose bytes are not handled yet keeps its place: a frame may be among them.
    fn place(&self) -> Option<usize> {
        let free = self.peers.iter().position(Option::is_none);
        free.or_else(|| {
            let peers = self.peers.iter().enumerate().filter(|(place, _)| !self.active.contains(*place));
            let senders = peers.filter_map(|(place, peer)| Some((&peer.as_ref()?.sender, place)));
            let yielding = senders.filter(|(sender, _)| sender.yields_at() <= self.now);
            yielding.min_by_key(|(sender, _)| sender.rank()).map(|(_, place)| place)
        })
    }

    /// When the first peer yields its place, if all are taken.
    fn yields_at(&self) -> Option<Instant> {
        self.peers.iter().map(|peer| peer.as_ref().map(|peer| peer.sender.yields_at())).min().flatten()
    }

    /// Accepts a waiting peer, if there is one and a place for it.
    fn accept(&mut self) {
        if let Some(place) = self.place()
            && let Some(socket) = self.listener.accept(self.now)
        {
            if let Some(silent) = self.peers[place].take() {
                self.counters.replaced += 1;
                self.leave(place, *silent);
            }
            match self.poller.add(&socket, Source::Peer(place)) {
                Ok(()) => {
                    self.counters.peers += 1;
                    self.peers[place] = Some(Box::new(Peer::new(Connection::new(socket), self.now)));
                }
                Err(_) => self.listener.rest(self.now),
            }
        }
        self.watch_listener();
    }

    /// Leaves a peer.
    fn leave(&mut self, place: usize, peer: Peer) {
        peer.connection.leave(&mut self.counters);
        self.active.remove(place);
        self.readable.remove(place);
        self.watch_listener();
    }

    /// Marks the peers whose sockets report an event, and accepts peers that connect. Does not
    /// wait.
    fn look(&mut self) {
        self.unlooked = 0;
        let mut events: [Event; PEERS + 1] = [NO_EVENT; PEERS + 1];
        let mut connects = false;
        for source in self.poller.ready(&mut events) {
            match source {
                Source::Listener => connects = true,
                Source::Peer(place) => {
                    self.active.insert(place);
                    self.readable.insert(place);
                }
            }
        }
        // At last: a peer that has just sent something does not yield its place.
        if connects {
            self.accept();
        }
    }

    /// Handles a frame of a peer, or reads once from its socket. Returns the length of a frame that
    /// is for the owner.
    fn serve(&mut self, place: usize, into: &mut [u8]) -> Option<usize> {
        let Some(mut peer) = self.peers.get_mut(place).and_then(Option::take) else {
            self.active.remove(place);
            return None;
        };
        let stays = match peer.connection.next() {
            Ok(Some(frame)) => {
                let found = self.pass(frame, &mut peer.sender, into);
                self.peers[place] = Some(peer);
                return found;
            }
            Ok(None) if self.readable.contains(place) => {
                self.readable.remove(place);
                peer.connection.read()
            }
            Ok(None) => {
                self.active.remove(place);
                true
            }
            Err(BadLength) => {
                self.counters.drop(Dropped::BadLength);
                false
            }
        };
        match stays {
            true => self.peers[place] = Some(peer),
            false => self.leave(place, *peer),
        }
        None
    }

    /// Passes the frame of a peer to its destination. The peer itself is taken out of the table
    /// during the call. Returns the frame's length if it is for the owner.
    fn pass(&mut self, frame: &[u8], sender: &mut Sender, into: &mut [u8]) -> Option<usize> {
        if !self.counters.check_size(frame) {
            return None;
        }
        let (to, from) = addresses(frame)?;
        if !sender.has(from) {
            if self.is_taken(from) {
                self.counters.drop(Dropped::BadSource);
                return None;
            }
            sender.learn(from);
        }
        sender.sent(self.now);
        let is_for_owner = to == self.mac || is_group(to);
        let mut reached = is_for_owner;
        for peer in self.peers.iter_mut().flatten().filter(|peer| peer.takes(to)) {
            peer.forward(frame, &mut self.counters);
            reached = true;
        }
        if !reached {
            self.counters.drop(Dropped::NoPeer);
        }
        if is_for_owner { self.counters.deliver(frame, into) } else { None }
    }

    /// Whether a new address of a peer is refused: it is a group's, the owner's, or another peer's.
    fn is_taken(&self, from: Mac) -> bool {
        let mut others = self.peers.iter().flatten();
        is_group(from) || from == self.mac || others.any(|peer| peer.sender.has(from))
    }

    /// Makes the poller watch for room in the sockets of peers with queued frames, and of no
    /// others.
    fn watch_peers(&mut self) {
        for (place, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            let waits = !peer.connection.queue().is_empty();
            if waits != peer.wakes_for_room
                && self.poller.look_for_room(&peer.connection, Source::Peer(place), waits).is_ok()
            {
                peer.wakes_for_room = waits;
            }
        }
    }
}

impl Wire for Switch {
    fn send(&mut self, frame: &[u8], now: Instant) {
        self.now = now;
        if !self.counters.check_size(frame) {
            return;
        }
        let Some((to, _)) = addresses(frame) else { return };
        let (mut reached, mut sent) = (false, false);
        for peer in self.peers.iter_mut().flatten().filter(|peer| peer.takes(to)) {
            reached = true;
            sent |= peer.send(frame, &mut self.counters);
        }
        if sent {
            self.counters.count_sent(frame.len());
        } else if !reached {
            self.counters.drop(Dropped::NoPeer);
        }
    }

    /// False if the only peer that has sent frames, and so the only one that is sent any, takes
    /// them too slowly: the owner then waits as on a cable. With several peers the owner never
    /// waits, since one of them could make it wait all the time; a slow one loses frames.
    fn has_room(&self) -> bool {
        let mut peers = self.peers.iter().flatten().filter(|peer| peer.sender.has_sent());
        match (peers.next(), peers.next()) {
            (Some(only), None) => !only.connection.is_open() || only.connection.queue().has_room(),
            _ => true,
        }
    }

    fn receive(&mut self, into: &mut [u8], now: Instant) -> Option<usize> {
        (self.now, self.again) = (now, None);
        if !self.listens {
            self.watch_listener();
        }
        if self.active.next(0).is_none() {
            self.look();
        }
        for _ in 0..SHARE {
            if self.unlooked >= LOOK {
                self.look();
            }
            self.unlooked += 1;
            let Some(place) = self.active.next(self.turn) else {
                // Peers that were active a moment ago may yield their places now.
                if !self.listens {
                    self.watch_listener();
                }
                return None;
            };
            self.turn = (place + 1) % PEERS;
            if let Some(len) = self.serve(place, into) {
                return Some(len);
            }
        }
        self.again = Some(now);
        None
    }

    fn flush(&mut self, now: Instant) {
        self.now = now;
        for peer in self.peers.iter_mut().flatten() {
            peer.connection.write(&mut self.counters);
        }
        self.watch_peers();
    }

    /// Always up: the cable of the owner's port ends at the switch.
    fn up(&self) -> bool {
        true
    }

    fn deadline(&self) -> Option<Instant> {
        let comes = |at: &Instant| self.now < *at;
        let rest = self.listener.deadline().filter(comes);
        let place = rest.or_else(|| self.yields_at().filter(comes));
        [self.again, place.filter(|_| !self.listens)].into_iter().flatten().min()
    }
}

impl Link for Switch {
    fn poll_fd(&self) -> Option<PollFd<'_>> {
        Some(self.poller.poll_fd())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
