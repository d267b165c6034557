//! The error state: completes all posted work requests, and all that are posted later, as flushed
//! and in order.

use core::sync::atomic::Ordering;

use nic_abi::cqe::{NO_FIELD, Status};
use nic_abi::eqe::EventType;
use nic_abi::registers::{RQ_RECORDS, SQ_RECORDS};
use nic_abi::wqe::{Header, ReceiveHeader, receive_stride};
use platform::planted::{Bug, planted};

use super::Qp;
use super::completion::Received;
use crate::Frontend;
use crate::memory::GuestMemory;
use crate::nic::Nic;
use crate::schedule::Schedule;

impl Qp {
    /// Flushes entries of a queue pair in the error state until the slice ends. True if there may
    /// be more.
    pub fn flush<F: Frontend>(&mut self, nic: &mut Nic<F>, schedule: &mut Schedule) -> bool {
        while !schedule.slice_is_over() {
            // The event of a completion may fail the NIC.
            if !nic.running() {
                return false;
            }
            if !self.flush_send(nic) && !self.flush_receive(nic) {
                self.report_last_wqe(nic);
                return false;
            }
            schedule.charge(1);
        }
        true
    }

    /// Flushes one entry of the send queue. False if there is none.
    pub(super) fn flush_send<F: Frontend>(&mut self, nic: &mut Nic<F>) -> bool {
        if self.requests.is_some() && self.flush_request(nic) {
            return true;
        }
        if self.vi.is_some() {
            return self.flush_send_descriptor(nic);
        }
        let tail = nic.record(SQ_RECORDS, self.id.slot, 0).load(Ordering::Acquire);
        let posted = tail.wrapping_sub(self.send.head);
        if posted > 1 << self.send.log {
            // Nothing is flushed while the tail is impossible; each impossible tail counts once.
            nic.stats.bad_tails += u64::from(self.send.tail != tail);
            self.send.tail = tail;
            return false;
        }
        self.send.tail = tail;
        // An entry that is loaded for the port has no blocks left in the queue.
        if posted == 0 && !self.send.work.loaded {
            return false;
        }
        let at = self.send.block(self.send.head);
        let work = &mut self.send.work;
        if !work.loaded {
            let header: Header = nic.frontend.memory().load(at).unwrap_or_default();
            work.header = header;
            // Without a valid length of this entry the device cannot find the next one.
            work.blocks = match u32::from(header.blocks) {
                0 => posted,
                blocks => blocks.min(posted),
            };
        }
        let status = if planted(Bug::FlushSucceeds) { Status::Success } else { Status::Flushed };
        self.complete_request(nic, status, 0, NO_FIELD);
        true
    }

    /// Flushes one receive. False if there is none. Receives of an SRQ stay posted: they belong to
    /// all its queue pairs.
    fn flush_receive<F: Frontend>(&mut self, nic: &mut Nic<F>) -> bool {
        if self.vi.is_some() {
            return self.flush_receive_descriptor(nic);
        }
        if !self.inbound.receive.loaded {
            if self.srq.is_some() || planted(Bug::FlushSkipped) {
                return false;
            }
            // Arm first, then read the tail, so that the driver rings a doorbell for every receive
            // that this read misses.
            nic.record(RQ_RECORDS, self.id.slot, 1).swap(1, Ordering::AcqRel);
            if self.posted_receives(nic).unwrap_or(0) == 0 {
                return false;
            }
            let queue = &mut self.receive;
            let index = u64::from(queue.head & ((1 << queue.log) - 1));
            let at = queue.ring + index * u64::from(receive_stride(queue.max_segments));
            let header: ReceiveHeader = nic.frontend.memory().load(at).unwrap_or_default();
            queue.head = queue.head.wrapping_add(1);
            self.inbound.receive.tag = header.tag;
            self.inbound.receive.solicited = false;
        }
        self.complete_receive(nic, Status::Flushed, Received::failed(NO_FIELD));
        true
    }

    /// Flushes the receive that was taken from an SRQ and is not complete. Returns whether there
    /// was one.
    pub fn flush_shared<F: Frontend>(&mut self, nic: &mut Nic<F>) -> bool {
        let taken = self.srq.is_some() && self.inbound.receive.loaded;
        if taken {
            self.complete_receive(nic, Status::Flushed, Received::failed(NO_FIELD));
        }
        taken
    }

    /// Reports once that the queue pair will take no more receives from its SRQ.
    fn report_last_wqe<F: Frontend>(&mut self, nic: &mut Nic<F>) {
        if core::mem::take(&mut self.last_wqe) {
            self.post_event(nic, EventType::LastWqeReached, Status::Success, 0);
        }
    }
}
