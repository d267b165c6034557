//! A queue pair's turn, and its effects: completions, waiting, the error state.

use nic_abi::admin::{QpState, QpType};
use nic_abi::cqe::{NO_FIELD, Status};
use nic_abi::eqe::EventType;
use nic_abi::ident::qpn_slot;
use nic_abi::wqe::Opcode;

use super::completion::{Attempt, status_of};
use super::message::{Reply, Request};
use super::responder::Responder;
use super::send::BadEntry;
use super::{Qp, Way};
use crate::Frontend;
use crate::fabric::{Ends, Fabric};
use crate::ids::{NicId, QpId};
use crate::nic::Nic;
use crate::schedule::Schedule;
use crate::transfer::Spans;

/// Work requests that a queue pair executes before other queue pairs get their turn.
const TURN: u32 = 16;

/// Whether a queue pair's turn continues.
pub(super) enum Step {
    /// A unit of work is done, and there may be more.
    Again,
    /// A large unit of work is done: the turn passes to other queue pairs.
    Yield,
    /// There is nothing to do.
    Idle,
}

impl<F: Frontend> Fabric<F> {
    /// Runs a queue pair's turn, which ends with the slice at the latest.
    pub(crate) fn turn(&mut self, id: QpId) {
        if let Some((nic, qp, _)) = self.parts(id) {
            qp.active = false;
            if qp.stalled {
                nic.end_stall(qp);
            }
        }
        for _ in 0..TURN {
            self.schedule.charge(1);
            let step = self.step(id);
            self.fail_queue_pairs(id.nic);
            match step {
                Step::Again if self.schedule.slice_is_over() => break,
                Step::Again => {}
                Step::Yield => break,
                Step::Idle => return,
            }
        }
        self.activate(id);
    }

    fn activate(&mut self, id: QpId) {
        if let Some((_, qp, schedule)) = self.parts(id) {
            schedule.activate(qp);
        }
    }

    /// Executes the next work request of a queue pair, or the next part of it. The requester is not
    /// borrowed while the responder acts, since the responder may be on the same NIC or be the same
    /// queue pair.
    fn step(&mut self, id: QpId) -> Step {
        let Some((nic, qp, schedule)) = self.parts(id) else { return Step::Idle };
        match qp.way {
            _ if qp.refuses_sends() => return qp.refuse_sends(nic, schedule),
            Way::ShortCut(_) => {}
            Way::Port => return qp.step_on_wire(nic, schedule),
            Way::Stream => return self.step_on_stream(id),
            Way::Unknown if qp.kind == QpType::Iwarp => return self.step_on_stream(id),
            Way::Unknown if qp.kind.is_connected() && nic.uplink.is_some() => return self.find_way(id),
            Way::Unknown => {}
        }
        if let Err(step) = qp.load_work(nic, schedule) {
            return step;
        }
        let kind = qp.kind;
        if !kind.is_connected() {
            return self.step_unconnected(id);
        }
        let mut local = Spans::new();
        if let Err(outcome) = qp.attempt(nic, &mut local) {
            schedule.charge(qp.send.work.local_cost());
            return qp.settle(nic, schedule, outcome);
        }
        let way = qp.way;
        let request = qp.request(&local);
        // No closure: the compiler leaves one out of line.
        let answer = match self.peer(id, way) {
            Some(to) => self.ask(to, &request, kind),
            None => None,
        };
        let garbled = request.garbled;
        let Some((nic, qp, schedule)) = self.parts(id) else { return Step::Idle };
        // If requester and responder are on the same NIC, the responder may have failed it.
        if !nic.running() {
            return Step::Idle;
        }
        let outcome = match answer {
            Some(answer) => {
                if garbled {
                    qp.faults.bad_requests -= 1;
                }
                qp.conclude(nic, &local, answer)
            }
            None => Attempt::Lost,
        };
        qp.settle(nic, schedule, outcome)
    }

    /// Executes the current work request of a queue pair without a connection, or the next part of
    /// it. Out of line, to keep the code of connections short.
    #[inline(never)]
    fn step_unconnected(&mut self, id: QpId) -> Step {
        let Some((nic, qp, schedule)) = self.parts(id) else { return Step::Idle };
        if let Some(outcome) = qp.execute_alone(nic) {
            return qp.settle(nic, schedule, outcome);
        }
        self.step_datagram(id)
    }

