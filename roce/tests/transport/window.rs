//! How many packets a requester has under way, and how long it waits, as round trips, timeouts and
//! notifications tell it.

use std::time::Duration;

use platform::Instant;
use roce::transport::{
    Answer, Body, Config, Event, Operation, Piece, Reason, Received, Requester, Status, Transmit,
};
use roce::wire::aeth::{Nak, Syndrome};

use crate::requester::{READ, TIMEOUT, WRITE, aeth, bytes, psn, with};
use crate::world::config;

const MS: Duration = Duration::from_millis(1);

/// A requester whose window begins with 8 packets and has up to 64, a path, and what is under way.
struct Scene {
    it: Requester,
    now: Instant,
    under_way: Vec<u32>,
    asked: Vec<u32>,
}

fn scene(operation: Operation, packets: u32) -> Scene {
    let config = Config { window: 64, first_window: 8, ..config() };
    let it = with(&config, &[(operation, packets * 256)]);
    Scene { it, now: Instant::from_nanos(1), under_way: Vec::new(), asked: Vec::new() }
}

impl Scene {
    /// Sends what may be sent; returns how many packets that is.
    fn send(&mut self) -> usize {
        let pieces: Vec<Piece> = std::iter::from_fn(|| self.it.transmit(self.now, 1))
            .filter_map(|transmit| match transmit {
                Transmit::Piece { piece, .. } => Some(piece),
                Transmit::Local { .. } => None,
            })
            .collect();
        for piece in &pieces {
            let n = piece.psn.offset_from(psn(0));
            self.under_way.push(n);
            if piece.ack_request {
                self.asked.push(n);
            }
        }
        pieces.len()
    }

    fn answer(&mut self, n: u32, syndrome: Syndrome) -> Received {
        let answer = Answer { psn: psn(n), aeth: aeth(syndrome, 0), body: Body::Acknowledge };
        self.it.receive(&answer, self.now)
    }

    /// What is under way is acknowledged after this time, as it was asked for. Returns how many
    /// packets are then under way.
    fn round_trip(&mut self, time: Duration) -> usize {
        self.now = self.now + time;
        for n in std::mem::take(&mut self.asked) {
            assert_eq!(self.answer(n, Syndrome::ACK), Received::Acknowledged);
        }
        self.under_way.clear();
        self.send()
    }

    fn wait(&self) -> Duration {
        self.it.timer().expect("it waits").since(self.now)
    }
}

#[test]
fn a_window_doubles_until_round_trips_are_long_and_then_grows_by_one() {
    let mut s = scene(WRITE, 4000);
    assert_eq!(s.send(), 8);
    assert_eq!((s.round_trip(MS), s.round_trip(MS), s.round_trip(MS)), (16, 32, 64));
    assert_eq!((s.round_trip(MS), s.round_trip(16 * MS)), (64, 64));
    // A round trip may take 16 ms. This one takes twice as long, so half of the packets go.
    assert_eq!(s.round_trip(32 * MS), 32);
    assert_eq!((s.round_trip(10 * MS), s.round_trip(10 * MS)), (33, 34));
    // It never stops.
    for _ in 0..40 {
        s.round_trip(500 * MS);
    }
    assert_eq!(s.round_trip(500 * MS), 1);
}

#[test]
fn a_long_path_is_no_queue() {
    let mut s = scene(WRITE, 4000);
    s.send();
    for _ in 0..6 {
        s.round_trip(40 * MS);
    }
    assert_eq!(s.round_trip(60 * MS), 64);
    // Aimed at is an eighth more than the path.
    assert_eq!(s.round_trip(61 * MS), 47);
}

#[test]
fn a_timeout_halves_the_window_and_no_more_is_sent_again() {
    let mut s = scene(WRITE, 4000);
    s.send();
    s.round_trip(MS);
    assert_eq!(s.round_trip(MS), 32);
    for (n, sent) in [(1, 16), (2, 8), (4, 4), (4, 2), (4, 1), (4, 1), (4, 1)] {
        assert_eq!(s.wait(), n * TIMEOUT);
        s.now = s.now + s.wait();
        assert_eq!(s.it.expired(s.now), Some(Reason::LocalAckTimeoutErr));
        assert_eq!(s.send(), sent);
    }
    // An answer ends that. The window doubles up to half of what it was.
    s.asked = vec![*s.under_way.last().unwrap()];
    assert_eq!(s.round_trip(MS), 2);
    assert_eq!(s.wait(), TIMEOUT);
    let grown: Vec<_> = (0..4).map(|_| s.round_trip(MS)).collect();
    assert_eq!(grown, [4, 8, 16, 16]);
}

