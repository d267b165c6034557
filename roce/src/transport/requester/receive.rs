//! What an answer means (IBTA vol. 1 sections 9.7.5.1.2 to 9.7.5.2.8 and 9.7.6.1).

use core::cmp::Ordering;

use platform::Instant;
use platform::planted::{Bug, planted};

use super::reads::Question;
use super::{Received, Requester, Status, Work, refused};
use crate::Psn;
use crate::transport::answer::{Answer, Body};
use crate::transport::piece::Operation;
use crate::transport::reason::Reason;
use crate::wire::aeth::{self, Nak, Syndrome};

impl Requester {
    /// Takes an answer.
    pub fn receive(&mut self, answer: &Answer, now: Instant) -> Received {
        if self.is_failing() {
            return Received::Dropped(Reason::Closed);
        }
        if answer.psn.offset_from(self.una) >= self.in_flight() {
            return self.out_of_place(answer);
        }
        match (answer.body, answer.aeth) {
            (Body::Acknowledge, Some(aeth)) => self.acknowledgement(answer.psn, aeth, now),
            (Body::Read { packets, last, length, .. }, aeth) => {
                self.read(answer.psn, aeth, (packets, length, last), now)
            }
            (Body::Atomic { original }, Some(aeth)) => self.atomic(answer.psn, aeth, original, now),
            (Body::Acknowledge | Body::Atomic { .. }, None) => Received::Dropped(Reason::BadAnswer),
        }
    }

    /// An answer to what is not outstanding.
    fn out_of_place(&mut self, answer: &Answer) -> Received {
        if !answer.psn.is_before(self.una) {
            return Received::Dropped(Reason::AnswerNeverAskedFor);
        }
        // The last acknowledgement may come again, with more credits.
        if let (Body::Acknowledge, Some(aeth::Repr { syndrome: Syndrome::Ack(code), msn })) =
            (answer.body, answer.aeth)
            && answer.psn.add(1) == self.una
        {
            self.grant(msn, code);
        }
        Received::Dropped(Reason::DuplicateAnswer)
    }

    fn acknowledgement(&mut self, psn: Psn, aeth: aeth::Repr, now: Instant) -> Received {
        // A NAK acknowledges all before its PSN.
        let (until, refused) = match aeth.syndrome {
            Syndrome::Ack(code) => {
                self.grant(aeth.msn, code);
                (psn.add(1), None)
            }
            Syndrome::RnrNak(_) if planted(Bug::RnrIgnored) => (psn.add(1), None),
            Syndrome::RnrNak(_) | Syndrome::Nak(Nak::PsnSequenceError) => (psn, None),
            Syndrome::Nak(nak) => (psn, Some(refused(nak))),
        };
        if !self.acknowledge(until, now) {
            self.doom = refused.map(|(status, _)| (psn, status)).or(self.doom);
            return self.go_back(Reason::ImpliedNakSeqErr, now);
        }
        match (aeth.syndrome, refused) {
            (Syndrome::RnrNak(_), _) if planted(Bug::RnrIgnored) => Received::Acknowledged,
            (_, Some((status, reason))) => {
                self.fail(status);
                Received::Refused(reason)
            }
            (Syndrome::RnrNak(timer), _) => self.not_ready(timer, now),
            (Syndrome::Nak(_), _) => self.go_back(Reason::PacketSeqErr, now),
            (Syndrome::Ack(_), _) => {
                self.align(aeth.msn);
                Received::Acknowledged
            }
        }
    }

    /// Everything before `until` is acknowledged, as far as no answer of an RDMA Read or atomic
    /// operation is missing before. Returns whether none is.
    fn acknowledge(&mut self, until: Psn, now: Instant) -> bool {
        let wanted = until.offset_from(self.una);
        let reached = self.missing().map_or(wanted, |psn| psn.offset_from(self.una).min(wanted));
        if reached > 0 {
            self.window.acknowledged(reached);
            self.advance(reached, now);
        }
        reached == wanted
    }

    /// The first PSN of the oldest answer of an RDMA Read or atomic operation that is missing.
    fn missing(&self) -> Option<Psn> {
        let psn = self.reads.front()?.psn;
        Some(if psn.is_before(self.una) { self.una } else { psn })
    }

