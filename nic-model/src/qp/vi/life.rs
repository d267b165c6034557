//! Flushes the descriptors of a virtual interface: those of the send queue while there is no
//! connection, and those of both queues in the error state and when the connection ends.

use core::sync::atomic::Ordering;

use nic_abi::cqe::{NO_FIELD, Status};
use nic_abi::eqe::{EventType, NO_COMPLETION};
use nic_abi::registers::{RQ_RECORDS, SQ_RECORDS};
use nic_abi::vi;

use crate::Frontend;
use crate::nic::Nic;
use crate::qp::Qp;
use crate::qp::engine::Step;
use crate::qp::flights::UNDER_WAY;
use crate::schedule::Schedule;

impl Qp {
    /// Completes the descriptors on the send queue of a virtual interface without a connection in
    /// error, until the slice ends.
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
            // Nothing is flushed while the tail is impossible. The device does not store the tail:
            // after a change to RTS it would execute all entries up to it.
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

    /// Flushes the receive that a message took, or the next one. False if there is none.
    #[inline(never)]
    pub(in crate::qp) fn flush_receive_descriptor<F: Frontend>(&mut self, nic: &mut Nic<F>) -> bool {
        if !self.inbound.receive.loaded {
            // Arm first, then read the tail, so that the driver rings a doorbell for every receive
            // that this read misses.
            nic.record(RQ_RECORDS, self.id.slot, 1).swap(1, Ordering::AcqRel);
            let head = self.receive.head;
            match self.next_receive(nic) {
                Ok(Some(_)) => {}
                // Descriptors that cannot be accessed were removed from the queue.
                _ => return self.receive.head != head,
            }
        }
        let bits = vi::Status::DESC_FLUSHED_ERROR | vi::Status::OP_RECEIVE;
        self.end_receive(nic, bits, 0, None);
        true
    }

    /// A descriptor cannot be read, or its status not be written. An event reports that.
    #[inline(never)]
    pub(crate) fn broken_by_descriptor<F: Frontend>(&mut self, nic: &mut Nic<F>, schedule: &mut Schedule) {
        if !self.survives_errors() && !self.refuses_sends() {
            let event = Some((EventType::QpFatal, NO_COMPLETION));
            self.fail(nic, schedule, Status::LocalProtection, event);
        }
    }

    /// The driver posted more to the send queue than it has room for. If there is a connection, it
    /// breaks; without one the posted descriptors are forgotten.
    pub(crate) fn overrun_send<F: Frontend>(&mut self, nic: &mut Nic<F>, schedule: &mut Schedule) {
        self.overrun(nic, false);
        if self.refuses_sends() {
            self.send.head = self.send.tail;
        } else {
            let event = Some((EventType::QpFatal, NO_COMPLETION));
            self.fail(nic, schedule, Status::LocalQpOperation, event);
        }
    }

    /// Ends the connection of a virtual interface: completes every posted descriptor, but for the
    /// receives that no message has taken, if it `keeps` these. Descriptors that the driver posts
    /// meanwhile are completed as well, or stay posted.
    pub(crate) fn flush_all<F: Frontend>(&mut self, nic: &mut Nic<F>, schedule: &mut Schedule, keeps: bool) {
        if self.vi.is_none() {
            return;
        }
        let most = (1u32 << self.send.log) + (1 << self.receive.log) + UNDER_WAY;
        for _ in 0..most {
            let receives = self.inbound.receive.loaded || !keeps;
            let flushed = |qp: &mut Qp, nic: &mut Nic<F>| receives && qp.flush_receive_descriptor(nic);
            if !nic.running() || !self.flush_send(nic) && !flushed(self, nic) {
                break;
            }
            schedule.charge(1);
        }
        nic.record(RQ_RECORDS, self.id.slot, 1).store(0, Ordering::Release);
    }
}
