//! The unreliable connection by the short cut (IBTA 9.8.2): a message leaves, and no answer comes.
//!
//! The requester completes a message when it has left, whatever happens to it. The responder drops
//! a message that it cannot carry out, and keeps the receive that the message took for the next one
//! (IBTA 9.9.3.1, class D). Only its own fault, an unusable receive, moves it to the error state
//! (class A).

use nic_abi::admin::QpType;
use nic_abi::cqe::{NO_FIELD, Status};
use roce::transport::{Executed, Reason, Verdict};

use super::Qp;
use super::completion::Attempt;
use super::engine::Step;
use super::message::{Reply, Request};
use super::responder::{Fault, Job, Responder, ShortCut, Step as Moved, Stop};
use crate::Frontend;
use crate::fabric::Fabric;
use crate::ids::QpId;
use crate::nic::Nic;
use crate::transfer::Spans;

impl<F: Frontend> Fabric<F> {
    /// Sends the current work request, or the next part of it.
    pub(super) fn step_message(&mut self, id: QpId) -> Step {
        let Some((nic, qp, schedule)) = self.parts(id) else { return Step::Idle };
        let mut local = Spans::new();
        if let Err(outcome) = qp.check_message(nic, &mut local) {
            return qp.settle(nic, schedule, outcome);
        }
        let way = qp.way;
        let request = qp.request(&local);
        let to = self.peer(id, way);
        let answer = to.and_then(|to| self.ask(to, &request, QpType::Uc));
        let Some((nic, qp, schedule)) = self.parts(id) else { return Step::Idle };
        // If requester and responder are on the same NIC, the responder may have failed it.
        if !nic.running() {
            return Step::Idle;
        }
        let outcome = match answer {
            Some(Reply::Part(bytes)) => {
                qp.send.work.done += bytes;
                Attempt::More
            }
            Some(Reply::SourceFault) => Attempt::Failed(Status::LocalProtection, NO_FIELD),
            Some(_) => qp.message_left(),
            None => qp.lose_message(nic),
        };
        qp.settle(nic, schedule, outcome)
    }
}

impl Qp {
    /// Checks the current work request and puts its memory into `local`. An error is the outcome of
    /// one that is not sent.
    fn check_message<F: Frontend>(&mut self, nic: &mut Nic<F>, local: &mut Spans) -> Result<(), Attempt> {
        self.check_request(nic, local).map_err(|outcome| match outcome {
            Attempt::Lost => self.lose_message(nic),
            other => other,
        })?;
        if self.faults.bad_requests == 0 {
            return Ok(());
        }
        // The responder would find an undefined operation code, and drop the message.
        self.faults.bad_requests -= 1;
        Err(self.lose_message(nic))
    }

    /// The current message has left.
    fn message_left(&mut self) -> Attempt {
        self.send_psn = self.send_psn.add(self.request_packets());
        Attempt::Done(self.send.work.total)
    }

    /// The current message is lost. The requester does not notice.
    fn lose_message<F: Frontend>(&mut self, nic: &mut Nic<F>) -> Attempt {
        nic.stats.lost_requests += 1;
        self.message_left()
    }
}

impl<F: Frontend> Responder<'_, F> {
    /// Takes a message that comes by the short cut, or the next part of one.
    pub fn take_message(&mut self, request: &Request<'_>, source: Option<&Nic<F>>) -> Reply {
        let Some(engine) = &mut self.qp.inbound.engine else { return Reply::None };
        let execution = match engine.receive(&request.piece()) {
            Verdict::Execute(execution) => execution,
            Verdict::Nothing(reason) | Verdict::Refused(reason) => {
                self.nic.packets.count(reason);
                return Reply::None;
            }
        };
        if !self.may_go_on(request) {
            return Reply::None;
        }
        let job = Job::new(&execution);
        let (outcome, answer) = match self.carry_out(&job, &ShortCut { request, nic: source }) {
            Ok(Moved::Part(moved)) => return self.part(moved),
            Ok(Moved::Done(_)) => (Executed::Done(0), Reply::Ack),
            Err(Stop::SourceFault) => return Reply::SourceFault,
            Err(Stop::Dead) => return Reply::None,
            Err(Stop::NotReady) => {
                self.nic.packets.count(Reason::OutOfBuffer);
                (Executed::NotReady(0), Reply::None)
            }
            Err(Stop::Fault(fault)) => {
                self.drop_message(&fault);
                (Executed::Refused(fault.reason), Reply::None)
            }
        };
        let inbound = &mut self.qp.inbound;
        inbound.open = false;
        if let Some(engine) = &mut inbound.engine {
            engine.executed(execution, outcome);
        }
        answer
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
