//! The device's part of a responder: it carries out the requests that the engine
//! ([`roce::transport::Responder`]) has found to be in sequence, after it has checked rights and
//! receives (IBTA 9.7.4, 9.7.5). The bytes come from the requester's memory (the short cut), or in
//! a packet.

use core::sync::atomic::Ordering;

use nic_abi::admin::{QpState, QpType};
use nic_abi::cqe::{CqeFlags, NO_FIELD, Status};
use nic_abi::eqe::{EventType, REFUSED};
use nic_abi::wqe::LinkFlags;
use platform::planted::{Bug, planted};
use roce::transport::{Body, Executed, Execution, Extra, Operation, Piece, Reason, Remote, Verdict};

use super::Qp;
use super::completion::Received;
use super::message::{ATOMIC_BYTES, PIECE, Reply, Request};
use super::receive::NoReceive;
use super::services::ResponderEngine;
use super::vi::Retained;
use crate::Frontend;
use crate::keys::{QP_RIGHTS, Span};
use crate::memory::GuestMemory;
use crate::nic::Nic;
use crate::schedule::Schedule;
use crate::transfer::{Side, Spans, Unreachable, copy};

/// A responder's error: the answer to the peer, and the event and completion for its own driver.
pub(super) struct Fault {
    pub reason: Reason,
    event: EventType,
    status: Status,
    /// The offset in the receive entry, or [`NO_FIELD`].
    field: u32,
}

impl Fault {
    const fn new(reason: Reason, event: EventType, status: Status) -> Fault {
        Fault { reason, event, status, field: NO_FIELD }
    }

    /// A fault that is already reported to the driver; only the answer remains.
    pub const fn answered(reason: Reason, event: EventType) -> Fault {
        Fault::new(reason, event, Status::RemoteInvalidRequest)
    }

    /// The completion status of the receive.
    pub const fn status(&self) -> Status {
        self.status
    }

    /// The peer named memory that it may not access.
    pub const ACCESS: Fault =
        Fault::new(Reason::RespRemoteAccessErrors, EventType::QpAccessError, Status::LocalAccess);
    /// The message does not fit the receive.
    const LENGTH: Fault =
        Fault::new(Reason::RespLocalLengthError, EventType::QpInvalidRequest, Status::LocalLength);
    /// The receive's memory cannot be written.
    const PROTECTION: Fault =
        Fault::new(Reason::RespOperationalError, EventType::QpFatal, Status::LocalProtection);
    /// The receive is malformed or cannot be read.
    const RECEIVE: Fault =
        Fault::new(Reason::RespOperationalError, EventType::QpFatal, Status::LocalQpOperation);

    /// The peer asked for an operation that this queue pair does not do; the reason is the
    /// engine's.
    pub const fn invalid(reason: Reason) -> Fault {
        match reason {
            Reason::RespLocalLengthError => Fault::LENGTH,
            _ => Fault::new(reason, EventType::QpInvalidRequest, Status::RemoteInvalidRequest),
        }
    }

    /// Whether the fault is in the receive, and not in the peer's request.
    pub fn is_own(&self) -> bool {
        self.event == EventType::QpFatal
    }

    /// The longest message is longer than the queue pair allows.
    const TOO_LONG: Fault = Fault::invalid(Reason::UnsupportedRequest);
}

/// Why a request is not carried out, or not yet.
pub(super) enum Stop {
    /// The requester's own memory cannot be accessed.
    SourceFault,
    /// No receive is posted.
    NotReady,
    /// The NIC has failed.
    Dead,
    Fault(Fault),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Stop {
        Stop::Fault(fault)
    }
}

/// How far an execution got.
pub(super) enum Step {
    /// This many bytes were moved, and there are more.
    Part(u64),
    /// The request is carried out; the operand's value before an atomic operation, else 0.
    Done(u64),
}

/// A request to carry out: an [`Execution`], or a message that comes whole.
pub(super) struct Job {
    operation: Operation,
    remote: Remote,
    /// The offset in the message at which the bytes begin, and their number.
    pub offset: u32,
    length: u32,
    /// The message ends.
    last: bool,
    extra: Extra,
    solicited: bool,
}

