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
//! Peers are served in turn. A peer that does not take its frames loses them when its queue is
//! full. Before that the owner waits for the peer a short time, so that a peer that is only slow
//! loses none.

mod peer;
mod poller;

use std::path::Path;

use platform::Instant;
use rustix::event::epoll::Event;

use crate::stream::{BadLength, Connection, Listener};
use crate::{Counters, Dropped, Link, OpenError, PollFd, Wire};
use peer::{Addresses, Peer};
use poller::{NO_EVENT, Poller, Source};

/// An Ethernet address.
type Mac = [u8; 6];

/// The most peers at a time. Further ones wait in the socket's queue.
const PEERS: usize = 16;
/// The most frames to handle, and reads, in one call.
const SHARE: u32 = 64;

/// The destination and the source address of a frame.
fn addresses(frame: &[u8]) -> Option<(Mac, Mac)> {
    let (to, rest) = frame.split_first_chunk()?;
    Some((*to, *rest.first_chunk()?))
}

/// Whether an address is a group's.
fn is_group(address: Mac) -> bool {
    address[0] & 1 != 0
}

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
    /// Those of the active peers whose sockets have bytes to read.
    readable: Places,
    /// The index of the peer that is served next.
    turn: usize,
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
            now: Instant::ZERO,
            again: None,
            counters: Counters::default(),
        };
        switch.poller.add(&switch.listener, Source::Listener).map_err(failed)?;
        switch.listens = true;
        Ok(switch)
    }

    /// Watches the listener while there is room for another peer, and only then.
    fn watch_listener(&mut self) {
        let rests = self.listener.deadline().is_some_and(|until| self.now < until);
        let wanted = !rests && self.peers.iter().any(Option::is_none);
        let changed = match (self.listens, wanted) {
            (false, true) => self.poller.add(&self.listener, Source::Listener),
            (true, false) => self.poller.remove(&self.listener),
            _ => return,
        };
        if changed.is_ok() {
            self.listens = wanted;
        }
    }

    /// Accepts a waiting peer, if there is one.
    fn accept(&mut self) {
        if let Some(place) = self.peers.iter().position(Option::is_none)
            && let Some(socket) = self.listener.accept(self.now)
        {
            match self.poller.add(&socket, Source::Peer(place)) {
                Ok(()) => {
                    self.counters.peers += 1;
                    self.peers[place] = Some(Box::new(Peer::new(Connection::new(socket))));
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
        let mut events: [Event; PEERS + 1] = [NO_EVENT; PEERS + 1];
        for source in self.poller.ready(&mut events) {
            match source {
                Source::Listener => self.accept(),
                Source::Peer(place) => {
                    self.active.insert(place);
                    self.readable.insert(place);
                }
            }
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
                let found = self.pass(frame, &mut peer.addresses, into);
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

    /// Passes the frame of a peer with these addresses to its destination. The peer itself is taken
    /// out of the table during the call. Returns the frame's length if it is for the owner.
    fn pass(&mut self, frame: &[u8], own: &mut Addresses, into: &mut [u8]) -> Option<usize> {
        if !self.counters.check_size(frame) {
            return None;
        }
        let (to, from) = addresses(frame)?;
        if !own.contains(from) {
            if self.is_taken(from) {
                self.counters.drop(Dropped::BadSource);
                return None;
            }
            own.learn(from);
        }
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
        is_group(from) || from == self.mac || others.any(|peer| peer.addresses.contains(from))
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
            sent |= peer.send(frame, now, &mut self.counters);
        }
        if sent {
            self.counters.count_sent(frame.len());
        } else if !reached {
            self.counters.drop(Dropped::NoPeer);
        }
    }

    /// False while the owner has to wait for a peer whose queue is full: until half of the queue is
    /// free, but only for a short time. A peer that takes longer loses its frames.
    fn has_room(&self) -> bool {
        let awaited = self.peers.iter().flatten().filter(|peer| peer.connection.is_open());
        !awaited.filter_map(|peer| peer.awaited_until()).any(|until| self.now < until)
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
            let place = self.active.next(self.turn)?;
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
            peer.flush(now, &mut self.counters);
        }
        self.watch_peers();
    }

    /// Always up: the cable of the owner's port ends at the switch.
    fn up(&self) -> bool {
        true
    }

    fn deadline(&self) -> Option<Instant> {
        let rest = self.listener.deadline().filter(|_| !self.listens);
        let awaited = self.peers.iter().flatten().filter_map(|peer| peer.awaited_until());
        let awaited = awaited.filter(|until| self.now < *until).min();
        [self.again, rest, awaited].into_iter().flatten().min()
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
