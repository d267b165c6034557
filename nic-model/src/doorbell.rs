//! The doorbell FIFO. Each entry is checked; an impossible one is counted and ignored.

use core::sync::atomic::Ordering;

use nic_abi::admin::QpState;
use nic_abi::cqe::Status;
use nic_abi::doorbell::{self, Kind};
use nic_abi::eqe::{EventType, NO_COMPLETION};
use nic_abi::protocol;
use nic_abi::registers::{ADMIN_RECORD, FIFO, FIFO_ENTRIES, FIFO_EVENT, Fault, RQ_RECORDS, SQ_RECORDS};
use platform::planted::{Bug, planted};

use crate::Frontend;
use crate::nic::Nic;
use crate::node::Node;
use crate::schedule::Schedule;

impl<F: Frontend> Nic<F> {
    /// The entry at the head of the FIFO, if the driver has written it.
    #[inline]
    fn fifo_word(&self) -> Option<u32> {
        let at = FIFO + (self.fifo_head % FIFO_ENTRIES) as usize * 4;
        let word = self.register(at).load(Ordering::Acquire);
        doorbell::is_written(word, self.fifo_head).then_some(word)
    }

    /// Asks for a kick with the next doorbell. False if there is a doorbell or a control request
    /// already.
    pub fn ask_for_kick(&self) -> bool {
        protocol::ask_for_kick(self.register(FIFO_EVENT), self.fifo_head);
        !(self.is_requested() || self.running() && self.fifo_word().is_some())
    }

    /// Notes how many commands there are; [`Node::commands`] carries them out. False if there is no
    /// admin queue.
    fn admin_doorbell(&mut self) -> bool {
        let tail = protocol::rearm(self.record(ADMIN_RECORD, 0, 1), self.record(ADMIN_RECORD, 0, 0));
        let Some(admin) = &mut self.admin else { return false };
        if tail.wrapping_sub(admin.head) > 1 << admin.log {
            self.stats.bad_tails += 1;
            self.fail(Fault::AdminQueue);
        } else {
            admin.tail = tail;
        }
        true
    }

    /// Asks for no kick: the event index names an entry that has been consumed.
    pub fn ask_for_no_kick(&self) {
        self.register(FIFO_EVENT).store(self.fifo_head.wrapping_sub(1), Ordering::Relaxed);
    }
}

impl<F: Frontend> Node<F> {
    /// Takes the next doorbell and does what it asks for. False if there is none.
    #[inline]
    pub fn take_doorbell(&mut self, schedule: &mut Schedule) -> bool {
        let Some(word) = self.nic.fifo_word() else { return false };
        self.nic.fifo_head = self.nic.fifo_head.wrapping_add(1);
        let valid = match doorbell::decode(word) {
            Some((Kind::Send, slot)) => self.send_doorbell(slot, schedule),
            Some((Kind::Receive, slot)) => self.receive_doorbell(slot, schedule),
            Some((Kind::Admin, 0)) => self.nic.admin_doorbell(),
            // The device reads an SRQ's tail when a message arrives, and never arms an SRQ.
            Some((Kind::SharedReceive, slot)) => self.nic.srqs.contains(slot),
            _ => false,
        };
        self.nic.stats.bad_doorbells += u64::from(!valid);
        true
    }

    /// False if there is no such queue.
    #[inline]
    fn send_doorbell(&mut self, slot: u32, schedule: &mut Schedule) -> bool {
        let Some((nic, qp)) = self.parts(slot) else { return false };
        if planted(Bug::DoorbellLost) && qp.active {
            return true;
        }
        let tail = protocol::rearm(nic.record(SQ_RECORDS, slot, 1), nic.record(SQ_RECORDS, slot, 0));
        qp.send.tail = tail;
        if tail.wrapping_sub(qp.send.head) > 1 << qp.send.log {
            nic.stats.bad_tails += 1;
            if qp.vi.is_some() {
                qp.overrun_send(nic, schedule);
                return true;
            }
            qp.fail(nic, schedule, Status::LocalQpOperation, Some((EventType::QpFatal, NO_COMPLETION)));
        } else {
            schedule.activate(qp);
        }
        true
    }

    fn receive_doorbell(&mut self, slot: u32, schedule: &mut Schedule) -> bool {
        let Some((nic, qp)) = self.parts(slot) else { return false };
        // A receive queue is armed only in the error state, where flushing reads the tail.
        if qp.state == QpState::Error {
            nic.record(RQ_RECORDS, slot, 1).swap(1, Ordering::AcqRel);
            schedule.activate(qp);
        }
        true
    }
}
