//! The doorbell FIFO: what it says is checked, and what makes no sense is counted and ignored.

use core::sync::atomic::{Ordering, fence};

use nic_abi::doorbell::{self, Kind};
use nic_abi::ident::MAX_QPS;
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
        // Arm first, then read the tail: a post that comes later finds 1 and writes a new entry. The swap acquires
        // what the driver's swap for 0 released.
        self.record(SQ_RECORDS, slot, 1).swap(1, Ordering::AcqRel);
        let tail = self.record(SQ_RECORDS, slot, 0).load(Ordering::Acquire);
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
        self.record(ADMIN_RECORD, 0, 1).swap(1, Ordering::AcqRel);
        let tail = self.record(ADMIN_RECORD, 0, 0).load(Ordering::Acquire);
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
        self.register(FIFO_EVENT).store(self.fifo_head, Ordering::SeqCst);
        // The driver writes its entry and then reads the event index; we wrote the event index and now read the
        // entry. Without a full barrier on both sides each could miss the other's store, and we would sleep on work.
        fence(Ordering::SeqCst);
        !(self.is_requested() || self.running() && self.fifo_word().is_some())
    }

    /// Names an index that has been consumed, so that nobody kicks.
    pub fn no_kicks(&self) {
        self.register(FIFO_EVENT).store(self.fifo_head.wrapping_sub(1), Ordering::Relaxed);
    }
}
