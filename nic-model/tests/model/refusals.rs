//! A responder's refusals that are lost on the wire: the requester repeats its request, and gets
//! the refusal again, although the responder is already in the error state.

use nic_abi::admin::{Injection, QpState};
use nic_abi::cqe::Status;
use nic_abi::wqe::Opcode;
use nic_model::PacketDropped;
use nic_model::testing::{Qp, Rig, rdma, segment, status};

use crate::packets::{completions, dropped, rig};

/// Two queue pairs at the ends of a wire, and memory of each side.
struct Scene {
    rig: Rig,
    a: Qp,
    b: Qp,
    from: u32,
    to: u32,
}

fn scene() -> Scene {
    let (mut rig, _) = rig();
    let (a, b) = rig.pair();
    let ((from, _), (to, _)) = (rig.region(0, 4096), rig.region(1, 4096));
    Scene { rig, a, b, from, to }
}

impl Scene {
    /// Posts an RDMA request of 64 bytes, with this key of the peer's memory.
    fn post(&mut self, opcode: Opcode, tag: u32, key: u32) {
        self.rig.post(&mut self.a, rdma(opcode, tag, key, 0), &[segment(self.from, 0, 64)]);
    }

    /// Drops the next `count` answers before they reach the requester.
    fn lose_answers(&mut self, count: u32) {
        self.rig.inject(0, Injection::DropResponses, self.a.qpn, count, 0);
    }

    fn statuses(&mut self, count: usize) -> Vec<Status> {
        completions(&mut self.rig, &mut self.a, count).iter().map(status).collect()
    }
}

#[test]
fn a_refusal_that_is_lost_comes_again() {
    let mut s = scene();
    s.lose_answers(2);
    s.post(Opcode::Write, 1, s.to ^ 1);
    s.post(Opcode::Write, 2, s.to);
    assert_eq!(s.statuses(2), [Status::RemoteAccess, Status::Flushed]);
    assert_eq!(s.rig.query(&s.b).state, QpState::Error as u32);
    assert_eq!(s.rig.stats(0).lost_requests, 2);
    assert_eq!(s.rig.event_types(1).len(), 1, "one event, however often it refuses");
    assert!(s.rig.fabric.prepare_sleep(), "no work is left, so the device may sleep");
}

#[test]
fn answers_before_a_refusal_come_again_as_well() {
    let mut s = scene();
    // The answers of both Reads, and the refusal.
    s.lose_answers(3);
    s.post(Opcode::Read, 1, s.to);
    s.post(Opcode::Read, 2, s.to);
    s.post(Opcode::Write, 3, s.to ^ 1);
    assert_eq!(s.statuses(3), [Status::Success, Status::Success, Status::RemoteAccess]);
}

#[test]
fn a_request_with_an_unknown_operation_is_refused_again() {
    let mut s = scene();
    s.rig.inject(0, Injection::BadRequest, s.a.qpn, 2, 0);
    s.lose_answers(1);
    s.post(Opcode::Write, 1, s.to);
    assert_eq!(s.statuses(1), [Status::RemoteInvalidRequest]);
}

#[test]
fn a_driver_that_moves_the_queue_pair_ends_its_answers() {
    for state in [QpState::Error, QpState::Reset] {
        let mut s = scene();
        s.lose_answers(1);
        s.post(Opcode::Write, 1, s.to ^ 1);
        s.rig.run();
        s.rig.set_state(&s.b, state).expect("a state");
        assert_eq!(s.statuses(1), [Status::RetryExceeded]);
        assert!(dropped(&s.rig, 1, PacketDropped::NotConnected) > 0);
    }
}

#[test]
fn a_queue_pair_that_refused_takes_no_answers() {
    let (mut rig, ends) = rig();
    let (mut a, mut b) = rig.pair();
    let ((from, _), (to, memory)) = (rig.region(0, 64), rig.region(1, 64));
    rig.post(&mut a, rdma(Opcode::Write, 1, to, 0), &[segment(from, 0, 64)]);
    assert_eq!(status(&completions(&mut rig, &mut a, 1)[0]), Status::Success);
    // The answer to the responder's own Read follows the request that the responder refuses.
    let next = |rig: &mut Rig| {
        while ends[1].waiting() == 0 {
            rig.step();
        }
        ends[1].take().expect("a frame")
    };
    rig.post(&mut a, rdma(Opcode::Write, 2, to ^ 1, 0), &[segment(from, 0, 64)]);
    let write = next(&mut rig);
    rig.post(&mut b, rdma(Opcode::Read, 3, from, 0), &[segment(to, 0, 64)]);
    let answer = next(&mut rig);
    ends[0].put(&write);
    ends[0].put(&answer);
    let before = rig.bytes(memory, 64);
    rig.run();
    assert_eq!(status(&rig.sent(&mut b)), Status::Flushed);
    assert_eq!(dropped(&rig, 1, PacketDropped::NotConnected), 1);
    assert_eq!(rig.bytes(memory, 64), before);
}

#[test]
fn a_refusal_waits_for_room_in_the_wire() {
    let (mut rig, ends) = rig();
    let (mut a, b) = rig.pair();
    let ((from, _), (to, _)) = (rig.region(0, 64), rig.region(1, 64));
    rig.post(&mut a, rdma(Opcode::Write, 1, to, 0), &[segment(from, 0, 64)]);
    assert_eq!(status(&completions(&mut rig, &mut a, 1)[0]), Status::Success);
    rig.post(&mut a, rdma(Opcode::Write, 2, to ^ 1, 0), &[segment(from, 0, 64)]);
    while ends[1].waiting() == 0 {
        rig.step();
    }
    ends[0].set_room(false);
    rig.run();
    assert_eq!(rig.query(&b).state, QpState::Error as u32);
    assert!(rig.poll_cq(&mut a.send_cq).is_none());
    ends[0].set_room(true);
    rig.run();
    assert_eq!(status(&rig.sent(&mut a)), Status::RemoteAccess);
    assert_eq!(rig.stats(0).lost_requests, 0);
}
