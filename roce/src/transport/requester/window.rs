//! The window of Sends and RDMA Writes: how many of their packets may be under way, and how long
//! to wait for an acknowledgement.
//!
//! Packets that are under way fill queues, of this end's link, of switches, of a peer that is slow.
//! A queue that takes longer than the ACK timeout breaks a connection although nothing is lost. So
//! the window follows the measured round trip: it begins small and doubles with each round trip,
//! until a round trip takes longer than [`QUEUE`], or than one and a half times the shortest that
//! was seen; that takes it back to what fills the path without much of a queue, and from then on it
//! grows by one packet each time that it was acknowledged. A timeout halves it, and so does a
//! notification of congestion or a lost packet, but not below a floor of theirs. It is reduced once
//! in a round trip, since all that is under way then shows the same queue. Not only queues make
//! packets late, but also a host whose CPUs get no time for a while, and no window helps against
//! that. So late packets have a floor, too: the later they are, the lower it is.
//!
//! The round trip that is the limit is the same for all connections of a path unless the path is a
//! long one, so connections that share a link come to about the same window, whichever was first.
//!
//! The timer waits for the connection's timeout at least, longer where round trips take long, and
//! twice as long after each timeout in a row, but at most four times the connection's, which IBTA
//! vol. 1 section 9.7.6.1.3 allows.

use platform::Instant;

use crate::Psn;

/// A round trip up to which packets may wait in queues, in nanoseconds.
const QUEUE: u64 = 16_000_000;
/// Notifications of congestion make the window no smaller, in packets.
const NOTIFIED: u32 = 4;
/// Nor do losses: a link that loses packets at random is not full.
const LOSSY: u32 = 16;
/// Nor does a round trip that takes a little longer than is allowed, in packets. One that takes `n`
/// times as long has this floor divided by the square of `n`.
const LATE: u32 = 32;
/// Windows that are not small ask for acknowledgements after so many packets at least.
const SELDOM: u32 = 16;
/// How many times the connection's timeout the timer waits at most.
const PATIENCE: u64 = 4;

/// The longest round trip that the window allows, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    most: u64,
    /// What a reduced window aims at.
    aim: u64,
}

impl Limit {
    /// The limit of a connection with this timeout, whose round trips took so long at least. Half
    /// of the queue shall go when it is exceeded, and of a long path nothing but queue.
    fn new(timeout: Option<u64>, shortest: u64) -> Limit {
        let long = shortest.saturating_add(shortest / 2);
        let most = timeout.map_or(QUEUE, |timeout| QUEUE.min(timeout)).max(long);
        Limit { most, aim: (most / 2).max(shortest.saturating_add(shortest / 8)) }
    }

    /// Whether a round trip took too long.
    pub const fn is_exceeded(&self, trip: u64) -> bool {
        trip > self.most
    }

    /// The size that a window is reduced to after such a round trip, when `used` of its `size`
    /// packets were under way: half of that at least, and not below the floor of late packets.
    pub fn reduced(&self, size: u32, used: u32, trip: u64) -> u32 {
        let trip = trip.max(1);
        let aim = u64::from(used).saturating_mul(self.aim) / trip;
        let floor = u64::from(LATE).saturating_mul(self.most) / trip * self.most / trip;
        (aim as u32).clamp(used / 2, used).max((floor as u32).clamp(1, size))
    }
}

