//! One direction of an impaired link.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use platform::Instant;
use platform::random::Random;
use roce::wire::ethernet;

use super::{Fault, Impairment};
use crate::{Counters, Dropped, MAX_FRAME};

/// The most frames in flight, and the most bytes of them.
const FRAMES: usize = 4096;
const BYTES: usize = 4 << 20;
/// The most frames that overtake one.
const OVERTAKERS: u32 = 4;
/// How long a frame waits for frames that should overtake it.
const PATIENCE: Duration = Duration::from_millis(5);

/// A frame in flight, ordered by the time at which it arrives.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Flight {
    due: Instant,
    number: u64,
    frame: Box<[u8]>,
}

/// A frame that later frames should overtake.
#[derive(Debug)]
struct Held {
    flight: Flight,
    overtakers: u32,
    /// How many frames have overtaken it.
    overtaken: u32,
    until: Instant,
}

/// The frames in flight in one direction.
#[derive(Debug)]
pub(super) struct Direction {
    random: Random,
    impairment: Impairment,
    flights: BinaryHeap<Reverse<Flight>>,
    bytes: usize,
    held: Option<Held>,
    number: u64,
    /// When the wire is free for the next frame.
    free: Instant,
}

impl Direction {
    pub fn new(seed: u64, stream: u64) -> Direction {
        // The seeds of the directions come from one random sequence, so that their random numbers
        // are independent.
        let mut seeds = Random::new(seed);
        let seed = (0..=stream).fold(seed, |_, _| seeds.word());
        Direction {
            random: Random::new(seed),
            impairment: Impairment::default(),
            flights: BinaryHeap::new(),
            bytes: 0,
            held: None,
            number: 0,
            free: Instant::ZERO,
        }
    }

    pub fn set(&mut self, impairment: Impairment) {
        self.impairment = impairment;
    }

    /// Whether a frame of any size, and its duplicate, fit.
    pub fn has_room(&self) -> bool {
        self.count() + 2 <= FRAMES && self.bytes + 2 * MAX_FRAME <= BYTES
    }

    fn count(&self) -> usize {
        self.flights.len() + usize::from(self.held.is_some())
    }

    /// A frame enters the wire.
    pub fn enter(&mut self, frame: &[u8], now: Instant, counters: &mut Counters) {
        // All chances are drawn for each frame, so that changing one probability does not change
        // the outcome of another.
        let [loss, corrupt, dup, reorder] = [Fault::Loss, Fault::Corrupt, Fault::Dup, Fault::Reorder]
            .map(|fault| self.impairment.chance(fault).draw(&mut self.random));
        let (bit, overtakers) = (self.random.word() as usize, 1 + self.random.small(OVERTAKERS));
        if loss {
            return counters.drop(Dropped::Lost);
        }
        let mut frame: Box<[u8]> = frame.into();
        if corrupt {
            counters.suffer(Fault::Corrupt);
            if !flip(&mut frame, bit) {
                return counters.drop(Dropped::Lost);
            }
        }
        if dup && self.takes(&frame) {
            counters.suffer(Fault::Dup);
            self.line_up(frame.clone(), now, None, counters);
        }
        self.line_up(frame, now, reorder.then_some(overtakers), counters);
    }

    fn takes(&self, frame: &[u8]) -> bool {
        self.count() < FRAMES && self.bytes + frame.len() <= BYTES
    }

    fn line_up(&mut self, frame: Box<[u8]>, now: Instant, overtakers: Option<u32>, counters: &mut Counters) {
        if !self.takes(&frame) {
            return counters.drop(Dropped::QueueFull);
        }
        if let Some(rate) = self.impairment.rate {
            self.free = self.free.max(now) + rate.time_of(frame.len());
        } else {
            self.free = now;
        }
        let due = self.free + self.impairment.delay;
        self.bytes += frame.len();
        self.number += 1;
        let flight = Flight { due, number: self.number, frame };
        match overtakers {
            Some(overtakers) if self.held.is_none() => {
                self.held = Some(Held { flight, overtakers, overtaken: 0, until: due + PATIENCE });
            }
            _ => {
                self.flights.push(Reverse(flight));
                self.overtake(due, counters);
            }
        }
    }

    /// A frame that arrives at `due` has overtaken the held frame.
    fn overtake(&mut self, due: Instant, counters: &mut Counters) {
        let Some(held) = &mut self.held else { return };
        if held.overtaken == 0 {
            counters.suffer(Fault::Reorder);
        }
        held.overtaken += 1;
        if held.overtaken == held.overtakers {
            self.resume(due);
        }
    }

    /// The held frame arrives after the frames that arrive at `due`.
    fn resume(&mut self, due: Instant) {
        if let Some(Held { flight, .. }) = self.held.take() {
            self.number += 1;
            self.flights.push(Reverse(Flight { due, number: self.number, ..flight }));
        }
    }

    /// Takes the next frame that arrives.
    pub fn due(&mut self, now: Instant) -> Option<Box<[u8]>> {
        if let Some(held) = &self.held
            && held.until <= now
        {
            let until = held.until;
            self.resume(until);
        }
        if self.flights.peek().is_none_or(|Reverse(flight)| now < flight.due) {
            return None;
        }
        let Reverse(Flight { frame, .. }) = self.flights.pop()?;
        self.bytes -= frame.len();
        Some(frame)
    }

    /// When the next frame arrives.
    pub fn deadline(&self) -> Option<Instant> {
        let flight = self.flights.peek().map(|Reverse(flight)| flight.due);
        flight.into_iter().chain(self.held.as_ref().map(|held| held.until)).min()
    }

    /// Loses all frames in flight; returns how many.
    pub fn clear(&mut self) -> u64 {
        let lost = self.count() as u64;
        self.flights.clear();
        self.held = None;
        self.bytes = 0;
        self.free = Instant::ZERO;
        lost
    }
}

/// Changes a bit after the Ethernet header and the tag of a VLAN. False if the frame must be lost
/// instead: if only Ethernet's check sequence protects it, every port would find it corrupt.
fn flip(frame: &mut [u8], bit: usize) -> bool {
    // A frame that ends in its header has nothing else.
    let Ok((header, body)) = ethernet::Repr::parse(frame) else { return false };
    // ARP has no checksum of its own.
    if header.ether_type == ethernet::Repr::ARP || body.is_empty() {
        return false;
    }
    let start = frame.len() - body.len();
    let body = &mut frame[start..];
    let bit = bit % (body.len() * 8);
    body[bit / 8] ^= 1 << (bit % 8);
    true
}
