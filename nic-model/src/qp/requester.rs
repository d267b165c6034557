//! The requester of a connected queue pair: makes a request of a work request, and an outcome of
//! the answer.

use core::time::Duration;

use nic_abi::admin::QpType;
use nic_abi::cqe::{NO_FIELD, Status};
use nic_abi::wqe::{LinkFlags, Opcode};
use platform::planted::{Bug, planted};
use roce::transport::{Message, PostError, Service, Status as Failure, uc};

use super::Qp;
use super::completion::{Attempt, header_field, status_of};
use super::message::{ATOMIC_BYTES, Reply, Request};
use super::segments::KeyKind;
use super::send::Work;
use super::services::service;
use super::vi::Descriptor;
use crate::Frontend;
use crate::keys::Span;
use crate::nic::Nic;
use crate::transfer::{Side, Spans, put};

/// How a work request fails that the transport does not take.
pub(super) const fn refused(error: PostError) -> (Status, u32) {
    match error {
        PostError::Length => (Status::LocalLength, NO_FIELD),
        _ => (Status::LocalQpOperation, header_field!(opcode)),
    }
}

impl Qp {
    /// The kind of the keys of its segments. Not every operation takes the reserved key.
    #[inline]
    pub fn key_kind(&self, reserved: bool) -> KeyKind {
        match self.keys {
            KeyKind::LocalOrReserved if !reserved => KeyKind::Local,
            keys => keys,
        }
    }

    /// The number of PSNs that the current work request uses.
    #[inline(always)]
    pub fn request_packets(&self) -> u32 {
        match self.send.work.opcode {
            // These send nothing.
            Opcode::FastRegister | Opcode::LocalInvalidate | Opcode::BindWindow => 0,
            _ => {
                let Message { operation, length, .. } = self.send.work.message(0);
                operation.psns(self.mtu, length)
            }
        }
    }

    /// Checks the length of the current work request.
    #[inline(always)]
    pub(super) fn check_length(&self) -> Result<(), (Status, u32)> {
        match self.send.work.total > self.max_message {
            true => Err((Status::LocalLength, NO_FIELD)),
            false => Ok(()),
        }
    }

    /// Whether the connection takes this message.
    #[inline(always)]
    fn admit(&self, message: &Message) -> Result<(), PostError> {
        match service(self.kind) {
            Service::Rc => self.persistence.limits().admit(message),
            Service::Uc => uc::admit(message),
        }
    }

    /// Checks the memory of a work request of a connected queue pair and puts it into `local`. An
    /// error is the status and the offset of the field to blame.
    #[inline(always)]
    pub(super) fn check_memory<F: Frontend>(
        &self,
        nic: &Nic<F>,
        work: &Work,
        local: &mut Spans,
    ) -> Result<(), (Status, u32)> {
        let atomic = matches!(work.opcode, Opcode::CompareSwap | Opcode::FetchAdd);
        let reads = atomic || matches!(work.opcode, Opcode::Read | Opcode::ReadInvalidate);
        let right = if reads { LinkFlags::LOCAL_WRITE } else { LinkFlags::LOCAL_READ };
        let kind = self.key_kind(atomic || !reads);
        if self.reads_write && reads {
            self.check_sink(nic, work, local)?;
        } else if nic.local_spans(&work.segments, self.pd, right, kind, local).is_err() {
            return Err((Status::LocalProtection, NO_FIELD));
        }
        if work.opcode == Opcode::ReadInvalidate
            && nic.keys.can_invalidate(work.header.immediate, self.pd, self.owner).is_err()
        {
            return Err((Status::LocalProtection, header_field!(immediate)));
        }
        Ok(())
    }

    /// Checks the memory that an RDMA Read of this queue pair fills, as a write of the peer: a
    /// segment of no bytes is not checked, and a Read of none not at all.
    #[cold]
    fn check_sink<F: Frontend>(
        &self,
        nic: &Nic<F>,
        work: &Work,
        local: &mut Spans,
    ) -> Result<(), (Status, u32)> {
        let refused = (Status::LocalProtection, NO_FIELD);
        for segment in work.segments.iter().filter(|segment| segment.length > 0) {
            let (addr, length) = (segment.addr, u64::from(segment.length));
            let span = nic.keys.sink(segment.key, self.pd, self.owner, addr, length);
            let span = span.ok().filter(|_| self.grants(LinkFlags::REMOTE_WRITE)).ok_or(refused)?;
            local.push(span).map_err(|_| refused)?;
        }
        Ok(())
    }

