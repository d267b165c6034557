//! The responder of a reliable connection (IBTA vol. 1 sections 9.7.1 to 9.7.5).
//!
//! The device passes each request packet to [`Responder::receive`], carries out what that returns,
//! and reports the outcome to [`Responder::executed`]. Then it pulls the answers from
//! [`Responder::respond`] until there are none. It may pull them later, after further requests:
//! acknowledgements then cover several.

use alloc::collections::VecDeque;

use platform::planted::{Bug, planted};

use crate::wire::aeth::{self, Nak, Syndrome};
use crate::{PathMtu, Psn};

use super::HALF;
use super::answer::{Answer, Body};
use super::code::{NO_CREDITS, credit_code};
use super::message::{Executed, Execution, Open};
use super::piece::{Extra, MAX_MESSAGE, Operation, Piece, Remote};
use super::reason::Reason;

/// What to do about a request packet.
#[derive(Debug)]
#[must_use]
pub enum Verdict {
    /// Carry this out, and report it to `executed`.
    Execute(Execution),
    /// Nothing. Count this reason, if there is one; it may be that an answer is due.
    Nothing(Reason),
    /// Nothing: the request breaks the protocol. The answer that says so is due, and the device
    /// moves the queue pair to the error state. As long as the device passes on the peer's packets
    /// after that, the answer is repeated for a peer that has not received it.
    Refused(Reason),
}

/// An answer, and where the bytes come from if it is an RDMA Read's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// The answer.
    pub answer: Answer,
    /// The memory to gather the payload from, for an RDMA Read's answer. The length is the
    /// payload's.
    pub gather: Option<Remote>,
}

/// The NAK code of a refusal (IBTA vol. 1 section 9.7.5.2, table 44).
pub(super) const fn nak(reason: Reason) -> Nak {
    match reason {
        Reason::RespRemoteAccessErrors => Nak::RemoteAccessError,
        Reason::RespOperationalError => Nak::RemoteOperationalError,
        _ => Nak::InvalidRequest,
    }
}

/// An RDMA Read or atomic operation that was carried out. It can be answered again.
#[derive(Clone, Copy, Debug)]
struct Past {
    psn: Psn,
    /// So many of its PSNs at the start lie more than half the circle before the one expected, and
    /// will not be asked for again.
    gone: u32,
    /// The MSN of its answers.
    msn: u32,
    what: PastKind,
    /// Its answer is due.
    due: Option<Due>,
    /// Its answer has been sent to the end once.
    answered: bool,
    /// What is due was sent before: its answer had been sent to the end when it was asked for
    /// again.
    repeats: bool,
    /// A repetition from this PSN on could not be read, which the requester has to hear in case it
    /// waits for it.
    refused: Option<(Psn, Syndrome)>,
}

#[derive(Clone, Copy, Debug)]
enum PastKind {
    Read(Remote),
    Atomic(u64),
}

/// The part of an answer that is due, in bytes of the RDMA Read; zeroes for an atomic operation.
#[derive(Clone, Copy, Debug)]
struct Due {
    start: u32,
    next: u32,
    end: u32,
}

/// What is due after all answers of RDMA Reads and atomic operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tail {
    Nothing,
    /// An acknowledgement of all that was carried out.
    Ack,
    /// A refusal with this PSN.
    Nak(Psn, Syndrome),
}

/// Why a piece is not carried out.
enum Stop {
    /// It was; count this reason.
    Repeated(Reason),
    /// It breaks the protocol.
    Refused(Reason),
}

/// A responder's state.
#[derive(Debug)]
pub struct Responder {
    mtu: PathMtu,
    expected: Psn,
    /// Messages completed; 24 bits.
    msn: u32,
    open: Option<Open>,
    /// The packet expected has been asked for by a NAK, so that later packets do not bring another
    /// (section 9.7.5.2.4).
    asked: bool,
    /// The PSN that it has refused, and how. Nothing from there on is carried out.
    refusal: Option<(Psn, Syndrome)>,
    tail: Tail,
    /// The latest RDMA Reads and atomic operations, the oldest first; at most `resources`.
    past: VecDeque<Past>,
    resources: usize,
    /// No entry of `past` before this one has an answer that is due.
    resume: usize,
}

