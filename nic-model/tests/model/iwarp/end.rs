//! How connections end: what each side's driver learns.

use nic_abi::admin::{DestroyQp, Opcode as Command, QpState, StreamFlags};
use nic_abi::cqe::Status;
use nic_abi::eqe::{NOT_COMPLETED, StreamFault, TERMINATE_RECEIVED, TERMINATE_SENT};
use nic_abi::wqe::{Header, LinkFlags, Opcode};
use nic_model::testing::{CableEnd, Qp, Rig, cable, header, rdma, segment, status};

use super::{both, ends, join, pair_on, pairs, rig_on, spec, wait};
use crate::streams::{ACTIVE, GONE, PASSIVE, connect_again, connect_on, on_a_lossy_wire, settle};

#[test]
fn a_disconnect_is_told_to_the_peer_and_both_flush() {
    for (mut rig, mut a, mut b) in pairs() {
        rig.post_receive(&mut a, 1, &[]);
        rig.post_receive(&mut b, 2, &[]);
        rig.set_state(&a, QpState::Error).expect("ERROR");
        wait(&mut rig);
        assert_eq!(ends(&mut rig, 0), []);
        assert_eq!(ends(&mut rig, 1), [(b.qpn, StreamFault::None, 0)]);
        for (qp, tag) in [(&mut a, 1), (&mut b, 2)] {
            let flushed = rig.received(qp);
            assert_eq!((flushed.tag, status(&flushed)), (tag, Status::Flushed));
            assert_eq!(rig.query(qp).state, QpState::Error as u32);
            rig.post(qp, header(Opcode::Send, 8), &[]);
            assert_eq!(status(&rig.sent(qp)), Status::Flushed);
        }
    }
}

#[test]
fn a_disconnect_is_told_although_the_driver_or_its_machine_has_gone() {
    for gone in GONE {
        let (mut rig, [lossy, _]) = on_a_lossy_wire();
        let (a, b) = (rig.create_qp(0, spec()), rig.create_qp(1, spec()));
        join(&mut rig, &b, PASSIVE, StreamFlags::CRC | StreamFlags::RESPONDER);
        join(&mut rig, &a, ACTIVE, StreamFlags::CRC);
        rig.run();
        lossy.set(true);
        rig.set_state(&a, QpState::Error).expect("ERROR");
        gone(&mut rig);
        assert_eq!(ends(&mut rig, 1), []);
        lossy.set(false);
        for _ in 0..20 {
            rig.advance(100_000_000);
        }
        assert_eq!(ends(&mut rig, 1), [(b.qpn, StreamFault::None, 0)]);
        assert!(!rig.fabric.is_leaving());
    }
}

#[test]
fn a_message_that_is_begun_is_sent_before_an_orderly_end() {
    let cable = cable();
    let (mut rig, mut a, mut b) = rig_on(cable.clone());
    let size = 1 << 20;
    let (from, _) = rig.region(0, size);
    let (to, _) = rig.region(1, size);
    rig.post_receive(&mut b, 2, &[segment(to, 0, size as u32)]);
    rig.post(&mut a, header(Opcode::Send, 1), &[segment(from, 0, size as u32)]);
    rig.post(&mut a, header(Opcode::Send, 3), &[]);
    begin(&mut rig, &cable[0]);
    rig.set_state(&a, QpState::Error).expect("ERROR");
    cable[0].set_room(true);
    for _ in 0..10 {
        wait(&mut rig);
    }
    assert_eq!(status(&rig.received(&mut b)), Status::Success);
    assert_eq!(ends(&mut rig, 1), [(b.qpn, StreamFault::None, 0)]);
    let both: Vec<_> = (0..2).map(|_| rig.sent(&mut a)).map(|entry| (entry.tag, status(&entry))).collect();
    assert_eq!(both, [(1, Status::Success), (3, Status::Flushed)]);
}

#[test]
fn a_queue_pair_that_is_destroyed_in_a_message_breaks_the_peers() {
    for reset in [false, true] {
        let cable = cable();
        let (mut rig, mut a, b) = rig_on(cable.clone());
        let size = 1 << 20;
        let (from, _) = rig.region(0, size);
        let (to, _) = rig.region(1, size);
        rig.post(&mut a, rdma(Opcode::Write, 1, to, 0), &[segment(from, 0, size as u32)]);
        begin(&mut rig, &cable[0]);
        match reset {
            true => rig.set_state(&a, QpState::Reset).expect("RESET"),
            false => {
                let args = DestroyQp { unless_bound: 0, reserved: 0 };
                rig.command(0, Command::DestroyQp, a.qpn, &args).expect("destroyed");
            }
        }
        cable[0].set_room(true);
        wait(&mut rig);
        assert_eq!(ends(&mut rig, 1), [(b.qpn, StreamFault::Lost, NOT_COMPLETED)], "reset: {reset}");
        assert_eq!(ends(&mut rig, 0), []);
    }
}