    /// The request that an answer with this PSN belongs to, if that is the answer that is missing.
    /// All before it is then acknowledged. Otherwise what to do about the answer.
    fn answered(&mut self, psn: Psn, now: Instant) -> Result<Question, Received> {
        let (Some(missing), Some(question)) = (self.missing(), self.reads.front().copied()) else {
            return Err(Received::Dropped(Reason::AnswerNeverAskedFor));
        };
        if !self.reads.asks_for(psn, self.una) {
            return Err(Received::Dropped(Reason::AnswerNeverAskedFor));
        }
        self.acknowledge(missing, now);
        if self.is_failing() {
            return Err(Received::Dropped(Reason::Closed));
        }
        if psn != missing {
            return Err(self.go_back(Reason::ImpliedNakSeqErr, now));
        }
        Ok(question)
    }

    /// The answer makes no sense.
    fn bad_answer(&mut self) -> Received {
        self.fail(Status::BadResponse);
        Received::Refused(Reason::BadAnswer)
    }

    /// Takes the credits of an answer that carries data. Returns whether it acknowledges.
    fn take_credits(&mut self, aeth: Option<aeth::Repr>) -> bool {
        match aeth {
            None => true,
            Some(aeth::Repr { syndrome: Syndrome::Ack(code), msn }) => {
                self.grant(msn, code);
                true
            }
            Some(_) => false,
        }
    }

    /// Packets of an RDMA Read's answer: how many, their bytes, and whether the last is among them.
    fn read(
        &mut self,
        psn: Psn,
        aeth: Option<aeth::Repr>,
        (packets, length, last): (u32, u32, bool),
        now: Instant,
    ) -> Received {
        let question = match self.answered(psn, now) {
            Ok(question) => question,
            Err(other) => return other,
        };
        let Some(slot) = self.slot(question.seq).copied() else { return self.bad_answer() };
        let Work::Message(message) = slot.work else { return self.bad_answer() };
        let done = psn.offset_from(slot.psn);
        let left = question.end().offset_from(psn);
        let mtu = self.mtu.bytes();
        let offset = done.saturating_mul(mtu);
        let bytes = |packets: u32| message.length.saturating_sub(offset).min(packets.saturating_mul(mtu));
        // The first packet of an answer is not distinguished from others: after a repetition,
        // packets of the former answer may come before those of the latter, and have the same
        // bytes. An answer ends where its request does; that of a former request goes on behind a
        // part of it.
        let ends = match packets.cmp(&left) {
            Ordering::Less => !last,
            Ordering::Equal => last || question.part,
            Ordering::Greater => question.part,
        };
        let fits = packets > 0 && length == bytes(packets) && ends;
        let packets = packets.min(left);
        let length = length.min(bytes(packets));
        if message.operation != Operation::Read || !fits || !self.take_credits(aeth) {
            return self.bad_answer();
        }
        self.answer_came(psn, packets, packets == left, now);
        Received::Read { id: slot.id, offset, length }
    }

    /// So many packets of the oldest answer came, `whole` if these were the last.
    #[inline]
    fn answer_came(&mut self, psn: Psn, packets: u32, whole: bool, now: Instant) {
        if let Some(trip) = self.reads.answered(psn, packets, whole, now)
            && let Some(limit) = self.window.learn(trip)
        {
            self.reads.late(trip, &limit);
        }
        self.advance(packets, now);
    }

    fn atomic(&mut self, psn: Psn, aeth: aeth::Repr, original: u64, now: Instant) -> Received {
        let question = match self.answered(psn, now) {
            Ok(question) => question,
            Err(other) => return other,
        };
        let Some(slot) = self.slot(question.seq).copied() else { return self.bad_answer() };
        let Work::Message(message) = slot.work else { return self.bad_answer() };
        if !message.operation.is_atomic() || !self.take_credits(Some(aeth)) {
            return self.bad_answer();
        }
        self.answer_came(psn, 1, true, now);
        Received::Atomic { id: slot.id, original }
    }
}