impl Responder {
    /// A responder that expects `psn` first, for a path of that MTU, with room for `resources` RDMA
    /// Reads and atomic operations at once (`max_dest_rd_atomic`).
    pub fn new(psn: Psn, mtu: PathMtu, resources: u8) -> Responder {
        Responder {
            mtu,
            expected: psn,
            msn: 0,
            open: None,
            asked: false,
            refusal: None,
            tail: Tail::Nothing,
            past: VecDeque::with_capacity(resources.into()),
            resources: resources.into(),
            resume: 0,
        }
    }

    /// Changes the room for RDMA Reads and atomic operations. The latest ones stay.
    pub fn set_resources(&mut self, resources: u8) {
        self.resources = resources.into();
        while self.past.len() > self.resources {
            self.forget_oldest();
        }
        self.past.reserve(self.resources.saturating_sub(self.past.len()));
    }

    /// The PSN expected next.
    pub const fn expected(&self) -> Psn {
        self.expected
    }

    /// How many messages were completed; 24 bits.
    pub const fn msn(&self) -> u32 {
        self.msn
    }

    /// Whether it has refused a request and answers nothing new.
    pub const fn is_closed(&self) -> bool {
        self.refusal.is_some()
    }

    /// Whether a Send or RDMA Write that begins with this PSN is the next message. A device that
    /// passes whole messages from one NIC to another may then carry it out without
    /// [`Responder::receive`], which would find no fault with it, and report it to
    /// [`Responder::passed`].
    #[inline]
    pub fn expects(&self, psn: Psn) -> bool {
        psn == self.expected && self.open.is_none() && self.refusal.is_none()
    }

    /// A Send or RDMA Write of so many packets that was expected ([`Responder::expects`]) is
    /// carried out, and its requester needs no acknowledgement.
    #[inline]
    pub fn passed(&mut self, packets: u32) {
        self.advance(packets, true);
        self.tail = Tail::Nothing;
    }

    /// So many PSNs were carried out.
    #[inline]
    fn advance(&mut self, psns: u32, last: bool) {
        self.asked = false;
        if self.past.front().is_some_and(|past| past.is_behind(self.expected, psns)) {
            self.forget_behind(psns);
        }
        self.expected = self.expected.add(psns);
        if last {
            self.msn = self.msn.wrapping_add(1) & 0xff_ffff;
        }
    }

    /// Forgets what will lie more than half the circle before the expected PSN when that has moved
    /// on by so many: a PSN says nothing about it any more. A requester has at most half the circle
    /// outstanding, counted from the oldest answer that it misses, so it has the answers to that.
    /// Of an RDMA Read that is longer the rest stays, whether or not it has been answered.
    #[cold]
    fn forget_behind(&mut self, psns: u32) {
        while let Some(past) = self.past.front_mut().filter(|past| past.is_behind(self.expected, psns)) {
            let behind = self.expected.offset_from(past.first()) + psns - HALF;
            if behind < past.packets(self.mtu) - past.gone {
                past.gone += behind;
                return;
            }
            self.forget_oldest();
        }
    }

    /// Judges a request packet whose opcode the device does not know (section 9.7.4.1.2): by its
    /// PSN alone.
    pub fn receive_unknown(&mut self, psn: Psn) -> Verdict {
        if let Some(refusal) = self.refusal {
            return Verdict::Nothing(self.refuse_again(refusal, psn));
        }
        match psn.distance_from(self.expected) {
            1.. => self.gap(),
            0 => self.refuse(Reason::UnsupportedRequest),
            _ => Verdict::Nothing(Reason::ForgottenRequest),
        }
    }

    /// Asks once for the packet that is missing (section 9.7.5.2.4).
    #[cold]
    fn gap(&mut self) -> Verdict {
        if !self.asked {
            self.asked = true;
            self.tail = Tail::Nak(self.expected, Syndrome::Nak(Nak::PsnSequenceError));
        }
        Verdict::Nothing(Reason::OutOfSequence)
    }

    /// Judges a request packet (section 9.7.1.2 and figure 83: expected, duplicate, or behind a
    /// gap).
    pub fn receive(&mut self, piece: &Piece) -> Verdict {
        if let Some(refusal) = self.refusal {
            return Verdict::Nothing(self.repeat_closed(refusal, piece));
        }
        let mut distance = piece.psn.distance_from(self.expected);
        if planted(Bug::PsnReversed) {
            distance = -distance;
        }
        if distance > 0 {
            return self.gap();
        }
        if planted(Bug::MessageTwice) && distance < 0 && piece.operation.carries_payload() {
            return self.receive(&Piece { psn: self.expected, ..*piece });
        }
        let verdict =
            if distance < 0 { self.behind(piece, distance.unsigned_abs()) } else { self.judge(piece) };
        match verdict {
            Ok(execution) => Verdict::Execute(execution),
            Err(Stop::Repeated(reason)) => Verdict::Nothing(reason),
            Err(Stop::Refused(reason)) => self.refuse(reason),
        }
    }

