//! The two kinds of peers of a link: those that send to it, and those to which it sends.

use std::os::fd::OwnedFd;
use std::time::Duration;

use platform::Instant;
use rustix::net::{RecvFlags, SendFlags};

use super::ring::{Reader, Writer};
use crate::frame::Mac;

/// How long a peer that takes no frames makes the owner wait.
const PATIENCE: Duration = Duration::from_millis(100);
/// A ring in which nothing happened for so long is given up if another one needs its place.
pub(super) const IDLE: Duration = Duration::from_secs(1);

/// Wakes the process at the other end of a socket.
fn wake(socket: &OwnedFd) {
    // If the socket is full, the peer has enough that wakes it; if the peer has left, the socket
    // tells that.
    let _ = rustix::net::send(socket, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Takes what has woken this process. False if the peer has left.
fn is_there(socket: &OwnedFd) -> bool {
    match rustix::net::recv(socket, &mut [0; 256][..], RecvFlags::DONTWAIT) {
        Ok((_, came)) => came > 0,
        Err(error) => matches!(error, rustix::io::Errno::AGAIN | rustix::io::Errno::INTR),
    }
}

/// A peer that has made a ring for frames to this port.
#[derive(Debug)]
pub(super) struct Sender {
    pub mac: Mac,
    pub socket: OwnedFd,
    pub ring: Reader,
    /// Whether it has left. What it has sent before still counts.
    pub left: bool,
    /// When it was accepted, or when its last frame came.
    pub heard: Instant,
}

impl Sender {
    /// Takes note of what its socket says.
    pub fn look(&mut self) {
        self.left |= !is_there(&self.socket);
    }

    /// Tells the peer what was taken.
    pub fn report(&mut self) {
        if self.ring.report() {
            wake(&self.socket);
        }
    }

    pub fn advance(&mut self, len: usize) {
        if self.ring.advance(len) {
            wake(&self.socket);
        }
    }
}

/// Whether the owner waits for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// There is room for it.
    Room,
    /// There was none at this time, and has not been much since.
    Full(Instant),
    /// It is not waited for until it has taken everything.
    Slow,
}

/// A peer for which this port has made a ring.
#[derive(Debug)]
pub(super) struct Receiver {
    pub mac: Mac,
    pub socket: OwnedFd,
    pub ring: Writer,
    /// When it was invited, or when the last frame was sent.
    pub used: Instant,
    /// Whether frames were written since the last flush.
    written: bool,
    pace: Pace,
}

impl Receiver {
    pub fn new(mac: Mac, socket: OwnedFd, ring: Writer, now: Instant) -> Receiver {
        Receiver { mac, socket, ring, used: now, written: false, pace: Pace::Room }
    }

    /// Writes a frame; false if there is no room, an error if the peer has broken the ring.
    pub fn push(&mut self, frame: &[u8], now: Instant) -> Result<bool, super::ring::Broken> {
        let fits = self.ring.push(frame)?;
        self.written |= fits;
        self.used = now;
        if self.pace == Pace::Room && !self.ring.has_room()? {
            self.pace = Pace::Full(now);
        }
        Ok(fits)
    }

    /// Wakes the peer if it sleeps and has something to take.
    pub fn flush(&mut self) {
        if std::mem::take(&mut self.written) && self.ring.has_to_wake() {
            wake(&self.socket);
        }
    }

    /// Whether the peer is still there.
    pub fn look(&self) -> bool {
        is_there(&self.socket)
    }

    /// Whether the owner waits for room.
    pub fn holds_up(&self) -> bool {
        matches!(self.pace, Pace::Full(_)) && self.ring.is_half_free() == Ok(false)
    }

    /// Whether it takes frames slowly, or did so.
    pub fn is_behind(&self) -> bool {
        self.pace != Pace::Room
    }

    /// Decides anew whether the owner waits. An error if the peer has broken the ring.
    pub fn settle(&mut self, now: Instant) -> Result<(), super::ring::Broken> {
        self.pace = match self.pace {
            Pace::Full(_) if self.ring.is_half_free()? => Pace::Room,
            Pace::Full(since) if now.since(since) >= PATIENCE => Pace::Slow,
            Pace::Slow if self.ring.is_empty()? => Pace::Room,
            same => same,
        };
        Ok(())
    }

    /// When the owner stops waiting.
    pub fn deadline(&self) -> Option<Instant> {
        match self.pace {
            Pace::Full(since) => Some(since + PATIENCE),
            Pace::Room | Pace::Slow => None,
        }
    }
}
