//! The rules of a requester: how long it waits, how often it asks again, what fails and with which
//! status. `roce` has them, and they are the same by the short cut and over a wire.

use nic_abi::admin::{Injection, ModifyQp, QpMask, QpState};
use nic_abi::cqe::Status;
use nic_abi::wqe::{AtomicArgs, Header, Opcode};
use nic_model::testing::{Qp, QpSpec, Rig, header, rdma, segment, status};

use crate::packets::{completions, rig as wired};

/// The local ACK timeout of the rig's queue pairs.
const TIMEOUT: u64 = 4096 << 10;
/// The pause after an RNR NAK of the rig's queue pairs.
const PAUSE: u64 = 10_000;

/// Two connected queue pairs, and memory of each side.
struct Scene {
    way: &'static str,
    rig: Rig,
    a: Qp,
    b: Qp,
    from: u32,
    to: u32,
}

/// A scene for each way, with these changes to the requester's limits.
fn both(change: impl Fn(&mut ModifyQp)) -> [Scene; 2] {
    [("short cut", Rig::new(2)), ("wire", wired().0)].map(|(way, mut rig)| {
        let (a, b) = (rig.create_qp(0, QpSpec::default()), rig.create_qp(1, QpSpec::default()));
        rig.join(&b, &a);
        rig.init(&a);
        let args = rig.rtr_args(&a, &b);
        rig.modify(&a, &args).expect("RTR");
        let mut args = rig.rts_args(&a);
        change(&mut args);
        rig.modify(&a, &args).expect("RTS");
        let ((from, _), (to, _)) = (rig.region(0, 4096), rig.region(1, 4096));
        Scene { way, rig, a, b, from, to }
    })
}

impl Scene {
    fn post(&mut self, opcode: Opcode, length: u32) {
        let head = rdma(opcode, 1, self.to, 0);
        match opcode {
            Opcode::FetchAdd => {
                let sink = segment(self.from, 0, length);
                let args = AtomicArgs { sink, compare_add: 1, swap: 0 };
                self.rig.post_args(&mut self.a, Header { segments: 1, ..head }, zerocopy::transmute!(args));
            }
            Opcode::Send => {
                self.rig.post(&mut self.a, header(opcode, 1), &[segment(self.from, 0, length)]);
            }
            _ => self.rig.post(&mut self.a, head, &[segment(self.from, 0, length)]),
        }
        self.rig.run();
    }

    /// The next request ends so.
    fn ends(&mut self, expected: Status) {
        let done = status(&completions(&mut self.rig, &mut self.a, 1)[0]);
        assert_eq!(done, expected, "{}", self.way);
    }

    fn waits(&mut self) {
        self.rig.run();
        assert!(self.rig.poll_cq(&mut self.a.send_cq).is_none(), "{}", self.way);
        assert_eq!(self.rig.query(&self.a).state, QpState::Rts as u32, "{}", self.way);
    }

    /// Loses the next `count` requests, or answers.
    fn lose(&mut self, what: Injection, count: u32) {
        self.rig.inject(0, what, self.a.qpn, count, 0);
    }
}

#[test]
fn a_request_is_repeated_as_often_as_the_retry_count_says() {
    for count in [0, 1, 7] {
        for mut s in both(|args| args.retry_count = count) {
            s.lose(Injection::DropRequests, u32::MAX);
            s.post(Opcode::Write, 8);
            s.ends(Status::RetryExceeded);
            assert_eq!(s.rig.stats(0).lost_requests, u64::from(count) + 1, "{}", s.way);
        }
        for mut s in both(|args| args.retry_count = count) {
            for what in [Injection::DropResponses, Injection::DropRequests] {
                // What is carried out in between makes the count begin anew.
                s.lose(what, count.into());
                s.post(Opcode::FetchAdd, 8);
                s.ends(Status::Success);
            }
        }
    }
}

#[test]
fn a_request_is_repeated_when_the_timeout_is_over_and_never_if_that_is_0() {
    for mut s in both(|_| {}) {
        s.lose(Injection::DropRequests, 1);
        s.post(Opcode::Write, 8);
        s.rig.advance(TIMEOUT - 1);
        s.waits();
        s.rig.advance(1);
        assert_eq!(status(&s.rig.sent(&mut s.a)), Status::Success, "{}", s.way);
    }
    for mut s in both(|args| args.timeout = 0) {
        s.lose(Injection::DropRequests, 1);
        s.post(Opcode::Write, 8);
        for _ in 0..100 {
            s.rig.advance(60_000_000_000);
        }
        s.waits();
    }
}

