//! A NIC and its queue pairs, held apart so that a step can borrow the NIC and one of its queue
//! pairs at once.

use crate::Frontend;
use crate::nic::{Failure, Nic};
use crate::qp::Qp;
use crate::schedule::Schedule;
use crate::tables::Table;
use nic_abi::cqe::Status;
use nic_abi::eqe::{EventType, NO_COMPLETION};

/// Queue pairs that are searched for users of a failed CQ in a unit of work.
const SEARCHED: u32 = 32;

/// A NIC and its queue pairs.
pub(crate) struct Node<F: Frontend> {
    pub nic: Nic<F>,
    /// Only DestroyQp and a reset remove queue pairs, and neither runs within a step.
    pub qps: Table<Qp>,
}

impl<F: Frontend> Node<F> {
    /// The NIC and the queue pair in a slot.
    #[inline]
    pub fn parts(&mut self, slot: u32) -> Option<(&mut Nic<F>, &mut Qp)> {
        Some((&mut self.nic, self.qps.get_mut(slot)?))
    }

    /// Moves the queue pairs of CQs that have failed to the error state.
    #[inline]
    pub fn fail_queue_pairs(&mut self, schedule: &mut Schedule) {
        if !self.nic.failures.is_empty() {
            self.fail_users(schedule);
        }
    }

    #[cold]
    fn fail_users(&mut self, schedule: &mut Schedule) {
        while let Some(failure) = self.nic.failures.pop() {
            let cq = match failure {
                Failure::Cq(cq) => cq,
                Failure::Vi(slot) => {
                    if let Some((nic, qp)) = self.parts(slot) {
                        qp.broken_by_descriptor(nic, schedule);
                    }
                    continue;
                }
            };
            schedule.charge(self.qps.slots() / SEARCHED);
            for qp in self.qps.iter_mut().filter(|qp| qp.send_cq == cq || qp.receive_cq == cq) {
                let status = Status::LocalQpOperation;
                qp.fail(&mut self.nic, schedule, status, Some((EventType::QpFatal, NO_COMPLETION)));
            }
        }
    }

    /// Flushes the receive that a queue pair has taken from its SRQ and not completed. The SRQ does
    /// not have it any more, so no other queue pair would complete it.
    pub fn flush_shared(&mut self, slot: u32, schedule: &mut Schedule) {
        if let Some((nic, qp)) = self.parts(slot)
            && qp.flush_shared(nic)
        {
            self.fail_queue_pairs(schedule);
        }
    }
}
