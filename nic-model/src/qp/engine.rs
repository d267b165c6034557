//! Whose turn it is, and what comes of it: completions, waiting, the way into the error state.

use core::mem::offset_of;
use core::time::Duration;

use nic_abi::admin::{QpState, QpType};
use nic_abi::cqe::{Cqe, CqeFlags, NO_FIELD, Status};
use nic_abi::eqe::{EventType, UNTOLD};
use nic_abi::wqe::{Header, Opcode, SendFlags};

use super::send::BadEntry;
use super::{Receive, Wait, psn_add};
use crate::Frontend;
use crate::fabric::Fabric;
use crate::nic::Nic;

/// Work requests of one queue pair before the others get their turn.
const TURN: u32 = 16;

/// What became of an attempt to execute a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A part is done; there is more.
    More,
    /// It is done; the completion's length.
    Done(u64),
    /// It failed; the offset of the field to blame, or [`NO_FIELD`].
    Failed(Status, u32),
    /// No answer came.
    Lost,
    /// The receiver has no buffer and says how long to wait.
    NotReady(Duration),
    /// It is held back (injection).
    Delayed(Duration),
}

/// Whether a queue pair's turn goes on.
enum Step {
    /// It has done a piece of work and may have more.
    Again,
    /// A large piece: let the others have a go.
    Yield,
    /// Nothing to do.
    Idle,
}

/// RNR NAK timer field to time, in units of 10 us (IBTA table 46).
const RNR_TIMER: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// The time that an RNR NAK's timer field asks for.
pub(crate) fn rnr_delay(field: u8) -> Duration {
    Duration::from_micros(10 * u64::from(RNR_TIMER[usize::from(field & 31)]))
}

/// The time that a local ACK timeout field means: 4.096 us times a power of two.
fn ack_timeout(field: u8) -> Duration {
    Duration::from_nanos(4096 << (field & 31))
}

impl<F: Frontend> Fabric<F> {
    /// Gives a queue pair its turn. Returns how many pieces of work it took.
    pub(crate) fn turn(&mut self, n: u16, slot: u32) -> u32 {
        if let Some(qp) = self.nics[usize::from(n)].qps.get_mut(slot) {
            qp.active = false;
        }
        for done in 0..TURN {
            let step = self.step(n, slot);
            self.tell_failed_cqs(n);
            match step {
                Step::Again => {}
                Step::Yield => {
                    self.activate(n, slot);
                    return done + 1;
                }
                Step::Idle => return done,
            }
        }
        self.activate(n, slot);
        TURN
    }

    fn step(&mut self, n: u16, slot: u32) -> Step {
        let nic = &mut self.nics[usize::from(n)];
        if !nic.running() {
            return Step::Idle;
        }
        let Some(qp) = nic.qps.get_mut(slot) else { return Step::Idle };
        match qp.state {
            QpState::Rts | QpState::Sqd => {}
            QpState::Error => return if nic.flush(slot) { Step::Yield } else { Step::Idle },
            _ => return Step::Idle,
        }
        if qp.wait != Wait::No {
            return Step::Idle;
        }
        if !qp.send.work.loaded {
            if qp.state == QpState::Sqd {
                nic.report_drained(slot);
                return Step::Idle;
            }
            if qp.send.posted() == 0 {
                return Step::Idle;
            }
            if let Err(bad) = qp.fetch(nic.frontend.memory()) {
                let field = match bad {
                    BadEntry::Field(offset) => offset as u32,
                    BadEntry::Dma => NO_FIELD,
                };
                self.fail_request(n, slot, Status::LocalQpOperation, field);
                return Step::Idle;
            }
        }
        let outcome = self.attempt(n, slot);
        self.settle(n, slot, outcome)
    }

    fn attempt(&mut self, n: u16, slot: u32) -> Outcome {
        let Some(qp) = self.nics[usize::from(n)].qps.get_mut(slot) else { return Outcome::Lost };
        if qp.faults.failures > 0 && !qp.send.work.started {
            qp.faults.failures -= 1;
            return Outcome::Failed(qp.faults.failure, NO_FIELD);
        }
        match qp.send.work.opcode {
            Opcode::FastRegister | Opcode::LocalInvalidate | Opcode::BindWindow => {
                self.nics[usize::from(n)].execute_local(slot)
            }
            _ if qp.kind != QpType::Rc => self.send_datagram(n, slot),
            _ => self.request(n, slot),
        }
    }

