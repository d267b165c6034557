//! The unreliable connection (IBTA vol. 1 section 9.8.2): messages without answers.
//!
//! A message is complete for the requester when its last packet is sent. The responder drops a
//! message of which a packet is missing, and goes on with the next first packet.
//!
//! InfiniBand delivers packets once and in order; Ethernet need not. So the responder drops a
//! packet that comes late or again: one shortly before the expected PSN. Otherwise the repeated
//! packet of a short message would be that message once more.

use alloc::collections::VecDeque;

use crate::{PathMtu, Psn};

use super::message::{Executed, Execution, Open};
use super::piece::{Extra, MAX_MESSAGE, Operation, Piece};
use super::reason::Reason;
use super::requester::{Event, Message, PostError, Status, Transmit};
use super::responder::Verdict;

/// How many PSNs before the expected one mean a packet that comes late or again. A requester whose
/// packets were lost in great numbers may meet this range once; that costs as many packets more.
const LATE: u32 = 1 << 16;

/// A work request that was posted and is not complete.
#[derive(Clone, Copy, Debug)]
enum Work {
    Local { id: u32 },
    Message(Message),
}

impl Work {
    const fn id(&self) -> u32 {
        match self {
            Work::Local { id } => *id,
            Work::Message(message) => message.id,
        }
    }
}

/// Whether an unreliable connection takes this message: a Send or an RDMA Write, which invalidates
/// nothing.
pub fn admit(message: &Message) -> Result<(), PostError> {
    if message.length > MAX_MESSAGE {
        return Err(PostError::Length);
    }
    match carries_out(message.operation, message.extra) {
        true => Ok(()),
        false => Err(PostError::Operation),
    }
}

/// Whether an unreliable connection has this operation.
const fn carries_out(operation: Operation, extra: Extra) -> bool {
    operation.carries_payload() && !matches!(extra, Extra::Invalidate(_))
}

/// The sending side. It is driven like [`super::Requester`], without answers and timers.
#[derive(Debug)]
pub struct Requester {
    mtu: PathMtu,
    depth: usize,
    /// The next packet's number.
    next: Psn,
    /// Work requests in the order of posting, and whether each was aborted.
    works: VecDeque<(Work, bool)>,
    /// How many at the head are sent to their end.
    sent: usize,
    /// Packets of the work request behind them that are sent.
    packets: u32,
    /// The first work request that was aborted, counted from the head.
    fault: Option<usize>,
    draining: bool,
    closed: bool,
}

impl Requester {
    /// A requester whose first packet is `psn`, with room for `depth` work requests.
    pub fn new(psn: Psn, mtu: PathMtu, depth: u16) -> Requester {
        Requester {
            mtu,
            depth: depth.into(),
            next: psn,
            works: VecDeque::with_capacity(depth.into()),
            sent: 0,
            packets: 0,
            fault: None,
            draining: false,
            closed: false,
        }
    }

    /// Takes a work request that [`admit`] admits. A fence has no meaning, since there are no RDMA
    /// Reads.
    pub fn post(&mut self, message: Message) -> Result<(), PostError> {
        admit(&message)?;
        self.push(Work::Message(message))
    }

    /// Takes a work request that the device carries out by itself.
    pub fn post_local(&mut self, id: u32) -> Result<(), PostError> {
        self.push(Work::Local { id })
    }

    fn push(&mut self, work: Work) -> Result<(), PostError> {
        if self.closed || self.fault.is_some() {
            return Err(PostError::Closed);
        }
        if self.works.len() >= self.depth {
            return Err(PostError::Full);
        }
        self.works.push_back((work, false));
        Ok(())
    }

    /// The next thing to send or to carry out; a piece has at most `max_packets` packets. Take the
    /// events once it is sent.
    pub fn transmit(&mut self, max_packets: u32) -> Option<Transmit> {
        let starting = self.packets == 0;
        if self.closed || self.fault.is_some_and(|fault| fault <= self.sent) || (self.draining && starting) {
            return None;
        }
        let message = match *self.works.get(self.sent)? {
            (Work::Message(message), _) => message,
            (Work::Local { id }, _) => {
                self.sent += 1;
                return Some(Transmit::Local { id });
            }
        };
        let left = message.operation.psns(self.mtu, message.length).saturating_sub(self.packets);
        let count = left.min(max_packets.max(1));
        let (piece, offset) = message.piece(self.mtu, self.next, self.packets, count, count == left);
        self.next = self.next.add(count);
        self.packets += count;
        if piece.last {
            self.sent += 1;
            self.packets = 0;
        }
        // Nothing is acknowledged.
        let piece = Piece { ack_request: false, ..piece };
        Some(Transmit::Piece { id: message.id, offset, piece })
    }

