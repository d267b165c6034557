//! The requester of a reliable connection (IBTA vol. 1 sections 9.7.1 to 9.7.7).
//!
//! The device posts work requests to [`Requester::post`] in the order of its send queue, and pulls
//! what is to be sent from [`Requester::transmit`]. It passes each answer to
//! [`Requester::receive`], and calls [`Requester::expired`] at the time that [`Requester::timer`]
//! names. After each of these it takes the events from [`Requester::poll`], which completes the
//! work requests in the order in which they were posted.
//!
//! | module | subject |
//! |---|---|
//! | `transmit` | what is sent next: window, credits, fences, RDMA Reads outstanding |
//! | `window` | how many packets may be under way, and how long to wait for an acknowledgement |
//! | `receive` | what an answer means |
//! | `reads` | RDMA Reads outstanding, and how much of their answers is asked for at once |
//! | `retry` | going back |
//! | `persistence` | timers and retry counts, also of messages that go by the short cut |

mod persistence;
mod reads;
mod receive;
mod retry;
mod transmit;
mod window;

use alloc::collections::VecDeque;

use platform::Instant;

use crate::wire::aeth::Nak;
use crate::{PathMtu, Psn, TimeoutCode};

use super::code::credits;
use super::piece::{Extra, MAX_MESSAGE, Operation};
use super::reason::Reason;
use super::responder::nak;
use reads::Reads;
use window::Window;

pub use persistence::Persistence;
pub use transmit::Transmit;

/// What a requester is created with.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The first PSN.
    pub psn: Psn,
    /// The path's MTU.
    pub mtu: PathMtu,
    /// How many work requests it has room for.
    pub depth: u16,
    /// How many packets of Sends and RDMA Writes may be unacknowledged, at least one.
    pub window: u32,
    /// How many of them, and of the answers of RDMA Reads, at first, as long as nothing is known
    /// about the path.
    pub first_window: u32,
    /// Whether the responder counts credits (section 9.7.7.2). Until the first acknowledgement
    /// there are none.
    pub credits: bool,
    /// What may change later.
    pub limits: Limits,
}

/// What may change during a requester's life.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How many RDMA Reads and atomic operations may be outstanding.
    pub max_rd_atomic: u8,
    /// How long to wait for an acknowledgement; code 0 is for ever (section 9.7.6.1.3).
    pub timeout: TimeoutCode,
    /// How often in a row to repeat after a timeout or a sequence error.
    pub retry_count: u8,
    /// How often in a row to repeat after an RNR NAK; 7 is for ever.
    pub rnr_retry: u8,
}

impl Limits {
    /// How long to wait in nanoseconds; `None` is for ever.
    fn timeout(&self) -> Option<u64> {
        (self.timeout.get() != 0).then(|| 4096 << self.timeout.get())
    }

    /// Whether a reliable connection takes this message.
    #[inline]
    pub fn admit(&self, message: &Message) -> Result<(), PostError> {
        let operation = message.operation;
        let lengths = if operation.is_atomic() { 8..=8 } else { 0..=MAX_MESSAGE };
        if !lengths.contains(&message.length) {
            return Err(PostError::Length);
        }
        let possible = match (operation, message.extra) {
            (Operation::Send, _) | (Operation::Write, Extra::None | Extra::Immediate(_)) => true,
            (_, Extra::None) => self.max_rd_atomic > 0,
            _ => false,
        };
        if possible { Ok(()) } else { Err(PostError::Operation) }
    }
}

/// A work request that needs the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The device's name for it.
    pub id: u32,
    /// What it asks for.
    pub operation: Operation,
    /// Its length in bytes; 8 for an atomic operation.
    pub length: u32,
    /// The address of the responder's memory; not used by a Send.
    pub addr: u64,
    /// The key of the responder's memory; not used by a Send.
    pub key: u32,
    /// What the last packet carries beside the payload.
    pub extra: Extra,
    /// The receiver's completion shall raise an event.
    pub solicited: bool,
    /// It may not start before all earlier RDMA Reads and atomic operations are complete.
    pub fence: bool,
}