impl Job {
    pub fn new(execution: &Execution) -> Job {
        let &Execution { operation, remote, offset, length, last, extra, solicited, .. } = execution;
        Job { operation, remote, offset, length, last, extra, solicited }
    }

    /// What the peer asks for.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// What accompanies the payload.
    pub fn extra(&self) -> Extra {
        self.extra
    }

    /// Whether the job contains the last bytes of a message.
    pub fn ends_payload(&self) -> bool {
        self.last && self.operation.carries_payload()
    }

    /// The whole message.
    #[inline(always)]
    fn whole(request: &Request<'_>) -> Job {
        let Piece { operation, length, remote, extra, solicited, .. } = request.piece();
        let remote = remote.unwrap_or_default();
        Job { operation, remote, offset: 0, length, last: true, extra, solicited }
    }
}

/// Where the bytes of a request come from, and where the bytes of an RDMA Read go.
pub(super) trait Source<F: Frontend> {
    /// Whether all remaining bytes may be moved at once.
    fn ends(&self) -> bool;

    /// Moves bytes to `target`, the memory of the whole message. Returns the number moved if more
    /// remain.
    fn pull(
        &self,
        nic: &Nic<F>,
        target: &[Span],
        job: &Job,
        schedule: &mut Schedule,
    ) -> Result<Option<u64>, Unreachable>;

    /// Moves bytes of an RDMA Read from `span`, unless they go into the answer. Returns as
    /// [`Source::pull`].
    fn push(&self, nic: &Nic<F>, span: Span, schedule: &mut Schedule) -> Result<Option<u64>, Unreachable>;
}

/// The short cut: the requester's memory.
pub(super) struct ShortCut<'a, F: Frontend> {
    pub request: &'a Request<'a>,
    /// The requester's NIC, unless it is the responder's.
    pub nic: Option<&'a Nic<F>>,
}

impl<F: Frontend> ShortCut<'_, F> {
    /// As [`Source::pull`], from the copy of a message that has left already.
    #[cold]
    #[inline(never)]
    fn pull_copy(
        &self,
        nic: &Nic<F>,
        target: &[Span],
        kept: &Retained,
        schedule: &mut Schedule,
    ) -> Result<Option<u64>, Unreachable> {
        let request = self.request;
        let (from, to) = (kept.side(&nic.keys, request.done), nic.side(target, request.done));
        let moved = copy(&from, &to, (request.total - request.done).min(PIECE), schedule)?;
        Ok(self.part(moved))
    }

    /// The number of moved bytes, if more remain.
    #[inline]
    fn part(&self, moved: u64) -> Option<u64> {
        (self.request.done + moved < self.request.total).then_some(moved)
    }
}

impl<F: Frontend> Source<F> for ShortCut<'_, F> {
    #[inline]
    fn ends(&self) -> bool {
        self.request.total - self.request.done <= PIECE
    }

    #[inline(always)]
    fn pull(
        &self,
        nic: &Nic<F>,
        target: &[Span],
        _: &Job,
        schedule: &mut Schedule,
    ) -> Result<Option<u64>, Unreachable> {
        if let Some((slot, index)) = self.request.copied
            && let Some(copy) = self.nic.unwrap_or(nic).copies.get(slot, index)
        {
            return self.pull_copy(nic, target, copy, schedule);
        }
        let request = self.request;
        let from = self.nic.unwrap_or(nic).side(request.local, request.done);
        let to = nic.side(target, request.done);
        let moved = copy(&from, &to, (request.total - request.done).min(PIECE), schedule)?;
        Ok(self.part(moved))
    }

    fn push(&self, nic: &Nic<F>, span: Span, schedule: &mut Schedule) -> Result<Option<u64>, Unreachable> {
        let request = self.request;
        let from = nic.side(core::slice::from_ref(&span), request.done);
        let to = self.nic.unwrap_or(nic).side(request.local, request.done);
        let moved = copy(&from, &to, (request.total - request.done).min(PIECE), schedule)?;
        Ok(self.part(moved))
    }
}