#[test]
fn a_receiver_that_is_not_ready_is_asked_as_often_as_the_rnr_retry_count_says() {
    for count in [0, 1, 6] {
        for mut s in both(|args| args.rnr_retry = count) {
            s.post(Opcode::Send, 8);
            s.ends(Status::RnrRetryExceeded);
            assert_eq!(s.rig.stats(1).not_ready, u64::from(count) + 1, "{}", s.way);
        }
    }
    // What is carried out in between makes the count begin anew; 7 is for ever.
    for (count, rounds) in [(1, 1), (7, 100)] {
        for mut s in both(|args| args.rnr_retry = count) {
            for _ in 0..2 {
                s.post(Opcode::Send, 8);
                for _ in 1..rounds {
                    s.rig.advance(PAUSE);
                }
                s.rig.advance(PAUSE - 1);
                s.waits();
                s.rig.post_receive(&mut s.b, 1, &[segment(s.to, 0, 64)]);
                s.waits();
                s.rig.advance(1);
                assert_eq!(status(&s.rig.sent(&mut s.a)), Status::Success, "{}", s.way);
            }
        }
    }
}

#[test]
fn a_receiver_that_is_not_ready_has_answered() {
    for mut s in both(|args| (args.retry_count, args.rnr_retry) = (1, 7)) {
        s.lose(Injection::DropRequests, 1);
        s.post(Opcode::Send, 8);
        for _ in 0..3 {
            // The retry, which finds no receive, and the next one, which is lost.
            s.rig.advance(4 * TIMEOUT);
            s.waits();
            s.lose(Injection::DropRequests, 1);
            s.rig.advance(PAUSE);
        }
        s.rig.post_receive(&mut s.b, 1, &[segment(s.to, 0, 64)]);
        s.ends(Status::Success);
        assert_eq!(s.rig.stats(1).not_ready, 3, "{}", s.way);
    }
}

#[test]
fn limits_that_change_make_the_counts_begin_anew() {
    for mut s in both(|args| (args.retry_count, args.timeout) = (1, 10)) {
        s.lose(Injection::DropRequests, 4);
        s.post(Opcode::Write, 8);
        s.rig.advance(TIMEOUT);
        // The second attempt is lost, too; no other is left.
        let mask = QpMask::MAX_RD_ATOMIC.bits();
        for _ in 0..2 {
            s.rig
                .modify(&s.a, &ModifyQp { mask, max_rd_atomic: 4, ..ModifyQp::default() })
                .expect("a change");
            s.rig.advance(4 * TIMEOUT);
            s.waits();
        }
        s.rig.modify(&s.a, &ModifyQp { mask, max_rd_atomic: 4, ..ModifyQp::default() }).expect("a change");
        s.rig.advance(4 * TIMEOUT);
        assert_eq!(status(&s.rig.sent(&mut s.a)), Status::Success, "{}", s.way);
    }
}

#[test]
fn what_the_peer_refuses_has_its_status() {
    for mut s in both(|_| {}) {
        s.to ^= 1;
        s.post(Opcode::Write, 8);
        s.ends(Status::RemoteAccess);
    }
    for mut s in both(|_| {}) {
        s.lose(Injection::BadRequest, 1);
        s.post(Opcode::Write, 8);
        s.ends(Status::RemoteInvalidRequest);
    }
    for mut s in both(|_| {}) {
        // A receive whose memory is not there, and one that is too short.
        s.rig.post_receive(&mut s.b, 1, &[segment(s.to ^ 1, 0, 64)]);
        s.post(Opcode::Send, 8);
        s.ends(Status::RemoteOperation);
    }
    for mut s in both(|_| {}) {
        s.rig.post_receive(&mut s.b, 1, &[segment(s.to, 0, 4)]);
        s.post(Opcode::Send, 8);
        s.ends(Status::RemoteInvalidRequest);
    }
}

#[test]
fn what_a_connection_does_not_do_fails_before_it_is_sent() {
    for (opcode, length, depth, expected) in [
        (Opcode::Read, 8, 0, Status::LocalQpOperation),
        (Opcode::FetchAdd, 8, 0, Status::LocalQpOperation),
        (Opcode::FetchAdd, 4, 1, Status::LocalLength),
        (Opcode::Read, 8, 1, Status::Success),
        (Opcode::Write, 8, 0, Status::Success),
    ] {
        for mut s in both(|args| args.max_rd_atomic = depth) {
            let before = s.rig.query(&s.a).send_psn;
            s.post(opcode, length);
            s.ends(expected);
            let sent = s.rig.query(&s.a).send_psn - before;
            assert_eq!(sent, u32::from(expected == Status::Success), "{opcode:?} {}", s.way);
        }
    }
}

#[test]
fn a_message_takes_as_many_numbers_as_it_or_its_answer_has_packets() {
    for mut s in both(|_| {}) {
        for (opcode, length, psns) in [
            (Opcode::Write, 0, 1),
            (Opcode::Write, 1024, 1),
            (Opcode::Write, 1025, 2),
            (Opcode::Read, 0, 1),
            (Opcode::Read, 3000, 3),
            (Opcode::FetchAdd, 8, 1),
        ] {
            let before = s.rig.query(&s.a).send_psn;
            s.post(opcode, length);
            s.ends(Status::Success);
            let info = s.rig.query(&s.a);
            assert_eq!(info.send_psn - before, psns, "{opcode:?} of {length} {}", s.way);
            assert_eq!(s.rig.query(&s.b).receive_psn, info.send_psn, "{opcode:?} of {length} {}", s.way);
        }
    }
}
