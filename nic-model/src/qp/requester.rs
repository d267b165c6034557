//! The requester of a connected queue pair: a work request becomes a request, and the answer an outcome.

use core::time::Duration;

use nic_abi::cqe::{NO_FIELD, Status};
use nic_abi::ident::qpn_slot;
use nic_abi::wqe::{LinkFlags, Opcode};

use super::Qp;
use super::engine::{Outcome, header_field};
use super::responder::{Answer, Refusal, Request};
use crate::Frontend;
use crate::fabric::Fabric;
use crate::transfer::{Side, put};

/// Bytes of an atomic operation.
pub(super) const ATOMIC_BYTES: u64 = 8;

impl Qp {
    /// Packets that the current work request takes from the sequence.
    pub fn request_packets(&self) -> u32 {
        match self.send.work.opcode {
            // Nothing of these goes on the wire.
            Opcode::FastRegister | Opcode::LocalInvalidate | Opcode::BindWindow => 0,
            Opcode::CompareSwap | Opcode::FetchAdd => 1,
            _ => self.packets(self.send.work.total),
        }
    }
}

/// The completion status that a refusal becomes.
const fn refused(refusal: Refusal) -> Status {
    match refusal {
        Refusal::InvalidRequest => Status::RemoteInvalidRequest,
        Refusal::Access => Status::RemoteAccess,
        Refusal::Operational => Status::RemoteOperation,
    }
}

impl<F: Frontend> Fabric<F> {
    /// Executes the current work request of a connected queue pair, or the next part of it.
    #[inline]
    pub(super) fn request(&mut self, n: u16, slot: u32) -> Outcome {
        let nic = &self.nics[usize::from(n)];
        let Some(qp) = nic.qps.get(slot) else { return Outcome::Lost };
        let work = &qp.send.work;
        if work.total > qp.max_message {
            return Outcome::Failed(Status::LocalLength, NO_FIELD);
        }
        let atomic = matches!(work.opcode, Opcode::CompareSwap | Opcode::FetchAdd);
        let reads = atomic || matches!(work.opcode, Opcode::Read | Opcode::ReadInvalidate);
        if reads && qp.attributes.max_rd_atomic == 0 {
            return Outcome::Failed(Status::LocalQpOperation, header_field!(opcode));
        }
        if atomic && work.total != ATOMIC_BYTES {
            return Outcome::Failed(Status::LocalLength, NO_FIELD);
        }
        let right = if reads { LinkFlags::LOCAL_WRITE } else { LinkFlags::LOCAL_READ };
        let Ok(local) = nic.local_spans(&work.segments, qp.pd, right, qp.privileged && !reads) else {
            return Outcome::Failed(Status::LocalProtection, NO_FIELD);
        };
        if work.opcode == Opcode::ReadInvalidate
            && nic.keys.can_invalidate(work.header.immediate, qp.pd, qp.name()).is_err()
        {
            return Outcome::Failed(Status::LocalProtection, header_field!(immediate));
        }
        if !work.started
            && let Some(outcome) = self.hold_back(n, slot)
        {
            return outcome;
        }
        let Some((to, peer)) = self.peer(n, slot) else { return Outcome::Lost };
        let Some(qp) = self.nics[usize::from(n)].qps.get_mut(slot) else { return Outcome::Lost };
        let nonsense = qp.faults.bad_requests > 0;
        qp.faults.bad_requests -= u32::from(nonsense);
        let work = &qp.send.work;
        let request = Request {
            from: n,
            to,
            slot: peer,
            psn: qp.send_psn,
            packets: qp.request_packets(),
            opcode: work.opcode,
            flags: work.flags,
            remote_key: work.header.remote_key,
            remote_addr: work.header.remote_addr,
            immediate: work.header.immediate,
            total: work.total,
            done: work.done,
            operands: match atomic {
                true => (work.atomic().compare_add, work.atomic().swap),
                false => (0, 0),
            },
            local: &local,
        };
        let answer = if nonsense { self.respond_to_nonsense(&request) } else { self.respond(&request) };
        self.tell_failed_cqs(to);
        self.conclude(n, slot, &local, answer)
    }

