//! Timers, packets that leave, and how streams end.

use platform::Instant;
use smoltcp::socket::tcp::State;
use smoltcp::wire::TcpControl;

use super::{End, Happened, Streams, Unreachable};
use crate::config::BURST;
use crate::engine::{self, Egress, Nowhere, Ready};
use crate::stream::Next;
use crate::table::Place;

/// How far [`Streams::poll`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    /// Nothing is left to do before [`Streams::deadline`].
    Idle,
    /// The budget is used up.
    More,
    /// The link takes no packet. The owner polls again when it does.
    Full,
}

/// The wait of a socket that says it has something to do and then does nothing.
const PAUSE: core::time::Duration = core::time::Duration::from_millis(1);

/// How long a reset waits for the MAC of the peer.
const LAST_WAIT: core::time::Duration = core::time::Duration::from_secs(1);

/// How a stream's turn ended.
enum Turn {
    Over,
    Full,
}

impl Streams {
    /// When [`Streams::poll`] has to be called at the latest; a time that has passed if there is
    /// something to do already. What has to wait until the link takes packets again
    /// ([`Polled::Full`]) has no deadline: the owner knows when that is.
    pub fn deadline(&self) -> Option<Instant> {
        if !self.ready.is_empty() && !self.full {
            return Some(Instant::ZERO);
        }
        let streams = self.timers.first().map(|(at, _)| at);
        let leaving = self.leaving.first().map(|(at, _)| at);
        [streams, leaving, self.halves.deadline(), self.formers.deadline()].into_iter().flatten().min()
    }

    /// Does what is due, and lets streams send: `budget` steps at most, each of which is a packet,
    /// a timer, or the look at a stream. Streams have their turn one after the other, and each
    /// sends some packets in its turn.
    pub fn poll(&mut self, now: Instant, budget: usize, egress: &mut impl Egress) -> Polled {
        let mut left = budget;
        self.full = false;
        while left > 0
            && let Some((_, index)) = self.timers.first().filter(|(at, _)| *at <= now)
        {
            left -= 1;
            self.timers.set(index, None);
            self.wake(index);
        }
        while left > 0
            && let Some((_, index)) = self.leaving.first().filter(|(at, _)| *at <= now)
        {
            left -= 1;
            self.doom(index);
        }
        while left > 0
            && let Some((index, again)) = self.halves.due(now)
        {
            left -= 1;
            match again {
                true => self.answer_half(index, egress),
                false => self.lose_half(index),
            }
        }
        while left > 0
            && let Some(record) = self.formers.due(now)
        {
            left -= 1;
            if let Some(former) = record {
                self.table.remove(&former.tuple);
            }
        }
        while left > 0
            && let Some(index) = self.ready.pop_front()
        {
            if let Some(slot) = self.slots.get_mut(index as usize) {
                slot.ready = false;
            }
            left -= 1;
            if let Turn::Full = self.turn(index, &mut left, now, egress) {
                // It keeps its place.
                if let Some(slot) = self.slots.get_mut(index as usize)
                    && !core::mem::replace(&mut slot.ready, true)
                {
                    self.ready.push_front(index);
                }
                self.full = true;
                return Polled::Full;
            }
        }
        let idle = self.deadline().is_none_or(|at| at > now);
        if idle { Polled::Idle } else { Polled::More }
    }

    /// The turn of the stream at `index`.
    fn turn(&mut self, index: u32, left: &mut usize, now: Instant, egress: &mut impl Egress) -> Turn {
        let Some(stream) = self.slots.get_mut(index as usize).and_then(|slot| slot.stream.as_deref_mut())
        else {
            return Turn::Over;
        };
        if stream.end.is_some() {
            return Turn::Over;
        }
        self.counters.looks += 1;
        stream.begin(now);
        let (local, remote) = (stream.tuple.local.ip(), stream.tuple.remote.ip());
        if let Some((_, end)) = stream.limit(&self.config).filter(|(at, _)| *at <= now && !stream.dying) {
            stream.socket.get_mut().abort();
            stream.given_up = Some(end);
        }
        let given_up = stream.given_up;
        // A reset is all that is left to send.
        let is_last = given_up.is_some() || stream.dying;
        let mut stuck = false;
        for _ in 0..BURST {
            let due = self.engine.due(&stream.socket, &stream.tuple, now);
            if due.is_none_or(|due| due > now) {
                break;
            }
            let connecting = stream.state() == State::SynSent && !is_last;
            let (engine, sent) = (&mut self.engine, &mut stream.sent);
            let gone = match egress.ready(local, remote) {
                Ready::Now => engine.send(&mut stream.socket, &stream.tuple, now, sent, Some(egress)),
                Ready::Full => return Turn::Full,
                // Its turn has come although the MAC is still not known: the reset is lost.
                Ready::Resolving if is_last && stream.parked.is_some() => break,
                Ready::Resolving if is_last => {
                    self.park(index);
                    self.timers.set(index, Some(now + LAST_WAIT));
                    return Turn::Over;
                }
                Ready::Resolving => {
                    self.park(index);
                    self.look(index, false, true, now);
                    return Turn::Over;
                }
                Ready::Unreachable if connecting => {
                    self.finish(index, End::Unreachable(Unreachable::Link));
                    return Turn::Over;
                }
                Ready::Unreachable => {
                    engine.send(&mut stream.socket, &stream.tuple, now, sent, None::<&mut Nowhere>);
                    false
                }
            };
            if gone {
                self.counters.packets_out += 1;
                *left = left.saturating_sub(1);
            }
            if !gone {
                let due = self.engine.due(&stream.socket, &stream.tuple, now);
                stuck = due.is_some_and(|due| due <= now);
            }
            if stuck || *left == 0 {
                break;
            }
        }
        if stream.dying {
            self.remove(index);
        } else if let Some(end) = given_up {
            self.finish(index, end);
        } else {
            self.unpark(index);
            self.look(index, false, stuck, now);
        }
        Turn::Over
    }

