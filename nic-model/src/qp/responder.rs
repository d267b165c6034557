//! The responder of a connected queue pair: checks a request against state, sequence, rights and
//! receives, and carries it out (IBTA 9.7.4, 9.7.5).

use core::sync::atomic::Ordering;

use nic_abi::admin::{QpState, QpType};
use nic_abi::cqe::{CqeFlags, NO_FIELD, Status};
use nic_abi::eqe::EventType;
use nic_abi::wqe::{LinkFlags, Opcode, SendFlags};

use super::completion::Received;
use super::message::{ATOMIC_BYTES, Answer, Nak, Request, rnr_delay};
use super::receive::NoReceive;
use super::{Qp, psn_add, psn_before};
use crate::Frontend;
use crate::keys::{REMOTE_RIGHTS, Span};
use crate::memory::GuestMemory;
use crate::nic::Nic;
use crate::schedule::Schedule;
use crate::transfer::{Side, Spans, Unreachable, copy};

/// Bytes of one message that are moved at a time.
const PIECE: u64 = 1 << 20;

/// A responder's error: the answer to the peer, the event and completion for its own driver.
struct Fault {
    nak: Nak,
    event: EventType,
    status: Status,
    /// The offset in the receive entry, or [`NO_FIELD`].
    field: u32,
}

impl Fault {
    const fn new(nak: Nak, event: EventType, status: Status) -> Fault {
        Fault { nak, event, status, field: NO_FIELD }
    }

    /// The peer reached for memory that it may not reach.
    const ACCESS: Fault = Fault::new(Nak::Access, EventType::QpAccessError, Status::LocalAccess);
    /// The peer asked for what this queue pair does not do.
    const INVALID: Fault =
        Fault::new(Nak::InvalidRequest, EventType::QpInvalidRequest, Status::RemoteInvalidRequest);
    /// The message does not fit the receive.
    const LENGTH: Fault = Fault::new(Nak::InvalidRequest, EventType::QpInvalidRequest, Status::LocalLength);
    /// The receive's memory cannot be written.
    const PROTECTION: Fault = Fault::new(Nak::Operational, EventType::QpFatal, Status::LocalProtection);
    /// The receive is malformed or cannot be read.
    const RECEIVE: Fault = Fault::new(Nak::Operational, EventType::QpFatal, Status::LocalQpOperation);
}

/// Why a request is not carried out, or not yet.
enum Stop {
    Answer(Answer),
    Fault(Fault),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Stop {
        Stop::Fault(fault)
    }
}

/// What a request's PSN means to the responder.
enum Sequence {
    Expected,
    /// The request was carried out before; the answer was lost.
    Duplicate,
    Unexpected,
}

impl Qp {
    /// Whether the queue pair answers a request of NIC `source`: only of its peer.
    #[inline]
    pub(super) fn answers<F: Frontend>(&self, request: &Request<'_>, source: &Nic<F>) -> bool {
        self.qpn == request.target_qpn
            && self.kind == QpType::Rc
            && self.can_receive()
            && self.attributes.remote_qpn == request.source_qpn
            && source.has_gid(&self.attributes.remote_gid)
    }

    #[inline]
    fn sequence(&self, request: &Request<'_>) -> Sequence {
        if request.psn == self.inbound.psn {
            // A later part has to follow an earlier one.
            let continues = request.done > 0;
            return if continues && !self.inbound.open { Sequence::Unexpected } else { Sequence::Expected };
        }
        if psn_before(request.psn, self.inbound.psn) { Sequence::Duplicate } else { Sequence::Unexpected }
    }

    /// The rights that the queue pair gives its peer.
    #[inline]
    fn grants(&self, right: LinkFlags) -> bool {
        LinkFlags::from_bits_truncate(self.attributes.access).contains(right)
    }
}

/// A queue pair that responds to a request.
pub(super) struct Responder<'a, F: Frontend> {
    pub nic: &'a mut Nic<F>,
    pub qp: &'a mut Qp,
    pub schedule: &'a mut Schedule,
    /// The requester's NIC, unless it is the same.
    pub source: Option<&'a Nic<F>>,
}