    /// Judges a piece that begins so many PSNs before the one expected.
    #[cold]
    fn behind(&mut self, piece: &Piece, behind: u32) -> Result<Execution, Stop> {
        if !piece.operation.carries_payload() || piece.packets <= behind {
            return Err(Stop::Repeated(self.repeat(piece)));
        }
        // The first packets are known, the others are not: repeated pieces may be cut in other
        // places. Such packets are full, since others follow.
        let known = behind.checked_mul(self.mtu.bytes());
        let length = known.and_then(|known| piece.length.checked_sub(known));
        let length = length.ok_or(Stop::Refused(Reason::BadPacketLength))?;
        self.judge(&Piece {
            psn: self.expected,
            packets: piece.packets - behind,
            length,
            first: false,
            remote: None,
            ..*piece
        })
    }

    /// Checks the piece that was expected. It is inlined because an execution is long to copy.
    #[inline(always)]
    fn judge(&self, piece: &Piece) -> Result<Execution, Stop> {
        if piece.operation.carries_payload() {
            // An RDMA Write invalidates nothing.
            let write = piece.operation == Operation::Write;
            if write && piece.last && matches!(piece.extra, Extra::Invalidate(_)) {
                return Err(Stop::Refused(Reason::UnsupportedRequest));
            }
            return Execution::of_payload(self.open, piece, self.mtu).map_err(Stop::Refused);
        }
        self.judge_question(piece).map_err(Stop::Refused)
    }

    /// Checks an RDMA Read or atomic operation.
    fn judge_question(&self, piece: &Piece) -> Result<Execution, Reason> {
        if self.open.is_some() || !(piece.first && piece.last) {
            return Err(Reason::BadOpcodeSequence);
        }
        if !piece.length_fits(self.mtu) {
            return Err(Reason::BadPacketLength);
        }
        let remote = piece.remote.ok_or(Reason::UnsupportedRequest)?;
        if remote.length > MAX_MESSAGE {
            return Err(Reason::RespLocalLengthError);
        }
        if self.resources == 0 {
            return Err(Reason::UnsupportedRequest);
        }
        // An answer that has been given once may be repeated no more: its requester has it, or it
        // would not have sent this request (section 9.7.7.1).
        let full = self.past.len() >= self.resources;
        if full && self.past.front().is_some_and(|oldest| !oldest.answered) {
            return Err(Reason::TooManyReads);
        }
        let execution = Execution::new(piece, self.mtu, remote, 0);
        Ok(Execution { extra: Extra::None, solicited: false, ..execution })
    }

    /// Answers a request that was carried out before (section 9.7.5.1.5). Returns the reason to
    /// count.
    fn repeat(&mut self, piece: &Piece) -> Reason {
        if piece.operation.carries_payload() {
            if self.tail == Tail::Nothing && !planted(Bug::AckForgotten) {
                self.tail = Tail::Ack;
            }
            return Reason::DuplicateRequest;
        }
        match self.find_past(piece) {
            Some(()) => Reason::DuplicateRequest,
            None => Reason::ForgottenRequest,
        }
    }

    /// Makes the answer of a past request due again, as far as the repetition asks for it.
    fn find_past(&mut self, piece: &Piece) -> Option<()> {
        // The entries are in the order of their PSNs.
        let expected = self.expected;
        let distance = piece.psn.distance_from(expected);
        let after = self.past.partition_point(|past| past.first().distance_from(expected) <= distance);
        let place = after.checked_sub(1)?;
        let mtu = u64::from(self.mtu.bytes());
        let past = self.past.get_mut(place)?;
        let skipped = u64::from(piece.psn.offset_from(past.psn)) * mtu;
        let due = match (piece.operation, past.what) {
            (Operation::Read, PastKind::Read(whole)) => {
                // Any part of the former range may be asked for, from the packet on that is missing
                // (section 9.7.5.1.5): each packet has its place.
                let part = piece.remote?;
                let start = u32::try_from(skipped).ok()?;
                let end = start.checked_add(part.length)?;
                let same = part.key == whole.key && part.addr == whole.addr.wrapping_add(skipped);
                let inside = end <= whole.length && (start < whole.length || whole.length == 0);
                if !same || !inside {
                    return None;
                }
                // What is already due to the end stays due.
                Due { start, next: start, end: past.due.map_or(end, |due| due.end.max(end)) }
            }
            (operation, PastKind::Atomic(_)) if operation.is_atomic() && skipped == 0 => {
                Due { start: 0, next: 0, end: 0 }
            }
            _ => return None,
        };
        (past.due, past.repeats) = (Some(due), past.answered);
        self.resume = self.resume.min(place);
        Some(())
    }

