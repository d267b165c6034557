//! Packets that arrive.

use platform::Instant;
use smoltcp::socket::tcp::State;
use smoltcp::wire::TcpControl;

use super::{End, Streams};
use crate::address::Tuple;
use crate::counters::Dropped;
use crate::engine::{self, Egress, Scale, bare};
use crate::segment::{self, Packet, Report, Segment};
use crate::stream::Offer;
use crate::table::Place;

/// Whether a sequence number is behind another one.
const fn is_after(seq: u32, other: u32) -> bool {
    (seq.wrapping_sub(other) as i32) > 0
}

impl Streams {
    /// Takes an IP packet that arrived for an address of the port. The answer, if there is one,
    /// goes to the egress at once, or is lost if nothing can go to this peer now.
    pub fn input(&mut self, packet: &[u8], now: Instant, egress: &mut impl Egress) -> Result<(), Dropped> {
        self.take(packet, false, now, egress)
    }

    /// As [`Streams::input`], for a packet that these streams have sent to an address of their own.
    pub fn input_own(
        &mut self,
        packet: &[u8],
        now: Instant,
        egress: &mut impl Egress,
    ) -> Result<(), Dropped> {
        self.take(packet, true, now, egress)
    }

    fn take(
        &mut self,
        packet: &[u8],
        own: bool,
        now: Instant,
        egress: &mut impl Egress,
    ) -> Result<(), Dropped> {
        self.counters.packets_in += 1;
        let result = match segment::parse(packet, self.config.mtu, own) {
            Ok(Packet::Segment(segment)) => self.segment(&segment, packet, now, egress),
            Ok(Packet::Report(report)) => self.report(&report),
            Err(why) => Err(why),
        };
        if let Err(why) = result {
            self.counters.drop(why);
        }
        result
    }

    fn segment(
        &mut self,
        segment: &Segment<'_>,
        packet: &[u8],
        now: Instant,
        egress: &mut impl Egress,
    ) -> Result<(), Dropped> {
        match self.table.get(&segment.tuple) {
            Some(Place::Stream(index)) => self.for_stream(index, segment, packet, now, egress),
            Some(Place::Half(index)) => self.for_half(index, segment, packet, now, egress),
            Some(Place::Former(number)) => self.for_former(number, segment, now, egress),
            None if segment.opens() => self.knock(segment, now, egress),
            None => self.refuse(segment, now, egress),
        }
    }

    /// Answers a segment of no connection by a reset (RFC 9293 section 3.5.2).
    pub(super) fn refuse(
        &mut self,
        segment: &Segment<'_>,
        now: Instant,
        egress: &mut impl Egress,
    ) -> Result<(), Dropped> {
        if !segment.is_rst() && self.may_answer(segment, now) {
            let reset = match segment.ack() {
                Some(ack) => bare(&segment.tuple, TcpControl::Rst, ack, None),
                None => bare(&segment.tuple, TcpControl::Rst, 0, Some(segment.end())),
            };
            self.emit(&segment.tuple, &reset, egress);
        }
        Err(Dropped::NoConnection)
    }

    /// Whether an answer that is not a stream's may go to the peer now; counts it if so.
    pub(super) fn may_answer(&mut self, segment: &Segment<'_>, now: Instant) -> bool {
        let may = self.limits.take(segment.tuple.remote.ip(), now);
        self.counters.answers_held += u64::from(!may);
        may
    }

