//! The socket of a peer, and the frames in flight.

use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::SendFlags;

use super::framing::{BadLength, Reader, Writer};
use crate::{Counters, Dropped};

/// The socket of a peer, and the frames in flight.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: UnixStream,
    reader: Reader,
    writer: Writer,
    /// Whether the peer takes no frames any more. The link still reads what it sent before.
    deaf: bool,
}

impl Connection {
    pub fn new(socket: UnixStream) -> Connection {
        Connection { socket, reader: Reader::new(), writer: Writer::default(), deaf: false }
    }

    /// Whether the peer still takes frames.
    pub fn is_open(&self) -> bool {
        !self.deaf
    }

    /// The queue of frames to write to the peer.
    pub fn queue(&self) -> &Writer {
        &self.writer
    }

    /// As [`Connection::queue`], to add a frame. The peer must be open: otherwise the frame is
    /// never written.
    pub fn queue_mut(&mut self) -> &mut Writer {
        &mut self.writer
    }

    /// The next whole frame among the bytes that were read.
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

    /// Writes queued frames until the socket takes no more.
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

    /// Leaves the peer, and counts the frames that are lost with it.
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