    /// Takes the outcome of an execution.
    pub fn executed(&mut self, execution: Execution, outcome: Executed) {
        // Anything else was overtaken by another execution.
        if self.is_closed() || execution.psn != self.expected {
            return;
        }
        match outcome {
            Executed::Done(original) => self.done(&execution, original),
            Executed::NotReady(timer) => {
                self.asked = true;
                self.tail = Tail::Nak(self.expected, Syndrome::RnrNak(timer & 31));
            }
            Executed::Refused(reason) => drop(self.refuse(reason)),
        }
    }

    #[inline]
    fn done(&mut self, execution: &Execution, original: u64) {
        self.open = execution.open();
        self.advance(execution.psns, execution.last);
        if execution.operation.carries_payload() {
            let ack = execution.ack_request || self.tail == Tail::Ack;
            self.tail = if ack { Tail::Ack } else { Tail::Nothing };
            return;
        }
        let (what, end) = match execution.operation {
            Operation::Read => (PastKind::Read(execution.remote), execution.remote.length),
            _ => (PastKind::Atomic(original), 0),
        };
        if self.past.len() >= self.resources {
            self.forget_oldest();
        }
        let due = Some(Due { start: 0, next: 0, end });
        let psn = execution.psn;
        let (gone, msn, answered, repeats, refused) = (0, self.msn, false, false, None);
        self.past.push_back(Past { psn, gone, msn, what, due, answered, repeats, refused });
        // The answer acknowledges all before it.
        self.tail = Tail::Nothing;
    }

    fn forget_oldest(&mut self) {
        if self.past.pop_front().is_some() {
            self.resume = self.resume.saturating_sub(1);
        }
    }

    #[cold]
    fn refuse(&mut self, reason: Reason) -> Verdict {
        self.close(self.expected, reason);
        Verdict::Refused(reason)
    }

    fn close(&mut self, psn: Psn, reason: Reason) {
        let refusal = (psn, Syndrome::Nak(nak(reason)));
        self.refusal = Some(refusal);
        self.tail = Tail::Nak(refusal.0, refusal.1);
    }

    /// Ends the answers because the bytes of one, an RDMA Read's, could not be read: its PSN is
    /// refused for `reason`, as [`Executed::Refused`] would have been, and nothing after it is
    /// answered.
    ///
    /// A repetition is refused, too, but ends nothing, and `false` is returned: the network may
    /// have duplicated the request, and its memory be withdrawn since the requester has the answer.
    /// Such a requester ignores the refusal, whose PSN lies before those that it waits for.
    #[must_use]
    pub fn unreadable(&mut self, answer: &Answer, reason: Reason) -> bool {
        let of = self.past.iter_mut().rev().find(|past| !answer.psn.is_before(past.first()));
        if let Some(past) = of
            && past.repeats
        {
            (past.due, past.refused) = (None, Some((answer.psn, Syndrome::Nak(nak(reason)))));
            return false;
        }
        while self.past.back().is_some_and(|past| answer.psn.is_before(past.first())) {
            self.past.pop_back();
        }
        // The Read itself stays: its first packets may be asked for again.
        self.past.iter_mut().for_each(|past| past.due = None);
        self.resume = self.past.len();
        self.close(answer.psn, reason);
        true
    }

    /// Answers a packet that comes after the refusal. Its requester does not know of the refusal
    /// yet: the answer was lost, or is still under way. Returns the reason to count.
    #[cold]
    fn repeat_closed(&mut self, refusal: (Psn, Syndrome), piece: &Piece) -> Reason {
        if !piece.operation.carries_payload() && piece.psn.is_before(refusal.0) {
            return self.repeat(piece);
        }
        self.refuse_again(refusal, piece.psn)
    }

