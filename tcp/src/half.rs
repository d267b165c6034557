//! Connections that peers ask for, until they have answered once: they have no stream and no rings.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use platform::Instant;

use crate::address::Tuple;
use crate::config::MAX_HALF_OPEN;
use crate::stream::Offer;
use crate::timers::Timers;

/// The wait before the first SYN is answered again; it doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// How often a SYN is answered before the connection is given up, after 6.3 s in all.
const TRIES: u32 = 6;

/// A connection that a peer asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Half {
    pub tuple: Tuple,
    pub listener: u32,
    /// The peer's first sequence number, and what its SYN offered.
    pub irs: u32,
    pub offer: Offer,
    /// What makes this side's first sequence number, and the number.
    pub seed: u64,
    pub iss: u32,
    serial: u64,
    tries: u32,
}

impl Half {
    /// One that begins.
    pub const fn new(tuple: Tuple, listener: u32, irs: u32, offer: Offer) -> Half {
        Half { tuple, listener, irs, offer, seed: 0, iss: 0, serial: 0, tries: 0 }
    }
}

/// All half-open connections.
#[derive(Debug)]
pub(crate) struct Halves {
    slots: Vec<Option<Half>>,
    free: Vec<u32>,
    timers: Timers,
    /// Those of each listener in the order in which they came.
    order: BTreeMap<(u32, u64), u32>,
    /// How many each listener has, and each of its peers.
    counts: BTreeMap<(u32, Option<IpAddr>), usize>,
    serial: u64,
}

impl Halves {
    pub const fn new() -> Halves {
        Halves {
            slots: Vec::new(),
            free: Vec::new(),
            timers: Timers::new(),
            order: BTreeMap::new(),
            counts: BTreeMap::new(),
            serial: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }

    pub fn get(&self, index: u32) -> Option<&Half> {
        self.slots.get(index as usize)?.as_ref()
    }

    /// How many a listener has, of all peers or of one.
    pub fn count(&self, listener: u32, peer: Option<IpAddr>) -> usize {
        self.counts.get(&(listener, peer)).copied().unwrap_or(0)
    }

    /// The oldest one of a listener.
    pub fn oldest(&self, listener: u32) -> Option<u32> {
        self.order.range((listener, 0)..=(listener, u64::MAX)).next().map(|(_, index)| *index)
    }

    /// Adds one; `None` if there is no place.
    pub fn add(&mut self, mut half: Half, now: Instant) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = self.slots.len();
                if index >= MAX_HALF_OPEN || !self.timers.reserve(index + 1) {
                    return None;
                }
                self.slots.try_reserve(1).ok()?;
                self.free.try_reserve(index + 1).ok()?;
                self.slots.push(None);
                index as u32
            }
        };
        self.serial += 1;
        half.serial = self.serial;
        self.order.insert((half.listener, half.serial), index);
        for peer in [None, Some(half.tuple.remote.ip())] {
            *self.counts.entry((half.listener, peer)).or_default() += 1;
        }
        self.timers.set(index, Some(now + FIRST_WAIT));
        self.slots[index as usize] = Some(half);
        Some(index)
    }

    pub fn remove(&mut self, index: u32) -> Option<Half> {
        let half = self.slots.get_mut(index as usize)?.take()?;
        self.free.push(index);
        self.timers.set(index, None);
        self.order.remove(&(half.listener, half.serial));
        for peer in [None, Some(half.tuple.remote.ip())] {
            let key = (half.listener, peer);
            if let Some(count) = self.counts.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&key);
                }
            }
        }
        Some(half)
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| at)
    }

    /// The one whose time is over: to be answered again (true), or given up.
    pub fn due(&mut self, now: Instant) -> Option<(u32, bool)> {
        let (_, index) = self.timers.first().filter(|(at, _)| *at <= now)?;
        let half = self.slots.get_mut(index as usize)?.as_mut()?;
        half.tries += 1;
        let again = half.tries < TRIES;
        self.timers.set(index, Some(now + FIRST_WAIT * 2_u32.pow(half.tries)));
        Some((index, again))
    }
}