/// A packet whose round trip is measured.
#[derive(Clone, Copy, Debug)]
struct Probe {
    psn: Psn,
    /// When it was sent, and when the requester last went back and sent it again.
    sent: Instant,
    again: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct Window {
    /// Its size in packets, at least 1; the size with which it begins, and the largest.
    size: u32,
    first: u32,
    most: u32,
    /// The size up to which it grows with each acknowledged packet.
    threshold: u32,
    /// Packets that were acknowledged since it grew.
    arrived: u32,
    /// Packets wait for it, and not for the consumer.
    full: bool,
    /// It was reduced when this was the PSN behind the last sent, which is not acknowledged yet.
    reduced: Option<Psn>,
    /// The packet whose round trip is measured.
    probe: Option<Probe>,
    /// The shortest round trip, their mean, and the mean deviation from that, in nanoseconds.
    shortest: u64,
    mean: u64,
    deviation: u64,
    /// The connection's timeout in nanoseconds; `None` is for ever.
    timeout: Option<u64>,
    /// How many timeouts there were since something was acknowledged.
    timeouts: u32,
    /// How long to wait for an acknowledgement.
    wait: Option<u64>,
}

impl Window {
    /// A window that begins with `first` packets and has at most `most`. `timeout` is the
    /// connection's, in nanoseconds.
    pub fn new(first: u32, most: u32, timeout: Option<u64>) -> Window {
        let most = most.max(1);
        let first = first.clamp(1, most);
        Window {
            size: first,
            first,
            most,
            threshold: most,
            arrived: 0,
            full: false,
            reduced: None,
            probe: None,
            shortest: u64::MAX,
            mean: 0,
            deviation: 0,
            timeout,
            timeouts: 0,
            wait: timeout,
        }
    }

    /// How many packets may be under way.
    #[inline]
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// After how many packets to ask for an acknowledgement: a few times in a window, but a short
    /// path does not fill its window, and is not asked more often than it needs.
    #[inline]
    pub const fn ask_after(&self) -> u32 {
        match self.size {
            0..4 => 1,
            4..64 => {
                if self.size / 2 < SELDOM {
                    self.size / 2
                } else {
                    SELDOM
                }
            }
            64.. => self.size / 4,
        }
    }

    /// How long to wait for an acknowledgement that was asked for; `None` is for ever.
    #[inline]
    pub const fn wait(&self) -> Option<u64> {
        self.wait
    }

    /// How long to wait before an acknowledgement was asked for.
    pub fn longest_wait(&self) -> Option<u64> {
        self.timeout.map(|timeout| timeout.saturating_mul(PATIENCE))
    }

    /// Changes the connection's timeout.
    pub fn set_timeout(&mut self, timeout: Option<u64>) {
        self.timeout = timeout;
        self.set_wait();
    }

    fn set_wait(&mut self) {
        let usual = self.mean.saturating_add(self.deviation.saturating_mul(4));
        self.wait = self.timeout.map(|timeout| {
            let wait = usual.max(timeout).saturating_mul(1 << self.timeouts.min(8));
            wait.min(timeout.saturating_mul(PATIENCE))
        });
    }

    /// Packets wait until there is room in it.
    #[inline]
    pub const fn fills(&mut self) {
        self.full = true;
    }

    /// Nothing waits for it: its size is not tried, and does not grow.
    #[inline]
    pub const fn suffices(&mut self) {
        self.full = false;
    }

    /// This packet asks for an acknowledgement, which nothing but the path holds up.
    #[inline]
    pub fn ask(&mut self, psn: Psn, now: Instant) {
        if self.probe.is_none() {
            self.probe = Some(Probe { psn, sent: now, again: None });
        }
    }

    /// What is under way says nothing about the path any more: the responder makes it wait, or it
    /// was not sent.
    pub const fn ignore(&mut self) {
        self.probe = None;
    }

    /// What is under way is sent again from now on.
    pub const fn repeats(&mut self, now: Instant) {
        if let Some(probe) = &mut self.probe {
            probe.again = Some(now);
        }
    }

    /// Nothing has been under way since it was used last, for longer than a timeout: other
    /// connections may have filled the path meanwhile.
    #[cold]
    pub fn begin_anew(&mut self) {
        if self.size > self.first {
            self.threshold = self.threshold.max(self.size);
            self.size = self.first;
        }
    }

    /// So many packets of Sends and RDMA Writes were acknowledged.
    #[inline]
    pub fn acknowledged(&mut self, packets: u32) {
        if self.size < self.most && self.full {
            self.grow(packets);
        }
    }

