//! What is sent next.

use platform::Instant;

use super::{Message, Requester, Slot, Status, Work};
use crate::transport::HALF;
use crate::transport::piece::{Extra, Operation, Piece, Remote};
use crate::{PathMtu, Psn};

/// What the device shall do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Transmit {
    /// Send this.
    Piece {
        /// Of which work request.
        id: u32,
        /// Where in the message the payload begins.
        offset: u32,
        /// What to send.
        piece: Piece,
    },
    /// Carry out a work request that needs no peer.
    Local {
        /// Which one.
        id: u32,
    },
}

impl Requester {
    /// What to send next, if anything may be sent now. A piece has at most `max_packets` packets, 1
    /// for a link.
    pub fn transmit(&mut self, now: Instant, max_packets: u32) -> Option<Transmit> {
        if self.cursor >= self.slots.len() || self.closed {
            self.window.suffices();
            return None;
        }
        if self.persistence.pauses(now) {
            return None;
        }
        loop {
            let seq = self.first + self.cursor as u64;
            if self.fault.is_some_and(|fault| fault.seq <= seq) {
                return None;
            }
            let slot = *self.slots.get(self.cursor)?;
            // A new one has to wait for a fence, and does not start while the queue drains.
            let held = self.draining || (slot.fence && !self.reads.is_empty());
            let message = match slot.work {
                Work::Message(message) => message,
                Work::Local { done: true } => {
                    self.cursor += 1;
                    continue;
                }
                Work::Local { done: false } if held => return None,
                Work::Local { done: false } => {
                    self.slots.get_mut(self.cursor)?.work = Work::Local { done: true };
                    self.cursor += 1;
                    self.settle();
                    return Some(Transmit::Local { id: slot.id });
                }
            };
            if held && self.next == self.frontier && self.next == slot.psn {
                return None;
            }
            if self.una == self.frontier {
                self.begin_anew(now);
            }
            let (piece, offset) = match message.operation.carries_payload() {
                true => self.payload(&slot, &message, max_packets)?,
                false => (self.question(seq, &slot, &message, now)?, 0),
            };
            if self.next == slot.end() {
                self.cursor += 1;
            }
            self.start_timer(&piece, now);
            return Some(Transmit::Piece { id: slot.id, offset, piece });
        }
    }

    /// The work request that would be begun if [`Requester::transmit`] found that it may be.
    pub fn begins(&self) -> Option<u32> {
        let slot = self.slots.get(self.cursor)?;
        let message = matches!(slot.work, Work::Message(_));
        (message && self.next == self.frontier && self.next == slot.psn).then_some(slot.id)
    }

    /// The next piece of a Send or RDMA Write, and its offset in the message; `None` if it may not
    /// be sent yet.
    #[inline]
    fn payload(&mut self, slot: &Slot, message: &Message, max_packets: u32) -> Option<(Piece, u32)> {
        let psn = self.next;
        let left = slot.end().offset_from(psn);
        let mut count = left.min(max_packets.max(1));
        if psn == self.frontier {
            count = count.min(self.room()).min(HALF.saturating_sub(self.in_flight()));
            let limited;
            (count, limited) = self.credited(slot, message, left, count);
            if count == 0 {
                return None;
            }
            self.frontier = psn.add(count);
            if limited {
                self.limited = Some(psn);
            }
        } else {
            count = count.min(self.room()).min(self.frontier.offset_from(psn));
            if count == 0 {
                return None;
            }
        }
        self.next = psn.add(count);
        let done = psn.offset_from(slot.psn);
        let (piece, offset) = message.piece(self.mtu, psn, done, count, count == left);
        let ack_request = piece.last || self.needs_ack(psn, done, count);
        Some((Piece { ack_request, ..piece }, offset))
    }

    /// How many packets the window has room for. One may always go if no acknowledgement was asked
    /// for that is outstanding, which it then asks for: the window may have become smaller.
    #[inline]
    fn room(&mut self) -> u32 {
        let room = self.window.size().saturating_sub(self.under_way());
        if room == 0 {
            self.window.fills();
            return u32::from(!self.awaits());
        }
        room
    }

    /// Whether the responder shall acknowledge packets in the middle of a message: a few times in a
    /// window, and whenever nothing more can be sent without an acknowledgement.
    #[inline]
    fn needs_ack(&self, psn: Psn, done: u32, count: u32) -> bool {
        let every = self.window.ask_after();
        let full = self.under_way() >= self.window.size();
        let limited = self.limited.is_some_and(|limited| limited.offset_from(psn) < count);
        full || limited || done / every != done.saturating_add(count) / every
    }

    /// How many packets were sent, since it went back, that need an acknowledgement and have none.
    #[inline]
    fn under_way(&self) -> u32 {
        let sent = self.next.offset_from(self.una);
        sent.saturating_sub(match self.next == self.frontier {
            true => self.reads.psns(),
            false => self.reads.psns_before(self.next, self.una),
        })
    }

