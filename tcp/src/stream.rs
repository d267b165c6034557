//! A stream: its socket, and what its owner has to learn of it.

use core::time::Duration;

use platform::Instant;
use smoltcp::socket::tcp::State;
use smoltcp::wire::{TcpControl, TcpRepr};

use crate::address::Tuple;
use crate::config::{Config, MIN_SEGMENT};
use crate::engine::{self, Sent, Socket, from_peer};
use crate::segment::Segment;
use crate::streams::{End, Happened, Progress};

/// One end of a connection.
pub(crate) struct Stream {
    pub socket: Socket,
    pub tuple: Tuple,
    pub sent: Sent,
    /// The peer's first sequence number.
    pub irs: u32,
    /// How many bytes the owner has taken, and how many it has written.
    pub progressed: Progress,
    /// What the owner has not been told yet.
    pub happened: Happened,
    pub end: Option<End>,
    /// The connection was opened.
    pub open: bool,
    /// The owner was told that the peer has closed its direction.
    fin: bool,
    /// The listener in whose queue it waits.
    pub listener: Option<u32>,
    /// Its owner has given it back.
    pub orphan: bool,
    /// How many more bytes its peer may send then, which are dropped.
    pub drops: usize,
    /// Its owner has aborted it: only the reset is left to send.
    pub dying: bool,
    /// The peer was silent for too long: only the reset is left to send.
    pub given_up: Option<End>,
    /// The owner wanted to write more when the ring had this room.
    blocked: Option<usize>,
    /// When the peer acknowledged something, or changed the state, the last time.
    pub progress: Instant,
    /// Something was written into the empty ring, and no time was taken yet.
    fresh: bool,
    state: State,
    /// The bytes in the rings when the stream was looked at the last time.
    queued: (usize, usize),
    /// The place in the list of those that wait for the peer's MAC.
    pub parked: Option<u32>,
    /// What the peer's SYN offered, and the window that it has told last.
    pub offer: Offer,
    /// The place in the list of those with large rings.
    pub large: Option<u32>,
    /// There are larger rings than its first ones.
    pub may_want: bool,
    /// Its small rings have been too small.
    pub wants: bool,
    /// It has carried bytes since a stream was sought whose large rings another one may have.
    pub used: bool,
    /// Behind the last byte that has come, in order or not.
    pub ahead: u32,
    /// How many bytes have come since when, in [`BURST_TIME`] at most.
    burst: (Instant, usize),
}

/// Bytes that come within this time were under way at the same time, or nearly so. It is as long as
/// this end may hold an acknowledgement back.
const BURST_TIME: Duration = Duration::from_millis(1);

/// What a peer offers in its SYN, and its window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offer {
    pub window: u16,
    pub scale: Option<u8>,
    pub mss: Option<u16>,
    pub sack: bool,
}

impl Offer {
    /// That of a SYN.
    pub fn of(syn: &TcpRepr<'_>) -> Offer {
        Offer {
            window: syn.window_len,
            scale: syn.window_scale,
            mss: syn.max_seg_size,
            sack: syn.sack_permitted,
        }
    }

    /// Whether the peer asks for segments that are too small.
    pub fn is_small(&self) -> bool {
        self.mss.is_some_and(|mss| (1..MIN_SEGMENT).contains(&mss))
    }

    /// Writes the SYN that the peer has sent.
    pub fn syn<'b>(&self, tuple: &Tuple, seq: u32, into: &'b mut [u8]) -> Option<&'b [u8]> {
        let mut syn = from_peer(tuple, TcpControl::Syn, seq, None);
        syn.window_len = self.window;
        syn.window_scale = self.scale;
        syn.max_seg_size = self.mss;
        syn.sack_permitted = self.sack;
        let len = engine::write(tuple, &syn, into)?;
        into.get(..len)
    }
}

/// What is next for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// To be looked at again, then or when a packet comes.
    Wait(Option<Instant>),
    /// The connection has ended.
    Ended(End),
    /// Both directions are closed; a record answers the peer if it repeats itself.
    Former,
}

impl Stream {
    pub fn new(socket: Socket, tuple: Tuple, now: Instant) -> Stream {
        let state = socket.get().state();
        Stream {
            socket,
            tuple,
            sent: Sent::default(),
            irs: 0,
            progressed: Progress::default(),
            happened: Happened::empty(),
            end: None,
            open: false,
            fin: false,
            listener: None,
            orphan: false,
            drops: 0,
            dying: false,
            given_up: None,
            blocked: None,
            progress: now,
            fresh: false,
            state,
            queued: (0, 0),
            parked: None,
            offer: Offer::default(),
            large: None,
            may_want: false,
            wants: false,
            used: false,
            ahead: 0,
            burst: (now, 0),
        }
    }