    /// A segment for a stream. smoltcp checks acknowledgements and what is in the window; here
    /// are the checks that it does not make.
    pub(super) fn for_stream(
        &mut self,
        index: u32,
        segment: &Segment<'_>,
        packet: &[u8],
        now: Instant,
        egress: &mut impl Egress,
    ) -> Result<(), Dropped> {
        let Some(stream) = self.slots.get_mut(index as usize).and_then(|slot| slot.stream.as_deref_mut())
        else {
            return Err(Dropped::NoConnection);
        };
        if stream.given_up.is_some() {
            return Err(Dropped::NoConnection);
        }
        self.counters.looks += 1;
        stream.begin(now);
        let before = stream.state();
        if before == State::SynSent && stream.sent.packets == 0 {
            // No answer yet: nothing was asked. smoltcp would take the window that it has not told
            // for one of no bytes, and compute with what is before it.
            return Err(Dropped::OutOfWindow);
        }
        if before != State::SynSent {
            let (next, window) = (stream.next(), stream.window() as u32);
            // A reset is taken if its number is the next one; another one in the window makes the
            // peer repeat it with that number, if it is the peer's (RFC 5961 section 3.2).
            if segment.is_rst() && segment.seq() != next {
                if segment.seq().wrapping_sub(next) < window {
                    let sent = stream.sent;
                    let mut challenge = bare(&segment.tuple, TcpControl::None, sent.end, Some(next));
                    challenge.window_len = sent.window;
                    if self.may_answer(segment, now) {
                        self.emit(&segment.tuple, &challenge, egress);
                    }
                }
                return Err(Dropped::OutOfWindow);
            }
            // The window of a SYN is not scaled. smoltcp scales it, and would take more than the
            // ring holds until its next packet.
            let end = next.wrapping_add(window);
            if !stream.sent.window_told && !segment.tcp.payload.is_empty() && is_after(segment.end(), end) {
                return Err(Dropped::OutOfWindow);
            }
        }
        if before != State::SynSent && segment.tcp.control != TcpControl::Syn {
            stream.note(segment, now);
            self.widen(index, !segment.tcp.payload.is_empty(), egress);
        }
        let Some(stream) = self.slots.get_mut(index as usize).and_then(|slot| slot.stream.as_deref_mut())
        else {
            return Err(Dropped::NoConnection);
        };
        if before != State::SynSent && segment.tcp.control != TcpControl::Syn {
            stream.note_data(segment);
        }
        let packets = stream.sent.packets;
        let (tuple, sent) = (stream.tuple, &mut stream.sent);
        let ready = egress.ready(tuple.local.ip(), tuple.remote.ip()) == engine::Ready::Now;
        let way = ready.then_some(egress);
        self.engine.receive(&mut stream.socket, &tuple, packet, now, sent, way);
        if ready {
            self.counters.packets_out += u64::from(stream.sent.packets.wrapping_sub(packets));
        }
        if before == State::SynSent && matches!(stream.state(), State::Established | State::SynReceived) {
            stream.irs = segment.seq();
            (stream.offer, stream.ahead) = (Offer::of(&segment.tcp), segment.seq().wrapping_add(1));
            self.counters.small_segments += u64::from(stream.offer.is_small());
            if stream.offer.scale.is_none() {
                stream.sent.scale = Scale::default();
            }
        }
        self.widen_when_empty(index);
        self.look(index, segment.is_rst(), false, now);
        Ok(())
    }

    /// A segment of a former connection: the peer repeats what was not acknowledged, or opens a
    /// new connection between the same ends.
    fn for_former(
        &mut self,
        number: u32,
        segment: &Segment<'_>,
        now: Instant,
        egress: &mut impl Egress,
    ) -> Result<(), Dropped> {
        let Some(former) = self.formers.get(number).copied() else {
            return self.refuse(segment, now, egress);
        };
        // A new connection may begin if its numbers cannot be taken for those of the former one
        // (RFC 1122 section 4.2.2.13).
        if segment.opens() && is_after(segment.seq(), former.ack) {
            self.formers.remove(number);
            self.table.remove(&former.tuple);
            return self.knock(segment, now, egress);
        }
        // A reset does not end the wait (RFC 1337).
        if segment.is_rst() {
            return Err(Dropped::OutOfWindow);
        }
        if self.may_answer(segment, now) {
            let answer = bare(&former.tuple, TcpControl::None, former.seq, Some(former.ack));
            self.emit(&former.tuple, &answer, egress);
        }
        Ok(())
    }

    /// A report that a segment was not delivered. It ends a connection that is being opened. For
    /// others it is no more than a hint, since anybody can forge it (RFC 5927).
    fn report(&mut self, report: &Report) -> Result<(), Dropped> {
        let Report { tuple, seq, why } = report;
        let Some((index, stream)) = self.connecting(tuple) else { return Err(Dropped::NoConnection) };
        if stream.state() != State::SynSent || stream.sent.packets == 0 || stream.sent.seq != *seq {
            return Err(Dropped::OutOfWindow);
        }
        self.finish(index, End::Unreachable(*why));
        Ok(())
    }

    fn connecting(&mut self, tuple: &Tuple) -> Option<(u32, &crate::stream::Stream)> {
        match self.table.get(tuple)? {
            Place::Stream(index) => Some((index, self.at(index)?)),
            Place::Half(_) | Place::Former(_) => None,
        }
    }
}
