//! Requests and answers that are lost, late, or not accepted yet: what is repeated, and when the
//! request fails.

use nic_abi::admin::{Injection, ModifyQp, Opcode, QpState};
use nic_abi::cqe::Status;
use nic_abi::eqe::EventType;
use nic_abi::wqe::{self, AtomicArgs, Header};
use nic_model::testing::{QpSpec, Rig, header, rdma, segment, status};

use crate::errors::scene;

/// 4.096 us times 2 to the 10th.
const TIMEOUT: u64 = 4096 << 10;

#[test]
fn a_remote_gid_of_no_nic_is_accepted_and_times_out() {
    let mut rig = Rig::new(2);
    let (mut a, b) = (rig.create_qp(0, QpSpec::default()), rig.create_qp(1, QpSpec::default()));
    rig.init(&a);
    let rtr = ModifyQp { remote_gid: [0; 16], ..rig.rtr_args(&a, &b) };
    rig.modify(&a, &rtr).unwrap();
    let rts = rig.rts_args(&a);
    rig.modify(&a, &rts).unwrap();
    rig.post(&mut a, header(wqe::Opcode::Send, 1), &[]);
    for _ in 0..=rts.retry_count {
        rig.run();
        assert!(rig.poll_cq(&mut a.send_cq).is_none());
        rig.advance(4096 << rts.timeout);
    }
    assert_eq!(status(&rig.sent(&mut a)), Status::RetryExceeded);
}

#[test]
fn without_a_receive_the_sender_waits_and_then_gives_up() {
    let mut s = scene();
    s.rig.post(&mut s.a, header(wqe::Opcode::Send, 1), &[segment(s.from, 0, 8)]);
    s.rig.run();
    assert!(s.rig.poll_cq(&mut s.a.send_cq).is_none());
    // The message takes a receive that is posted in time: min_rnr_timer 1 is 10 us.
    s.rig.post_receive(&mut s.b, 8, &[segment(s.to, 0, 8)]);
    s.rig.run();
    assert!(s.rig.poll_cq(&mut s.a.send_cq).is_none(), "the timer has not fired");
    s.rig.advance(10_000);
    assert_eq!(status(&s.rig.sent(&mut s.a)), Status::Success);
    assert_eq!(s.rig.received(&mut s.b).tag, 8);
    // Without a receive there are three attempts, as rnr_retry is 2.
    s.rig.post(&mut s.a, header(wqe::Opcode::Send, 2), &[segment(s.from, 0, 8)]);
    s.rig.run();
    s.rig.advance(10_000);
    assert!(s.rig.poll_cq(&mut s.a.send_cq).is_none());
    s.rig.advance(10_000);
    s.ends(Status::RnrRetryExceeded);
    assert_eq!(s.rig.stats(1).not_ready, 4);
    s.responder_lives();
}

#[test]
fn an_rnr_retry_of_seven_is_for_ever() {
    let mut rig = Rig::new(2);
    let (mut a, mut b) = (rig.create_qp(0, QpSpec::default()), rig.create_qp(1, QpSpec::default()));
    rig.join(&b, &a);
    rig.init(&a);
    let args = rig.rtr_args(&a, &b);
    rig.modify(&a, &args).unwrap();
    let args = ModifyQp { rnr_retry: 7, ..rig.rts_args(&a) };
    rig.modify(&a, &args).unwrap();
    rig.post(&mut a, header(wqe::Opcode::Send, 2), &[]);
    for _ in 0..1000 {
        rig.advance(10_000);
    }
    assert_eq!(rig.query(&a).state, QpState::Rts as u32);
    rig.post_receive(&mut b, 8, &[]);
    rig.advance(10_000);
    assert_eq!(status(&rig.sent(&mut a)), Status::Success);
}

#[test]
fn a_request_without_an_answer_is_repeated_and_then_an_error() {
    let mut s = scene();
    s.rig.command(1, Opcode::DestroyQp, s.b.qpn, &()).unwrap();
    s.rig.post(&mut s.a, rdma(wqe::Opcode::Write, 1, s.to, 0), &[segment(s.from, 0, 8)]);
    s.rig.run();
    for _ in 0..2 {
        s.rig.advance(TIMEOUT);
        assert!(s.rig.poll_cq(&mut s.a.send_cq).is_none());
    }
    s.rig.advance(TIMEOUT);
    s.ends(Status::RetryExceeded);
    assert_eq!(s.rig.stats(0).lost_requests, 3);
}

