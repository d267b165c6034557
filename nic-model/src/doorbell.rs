//! The doorbell FIFO: what it says is checked, and what makes no sense is counted and ignored.

use core::sync::atomic::Ordering;

use nic_abi::doorbell::{self, Kind};
use nic_abi::ident::MAX_QPS;
use nic_abi::protocol;
use nic_abi::registers::{ADMIN_RECORD, FIFO, FIFO_ENTRIES, FIFO_EVENT, Fault, RQ_RECORDS, SQ_RECORDS};

use crate::Frontend;
use crate::nic::Nic;

/// What a doorbell means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doorbell {
    /// Commands wait.
    Admin,
    /// A queue pair has work to do.
    Work(u32),
    /// The tail of a queue pair's send queue makes no sense.
    BadTail(u32),
    /// Nothing to be done.
    Nothing,
}

impl<F: Frontend> Nic<F> {
    /// Whether the entry at the head of the FIFO has been written.
    #[inline]
    fn fifo_word(&self) -> Option<u32> {
        let at = FIFO + (self.fifo_head % FIFO_ENTRIES) as usize * 4;
        let word = self.register(at).load(Ordering::Acquire);
        doorbell::is_written(word, self.fifo_head).then_some(word)
    }

    /// Takes the next entry.
    #[inline]
    pub fn take_doorbell(&mut self) -> Option<Doorbell> {
        let word = self.fifo_word()?;
        self.fifo_head = self.fifo_head.wrapping_add(1);
        let taken = match doorbell::decode(word) {
            Some((Kind::Send, slot)) => self.send_doorbell(slot),
            Some((Kind::Receive, slot)) => self.receive_doorbell(slot),
            Some((Kind::Admin, 0)) => self.admin_doorbell(),
            // An SRQ is read when a message arrives; it is never armed.
            Some((Kind::SharedReceive, slot)) if self.srqs.contains(slot) => Some(Doorbell::Nothing),
            _ => None,
        };
        if taken.is_none() {
            self.stats.bad_doorbells += 1;
        }
        Some(taken.unwrap_or(Doorbell::Nothing))
    }

    #[inline]
    fn send_doorbell(&mut self, slot: u32) -> Option<Doorbell> {
        if slot >= MAX_QPS || !self.qps.contains(slot) {
            return None;
        }
        let tail = protocol::rearm(self.record(SQ_RECORDS, slot, 1), self.record(SQ_RECORDS, slot, 0));
        let qp = self.qps.get_mut(slot)?;
        if tail.wrapping_sub(qp.send.head) > 1 << qp.send.log {
            self.stats.bad_tails += 1;
            return Some(Doorbell::BadTail(slot));
        }
        qp.send.tail = tail;
        Some(Doorbell::Work(slot))
    }

    fn receive_doorbell(&mut self, slot: u32) -> Option<Doorbell> {
        if slot >= MAX_QPS {
            return None;
        }
        // A receive queue is armed only in the error state, where flushing reads the tail.
        let flushes = self.qps.get(slot)?.state == nic_abi::admin::QpState::Error;
        if flushes {
            self.record(RQ_RECORDS, slot, 1).swap(1, Ordering::AcqRel);
        }
        Some(if flushes { Doorbell::Work(slot) } else { Doorbell::Nothing })
    }

    fn admin_doorbell(&mut self) -> Option<Doorbell> {
        let tail = protocol::rearm(self.record(ADMIN_RECORD, 0, 1), self.record(ADMIN_RECORD, 0, 0));
        let admin = self.admin.as_mut()?;
        if tail.wrapping_sub(admin.head) > 1 << admin.log {
            self.stats.bad_tails += 1;
            self.fail(Fault::AdminQueue);
            return Some(Doorbell::Nothing);
        }
        admin.tail = tail;
        Some(Doorbell::Admin)
    }

    /// Asks for a kick with the next doorbell. False if there is one already.
    pub fn ask_for_kick(&self) -> bool {
        protocol::ask_for_kick(self.register(FIFO_EVENT), self.fifo_head);
        !(self.is_requested() || self.running() && self.fifo_word().is_some())
    }

    /// Names an index that has been consumed, so that nobody kicks.
    pub fn no_kicks(&self) {
        self.register(FIFO_EVENT).store(self.fifo_head.wrapping_sub(1), Ordering::Relaxed);
    }
}
