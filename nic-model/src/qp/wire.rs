//! Connected queue pairs whose peer is on the other side of the port: the device's part of the
//! requester's engine, which has several work requests in progress (`requests`).
//!
//! A work request leaves the send queue when the engine accepts it, and is kept here until it is
//! complete. Its memory is checked again for each packet, when the packet is built.

use alloc::boxed::Box;
use core::time::Duration;

use nic_abi::admin::{ModifyQp, QpState, QpType};
use nic_abi::cqe::{NO_FIELD, Status};
use nic_abi::eqe::EventType;
use nic_abi::vi::Reliability;
use nic_abi::wqe::{Opcode, SendFlags};
use platform::Instant;
use roce::transport::{Answer, Config, Event, Piece, PostError, Reason, Received, Transmit};
use roce::wire::datagram::Network;
use roce::wire::packet;
use roce::{Gid, Path, Qpn};

use super::Qp;
use super::completion::{Attempt, header_field, status_of};
use super::flights::{DEPTH, Flight};
use super::message::ATOMIC_BYTES;
use super::requester::refused;
use super::requests::Requests;
use super::send::BadEntry;
use super::services::service;
use super::vi::Left;
use crate::Frontend;
use crate::nic::Nic;
use crate::port::{Sender, Unsent};
use crate::schedule::Schedule;
use crate::transfer::{Spans, get, put};
use crate::wire::Wire;

/// The most packets of Sends and RDMA Writes that are not acknowledged, and as many of them as may
/// be so while nothing is known about the path.
const WINDOW: u32 = 256;
const FIRST_WINDOW: u32 = 8;
/// Bytes of a packet that one unit of work covers, beside the first unit.
const UNIT: u32 = 512;
/// The first UDP source port of connections (the range of RFC 6335 in which no port is registered).
const FIRST_PORT: u16 = 0xc000;
/// An operation code that no service defines.
const NO_OPCODE: u8 = 0x1f;

/// Whether something was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// Something was sent, or lost, or another unit of work was done.
    Yes,
    /// There is nothing to send now, or the queue pair waits for its peer's MAC.
    No,
}

pub(super) const fn is_local(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::FastRegister | Opcode::LocalInvalidate | Opcode::BindWindow)
}

impl Qp {
    /// The addresses of packets to the peer; `None` if no packet can have them.
    pub(super) fn network<F: Frontend>(&self, nic: &Nic<F>) -> Option<Network> {
        let ModifyQp { remote_gid, source_gid, hop_limit, traffic_class, flow_label, .. } = self.attributes;
        let source = Gid(nic.gid(source_gid)?);
        let hop_limit = hop_limit_of(hop_limit);
        let mut network = Network::new(source, Gid(remote_gid), traffic_class, hop_limit)?;
        if let Network::V6(ip) = &mut network {
            ip.flow_label = flow_label;
        }
        Some(network)
    }

    /// Returns the requester, and creates it at the first call.
    fn begin_requests(&mut self) -> &mut Requests {
        let config = Config {
            psn: self.send_psn,
            mtu: self.mtu,
            depth: DEPTH,
            window: WINDOW,
            first_window: FIRST_WINDOW,
            credits: false,
            limits: *self.persistence.limits(),
        };
        self.requests.get_or_insert_with(|| Box::new(Requests::new(self.kind, &config)))
    }

