//! The work requests of a connected queue pair that are in progress to a peer on the other side of
//! the port, and the requester's engine ([`roce::transport::Requester`],
//! [`roce::transport::uc::Requester`]) that decides about them.

use alloc::vec::Vec;

use nic_abi::admin::{ModifyQp, QpType};
use nic_abi::cqe::Status;
use platform::Instant;
use roce::TimeoutCode;
use roce::transport::{Config, Limits};

use super::send::Work;
use super::services::RequesterEngine;
use super::vi::Left;

/// The most work requests in progress.
pub(super) const DEPTH: u16 = 64;
/// As a number of requests.
pub(super) const UNDER_WAY: u32 = DEPTH as u32;

/// A work request in progress.
pub(super) struct Flight {
    pub work: Work,
    /// If the device aborts the work request: the status and the offset of the field to blame.
    pub failure: Option<(Status, u32)>,
    /// How much of it was sent at least once.
    pub left: Left,
}

/// The requester of a connected queue pair, and its work requests in progress.
pub(crate) struct Requests {
    pub(super) engine: RequesterEngine,
    /// Work request number `n` is at `n % DEPTH`.
    flights: Vec<Flight>,
    /// The number of the oldest work request, and that of the next one.
    pub(super) head: u32,
    pub(super) tail: u32,
    /// Why the loaded work request fails, if it does. The engine may not take it yet.
    pub(super) refusal: Option<(Status, u32)>,
    /// No work request begins before this time (injection).
    pub(super) hold: Option<Instant>,
}

impl Requests {
    /// The work requests in progress up to number `id`, the oldest first.
    pub fn up_to(&self, id: u32) -> impl Iterator<Item = &Work> {
        let count = id.wrapping_sub(self.head).wrapping_add(1).min(DEPTH.into());
        (0..count).filter_map(|n| self.flight(self.head.wrapping_add(n))).map(|flight| &flight.work)
    }

    pub(super) fn new(kind: QpType, config: &Config) -> Requests {
        let engine = RequesterEngine::new(kind, config);
        Requests { engine, flights: Vec::new(), head: 0, tail: 0, refusal: None, hold: None }
    }

    pub(super) fn flight(&self, id: u32) -> Option<&Flight> {
        self.flights.get(id as usize % usize::from(DEPTH))
    }

    pub(super) fn flight_mut(&mut self, id: u32) -> Option<&mut Flight> {
        self.flights.get_mut(id as usize % usize::from(DEPTH))
    }

    /// Keeps a work request in progress. In exchange `work` gets the allocation of an earlier one.
    pub(super) fn keep(&mut self, work: &mut Work, failure: Option<(Status, u32)>) {
        let place = self.tail as usize % usize::from(DEPTH);
        if self.flights.len() <= place {
            self.flights.push(Flight { work: Work::new(), failure: None, left: Left::Nothing });
        }
        if let Some(flight) = self.flights.get_mut(place) {
            core::mem::swap(&mut flight.work, work);
            flight.failure = failure;
            flight.left = Left::Nothing;
        }
        self.tail = self.tail.wrapping_add(1);
    }

    /// Fails a work request with this status, once all earlier ones are complete.
    pub(super) fn abort(&mut self, id: u32, status: Status, field: u32) {
        if let Some(flight) = self.flight_mut(id) {
            flight.failure = Some((status, field));
        }
        self.engine.abort(id);
    }

    /// The PSN of the next packet.
    pub fn next_psn(&self) -> u32 {
        self.engine.next_psn().get()
    }

    pub fn set_limits(&mut self, limits: Limits) {
        self.engine.set_limits(limits);
    }

    pub fn drain(&mut self, draining: bool) {
        self.engine.drain(draining);
    }

    /// Whether nothing is in progress, and nothing will start.
    pub fn is_drained(&self) -> bool {
        self.engine.is_drained()
    }

    /// The peer says that queues on the way to it are long. False if the engine sends as before.
    pub fn notified(&mut self) -> bool {
        self.engine.notified()
    }

    /// Sends again what is not acknowledged, since the port now knows the MAC.
    pub fn restart(&mut self) {
        self.engine.restart();
    }
}

/// What the requester of a queue pair with these attributes may do.
pub(crate) fn limits(attributes: &ModifyQp) -> Limits {
    let ModifyQp { max_rd_atomic, timeout, retry_count, rnr_retry, .. } = *attributes;
    let timeout = TimeoutCode::new(timeout).unwrap_or_default();
    Limits { max_rd_atomic, timeout, retry_count, rnr_retry }
}
