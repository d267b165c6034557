//! The error state: what was posted, and what is posted from now on, comes back flushed, in order.

use core::sync::atomic::Ordering;

use nic_abi::cqe::{NO_FIELD, Status};
use nic_abi::eqe::EventType;
use nic_abi::registers::{RQ_RECORDS, SQ_RECORDS};
use nic_abi::wqe::{Header, ReceiveHeader, receive_stride};

use super::engine::Received;
use crate::Frontend;
use crate::fabric::Fabric;
use crate::memory::GuestMemory;
use crate::nic::Nic;

/// Entries flushed before others get their turn.
const BATCH: u32 = 32;

impl<F: Frontend> Nic<F> {
    /// Flushes some entries of a queue pair in the error state. True if there may be more.
    pub fn flush(&mut self, slot: u32) -> bool {
        let mut left = BATCH;
        while left > 0 {
            if !self.flush_send(slot) && !self.flush_receive(slot) {
                self.report_last_wqe(slot);
                return false;
            }
            left -= 1;
        }
        true
    }

    /// Flushes one entry of the send queue. False if there is none.
    fn flush_send(&mut self, slot: u32) -> bool {
        let tail = self.record(SQ_RECORDS, slot, 0).load(Ordering::Acquire);
        let Some(qp) = self.qps.get_mut(slot) else { return false };
        let posted = tail.wrapping_sub(qp.send.head);
        if posted > 1 << qp.send.log {
            // It is not to be trusted, and says nothing new until it makes sense again.
            self.stats.bad_tails += u64::from(qp.send.tail != tail);
            qp.send.tail = tail;
            return false;
        }
        qp.send.tail = tail;
        if posted == 0 {
            return false;
        }
        let at = qp.send.block(qp.send.head);
        let work = &mut qp.send.work;
        if !work.loaded {
            let header: Header = self.frontend.memory().load(at).unwrap_or_default();
            work.header = header;
            // An entry without a believable length hides where the next one begins.
            work.blocks = match u32::from(header.blocks) {
                0 => posted,
                blocks => blocks.min(posted),
            };
        }
        self.complete_request(slot, Status::Flushed, 0, NO_FIELD);
        true
    }

    /// Flushes one receive. False if there is none. Receives of an SRQ belong to all its queue pairs and stay.
    fn flush_receive(&mut self, slot: u32) -> bool {
        let Some(qp) = self.qps.get(slot) else { return false };
        if qp.inbound.receive.loaded {
            self.complete_receive(slot, Status::Flushed, Received::failed(NO_FIELD));
            return true;
        }
        if qp.srq.is_some() {
            return false;
        }
        // Arm first, then read the tail, so that a receive posted from now on brings a doorbell.
        self.record(RQ_RECORDS, slot, 1).swap(1, Ordering::AcqRel);
        if self.posted_receives(slot).unwrap_or(0) == 0 {
            return false;
        }
        let Some(qp) = self.qps.get_mut(slot) else { return false };
        let queue = &mut qp.receive;
        let index = u64::from(queue.head & ((1 << queue.log) - 1));
        let at = queue.ring + index * u64::from(receive_stride(queue.max_segments));
        let header: ReceiveHeader = self.frontend.memory().load(at).unwrap_or_default();
        queue.head = queue.head.wrapping_add(1);
        qp.inbound.receive.tag = header.tag;
        qp.inbound.receive.solicited = false;
        self.complete_receive(slot, Status::Flushed, Received::failed(NO_FIELD));
        true
    }

    /// Reports, once, that a queue pair takes nothing from its SRQ any more.
    fn report_last_wqe(&mut self, slot: u32) {
        let Some(qp) = self.qps.get_mut(slot) else { return };
        if core::mem::take(&mut qp.last_wqe) {
            let (eq, qpn, generation) = (qp.eq, qp.qpn, qp.generation);
            self.post_event(eq, EventType::LastWqeReached, 0, qpn, generation, 0);
        }
    }
}

impl<F: Frontend> Fabric<F> {
    /// Flushes the receive that a queue pair has taken from its SRQ and not completed: the SRQ has it no more, so nobody else would ever tell of it.
    pub(crate) fn flush_shared(&mut self, n: u16, slot: u32) {
        let nic = &mut self.nics[usize::from(n)];
        if nic.qps.get(slot).is_some_and(|qp| qp.srq.is_some() && qp.inbound.receive.loaded) {
            nic.complete_receive(slot, Status::Flushed, Received::failed(NO_FIELD));
            self.tell_failed_cqs(n);
        }
    }
}