    /// Sends the next request packet, or carries out the next work request that needs no peer.
    pub(super) fn send_request<F: Frontend>(&mut self, nic: &mut Nic<F>, schedule: &mut Schedule) -> Sent {
        let loaded = self.load_request(nic, schedule);
        let Some(requests) = &mut self.requests else { return Sent::No };
        if requests.hold.is_some() {
            return Sent::No;
        }
        // Memory that may not be used now may be linked before the request begins, which happens
        // once all earlier ones are complete.
        if let Some(id) = requests.engine.begins()
            && id != requests.flights.head
            && !self.has_memory(nic, id)
        {
            return if loaded { Sent::Yes } else { Sent::No };
        }
        let Some(requests) = &mut self.requests else { return Sent::No };
        let sent = match requests.engine.transmit(schedule.now, 1) {
            None if loaded => Sent::Yes,
            None => Sent::No,
            Some(Transmit::Local { id }) => {
                self.execute_flight(nic, schedule, id);
                Sent::Yes
            }
            Some(Transmit::Piece { id, offset, piece }) => self.send_piece(nic, schedule, id, offset, &piece),
        };
        self.take_events(nic, schedule);
        sent
    }

    /// Whether a work request may use its memory now.
    fn has_memory<F: Frontend>(&self, nic: &Nic<F>, id: u32) -> bool {
        let flight = self.requests.as_ref().and_then(|requests| requests.flights.get(id));
        flight.is_some_and(|flight| {
            self.copy_of(nic, &flight.work).is_some()
                || self.check_memory(nic, &flight.work, &mut Spans::new()).is_ok()
        })
    }

    /// Passes the next entry of the send queue to the engine, if it takes one. Returns whether it
    /// did.
    fn load_request<F: Frontend>(&mut self, nic: &mut Nic<F>, schedule: &mut Schedule) -> bool {
        if self.state != QpState::Rts || !(self.send.work.loaded || self.send.posted() > 0) {
            return false;
        }
        let requests = self.begin_requests();
        if requests.hold.is_some() || !requests.engine.has_room() {
            return false;
        }
        if !self.send.work.loaded {
            let mut failure = None;
            if let Err(bad) = self.fetch(nic) {
                failure = Some(match bad {
                    BadEntry::Field(offset) => (Status::LocalQpOperation, offset as u32),
                    BadEntry::Dma => (Status::LocalQpOperation, NO_FIELD),
                    BadEntry::Status(status) => (status, NO_FIELD),
                    BadEntry::Unreachable => {
                        self.pass_over_send(nic);
                        self.broken_by_descriptor(nic, schedule);
                        return true;
                    }
                });
            }
            // The engine has the request: it and those before it are off the ring from now on.
            self.send.head = self.send.head.wrapping_add(self.send.work.blocks);
            self.send.work.blocks = 0;
            if failure.is_none() {
                failure = self.refusal();
            }
            if let Some(requests) = &mut self.requests {
                requests.refusal = failure;
            }
            if failure.is_none() && self.holds_back(schedule) {
                return false;
            }
        }
        self.pass()
    }

    /// Why the loaded work request fails before it begins.
    pub(super) fn refusal(&mut self) -> Option<(Status, u32)> {
        if self.faults.failures > 0 {
            self.faults.failures -= 1;
            return Some((self.faults.failure, NO_FIELD));
        }
        self.check_length().err()
    }

    /// Delays a work request if injection asks for that.
    fn holds_back(&mut self, schedule: &mut Schedule) -> bool {
        if self.faults.delays == 0 || is_local(self.send.work.opcode) {
            return false;
        }
        self.faults.delays -= 1;
        let until = schedule.now + Duration::from_nanos(self.faults.delay_ns);
        if let Some(requests) = &mut self.requests {
            requests.hold = Some(until);
        }
        schedule.start_timer(self, until);
        true
    }

