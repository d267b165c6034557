//! A link between the processes of one machine, in memory that they share.
//!
//! Ports meet in a folder of the file system. Each has a socket there under its MAC, for datagrams:
//! frames to groups go to all sockets. For frames to one port the sender makes a ring in memory at
//! their first use, and sends the memory to the receiver's socket, with one end of a pair of
//! sockets. A byte through that pair wakes a side that sleeps, and its end tells that a side has
//! ended. So no process is needed by others: each may be the first, and leave or be killed at any
//! time.
//!
//! Each side trusts the other with nothing but the frames. The memory cannot shrink
//! ([`crate::memory`]); what a peer writes into it is read once and checked ([`ring`]); a ring with
//! impossible contents is given up. Frames have the sender's MAC or are dropped. A peer that takes
//! no frames makes the owner wait a moment and then loses them; one that floods has its turn among
//! the others. But any process that may open the folder can join, so the folder is the user's own.

mod meeting;
mod peers;
mod ring;

use std::cell::Cell;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use platform::Instant;
use roce::IpPrefix;
use rustix::event::epoll::Event;
use rustix::event::{EventfdFlags, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::frame::{Mac, addresses, is_group};
use crate::memory::{Mapping, sealed_file};
use crate::poller::{NO_EVENT, Poller, Source};
use crate::{Counters, Dropped, Link, MAX_FRAME, OpenError, PollFd, Wire};
use meeting::{Letter, Meeting};
use peers::{IDLE, Receiver, Sender};
use ring::{Broken, Reader, Writer};

/// The most peers that send to a port, and the most to which it sends, at a time.
const PEERS: usize = 128;
/// The most frames and datagrams that are not for the owner in one call.
const SHARE: u32 = 64;
/// How often the sockets are looked at while the owner does not sleep.
const LOOK: Duration = Duration::from_micros(100);
/// How long a peer that could not be invited, or has left, is not invited again.
const REST: Duration = Duration::from_millis(10);
/// The most peers of which that is remembered.
const RESTING: usize = 64;

/// One of the peers in a list that is found by the source of an event: the senders come first.
fn source_of_receiver(place: usize) -> Source {
    Source::Peer(PEERS + place)
}

/// A port's end of a network in shared memory.
#[derive(Debug)]
pub struct Shm {
    mac: Mac,
    meeting: Meeting,
    poller: Poller,
    /// Always ready: what the owner polls if there is something to do already.
    ready: OwnedFd,
    senders: Vec<Option<Box<Sender>>>,
    receivers: Vec<Option<Box<Receiver>>>,
    /// The place of the receiver of the last frame.
    last: usize,
    /// Whose turn it is: a place among the senders, or after them the socket for datagrams.
    turn: usize,
    /// Whether there may be datagrams.
    datagrams: bool,
    /// Whether the owner may sleep.
    asleep: Cell<bool>,
    /// When the sockets are looked at next.
    look_at: Instant,
    /// Whether frames were written since the last flush, and whether a receiver is behind.
    written: bool,
    behind: bool,
    resting: VecDeque<(Mac, Instant)>,
    letter: Box<[u8]>,
    now: Instant,
    /// The time of the last call that left frames unhandled.
    again: Option<Instant>,
    counters: Counters,
}

/// What came of a turn.
enum Served {
    Nothing,
    /// Something that is not for the owner.
    Other,
    Frame(usize),
}

impl Shm {
    /// Joins the network of a folder with a port of this MAC and these addresses. The folder is
    /// made if it is not there. [`OpenError::Taken`]: another process has the MAC or one of the
    /// addresses.
    pub fn join(folder: &Path, mac: [u8; 6], addresses: &[IpPrefix]) -> Result<Shm, OpenError> {
        let failed = |error| OpenError::system("watch the sockets of a network in memory", error);
        let poller = Poller::new().map_err(failed)?;
        let ready = rustix::event::eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let ready = ready.map_err(failed)?;
        let meeting = Meeting::join(folder, mac, addresses)?;
        poller.add(&meeting, Source::Listener).map_err(failed)?;
        Ok(Shm {
            mac,
            meeting,
            poller,
            ready,
            senders: Vec::new(),
            receivers: Vec::new(),
            last: 0,
            turn: 0,
            datagrams: false,
            asleep: Cell::new(false),
            look_at: Instant::ZERO,
            written: false,
            behind: false,
            resting: VecDeque::new(),
            letter: vec![0; MAX_FRAME].into(),
            now: Instant::ZERO,
            again: None,
            counters: Counters::default(),
        })
    }

    /// The folder in which processes of this user meet unless they are told another one. It is
    /// made, for the user alone.
    pub fn own_folder() -> Result<PathBuf, OpenError> {
        meeting::own_folder()
    }

    /// Whether a process had this address in a folder, and has ended.
    pub fn has_ended(folder: &Path, address: IpAddr) -> bool {
        meeting::has_ended(folder, address)
    }

    fn receiver_of(&self, mac: Mac) -> Option<usize> {
        let is = |place: usize| matches!(self.receivers.get(place), Some(Some(peer)) if peer.mac == mac);
        if is(self.last) {
            return Some(self.last);
        }
        (0..self.receivers.len()).find(|place| is(*place))
    }

    /// Makes a ring for frames to a port, and invites the port to it.
    fn invite(&mut self, mac: Mac) -> Result<usize, Dropped> {
        self.resting.retain(|(_, until)| self.now < *until);
        if mac == self.mac || self.resting.iter().any(|(resting, _)| *resting == mac) {
            return Err(Dropped::NoPeer);
        }
        let idle = |peer: &Receiver| peer.used;
        let place = place_in(&mut self.receivers, self.now, idle).ok_or(Dropped::QueueFull)?;
        self.dismiss_receiver(place);
        let made = self.make(mac, place);
        if let Err(error) = made {
            self.rest(mac);
            return Err(match error {
                Errno::NOENT | Errno::CONNREFUSED => Dropped::NoPeer,
                Errno::AGAIN | Errno::NOBUFS => Dropped::QueueFull,
                _ => Dropped::System,
            });
        }
        Ok(place)
    }

    fn make(&mut self, mac: Mac, place: usize) -> rustix::io::Result<()> {
        let memory = sealed_file("ferrovia-link", ring::LEN)?;
        let ring = Writer::new(Mapping::with_pages(&memory, ring::LEN)?);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (own, others) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        self.meeting.invite(mac, memory.as_fd(), others.as_fd())?;
        self.poller.add(&own, source_of_receiver(place))?;
        self.receivers[place] = Some(Box::new(Receiver::new(mac, own, ring, self.now)));
        Ok(())
    }

    /// Does not invite a port for a while.
    fn rest(&mut self, mac: Mac) {
        if self.resting.len() == RESTING {
            self.resting.pop_front();
        }
        self.resting.push_back((mac, self.now + REST));
    }

    fn dismiss_receiver(&mut self, place: usize) {
        if let Some(peer) = self.receivers[place].take() {
            // The peer, too, may have the socket open, so its end does not take it off the list.
            let _ = self.poller.remove(&peer.socket);
        }
    }

    fn dismiss_sender(&mut self, place: usize) {
        if let Some(peer) = self.senders[place].take() {
            let _ = self.poller.remove(&peer.socket);
        }
    }

    /// A receiver has left, or has broken its ring.
    fn lose_receiver(&mut self, place: usize) {
        if let Some(peer) = &self.receivers[place] {
            let mac = peer.mac;
            self.dismiss_receiver(place);
            self.rest(mac);
        }
    }

    /// Accepts an invitation; false if it is none, or there is no place.
    fn accept(&mut self, from: Mac, memory: &OwnedFd, socket: OwnedFd) -> bool {
        let is_socket = sockopt::socket_domain(&socket) == Ok(AddressFamily::UNIX)
            && sockopt::socket_type(&socket) == Ok(SocketType::STREAM);
        if !is_socket || is_group(from) {
            return false;
        }
        // A port that was started anew has its former one's MAC.
        let former = self.senders.iter().position(|peer| peer.as_ref().is_some_and(|peer| peer.mac == from));
        if let Some(place) = former
            && let Some(peer) = &mut self.senders[place]
        {
            peer.look();
            if !peer.left {
                return false;
            }
            self.dismiss_sender(place);
        }
        let heard = |peer: &Sender| peer.heard;
        let Some(place) = place_in(&mut self.senders, self.now, heard) else { return false };
        // The pages that the peer has not made: an access could fail for want of memory.
        let Ok(mapping) = Mapping::with_pages(memory, ring::LEN) else { return false };
        if self.senders[place].is_some() {
            self.counters.replaced += 1;
            self.dismiss_sender(place);
        }
        if self.poller.add(&socket, Source::Peer(place)).is_err() {
            return false;
        }
        let (ring, heard) = (Reader::new(mapping), self.now);
        self.senders[place] = Some(Box::new(Sender { mac: from, socket, ring, left: false, heard }));
        self.counters.peers += 1;
        true
    }

    /// Looks at the sockets. Does not wait.
    fn look(&mut self) {
        self.look_at = self.now + LOOK;
        let mut events: [Event; 32] = [NO_EVENT; 32];
        for source in self.poller.ready(&mut events) {
            match source {
                Source::Listener => self.datagrams = true,
                Source::Peer(place) if place < PEERS => {
                    if let Some(Some(peer)) = self.senders.get_mut(place) {
                        peer.look();
                        if peer.left {
                            let _ = self.poller.remove(&peer.socket);
                        }
                    }
                }
                Source::Peer(place) => {
                    let place = place - PEERS;
                    if matches!(self.receivers.get(place), Some(Some(peer)) if !peer.look()) {
                        self.lose_receiver(place);
                    }
                }
            }
        }
    }

    /// Takes a frame of a sender.
    fn serve(&mut self, place: usize, into: &mut [u8]) -> Served {
        let Some(Some(peer)) = self.senders.get_mut(place) else { return Served::Nothing };
        match take(peer, into, &mut self.counters) {
            Ok(Served::Nothing) => {
                peer.report();
                if peer.left {
                    self.dismiss_sender(place);
                }
                Served::Nothing
            }
            Ok(served) => {
                peer.heard = self.now;
                served
            }
            Err(Broken) => {
                self.counters.drop(Dropped::BadLength);
                self.dismiss_sender(place);
                Served::Other
            }
        }
    }

    /// Takes a datagram.
    fn open_letter(&mut self, into: &mut [u8]) -> Served {
        if !self.datagrams {
            return Served::Nothing;
        }
        match self.meeting.take(&mut self.letter) {
            Ok(Letter::Frame(from, len)) => {
                let Some(frame) = self.letter.get(..len) else { return Served::Other };
                if !self.counters.check_size(frame) {
                    return Served::Other;
                }
                if addresses(frame).is_none_or(|(_, claimed)| claimed != from) {
                    self.counters.drop(Dropped::BadSource);
                    return Served::Other;
                }
                self.counters.deliver(frame, into).map_or(Served::Other, Served::Frame)
            }
            Ok(Letter::Invitation { from, memory, socket }) => {
                if !self.accept(from, &memory, socket) {
                    self.counters.drop(Dropped::BadSource);
                }
                Served::Other
            }
            Ok(Letter::Nonsense) => {
                self.counters.drop(Dropped::Unsupported);
                Served::Other
            }
            Err(Errno::INTR) => Served::Other,
            Err(_) => {
                self.datagrams = false;
                Served::Nothing
            }
        }
    }

    fn settle(&mut self, now: Instant) {
        let waited_for =
            |link: &Shm| link.receivers.iter().flatten().filter(|p| p.deadline().is_some()).count();
        let before = waited_for(self);
        for place in 0..self.receivers.len() {
            if let Some(peer) = &mut self.receivers[place]
                && peer.is_behind()
                && peer.settle(now).is_err()
            {
                self.counters.drop(Dropped::BadLength);
                self.lose_receiver(place);
            }
        }
        self.behind = self.receivers.iter().flatten().any(|peer| peer.is_behind());
        if waited_for(self) < before {
            // The owner, which has found no room before, looks again before it sleeps.
            self.again = Some(now);
        }
    }
}

/// A place for another peer: a free one, or that of the peer that has been idle for longest, if it
/// has been so for long.
fn place_in<P>(peers: &mut Vec<Option<Box<P>>>, now: Instant, used: impl Fn(&P) -> Instant) -> Option<usize> {
    if let Some(free) = peers.iter().position(Option::is_none) {
        return Some(free);
    }
    if peers.len() < PEERS {
        peers.push(None);
        return Some(peers.len() - 1);
    }
    let times = peers.iter().enumerate().filter_map(|(place, peer)| Some((used(peer.as_ref()?), place)));
    let (used, place) = times.min()?;
    (now.since(used) >= IDLE).then_some(place)
}

/// Takes the next frame of a sender, if there is one.
fn take(peer: &mut Sender, into: &mut [u8], counters: &mut Counters) -> Result<Served, Broken> {
    let Some(len) = peer.ring.next()? else { return Ok(Served::Nothing) };
    let dropped = match into.get_mut(..len) {
        _ if len < crate::MIN_FRAME => Some(Dropped::Runt),
        None => Some(Dropped::Oversized),
        Some(frame) => {
            peer.ring.read(frame)?;
            let from = addresses(frame).map(|(_, from)| from);
            (from != Some(peer.mac)).then_some(Dropped::BadSource)
        }
    };
    peer.advance(len);
    if let Some(why) = dropped {
        counters.drop(why);
        return Ok(Served::Other);
    }
    counters.count_received(len);
    Ok(Served::Frame(len))
}

impl Wire for Shm {
    fn send(&mut self, frame: &[u8], now: Instant) {
        self.now = now;
        if !self.counters.check_size(frame) {
            return;
        }
        let Some((to, _)) = addresses(frame) else { return };
        if is_group(to) {
            let (full, reached) = self.meeting.tell(frame, now);
            self.counters.drop_all(Dropped::QueueFull, full);
            match (full, reached) {
                (0, 0) => self.counters.drop(Dropped::NoPeer),
                (_, 0) => {}
                _ => self.counters.count_sent(frame.len()),
            }
            return;
        }
        let place = match self.receiver_of(to).map_or_else(|| self.invite(to), Ok) {
            Ok(place) => place,
            Err(why) => return self.counters.drop(why),
        };
        self.last = place;
        let Some(Some(peer)) = self.receivers.get_mut(place) else { return };
        match peer.push(frame, now) {
            Ok(true) => {
                self.counters.count_sent(frame.len());
                self.written = true;
            }
            Ok(false) => self.counters.drop(Dropped::QueueFull),
            Err(Broken) => {
                self.counters.drop(Dropped::BadLength);
                return self.lose_receiver(place);
            }
        }
        self.behind |= peer.is_behind();
    }

    /// False while a peer takes its frames too slowly, but for a moment only: one that goes on so
    /// loses its frames, and the owner does not wait for it.
    fn has_room(&self) -> bool {
        !self.behind || !self.receivers.iter().flatten().any(|peer| peer.holds_up())
    }

    fn receive(&mut self, into: &mut [u8], now: Instant) -> Option<usize> {
        (self.now, self.again) = (now, None);
        if self.asleep.replace(false) {
            self.senders.iter().flatten().for_each(|peer| peer.ring.sleeps(false));
            self.look();
        } else if now >= self.look_at {
            self.look();
        }
        let (mut idle, mut share) = (0, SHARE);
        while idle <= self.senders.len() {
            if share == 0 {
                self.again = Some(now);
                return None;
            }
            let turn = self.turn;
            self.turn = if turn < self.senders.len() { turn + 1 } else { 0 };
            let served = match turn < self.senders.len() {
                true => self.serve(turn, into),
                false => self.open_letter(into),
            };
            match served {
                Served::Frame(len) => return Some(len),
                Served::Other => (idle, share) = (0, share - 1),
                Served::Nothing => idle += 1,
            }
        }
        None
    }

    fn flush(&mut self, now: Instant) {
        if std::mem::take(&mut self.written) {
            self.receivers.iter_mut().flatten().for_each(|peer| peer.flush());
        }
        if self.behind {
            self.settle(now);
        }
    }

    /// Always up: others may join at any time.
    fn up(&self) -> bool {
        true
    }

    fn deadline(&self) -> Option<Instant> {
        let patience = self.receivers.iter().flatten().filter_map(|peer| peer.deadline());
        let patience = if self.behind { patience.min() } else { None };
        [self.again, patience].into_iter().flatten().min()
    }
}

impl Link for Shm {
    /// Asks the peers to wake the owner, until the next [`Wire::receive`].
    fn poll_fd(&self) -> Option<PollFd<'_>> {
        self.asleep.set(true);
        let senders = || self.senders.iter().flatten();
        senders().for_each(|peer| peer.ring.sleeps(true));
        let full = || self.receivers.iter().flatten().filter(|peer| peer.deadline().is_some());
        if self.behind {
            full().for_each(|peer| peer.ring.wait());
        }
        fence(Ordering::SeqCst);
        let is_due = self.datagrams
            || senders().any(|peer| peer.ring.is_ready())
            || self.behind && full().any(|peer| !peer.holds_up());
        match is_due {
            true => Some(PollFd::new(&self.ready, PollFlags::IN)),
            false => Some(self.poller.poll_fd()),
        }
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