    /// The NIC of a queue pair's peer, on the short cut.
    #[inline(always)]
    pub(super) fn peer(&mut self, id: QpId, way: Way) -> Option<NicId> {
        match way {
            Way::ShortCut(to) => Some(to),
            _ => self.find_peer(id),
        }
    }

    /// The NIC that the GID of a queue pair's peer names.
    #[cold]
    fn find_peer(&mut self, id: QpId) -> Option<NicId> {
        let gid = self.parts(id)?.1.attributes.remote_gid;
        let to = self.find(id.nic, &gid)?;
        self.parts(id)?.1.way = Way::ShortCut(to);
        Some(to)
    }

    /// Decides how a connected queue pair of a NIC with a port reaches its peer: by the short cut
    /// if the peer's NIC is on it.
    #[cold]
    fn find_way(&mut self, id: QpId) -> Step {
        let Some((_, qp, _)) = self.parts(id) else { return Step::Idle };
        let connected = matches!(qp.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        if !connected {
            // Without a connection the queue pair can only flush, and repeat a refusal.
            qp.way = if qp.state == QpState::Error { Way::Port } else { Way::Unknown };
            return if qp.way == Way::Port { Step::Again } else { Step::Idle };
        }
        if self.find_peer(id).is_none()
            && let Some((_, qp, _)) = self.parts(id)
        {
            qp.way = Way::Port;
        }
        Step::Again
    }

    /// Passes a request to the queue pair that it names, and returns the answer; `None` if no queue
    /// pair of this type takes the request.
    #[inline(always)]
    pub(super) fn ask(&mut self, to: NicId, request: &Request<'_>, kind: QpType) -> Option<Reply> {
        let Ends { source, target, schedule } = self.ends(request.from, to)?;
        let up = target.nic.running() && target.nic.port_up;
        let (nic, qp) = target.parts(qpn_slot(request.target_qpn))?;
        if !up || !qp.answers(request, source.unwrap_or(nic), kind) {
            return None;
        }
        if let Some(vi) = &mut qp.vi
            && vi.loses(request.opcode == Opcode::Read)
        {
            return None;
        }
        let mut responder = Responder { nic, qp, schedule };
        let answer = responder.respond(request, source);
        target.fail_queue_pairs(schedule);
        Some(answer)
    }
}

impl Qp {
    /// Loads the next request into `work`, unless one is loaded. An error is the step's result if
    /// there is none to execute.
    #[inline]
    fn load_work<F: Frontend>(&mut self, nic: &mut Nic<F>, schedule: &mut Schedule) -> Result<(), Step> {
        if !nic.running() {
            return Err(Step::Idle);
        }
        match self.state {
            QpState::Rts | QpState::Sqd => {}
            QpState::Error => return Err(if self.flush(nic, schedule) { Step::Yield } else { Step::Idle }),
            _ => return Err(Step::Idle),
        }
        if self.persistence.is_waiting() {
            return Err(Step::Idle);
        }
        if self.send.work.loaded {
            return Ok(());
        }
        if self.state == QpState::Sqd {
            self.report_drained(nic);
            return Err(Step::Idle);
        }
        if self.send.posted() == 0 {
            return Err(Step::Idle);
        }
        self.fetch(nic).map_err(|bad| {
            let (status, field) = match bad {
                BadEntry::Field(offset) => (Status::LocalQpOperation, offset as u32),
                BadEntry::Dma => (Status::LocalQpOperation, NO_FIELD),
                BadEntry::Status(status) => (status, NO_FIELD),
                BadEntry::Unreachable => {
                    self.pass_over_send(nic);
                    self.broken_by_descriptor(nic, schedule);
                    return Step::Again;
                }
            };
            self.fail_request(nic, schedule, status, field);
            if self.survives_errors() { Step::Again } else { Step::Idle }
        })
    }

    /// Executes the current work request if it needs no peer.
    #[inline]
    fn execute_alone<F: Frontend>(&mut self, nic: &mut Nic<F>) -> Option<Attempt> {
        if self.faults.injected && self.faults.failures > 0 && !self.send.work.started {
            self.faults.failures -= 1;
            return Some(Attempt::Failed(self.faults.failure, NO_FIELD));
        }
        match self.send.work.opcode {
            Opcode::FastRegister | Opcode::LocalInvalidate | Opcode::BindWindow => {
                Some(self.execute_local(&self.send.work, nic))
            }
            _ => None,
        }
    }

