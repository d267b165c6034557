//! Flushing the descriptors of a virtual interface: of the send queue as long as there is no
//! connection, of both queues in the error state and when the connection ends.

use core::sync::atomic::Ordering;

use nic_abi::cqe::{NO_FIELD, Status};
use nic_abi::eqe::{EventType, NO_COMPLETION};
use nic_abi::registers::{RQ_RECORDS, SQ_RECORDS};
use nic_abi::vi;

use crate::Frontend;
use crate::nic::Nic;
use crate::qp::Qp;
use crate::qp::engine::Step;
use crate::qp::wire::UNDER_WAY;
use crate::schedule::Schedule;

impl Qp {
    /// Completes in error what is posted to the send queue of a virtual interface that has no
    /// connection, until the slice is over.
    #[inline(never)]
    pub(in crate::qp) fn refuse_sends<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        schedule: &mut Schedule,
    ) -> Step {
        while nic.running() && self.flush_send(nic) {
            schedule.charge(1);
            if schedule.slice_is_over() {
                return Step::Yield;
            }
        }
        Step::Idle
    }

    /// Flushes the descriptor at the head of the send queue. False if there is none.
    #[inline(never)]
    pub(in crate::qp) fn flush_send_descriptor<F: Frontend>(&mut self, nic: &mut Nic<F>) -> bool {
        let tail = nic.record(SQ_RECORDS, self.id.slot, 0).load(Ordering::Acquire);
        let posted = tail.wrapping_sub(self.send.head);
        if posted > 1 << self.send.log {
            // Nothing is flushed before the tail is possible again. It is not taken over: after a
            // change to RTS all that it claims would be executed.
            nic.stats.bad_tails += u64::from(self.send.tail != tail);
            return false;
        }
        self.send.tail = tail;
        if !self.send.work.loaded {
            if posted == 0 {
                return false;
            }
            if !self.load_to_flush(nic) {
                return true;
            }
        }
        self.complete_request(nic, Status::Flushed, 0, NO_FIELD);
        true
    }

    /// Flushes the receive that was taken, or the next one. False if there is none.
    #[inline(never)]
    pub(in crate::qp) fn flush_receive_descriptor<F: Frontend>(&mut self, nic: &mut Nic<F>) -> bool {
        if !self.inbound.receive.loaded {
            // Arm first, then read the tail, so that a receive posted from now on brings a
            // doorbell.
            nic.record(RQ_RECORDS, self.id.slot, 1).swap(1, Ordering::AcqRel);
            let head = self.receive.head;
            match self.next_receive(nic) {
                Ok(Some(_)) => {}
                // Those that cannot be reached are off the queue.
                _ => return self.receive.head != head,
            }
        }
        let bits = vi::Status::DESC_FLUSHED_ERROR | vi::Status::OP_RECEIVE;
        self.end_receive(nic, bits, 0, None);
        true
    }

    /// A descriptor could not be read, or its status not written, which an event reports.
    #[inline(never)]
    pub(crate) fn broken_by_descriptor<F: Frontend>(&mut self, nic: &mut Nic<F>, schedule: &mut Schedule) {
        if !self.survives_errors() && !self.refuses_sends() {
            let event = Some((EventType::QpFatal, NO_COMPLETION));
            self.fail(nic, schedule, Status::LocalProtection, event);
        }
    }

    /// More was posted to the send queue than it has room for. Without a connection there is none
    /// to break, and what was posted is forgotten.
    pub(crate) fn overrun_send<F: Frontend>(&mut self, nic: &mut Nic<F>, schedule: &mut Schedule) {
        self.overrun(nic, false);
        if self.refuses_sends() {
            self.send.head = self.send.tail;
        } else {
            let event = Some((EventType::QpFatal, NO_COMPLETION));
            self.fail(nic, schedule, Status::LocalQpOperation, event);
        }
    }

    /// Ends the connection of a virtual interface: completes everything that is posted. What a
    /// driver posts meanwhile is completed as well, or stays posted.
    pub(crate) fn flush_all<F: Frontend>(&mut self, nic: &mut Nic<F>, schedule: &mut Schedule) {
        if self.vi.is_none() {
            return;
        }
        let most = (1u32 << self.send.log) + (1 << self.receive.log) + UNDER_WAY;
        for _ in 0..most {
            if !nic.running() || !self.flush_send(nic) && !self.flush_receive_descriptor(nic) {
                break;
            }
            schedule.charge(1);
        }
        nic.record(RQ_RECORDS, self.id.slot, 1).store(0, Ordering::Release);
    }
}
