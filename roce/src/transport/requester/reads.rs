//! RDMA Reads and atomic operations that are outstanding, and how much of their answers is asked
//! for at once.
//!
//! A responder answers each request to its end, and ignores that the requester goes back meanwhile:
//! when a packet of an answer is lost, all that follow it are sent for nothing. So the requester
//! asks for everything at once only until the first loss. From then on a window limits how many
//! packets of answers are under way: a loss halves it, answers let it grow, and an RDMA Read that
//! is longer is divided into several requests, each of which counts as one that is outstanding.
//!
//! A request that is repeated may be divided as well: IBTA vol. 1 section 9.7.5.1.5 allows to ask
//! for any part of the former range. Such parts stay divided, since the responder may have missed
//! the former request, and then knows each part as a request of its own. They are asked for one
//! after another, each when the one before is answered, since some responders that know the former
//! request take the start of its last repetition for its start.

use alloc::collections::VecDeque;

use crate::Psn;

/// The window's lower limit, in packets.
const MIN_WINDOW: u32 = 16;

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
    /// How many packets may be under way; `u32::MAX` until the first loss.
    window: u32,
    /// How many packets came since the window grew.
    arrived: u32,
}

impl Reads {
    pub fn with_capacity(questions: usize) -> Reads {
        Reads { questions: VecDeque::with_capacity(questions), psns: 0, window: u32::MAX, arrived: 0 }
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
        // It is none of these if nothing is free: `left` is not 0, and a quarter is 4 at least.
        (count == left || under_way == 0 || count >= self.window / 4).then_some(count)
    }

    /// A new question was sent.
    #[inline]
    pub fn push(&mut self, seq: u64, psn: Psn, packets: u32) {
        self.psns += packets;
        self.questions.push_back(Question { seq, psn, packets, part: false, later: false });
    }

    /// How many packets from `psn` on to ask for again; `None` if that has to wait.
    #[cold]
    pub fn again(&mut self, psn: Psn, una: Psn) -> Option<u32> {
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

    /// So many packets of the oldest question's answer came, `whole` if these were the last.
    #[inline]
    pub fn answered(&mut self, packets: u32, whole: bool) {
        self.psns = self.psns.saturating_sub(packets);
        if whole {
            self.questions.pop_front();
        }
        if self.window < u32::MAX {
            self.grow(packets);
        }
    }

    /// The window grows by an eighth when as many packets came as it lets be under way.
    #[cold]
    fn grow(&mut self, packets: u32) {
        self.arrived = self.arrived.saturating_add(packets);
        if self.arrived >= self.window {
            self.arrived = 0;
            self.window = self.window.saturating_add(self.window / 8);
        }
    }

    /// An answer was lost.
    #[cold]
    pub fn lost(&mut self) {
        if !self.is_empty() {
            self.window = (self.window.min(self.psns) / 2).max(MIN_WINDOW);
            self.arrived = 0;
        }
    }
}