    /// Starts the timer with a packet that asks for an acknowledgement. If none has asked yet, it
    /// runs longer: the packets behind may have to wait for the link.
    #[inline]
    fn start_timer(&mut self, piece: &Piece, now: Instant) {
        if piece.ack_request {
            let awaited = self.awaits();
            self.asked = self.next;
            if !awaited || !self.persistence.times_answer() {
                self.persistence.await_answer(now, self.window.wait());
            }
            // The answers of RDMA Reads hold up the acknowledgements behind them.
            if self.reads.is_empty() {
                self.window.ask(piece.psn.add(piece.packets - 1), now);
            }
        } else if !self.persistence.times_answer() {
            self.persistence.await_answer(now, self.window.longest_wait());
        }
    }

    /// Begins when nothing is under way.
    #[inline]
    fn begin_anew(&mut self, now: Instant) {
        let idle = now.as_nanos().saturating_sub(self.idle_since.as_nanos());
        if self.window.wait().is_some_and(|wait| idle > wait) {
            self.window.begin_anew();
            self.reads.begin_anew();
        }
    }

    /// Of `count` packets, how many there are credits for, and whether it is one without a credit
    /// (section 9.7.7.2): the responder may have got a receive meanwhile, and its answer says so.
    #[inline]
    fn credited(&self, slot: &Slot, message: &Message, left: u32, count: u32) -> (u32, bool) {
        let ssn = Psn::new(slot.ssn).add(self.divisions);
        let covered = self.lsn.is_none_or(|lsn| !Psn::new(lsn).is_before(ssn));
        // An RDMA Write takes a receive with its last packet, and only for immediate data.
        let free = match (message.operation, message.extra) {
            (Operation::Send, _) => 0,
            (_, Extra::None) => left,
            _ => left.saturating_sub(1),
        };
        match (covered, free) {
            (true, _) => (count, false),
            (false, 1..) => (count.min(free), false),
            (false, 0) if self.limited.is_some() => (0, false),
            (false, 0) => (count.min(1), count > 0),
        }
    }

    /// A request of an RDMA Read, from the bytes on that are missing, or of an atomic operation;
    /// `None` if it may not be sent yet.
    fn question(&mut self, seq: u64, slot: &Slot, message: &Message, now: Instant) -> Option<Piece> {
        let psn = self.next;
        let count = if psn == self.frontier {
            let left = slot.end().offset_from(psn);
            let count = self.reads.share(left, psn.offset_from(self.una))?;
            let allowed = usize::from(self.persistence.limits().max_rd_atomic);
            if allowed == 0 {
                // The limit has changed since the request was posted, and nothing says that it
                // changes again.
                self.set_fault(seq, Status::Aborted);
                return None;
            }
            if self.reads.len() >= allowed || self.in_flight() + count > HALF {
                return None;
            }
            self.reads.push(seq, psn, count, now);
            self.frontier = psn.add(count);
            if psn != slot.psn {
                self.divisions = self.divisions.wrapping_add(1) & 0xff_ffff;
            }
            count
        } else {
            self.reads.again(psn, self.una)?
        };
        self.next = psn.add(count);
        // All bytes to the message's end, or those of whole packets.
        let asked = count.saturating_mul(self.mtu.bytes());
        let skipped = psn.offset_from(slot.psn).saturating_mul(self.mtu.bytes());
        Some(message.question(psn, skipped, asked))
    }
}

impl Message {
    /// The message in one piece, for a device that has nothing else under way and gets the answer
    /// at once.
    #[inline(always)]
    pub fn whole(&self, mtu: PathMtu, psn: Psn) -> Piece {
        let piece = match self.operation.carries_payload() {
            true => self.piece(mtu, psn, 0, self.operation.psns(mtu, self.length), true).0,
            false => self.question(psn, 0, self.length),
        };
        Piece { ack_request: false, ..piece }
    }

    /// The request of an RDMA Read for `asked` bytes at most, after the first `skipped`, or that of
    /// an atomic operation.
    #[inline]
    fn question(&self, psn: Psn, skipped: u32, asked: u32) -> Piece {
        Piece {
            psn,
            packets: 1,
            operation: self.operation,
            first: true,
            last: true,
            length: 0,
            remote: Some(Remote {
                addr: self.addr.wrapping_add(skipped.into()),
                key: self.key,
                length: self.length.saturating_sub(skipped).min(asked),
            }),
            extra: Extra::None,
            solicited: false,
            ack_request: true,
        }
    }

    /// The piece of a Send or RDMA Write that begins with packet `done` of the message, and its
    /// offset in the message. Its last packet asks for an acknowledgement.
    #[inline]
    pub(in crate::transport) fn piece(
        &self,
        mtu: PathMtu,
        psn: Psn,
        done: u32,
        packets: u32,
        last: bool,
    ) -> (Piece, u32) {
        let offset = done.saturating_mul(mtu.bytes());
        let announces = done == 0 && self.operation == Operation::Write;
        let piece = Piece {
            psn,
            packets,
            operation: self.operation,
            first: done == 0,
            last,
            length: self.length.saturating_sub(offset).min(packets.saturating_mul(mtu.bytes())),
            remote: announces.then_some(Remote { addr: self.addr, key: self.key, length: self.length }),
            extra: if last { self.extra } else { Extra::None },
            solicited: last && self.solicited,
            ack_request: last,
        };
        (piece, offset)
    }
}
