//! The socket of a peer, and what is under way.

use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::SendFlags;

use super::framing::{BadLength, Reader, Writer};
use crate::{Counters, Dropped};

/// The socket of a peer, and what is under way.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: UnixStream,
    reader: Reader,
    writer: Writer,
    /// Whether the peer takes nothing any more. What it has sent is still read.
    deaf: bool,
}

impl Connection {
    pub fn new(socket: UnixStream) -> Connection {
        Connection { socket, reader: Reader::new(), writer: Writer::default(), deaf: false }
    }

    /// Whether the peer takes frames.
    pub fn is_open(&self) -> bool {
        !self.deaf
    }

    /// What is to be written to the peer.
    pub fn queue(&self) -> &Writer {
        &self.writer
    }

    /// The same, to add a frame. The peer must be open, or the frame stays for ever.
    pub fn queue_mut(&mut self) -> &mut Writer {
        &mut self.writer
    }

    /// The next whole frame of those that were read.
    pub fn next(&mut self) -> Result<Option<&[u8]>, BadLength> {
        self.reader.next()
    }

    /// Reads once what the peer has sent. False if the peer has left.
    pub fn read(&mut self) -> bool {
        match self.socket.read(self.reader.room()) {
            Ok(0) => false,
            Ok(read) => {
                self.reader.filled(read);
                true
            }
            Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }

    /// Writes what is queued, as far as the socket takes it.
    pub fn write(&mut self, counters: &mut Counters) {
        while let Some(bytes) = self.writer.pending() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::send(&self.socket, bytes, flags) {
                Ok(written) => self.writer.written(written),
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => break,
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.deaf = true;
                    counters.drop_all(Dropped::PeerLeft, self.writer.frames());
                    self.writer = Writer::default();
                }
            }
        }
    }

    /// Leaves the peer, and counts what is lost with it.
    pub fn leave(self, counters: &mut Counters) {
        counters.drop_all(Dropped::PeerLeft, self.writer.frames());
        if self.reader.is_in_frame() {
            counters.drop(Dropped::Truncated);
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
