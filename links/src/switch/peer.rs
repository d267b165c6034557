//! A peer of a switch: its connection, its addresses, and when it was heard.

use std::collections::VecDeque;
use std::time::Duration;

use platform::Instant;

use crate::frame::{Mac, is_group};
use crate::stream::Connection;
use crate::{Counters, Dropped};

/// The most addresses that the switch remembers of a peer.
const ADDRESSES: usize = 16;
/// How long a peer that has connected keeps its place without a frame.
const FIRST_FRAME: Duration = Duration::from_secs(1);
/// How long a peer that has sent a frame keeps its place without another one: for so long a switch
/// remembers an address (IEEE 802.1D).
const SILENCE: Duration = Duration::from_secs(300);

/// What the frames of a peer say about it.
#[derive(Debug)]
pub(super) struct Sender {
    /// The addresses from which it has sent, the oldest first.
    addresses: VecDeque<Mac>,
    /// When it connected, or when its last frame came.
    heard: Instant,
    has_sent: bool,
}

impl Sender {
    fn new(now: Instant) -> Sender {
        Sender { addresses: VecDeque::with_capacity(ADDRESSES), heard: now, has_sent: false }
    }

    pub fn has(&self, address: Mac) -> bool {
        self.addresses.contains(&address)
    }

    /// Remembers another address, in place of the oldest one if there is no room.
    pub fn learn(&mut self, address: Mac) {
        if self.addresses.len() == ADDRESSES {
            self.addresses.pop_front();
        }
        self.addresses.push_back(address);
    }

    /// A frame came, from an address that the peer may have.
    pub fn sent(&mut self, now: Instant) {
        (self.heard, self.has_sent) = (now, true);
    }

    /// Whether a frame has come.
    pub fn has_sent(&self) -> bool {
        self.has_sent
    }

    /// From when on the peer yields its place to a newcomer, unless it sends a frame before.
    pub fn yields_at(&self) -> Instant {
        self.heard + if self.has_sent { SILENCE } else { FIRST_FRAME }
    }

    /// Of several peers that yield, the one with the lowest rank is replaced: one that has never
    /// sent a frame before those that have, and then the one that is silent for longest.
    pub fn rank(&self) -> (bool, Instant) {
        (self.has_sent, self.heard)
    }
}

/// A peer of a switch.
#[derive(Debug)]
pub(super) struct Peer {
    pub connection: Connection,
    pub sender: Sender,
    /// Whether the poller watches for room in the peer's socket.
    pub wakes_for_room: bool,
}

impl Peer {
    /// A peer that connects now.
    pub fn new(connection: Connection, now: Instant) -> Peer {
        Peer { connection, sender: Sender::new(now), wakes_for_room: false }
    }

    /// Whether a frame to this address goes to the peer.
    pub fn takes(&self, to: Mac) -> bool {
        self.connection.is_open() && (is_group(to) || self.sender.has(to))
    }

    /// Queues a frame of the owner; false if it was dropped, which is counted.
    pub fn send(&mut self, frame: &[u8], counters: &mut Counters) -> bool {
        let queued = self.connection.queue_mut().push(frame);
        if !queued {
            counters.drop(Dropped::QueueFull);
        }
        if self.connection.queue().is_due() {
            self.connection.write(counters);
        }
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
}
