//! What a switch sleeps on: one descriptor for its listener and all its peers (epoll).

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFlags, Timespec};
use rustix::io::Result;

use crate::PollFd;

/// Who has something for the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A peer that waits to be accepted.
    Listener,
    /// The peer in this place.
    Peer(usize),
}

/// The number of the listener; those of peers are their places.
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
pub(super) struct Poller(OwnedFd);

impl Poller {
    pub fn new() -> Result<Poller> {
        epoll::create(CreateFlags::CLOEXEC).map(Poller)
    }

    /// Begins to look for what comes from `from`.
    pub fn add(&self, from: impl AsFd, source: Source) -> Result<()> {
        epoll::add(&self.0, from, source.data(), EventFlags::IN)
    }

    /// Looks whether a peer's socket takes more, too, or no more.
    pub fn look_for_room(&self, peer: impl AsFd, source: Source, look: bool) -> Result<()> {
        let room = if look { EventFlags::OUT } else { EventFlags::empty() };
        epoll::modify(&self.0, peer, source.data(), EventFlags::IN | room)
    }

    /// Looks no longer. A descriptor that is closed needs no call.
    pub fn remove(&self, from: impl AsFd) -> Result<()> {
        epoll::delete(&self.0, from)
    }

    /// Those that have something now; at most so many as `events` has room for.
    pub fn ready<'a>(&self, events: &'a mut [Event]) -> impl Iterator<Item = Source> + use<'a> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A call that a signal interrupts has found nothing; the next one finds it.
        let found = epoll::wait(&self.0, &mut *events, Some(&now)).unwrap_or(0);
        events.iter().take(found).map(|event| Source::of(event.data))
    }

    /// It is ready when one of those that were added is.
    pub fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.0, PollFlags::IN)
    }
}

/// An event that is none, to fill a list.
pub(super) const NO_EVENT: Event = Event { flags: EventFlags::empty(), data: EventData::new_u64(LISTENER) };