#[test]
fn the_timer_waits_longer_where_round_trips_take_long() {
    let mut s = scene(WRITE, 40_000);
    s.send();
    assert_eq!(s.wait(), TIMEOUT);
    for _ in 0..20 {
        s.round_trip(TIMEOUT * 2);
    }
    assert!(s.wait() > 2 * TIMEOUT && s.wait() < 3 * TIMEOUT, "{:?}", s.wait());
    for _ in 0..60 {
        s.round_trip(MS);
    }
    assert_eq!(s.wait(), TIMEOUT);
    // A path that was fast and is dead is noticed as one that never answered.
    let start = s.now;
    while s.it.timer().is_some() {
        s.now = s.it.timer().unwrap();
        s.it.expired(s.now);
        s.send();
    }
    assert_eq!(s.now.since(start), (1 + 2 + 6 * 4) * TIMEOUT);
    assert_eq!(s.it.poll(), Some(Event::Failed { id: 0, status: Status::RetryExceeded }));
}

#[test]
fn a_notification_halves_the_window_once_in_a_round_trip_down_to_four() {
    let mut s = scene(WRITE, 4000);
    s.send();
    s.round_trip(MS);
    assert_eq!(s.round_trip(MS), 32);
    for (sent, notifications) in [(16, 1), (8, 9), (4, 2), (4, 5), (4, 1)] {
        (0..notifications).for_each(|_| s.it.notified());
        // The next round trip is that of the packets that were under way.
        assert_eq!(s.round_trip(MS), sent);
    }
}

#[test]
fn a_lost_packet_halves_the_window_down_to_sixteen() {
    let mut s = scene(WRITE, 4000);
    s.send();
    s.round_trip(MS);
    s.round_trip(MS);
    assert_eq!(s.round_trip(MS), 64);
    for sent in [32, 16, 16] {
        let first = s.under_way[0];
        let nak = Syndrome::Nak(Nak::PsnSequenceError);
        assert_eq!(s.answer(first, nak), Received::Retry(Reason::PacketSeqErr));
        (s.asked, s.under_way) = (Vec::new(), Vec::new());
        assert_eq!(s.send(), sent);
        s.round_trip(MS);
        s.round_trip(MS);
        let more = s.it.transmit(s.now, 1);
        assert!(more.is_none(), "{more:?}");
    }
}

#[test]
fn after_a_pause_a_window_begins_anew() {
    let mut s = scene(WRITE, 200);
    s.send();
    while s.round_trip(MS) > 0 {}
    for (pause, sent) in [(TIMEOUT, 64), (TIMEOUT + MS, 8)] {
        while s.it.poll().is_some() {}
        s.now = s.now + pause;
        s.it.post(crate::world::message(1, WRITE, 200 * 256)).unwrap();
        assert_eq!(s.send(), sent);
        while s.round_trip(MS) > 0 {}
    }
}

#[test]
fn answers_of_reads_are_asked_for_as_their_path_is() {
    let mut s = scene(READ, 4000);
    let asked = |s: &mut Scene| {
        s.it.transmit(s.now, 1).map(|transmit| match transmit {
            Transmit::Piece { piece, .. } => piece.remote.unwrap().length / 256,
            Transmit::Local { .. } => panic!("{transmit:?}"),
        })
    };
    let mut first = 0;
    let mut answered = |s: &mut Scene, packets: u32, time: Duration| {
        s.now = s.now + time;
        for n in first..first + packets {
            let last = n + 1 == first + packets;
            let received = s.it.receive(&bytes(n, 256, last), s.now);
            assert!(matches!(received, Received::Read { .. }), "{received:?}");
        }
        first += packets;
    };
    for packets in [8, 16, 32, 64] {
        assert_eq!(asked(&mut s), Some(packets));
        assert_eq!(asked(&mut s), None);
        answered(&mut s, packets, MS);
    }
    // The answer takes four times as long to begin as it may.
    assert_eq!(asked(&mut s), Some(128));
    answered(&mut s, 128, 64 * MS);
    // Half of the packets may be under way then, and an eighth more for as many that came.
    assert_eq!(asked(&mut s), Some(70));
    answered(&mut s, 70, MS);
    assert_eq!(asked(&mut s), Some(78));
}
