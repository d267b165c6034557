//! A link over a UNIX stream socket, in the framing of QEMU's netdev `stream`.
//!
//! One side listens, the other connects. The listening side serves one peer at a time; when it
//! leaves, the next one that has connected takes its place. The connecting side connects again when
//! its peer has left.

mod connect;
mod framing;
mod listen;

use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;

use platform::Instant;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::{Counters, Dropped, Link, OpenError, PollFd, Wire};
use connect::Dialer;
use framing::{BadLength, Reader, Writer};
use listen::Listener;

/// A link over a UNIX stream socket.
#[derive(Debug)]
pub struct Stream {
    side: Side,
    connection: Option<Connection>,
    counters: Counters,
}

/// Where peers come from.
#[derive(Debug)]
enum Side {
    Listen(Listener),
    Connect(Dialer),
}

/// The socket of a peer, and what is under way.
#[derive(Debug)]
struct Connection {
    socket: UnixStream,
    reader: Reader,
    writer: Writer,
    /// Whether the peer takes nothing any more. What it has sent is still read.
    deaf: bool,
}

impl Stream {
    /// Listens at `path`. The socket exists when this returns, and is removed when the link is
    /// dropped. A socket that an ended process has left there is replaced.
    pub fn listen(path: &Path) -> Result<Stream, OpenError> {
        Ok(Stream::new(Side::Listen(Listener::bind(path)?)))
    }

    /// Connects to the socket at `path` when it is there, and again whenever the peer has left.
    pub fn connect(path: &Path) -> Result<Stream, OpenError> {
        Ok(Stream::new(Side::Connect(Dialer::new(path)?)))
    }

    fn new(side: Side) -> Stream {
        Stream { side, connection: None, counters: Counters::default() }
    }

    /// Takes the next peer if there is none.
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
            self.connection =
                Some(Connection { socket, reader: Reader::new(), writer: Writer::default(), deaf: false });
        }
    }

    /// Leaves the peer.
    fn detach(&mut self, now: Instant) {
        let Some(connection) = self.connection.take() else { return };
        self.counters.drop_all(Dropped::PeerLeft, connection.writer.frames());
        if connection.reader.is_in_frame() {
            self.counters.drop(Dropped::Truncated);
        }
        if let Side::Connect(dialer) = &mut self.side {
            dialer.left(now);
        }
    }

    /// Writes what is queued, as far as the socket takes it.
    fn write(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        while let Some(bytes) = connection.writer.pending() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::send(&connection.socket, bytes, flags) {
                Ok(written) => connection.writer.written(written),
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => break,
                Err(Errno::INTR) => {}
                Err(_) => {
                    connection.deaf = true;
                    self.counters.drop_all(Dropped::PeerLeft, connection.writer.frames());
                    connection.writer = Writer::default();
                }
            }
        }
    }

    /// Copies the next whole frame of those that were read.
    fn next(&mut self, into: &mut [u8]) -> Result<Option<usize>, BadLength> {
        let Some(connection) = &mut self.connection else { return Ok(None) };
        while let Some(frame) = connection.reader.next()? {
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

    /// Reads once what the peer has sent. False if the peer has left.
    fn read(&mut self) -> bool {
        let Some(connection) = &mut self.connection else { return true };
        match connection.socket.read(connection.reader.room()) {
            Ok(0) => false,
            Ok(read) => {
                connection.reader.filled(read);
                true
            }
            Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }
}

impl Wire for Stream {
    fn send(&mut self, frame: &[u8], _now: Instant) {
        let Some(connection) = self.connection.as_mut().filter(|connection| !connection.deaf) else {
            return self.counters.drop(Dropped::NoPeer);
        };
        if !self.counters.check_size(frame) {
            return;
        }
        if !connection.writer.push(frame) {
            return self.counters.drop(Dropped::QueueFull);
        }
        self.counters.count_sent(frame.len());
        if connection.writer.is_due() {
            self.write();
        }
    }

    fn has_room(&self) -> bool {
        self.connection.as_ref().is_none_or(|connection| connection.deaf || connection.writer.has_room())
    }

    fn receive(&mut self, into: &mut [u8], now: Instant) -> Option<usize> {
        self.attach(now);
        match self.next(into) {
            Ok(Some(len)) => return Some(len),
            // One read a call: a peer that sends nothing but frames that are dropped does not keep
            // the owner.
            Ok(None) if self.read() => match self.next(into) {
                Ok(found) => return found,
                Err(BadLength) => self.counters.drop(Dropped::BadLength),
            },
            Ok(None) => {}
            Err(BadLength) => self.counters.drop(Dropped::BadLength),
        }
        self.detach(now);
        None
    }

    /// Takes no peer: after one has left, the link is down until the next [`Wire::receive`].
    fn flush(&mut self, _now: Instant) {
        self.write();
    }

    fn up(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| !connection.deaf)
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
                let write = if connection.writer.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
                Some(PollFd::new(&connection.socket, PollFlags::IN | write))
            }
            (None, Side::Listen(listener)) => listener.poll_fd(),
            (None, Side::Connect(_)) => None,
        }
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
