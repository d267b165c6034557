//! The work requests of a connected queue pair that are in progress to a peer on the other side of
//! the port, and the requester's engine ([`roce::transport::Requester`],
//! [`roce::transport::uc::Requester`]) that decides about them.

use nic_abi::admin::{ModifyQp, QpType};
use nic_abi::cqe::Status;
use platform::Instant;
use roce::TimeoutCode;
use roce::transport::{Config, Limits};

use super::flights::Flights;
use super::services::RequesterEngine;

/// The requester of a connected queue pair, and its work requests in progress.
pub(crate) struct Requests {
    pub(super) engine: RequesterEngine,
    pub(super) flights: Flights,
    /// Why the loaded work request fails, if it does. The engine may not take it yet.
    pub(super) refusal: Option<(Status, u32)>,
    /// No work request begins before this time (injection).
    pub(super) hold: Option<Instant>,
}

impl Requests {
    pub(super) fn new(kind: QpType, config: &Config) -> Requests {
        let engine = RequesterEngine::new(kind, config);
        Requests { engine, flights: Flights::new(), refusal: None, hold: None }
    }

    /// Fails a work request with this status, once all earlier ones are complete.
    pub(super) fn abort(&mut self, id: u32, status: Status, field: u32) {
        if let Some(flight) = self.flights.get_mut(id) {
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