/// Why a work request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// There is no room; there is when a work request is complete.
    Full,
    /// Its length is not allowed.
    Length,
    /// The service has no such message, or none of this kind may be outstanding.
    Operation,
    /// A work request has failed.
    Closed,
}

/// Why a work request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The responder did not answer, or reported gaps, too often.
    RetryExceeded,
    /// The responder had no receive, too often.
    RnrRetryExceeded,
    /// The responder called the request invalid.
    RemoteInvalidRequest,
    /// The responder refused the access.
    RemoteAccess,
    /// The responder could not carry out the request.
    RemoteOperation,
    /// The answer is of another kind or length than the request's.
    BadResponse,
    /// The device aborted it by [`Requester::abort`], or set [`Limits::max_rd_atomic`] to 0 before
    /// it was sent.
    Aborted,
}

impl Status {
    /// How a request fails that the responder has refused for this reason.
    pub const fn of_refusal(reason: Reason) -> Status {
        refused(nak(reason)).0
    }
}

/// How a request fails that a NAK refuses, and the reason to count.
const fn refused(nak: Nak) -> (Status, Reason) {
    match nak {
        Nak::RemoteAccessError => (Status::RemoteAccess, Reason::ReqRemoteAccessErrors),
        Nak::RemoteOperationalError => (Status::RemoteOperation, Reason::ReqRemoteOperationalErrors),
        _ => (Status::RemoteInvalidRequest, Reason::ReqRemoteInvalidRequest),
    }
}

/// What became of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It is complete.
    Completed {
        /// Which one.
        id: u32,
    },
    /// It failed. All earlier ones are complete; the later ones remain for [`Requester::flush`].
    Failed {
        /// Which one.
        id: u32,
        /// Why.
        status: Status,
    },
}

/// What an answer brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Received {
    /// An acknowledgement.
    Acknowledged,
    /// Bytes of an RDMA Read: the device scatters the first `length` bytes of the answer's payload
    /// before it takes an event.
    Read {
        /// Of which work request.
        id: u32,
        /// Where in the message they belong.
        offset: u32,
        /// How many bytes.
        length: u32,
    },
    /// The result of an atomic operation, which the device stores before it takes an event.
    Atomic {
        /// Of which work request.
        id: u32,
        /// The word's value before.
        original: u64,
    },
    /// The answer shows that something has to be sent again, or that there is no receive. Where
    /// that happened too often the next event is a failure.
    Retry(Reason),
    /// A work request is refused, or its answer makes no sense; the next failure shows it.
    Refused(Reason),
    /// Nothing is to be done but to count this reason.
    Dropped(Reason),
}

/// A work request that was posted and is not complete.
#[derive(Clone, Copy, Debug)]
struct Slot {
    id: u32,
    fence: bool,
    /// Its PSNs; a local one has none.
    psn: Psn,
    packets: u32,
    /// Its number among those that need the peer (section 9.7.7.2); 24 bits.
    ssn: u32,
    work: Work,
}

#[derive(Clone, Copy, Debug)]
enum Work {
    /// The device carries it out, or has.
    Local {
        done: bool,
    },
    Message(Message),
}

impl Slot {
    /// The PSN behind its last.
    const fn end(&self) -> Psn {
        self.psn.add(self.packets)
    }
}

/// The oldest work request that fails.
#[derive(Clone, Copy, Debug)]
struct Fault {
    seq: u64,
    status: Status,
}

/// A requester's state.
#[derive(Debug)]
pub struct Requester {
    mtu: PathMtu,
    window: Window,
    counts_credits: bool,
    persistence: Persistence,

    /// Work requests in the order of posting; the first has the number `first`, at most `depth`.
    slots: VecDeque<Slot>,
    first: u64,
    depth: usize,
    /// The PSN and the SSN of the next one to be posted.
    end: Psn,
    ssn: u32,