impl Qp {
    /// Whether the queue pair takes a request of this type from NIC `source`: only its peer's.
    #[inline]
    pub(super) fn answers<F: Frontend>(&self, request: &Request<'_>, source: &Nic<F>, kind: QpType) -> bool {
        self.qpn == request.target_qpn
            && self.kind == kind
            && self.can_receive()
            && self.attributes.remote_qpn == request.source_qpn
            && source.has_gid(&self.attributes.remote_gid)
    }

    /// Whether the queue pair grants this right to its peer.
    #[inline]
    pub(super) fn grants(&self, right: LinkFlags) -> bool {
        LinkFlags::from_bits_truncate(self.attributes.access).contains(right)
    }

    /// Finds the memory for an RDMA or atomic operation of the peer.
    #[inline]
    pub(super) fn remote_span<F: Frontend>(
        &self,
        nic: &Nic<F>,
        remote: &Remote,
        right: LinkFlags,
    ) -> Result<Span, Stop> {
        let &Remote { addr, key, length } = remote;
        let length = u64::from(length);
        if length > self.max_message {
            return Err(Fault::TOO_LONG.into());
        }
        // No byte is accessed, so no right is needed. But a virtual interface that is not enabled
        // for an operation accepts none at all (VIP_VI_ATTRIBUTES).
        if length == 0 && (self.vi.is_none() || self.grants(right)) {
            return Ok(Span::default());
        }
        if !self.grants(right) {
            return Err(Fault::ACCESS.into());
        }
        let span = |right| nic.keys.remote(key, self.pd, self.owner, addr, length, right);
        let span = match right == LinkFlags::REMOTE_ATOMIC {
            // An atomic operation reads and writes.
            true => span(QP_RIGHTS).or_else(|_| span(LinkFlags::ATOMIC_ALONE)),
            false => span(right),
        };
        span.map_err(|_| Fault::ACCESS.into())
    }
}

/// A queue pair in its role of responder to a request.
pub(super) struct Responder<'a, F: Frontend> {
    pub nic: &'a mut Nic<F>,
    pub qp: &'a mut Qp,
    pub schedule: &'a mut Schedule,
}