    /// What the answer means to the requester, if it arrives.
    fn conclude(&mut self, n: u16, slot: u32, local: &[crate::keys::Span], answer: Answer) -> Outcome {
        let nic = &mut self.nics[usize::from(n)];
        let Some(qp) = nic.qps.get_mut(slot) else { return Outcome::Lost };
        if let Answer::Part(bytes) = answer {
            qp.send.work.done += bytes;
            return Outcome::More;
        }
        if answer == Answer::None {
            return Outcome::Lost;
        }
        if answer == Answer::SourceFault {
            return Outcome::Failed(Status::LocalProtection, NO_FIELD);
        }
        if qp.faults.drop_responses > 0 {
            qp.faults.drop_responses -= 1;
            nic.stats.lost_answers += 1;
            // A read is asked for again from the start.
            if matches!(qp.send.work.opcode, Opcode::Read | Opcode::ReadInvalidate) {
                qp.send.work.done = 0;
            }
            return Outcome::Lost;
        }
        if qp.faults.bad_responses > 0 {
            qp.faults.bad_responses -= 1;
            return Outcome::Failed(Status::BadResponse, NO_FIELD);
        }
        let (opcode, total, immediate) =
            (qp.send.work.opcode, qp.send.work.total, qp.send.work.header.immediate);
        let (pd, name) = (qp.pd, qp.name());
        match answer {
            Answer::NotReady(delay) => Outcome::NotReady(delay),
            Answer::Refused(refusal) => Outcome::Failed(refused(refusal), NO_FIELD),
            Answer::Original(value) => {
                let sink = Side { memory: nic.frontend.memory(), keys: &nic.keys, spans: local, skip: 0 };
                match put(&sink, &value.to_le_bytes()) {
                    Ok(()) => Outcome::Done(ATOMIC_BYTES),
                    Err(_) => Outcome::Failed(Status::LocalProtection, NO_FIELD),
                }
            }
            _ => match opcode {
                Opcode::Read => Outcome::Done(total),
                Opcode::ReadInvalidate => match nic.keys.invalidate(immediate, pd, name) {
                    Ok(()) => Outcome::Done(total),
                    Err(_) => Outcome::Failed(Status::LocalProtection, header_field!(immediate)),
                },
                _ => Outcome::Done(0),
            },
        }
    }

    /// The way out: what injection delays or drops. `None` if the request goes.
    pub(super) fn hold_back(&mut self, n: u16, slot: u32) -> Option<Outcome> {
        let qp = self.nics[usize::from(n)].qps.get_mut(slot)?;
        let (faults, work) = (&mut qp.faults, &mut qp.send.work);
        if faults.delays > 0 && !work.delayed {
            faults.delays -= 1;
            work.delayed = true;
            return Some(Outcome::Delayed(Duration::from_nanos(faults.delay_ns)));
        }
        work.delayed = false;
        if faults.drop_requests > 0 {
            faults.drop_requests -= 1;
            return Some(Outcome::Lost);
        }
        work.started = true;
        None
    }

    /// The NIC and the slot of the queue pair that takes requests of this one, if there is one that does.
    #[inline]
    fn peer(&mut self, n: u16, slot: u32) -> Option<(u16, u32)> {
        let nic = &self.nics[usize::from(n)];
        let qp = nic.qps.get(slot)?;
        let (qpn, remote_qpn) = (qp.qpn, qp.attributes.remote_qpn);
        if !nic.port_up {
            return None;
        }
        let to = match qp.peer {
            Some(to) => to,
            None => {
                let to = self.find(n, &qp.attributes.remote_gid)?;
                self.nics[usize::from(n)].qps.get_mut(slot)?.peer = Some(to);
                to
            }
        };
        let target = &self.nics[usize::from(to)];
        if !target.running() || !target.port_up {
            return None;
        }
        let peer_slot = qpn_slot(remote_qpn);
        let peer = target.qps.get(peer_slot)?;
        let known = peer.qpn == remote_qpn
            && peer.kind == nic_abi::admin::QpType::Rc
            && peer.can_receive()
            && peer.attributes.remote_qpn == qpn;
        if !known {
            return None;
        }
        // Our GID is what it takes for its peer's.
        self.nics[usize::from(n)].has_gid(&peer.attributes.remote_gid).then_some((to, peer_slot))
    }
}