/// Lets a message begin that is larger than the stream's ring: it waits for room.
fn begin(rig: &mut Rig, end: &CableEnd) {
    end.set_room(false);
    rig.run();
}

/// One refused message: what the initiator posts, and what both drivers learn.
struct Refusal {
    head: fn(u32, u32) -> Header,
    /// Bytes of the request, and of the peer's receive, if there is one.
    length: u32,
    receive: Option<u32>,
    /// How the request ends, and the receive.
    sent: Status,
    received: Option<Status>,
    fault: StreamFault,
    code: u32,
}

#[test]
fn what_a_peer_refuses_ends_the_connection_with_the_reason_at_both_ends() {
    let (ok, rw) = (Status::Success, LinkFlags::LOCAL_READ | LinkFlags::LOCAL_WRITE);
    for (number, case) in [
        // No such key, beyond the end, without the right.
        (0, write(|_, _| rdma(Opcode::Write, 1, 0x77_00, 0), 0x1100)),
        (1, write(|key, _| rdma(Opcode::Write, 1, key, 4090), 0x1101)),
        (2, write(|_, local| rdma(Opcode::Write, 1, local, 0), 0x0102)),
        (3, read(|_, _| rdma(Opcode::Read, 1, 0x77_00, 0), 0x0100)),
        (4, read(|key, _| rdma(Opcode::Read, 1, key, 4090), 0x0101)),
        (5, read(|_, local| rdma(Opcode::Read, 1, local, 0), 0x0102)),
        (
            6,
            Refusal {
                head: |_, _| header(Opcode::Send, 1),
                length: 8,
                receive: None,
                sent: ok,
                received: None,
                fault: StreamFault::Receive,
                code: 0x1202,
            },
        ),
        (
            7,
            Refusal {
                head: |_, _| header(Opcode::Send, 1),
                length: 9,
                receive: Some(8),
                sent: ok,
                received: Some(Status::LocalLength),
                fault: StreamFault::ReceiveLength,
                code: 0x1205,
            },
        ),
        (
            8,
            Refusal {
                head: |_, local| Header { immediate: local, ..header(Opcode::SendInvalidate, 1) },
                length: 8,
                receive: Some(8),
                sent: ok,
                received: Some(Status::LocalAccess),
                fault: StreamFault::Invalidate,
                code: 0x0109,
            },
        ),
    ] {
        for (mut rig, mut a, mut b) in pairs() {
            let (from, _) = rig.region(0, 4096);
            let (key, _) = rig.region(1, 4096);
            let (local, _) = rig.region_with(1, 4096, rw, 0);
            let named = crate::keys::query(&mut rig, 1, key).remote;
            let local = crate::keys::query(&mut rig, 1, local).remote;
            if let Some(room) = case.receive {
                rig.post_receive(&mut b, 9, &[segment(key, 0, room)]);
            }
            rig.post(&mut a, (case.head)(named, local), &[segment(from, 0, case.length)]);
            rig.post_receive(&mut a, 5, &[]);
            wait(&mut rig);
            assert_eq!(status(&rig.sent(&mut a)), case.sent, "case {number}");
            assert_eq!(status(&rig.received(&mut a)), Status::Flushed, "case {number}");
            let shown_there = if case.received.is_some() { 0 } else { NOT_COMPLETED };
            let there = (b.qpn, case.fault, case.code | TERMINATE_SENT | shown_there);
            assert_eq!(ends(&mut rig, 1), [there], "case {number}");
            let shown_here = if case.sent == ok { NOT_COMPLETED } else { 0 };
            let here = (a.qpn, StreamFault::Terminated, case.code | TERMINATE_RECEIVED | shown_here);
            assert_eq!(ends(&mut rig, 0), [here], "case {number}");
            if let Some(received) = case.received {
                assert_eq!(status(&rig.received(&mut b)), received, "case {number}");
            }
            // The Terminate names the message, if it is not about this end alone.
            assert_ne!((rig.query(&a).quoted, rig.query(&a).quoted_offset), (0, 0), "case {number}");
        }
    }
}

