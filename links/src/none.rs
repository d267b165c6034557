//! A port without a cable.

use platform::Instant;

use crate::{Counters, Dropped, Link, PollFd, Wire};

/// A link that is always down.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unplugged {
    counters: Counters,
}

impl Unplugged {
    /// A link without a peer.
    pub fn new() -> Unplugged {
        Unplugged::default()
    }
}

impl Wire for Unplugged {
    fn send(&mut self, _frame: &[u8], _now: Instant) {
        self.counters.drop(Dropped::NoPeer);
    }

    fn has_room(&self) -> bool {
        true
    }

    fn receive(&mut self, _into: &mut [u8], _now: Instant) -> Option<usize> {
        None
    }

    fn flush(&mut self, _now: Instant) {}

    fn up(&self) -> bool {
        false
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }
}

impl Link for Unplugged {
    fn poll_fd(&self) -> Option<PollFd<'_>> {
        None
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
