//! What cmatose and udaddy exchange: messages over several connections, in both directions.

use alloc::vec::Vec;
use core::time::Duration;

use common::Trying;
use rdma::{CreateError, Domain, Queue, Region};

use crate::connection::{Channel, Connection};
use crate::{Failure, Host, Words, fail};

/// The most connections of a run, and the most messages of a connection.
const MOST: usize = 1024;

/// Both sides must be given the same numbers, but for `patience`.
pub(crate) struct Exchange {
    pub(crate) port: u16,
    pub(crate) connections: usize,
    /// Messages of each connection, in each direction.
    pub(crate) count: usize,
    /// Bytes of a message.
    pub(crate) size: usize,
    pub(crate) patience: Duration,
}

impl Exchange {
    /// Takes the options of a program whose server has this port unless the user names another, and
    /// whose messages have at most so many bytes.
    pub(crate) fn take(words: &mut Words<'_>, port: u16, longest: usize) -> Result<Exchange, Failure> {
        let size = words.number("size", 100, 0..=longest)?;
        let count = words.number("count", 10, 0..=MOST)?;
        Ok(Exchange {
            port: words.number("port", port, 1..=u16::MAX)?,
            connections: words.number("connections", 1, 1..=MOST)?,
            // Without bytes there are no messages.
            count: if size == 0 { 0 } else { count },
            size,
            patience: words.patience()?,
        })
    }

    /// How many requests, and how many Receives, an endpoint has room for.
    pub(crate) fn depth(&self) -> u32 {
        self.count.max(1) as u32
    }
}

/// The connections of a client, at either side.
pub(crate) struct Run<C> {
    pub(crate) connections: Vec<Connection<C>>,
    count: usize,
    /// What is sent.
    message: Region,
}

impl<C: Channel> Run<C> {
    /// All endpoints, which `make` makes, with their Receives.
    pub(crate) fn new(
        host: &Host<'_>,
        exchange: &Exchange,
        make: impl Fn(&Domain, &Queue) -> Result<C, CreateError>,
    ) -> Result<Run<C>, Failure> {
        let &Exchange { connections, count, size, patience, .. } = exchange;
        let domain = host.nic.domain().trying("a domain")?;
        let queue = host.nic.queue(2 * connections as u32 * exchange.depth()).trying("a queue")?;
        let memory = || domain.region(size.max(1)).trying("memory");
        // As on Linux, all messages arrive in the same memory: only their number counts.
        let (message, arrived) = (memory()?, memory()?);
        let mut run = Run { connections: Vec::new(), count, message };
        for _ in 0..connections {
            let endpoint = make(&domain, &queue).trying("an endpoint")?;
            let mut connection = Connection::new(endpoint, patience);
            (0..count).try_for_each(|_| connection.expect(arrived.slice(..)))?;
            run.connections.push(connection);
        }
        Ok(run)
    }

    /// Runs `step` for each connection.
    pub(crate) fn each(
        &mut self,
        mut step: impl FnMut(&mut Connection<C>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        for (n, connection) in self.connections.iter_mut().enumerate() {
            step(connection).map_err(|why| Failure::new(format_args!("connection {n}: {why}")))?;
        }
        Ok(())
    }

    /// Sends all messages.
    pub(crate) fn send(&mut self) -> Result<(), Failure> {
        for (n, connection) in self.connections.iter_mut().enumerate() {
            (0..self.count)
                .try_for_each(|_| connection.send(self.message.slice(..)))
                .map_err(|why| Failure::new(format_args!("connection {n}: {why}")))?;
        }
        Ok(())
    }

    /// Waits until all messages are sent.
    pub(crate) fn sent(&mut self) -> Result<(), Failure> {
        self.each(Connection::sent)
    }

    /// Waits for all messages of the peer.
    pub(crate) fn receive(&mut self) -> Result<(), Failure> {
        let (count, size) = (self.count, self.message.len());
        self.each(|connection| {
            for _ in 0..count {
                let length = connection.received()?.len;
                if length != size {
                    fail!("a message has {length} bytes, not {size}");
                }
            }
            Ok(())
        })
    }
}