impl<F: Frontend> Responder<'_, F> {
    /// Answers a request, or the next part of one.
    #[inline]
    pub fn respond(&mut self, request: &Request<'_>) -> Answer {
        let sequence = self.qp.sequence(request);
        if request.garbled {
            return match sequence {
                Sequence::Unexpected => Answer::None,
                Sequence::Duplicate => Answer::Ack,
                Sequence::Expected => self.refuse(&Fault::INVALID),
            };
        }
        let duplicate = match sequence {
            Sequence::Expected => false,
            Sequence::Duplicate => true,
            Sequence::Unexpected => return Answer::None,
        };
        if !self.qp.inbound.established && self.qp.state == QpState::Rtr {
            self.qp.inbound.established = true;
            self.qp.post_event(self.nic, EventType::CommunicationEstablished, Status::Success, 0);
            if !self.nic.running() {
                return Answer::None;
            }
        }
        let result = match request.opcode {
            Opcode::Read | Opcode::ReadInvalidate => self.read(request),
            Opcode::CompareSwap | Opcode::FetchAdd => self.atomic(request, duplicate),
            _ if duplicate => Ok(Answer::Ack),
            Opcode::Write | Opcode::WriteImmediate => self.write(request),
            _ => self.send(request),
        };
        let answer = match result {
            Ok(answer) | Err(Stop::Answer(answer)) => answer,
            Err(Stop::Fault(fault)) => return self.refuse(&fault),
        };
        if duplicate {
            return answer;
        }
        let inbound = &mut self.qp.inbound;
        match answer {
            Answer::Part(_) => inbound.open = true,
            Answer::Ack | Answer::Original(_) => {
                inbound.open = false;
                inbound.psn = psn_add(request.psn, request.packets);
            }
            _ => {}
        }
        answer
    }

    /// Refuses a request and moves the responder to the error state.
    fn refuse(&mut self, fault: &Fault) -> Answer {
        let detail = self.qp.fail_receive(self.nic, fault.status, fault.field);
        self.qp.fail(self.nic, self.schedule, fault.status, Some((fault.event, detail)));
        Answer::Refused(fault.nak)
    }

    /// Finds the memory for an RDMA or atomic operation of the peer.
    #[inline]
    fn remote_span(&self, request: &Request<'_>, length: u64, right: LinkFlags) -> Result<Span, Stop> {
        let qp = &*self.qp;
        if length > qp.max_message {
            return Err(Fault::INVALID.into());
        }
        // No byte is accessed, so no right is needed.
        if length == 0 {
            return Ok(Span::default());
        }
        if !qp.grants(right) {
            return Err(Fault::ACCESS.into());
        }
        // An atomic operation reads and writes, so it needs these two rights to the memory as well.
        let right = if right == LinkFlags::REMOTE_ATOMIC { REMOTE_RIGHTS } else { right };
        let (key, addr) = (request.remote_key, request.remote_addr);
        let span = self.nic.keys.remote(key, qp.pd, qp.owner, addr, length, right);
        span.map_err(|_| Fault::ACCESS.into())
    }

    /// Moves the next piece from the requester's memory to `target`.
    #[inline]
    fn pull(&mut self, request: &Request<'_>, target: &[Span]) -> Result<u64, Unreachable> {
        let from = self.source.unwrap_or(self.nic).side(request.local, request.done);
        let to = self.nic.side(target, request.done);
        copy(&from, &to, (request.total - request.done).min(PIECE), self.schedule)
    }

    #[inline]
    fn write(&mut self, request: &Request<'_>) -> Result<Answer, Stop> {
        let span = self.remote_span(request, request.total, LinkFlags::REMOTE_WRITE)?;
        // The immediate data is in the last packet, which is what needs a receive.
        let immediate = request.opcode == Opcode::WriteImmediate;
        if immediate && request.total - request.done <= PIECE {
            self.need_receive()?;
        }
        let moved = match self.pull(request, &[span]) {
            Ok(moved) => moved,
            Err(Unreachable::Source) => return Ok(Answer::SourceFault),
            Err(Unreachable::Target) => return Err(Fault::ACCESS.into()),
        };
        if let Some(part) = part(request, moved) {
            return Ok(part);
        }
        if immediate {
            let what = Received {
                flags: CqeFlags::IMMEDIATE | solicited(request),
                length: request.total,
                immediate: request.immediate,
                source_or_field: 0,
            };
            self.qp.complete_receive(self.nic, Status::Success, what);
        }
        Ok(Answer::Ack)
    }

    fn send(&mut self, request: &Request<'_>) -> Result<Answer, Stop> {
        self.need_receive()?;
        if request.total > self.qp.inbound.receive.room || request.total > self.qp.max_message {
            return Err(Fault::LENGTH.into());
        }
        let (pd, owner) = (self.qp.pd, self.qp.owner);
        let invalidated = match request.opcode {
            Opcode::SendInvalidate => {
                let local = self.nic.keys.peer_can_invalidate(request.immediate, pd, owner);
                Some(local.map_err(|_| Stop::Fault(Fault::ACCESS))?)
            }
            _ => None,
        };
        let mut spans = Spans::new();
        self.qp.receive_spans(self.nic, &mut spans).map_err(|_| Stop::Fault(Fault::PROTECTION))?;
        let moved = match self.pull(request, &spans) {
            Ok(moved) => moved,
            Err(Unreachable::Source) => return Ok(Answer::SourceFault),
            Err(Unreachable::Target) => return Err(Fault::PROTECTION.into()),
        };
        if let Some(part) = part(request, moved) {
            return Ok(part);
        }
        let mut what = Received {
            flags: solicited(request),
            length: request.total,
            immediate: request.immediate,
            source_or_field: 0,
        };
        match request.opcode {
            Opcode::SendImmediate => what.flags |= CqeFlags::IMMEDIATE,
            _ => what.immediate = 0,
        }
        if let Some(local) = invalidated {
            what.flags |= CqeFlags::INVALIDATED;
            what.immediate = local;
            self.nic.keys.invalidate(local, pd, owner).map_err(|_| Stop::Fault(Fault::ACCESS))?;
        }
        self.qp.complete_receive(self.nic, Status::Success, what);
        Ok(Answer::Ack)
    }

    fn read(&mut self, request: &Request<'_>) -> Result<Answer, Stop> {
        self.need_responder_resources()?;
        let span = self.remote_span(request, request.total, LinkFlags::REMOTE_READ)?;
        let from = self.nic.side(core::slice::from_ref(&span), request.done);
        let to = self.source.unwrap_or(self.nic).side(request.local, request.done);
        match copy(&from, &to, (request.total - request.done).min(PIECE), self.schedule) {
            Ok(moved) => Ok(part(request, moved).unwrap_or(Answer::Ack)),
            Err(Unreachable::Source) => Err(Fault::ACCESS.into()),
            // The target of the copy is the requester's memory, its "source" fault.
            Err(Unreachable::Target) => Ok(Answer::SourceFault),
        }
    }

    fn atomic(&mut self, request: &Request<'_>, duplicate: bool) -> Result<Answer, Stop> {
        self.need_responder_resources()?;
        if duplicate {
            // An atomic operation must not be done twice (IBTA 9.4.5.1): repeat the answer, if it
            // is known.
            return Ok(match self.qp.inbound.atomic {
                Some((psn, value)) if psn == request.psn => Answer::Original(value),
                _ => Answer::None,
            });
        }
        // A relative address does not show whether the memory is aligned; the check below does.
        let keys = &self.nic.keys;
        let relative =
            keys.get_remote(request.remote_key).is_some_and(|k| k.flags.contains(LinkFlags::RELATIVE));
        if !relative && !request.remote_addr.is_multiple_of(ATOMIC_BYTES) {
            return Err(Fault::ACCESS.into());
        }
        let span = self.remote_span(request, ATOMIC_BYTES, LinkFlags::REMOTE_ATOMIC)?;
        let word = match keys.translate(span.region, span.offset) {
            Some((addr, contiguous)) if contiguous >= ATOMIC_BYTES => {
                self.nic.frontend.memory().get(addr, ATOMIC_BYTES).ok().and_then(|m| m.atomic_u64(0).ok())
            }
            _ => None,
        };
        // The address is aligned, but the memory is not, or it cannot be reached.
        let word = word.ok_or(Stop::Fault(Fault::ACCESS))?;
        let (first, second) = request.operands;
        let original = match request.opcode {
            Opcode::FetchAdd => word.fetch_add(first, Ordering::SeqCst),
            _ => match word.compare_exchange(first, second, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(value) | Err(value) => value,
            },
        };
        self.qp.inbound.atomic = Some((request.psn, original));
        Ok(Answer::Original(original))
    }

    fn need_responder_resources(&self) -> Result<(), Stop> {
        match self.qp.attributes.max_dest_rd_atomic {
            0 => Err(Fault::INVALID.into()),
            _ => Ok(()),
        }
    }

    /// Takes a receive, unless one is taken already.
    #[inline]
    fn need_receive(&mut self) -> Result<(), Stop> {
        match self.qp.take_receive(self.nic) {
            // The SRQ's limit event may have failed the NIC.
            Ok(()) if !self.nic.running() => Err(Stop::Answer(Answer::None)),
            Ok(()) => Ok(()),
            Err(NoReceive::Empty) => {
                self.nic.stats.not_ready += 1;
                let delay = rnr_delay(self.qp.attributes.min_rnr_timer);
                Err(Stop::Answer(Answer::NotReady(delay)))
            }
            Err(NoReceive::Field(offset)) => Err(Fault { field: offset as u32, ..Fault::RECEIVE }.into()),
            Err(NoReceive::Broken) => Err(Fault::RECEIVE.into()),
        }
    }
}

impl<F: Frontend> Nic<F> {
    /// One side of a transfer, from byte `skip` of the spans on.
    #[inline]
    pub(super) fn side<'a>(&'a self, spans: &'a [Span], skip: u64) -> Side<'a, F::Memory> {
        Side { memory: self.frontend.memory(), keys: &self.keys, spans, skip }
    }
}

/// The answer after a piece that was not the last.
#[inline]
fn part(request: &Request<'_>, moved: u64) -> Option<Answer> {
    (request.done + moved < request.total).then_some(Answer::Part(moved))
}

#[inline]
fn solicited(request: &Request<'_>) -> CqeFlags {
    match request.flags.contains(SendFlags::SOLICITED) {
        true => CqeFlags::SOLICITED,
        false => CqeFlags::empty(),
    }
}