    /// Takes back the piece that [`Requester::transmit`] returned last, because it could not be
    /// sent; it is returned again. To be called before [`Requester::poll`].
    pub fn take_back(&mut self, piece: &Piece) {
        if piece.last {
            self.sent = self.sent.saturating_sub(1);
            if let Some((Work::Message(message), _)) = self.works.get(self.sent) {
                self.packets = self.mtu.packets(message.length);
            }
        }
        self.packets = self.packets.saturating_sub(piece.packets);
        self.next = piece.psn;
    }

    /// The next event.
    pub fn poll(&mut self) -> Option<Event> {
        if self.closed {
            return None;
        }
        if self.fault == Some(0) {
            self.closed = true;
            let id = self.pop()?;
            return Some(Event::Failed { id, status: Status::Aborted });
        }
        if self.sent == 0 {
            return None;
        }
        let id = self.pop()?;
        Some(Event::Completed { id })
    }

    /// As [`super::Requester::abort`].
    pub fn abort(&mut self, id: u32) {
        let Some(place) = self.works.iter().position(|(work, _)| work.id() == id) else { return };
        self.works[place].1 = true;
        self.fault = Some(self.fault.map_or(place, |fault| fault.min(place)));
    }

    /// Goes on after a work request has failed, where the device's queue pair survives that. Of a
    /// message that was begun nothing more is sent, so the peer drops it.
    pub fn resume(&mut self) {
        self.closed = false;
        self.packets = 0;
    }

    /// As [`super::Requester::flush`].
    pub fn flush(&mut self) -> Option<u32> {
        self.closed = true;
        self.pop()
    }

    fn pop(&mut self) -> Option<u32> {
        let (work, _) = self.works.pop_front()?;
        self.sent = self.sent.saturating_sub(1);
        self.fault = match self.fault {
            // Where the queue pair survives, the next aborted one fails as well.
            Some(0) => self.works.iter().position(|(_, aborted)| *aborted),
            fault => fault.map(|fault| fault - 1),
        };
        Some(work.id())
    }

    /// As [`super::Requester::drain`].
    pub fn drain(&mut self, draining: bool) {
        self.draining = draining;
    }

    /// As [`super::Requester::is_drained`].
    pub const fn is_drained(&self) -> bool {
        self.draining && self.sent == 0 && self.packets == 0
    }

    /// How many work requests were posted and are not complete.
    pub fn len(&self) -> usize {
        self.works.len()
    }

    /// Whether all work requests are complete.
    pub fn is_empty(&self) -> bool {
        self.works.is_empty()
    }

    /// Whether there is room for another work request.
    pub fn has_room(&self) -> bool {
        self.works.len() < self.depth
    }

    /// The PSN of the packet to be sent next.
    pub const fn next_psn(&self) -> Psn {
        self.next
    }
}

/// The receiving side. It is driven like [`super::Responder`], without answers: it never returns
/// [`Verdict::Refused`], and the device drops what it cannot carry out.
#[derive(Debug)]
pub struct Responder {
    mtu: PathMtu,
    expected: Psn,
    open: Option<Open>,
    incomplete: u64,
}

impl Responder {
    /// A responder that expects `psn` first, for a path of that MTU.
    pub const fn new(psn: Psn, mtu: PathMtu) -> Responder {
        Responder { mtu, expected: psn, open: None, incomplete: 0 }
    }

    /// The PSN expected next.
    pub const fn expected(&self) -> Psn {
        self.expected
    }

    /// How many messages were begun and dropped. The receive of such a message is used by the next.
    pub const fn incomplete(&self) -> u64 {
        self.incomplete
    }

    /// Judges a packet (section 9.8.2.2).
    pub fn receive(&mut self, piece: &Piece) -> Verdict {
        if (1..=LATE).contains(&self.expected.offset_from(piece.psn)) {
            return Verdict::Nothing(Reason::DuplicateRequest);
        }
        let gap = piece.psn != self.expected;
        if gap || piece.first {
            self.give_up();
        }
        self.expected = piece.psn;
        match self.judge(piece) {
            Ok(execution) => Verdict::Execute(execution),
            Err(reason) => {
                self.give_up();
                self.expected = self.expected.add(piece.packets);
                Verdict::Nothing(if gap { Reason::OutOfSequence } else { reason })
            }
        }
    }

    fn judge(&self, piece: &Piece) -> Result<Execution, Reason> {
        if !carries_out(piece.operation, piece.extra) {
            return Err(Reason::UnsupportedRequest);
        }
        if self.open.is_none() && !piece.first {
            return Err(Reason::IncompleteMessage);
        }
        Execution::of_payload(self.open, piece, self.mtu)
    }

    /// Takes the outcome of an execution. What was not carried out ends its message.
    pub fn executed(&mut self, execution: Execution, outcome: Executed) {
        if execution.psn != self.expected {
            return;
        }
        self.expected = self.expected.add(execution.psns);
        match outcome {
            Executed::Done(_) => self.open = execution.open(),
            Executed::NotReady(_) | Executed::Refused(_) => {
                self.open = None;
                self.incomplete += 1;
            }
        }
    }

    fn give_up(&mut self) {
        self.incomplete += u64::from(self.open.take().is_some());
    }
}