impl<F: Frontend> Responder<'_, F> {
    /// Answers a request that comes by the short cut, or the next part of one. The engine sees a
    /// request when its last part has been carried out.
    #[inline]
    pub fn respond(&mut self, request: &Request<'_>, source: Option<&Nic<F>>) -> Reply {
        if let Some(ResponderEngine::Reliable(engine)) = &mut self.qp.inbound.engine
            && engine.expects(request.psn)
            && request.is_payload()
            && !request.garbled
        {
            return self.whole(request, source);
        }
        self.judged(request, source)
    }

    /// Carries out a Send or RDMA Write, or the next part of it.
    #[inline(always)]
    fn whole(&mut self, request: &Request<'_>, source: Option<&Nic<F>>) -> Reply {
        let step = match self.may_go_on(request) {
            true => self.carry_out(&Job::whole(request), &ShortCut { request, nic: source }),
            false => return Reply::None,
        };
        match step {
            Ok(Step::Done(_)) => {
                let inbound = &mut self.qp.inbound;
                inbound.open = false;
                if let Some(ResponderEngine::Reliable(engine)) = &mut inbound.engine {
                    engine.passed(request.packets);
                }
                Reply::Ack
            }
            Ok(Step::Part(moved)) => self.part(moved),
            Err(stop) => self.stop(stop),
        }
    }

    /// Whether a request may be carried out: a later part has to follow an earlier one, and the
    /// event of the first request may have failed the NIC.
    #[inline]
    pub(super) fn may_go_on(&mut self, request: &Request<'_>) -> bool {
        (request.done == 0 || self.qp.inbound.open) && self.established()
    }

    /// Records that a part has been carried out.
    pub(super) fn part(&mut self, moved: u64) -> Reply {
        self.qp.inbound.open = true;
        Reply::Part(moved)
    }

    /// Answers a request that the engine has to check.
    #[inline(never)]
    fn judged(&mut self, request: &Request<'_>, source: Option<&Nic<F>>) -> Reply {
        let Some(engine) = &mut self.qp.inbound.engine else { return Reply::None };
        let verdict = match request.garbled {
            true => engine.receive_unknown(request.psn),
            false => engine.receive(&request.piece()),
        };
        let execution = match verdict {
            Verdict::Execute(execution) => execution,
            Verdict::Nothing(reason) if self.qp.kind == QpType::Uc => {
                self.nic.packets.count(reason);
                return Reply::Ack;
            }
            Verdict::Nothing(reason) => return self.repeat(request, source, reason),
            Verdict::Refused(reason) => return self.refuse(&Fault::invalid(reason)),
        };
        if !self.may_go_on(request) {
            return Reply::None;
        }
        match self.carry_out(&Job::new(&execution), &ShortCut { request, nic: source }) {
            Ok(Step::Part(moved)) => self.part(moved),
            Ok(Step::Done(original)) => {
                self.qp.inbound.open = false;
                let payload = execution.operation.carries_payload();
                let atomic = execution.operation.is_atomic();
                if let Some(engine) = &mut self.qp.inbound.engine {
                    engine.executed(execution, Executed::Done(original));
                    // The requester did not ask for the answer of a Send or RDMA Write: it is given
                    // at once.
                    while !payload && engine.respond(u32::MAX).is_some() {}
                }
                if atomic { Reply::Original(original) } else { Reply::Ack }
            }
            Err(stop) if self.qp.kind == QpType::Uc => self.drop_execution(execution, stop),
            Err(stop) => self.stop(stop),
        }
    }

    /// Reports once that the peer's first request has arrived. False if the report has failed the
    /// NIC.
    #[inline]
    pub(super) fn established(&mut self) -> bool {
        if self.qp.inbound.established || self.qp.state != QpState::Rtr {
            return true;
        }
        self.qp.inbound.established = true;
        self.qp.post_event(self.nic, EventType::CommunicationEstablished, Status::Success, 0);
        self.nic.running()
    }

    /// The answer to a request that is not carried out.
    #[cold]
    fn stop(&mut self, stop: Stop) -> Reply {
        match stop {
            Stop::SourceFault => Reply::SourceFault,
            Stop::NotReady => Reply::NotReady(self.qp.attributes.min_rnr_timer),
            Stop::Dead => Reply::None,
            Stop::Fault(fault) => self.refuse(&fault),
        }
    }

    /// Answers a request that was carried out before, or the next part of one. A request behind a
    /// gap, or one that the engine has forgotten, gets no answer.
    #[cold]
    fn repeat(&mut self, request: &Request<'_>, source: Option<&Nic<F>>, reason: Reason) -> Reply {
        let Some(engine) = &mut self.qp.inbound.engine else { return Reply::None };
        let response = engine.respond(u32::MAX);
        if reason != Reason::DuplicateRequest || !self.established() {
            return Reply::None;
        }
        let Some(response) = response else { return Reply::None };
        if let Body::Atomic { original } = response.answer.body {
            if planted(Bug::AtomicTwice) {
                let _ = self.atomic(&Job::whole(request));
            }
            return Reply::Original(original);
        }
        let Some(remote) = response.gather else { return Reply::Ack };
        let step = match self.qp.remote_span(self.nic, &remote, LinkFlags::REMOTE_READ) {
            Ok(span) => ShortCut { request, nic: source }.push(self.nic, span, self.schedule),
            Err(stop) => return self.stop(stop),
        };
        match read_step(step) {
            Ok(Step::Part(moved)) => Reply::Part(moved),
            Ok(Step::Done(_)) => Reply::Ack,
            Err(stop) => self.stop(stop),
        }
    }

    /// Refuses a request and moves the responder to the error state.
    fn refuse(&mut self, fault: &Fault) -> Reply {
        self.break_off(fault, REFUSED);
        Reply::Refused(fault.reason)
    }

    /// Moves the responder to the error state. The event's detail contains `bits`.
    pub(super) fn break_off(&mut self, fault: &Fault, bits: u32) {
        let detail = self.qp.fail_receive(self.nic, fault.status, fault.field) | bits;
        self.qp.fail(self.nic, self.schedule, fault.status, Some((fault.event, detail)));
    }

    /// As [`Responder::refuse`], for a request that came in a packet: the refusal is sent later,
    /// and repeated if it is lost.
    pub(super) fn refuse_packet(&mut self, fault: &Fault) {
        self.qp.inbound.refusing = true;
        self.refuse(fault);
    }

    /// Carries out a job of the engine, or the next part of it.
    #[inline]
    pub(super) fn carry_out<S: Source<F>>(&mut self, job: &Job, source: &S) -> Result<Step, Stop> {
        if self.qp.vi.is_some() {
            return self.carry_out_for_vi(job, source);
        }
        self.execute(job, source)
    }

    /// Carries out a message to a virtual interface, which reports failures in its own way.
    #[inline(never)]
    fn carry_out_for_vi<S: Source<F>>(&mut self, job: &Job, source: &S) -> Result<Step, Stop> {
        if let Some(harm) = self.harm(job, source.ends()) {
            return Err(self.report(Stop::NotReady, Some(harm), job));
        }
        let step = match self.is_denied(job) {
            true => Err(Stop::Fault(Fault::ACCESS)),
            false => self.execute_out_of_line(job, source),
        };
        match step {
            Err(Stop::Fault(fault)) if self.denies_later(job, &fault) => Ok(Step::Done(0)),
            step => step.map_err(|stop| self.report(stop, None, job)),
        }
    }

    #[inline(never)]
    fn execute_out_of_line<S: Source<F>>(&mut self, job: &Job, source: &S) -> Result<Step, Stop> {
        self.execute(job, source)
    }

    #[inline(always)]
    fn execute<S: Source<F>>(&mut self, job: &Job, source: &S) -> Result<Step, Stop> {
        match job.operation {
            Operation::Write => self.write(job, source),
            Operation::Send => self.send(job, source),
            Operation::Read => {
                let span = self.qp.remote_span(self.nic, &job.remote, LinkFlags::REMOTE_READ)?;
                read_step(source.push(self.nic, span, self.schedule))
            }
            Operation::CompareSwap { .. } | Operation::FetchAdd { .. } => self.atomic(job),
        }
    }

    #[inline(always)]
    fn write<S: Source<F>>(&mut self, job: &Job, source: &S) -> Result<Step, Stop> {
        let span = self.qp.remote_span(self.nic, &job.remote, LinkFlags::REMOTE_WRITE)?;
        // The immediate data is in the last packet, and only that packet needs the receive.
        let immediate = match job.extra {
            Extra::Immediate(value) => Some(value),
            _ => None,
        };
        if immediate.is_some() && source.ends() {
            self.need_receive()?;
        }
        match source.pull(self.nic, &[span], job, self.schedule) {
            Ok(None) => {}
            Ok(Some(moved)) => return Ok(Step::Part(moved)),
            Err(Unreachable::Source) => return Err(Stop::SourceFault),
            Err(Unreachable::Target) => return Err(Fault::ACCESS.into()),
        }
        if let Some(immediate) = immediate {
            let what = Received {
                flags: CqeFlags::IMMEDIATE | CqeFlags::WRITE | solicited(job),
                length: 0,
                immediate,
                detail: job.remote.length,
            };
            self.qp.complete_receive(self.nic, Status::Success, what);
        }
        Ok(Step::Done(0))
    }

    fn send<S: Source<F>>(&mut self, job: &Job, source: &S) -> Result<Step, Stop> {
        self.need_receive()?;
        let length = u64::from(job.offset) + u64::from(job.length);
        if length > self.qp.inbound.receive.room || length > self.qp.max_message {
            return Err(Fault::LENGTH.into());
        }
        let (pd, owner) = (self.qp.pd, self.qp.owner);
        let invalidated = match job.extra {
            Extra::Invalidate(key) => {
                let local = self.nic.keys.peer_can_invalidate(key, pd, owner);
                Some((local.map_err(|_| Stop::Fault(Fault::ACCESS))?, key))
            }
            _ => None,
        };
        let mut spans = Spans::new();
        self.qp.receive_spans(self.nic, &mut spans).map_err(|_| Stop::Fault(Fault::PROTECTION))?;
        match source.pull(self.nic, &spans, job, self.schedule) {
            Ok(None) => {}
            Ok(Some(moved)) => return Ok(Step::Part(moved)),
            Err(Unreachable::Source) => return Err(Stop::SourceFault),
            Err(Unreachable::Target) => return Err(Fault::PROTECTION.into()),
        }
        if !job.last && !planted(Bug::CqeEarly) {
            return Ok(Step::Done(0));
        }
        let mut what = Received { flags: solicited(job), length, immediate: 0, detail: 0 };
        if let Extra::Immediate(value) = job.extra {
            what.flags |= CqeFlags::IMMEDIATE;
            what.immediate = value;
        }
        if let Some((local, remote)) = invalidated {
            what.flags |= CqeFlags::INVALIDATED;
            (what.immediate, what.detail) = (local, remote);
            if !planted(Bug::UnlinkForgotten) {
                self.nic.keys.invalidate(local, pd, owner).map_err(|_| Stop::Fault(Fault::ACCESS))?;
            }
        }
        self.qp.complete_receive(self.nic, Status::Success, what);
        Ok(Step::Done(0))
    }

    fn atomic(&mut self, job: &Job) -> Result<Step, Stop> {
        let remote = job.remote;
        // A relative address does not show whether the memory is aligned, and an absolute one need
        // not have the alignment of the memory.
        let keys = &self.nic.keys;
        let relative = keys.get_remote(remote.key).is_some_and(|k| k.flags.contains(LinkFlags::RELATIVE));
        let misaligned = |at: u64| match at.is_multiple_of(ATOMIC_BYTES) {
            true => Ok(()),
            false => Err(Stop::Fault(Fault::invalid(Reason::UnsupportedRequest))),
        };
        if !relative {
            misaligned(remote.addr)?;
        }
        let span = self.qp.remote_span(self.nic, &remote, LinkFlags::REMOTE_ATOMIC)?;
        let (addr, contiguous) = keys.translate(span.region, span.offset).unwrap_or_default();
        misaligned(addr)?;
        let word = match contiguous >= ATOMIC_BYTES {
            true => {
                self.nic.frontend.memory().get(addr, ATOMIC_BYTES).ok().and_then(|m| m.atomic_u64(0).ok())
            }
            false => None,
        };
        let word = word.ok_or(Stop::Fault(Fault::ACCESS))?;
        Ok(Step::Done(match job.operation {
            Operation::CompareSwap { compare, swap } => {
                match word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(value) | Err(value) => value,
                }
            }
            Operation::FetchAdd { add } => word.fetch_add(add, Ordering::SeqCst),
            _ => 0,
        }))
    }

    /// Takes a receive, unless one is taken already.
    #[inline]
    fn need_receive(&mut self) -> Result<(), Stop> {
        match self.qp.take_receive(self.nic) {
            // The SRQ's limit event may have failed the NIC.
            Ok(()) if !self.nic.running() => Err(Stop::Dead),
            Ok(()) => Ok(()),
            Err(NoReceive::Empty) => {
                // An unreliable connection sends no answer.
                self.nic.stats.not_ready += u64::from(self.qp.kind == QpType::Rc);
                Err(Stop::NotReady)
            }
            Err(NoReceive::Field(offset)) => Err(Fault { field: offset as u32, ..Fault::RECEIVE }.into()),
            Err(NoReceive::Broken) => Err(Fault::RECEIVE.into()),
            Err(NoReceive::Protection) => Err(Fault::PROTECTION.into()),
        }
    }
}

impl<F: Frontend> Nic<F> {
    /// One side of a transfer: the spans from byte `skip` on.
    #[inline]
    pub(super) fn side<'a>(&'a self, spans: &'a [Span], skip: u64) -> Side<'a, F::Memory> {
        Side { memory: self.frontend.memory(), keys: &self.keys, spans, skip }
    }
}

/// The result of moving the bytes of an RDMA Read.
fn read_step(moved: Result<Option<u64>, Unreachable>) -> Result<Step, Stop> {
    match moved {
        Ok(None) => Ok(Step::Done(0)),
        Ok(Some(moved)) => Ok(Step::Part(moved)),
        Err(Unreachable::Source) => Err(Fault::ACCESS.into()),
        // The target of the copy is the requester's memory.
        Err(Unreachable::Target) => Err(Stop::SourceFault),
    }
}

#[inline]
fn solicited(job: &Job) -> CqeFlags {
    match job.solicited {
        true => CqeFlags::SOLICITED,
        false => CqeFlags::empty(),
    }
}