    /// The oldest PSN that is not acknowledged.
    una: Psn,
    /// The PSN behind the last that was ever sent.
    frontier: Psn,
    /// The PSN to send next, from `una` to `frontier`.
    next: Psn,
    /// The PSN behind the last packet that asked for an acknowledgement since it went back.
    asked: Psn,
    /// Since when nothing has been under way.
    idle_since: Instant,
    /// The place in `slots` that `next` belongs to.
    cursor: usize,
    /// How many work requests at the head of `slots` are complete.
    settled: usize,
    /// The requests of RDMA Reads and atomic operations that were sent and are not answered.
    reads: Reads,
    /// How many more messages the responder counts than were posted, since RDMA Reads were divided.
    /// 24 bits count.
    divisions: u32,

    /// The last SSN that the responder has a receive for; `None` if there is no limit.
    lsn: Option<u32>,
    /// A packet without a credit that was sent and is not acknowledged.
    limited: Option<Psn>,

    /// It went back because of a gap, and nothing was acknowledged since.
    went_back: bool,

    fault: Option<Fault>,
    /// A refusal of this PSN that came before the answers of earlier RDMA Reads.
    doom: Option<(Psn, Status)>,
    draining: bool,
    closed: bool,
}

impl Requester {
    /// A requester.
    pub fn new(config: &Config) -> Requester {
        let Config { psn, mtu, depth, window, first_window, credits, limits } = *config;
        Requester {
            mtu,
            window: Window::new(first_window, window, limits.timeout()),
            counts_credits: credits,
            persistence: Persistence::new(limits),
            slots: VecDeque::with_capacity(depth.into()),
            first: 0,
            depth: depth.into(),
            end: psn,
            ssn: 1,
            una: psn,
            frontier: psn,
            next: psn,
            asked: psn,
            idle_since: Instant::ZERO,
            cursor: 0,
            settled: 0,
            reads: Reads::new(limits.max_rd_atomic.into(), first_window),
            divisions: 0,
            lsn: credits.then_some(0),
            limited: None,
            went_back: false,
            fault: None,
            doom: None,
            draining: false,
            closed: false,
        }
    }

    /// Changes the limits. A timer that runs keeps its time; retry counts start again.
    pub fn set_limits(&mut self, limits: Limits) {
        self.persistence.set_limits(limits);
        self.window.set_timeout(limits.timeout());
        self.reads.reserve(limits.max_rd_atomic.into());
    }

    /// Takes a work request.
    pub fn post(&mut self, message: Message) -> Result<(), PostError> {
        self.persistence.limits().admit(&message)?;
        let packets = message.operation.psns(self.mtu, message.length);
        self.push(message.id, message.fence, packets, Work::Message(message))?;
        self.ssn = self.ssn.wrapping_add(1) & 0xff_ffff;
        Ok(())
    }

    /// Takes a work request that the device carries out by itself, such as a bind or a local
    /// invalidate, so that it is carried out and completed in its place.
    pub fn post_local(&mut self, id: u32, fence: bool) -> Result<(), PostError> {
        self.push(id, fence, 0, Work::Local { done: false })
    }

    #[inline]
    fn push(&mut self, id: u32, fence: bool, packets: u32, work: Work) -> Result<(), PostError> {
        if self.closed || self.fault.is_some() {
            return Err(PostError::Closed);
        }
        if self.slots.len() >= self.depth {
            return Err(PostError::Full);
        }
        self.slots.push_back(Slot { id, fence, psn: self.end, packets, ssn: self.ssn, work });
        self.end = self.end.add(packets);
        Ok(())
    }

    /// Whether there is room for another work request.
    pub fn has_room(&self) -> bool {
        self.slots.len() < self.depth
    }

    /// How many work requests were posted and are not complete.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether all work requests are complete.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The PSN of the packet to be sent next.
    pub const fn next_psn(&self) -> Psn {
        self.next
    }

    /// The oldest PSN that was sent and is not acknowledged.
    pub fn unacknowledged_psn(&self) -> Option<Psn> {
        (self.una != self.frontier).then_some(self.una)
    }

    /// Stops starting work requests, or starts them again (the state SQD, section 10.3.1.5).
    pub fn drain(&mut self, draining: bool) {
        self.draining = draining;
    }

