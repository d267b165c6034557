//! What happens when a message is not carried out: the status of the receive, the event, and the
//! answer to the peer (chapter 7, 9.9.1).
//!
//! On Unreliable Delivery only the receive shows the fault, if the message took one: the peer gets
//! no answer, and no event is raised (7.1).

use nic_abi::eqe::EventType;
use nic_abi::vi::{OP_SHIFT, Status, ViError};
use roce::transport::{Extra, Operation, Reason};

use super::status;
use crate::Frontend;
use crate::nic::Nic;
use crate::qp::Qp;
use crate::qp::responder::{Fault, Job, Responder, Stop};

/// How an injection spoils a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::qp) enum Harm {
    Corrupt,
    Truncated,
}

impl<F: Frontend> Responder<'_, F> {
    /// How injection spoils the message of this job, if the message `ends` now.
    #[inline(never)]
    pub(in crate::qp) fn harm(&mut self, job: &Job, ends: bool) -> Option<Harm> {
        let vi = self.qp.vi.as_mut()?;
        if !ends || !job.ends_payload() {
            return None;
        }
        let harms = &mut vi.harms;
        if harms.corrupt > 0 {
            harms.corrupt -= 1;
            return Some(Harm::Corrupt);
        }
        if harms.truncate > 0 {
            harms.truncate -= 1;
            return Some(Harm::Truncated);
        }
        None
    }

    /// Whether an earlier packet of this RDMA Write reached for memory that it may not write.
    #[inline]
    pub(in crate::qp) fn is_denied(&mut self, job: &Job) -> bool {
        let Some(vi) = &mut self.qp.vi else { return false };
        vi.denied &= job.offset > 0;
        vi.denied
    }

    /// Whether an RDMA Write that reaches for wrong memory is refused with a later packet, the last
    /// one: only that packet has the immediate data, and without it the device cannot know whether
    /// a receive or an event has to report the error. Until then nothing is written.
    #[cold]
    pub(in crate::qp) fn denies_later(&mut self, job: &Job, fault: &Fault) -> bool {
        let Some(vi) = &mut self.qp.vi else { return false };
        let write = job.operation() == Operation::Write;
        vi.denied = write && !job.ends_payload() && fault.reason == Reason::RespRemoteAccessErrors;
        vi.denied
    }

    /// Reports why a message of the peer is not carried out. The virtual interface gets its report
    /// here; the result contains only the answer to the peer.
    #[cold]
    #[inline(never)]
    pub(in crate::qp) fn report(&mut self, stop: Stop, harm: Option<Harm>, job: &Job) -> Stop {
        let fault = match stop {
            Stop::SourceFault | Stop::Dead => return stop,
            _ if self.qp.vi.is_none() => return stop,
            Stop::NotReady => None,
            Stop::Fault(fault) => Some(fault),
        };
        let bits = match (harm, &fault) {
            (Some(Harm::Corrupt), _) => Status::TRANSPORT_ERROR,
            (Some(Harm::Truncated), _) => Status::PARTIAL_ERROR,
            (None, Some(fault)) => status::of_receive(fault.status()),
            (None, None) => Status::empty(),
        };
        let immediate = matches!(job.extra(), Extra::Immediate(_));
        // As the status of a receive that the message had taken would have it (9.10.3).
        let operation = match job.operation() {
            Operation::Write => Status::OP_REMOTE_RDMA_WRITE,
            _ => Status::OP_RECEIVE,
        };
        // The unreadable receive is reported already, and removed from the queue.
        let take = match &fault {
            Some(fault) => fault.reason == Reason::RespRemoteAccessErrors,
            None => harm.is_some(),
        };
        match job.operation() {
            Operation::Send => self.report_in_receive(bits | operation, take),
            Operation::Write if immediate => self.report_in_receive(bits | operation, take),
            Operation::Write => {
                let error = match harm {
                    Some(Harm::Corrupt) => ViError::WriteData,
                    Some(Harm::Truncated) => ViError::WriteAbort,
                    None => ViError::WriteProtection,
                };
                self.raise(error, operation);
            }
            _ => self.raise(ViError::ReadProtection, Status::OP_RDMA_READ),
        }
        // Memory that the peer named, data on its way, and the receive: faults of the three have
        // different answers.
        let reason = match (harm, fault) {
            (Some(_), _) => Reason::RespOperationalError,
            (None, Some(fault)) if fault.reason == Reason::RespRemoteAccessErrors => fault.reason,
            (None, None) => {
                self.raise(ViError::ReceiveQueueEmpty, operation);
                Reason::OutOfBuffer
            }
            (None, Some(_)) => Reason::RespLocalLengthError,
        };
        // The event of a virtual interface that fails is chosen elsewhere, and does not depend on
        // this event type.
        Stop::Fault(Fault::answered(reason, EventType::QpInvalidRequest))
    }

    /// Completes the receive that the message took with an error. If it took none and `take` is
    /// set, completes the one that it would have taken.
    fn report_in_receive(&mut self, bits: Status, take: bool) {
        if self.qp.inbound.receive.loaded || take && matches!(self.qp.next_receive(self.nic), Ok(Some(_))) {
            self.qp.end_receive(self.nic, bits, 0, None);
        }
    }

    fn raise(&mut self, error: ViError, operation: Status) {
        if !self.qp.survives_errors() {
            self.qp.post_vi_error(self.nic, error, operation.bits() >> OP_SHIFT, 0);
        }
    }
}

impl Qp {
    /// Drops a message of which a packet is missing. On a virtual interface the receive that the
    /// message took completes and shows the loss; on other queue pairs the next message uses it.
    #[cold]
    pub(in crate::qp) fn end_incomplete<F: Frontend>(&mut self, nic: &mut Nic<F>) {
        if self.vi.is_some() && self.inbound.receive.loaded {
            self.end_receive(nic, Status::PARTIAL_ERROR | Status::OP_RECEIVE, 0, None);
        }
    }
}
