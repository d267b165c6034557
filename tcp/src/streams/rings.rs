//! Which streams have large rings.
//!
//! A stream begins with small rings, and gets large ones when these were too small for what it
//! carries. A stream that is idle gives its large rings up when another one wants some and all are
//! in use. So memory follows what streams carry, and each has its small rings whatever the others
//! do.
//!
//! A socket of smoltcp has its rings for life. So a stream that changes them gets another socket,
//! which begins where the former one stands. It is told of a handshake whose sequence numbers are
//! the ones just before. That needs a stream that is idle: nothing is in its rings, and nothing
//! waits for an acknowledgement of the peer. The measured round trip and the congestion window
//! begin anew, as they do after a pause (RFC 5681 section 4.1).

use platform::Instant;
use smoltcp::socket::tcp::State;
use smoltcp::wire::TcpControl;

use super::Streams;
use crate::engine::{self, Egress, Nowhere, SYN, Sent, Socket, bare, from_peer, seed_for};

/// The streams with large rings that are looked at for one that wants some.
const LOOKS: usize = 64;

impl Streams {
    /// The streams with large rings.
    pub fn large(&self) -> usize {
        self.large.len()
    }

    /// Gives the stream at `index` large rings before a segment comes that has data, if it wants
    /// some, and tells the peer of the window.
    pub(super) fn widen(&mut self, index: u32, has_data: bool, egress: &mut impl Egress) {
        let Some(stream) = self.at(index) else { return };
        let owes = !stream.has_acknowledged();
        let (from, to) = (stream.tuple.local.ip(), stream.tuple.remote.ip());
        let wanted = stream.wants && has_data && stream.large.is_none() && stream.is_idle();
        // An acknowledgement that the former socket owed would never leave.
        if !wanted || owes && egress.ready(from, to) != engine::Ready::Now {
            return;
        }
        if !self.grow(index) {
            return;
        }
        let Some(stream) = self.at(index) else { return };
        let mut answer = bare(&stream.tuple, TcpControl::None, stream.sent.end, Some(stream.next()));
        answer.window_len = u16::try_from(stream.window() >> stream.sent.scale.told).unwrap_or(u16::MAX);
        (stream.sent.ack, stream.sent.window) = (stream.next(), answer.window_len);
        let tuple = stream.tuple;
        self.emit(&tuple, &answer, egress);
    }

    /// Gives the stream at `index` large rings when its peer has acknowledged what was in the small
    /// one, for which the owner waits. If it cannot have them the owner goes on with the small one.
    pub(super) fn widen_when_empty(&mut self, index: u32) {
        let Some(stream) = self.at(index) else { return };
        let waits = stream.is_blocked() && stream.socket.get().send_queue() == 0;
        if stream.wants && stream.large.is_none() && waits {
            let may = stream.is_idle() && stream.has_acknowledged();
            if !(may && self.grow(index))
                && let Some(stream) = self.at(index)
            {
                stream.want_no_more();
            }
        }
    }

    /// Gives the stream at `index` large rings, if it wants some, is idle, and can have them.
    pub(super) fn grow(&mut self, index: u32) -> bool {
        let Some(stream) = self.at(index) else { return false };
        if !stream.wants || stream.large.is_some() || !stream.is_idle() {
            return false;
        }
        let grown = self.find_room() && self.refit(index, true);
        if !grown && let Some(stream) = self.at(index) {
            stream.want_no_more();
        }
        grown
    }

    /// Makes room for large rings; false if all who have them use them.
    fn find_room(&mut self) -> bool {
        let most = self.config.most_large();
        if self.large.len() < most {
            return self.large.try_reserve(1).is_ok();
        }
        // Who has carried nothing since the last look gives its rings up, or else the first that
        // carries nothing now.
        let mut first = None;
        for _ in 0..LOOKS.min(self.large.len()) {
            self.hand = if self.hand + 1 < self.large.len() { self.hand + 1 } else { 0 };
            let Some(index) = self.large.get(self.hand).copied() else { break };
            let Some(stream) = self.at(index) else { continue };
            let was_used = core::mem::take(&mut stream.used);
            if !stream.is_idle() || !stream.has_acknowledged() {
                continue;
            }
            first = first.or(Some(index));
            if !was_used {
                first = Some(index);
                break;
            }
        }
        first.is_some_and(|index| self.refit(index, false))
    }

    /// Gives the stream at `index`, which is idle, rings of the other size.
    fn refit(&mut self, index: u32, large: bool) -> bool {
        let Some(socket) = self.successor(index, large) else { return false };
        let before = self.config.bytes(!large);
        let scale = |scaled| self.config.scale(large, scaled);
        let scales = [false, true].map(scale);
        let place = self.large.len() as u32;
        let Some(stream) = self.at(index) else { return false };
        stream.socket = socket;
        stream.sent.scale = scales[usize::from(stream.offer.scale.is_some())];
        // smoltcp has told a window that it takes for a scaled one.
        stream.sent.window_told = stream.sent.scale.socket == 0;
        stream.wants = false;
        let former = stream.large.take();
        if large {
            stream.large = Some(place);
            self.large.push(index);
        }
        if let Some(former) = former {
            self.forget_large(former);
        }
        self.memory = self.memory + self.config.bytes(large) - before;
        true
    }

    /// A socket with rings of the other size that stands where that of the stream at `index` does.
    fn successor(&mut self, index: u32, large: bool) -> Option<Socket> {
        let (receive, send) = self.config.rings(large);
        let stream = self.slots.get(index as usize)?.stream.as_deref()?;
        let (tuple, offer) = (stream.tuple, stream.offer);
        let (number, expected) = (stream.sent.end, stream.next());
        let mut socket = Socket::new(receive, send).ok()?;
        socket.get_mut().listen(tuple.local).ok()?;
        let (now, mut sent) = (Instant::ZERO, Sent::default());
        let mut bytes = [0; SYN];
        let syn = offer.syn(&tuple, expected.wrapping_sub(1), &mut bytes)?;
        self.engine.seed(seed_for(number.wrapping_sub(1)));
        let nowhere = || Some(Nowhere);
        self.engine.receive(&mut socket, &tuple, syn, now, &mut sent, nowhere().as_mut());
        self.engine.send(&mut socket, &tuple, now, &mut sent, nowhere().as_mut());
        let mut answer = from_peer(&tuple, TcpControl::None, expected, Some(number));
        answer.window_len = offer.window;
        let len = engine::write(&tuple, &answer, &mut bytes)?;
        self.engine.receive(&mut socket, &tuple, bytes.get(..len)?, now, &mut sent, nowhere().as_mut());
        let stands = sent.end == number && sent.ack == expected;
        (stands && socket.get().state() == State::Established).then_some(socket)
    }

    /// Takes a place from the list of streams with large rings.
    pub(super) fn forget_large(&mut self, place: u32) {
        self.large.swap_remove(place as usize);
        if let Some(moved) = self.large.get(place as usize).copied()
            && let Some(stream) = self.at(moved)
        {
            stream.large = Some(place);
        }
    }
}