    /// Executes the current work request as far as possible without the peer. Puts its memory into
    /// `local`. An error is the outcome of a request that does not go to the peer.
    #[inline]
    fn attempt<F: Frontend>(&mut self, nic: &mut Nic<F>, local: &mut Spans) -> Result<(), Attempt> {
        match self.execute_alone(nic) {
            Some(outcome) => Err(outcome),
            None => self.check_request(nic, local),
        }
    }

    /// Applies the outcome of an attempt.
    #[inline]
    pub(super) fn settle<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        schedule: &mut Schedule,
        outcome: Attempt,
    ) -> Step {
        // The attempt may have failed the queue pair in its role of a responder, or by an overflow
        // of its CQ.
        if self.state == QpState::Error && !matches!(outcome, Attempt::Failed(..)) {
            return Step::Again;
        }
        match outcome {
            Attempt::More => {
                self.persistence.start_over();
                Step::Yield
            }
            Attempt::Done(length) => self.done(nic, length),
            Attempt::Failed(status, field) => {
                self.fail_request(nic, schedule, status, field);
                Step::Again
            }
            Attempt::Lost => self.lost(nic, schedule),
            Attempt::NotReady(timer) => {
                self.send.work.started = false;
                if let Err(status) = self.persistence.not_ready(timer, schedule.now) {
                    self.fail_request(nic, schedule, status_of(status), NO_FIELD);
                    return Step::Again;
                }
                self.sleep(schedule)
            }
            Attempt::Delayed(delay) => {
                self.persistence.pause(schedule.now + delay);
                self.sleep(schedule)
            }
        }
    }

    /// The current work request has succeeded.
    #[inline(always)]
    fn done<F: Frontend>(&mut self, nic: &mut Nic<F>, length: u64) -> Step {
        let large = self.send.work.total > u64::from(u16::MAX);
        if self.kind.is_connected() {
            self.send_psn = self.send_psn.add(self.request_packets());
        }
        self.complete_request(nic, Status::Success, length, NO_FIELD);
        match large {
            true => Step::Yield,
            // The next step would find no work.
            false if self.state == QpState::Rts && self.send.posted() == 0 => Step::Idle,
            false => Step::Again,
        }
    }

    /// The current work request got lost, or the answer to it.
    #[cold]
    #[inline(never)]
    fn lost<F: Frontend>(&mut self, nic: &mut Nic<F>, schedule: &mut Schedule) -> Step {
        nic.stats.lost_requests += 1;
        // Nothing tells an unreliable connection: the message has left.
        if self.kind == QpType::Uc {
            return self.done(nic, self.send.work.total);
        }
        self.send.work.started = false;
        if self.vi.is_some() {
            self.leave(nic, schedule);
        }
        self.persistence.lost(schedule.now);
        self.sleep(schedule)
    }

    /// Sets the timer for what the requester waits for.
    fn sleep(&mut self, schedule: &mut Schedule) -> Step {
        if let Some(at) = self.persistence.timer() {
            schedule.start_timer(self, at);
        }
        Step::Idle
    }

    /// The queue pair's timer has fired.
    pub(crate) fn timer_fired<F: Frontend>(&mut self, nic: &mut Nic<F>, schedule: &mut Schedule) {
        self.deadline = None;
        // A NIC that does not run does not give up a request either.
        if !nic.running() {
            return;
        }
        match self.way {
            Way::Port => return self.requests_timer(nic, schedule),
            Way::Stream => return self.stream_timer(nic, schedule),
            Way::Unknown | Way::ShortCut(_) => {}
        }
        if self.persistence.expired(schedule.now)
            && let Err(status) = self.persistence.retry()
        {
            return self.fail_request(nic, schedule, status_of(status), NO_FIELD);
        }
        schedule.activate(self);
    }

    /// Completes the current work request with an error and moves the queue pair to the error
    /// state.
    fn fail_request<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        schedule: &mut Schedule,
        status: Status,
        field: u32,
    ) {
        self.complete_request(nic, status, 0, field);
        if !self.survives_errors() {
            self.fail(nic, schedule, status, Some((EventType::QpFatal, 0)));
        }
    }

    /// Reports once that no work request of a send queue in SQD is in progress.
    pub(super) fn report_drained<F: Frontend>(&mut self, nic: &mut Nic<F>) {
        if core::mem::take(&mut self.draining) {
            self.post_drained(nic);
        }
    }
}
