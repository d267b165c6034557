//! The responder of a connected queue pair: checks a request against state, sequence, rights and receives, and
//! carries it out (IBTA 9.7.4, 9.7.5).

use core::sync::atomic::Ordering;
use core::time::Duration;

use nic_abi::admin::QpState;
use nic_abi::cqe::{CqeFlags, NO_FIELD, Status};
use nic_abi::eqe::EventType;
use nic_abi::wqe::{LinkFlags, Opcode, SendFlags};

use super::engine::{Received, rnr_delay};
use super::receive::NoReceive;
use super::requester::ATOMIC_BYTES;
use super::{Qp, psn_add, psn_before};
use crate::Frontend;
use crate::fabric::Fabric;
use crate::keys::Span;
use crate::memory::GuestMemory;
use crate::transfer::{Side, Unreachable, copy};

/// Bytes of one message that are moved in one go.
const PIECE: u64 = 1 << 20;

/// A request as it meets the responder. The data is not in it: it is copied straight from one memory to the other.
pub(super) struct Request<'a> {
    pub from: u16,
    pub to: u16,
    /// The responding queue pair.
    pub slot: u32,
    pub psn: u32,
    pub packets: u32,
    pub opcode: Opcode,
    pub flags: SendFlags,
    pub remote_key: u32,
    pub remote_addr: u64,
    pub immediate: u32,
    pub total: u64,
    /// Bytes that earlier parts have moved.
    pub done: u64,
    /// Compare or add, and swap.
    pub operands: (u64, u64),
    /// The requester's memory, checked.
    pub local: &'a [Span],
}

/// Why a request was refused (IBTA 9.7.5.2.8, NAK codes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    InvalidRequest,
    Access,
    Operational,
}

/// What comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Nothing.
    None,
    /// So many bytes were moved; go on.
    Part(u64),
    /// Done.
    Ack,
    /// An atomic operation was done; the original value.
    Original(u64),
    /// No receive is posted.
    NotReady(Duration),
    /// Refused; the responder is in the error state.
    Refused(Refusal),
    /// The requester's own memory could not be reached.
    SourceFault,
}

/// A responder's error: what the peer hears, what its own driver hears, and what becomes of a receive under way.
struct Fault {
    refusal: Refusal,
    event: EventType,
    status: Status,
    /// The offset in the receive entry, or [`NO_FIELD`].
    field: u32,
}

impl Fault {
    const fn new(refusal: Refusal, event: EventType, status: Status) -> Fault {
        Fault { refusal, event, status, field: NO_FIELD }
    }

    /// The peer reached for what it may not reach.
    const ACCESS: Fault = Fault::new(Refusal::Access, EventType::QpAccessError, Status::LocalAccess);
    /// The peer asked for what this queue pair does not do.
    const INVALID: Fault =
        Fault::new(Refusal::InvalidRequest, EventType::QpInvalidRequest, Status::RemoteInvalidRequest);
    /// The message does not fit the receive.
    const LENGTH: Fault =
        Fault::new(Refusal::InvalidRequest, EventType::QpInvalidRequest, Status::LocalLength);
    /// The receive's memory is not as it should be.
    const PROTECTION: Fault = Fault::new(Refusal::Operational, EventType::QpFatal, Status::LocalProtection);
}

/// How the check of a request ended that is not carried out, or not yet.
enum Stop {
    Answer(Answer),
    Fault(Fault),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Stop {
        Stop::Fault(fault)
    }
}

/// What a request's place in the sequence says.
enum Sequence {
    Expected,
    /// It was carried out before; the answer was lost.
    Duplicate,
    /// It does not belong here.
    Unexpected,
}

impl Qp {
    #[inline]
    fn sequence(&self, request: &Request<'_>) -> Sequence {
        if request.psn == self.inbound.psn {
            // A later part follows an earlier one, and nothing else does.
            let continues = request.done > 0;
            return if continues && !self.inbound.open { Sequence::Unexpected } else { Sequence::Expected };
        }
        if psn_before(request.psn, self.inbound.psn) { Sequence::Duplicate } else { Sequence::Unexpected }
    }

    /// The rights that a connected peer has at all.
    #[inline]
    fn grants(&self, right: LinkFlags) -> bool {
        LinkFlags::from_bits_truncate(self.attributes.access).contains(right)
    }
}

