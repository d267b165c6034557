//! RDMA Reads and atomic operations that are outstanding, and how much of their answers is asked
//! for at once.
//!
//! A responder answers each request to its end, and ignores that the requester goes back meanwhile:
//! when a packet of an answer is lost, all that follow it are sent for nothing. And answers that
//! are asked for fill queues, as packets of Sends do. So a window limits how many packets of
//! answers are under way. At first it doubles with each round trip, until everything is asked for
//! at once. It is reduced when an answer takes longer to begin than the window of Sends allows a
//! round trip, and halved by a loss; from then on it grows slowly. An RDMA Read that is longer is
//! divided into several requests, each of which counts as one that is outstanding.
//!
//! A request that is repeated may be divided as well: IBTA vol. 1 section 9.7.5.1.5 allows to ask
//! for any part of the former range. Such parts stay divided, since the responder may have missed
//! the former request, and then knows each part as a request of its own. They are asked for one
//! after another, each when the one before is answered, since some responders that know the former
//! request take the start of its last repetition for its start.

use alloc::collections::VecDeque;

use platform::Instant;

use super::window::Limit;
use crate::Psn;

/// Losses make the window no smaller, in packets.
const LOSSY: u32 = 16;
/// Nor do answers that begin late.
const LATE: u32 = 2;

/// A request that was sent and is not answered in full: an atomic operation's, or an RDMA Read's
/// for some of its packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    /// The number of its work request.
    pub seq: u64,
    /// The PSNs of its answer.
    pub psn: Psn,
    pub packets: u32,
    /// It is a part of a former request, whose answer does not say that it ends where this ends.
    pub part: bool,
    /// It follows another part of the same former request.
    later: bool,
}

impl Question {
    /// The PSN behind its last.
    pub const fn end(&self) -> Psn {
        self.psn.add(self.packets)
    }
}

#[derive(Debug)]
pub(super) struct Reads {
    /// In the order of their PSNs.
    questions: VecDeque<Question>,
    /// The PSNs of their answers that are missing.
    psns: u32,
    /// How many packets may be under way, and at first.
    window: u32,
    first: u32,
    /// It was not reduced yet, and grows by each packet that came.
    fast: bool,
    /// The request whose answer's begin is awaited, to measure how long it takes.
    probe: Option<(Psn, Instant)>,
    /// It was reduced when this was the last request, which is not answered yet.
    reduced: Option<Psn>,
    /// How many packets came since the window grew.
    arrived: u32,
}

impl Reads {
    /// Room for so many; `first` packets may be under way at first.
    pub fn new(questions: usize, first: u32) -> Reads {
        let first = first.max(LATE);
        Reads {
            questions: VecDeque::with_capacity(questions),
            psns: 0,
            window: first,
            first,
            fast: true,
            probe: None,
            reduced: None,
            arrived: 0,
        }
    }

    /// Nothing has been under way for longer than a timeout: others may have filled the path.
    pub fn begin_anew(&mut self) {
        (self.window, self.fast) = (self.window.min(self.first), true);
    }

    /// Makes room for so many.
    pub fn reserve(&mut self, questions: usize) {
        self.questions.reserve(questions.saturating_sub(self.questions.len()));
    }

    pub fn len(&self) -> usize {
        self.questions.len()
    }

    pub fn is_empty(&self) -> bool {
        self.questions.is_empty()
    }

    /// The oldest.
    pub fn front(&self) -> Option<&Question> {
        self.questions.front()
    }

    /// How many packets of answers are missing.
    pub const fn psns(&self) -> u32 {
        self.psns
    }

    /// How many of the missing PSNs of answers, from `una` on, are before `end`.
    #[cold]
    pub fn psns_before(&self, end: Psn, una: Psn) -> u32 {
        let limit = end.offset_from(una);
        let missing = |question: &Question| {
            let end = question.end().offset_from(una).min(limit);
            let start = if question.psn.is_before(una) { 0 } else { question.psn.offset_from(una) };
            end.saturating_sub(start)
        };
        self.questions.iter().map(missing).sum()
    }

    /// The place of the question whose answer has this PSN. `una` is the oldest PSN that is not
    /// acknowledged.
    fn place(&self, psn: Psn, una: Psn) -> Option<usize> {
        let ahead = psn.distance_from(una);
        let behind = self.questions.partition_point(|question| question.psn.distance_from(una) <= ahead);
        let place = behind.checked_sub(1)?;
        let question = self.questions.get(place)?;
        (psn.offset_from(question.psn) < question.packets).then_some(place)
    }

