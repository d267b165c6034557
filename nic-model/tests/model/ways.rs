//! What is the same by the short cut and over a wire, and when a queue pair takes which way.

use std::cell::RefCell;
use std::rc::Rc;

use nic_abi::admin::{Injection, ModifyQp, QpMask, QpState};
use nic_abi::cqe::{CqeFlags, Status};
use nic_abi::wqe::{AtomicArgs, Header, LinkFlags, ListArgs, Opcode, ReceiveFlags, ReceiveHeader, SendFlags};
use nic_model::testing::{CableEnd, Qp, QpSpec, Rig, Through, cable, header, rdma, segment, status};
use nic_model::{GuestMemory, Wire};
use platform::Instant;
use zerocopy::IntoBytes;

use crate::keys::{allocate, link, list, privileged, remote};
use crate::packets::{completions, rig as wired};

/// The local ACK timeout of the rig's queue pairs.
const TIMEOUT: u64 = 4096 << 10;

fn both() -> [Rig; 2] {
    [Rig::new(2), wired().0]
}

#[test]
fn the_length_of_a_completion_is_what_the_request_moved() {
    for mut rig in both() {
        let (mut a, mut b) = rig.pair();
        let (from, _) = rig.region(0, 4096);
        let (to, _) = rig.region(1, 4096);
        let atomic: [u64; 4] = {
            let args = AtomicArgs { sink: segment(from, 0, 8), compare_add: 1, swap: 2 };
            zerocopy::transmute!(args)
        };
        for tag in 1..4 {
            rig.post_receive(&mut b, tag, &[segment(to, 0, 64)]);
        }
        for (opcode, length) in [
            (Opcode::Send, 64),
            (Opcode::SendImmediate, 64),
            (Opcode::Write, 64),
            (Opcode::WriteImmediate, 64),
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
    // A delay begins when the request before has left.
    for mut rig in both() {
        let (mut a, _b) = rig.pair();
        rig.post(&mut a, rdma(Opcode::Write, 0, 0, 0), &[]);
        assert_eq!(status(&rig.sent(&mut a)), Status::Success);
        rig.inject(0, Injection::Delay, a.qpn, 2, 5_000);
        for tag in 1..4 {
            rig.post(&mut a, rdma(Opcode::Write, tag, 0, 0), &[]);
            rig.run();
        }
        rig.advance(5_000);
        assert_eq!(rig.sent(&mut a).tag, 1);
        assert!(rig.poll_cq(&mut a.send_cq).is_none());
        rig.advance(5_000);
        assert_eq!([rig.sent(&mut a).tag, rig.sent(&mut a).tag], [2, 3]);
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

/// The retry of a request that was carried out, and whose answer was lost, can be spoiled as well.
#[test]
fn a_spoiled_repetition_gets_no_answer_and_the_next_one_does() {
    for mut rig in both() {
        let (mut a, b) = rig.pair();
        let (from, _) = rig.region(0, 64);
        let (to, _) = rig.region(1, 64);
        for tag in 0..2 {
            rig.inject(0, Injection::DropResponses, a.qpn, 1, 0);
            rig.post(&mut a, rdma(Opcode::Write, tag, to, 0), &[segment(from, 0, 8)]);
            rig.run();
            rig.inject(0, Injection::BadRequest, a.qpn, 1, 0);
            assert_eq!(status(&completions(&mut rig, &mut a, 1)[0]), Status::Success);
        }
        assert_eq!(rig.query(&b).state, QpState::Rts as u32);
    }
}

/// The memory of a request may be linked by another queue pair before the request begins, which is
/// when all earlier ones are complete.
#[test]
fn a_request_may_be_posted_before_its_memory_is_linked() {
    for mut rig in both() {
        let (mut a, mut b) = rig.pair();
        let (mut other, _) = rig.pair_of(0, 1, privileged());
        let (to, target) = rig.region(1, 64);
        let (key, memory) = (allocate(&mut rig, 0, 1), rig.alloc(4096));
        rig.fill(memory, 64, 5);
        // Nothing takes the Send yet.
        rig.post(&mut a, header(Opcode::Send, 1), &[]);
        rig.post(&mut a, rdma(Opcode::Write, 2, to, 0), &[segment(key, 0, 64)]);
        rig.run();
        let pages = list(&mut rig, &[memory]);
        let args = ListArgs {
            list: pages,
            element_length: 4096,
            first_byte_offset: 0,
            elements: 1,
            remote: remote(key, 1),
        };
        let head = link(key, LinkFlags::LOCAL_READ | LinkFlags::RELATIVE, 0, 64);
        rig.post_args(&mut other, head, zerocopy::transmute!(args));
        assert_eq!(status(&rig.sent(&mut other)), Status::Success);
        rig.post_receive(&mut b, 3, &[]);
        let done = completions(&mut rig, &mut a, 2);
        assert_eq!(done.iter().map(status).collect::<Vec<_>>(), [Status::Success; 2]);
        assert_eq!(rig.bytes(target, 64), rig.bytes(memory, 64));
    }
}

#[test]
fn a_connection_whose_limits_change_keeps_to_the_new_ones() {
    for mut rig in both() {
        let (mut a, b) = rig.pair();
        let (from, _) = rig.region(0, 64);
        let (to, _) = rig.region(1, 64);
        rig.post(&mut a, rdma(Opcode::Write, 1, to, 0), &[segment(from, 0, 8)]);
        completions(&mut rig, &mut a, 1);
        rig.set_state(&a, QpState::Sqd).unwrap();
        let mask = (QpMask::STATE | QpMask::RETRY_COUNT).bits();
        let args = ModifyQp { mask, state: QpState::Rts as u32, retry_count: 5, ..ModifyQp::default() };
        rig.modify(&a, &args).unwrap();
        rig.inject(0, Injection::DropRequests, a.qpn, u32::MAX, 0);
        rig.post(&mut a, rdma(Opcode::Write, 2, to, 0), &[segment(from, 0, 8)]);
        assert_eq!(status(&completions(&mut rig, &mut a, 1)[0]), Status::RetryExceeded);
        assert_eq!(rig.stats(0).lost_requests, 6, "the first attempt and five retries");
        assert_eq!(rig.query(&b).state, QpState::Rts as u32);
    }
}

/// Two timers of a queue pair at once: that of an earlier request, and that of the delay. An answer
/// in between makes the device look at the first one again.
#[test]
fn a_delayed_request_waits_for_its_time_though_an_earlier_one_times_out_meanwhile() {
    let answer = Rc::<RefCell<Vec<u8>>>::default();
    let [here, there] = cable();
    let kept = answer.clone();
    let keeping = Through::new(there.clone(), move |end: &CableEnd, frame: &[u8]| {
        if frame[12..14] == [8, 0] {
            *kept.borrow_mut() = frame.to_vec();
        }
        end.put(frame);
    });
    let mut rig = Rig::wired([Box::new(here) as Box<dyn Wire>, Box::new(keeping)], 1500);
    let (mut a, mut b) = rig.pair();
    let (from, _) = rig.region(0, 64);
    let (to, _) = rig.region(1, 64);
    let write = rdma(Opcode::Write, 1, to, 0);
    rig.post(&mut a, write, &[segment(from, 0, 8)]);
    assert_eq!(status(&rig.sent(&mut a)), Status::Success);
    let old = answer.borrow().clone();
    for delay in [TIMEOUT / 2, TIMEOUT + TIMEOUT / 2, 3 * TIMEOUT] {
        let (begun, lost) = (rig.now, rig.stats(0).lost_requests);
        rig.inject(0, Injection::DropRequests, a.qpn, 1, 0);
        rig.post(&mut a, write, &[segment(from, 0, 8)]);
        rig.run();
        rig.inject(0, Injection::Delay, a.qpn, 1, delay);
        rig.post_receive(&mut b, 2, &[]);
        rig.post(&mut a, header(Opcode::Send, 2), &[]);
        rig.run();
        there.put(&old);
        rig.run();
        while rig.poll_cq(&mut b.receive_cq).is_none() {
            let next = rig.fabric.next_deadline().expect("a timer").as_nanos();
            assert!(next > rig.now && next <= begun + delay);
            rig.advance(next - rig.now);
        }
        assert_eq!(rig.now - begun, delay);
        let timeouts = u64::from(delay > TIMEOUT);
        assert_eq!(rig.stats(0).lost_requests - lost, timeouts);
        completions(&mut rig, &mut a, 2);
    }
}

/// The timer of a request that a reset has forgotten means nothing to the next connection.
#[test]
fn a_reset_ends_the_timer_of_what_was_under_way() {
    for mut rig in both() {
        let (mut a, b) = rig.pair();
        let (from, _) = rig.region(0, 64);
        let (to, _) = rig.region(1, 64);
        let lose = |rig: &mut Rig, a: &mut Qp| {
            rig.inject(0, Injection::DropRequests, a.qpn, 1, 0);
            rig.post(a, rdma(Opcode::Write, 1, to, 0), &[segment(from, 0, 8)]);
            rig.run();
            assert_eq!(rig.fabric.next_deadline().map(Instant::as_nanos), Some(rig.now + TIMEOUT));
        };
        lose(&mut rig, &mut a);
        rig.advance(TIMEOUT / 2);
        for qp in [&a, &b] {
            rig.set_state(qp, QpState::Reset).unwrap();
        }
        assert!(
            rig.fabric.next_deadline().is_some_and(|at| at.as_nanos() > rig.now + TIMEOUT),
            "a heartbeat"
        );
        rig.join(&a, &b);
        rig.join(&b, &a);
        lose(&mut rig, &mut a);
        rig.advance(TIMEOUT - 1);
        assert!(rig.poll_cq(&mut a.send_cq).is_none());
        rig.advance(1);
        assert_eq!(status(&rig.sent(&mut a)), Status::Success);
    }
}

/// A responder expects the request behind the last one, whatever its own requester may do.
#[test]
fn a_responder_goes_on_where_it_was_when_its_state_changes() {
    for mut rig in both() {
        let (mut a, mut b) = (rig.create_qp(0, QpSpec::default()), rig.create_qp(1, QpSpec::default()));
        rig.join(&a, &b);
        rig.init(&b);
        let rtr = rig.rtr_args(&b, &a);
        let mut send = |rig: &mut Rig, b: &mut Qp| {
            for tag in 0..2 {
                rig.post_receive(b, tag, &[]);
                rig.post(&mut a, header(Opcode::Send, tag), &[]);
                // No time passes.
                assert_eq!(status(&rig.sent(&mut a)), Status::Success);
                assert_eq!(rig.received(b).tag, tag);
            }
        };
        rig.modify(&b, &rtr).unwrap();
        send(&mut rig, &mut b);
        let rts = rig.rts_args(&b);
        rig.modify(&b, &rts).unwrap();
        send(&mut rig, &mut b);
        for state in [QpState::Sqd, QpState::Rts] {
            rig.set_state(&b, state).unwrap();
            send(&mut rig, &mut b);
        }
    }
}

#[test]
fn a_queue_pair_that_was_never_connected_is_flushed() {
    for mut rig in both() {
        for connects in [false, true] {
            let (mut a, b) = (rig.create_qp(0, QpSpec::default()), rig.create_qp(1, QpSpec::default()));
            rig.init(&a);
            // Posted before the queue pair is in the error state, or afterwards.
            for early in [false, true] {
                if !early {
                    rig.set_state(&a, QpState::Error).unwrap();
                    rig.run();
                }
                rig.post(&mut a, header(Opcode::Send, 1), &[]);
                rig.post_receive(&mut a, 2, &[]);
                rig.run();
                if early {
                    assert!(rig.poll_cq(&mut a.send_cq).is_none());
                    rig.set_state(&a, QpState::Error).unwrap();
                }
                assert_eq!(status(&rig.sent(&mut a)), Status::Flushed, "early: {early}");
                assert_eq!(status(&rig.received(&mut a)), Status::Flushed);
                rig.set_state(&a, QpState::Reset).unwrap();
                rig.init(&a);
            }
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