impl<F: Frontend> Fabric<F> {
    /// Lets the responder answer a request, or the next part of one.
    #[inline]
    pub(super) fn respond(&mut self, request: &Request<'_>) -> Answer {
        let nic = &mut self.nics[usize::from(request.to)];
        let Some(qp) = nic.qps.get_mut(request.slot) else { return Answer::None };
        let duplicate = match qp.sequence(request) {
            Sequence::Expected => false,
            Sequence::Duplicate => true,
            Sequence::Unexpected => return Answer::None,
        };
        if !qp.inbound.established && qp.state == QpState::Rtr {
            let (eq, qpn, generation) = (qp.eq, qp.qpn, qp.generation);
            qp.inbound.established = true;
            nic.post_event(eq, EventType::CommunicationEstablished, 0, qpn, generation, 0);
        }
        let result = match request.opcode {
            Opcode::Read | Opcode::ReadInvalidate => self.respond_read(request),
            Opcode::CompareSwap | Opcode::FetchAdd => self.respond_atomic(request, duplicate),
            _ if duplicate => Ok(Answer::Ack),
            Opcode::Write | Opcode::WriteImmediate => self.respond_write(request),
            _ => self.respond_send(request),
        };
        let answer = match result {
            Ok(answer) | Err(Stop::Answer(answer)) => answer,
            Err(Stop::Fault(fault)) => return self.refuse(request, &fault),
        };
        if duplicate {
            return answer;
        }
        if let Some(qp) = self.nics[usize::from(request.to)].qps.get_mut(request.slot) {
            match answer {
                Answer::Part(_) => qp.inbound.open = true,
                Answer::Ack | Answer::Original(_) => {
                    qp.inbound.open = false;
                    qp.inbound.psn = psn_add(request.psn, request.packets);
                }
                _ => {}
            }
        }
        answer
    }

    /// Lets the responder answer a request whose operation code it does not know (injection).
    pub(super) fn respond_to_nonsense(&mut self, request: &Request<'_>) -> Answer {
        let qp = self.nics[usize::from(request.to)].qps.get(request.slot);
        match qp.map(|qp| qp.sequence(request)) {
            None | Some(Sequence::Unexpected) => Answer::None,
            Some(Sequence::Duplicate) => Answer::Ack,
            Some(Sequence::Expected) => self.refuse(request, &Fault::INVALID),
        }
    }

    /// Refuses a request and takes the responder to the error state.
    fn refuse(&mut self, request: &Request<'_>, fault: &Fault) -> Answer {
        let nic = &mut self.nics[usize::from(request.to)];
        let told = nic.fail_receive(request.slot, fault.status, fault.field);
        self.fail_qp(request.to, request.slot, fault.status, Some((fault.event, told)));
        Answer::Refused(fault.refusal)
    }

    /// Finds the peer's memory for an RDMA or atomic operation.
    #[inline]
    fn remote_span(&self, request: &Request<'_>, length: u64, right: LinkFlags) -> Result<Span, Stop> {
        let nic = &self.nics[usize::from(request.to)];
        let qp = nic.qps.get(request.slot).ok_or(Stop::Answer(Answer::None))?;
        if length > qp.max_message {
            return Err(Fault::INVALID.into());
        }
        // No byte is touched, so no right is needed.
        if length == 0 {
            return Ok(Span::default());
        }
        if !qp.grants(right) {
            return Err(Fault::ACCESS.into());
        }
        let span = nic.keys.remote(request.remote_key, qp.pd, qp.name(), request.remote_addr, length, right);
        span.map_err(|_| Fault::ACCESS.into())
    }

    /// Moves the next piece from the requester's memory to `target`.
    #[inline]
    fn push(&self, request: &Request<'_>, target: &[Span]) -> Result<u64, Unreachable> {
        let source = &self.nics[usize::from(request.from)];
        let sink = &self.nics[usize::from(request.to)];
        let from = Side {
            memory: source.frontend.memory(),
            keys: &source.keys,
            spans: request.local,
            skip: request.done,
        };
        let to = Side { memory: sink.frontend.memory(), keys: &sink.keys, spans: target, skip: request.done };
        copy(&from, &to, (request.total - request.done).min(PIECE))
    }

    #[inline]
    fn respond_write(&mut self, request: &Request<'_>) -> Result<Answer, Stop> {
        let span = self.remote_span(request, request.total, LinkFlags::REMOTE_WRITE)?;
        // The immediate data is in the last packet, and so is the need for a receive.
        let immediate = request.opcode == Opcode::WriteImmediate;
        if immediate && request.total - request.done <= PIECE {
            self.need_receive(request)?;
        }
        let moved = match self.push(request, &[span]) {
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
            self.nics[usize::from(request.to)].complete_receive(request.slot, Status::Success, what);
        }
        Ok(Answer::Ack)
    }

    fn respond_send(&mut self, request: &Request<'_>) -> Result<Answer, Stop> {
        self.need_receive(request)?;
        let nic = &self.nics[usize::from(request.to)];
        let qp = nic.qps.get(request.slot).ok_or(Stop::Answer(Answer::None))?;
        if request.total > qp.inbound.receive.room || request.total > qp.max_message {
            return Err(Fault::LENGTH.into());
        }
        let (pd, name) = (qp.pd, qp.name());
        let invalidates = request.opcode == Opcode::SendInvalidate;
        if invalidates && nic.keys.peer_can_invalidate(request.immediate, pd, name).is_err() {
            return Err(Fault::ACCESS.into());
        }
        let spans = nic.receive_spans(request.slot).map_err(|_| Stop::Fault(Fault::PROTECTION))?;
        let moved = match self.push(request, &spans) {
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
            Opcode::SendInvalidate => what.flags |= CqeFlags::INVALIDATED,
            _ => what.immediate = 0,
        }
        let nic = &mut self.nics[usize::from(request.to)];
        if invalidates && nic.keys.invalidate(request.immediate, pd, name).is_err() {
            return Err(Fault::ACCESS.into());
        }
        nic.complete_receive(request.slot, Status::Success, what);
        Ok(Answer::Ack)
    }