    pub fn state(&self) -> State {
        self.socket.get().state()
    }

    /// Whether the peer has closed its direction.
    pub fn peer_closed(&self) -> bool {
        self.fin
            || matches!(self.state(), State::CloseWait | State::LastAck | State::Closing | State::TimeWait)
    }

    /// The peer's next sequence number.
    pub fn next(&self) -> u32 {
        let taken = self.progressed.taken as u32;
        let arrived = taken.wrapping_add(self.socket.get().recv_queue() as u32);
        self.irs.wrapping_add(1).wrapping_add(arrived).wrapping_add(self.peer_closed().into())
    }

    /// The free bytes of the ring of received bytes.
    pub fn window(&self) -> usize {
        let socket = self.socket.get();
        socket.recv_capacity() - socket.recv_queue()
    }

    /// Whether nothing is under way: its socket has nothing to remember but numbers. It may owe the
    /// peer an acknowledgement.
    pub fn is_idle(&self) -> bool {
        let socket = self.socket.get();
        let is_open = self.open && self.end.is_none() && !self.dying && self.given_up.is_none();
        let empty = socket.recv_queue() == 0 && socket.send_queue() == 0;
        is_open && empty && self.state() == State::Established && self.ahead == self.next()
    }

    /// Whether the peer knows of all that has come.
    pub fn has_acknowledged(&self) -> bool {
        self.sent.ack == self.next()
    }

    /// The first number that the peer has not acknowledged.
    pub fn unacknowledged(&self) -> u32 {
        let written = self.progressed.written as u32;
        let waiting = self.socket.get().send_queue() as u32;
        self.sent.first.wrapping_add(1).wrapping_add(written).wrapping_sub(waiting)
    }

    /// Whether bytes wait that its socket, which has nothing to do by itself, will never send.
    ///
    /// smoltcp asks for a closed window only if it is told of it while nothing is under way. If the
    /// window closes over bytes that were lost, it waits for their acknowledgement, sends nothing
    /// when that does not come, since the window is closed, and then waits for ever. An
    /// acknowledgement that arrives behind a later one, with the window of before, is enough.
    pub fn has_fallen_silent(&self, due: Option<Instant>) -> bool {
        let waits = self.open && self.socket.get().send_queue() > 0;
        due.is_none() && waits && self.end.is_none() && self.state() != State::Closed
    }

    /// Whether the owner wanted to write more than there was room for.
    pub fn is_blocked(&self) -> bool {
        self.blocked.is_some()
    }

    /// Where a segment begins, counted from the next number; `None` if that is out of the window.
    fn offset(&self, segment: &Segment<'_>) -> Option<u32> {
        let offset = segment.seq().wrapping_sub(self.next());
        (offset == 0 || offset < self.window() as u32).then_some(offset)
    }

    /// Takes note of what a segment tells that is not a SYN, before the socket gets it.
    pub fn note(&mut self, segment: &Segment<'_>, now: Instant) {
        if segment.is_rst() || self.offset(segment).is_none() {
            return;
        }
        if segment.ack() == Some(self.sent.end) {
            self.offer.window = segment.tcp.window_len;
        }
        let socket = self.socket.get();
        let (capacity, filled) = (socket.recv_capacity(), socket.recv_queue() + segment.tcp.payload.len());
        if now.since(self.burst.0) > BURST_TIME {
            self.burst = (now, 0);
        }
        self.burst.1 += segment.tcp.payload.len();
        // An owner that takes bytes as soon as they arrive never lets the ring fill up.
        self.wants |= self.may_want && filled.max(self.burst.1) > capacity / 2;
    }

    /// Takes note of the data of a segment, before the socket gets it.
    pub fn note_data(&mut self, segment: &Segment<'_>) {
        let len = segment.tcp.payload.len() as u32;
        let Some(offset) = self.offset(segment).filter(|_| len > 0 && !segment.is_rst()) else { return };
        self.used = true;
        let end = self.next().wrapping_add(offset.saturating_add(len).min(self.window() as u32));
        if (end.wrapping_sub(self.ahead) as i32) > 0 {
            self.ahead = end;
        }
    }

    /// The owner has no room to write until the ring is empty, and a larger one takes its place.
    pub fn waits_for_rings(&mut self) -> bool {
        let waits = self.wants && self.large.is_none() && self.socket.get().send_queue() > 0;
        if waits {
            self.blocked = Some(self.socket.get().send_capacity());
        }
        waits
    }

    /// There are no larger rings for it now.
    pub fn want_no_more(&mut self) {
        self.wants = false;
        if self.blocked.is_some() {
            self.blocked = Some(0);
        }
    }