    #[cold]
    fn grow(&mut self, packets: u32) {
        if self.size < self.threshold {
            self.size = self.size.saturating_add(packets).min(self.threshold).min(self.most);
            return;
        }
        // What was under way when it was reduced says nothing about the new size.
        if self.reduced.is_some() {
            return;
        }
        self.arrived = self.arrived.saturating_add(packets);
        if self.arrived >= self.size {
            self.arrived = 0;
            self.size += 1;
        }
    }

    /// All before `una` is acknowledged; `end` is the PSN behind the last that was sent.
    #[inline]
    pub fn reached(&mut self, una: Psn, end: Psn, now: Instant) {
        if self.reduced.is_some_and(|psn| !una.is_before(psn)) {
            self.reduced = None;
        }
        if self.timeouts > 0 {
            self.timeouts = 0;
            self.set_wait();
        }
        if let Some(probe) = self.probe
            && probe.psn.is_before(una)
        {
            self.probe = None;
            self.measured(self.trip(&probe, now), end);
        }
    }

    /// How long the round trip of a packet took that is acknowledged now. What comes sooner after a
    /// repetition than any acknowledgement before is that of the first packet: so a timer that is
    /// too short for the path learns how long the path is.
    #[inline]
    fn trip(&self, probe: &Probe, now: Instant) -> u64 {
        let since = |sent: Instant| now.as_nanos().saturating_sub(sent.as_nanos());
        match probe.again.map(since) {
            Some(trip) if self.mean > 0 && trip >= self.shortest => trip,
            _ => since(probe.sent),
        }
    }

    /// A round trip took so many nanoseconds.
    #[inline]
    fn measured(&mut self, trip: u64, end: Psn) {
        if let Some(limit) = self.learn(trip) {
            let size = limit.reduced(self.size, self.size, trip);
            if size < self.size {
                self.reduce(size, 1, end);
            } else {
                // It is small enough for so late a packet, and goes on to grow, but slowly.
                self.threshold = self.threshold.min(size);
            }
        }
    }

    /// Learns how long the path is from a round trip of so many nanoseconds. Returns the limit if
    /// that exceeds it.
    #[inline]
    pub fn learn(&mut self, trip: u64) -> Option<Limit> {
        self.shortest = self.shortest.min(trip);
        if self.mean == 0 {
            (self.mean, self.deviation) = (trip, trip / 2);
        } else {
            self.deviation = self.deviation - self.deviation / 4 + trip.abs_diff(self.mean) / 4;
            self.mean = self.mean - self.mean / 8 + trip / 8;
        }
        self.set_wait();
        let limit = Limit::new(self.timeout, self.shortest);
        limit.is_exceeded(trip).then_some(limit)
    }

    /// Halves it because no acknowledgement came in time.
    #[cold]
    pub fn timed_out(&mut self, end: Psn) {
        if self.reduced.is_none() {
            self.threshold = (self.size / 2).max(2).min(self.most);
        }
        self.size = (self.size / 2).max(1);
        (self.arrived, self.reduced) = (0, Some(end));
        self.timeouts += 1;
        self.set_wait();
    }

    /// Halves it because a packet was lost.
    #[cold]
    pub fn lost(&mut self, end: Psn) {
        self.reduce(self.size / 2, LOSSY, end);
    }

    /// Halves it because the peer says that queues are long on the way to it.
    #[cold]
    pub fn notified(&mut self, end: Psn) {
        self.reduce(self.size / 2, NOTIFIED, end);
    }

    /// Reduces it to a size, but not below `floor`, once in a round trip.
    fn reduce(&mut self, size: u32, floor: u32, end: Psn) {
        if self.reduced.is_some() {
            return;
        }
        self.size = size.max(floor.min(self.size));
        self.threshold = self.size;
        (self.arrived, self.reduced) = (0, Some(end));
    }
}