    fn respond_read(&mut self, request: &Request<'_>) -> Result<Answer, Stop> {
        self.need_responder_resources(request)?;
        let span = self.remote_span(request, request.total, LinkFlags::REMOTE_READ)?;
        let source = &self.nics[usize::from(request.to)];
        let sink = &self.nics[usize::from(request.from)];
        let from =
            Side { memory: source.frontend.memory(), keys: &source.keys, spans: &[span], skip: request.done };
        let to = Side {
            memory: sink.frontend.memory(),
            keys: &sink.keys,
            spans: request.local,
            skip: request.done,
        };
        match copy(&from, &to, (request.total - request.done).min(PIECE)) {
            Ok(moved) => Ok(part(request, moved).unwrap_or(Answer::Ack)),
            Err(Unreachable::Source) => Err(Fault::ACCESS.into()),
            // Source and target as the requester sees them.
            Err(Unreachable::Target) => Ok(Answer::SourceFault),
        }
    }

    fn respond_atomic(&mut self, request: &Request<'_>, duplicate: bool) -> Result<Answer, Stop> {
        self.need_responder_resources(request)?;
        if duplicate {
            // It must not be done twice (IBTA 9.4.5.1): replay what was answered, or say nothing.
            let saved =
                self.nics[usize::from(request.to)].qps.get(request.slot).and_then(|qp| qp.inbound.atomic);
            return Ok(match saved {
                Some((psn, value)) if psn == request.psn => Answer::Original(value),
                _ => Answer::None,
            });
        }
        // An offset alone does not say whether the memory is aligned; that is looked at below.
        let keys = &self.nics[usize::from(request.to)].keys;
        let relative = keys.get(request.remote_key).is_some_and(|k| k.flags.contains(LinkFlags::RELATIVE));
        if !relative && !request.remote_addr.is_multiple_of(ATOMIC_BYTES) {
            return Err(Fault::ACCESS.into());
        }
        let span = self.remote_span(request, ATOMIC_BYTES, LinkFlags::REMOTE_ATOMIC)?;
        let nic = &mut self.nics[usize::from(request.to)];
        let word = match nic.keys.translate(span.region, span.offset) {
            Some((addr, contiguous)) if contiguous >= ATOMIC_BYTES => {
                nic.frontend.memory().get(addr, ATOMIC_BYTES).ok().and_then(|m| m.atomic_u64(0).ok())
            }
            _ => None,
        };
        // The key's address is aligned, but the memory behind it is not, or cannot be reached.
        let word = word.ok_or(Stop::Fault(Fault::ACCESS))?;
        let (first, second) = request.operands;
        let original = match request.opcode {
            Opcode::FetchAdd => word.fetch_add(first, Ordering::SeqCst),
            _ => match word.compare_exchange(first, second, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(value) | Err(value) => value,
            },
        };
        if let Some(qp) = nic.qps.get_mut(request.slot) {
            qp.inbound.atomic = Some((request.psn, original));
        }
        Ok(Answer::Original(original))
    }

    fn need_responder_resources(&self, request: &Request<'_>) -> Result<(), Stop> {
        match self.nics[usize::from(request.to)].qps.get(request.slot) {
            Some(qp) if qp.attributes.max_dest_rd_atomic > 0 => Ok(()),
            Some(_) => Err(Fault::INVALID.into()),
            None => Err(Stop::Answer(Answer::None)),
        }
    }

    /// Makes sure of a receive, or says why there is none.
    #[inline]
    fn need_receive(&mut self, request: &Request<'_>) -> Result<(), Stop> {
        let nic = &mut self.nics[usize::from(request.to)];
        match nic.take_receive(request.slot) {
            Ok(()) => Ok(()),
            Err(NoReceive::Empty) => {
                nic.stats.not_ready += 1;
                let timer = nic.qps.get(request.slot).map_or(0, |qp| qp.attributes.min_rnr_timer);
                Err(Stop::Answer(Answer::NotReady(rnr_delay(timer))))
            }
            Err(NoReceive::Field(offset)) => Err(Stop::Fault(Fault {
                refusal: Refusal::Operational,
                event: EventType::QpFatal,
                status: Status::LocalQpOperation,
                field: offset as u32,
            })),
            Err(NoReceive::Broken) => Err(Stop::Fault(Fault::new(
                Refusal::Operational,
                EventType::QpFatal,
                Status::LocalQpOperation,
            ))),
        }
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
