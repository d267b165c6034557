//! A link over a UNIX stream socket, in the framing of QEMU's netdev `stream`.
//!
//! One side listens, the other connects. The listening side serves one peer at a time; when that
//! peer leaves, the next one that has connected takes its place. The connecting side reconnects
//! when its peer has left.

mod connect;
mod connection;
mod framing;
mod listen;

use std::path::Path;

use platform::Instant;
use rustix::event::PollFlags;

use crate::{Counters, Dropped, Link, OpenError, PollFd, Wire};
use connect::Dialer;
pub(crate) use connection::Connection;
pub(crate) use framing::BadLength;
pub(crate) use listen::Listener;

/// A link over a UNIX stream socket.
#[derive(Debug)]
pub struct Stream {
    side: Side,
    connection: Option<Connection>,
    counters: Counters,
}

/// How the link gets a peer.
#[derive(Debug)]
enum Side {
    Listen(Listener),
    Connect(Dialer),
}

impl Stream {
    /// Listens at `path`. The socket exists when this returns, and is removed when the link is
    /// dropped. A socket that a process left there when it ended is replaced.
    pub fn listen(path: &Path) -> Result<Stream, OpenError> {
        Ok(Stream::new(Side::Listen(Listener::bind(path)?)))
    }

    /// Connects to the socket at `path` as soon as it exists, and again whenever the peer has left.
    pub fn connect(path: &Path) -> Result<Stream, OpenError> {
        Ok(Stream::new(Side::Connect(Dialer::new(path)?)))
    }

    fn new(side: Side) -> Stream {
        Stream { side, connection: None, counters: Counters::default() }
    }

    /// Gets the next peer if there is none.
    fn attach(&mut self, now: Instant) {
        if self.connection.is_some() {
            return;
        }
        let socket = match &mut self.side {
            Side::Listen(listener) => listener.accept(now),
            Side::Connect(dialer) => dialer.dial(now),
        };
        if let Some(socket) = socket {
            self.counters.peers += 1;
            self.connection = Some(Connection::new(socket));
        }
    }

    /// Leaves the peer.
    fn detach(&mut self, now: Instant) {
        let Some(connection) = self.connection.take() else { return };
        connection.leave(&mut self.counters);
        if let Side::Connect(dialer) = &mut self.side {
            dialer.left(now);
        }
    }

    /// Copies the next whole frame among the bytes that were read.
    fn next(&mut self, into: &mut [u8]) -> Result<Option<usize>, BadLength> {
        let Some(connection) = &mut self.connection else { return Ok(None) };
        while let Some(frame) = connection.next()? {
            if self.counters.check_size(frame)
                && let Some(len) = self.counters.deliver(frame, into)
            {
                if let Side::Connect(dialer) = &mut self.side {
                    dialer.succeeded();
                }
                return Ok(Some(len));
            }
        }
        Ok(None)
    }
}

impl Wire for Stream {
    fn send(&mut self, frame: &[u8], _now: Instant) {
        let Some(connection) = self.connection.as_mut().filter(|connection| connection.is_open()) else {
            return self.counters.drop(Dropped::NoPeer);
        };
        if !self.counters.check_size(frame) {
            return;
        }
        if !connection.queue_mut().push(frame) {
            return self.counters.drop(Dropped::QueueFull);
        }
        self.counters.count_sent(frame.len());
        if connection.queue().is_due() {
            connection.write(&mut self.counters);
        }
    }

    fn has_room(&self) -> bool {
        self.connection
            .as_ref()
            .is_none_or(|connection| !connection.is_open() || connection.queue().has_room())
    }

    fn receive(&mut self, into: &mut [u8], now: Instant) -> Option<usize> {
        self.attach(now);
        match self.next(into) {
            Ok(Some(len)) => return Some(len),
            // One read in each call: a peer that only sends frames to be dropped does not occupy
            // the owner.
            Ok(None) if self.connection.as_mut().is_none_or(Connection::read) => match self.next(into) {
                Ok(found) => return found,
                Err(BadLength) => self.counters.drop(Dropped::BadLength),
            },
            Ok(None) => {}
            Err(BadLength) => self.counters.drop(Dropped::BadLength),
        }
        self.detach(now);
        None
    }

    /// Accepts no peer here: after one has left, the link is down until the next [`Wire::receive`].
    fn flush(&mut self, _now: Instant) {
        if let Some(connection) = &mut self.connection {
            connection.write(&mut self.counters);
        }
    }

    fn up(&self) -> bool {
        self.connection.as_ref().is_some_and(Connection::is_open)
    }

    fn deadline(&self) -> Option<Instant> {
        match (&self.connection, &self.side) {
            (Some(_), _) => None,
            (None, Side::Listen(listener)) => listener.deadline(),
            (None, Side::Connect(dialer)) => Some(dialer.deadline()),
        }
    }
}

impl Link for Stream {
    fn poll_fd(&self) -> Option<PollFd<'_>> {
        match (&self.connection, &self.side) {
            (Some(connection), _) => {
                let write = if connection.queue().is_empty() { PollFlags::empty() } else { PollFlags::OUT };
                Some(PollFd::new(connection, PollFlags::IN | write))
            }
            (None, Side::Listen(listener)) => listener.poll_fd(),
            (None, Side::Connect(_)) => None,
        }
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