    /// Looks at what has changed in the stream at `index`, and when it has something to do.
    /// `rst`: a reset has come. `later`: it has its next turn in some time at the earliest.
    pub(super) fn look(&mut self, index: u32, rst: bool, later: bool, now: Instant) {
        let Some(stream) = self.slots.get_mut(index as usize).and_then(|slot| slot.stream.as_deref_mut())
        else {
            return;
        };
        let dropped = stream.orphan && stream.socket.get().recv_queue() > 0;
        // Nobody will take what is left.
        let is_left = dropped && !stream.drop_arrived();
        let mut due = self.engine.due(&stream.socket, &stream.tuple, now);
        if stream.has_fallen_silent(due) {
            let numbers = (stream.next(), stream.unacknowledged());
            self.engine.close_window(&mut stream.socket, &stream.tuple, numbers, now);
            due = self.engine.due(&stream.socket, &stream.tuple, now);
        }
        let was_open = stream.open;
        let next = stream.look(rst, due, now, &self.config);
        if stream.open && !was_open && stream.listener.is_none() {
            self.counters.connected += 1;
        }
        if is_left && matches!(next, Next::Wait(_)) {
            self.doom(index);
            return;
        }
        match next {
            Next::Wait(Some(at)) if at <= now && !later => {
                self.timers.set(index, None);
                self.wake(index);
            }
            Next::Wait(Some(at)) if stream.parked.is_some() => {
                // What it has to send waits; its time does not.
                let limit = stream.limit(&self.config).map(|(at, _)| at);
                self.timers.set(index, limit.or(Some(at).filter(|at| *at > now)));
            }
            Next::Wait(at) => {
                self.timers.set(index, at.map(|at| if later { at.max(now + PAUSE) } else { at }))
            }
            Next::Ended(end) => return self.finish(index, end),
            Next::Former => {
                let (tuple, sent, ack) = (stream.tuple, stream.sent, stream.next());
                self.keep_former(tuple, sent.end, ack, now);
                return self.finish(index, End::Closed);
            }
        }
        if dropped {
            // The peer may have to learn of a larger window.
            self.wake(index);
        }
        self.tell(index);
    }

    /// Keeps a record of a connection, which replaces the stream in the table.
    fn keep_former(&mut self, tuple: crate::address::Tuple, seq: u32, ack: u32, now: Instant) {
        if self.formers.is_full()
            && let Some(Some(oldest)) = self.formers.pop()
        {
            self.table.remove(&oldest.tuple);
            self.counters.formers_dropped += 1;
        }
        if let Some(number) = self.formers.add(tuple, seq, ack, now) {
            // The name is in the table.
            let _ = self.table.insert(tuple, Place::Former(number));
        }
    }

    /// The connection of the stream at `index` has ended. The stream stays until its owner gives it
    /// back, if it has one.
    pub(super) fn finish(&mut self, index: u32, end: End) {
        self.unpark(index);
        self.timers.set(index, None);
        let Some(stream) = self.at(index) else { return };
        stream.end = Some(end);
        stream.happened |= Happened::ENDED;
        let (tuple, orphan) = (stream.tuple, stream.orphan);
        if self.table.get(&tuple) == Some(Place::Stream(index)) {
            self.table.remove(&tuple);
        }
        let unaccepted = self.leave_listener(index);
        self.counters.ended_unaccepted += u64::from(unaccepted);
        if orphan || unaccepted {
            self.remove(index);
        } else {
            self.tell(index);
        }
    }

    /// Sends a segment that belongs to no socket.
    pub(super) fn emit(
        &mut self,
        tuple: &crate::address::Tuple,
        segment: &smoltcp::wire::TcpRepr<'_>,
        egress: &mut impl Egress,
    ) {
        if engine::emit(egress, tuple, segment) {
            self.counters.packets_out += 1;
            if segment.control == TcpControl::Rst {
                self.counters.resets += 1;
            }
        }
    }
}
