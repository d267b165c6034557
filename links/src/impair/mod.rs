//! Impairment: a wrapper that loses, duplicates, reorders, corrupts, delays and slows frames.

mod direction;
mod fault;
mod spec;

use core::net::IpAddr;

use platform::Instant;

use crate::{Counters, Dropped, Link, MAX_FRAME, PollFd, Wire};
use direction::Direction;
pub use fault::Fault;
pub use spec::{Chance, Impairment, Rate};

/// The most frames that one call takes from the link below.
const SHARE: u32 = 64;

/// A link that impairs frames in both directions, as an [`Impairment`] says.
///
/// Each direction has its own sequence of random numbers, which the seed decides: the same frames
/// at the same times are treated in the same way. Two links with the same seed have the same
/// sequences.
#[derive(Debug)]
pub struct Impaired<L> {
    link: L,
    sent: Direction,
    received: Direction,
    counters: Counters,
    /// Whether the cable is pulled.
    cut: bool,
    /// Whether the link below had a peer at the last look.
    had_peer: bool,
    /// The time of the last call that left frames in the link below.
    again: Option<Instant>,
    buffer: Box<[u8]>,
}

impl<L: Link> Impaired<L> {
    /// Impairs `link`.
    pub fn new(link: L, impairment: Impairment) -> Impaired<L> {
        Impaired {
            had_peer: link.up(),
            link,
            sent: Direction::new(impairment.seed, 0),
            received: Direction::new(impairment.seed, 1),
            counters: Counters::default(),
            cut: false,
            again: None,
            buffer: vec![0; MAX_FRAME].into(),
        }
        .with(impairment)
    }

    fn with(mut self, impairment: Impairment) -> Impaired<L> {
        self.set(impairment);
        self
    }

    /// Changes the impairment of later frames. The random sequences continue; the new seed is
    /// ignored.
    pub fn set(&mut self, impairment: Impairment) {
        self.sent.set(impairment);
        self.received.set(impairment);
    }

    /// Loses the frames under way if the peer has left: they are for that peer, or from it, and
    /// must not reach the next one or be taken for one of its frames. To be called after each call
    /// of the link below, which is down for at least one call between two peers.
    fn watch_peer(&mut self) {
        let has_peer = self.link.up();
        if self.had_peer && !has_peer {
            let lost = self.sent.clear() + self.received.clear();
            self.counters.drop_all(Dropped::PeerLeft, lost);
        }
        self.had_peer = has_peer;
    }

    /// Pulls the cable, or plugs it in. While it is pulled the link is down, and all frames are
    /// lost, including those in flight.
    pub fn plug(&mut self, plugged: bool) {
        self.cut = !plugged;
        if self.cut {
            let lost = self.sent.clear() + self.received.clear();
            self.counters.drop_all(Dropped::Lost, lost);
        }
    }

    /// Passes frames on that are due, while the link below has room.
    fn pass_on(&mut self, now: Instant) {
        while self.link.has_room()
            && let Some(frame) = self.sent.due(now)
        {
            self.link.send(&frame, now);
            self.watch_peer();
        }
    }
}

impl<L: Link> Wire for Impaired<L> {
    fn join(&mut self, group: IpAddr) {
        self.link.join(group);
    }

    fn leave(&mut self, group: IpAddr) {
        self.link.leave(group);
    }

    fn send(&mut self, frame: &[u8], now: Instant) {
        if self.cut || !self.had_peer {
            return self.counters.drop(Dropped::NoPeer);
        }
        if self.counters.check_size(frame) {
            self.sent.enter(frame, now, &mut self.counters);
            self.pass_on(now);
        }
    }

    fn has_room(&self) -> bool {
        self.cut || self.sent.has_room() && self.link.has_room()
    }

    fn receive(&mut self, into: &mut [u8], now: Instant) -> Option<usize> {
        self.pass_on(now);
        self.again = None;
        for _ in 0..SHARE {
            if let Some(frame) = self.received.due(now) {
                let Some(place) = into.get_mut(..frame.len()) else {
                    self.counters.drop(Dropped::Oversized);
                    continue;
                };
                place.copy_from_slice(&frame);
                return Some(frame.len());
            }
            let came = self.link.receive(&mut self.buffer, now);
            self.watch_peer();
            let frame = came.and_then(|len| self.buffer.get(..len))?;
            match self.cut {
                true => self.counters.drop(Dropped::Lost),
                false => self.received.enter(frame, now, &mut self.counters),
            }
        }
        self.again = Some(now);
        None
    }

    fn flush(&mut self, now: Instant) {
        self.pass_on(now);
        self.link.flush(now);
        self.watch_peer();
    }

    fn up(&self) -> bool {
        !self.cut && self.link.up()
    }

    fn deadline(&self) -> Option<Instant> {
        // If the link below has no room, frames that are due wait until it has.
        let sent = self.sent.deadline().filter(|_| self.link.has_room());
        [sent, self.received.deadline(), self.link.deadline(), self.again].into_iter().flatten().min()
    }
}

impl<L: Link> Link for Impaired<L> {
    fn poll_fd(&self) -> Option<PollFd<'_>> {
        self.link.poll_fd()
    }

    /// The counters of the link below, with those of the impairment.
    fn counters(&self) -> Counters {
        let mut all = self.link.counters();
        all += self.counters;
        all
    }
}
