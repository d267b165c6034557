//! Records of former connections: TIME-WAIT (RFC 9293 section 3.3.2) without a socket.

use alloc::collections::VecDeque;
use core::time::Duration;

use platform::Instant;

use crate::address::Tuple;
use crate::config::MAX_FORMER;

/// How long a record lasts. Packets do not live longer on a link.
pub(crate) const TIME_WAIT: Duration = Duration::from_secs(10);

/// A connection whose two directions are closed, of which this side closed its own first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Former {
    pub tuple: Tuple,
    /// The next sequence numbers: this side's and the peer's.
    pub seq: u32,
    pub ack: u32,
    until: Instant,
}

/// The records, in the order in which they end. Their numbers go on for ever.
#[derive(Debug, Default)]
pub(crate) struct Formers {
    records: VecDeque<Option<Former>>,
    /// The number of the first one.
    first: u32,
}

impl Formers {
    pub const fn new() -> Formers {
        Formers { records: VecDeque::new(), first: 0 }
    }

    fn place(&self, number: u32) -> usize {
        number.wrapping_sub(self.first) as usize
    }

    pub fn get(&self, number: u32) -> Option<&Former> {
        self.records.get(self.place(number))?.as_ref()
    }

    /// Whether the oldest record has to make room before another one is added.
    pub fn is_full(&self) -> bool {
        self.records.len() >= MAX_FORMER
    }

    /// Adds a record and returns its number; `None` if there is no memory.
    pub fn add(&mut self, tuple: Tuple, seq: u32, ack: u32, now: Instant) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        self.records.try_reserve(1).ok()?;
        let number = self.first.wrapping_add(self.records.len() as u32);
        self.records.push_back(Some(Former { tuple, seq, ack, until: now + TIME_WAIT }));
        Some(number)
    }

    pub fn remove(&mut self, number: u32) {
        let place = self.place(number);
        if let Some(record) = self.records.get_mut(place) {
            *record = None;
        }
    }

    /// Takes the oldest record, or the place of one that was removed.
    pub fn pop(&mut self) -> Option<Option<Former>> {
        let record = self.records.pop_front()?;
        self.first = self.first.wrapping_add(1);
        Some(record)
    }

    /// Takes the oldest record if its time is over.
    pub fn due(&mut self, now: Instant) -> Option<Option<Former>> {
        let due = self.records.front()?.is_none_or(|record| record.until <= now);
        if due { self.pop() } else { None }
    }

    pub fn deadline(&self) -> Option<Instant> {
        Some(self.records.front()?.map_or(Instant::ZERO, |record| record.until))
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }
}