    /// Passes the loaded work request to the engine, unless it has to wait for all earlier ones.
    fn pass(&mut self) -> bool {
        let Some(requests) = &mut self.requests else { return false };
        let (work, mut failure) = (&mut self.send.work, requests.refusal);
        let id = requests.flights.tail;
        let message = work.message(id);
        // Local requests are carried out once all earlier ones are complete. An earlier request may
        // need memory that a local one invalidates, when it is sent again; and the peer must not
        // use what a local one links or binds before it gets there.
        let barrier = work.flags.contains(SendFlags::FENCE_ALL) || is_local(work.opcode);
        if failure.is_none() && barrier && !requests.engine.is_empty() {
            return false;
        }
        let mut posted = if failure.is_some() || is_local(work.opcode) {
            requests.engine.post_local(id, message.fence)
        } else {
            requests.engine.post(message)
        };
        // What the engine does not take fails in its place.
        if let Err(error @ (PostError::Operation | PostError::Length)) = posted {
            failure = Some(refused(error));
            posted = requests.engine.post_local(id, message.fence);
        }
        // After a failure the request stays in `work`: to be flushed, or on a connection that
        // survives to be passed once the failed one is complete.
        if posted.is_err() {
            return false;
        }
        work.loaded = false;
        requests.flights.keep(work, failure);
        if failure.is_some() {
            requests.engine.abort(id);
        }
        true
    }

    /// Carries out a work request that needs no peer.
    fn execute_flight<F: Frontend>(&mut self, nic: &mut Nic<F>, schedule: &mut Schedule, id: u32) {
        let Some(mut requests) = self.requests.take() else { return };
        if let Some(flight) = requests.flights.get(id)
            && flight.failure.is_none()
        {
            schedule.charge(flight.work.local_cost());
            if let Attempt::Failed(status, field) = self.execute_local(&flight.work, nic) {
                requests.abort(id, status, field);
            }
        }
        self.requests = Some(requests);
    }