    /// Draws the consequences of an attempt.
    fn settle(&mut self, n: u16, slot: u32, outcome: Outcome) -> Step {
        let nic = &mut self.nics[usize::from(n)];
        // It may have failed under our hands: a queue pair can be its own peer.
        let Some(qp) = nic.qps.get_mut(slot) else { return Step::Idle };
        if qp.state == QpState::Error && !matches!(outcome, Outcome::Failed(..)) {
            return Step::Again;
        }
        match outcome {
            Outcome::More => {
                (qp.send.work.retries, qp.send.work.rnr_retries) = (0, 0);
                Step::Yield
            }
            Outcome::Done(length) => {
                if qp.kind == QpType::Rc {
                    qp.send_psn = psn_add(qp.send_psn, qp.request_packets());
                }
                let large = qp.send.work.total > u64::from(u16::MAX);
                nic.complete_request(slot, Status::Success, length, NO_FIELD);
                if large { Step::Yield } else { Step::Again }
            }
            Outcome::Failed(status, field) => {
                self.fail_request(n, slot, status, field);
                Step::Again
            }
            Outcome::Lost => {
                qp.send.work.started = false;
                nic.stats.lost_requests += 1;
                let timeout = qp.attributes.timeout;
                if timeout == 0 {
                    qp.wait = Wait::Forever;
                } else {
                    qp.wait = Wait::Answer;
                    let at = self.now + ack_timeout(timeout);
                    self.start_timer(n, slot, at);
                }
                Step::Idle
            }
            Outcome::NotReady(delay) => {
                let work = &mut qp.send.work;
                work.started = false;
                let limit = qp.attributes.rnr_retry;
                if limit < 7 && work.rnr_retries >= limit {
                    self.fail_request(n, slot, Status::RnrRetryExceeded, NO_FIELD);
                    return Step::Again;
                }
                work.rnr_retries = work.rnr_retries.saturating_add(1);
                self.pause(n, slot, delay)
            }
            Outcome::Delayed(delay) => self.pause(n, slot, delay),
        }
    }

    fn pause(&mut self, n: u16, slot: u32, delay: Duration) -> Step {
        if let Some(qp) = self.nics[usize::from(n)].qps.get_mut(slot) {
            qp.wait = Wait::Pause;
        }
        let at = self.now + delay;
        self.start_timer(n, slot, at);
        Step::Idle
    }

    /// A queue pair's moment has come.
    pub(crate) fn timer_fired(&mut self, n: u16, slot: u32) {
        let nic = &mut self.nics[usize::from(n)];
        // A device that plays dead does not give up either.
        let running = nic.running();
        let Some(qp) = nic.qps.get_mut(slot) else { return };
        qp.deadline = None;
        if !running {
            return;
        }
        let waited = core::mem::replace(&mut qp.wait, Wait::No);
        if waited == Wait::Answer {
            if qp.send.work.retries >= qp.attributes.retry_count {
                self.fail_request(n, slot, Status::RetryExceeded, NO_FIELD);
                self.tell_failed_cqs(n);
                return;
            }
            qp.send.work.retries += 1;
        }
        self.activate(n, slot);
    }

    /// Completes the current work request with an error, and the queue pair with it.
    fn fail_request(&mut self, n: u16, slot: u32, status: Status, field: u32) {
        self.nics[usize::from(n)].complete_request(slot, status, 0, field);
        self.fail_qp(n, slot, status, Some((EventType::QpFatal, 0)));
    }

    /// Moves a queue pair to the error state, if it is not there, and says so by an event with this detail.
    pub(crate) fn fail_qp(&mut self, n: u16, slot: u32, status: Status, event: Option<(EventType, u32)>) {
        self.stop_timer(n, slot);
        let nic = &mut self.nics[usize::from(n)];
        let Some(qp) = nic.qps.get_mut(slot) else { return };
        if qp.state == QpState::Error {
            self.activate(n, slot);
            return;
        }
        qp.state = QpState::Error;
        qp.error = status as u8;
        qp.wait = Wait::No;
        qp.draining = false;
        qp.last_wqe = qp.srq.is_some();
        let (eq, qpn, generation) = (qp.eq, qp.qpn, qp.generation);
        if let Some((event, detail)) = event {
            nic.post_event(eq, event, status as u8, qpn, generation, detail);
        }
        self.activate(n, slot);
    }