    /// Checks the current work request of a connected queue pair and puts its memory into `local`.
    /// An error is the outcome of a work request that cannot be sent.
    #[inline(always)]
    pub fn check_request<F: Frontend>(&mut self, nic: &Nic<F>, local: &mut Spans) -> Result<(), Attempt> {
        let failed = |(status, field)| Attempt::Failed(status, field);
        self.check_length().map_err(failed)?;
        self.admit(&self.send.work.message(0)).map_err(|error| failed(refused(error)))?;
        if self.vi.is_none() || self.copy_of(nic, &self.send.work).is_none() {
            self.check_memory(nic, &self.send.work, local).map_err(failed)?;
        }
        if !self.send.work.started
            && let Some(outcome) = self.hold_back()
        {
            return Err(outcome);
        }
        // A port that is down loses what it sends.
        if nic.port_up { Ok(()) } else { Err(Attempt::Lost) }
    }

    /// The request to the queue pair's peer.
    #[inline(always)]
    pub(super) fn request<'a>(&self, local: &'a [Span]) -> Request<'a> {
        let work = &self.send.work;
        let operands = match work.opcode {
            Opcode::CompareSwap | Opcode::FetchAdd => (work.atomic().compare_add, work.atomic().swap),
            _ => (0, 0),
        };
        Request {
            from: self.id.nic,
            source_qpn: self.qpn,
            target_qpn: self.attributes.remote_qpn,
            psn: self.send_psn,
            packets: self.request_packets(),
            opcode: work.opcode,
            garbled: self.faults.injected && self.faults.bad_requests > 0,
            flags: work.flags,
            remote_key: work.header.remote_key,
            remote_addr: work.header.remote_addr,
            immediate: work.header.immediate,
            total: work.total,
            done: work.done,
            operands,
            local,
            copied: self.vi.is_some().then(|| (self.id.slot, Descriptor::of(work.args).index)),
        }
    }

    /// The outcome of the answer for the requester, if the answer arrives.
    #[inline(always)]
    pub(super) fn conclude<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        local: &[Span],
        answer: Reply,
    ) -> Attempt {
        match answer {
            Reply::Part(bytes) => {
                self.send.work.done += bytes;
                return Attempt::More;
            }
            Reply::None => return Attempt::Lost,
            Reply::SourceFault => return Attempt::Failed(Status::LocalProtection, NO_FIELD),
            _ => {}
        }
        // Nothing comes back on an unreliable connection: the message has left.
        if self.faults.injected
            && self.kind != QpType::Uc
            && let Some(outcome) = self.spoil_answer(nic)
        {
            return outcome;
        }
        let work = &self.send.work;
        let (opcode, total, immediate) = (work.opcode, work.total, work.header.immediate);
        match answer {
            Reply::NotReady(_) if planted(Bug::RnrIgnored) => Attempt::Done(0),
            Reply::NotReady(timer) => Attempt::NotReady(timer),
            Reply::Refused(reason) => Attempt::Failed(status_of(Failure::of_refusal(reason)), NO_FIELD),
            Reply::Original(value) => {
                let sink = Side { memory: nic.frontend.memory(), keys: &nic.keys, spans: local, skip: 0 };
                match put(&sink, &value.to_le_bytes()) {
                    Ok(()) => Attempt::Done(ATOMIC_BYTES),
                    Err(_) => Attempt::Failed(Status::LocalProtection, NO_FIELD),
                }
            }
            _ => match opcode {
                Opcode::Read => Attempt::Done(total),
                Opcode::ReadInvalidate => match nic.keys.invalidate(immediate, self.pd, self.owner) {
                    Ok(()) => Attempt::Done(total),
                    Err(_) => Attempt::Failed(Status::LocalProtection, header_field!(immediate)),
                },
                _ => Attempt::Done(total),
            },
        }
    }

    /// Applies fault injection to an answer.
    #[cold]
    fn spoil_answer<F: Frontend>(&mut self, nic: &mut Nic<F>) -> Option<Attempt> {
        if self.faults.drop_responses > 0 {
            self.faults.drop_responses -= 1;
            nic.stats.lost_answers += 1;
            return Some(Attempt::Lost);
        }
        if self.faults.bad_responses > 0 {
            self.faults.bad_responses -= 1;
            return Some(Attempt::Failed(Status::BadResponse, NO_FIELD));
        }
        None
    }

    /// Applies the injection of delays and losses before a request is sent. `None` if it is sent.
    #[inline(always)]
    pub fn hold_back(&mut self) -> Option<Attempt> {
        let (faults, work) = (&mut self.faults, &mut self.send.work);
        if !faults.injected {
            (work.delayed, work.started) = (false, true);
            return None;
        }
        if faults.delays > 0 && !work.delayed {
            faults.delays -= 1;
            work.delayed = true;
            return Some(Attempt::Delayed(Duration::from_nanos(faults.delay_ns)));
        }
        work.delayed = false;
        if faults.drop_requests > 0 {
            faults.drop_requests -= 1;
            return Some(Attempt::Lost);
        }
        work.started = true;
        None
    }
}
