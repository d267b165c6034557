//! What an unreliable connection does otherwise than a reliable one (IBTA 9.8.2), on both ways: the
//! responder sends no answer.
//!
//! So the requester completes a message when it has left, whatever happens to it. The responder
//! drops a message that it cannot carry out, and keeps the receive that the message took for the
//! next one (IBTA 9.9.3.1, class D). Only its own fault, an unusable receive, moves it to the error
//! state (class A).

use nic_abi::admin::QpType;
use roce::transport::{Executed, Execution, Reason};

use super::Qp;
use super::completion::Attempt;
use super::message::Reply;
use super::responder::{Fault, Responder, Stop};
use crate::Frontend;
use crate::nic::Nic;

impl Qp {
    /// The outcome as the requester of this connection notices it: of an unreliable one a message
    /// that got lost has left.
    #[inline]
    pub(super) fn noticed<F: Frontend>(&self, nic: &mut Nic<F>, outcome: Attempt) -> Attempt {
        if outcome != Attempt::Lost || self.kind != QpType::Uc {
            return outcome;
        }
        nic.stats.lost_requests += 1;
        Attempt::Done(self.send.work.total)
    }
}

impl<F: Frontend> Responder<'_, F> {
    /// Drops a message of the short cut that cannot be carried out. To the requester it has left.
    pub(super) fn drop_execution(&mut self, execution: Execution, stop: Stop) -> Reply {
        let outcome = match stop {
            Stop::SourceFault => return Reply::SourceFault,
            Stop::Dead => return Reply::None,
            Stop::NotReady => {
                self.nic.packets.count(Reason::OutOfBuffer);
                Executed::NotReady(0)
            }
            Stop::Fault(fault) => {
                self.drop_message(&fault);
                Executed::Refused(fault.reason)
            }
        };
        let inbound = &mut self.qp.inbound;
        inbound.open = false;
        if let Some(engine) = &mut inbound.engine {
            engine.executed(execution, outcome);
        }
        Reply::Ack
    }

    /// Drops a message; the peer gets no answer. The receive that the message took stays for the
    /// next one, unless the fault is in the receive: then it completes with the error, and the
    /// queue pair fails.
    pub(super) fn drop_message(&mut self, fault: &Fault) {
        self.nic.packets.count(fault.reason);
        if fault.is_own() {
            self.break_off(fault, 0);
        }
    }
}
