//! Streams: TCP connections of the NIC's port, and the listeners that take them.
//!
//! No call waits for the peer. The device raises one event for a stream or a listener until the
//! driver queries it; only the dispatcher thread does that, so each has one event in its queue at
//! most. It then tells the watcher, who does what the object allows until nothing is left.
//!
//! | module | subject |
//! |---|---|
//! | `endpoint` | what streams and listeners have in common: number, events, end |
//! | `table` | those of an agent, and the memory through which their bytes pass |
//! | `calls` | the calls of clients |
//!
//! Locks: an endpoint's `control` (sleeps; commands to the device), then `transfers` (sleeps; a
//! command that passes bytes).

mod calls;
mod endpoint;
mod table;

pub(crate) use calls::{MAX_BACKLOG, accept};
pub(crate) use endpoint::{By, Endpoint, Watch};
pub use endpoint::{StreamEnds, StreamState};
pub(crate) use table::{Streams, TRANSFER};

use alloc::sync::Arc;

use nic_abi::admin::TransferFlags;

use crate::Error;

/// A stream. Clones are the same stream. It lives until it is destroyed, or its client is detached,
/// or it becomes a connection by [`Client::convert`](crate::Client::convert): from then on each call
/// fails with [`Error::Gone`].
#[derive(Clone)]
pub struct Stream {
    endpoint: Arc<Endpoint>,
    ends: StreamEnds,
}

/// A listener for streams. Clones are the same listener. It lives until it is destroyed, or its
/// client is detached.
#[derive(Clone)]
pub struct StreamListener {
    endpoint: Arc<Endpoint>,
}

impl Stream {
    pub(crate) fn new(endpoint: Arc<Endpoint>, ends: StreamEnds) -> Stream {
        Stream { endpoint, ends }
    }

    pub(crate) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// Who is connected.
    pub fn ends(&self) -> &StreamEnds {
        &self.ends
    }

    /// What has happened to it, as far as the dispatcher thread has learned.
    pub fn state(&self) -> StreamState {
        self.endpoint.state()
    }

    /// Sends bytes from the start of `bytes`, as many as there is room for, and returns the number.
    /// If it is not all, there is an upcall when there is room again.
    ///
    /// [`Error::StreamState`] before the stream is connected, and when no more can be sent.
    pub fn send(&self, bytes: &[u8]) -> Result<usize, Error> {
        self.endpoint.send(By::Client, bytes)
    }

    /// Receives bytes that have arrived, and returns their number; 0 if there are none. Then there
    /// is an upcall when there are. It may return fewer than have arrived: call again until there
    /// are none.
    ///
    /// [`Error::StreamState`] before the stream is connected, and when no more will arrive.
    pub fn receive(&self, into: &mut [u8]) -> Result<usize, Error> {
        self.endpoint.receive(By::Client, into, TransferFlags::empty())
    }

    /// As [`Stream::receive`], but the bytes stay with the stream, and come again.
    pub fn look(&self, into: &mut [u8]) -> Result<usize, Error> {
        self.endpoint.receive(By::Client, into, TransferFlags::KEEP)
    }

    /// Closes the own direction: the peer learns it behind what was sent.
    pub fn close(&self) -> Result<(), Error> {
        self.endpoint.close(By::Client)
    }

    /// Destroys the stream; [`Error::Gone`] if it was destroyed before. With a `reset` the peer
    /// gets that, otherwise what was sent and then the end.
    pub fn destroy(&self, reset: bool) -> Result<(), Error> {
        self.endpoint.destroy(By::Client, reset)
    }
}

impl StreamListener {
    pub(crate) fn new(endpoint: Arc<Endpoint>) -> StreamListener {
        StreamListener { endpoint }
    }

    /// Ends the listener; [`Error::Gone`] if it was ended before. Streams that wait at it are
    /// reset.
    pub fn destroy(&self) -> Result<(), Error> {
        self.endpoint.destroy(By::Client, false)
    }

    pub(crate) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }
}
