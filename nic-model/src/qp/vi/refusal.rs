//! Why a message was not carried out: what the receive shows, which event says so, and what the
//! peer is answered (chapter 7, 9.9.1).
//!
//! On Unreliable Delivery only the receive shows anything, if the message took one: the peer has no
//! answer, and no event is raised (7.1).

use nic_abi::eqe::EventType;
use nic_abi::vi::{OP_SHIFT, Status, ViError};
use roce::transport::{Extra, Operation, Reason};

use super::status;
use crate::Frontend;
use crate::nic::Nic;
use crate::qp::Qp;
use crate::qp::responder::{Fault, Job, Responder, Stop};

/// What an injection makes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::qp) enum Harm {
    Corrupt,
    Truncated,
}

impl<F: Frontend> Responder<'_, F> {
    /// Whether injection spoils the message that ends with this job, if that `ends` now.
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

    /// Why a message of the peer is not carried out. A virtual interface reports it here, and what
    /// is returned is only what the peer is answered.
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
        // A receive that could not be read has been reported and is off the queue.
        let take = match &fault {
            Some(fault) => fault.reason == Reason::RespRemoteAccessErrors,
            None => harm.is_some(),
        };
        match job.operation() {
            Operation::Send => self.report_in_receive(bits | Status::OP_RECEIVE, take),
            Operation::Write if immediate => {
                self.report_in_receive(bits | Status::OP_REMOTE_RDMA_WRITE, take)
            }
            Operation::Write => {
                let error = match harm {
                    Some(Harm::Corrupt) => ViError::WriteData,
                    Some(Harm::Truncated) => ViError::WriteAbort,
                    None => ViError::WriteProtection,
                };
                self.raise(error, Status::OP_RDMA_WRITE);
            }
            _ => self.raise(ViError::ReadProtection, Status::OP_RDMA_READ),
        }
        // What is wrong with memory that the peer named, with data on its way, and with the
        // receive, are answers of three kinds.
        let reason = match (harm, fault) {
            (Some(_), _) => Reason::RespOperationalError,
            (None, Some(fault)) if fault.reason == Reason::RespRemoteAccessErrors => fault.reason,
            (None, None) => {
                self.raise(ViError::ReceiveQueueEmpty, Status::OP_RECEIVE);
                Reason::OutOfBuffer
            }
            (None, Some(_)) => Reason::RespLocalLengthError,
        };
        // The event of a virtual interface that fails does not depend on this one.
        Stop::Fault(Fault::answered(reason, EventType::QpInvalidRequest))
    }

    /// Completes the receive that the message took with an error; if it took none and `take`, the
    /// one that it would take.
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
    /// A message of which a packet is missing was dropped. The receive that it had taken shows
    /// that, on a virtual interface; on others the next message takes it.
    #[cold]
    pub(in crate::qp) fn end_incomplete<F: Frontend>(&mut self, nic: &mut Nic<F>) {
        if self.vi.is_some() && self.inbound.receive.loaded {
            self.end_receive(nic, Status::PARTIAL_ERROR | Status::OP_RECEIVE, 0, None);
        }
    }
}
