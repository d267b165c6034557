//! What is the same by the short cut and over a wire, and when a queue pair takes which way.

use nic_abi::admin::{Injection, QpState};
use nic_abi::cqe::{CqeFlags, Status};
use nic_abi::wqe::{AtomicArgs, Header, Opcode, ReceiveFlags, ReceiveHeader, SendFlags};
use nic_model::GuestMemory;
use nic_model::testing::{Qp, QpSpec, Rig, header, rdma, segment, status};
use zerocopy::IntoBytes;

use crate::packets::{completions, rig as wired};

/// The local ACK timeout of the rig's queue pairs.
const TIMEOUT: u64 = 4096 << 10;

fn both() -> [Rig; 2] {
    [Rig::new(2), wired().0]
}

#[test]
fn the_length_of_a_completion_is_what_came_back() {
    for mut rig in both() {
        let (mut a, mut b) = rig.pair();
        let (from, _) = rig.region(0, 4096);
        let (to, _) = rig.region(1, 4096);
        let atomic: [u64; 4] = {
            let args = AtomicArgs { sink: segment(from, 0, 8), compare_add: 1, swap: 2 };
            zerocopy::transmute!(args)
        };
        rig.post_receive(&mut b, 1, &[segment(to, 0, 64)]);
        for (opcode, length) in [
            (Opcode::Send, 0),
            (Opcode::Write, 0),
            (Opcode::Read, 64),
            (Opcode::CompareSwap, 8),
            (Opcode::FetchAdd, 8),
        ] {
            let head = rdma(opcode, 1, to, 0);
            match opcode {
                Opcode::CompareSwap | Opcode::FetchAdd => {
                    rig.post_args(&mut a, Header { segments: 1, ..head }, atomic);
                }
                _ => rig.post(&mut a, head, &[segment(from, 0, 64)]),
            }
            let [done] = completions(&mut rig, &mut a, 1)[..] else { panic!("one completion") };
            assert_eq!((status(&done), done.length), (Status::Success, length), "{opcode:?}");
        }
    }
}

#[test]
fn a_completion_is_solicited_if_either_side_asks_for_it() {
    for mut rig in both() {
        let (mut a, mut b) = rig.pair();
        for (sender, receiver) in [(false, false), (false, true), (true, false), (true, true)] {
            let flags = if receiver { ReceiveFlags::SOLICITED.bits() } else { 0 };
            let at = b.receive_ring + u64::from(b.receive_tail) * u64::from(nic_model::testing::stride());
            rig.post_receive(&mut b, 1, &[]);
            let head = ReceiveHeader { segments: 0, tag: 1, flags, reserved: 0 };
            rig.memory.write(at, head.as_bytes()).unwrap();
            let flags = if sender { SendFlags::SOLICITED.bits() } else { 0 };
            rig.post(&mut a, Header { flags, ..header(Opcode::Send, 1) }, &[]);
            completions(&mut rig, &mut a, 1);
            let solicited = if sender || receiver { CqeFlags::SOLICITED } else { CqeFlags::empty() };
            let received = rig.received(&mut b);
            assert_eq!(CqeFlags::from_bits(received.flags), Some(CqeFlags::RECEIVE | solicited));
        }
    }
}

