//! A peer of a switch: its connection, its addresses, and how long the owner may have to wait for
//! it.

use std::collections::VecDeque;
use std::time::Duration;

use platform::Instant;

use super::{Mac, is_group};
use crate::stream::Connection;
use crate::{Counters, Dropped};

/// The most addresses that the switch remembers of a peer.
const ADDRESSES: usize = 16;
/// How long the owner waits for a peer whose queue is full.
const PATIENCE: Duration = Duration::from_millis(20);

/// The addresses from which a peer has sent, the oldest first.
#[derive(Debug)]
pub(super) struct Addresses(VecDeque<Mac>);

impl Addresses {
    fn new() -> Addresses {
        Addresses(VecDeque::with_capacity(ADDRESSES))
    }

    pub fn contains(&self, address: Mac) -> bool {
        self.0.contains(&address)
    }

    /// Remembers another address, in place of the oldest one if there is no room.
    pub fn learn(&mut self, address: Mac) {
        if self.0.len() == ADDRESSES {
            self.0.pop_front();
        }
        self.0.push_back(address);
    }
}

/// A peer of a switch.
#[derive(Debug)]
pub(super) struct Peer {
    pub connection: Connection,
    pub addresses: Addresses,
    /// When its queue became full; kept until half of the queue is free.
    full_since: Option<Instant>,
    /// Whether the poller watches for room in the peer's socket.
    pub wakes_for_room: bool,
}

impl Peer {
    pub fn new(connection: Connection) -> Peer {
        Peer { connection, addresses: Addresses::new(), full_since: None, wakes_for_room: false }
    }

    /// Whether a frame to this address goes to the peer.
    pub fn takes(&self, to: Mac) -> bool {
        self.connection.is_open() && (is_group(to) || self.addresses.contains(to))
    }

    /// Queues a frame of the owner; false if it was dropped, which is counted.
    pub fn send(&mut self, frame: &[u8], now: Instant, counters: &mut Counters) -> bool {
        let queued = self.connection.queue_mut().push(frame);
        if !queued {
            counters.drop(Dropped::QueueFull);
        }
        if self.connection.queue().is_due() {
            self.connection.write(counters);
        }
        self.look_at_queue(now);
        queued
    }

    /// Queues a frame of another peer. Such frames get half of the queue, so that peers that flood
    /// each other leave room for the owner's frames.
    pub fn forward(&mut self, frame: &[u8], counters: &mut Counters) {
        match self.connection.queue_mut().push_to_half(frame) {
            true => counters.forwarded += 1,
            false => counters.drop(Dropped::QueueFull),
        }
        if self.connection.queue().is_due() {
            self.connection.write(counters);
        }
    }

    /// Writes queued frames until the socket takes no more.
    pub fn flush(&mut self, now: Instant, counters: &mut Counters) {
        self.connection.write(counters);
        self.look_at_queue(now);
    }

    fn look_at_queue(&mut self, now: Instant) {
        if self.connection.queue().is_half_free() {
            self.full_since = None;
        } else if !self.connection.queue().has_room() {
            self.full_since.get_or_insert(now);
        }
    }

    /// Until when the owner waits for the peer, if the peer's queue is full.
    pub fn awaited_until(&self) -> Option<Instant> {
        self.full_since.map(|since| since + PATIENCE)
    }
}