    /// Whether it drains, and all work requests that were started are complete and their events
    /// taken.
    pub fn is_drained(&self) -> bool {
        let started = self.slots.front().is_some_and(|slot| self.next != slot.psn);
        self.draining && self.cursor == 0 && self.una == self.frontier && !started
    }

    /// The next event. Take all before anything else is passed to the requester.
    pub fn poll(&mut self) -> Option<Event> {
        if self.closed {
            return None;
        }
        if let Some(Fault { seq, status }) = self.fault
            && seq == self.first
        {
            self.closed = true;
            let id = self.pop()?;
            return Some(Event::Failed { id, status });
        }
        if self.settled == 0 {
            return None;
        }
        let id = self.pop()?;
        Some(Event::Completed { id })
    }

    /// Takes the oldest work request back and sends nothing any more: the queue pair is in the
    /// error state, and the device completes its requests as flushed.
    pub fn flush(&mut self) -> Option<u32> {
        self.closed = true;
        self.pop()
    }

    #[inline]
    fn pop(&mut self) -> Option<u32> {
        let slot = self.slots.pop_front()?;
        self.first += 1;
        self.settled = self.settled.saturating_sub(1);
        self.cursor = self.cursor.saturating_sub(1);
        Some(slot.id)
    }

    /// Fails a work request for a reason of the device's own: it cannot gather the payload, scatter
    /// the answer, or carry out what is local. The failure is reported once all earlier work
    /// requests are complete.
    pub fn abort(&mut self, id: u32) {
        if let Some(place) = self.slots.iter().position(|slot| slot.id == id) {
            self.set_fault(self.first + place as u64, Status::Aborted);
        }
    }

    /// Fails the oldest work request that is not complete.
    fn fail(&mut self, status: Status) {
        self.set_fault(self.first + self.settled as u64, status);
    }

    fn set_fault(&mut self, seq: u64, status: Status) {
        if self.fault.is_none_or(|fault| seq < fault.seq) {
            self.fault = Some(Fault { seq, status });
        }
        if self.is_failing() {
            self.persistence.start_over();
        }
    }

    /// Whether nothing but a failure is to come.
    #[inline]
    fn is_failing(&self) -> bool {
        self.closed || self.fault.is_some_and(|fault| fault.seq <= self.first + self.settled as u64)
    }

    /// The work request of this number.
    fn slot(&self, seq: u64) -> Option<&Slot> {
        self.slots.get(usize::try_from(seq.checked_sub(self.first)?).ok()?)
    }

    /// How many PSNs were sent and are not acknowledged.
    #[inline]
    const fn in_flight(&self) -> u32 {
        self.frontier.offset_from(self.una)
    }

    /// Whether an acknowledgement was asked for that is outstanding.
    #[inline]
    fn awaits(&self) -> bool {
        (1..=self.in_flight()).contains(&self.asked.offset_from(self.una))
    }

    /// The peer says that queues on the way to it are long.
    pub fn notified(&mut self) {
        self.window.notified(self.frontier);
    }

    /// Counts the work requests that are complete.
    #[inline]
    fn settle(&mut self) {
        while let Some(slot) = self.slots.get(self.settled) {
            let complete = match slot.work {
                Work::Local { done } => done,
                Work::Message(_) => !self.una.is_before(slot.end()),
            };
            if !complete {
                return;
            }
            self.settled += 1;
        }
    }

    /// All before `una` is acknowledged, and the responder counts so many messages until there.
    #[inline]
    fn align(&mut self, msn: u32) {
        if self.counts_credits {
            let next = self.slots.get(self.settled).map_or(self.ssn, |slot| slot.ssn);
            self.divisions = msn.wrapping_add(1).wrapping_sub(next) & 0xff_ffff;
        }
    }

    /// Takes the credits of an acknowledgement (section 9.7.7.2). The limit never falls.
    fn grant(&mut self, msn: u32, code: u8) {
        if !self.counts_credits {
            return;
        }
        self.lsn = credits(code).map(|credits| {
            let limit = Psn::new(msn.wrapping_add(credits));
            match self.lsn.map(Psn::new) {
                Some(before) if limit.is_before(before) => before.get(),
                _ => limit.get(),
            }
        });
    }
}