    /// Lets the owner write into the ring; returns whether it wrote anything.
    pub fn write<R>(&mut self, write: impl FnOnce(&mut [u8]) -> (usize, R)) -> Option<(R, bool)> {
        let socket = self.socket.get_mut();
        let before = socket.send_queue();
        let result = socket.send(|bytes| {
            let most = bytes.len();
            let (len, result) = write(bytes);
            (len.min(most), result)
        });
        let written = socket.send_queue() - before;
        self.queued.1 += written;
        self.progressed.written += written as u64;
        self.fresh |= written > 0 && before == 0;
        self.used |= written > 0;
        self.wants |= self.may_want && before + written == socket.send_capacity();
        if written == 0 {
            self.blocked = Some(socket.send_capacity() - before);
        }
        Some((result.ok()?, written > 0))
    }

    /// Lets the owner take bytes out of the ring; returns whether it took any.
    pub fn read<R>(&mut self, read: impl FnOnce(&[u8]) -> (usize, R)) -> Option<(R, bool)> {
        let socket = self.socket.get_mut();
        let before = socket.recv_queue();
        let result = socket.recv(|bytes| {
            let (len, result) = read(bytes);
            (len.min(bytes.len()), result)
        });
        let taken = before - socket.recv_queue();
        self.progressed.taken += taken as u64;
        self.queued.0 = socket.recv_queue();
        Some((result.ok()?, taken > 0))
    }

    /// Drops what has arrived, as much as it may. Returns whether that was all.
    pub fn drop_arrived(&mut self) -> bool {
        while self.socket.get().recv_queue() > 0 {
            let most = self.drops;
            let taken = self.read(|bytes| (bytes.len().min(most), bytes.len().min(most)));
            let Some((taken @ 1.., _)) = taken else { return false };
            self.drops -= taken;
        }
        true
    }

    /// Takes the time of what the owner wrote.
    pub fn begin(&mut self, now: Instant) {
        if core::mem::take(&mut self.fresh) {
            self.progress = now;
        }
    }

    /// When the stream is given up if nothing happens that counts, and what is said then.
    pub fn limit(&self, config: &Config) -> Option<(Instant, End)> {
        let after = |wait: Duration, end| Some((self.progress + wait, end));
        match self.state() {
            State::SynSent | State::SynReceived => after(config.connect_timeout, End::ConnectTimeout),
            State::FinWait1 | State::FinWait2 | State::Closing | State::LastAck | State::TimeWait => {
                after(config.linger, End::TimedOut)
            }
            State::Established | State::CloseWait if self.socket.get().send_queue() > 0 && !self.fresh => {
                after(config.user_timeout, End::TimedOut)
            }
            _ => None,
        }
    }

    /// Looks at what has changed, and takes note of what the owner has to learn. `rst`: a reset has
    /// come. `due`: when the socket has something to do.
    pub fn look(&mut self, rst: bool, due: Option<Instant>, now: Instant, config: &Config) -> Next {
        let socket = self.socket.get();
        let (state, before) = (socket.state(), self.state);
        let (queued, room) =
            ((socket.recv_queue(), socket.send_queue()), socket.send_capacity() - socket.send_queue());
        let capacity = socket.send_capacity();
        let opening = matches!(state, State::SynSent | State::SynReceived | State::Closed | State::Listen);
        if !self.open && !opening {
            self.open = true;
            self.happened |= Happened::CONNECTED | Happened::WRITABLE;
        }
        if queued.0 > self.queued.0 {
            self.happened |= Happened::READABLE;
        }
        if self.blocked.is_some_and(|had| room > had && room >= capacity / 4) {
            self.blocked = None;
            self.happened |= Happened::WRITABLE;
        }
        if !self.fin && self.peer_closed() {
            self.fin = true;
            self.happened |= Happened::PEER_CLOSED;
        }
        // What the peer sends counts only while nothing else is expected of it.
        let sends = state == State::FinWait2 && queued.0 > self.queued.0 && !self.orphan;
        if state != before || queued.1 < self.queued.1 || sends {
            self.progress = now;
        }
        (self.state, self.queued) = (state, queued);
        match state {
            State::Closed if rst && !self.open => Next::Ended(End::Refused),
            State::Closed if rst => Next::Ended(End::Reset),
            State::Closed => Next::Ended(End::Closed),
            // The peer's FIN was acknowledged.
            State::TimeWait if self.sent.ack == self.next() => Next::Former,
            _ => {
                let limit = self.limit(config).map(|(at, _)| at);
                Next::Wait([due, limit].into_iter().flatten().min())
            }
        }
    }
}