    /// Makes the refusal due again if a packet with this PSN shows that the requester lacks it: it
    /// sends the refused packet again, or packets before, which the refusal acknowledges. Later
    /// packets show nothing.
    fn refuse_again(&mut self, (refused, syndrome): (Psn, Syndrome), psn: Psn) -> Reason {
        if refused.is_before(psn) {
            return Reason::Closed;
        }
        self.tail = Tail::Nak(refused, syndrome);
        Reason::DuplicateRequest
    }

    /// The next answer, in the order of PSNs; `None` if no answer is due. An RDMA Read's answer
    /// covers at most `max_packets` packets, 1 for a link. `receives` is the number of receives
    /// that are posted and not taken, for end-to-end credits (section 9.7.7.2), or `None` if they
    /// are not counted, as with a shared receive queue.
    pub fn respond(&mut self, max_packets: u32, receives: Option<u32>) -> Option<Response> {
        while let Some(past) = self.past.get_mut(self.resume) {
            if let Some((psn, syndrome)) = past.refused.take() {
                return Some(acknowledge(psn, syndrome, self.msn));
            }
            if let Some(due) = past.due {
                let credits = credit_syndrome(self.open, receives);
                return Some(past.answer(due, self.mtu, max_packets, credits));
            }
            self.resume += 1;
        }
        let (psn, syndrome) = match core::mem::replace(&mut self.tail, Tail::Nothing) {
            Tail::Nothing => return None,
            Tail::Ack => (self.expected.add(0xff_ffff), credit_syndrome(self.open, receives)),
            Tail::Nak(psn, syndrome) => (psn, syndrome),
        };
        Some(acknowledge(psn, syndrome, self.msn))
    }
}

/// An acknowledgement or a refusal.
fn acknowledge(psn: Psn, syndrome: Syndrome, msn: u32) -> Response {
    let aeth = Some(aeth::Repr { syndrome, msn });
    Response { answer: Answer { psn, aeth, body: Body::Acknowledge }, gather: None }
}

/// The positive acknowledgement. The credits count from the MSN on, so the receive of the message
/// that is open is one of them.
fn credit_syndrome(open: Option<Open>, receives: Option<u32>) -> Syndrome {
    Syndrome::Ack(receives.map_or(NO_CREDITS, |posted| {
        let taken = open.is_some_and(|open| open.has_receive());
        credit_code(posted.saturating_add(taken.into()))
    }))
}

impl Past {
    /// The first PSN that may be asked for again.
    #[inline]
    const fn first(&self) -> Psn {
        self.psn.add(self.gone)
    }

    /// How many PSNs its answer has.
    fn packets(&self, mtu: PathMtu) -> u32 {
        match self.what {
            PastKind::Read(whole) => mtu.packets(whole.length),
            PastKind::Atomic(_) => 1,
        }
    }

    /// Whether its first PSN will lie more than half the circle before the expected one when that
    /// has moved on by so many.
    #[inline]
    const fn is_behind(&self, expected: Psn, psns: u32) -> bool {
        expected.offset_from(self.first()) + psns > HALF
    }

    /// The next part of what is due.
    fn answer(&mut self, due: Due, mtu: PathMtu, max_packets: u32, syndrome: Syndrome) -> Response {
        let aeth = Some(aeth::Repr { syndrome, msn: self.msn });
        let whole = match self.what {
            PastKind::Read(whole) => whole,
            PastKind::Atomic(original) => {
                (self.due, self.answered) = (None, true);
                let answer = Answer { psn: self.psn, aeth, body: Body::Atomic { original } };
                return Response { answer, gather: None };
            }
        };
        let left = due.end.saturating_sub(due.next);
        let length = left.min(max_packets.max(1).saturating_mul(mtu.bytes()));
        let next = due.next.saturating_add(length);
        let (first, last) = (due.next == due.start, next >= due.end);
        self.due = (!last).then_some(Due { next, ..due });
        self.answered |= last && due.end == whole.length;
        let answer = Answer {
            psn: self.psn.add(due.next / mtu.bytes()),
            aeth: aeth.filter(|_| first || last),
            body: Body::Read { packets: mtu.packets(length), first, last, length },
        };
        let from = if planted(Bug::ReadOffset) { due.next - due.start } else { due.next };
        let addr = whole.addr.wrapping_add(from.into());
        Response { answer, gather: Some(Remote { addr, key: whole.key, length }) }
    }
}