    /// Takes the queue pairs of CQs that failed to the error state.
    pub(crate) fn tell_failed_cqs(&mut self, n: u16) {
        while let Some(cq) = self.nics[usize::from(n)].failed_cqs.pop() {
            let nic = &self.nics[usize::from(n)];
            let users: alloc::vec::Vec<u32> = nic
                .qps
                .iter()
                .filter(|(_, qp)| qp.send_cq == cq || qp.receive_cq == cq)
                .map(|(slot, _)| slot)
                .collect();
            for slot in users {
                self.fail_qp(n, slot, Status::LocalQpOperation, Some((EventType::QpFatal, UNTOLD)));
            }
        }
    }
}

impl<F: Frontend> Nic<F> {
    /// Takes the current entry from the send queue, with a completion if it failed or asked for one.
    #[inline]
    pub fn complete_request(&mut self, slot: u32, status: Status, length: u64, field: u32) {
        let Some(qp) = self.qps.get_mut(slot) else { return };
        let work = &mut qp.send.work;
        work.loaded = false;
        qp.send.head = qp.send.head.wrapping_add(work.blocks);
        match status {
            Status::Flushed => self.stats.flushed += 1,
            _ => self.stats.completed += 1,
        }
        let signaled = work.header.flags & SendFlags::SIGNALED.bits() != 0;
        if !signaled && status == Status::Success {
            return;
        }
        let entry = Cqe {
            qpn: qp.qpn,
            generation: qp.generation,
            tag: work.header.tag,
            length: length as u32,
            immediate: 0,
            source_or_field: if status == Status::Success { 0 } else { field },
            status: status as u8,
            flags: 0,
            opcode: work.header.opcode,
            reserved: 0,
            phase: 0,
        };
        let cq = qp.send_cq;
        self.post_cqe(cq, entry);
    }

    /// Completes the receive that the queue pair in `slot` has taken.
    #[inline]
    pub fn complete_receive(&mut self, slot: u32, status: Status, what: Received) {
        let Some(qp) = self.qps.get_mut(slot) else { return };
        let receive: &mut Receive = &mut qp.inbound.receive;
        receive.loaded = false;
        match status {
            Status::Flushed => self.stats.flushed += 1,
            _ => self.stats.completed += 1,
        }
        let mut flags = what.flags | CqeFlags::RECEIVE;
        if receive.solicited {
            flags |= CqeFlags::SOLICITED;
        }
        let entry = Cqe {
            qpn: qp.qpn,
            generation: qp.generation,
            tag: receive.tag,
            length: what.length as u32,
            immediate: what.immediate,
            source_or_field: what.source_or_field,
            status: status as u8,
            flags: flags.bits(),
            opcode: 0,
            reserved: 0,
            phase: 0,
        };
        let cq = qp.receive_cq;
        self.post_cqe(cq, entry);
    }

    /// Completes the receive that the queue pair in `slot` has taken, if it has, with an error. Returns the detail of the event that follows.
    pub fn fail_receive(&mut self, slot: u32, status: Status, field: u32) -> u32 {
        if !self.qps.get(slot).is_some_and(|qp| qp.inbound.receive.loaded) {
            return UNTOLD;
        }
        self.complete_receive(slot, status, Received::failed(field));
        0
    }

    /// Reports, once, that nothing is under way on a send queue in SQD.
    fn report_drained(&mut self, slot: u32) {
        let Some(qp) = self.qps.get_mut(slot) else { return };
        if core::mem::take(&mut qp.draining) {
            let (eq, qpn, generation) = (qp.eq, qp.qpn, qp.generation);
            self.post_event(eq, EventType::SendQueueDrained, 0, qpn, generation, 0);
        }
    }
}

/// What a receive's completion says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub flags: CqeFlags,
    pub length: u64,
    pub immediate: u32,
    pub source_or_field: u32,
}

impl Received {
    /// A receive that failed; the offset of the field to blame, or [`NO_FIELD`].
    pub const fn failed(field: u32) -> Received {
        Received { flags: CqeFlags::empty(), length: 0, immediate: 0, source_or_field: field }
    }
}

/// The offset of a field of the header, as completions name it.
macro_rules! header_field {
    ($name:ident) => {
        core::mem::offset_of!(nic_abi::wqe::Header, $name) as u32
    };
}
pub(crate) use header_field;

const _: () = assert!(offset_of!(Header, opcode) == 0);
