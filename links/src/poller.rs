//! What a link with several peers sleeps on: one descriptor for its meeting place and all its peers
//! (epoll).

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFlags, Timespec};
use rustix::io::Result;

use crate::PollFd;

/// The source of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The place where peers appear: one waits to be accepted.
    Listener,
    /// The peer with this index.
    Peer(usize),
}

/// The number of the listener. Peers have their index as number.
const LISTENER: u64 = u64::MAX;

impl Source {
    fn data(self) -> EventData {
        EventData::new_u64(match self {
            Source::Listener => LISTENER,
            Source::Peer(place) => place as u64,
        })
    }

    fn of(data: EventData) -> Source {
        match data.u64() {
            LISTENER => Source::Listener,
            place => Source::Peer(place as usize),
        }
    }
}

/// Waits for several descriptors at once.
#[derive(Debug)]
pub(crate) struct Poller(OwnedFd);

impl Poller {
    pub fn new() -> Result<Poller> {
        epoll::create(CreateFlags::CLOEXEC).map(Poller)
    }

    /// Begins to watch for input from `from`.
    pub fn add(&self, from: impl AsFd, source: Source) -> Result<()> {
        epoll::add(&self.0, from, source.data(), EventFlags::IN)
    }

    /// Also watches for room in a peer's socket, or stops that.
    pub fn look_for_room(&self, peer: impl AsFd, source: Source, look: bool) -> Result<()> {
        let room = if look { EventFlags::OUT } else { EventFlags::empty() };
        epoll::modify(&self.0, peer, source.data(), EventFlags::IN | room)
    }

    /// Stops watching. A closed descriptor needs no call.
    pub fn remove(&self, from: impl AsFd) -> Result<()> {
        epoll::delete(&self.0, from)
    }

    /// The sources that are ready now, at most as many as `events` has room for.
    pub fn ready<'a>(&self, events: &'a mut [Event]) -> impl Iterator<Item = Source> + use<'a> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A call that a signal interrupts returns no event; the next call returns it.
        let found = epoll::wait(&self.0, &mut *events, Some(&now)).unwrap_or(0);
        events.iter().take(found).map(|event| Source::of(event.data))
    }

    /// Ready when one of the watched descriptors is.
    pub fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.0, PollFlags::IN)
    }
}

/// A placeholder, to fill a list of events.
pub(crate) const NO_EVENT: Event = Event { flags: EventFlags::empty(), data: EventData::new_u64(LISTENER) };