/// Counts that are used up: on a connection that the first fault ends, nothing shows the second.
#[test]
fn injections_act_as_often_as_they_say() {
    for mut rig in both() {
        let (mut a, _b) = rig.pair();
        let (from, _) = rig.region(0, 64);
        let (to, _) = rig.region(1, 64);
        let write = rdma(Opcode::Write, 1, to, 0);
        for count in [1, 2] {
            rig.inject(0, Injection::Delay, a.qpn, count, 5_000);
            for _ in 0..count {
                rig.post(&mut a, write, &[segment(from, 0, 8)]);
                rig.run();
                assert!(rig.poll_cq(&mut a.send_cq).is_none());
                rig.advance(4_999);
                assert!(rig.poll_cq(&mut a.send_cq).is_none());
                rig.advance(1);
                assert_eq!(status(&rig.sent(&mut a)), Status::Success);
            }
            rig.post(&mut a, write, &[segment(from, 0, 8)]);
            assert_eq!(status(&rig.sent(&mut a)), Status::Success, "after {count}");
            for (what, lost) in [(Injection::DropRequests, count), (Injection::DropResponses, count)] {
                let before = rig.stats(0).lost_requests;
                rig.inject(0, what, a.qpn, count, 0);
                rig.post(&mut a, write, &[segment(from, 0, 8)]);
                assert_eq!(status(&completions(&mut rig, &mut a, 1)[0]), Status::Success, "{what:?}");
                assert_eq!(rig.stats(0).lost_requests - before, u64::from(lost), "{what:?}");
            }
        }
    }
    // Without an end.
    for (what, value, expected) in [
        (Injection::BadRequest, 0, Status::RemoteInvalidRequest),
        (Injection::BadResponse, 0, Status::BadResponse),
        (Injection::Failure, Status::WindowBind as u64, Status::WindowBind),
        (Injection::DropRequests, 0, Status::RetryExceeded),
        (Injection::DropResponses, 0, Status::RetryExceeded),
    ] {
        for mut rig in both() {
            let (mut a, _b) = rig.pair();
            let (from, _) = rig.region(0, 64);
            let (to, _) = rig.region(1, 64);
            rig.inject(0, what, a.qpn, u32::MAX, value);
            rig.post(&mut a, rdma(Opcode::Write, 1, to, 0), &[segment(from, 0, 8)]);
            assert_eq!(status(&completions(&mut rig, &mut a, 1)[0]), expected, "{what:?}");
        }
    }
}

/// Two timers of a queue pair at once: that of an earlier request, and that of the delay.
#[test]
fn a_delayed_request_waits_for_its_time_and_no_longer_while_an_earlier_one_is_repeated() {
    let (mut rig, _) = wired();
    let (mut a, mut b) = rig.pair();
    let (from, _) = rig.region(0, 64);
    let (to, _) = rig.region(1, 64);
    rig.post(&mut a, rdma(Opcode::Write, 0, to, 0), &[segment(from, 0, 8)]);
    assert_eq!(status(&rig.sent(&mut a)), Status::Success);
    for delay in [TIMEOUT / 2, TIMEOUT + TIMEOUT / 2, 3 * TIMEOUT] {
        let begun = rig.now;
        rig.inject(0, Injection::DropRequests, a.qpn, 1, 0);
        rig.post(&mut a, rdma(Opcode::Write, 1, to, 0), &[segment(from, 0, 8)]);
        rig.run();
        rig.inject(0, Injection::Delay, a.qpn, 1, delay);
        rig.post_receive(&mut b, 2, &[]);
        rig.post(&mut a, header(Opcode::Send, 2), &[]);
        let arrived = loop {
            rig.run();
            if rig.poll_cq(&mut b.receive_cq).is_some() {
                break rig.now - begun;
            }
            let next = rig.fabric.next_deadline().expect("a timer").as_nanos();
            assert!(next > rig.now && next <= begun + 4 * TIMEOUT);
            rig.now = next;
        };
        assert_eq!(arrived, delay);
        completions(&mut rig, &mut a, 2);
    }
}

#[test]
fn a_queue_pair_that_was_never_connected_is_flushed() {
    for mut rig in both() {
        for connects in [false, true] {
            let (mut a, b) = (rig.create_qp(0, QpSpec::default()), rig.create_qp(1, QpSpec::default()));
            rig.init(&a);
            rig.post(&mut a, header(Opcode::Send, 1), &[]);
            rig.post_receive(&mut a, 2, &[]);
            rig.run();
            assert!(rig.poll_cq(&mut a.send_cq).is_none());
            rig.set_state(&a, QpState::Error).unwrap();
            assert_eq!(status(&rig.sent(&mut a)), Status::Flushed);
            assert_eq!(status(&rig.received(&mut a)), Status::Flushed);
            if connects {
                let (mut a, mut b): (Qp, Qp) = (a, b);
                rig.set_state(&a, QpState::Reset).unwrap();
                rig.join(&a, &b);
                rig.join(&b, &a);
                rig.post_receive(&mut b, 3, &[]);
                rig.post(&mut a, header(Opcode::Send, 4), &[]);
                assert_eq!(status(&completions(&mut rig, &mut a, 1)[0]), Status::Success);
                assert_eq!(rig.received(&mut b).tag, 3);
            }
        }
    }
}