    /// Whether an answer with this PSN is awaited.
    pub fn asks_for(&self, psn: Psn, una: Psn) -> bool {
        self.place(psn, una).is_some()
    }

    /// How many of a request's `left` packets to ask for while `under_way` packets are under way:
    /// all, or a fair part of the window; `None` if that much of the window is not free.
    #[inline]
    pub fn share(&self, left: u32, under_way: u32) -> Option<u32> {
        let count = left.min(self.window.saturating_sub(under_way));
        // It is none of these if nothing is free, since `left` is not 0.
        (count == left || under_way == 0 || count >= (self.window / 4).max(1)).then_some(count)
    }

    /// A new question was sent.
    #[inline]
    pub fn push(&mut self, seq: u64, psn: Psn, packets: u32, now: Instant) {
        if self.probe.is_none() {
            self.probe = Some((psn, now));
        }
        self.psns += packets;
        self.questions.push_back(Question { seq, psn, packets, part: false, later: false });
    }

    /// How many packets from `psn` on to ask for again; `None` if that has to wait.
    #[cold]
    pub fn again(&mut self, psn: Psn, una: Psn) -> Option<u32> {
        // An answer that comes may be that of the former request.
        self.probe = None;
        let under_way = psn.offset_from(una);
        let place = self.place(psn, una)?;
        let question = *self.questions.get(place)?;
        if under_way > 0 && (question.later || psn != question.psn) {
            return None;
        }
        let left = question.end().offset_from(psn);
        let count = self.share(left, under_way)?;
        if count < left {
            self.divide(place, psn.add(count), left - count);
        }
        Some(count)
    }

    /// Divides a question so that the second part has the PSNs from `psn` on.
    fn divide(&mut self, place: usize, psn: Psn, packets: u32) {
        if let Some(question) = self.questions.get_mut(place) {
            question.packets -= packets;
            let later = Question { psn, packets, later: true, ..*question };
            question.part = true;
            self.questions.insert(place + 1, later);
        }
    }

    /// So many packets of the oldest question's answer came, from `psn` on, `whole` if these were
    /// the last. Returns how many nanoseconds an answer took to begin, if this shows it.
    #[inline]
    pub fn answered(&mut self, psn: Psn, packets: u32, whole: bool, now: Instant) -> Option<u64> {
        self.psns = self.psns.saturating_sub(packets);
        if whole {
            self.questions.pop_front();
        }
        if self.reduced.is_some_and(|reduced| !psn.is_before(reduced)) {
            self.reduced = None;
        }
        if self.reduced.is_none() {
            self.grow(packets);
        }
        let (_, asked) = self.probe.filter(|(probe, _)| *probe == psn)?;
        self.probe = None;
        Some(now.as_nanos().saturating_sub(asked.as_nanos()))
    }

    /// An answer took so many nanoseconds to begin, which is more than `limit` allows.
    #[cold]
    pub fn late(&mut self, trip: u64, limit: &Limit) {
        self.fast = false;
        let window = limit.reduced(self.window, self.window.min(self.psns), trip).max(LATE);
        if self.reduced.is_none()
            && window < self.window
            && let Some(last) = self.questions.back()
        {
            self.reduced = Some(last.psn);
            self.window = window;
            self.arrived = 0;
        }
    }

    /// The window grows: by as many packets as came, until it was reduced once; then by an eighth
    /// when as many packets came as it lets be under way.
    fn grow(&mut self, packets: u32) {
        if self.fast {
            self.window = self.window.saturating_add(packets);
            return;
        }
        self.arrived = self.arrived.saturating_add(packets);
        if self.arrived >= self.window {
            self.arrived = 0;
            self.window = self.window.saturating_add((self.window / 8).max(1));
        }
    }

    /// No answer came in time.
    #[cold]
    pub fn timed_out(&mut self) {
        self.halve(LATE);
    }

    /// An answer was lost.
    #[cold]
    pub fn lost(&mut self) {
        self.halve(LOSSY);
    }

    /// Halves the window, but not below `floor`.
    fn halve(&mut self, floor: u32) {
        if !self.is_empty() {
            self.window = (self.window.min(self.psns) / 2).max(floor.min(self.window));
            (self.arrived, self.fast, self.probe) = (0, false, None);
        }
    }
}