#[test]
fn a_peer_with_another_partner_or_another_sequence_does_not_answer() {
    for case in 0..4 {
        let mut rig = Rig::new(2);
        let (mut a, b) = (rig.create_qp(0, QpSpec::default()), rig.create_qp(1, QpSpec::default()));
        let other = rig.create_qp(0, QpSpec::default());
        rig.join(&a, &b);
        rig.init(&b);
        let mut args = rig.rtr_args(&b, &a);
        match case {
            0 => args.remote_qpn = other.qpn,
            1 => args.remote_gid[15] = 9,
            2 => args.receive_psn += 1,
            // The requester seems to have sent a request that never came.
            _ => args.receive_psn -= 1,
        }
        rig.modify(&b, &args).unwrap();
        rig.post(&mut a, rdma(wqe::Opcode::Write, 1, 0, 0), &[]);
        rig.run();
        if case == 2 {
            // The responder treats a request with an earlier PSN as a repetition, and acknowledges
            // it.
            assert_eq!(status(&rig.sent(&mut a)), Status::Success);
            continue;
        }
        for _ in 0..3 {
            rig.advance(TIMEOUT);
        }
        assert_eq!(status(&rig.sent(&mut a)), Status::RetryExceeded);
    }
}

#[test]
fn lost_requests_and_answers_are_repeated_and_executed_once() {
    for what in [Injection::DropRequests, Injection::DropResponses] {
        let mut s = scene();
        s.rig.inject(0, what, s.a.qpn, 2, 0);
        let word = s.rig.region(1, 64);
        let args = AtomicArgs { sink: segment(s.from, 0, 8), compare_add: 5, swap: 0 };
        let head = Header { segments: 1, ..rdma(wqe::Opcode::FetchAdd, 1, word.0, 0) };
        s.rig.post_args(&mut s.a, head, zerocopy::transmute!(args));
        s.rig.run();
        s.rig.advance(TIMEOUT);
        assert!(s.rig.poll_cq(&mut s.a.send_cq).is_none());
        s.rig.advance(TIMEOUT);
        assert_eq!(status(&s.rig.sent(&mut s.a)), Status::Success);
        assert_eq!(s.rig.bytes(word.1, 8), 5_u64.to_le_bytes(), "added once");
        // A Send consumes one receive and completes it once.
        s.rig.inject(0, what, s.a.qpn, 1, 0);
        s.rig.post_receive(&mut s.b, 1, &[segment(s.to, 0, 8)]);
        s.rig.post_receive(&mut s.b, 2, &[segment(s.to, 0, 8)]);
        s.rig.post(&mut s.a, header(wqe::Opcode::Send, 1), &[segment(s.from, 0, 8)]);
        s.rig.run();
        s.rig.advance(TIMEOUT);
        assert_eq!(status(&s.rig.sent(&mut s.a)), Status::Success);
        assert_eq!(s.rig.received(&mut s.b).tag, 1);
        assert!(s.rig.poll_cq(&mut s.b.receive_cq).is_none());
        // A Read of several pieces begins again from its start.
        s.rig.inject(0, what, s.a.qpn, 1, 0);
        let (far, source) = s.rig.region(1, 3 << 20);
        let (near, sink) = s.rig.region(0, 3 << 20);
        s.rig.fill(source, 3 << 20, 4);
        s.rig.post(&mut s.a, rdma(wqe::Opcode::Read, 1, far, 0), &[segment(near, 0, 3 << 20)]);
        s.rig.run();
        s.rig.advance(TIMEOUT);
        assert_eq!(status(&s.rig.sent(&mut s.a)), Status::Success);
        assert!(s.rig.bytes(sink, 3 << 20) == s.rig.bytes(source, 3 << 20));
        // The sequence continues.
        s.rig.post(&mut s.a, rdma(wqe::Opcode::Write, 1, s.to, 0), &[segment(s.from, 0, 8)]);
        assert_eq!(status(&s.rig.sent(&mut s.a)), Status::Success);
    }
}

#[test]
fn a_bad_response_and_a_delay() {
    let mut s = scene();
    s.rig.inject(0, Injection::Delay, s.a.qpn, 1, 5_000_000);
    s.rig.post(&mut s.a, rdma(wqe::Opcode::Write, 1, s.to, 0), &[segment(s.from, 0, 8)]);
    s.rig.run();
    s.rig.advance(4_999_999);
    assert!(s.rig.poll_cq(&mut s.a.send_cq).is_none());
    s.rig.advance(1);
    assert_eq!(status(&s.rig.sent(&mut s.a)), Status::Success);
    s.rig.inject(0, Injection::BadResponse, s.a.qpn, 1, 0);
    s.fails(rdma(wqe::Opcode::Write, 1, s.to, 0), &[segment(s.from, 0, 8)], Status::BadResponse);
}

#[test]
fn a_port_that_is_down_loses_everything() {
    let mut s = scene();
    s.rig.inject(1, Injection::Port, 0, 0, 0);
    assert_eq!(s.rig.event_types(1), [(EventType::PortDown, 0)]);
    s.rig.post(&mut s.a, rdma(wqe::Opcode::Write, 1, s.to, 0), &[segment(s.from, 0, 8)]);
    s.rig.run();
    s.rig.inject(1, Injection::Port, 0, 0, 1);
    assert_eq!(s.rig.event_types(1), [(EventType::PortUp, 0)]);
    s.rig.advance(TIMEOUT);
    assert_eq!(status(&s.rig.sent(&mut s.a)), Status::Success);
}
