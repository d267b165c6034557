//! What an unreliable connection does otherwise than a reliable one (IBTA 9.8.2), on both ways: the
//! responder sends no answer.
//!
//! So the requester completes a message when it has left, whatever happens to it. The responder
//! drops a message that it cannot carry out, and keeps the receive that the message took for the
//! next one (IBTA 9.9.3.1, class D). Only its own fault, an unusable receive, moves it to the error
//! state (class A).

use roce::transport::{Executed, Execution, Reason};

use super::message::Reply;
use super::responder::{Fault, Responder, Stop};
use crate::Frontend;

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