fn write(head: fn(u32, u32) -> Header, code: u32) -> Refusal {
    let (sent, fault) = (Status::Success, StreamFault::Write);
    Refusal { head, length: 64, receive: None, sent, received: None, fault, code }
}

fn read(head: fn(u32, u32) -> Header, code: u32) -> Refusal {
    let (sent, fault) = (Status::RemoteAccess, StreamFault::ReadSource);
    Refusal { head, length: 64, receive: None, sent, received: None, fault, code }
}

#[test]
fn a_request_that_fails_here_shows_it_and_tells_the_peer() {
    for (mut rig, mut a, b) in pairs() {
        let (to, _) = rig.region(1, 64);
        rig.post(&mut a, rdma(Opcode::Write, 1, to, 0), &[segment(0x99_00, 0, 64)]);
        wait(&mut rig);
        let failed = rig.sent(&mut a);
        assert_eq!((status(&failed), failed.length), (Status::LocalProtection, 0));
        assert_eq!(ends(&mut rig, 0), [(a.qpn, StreamFault::Local, TERMINATE_SENT)]);
        let there = ends(&mut rig, 1);
        assert_eq!(there, [(b.qpn, StreamFault::Terminated, TERMINATE_RECEIVED | NOT_COMPLETED)]);
    }
}

#[test]
fn a_completion_queue_that_overflows_breaks_the_connection() {
    for mut rig in both() {
        connect_on(&mut rig);
        let (small, large) = (rig.create_cq(0, 1), rig.create_cq(0, 8));
        let mut a = rig.create_qp_on(0, spec(), small, large);
        let b = rig.create_qp(1, spec());
        super::join(&mut rig, &b, PASSIVE, StreamFlags::RESPONDER);
        super::join(&mut rig, &a, ACTIVE, StreamFlags::empty());
        let (from, _) = rig.region(0, 64);
        let (to, _) = rig.region(1, 64);
        for tag in 0..3 {
            rig.post(&mut a, rdma(Opcode::Write, tag, to, 0), &[segment(from, 0, 64)]);
        }
        wait(&mut rig);
        assert_eq!(ends(&mut rig, 0), [(a.qpn, StreamFault::Local, NOT_COMPLETED)]);
        assert_eq!(ends(&mut rig, 1), [(b.qpn, StreamFault::Lost, NOT_COMPLETED)]);
    }
}

#[test]
fn a_peer_that_takes_nothing_holds_nothing_for_long() {
    let ends_of_cable = cable();
    let mut rig = Rig::wired(ends_of_cable.clone(), 1500);
    let (mut a, _) = pair_on(&mut rig, spec());
    let size = 1 << 20;
    let (from, _) = rig.region(0, size);
    let (to, _) = rig.region(1, size);
    rig.post(&mut a, rdma(Opcode::Write, 1, to, 0), &[segment(from, 0, size as u32)]);
    ends_of_cable[0].plug(false);
    rig.run();
    rig.set_state(&a, QpState::Error).expect("ERROR");
    for _ in 0..3 {
        rig.advance(1_000_000_000);
    }
    assert_eq!(status(&rig.sent(&mut a)), Status::Flushed);
}

#[test]
fn connections_can_follow_each_other_on_one_queue_pair() {
    for (mut rig, mut a, mut b) in pairs() {
        for round in 0..3 {
            send_one(&mut rig, &mut a, &mut b, round);
            rig.set_state(&a, QpState::Error).expect("ERROR");
            wait(&mut rig);
            for qp in [&a, &b] {
                rig.set_state(qp, QpState::Reset).expect("RESET");
            }
            connect_again(&mut rig);
            super::join(&mut rig, &b, PASSIVE, StreamFlags::RESPONDER);
            super::join(&mut rig, &a, ACTIVE, StreamFlags::empty());
            settle(&mut rig);
        }
        send_one(&mut rig, &mut a, &mut b, 9);
    }
}

fn send_one(rig: &mut Rig, a: &mut Qp, b: &mut Qp, tag: u32) {
    rig.post_receive(b, tag, &[]);
    rig.post(a, header(Opcode::Send, tag), &[]);
    settle(rig);
    assert_eq!((status(&rig.sent(a)), status(&rig.received(b))), (Status::Success, Status::Success));
}