    /// Sends a packet of a work request. If the device may not use its memory, the work request
    /// fails.
    fn send_piece<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        schedule: &mut Schedule,
        id: u32,
        offset: u32,
        piece: &Piece,
    ) -> Sent {
        let (mut requests, mut uplink) = match (self.requests.take(), nic.uplink.take()) {
            (Some(requests), Some(uplink)) => (requests, uplink),
            (requests, uplink) => {
                (self.requests, nic.uplink) = (requests, uplink);
                return Sent::No;
            }
        };
        let (mut resolving, mut gathered) = (false, true);
        schedule.charge(piece.length / UNIT);
        match self.gather(nic, requests.flights.get(id), offset, piece, &mut uplink.payload) {
            Err((status, field)) => {
                requests.abort(id, status, field);
                gathered = false;
            }
            Ok(_) if self.faults.drop_requests > 0 => self.faults.drop_requests -= 1,
            Ok(_) if core::mem::take(&mut self.unreached) => {}
            Ok(payload) => {
                let garbled = self.faults.bad_requests > 0;
                let packet = Qpn::new(self.attributes.remote_qpn)
                    .and_then(|qpn| piece.to_packet(service(self.kind), qpn, payload));
                let network = self.network(nic).map(|network| match self.kind {
                    // Only the requester of a reliable connection reacts to notifications.
                    QpType::Rc => network.ecn_capable(),
                    _ => network,
                });
                if let (Some(packet), Some(network)) = (packet, network) {
                    let result = uplink.port.transmit(
                        &network,
                        self.sender(),
                        self.source_port(),
                        &mut uplink.output,
                        schedule.now,
                        |into| {
                            packet.emit(into)?;
                            if garbled && let Some(opcode) = into.first_mut() {
                                *opcode |= NO_OPCODE;
                            }
                            Ok(packet.len())
                        },
                    );
                    match result {
                        Ok(len) => {
                            self.faults.bad_requests -= u32::from(garbled);
                            uplink.wire.send(&uplink.output[..len], schedule.now);
                        }
                        Err(Unsent::Resolving) => {
                            requests.engine.not_sent(piece);
                            resolving = true;
                        }
                        // The packet counts as lost on the way.
                        Err(_) => {}
                    }
                }
            }
        }
        if !resolving
            && gathered
            && let Some(flight) = requests.flights.get_mut(id)
        {
            flight.left = flight.left.max(if piece.last { Left::All } else { Left::Part });
        }
        (self.requests, nic.uplink) = (Some(requests), Some(uplink));
        if !resolving && gathered && piece.last && self.has_level(Reliability::Delivery) {
            self.flight_left(nic, schedule, id);
        }
        if resolving {
            nic.wait_for_peer(self);
        }
        if resolving { Sent::No } else { Sent::Yes }
    }

    /// Checks the memory of a work request, and copies the payload of one of its packets into
    /// `into`.
    fn gather<'p, F: Frontend>(
        &self,
        nic: &Nic<F>,
        flight: Option<&Flight>,
        offset: u32,
        piece: &Piece,
        into: &'p mut [u8],
    ) -> Result<&'p [u8], (Status, u32)> {
        let protection = (Status::LocalProtection, NO_FIELD);
        let work = &flight.ok_or(protection)?.work;
        let payload = into.get_mut(..piece.length as usize).ok_or(protection)?;
        if let Some(copy) = self.copy_of(nic, work) {
            copy.read(offset, payload).map_err(|_| protection)?;
            return Ok(payload);
        }
        let mut local = Spans::new();
        self.check_memory(nic, work, &mut local)?;
        get(&nic.side(&local, offset.into()), payload).map_err(|_| protection)?;
        Ok(payload)
    }

    /// The queue pair as a sender of packets.
    pub(super) fn sender(&self) -> Sender {
        Sender { number: self.qpn, datagrams: !self.kind.is_connected() }
    }

    /// The UDP source port of packets of this connection. Routers choose the path of a packet by
    /// it, so it depends on both queue pairs, also if their numbers are equal.
    pub(super) fn source_port(&self) -> u16 {
        let mixed = self.qpn.rotate_left(8) ^ self.attributes.remote_qpn;
        // The upper 14 bits of the product, below the two set bits of the dynamic port range.
        FIRST_PORT | (mixed.wrapping_mul(0x9e37_79b1) >> 18) as u16
    }

    /// Handles the engine's events.
    pub(super) fn take_events<F: Frontend>(&mut self, nic: &mut Nic<F>, schedule: &mut Schedule) {
        while self.state != QpState::Error
            && let Some(requests) = &mut self.requests
            && let Some(event) = requests.engine.poll()
        {
            let (id, failed) = match event {
                Event::Completed { id } => (id, None),
                Event::Failed { id, status } => (id, Some(status)),
            };
            requests.flights.head = requests.flights.head.wrapping_add(1);
            let Some(flight) = requests.flights.get(id) else { continue };
            let (header, args, left) = (flight.work.header, flight.work.args, flight.left);
            let (opcode, total) = (flight.work.opcode, flight.work.total);
            let failure = failed.map(|failed| flight.failure.unwrap_or((status_of(failed), NO_FIELD)));
            let failure = failure.or_else(|| {
                let invalidates = opcode == Opcode::ReadInvalidate;
                let failed =
                    invalidates && nic.keys.invalidate(header.immediate, self.pd, self.owner).is_err();
                failed.then_some((Status::LocalProtection, header_field!(immediate)))
            });
            let length = match opcode {
                Opcode::CompareSwap | Opcode::FetchAdd => ATOMIC_BYTES,
                _ if is_local(opcode) => 0,
                _ => total,
            };
            match failure {
                None => self.post_completion(nic, (&header, args, left), Status::Success, length, NO_FIELD),
                Some((status, field)) => {
                    self.post_completion(nic, (&header, args, left), status, 0, field);
                    if !self.survives_errors() {
                        self.fail(nic, schedule, status, Some((EventType::QpFatal, 0)));
                    } else if let Some(requests) = &mut self.requests {
                        requests.engine.resume();
                    }
                }
            }
        }
        self.follow_engine(schedule);
    }

    /// Sets the timer for the engine. A timer that fires early does no harm, so it is changed only
    /// if it would fire late.
    fn follow_engine(&mut self, schedule: &mut Schedule) {
        if self.state != QpState::Error
            && let Some(requests) = &self.requests
            && let Some(at) = requests.engine.timer()
        {
            self.wake_at(schedule, at);
        }
    }

    /// Sets the timer, unless it fires before.
    fn wake_at(&mut self, schedule: &mut Schedule, at: Instant) {
        if self.deadline.is_none_or(|deadline| at < deadline) {
            schedule.start_timer(self, at);
        }
    }

    /// The time for which the engine, or a delayed request, waits may have come.
    pub(super) fn requests_timer<F: Frontend>(&mut self, nic: &mut Nic<F>, schedule: &mut Schedule) {
        let now = schedule.now;
        let Some(requests) = &mut self.requests else { return };
        requests.hold = requests.hold.filter(|until| now < *until);
        let hold = requests.hold;
        if let Some(reason) = requests.engine.expired(now) {
            nic.stats.lost_requests += 1;
            nic.packets.count(reason);
        }
        self.take_events(nic, schedule);
        if let Some(until) = hold {
            self.wake_at(schedule, until);
        }
        schedule.activate(self);
    }

    /// Takes an answer.
    pub fn take_answer<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        schedule: &mut Schedule,
        packet: &packet::Repr<'_>,
    ) {
        let answer = Answer::from_packet(packet);
        let (Some(answer), Some(requests)) = (answer, &mut self.requests) else {
            return nic.packets.count(Reason::AnswerNeverAskedFor);
        };
        if self.faults.drop_responses > 0 {
            self.faults.drop_responses -= 1;
            nic.stats.lost_answers += 1;
            return;
        }
        if self.faults.bad_responses > 0 && !requests.engine.is_empty() {
            self.faults.bad_responses -= 1;
            requests.abort(requests.flights.head, Status::BadResponse, NO_FIELD);
        }
        match requests.engine.receive(&answer, schedule.now) {
            Received::Acknowledged => {}
            Received::Read { id, offset, length } => {
                let bytes = packet.payload.get(..length as usize).unwrap_or(packet.payload);
                self.scatter(nic, id, offset, bytes);
            }
            Received::Atomic { id, original } => self.scatter(nic, id, 0, &original.to_le_bytes()),
            Received::Retry(reason) | Received::Refused(reason) | Received::Dropped(reason) => {
                nic.packets.count(reason);
            }
        }
        self.take_events(nic, schedule);
        schedule.activate(self);
    }

    /// Stores bytes of an answer into the memory of their work request.
    fn scatter<F: Frontend>(&mut self, nic: &Nic<F>, id: u32, offset: u32, bytes: &[u8]) {
        let Some(mut requests) = self.requests.take() else { return };
        if let Some(flight) = requests.flights.get(id) {
            let mut local = Spans::new();
            let memory = self.check_memory(nic, &flight.work, &mut local);
            let stored = memory.and_then(|()| {
                put(&nic.side(&local, offset.into()), bytes).map_err(|_| (Status::LocalProtection, NO_FIELD))
            });
            if let Err((status, field)) = stored {
                requests.abort(id, status, field);
            }
        }
        self.requests = Some(requests);
    }

    /// Completes the oldest work request in progress as flushed. False if there is none.
    pub(super) fn flush_request<F: Frontend>(&mut self, nic: &mut Nic<F>) -> bool {
        let Some(requests) = &mut self.requests else { return false };
        let Some(id) = requests.engine.flush() else { return false };
        requests.flights.head = requests.flights.head.wrapping_add(1);
        let Some(flight) = requests.flights.get(id) else { return false };
        let (header, args, left) = (flight.work.header, flight.work.args, flight.left);
        self.post_completion(nic, (&header, args, left), Status::Flushed, 0, NO_FIELD);
        true
    }
}

/// The hop limit of packets, from the hop limit of a path.
pub(super) const fn hop_limit_of(hop_limit: u8) -> u8 {
    match hop_limit {
        0 => Path::HOP_LIMIT,
        given => given,
    }
}
