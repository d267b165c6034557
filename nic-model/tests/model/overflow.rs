//! Event queues and completion queues that overflow, and what the device stops doing then.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use nic_abi::admin::{
    self, Command, CreateQp, FLAG_EVENT, Inject, Injection, ModifyQp, ModifySrq, Opcode, QpFlags, QpState,
};
use nic_abi::cqe::Status;
use nic_abi::doorbell::{ARM_NEXT, Kind};
use nic_abi::eqe::EventType;
use nic_abi::registers::{self, Fault, State};
use nic_abi::wqe::{self, AtomicArgs, Header};
use nic_model::testing::{Qp, QpSpec, Rig, command, header, rdma, segment, status};

/// Fills event queue 0 of NIC `n` with events that the driver does not consume, so that the next
/// event overflows it.
fn fill_events(rig: &mut Rig, n: usize) {
    rig.events(n);
    for _ in 0..64 {
        let nop = Command { flags: FLAG_EVENT, ..command(Opcode::Nop, &()) };
        rig.raw_command(n, &nop).expect("an answer");
    }
    assert_eq!(rig.state(n), State::Ready as u32, "a full queue has not overflowed");
}

/// Checks that the device of NIC `n` has failed because an event did not fit.
fn overflowed(rig: &Rig, n: usize) {
    assert_eq!(rig.state(n), State::Failed as u32);
    let fault = rig.register(n, registers::STATUS_FAULT).load(Ordering::Relaxed);
    assert_eq!(fault, Fault::EventQueueOverflow as u32);
}

/// A queue pair on NIC 1 in RTR, connected to one on NIC 0 in RTS.
fn half_open(spec: QpSpec) -> (Rig, Qp, Qp) {
    let mut rig = Rig::new(2);
    let a = rig.create_qp(0, QpSpec::default());
    let b = rig.create_qp(1, spec);
    rig.join(&a, &b);
    rig.init(&b);
    let args = rig.rtr_args(&b, &a);
    rig.modify(&b, &args).expect("RTR");
    (rig, a, b)
}

#[test]
fn a_request_whose_event_fails_the_device_moves_nothing() {
    for opcode in [wqe::Opcode::Write, wqe::Opcode::Read, wqe::Opcode::FetchAdd, wqe::Opcode::Send] {
        let (mut rig, mut a, mut b) = half_open(QpSpec::default());
        let ((from, source), (to, target)) = (rig.region(0, 64), rig.region(1, 64));
        rig.fill(source, 64, 1);
        rig.fill(target, 64, 2);
        rig.post_receive(&mut b, 7, &[segment(to, 0, 8)]);
        fill_events(&mut rig, 1);
        let memory =
            |rig: &Rig| (rig.bytes(source, 64), rig.bytes(target, 64), rig.bytes(b.receive_cq.ring.addr, 64));
        let before = memory(&rig);
        if opcode == wqe::Opcode::FetchAdd {
            let atomic = AtomicArgs { sink: segment(from, 0, 8), compare_add: 1, swap: 0 };
            let head = Header { segments: 1, ..rdma(opcode, 1, to, 0) };
            rig.post_args(&mut a, head, zerocopy::transmute!(atomic));
        } else {
            rig.post(&mut a, rdma(opcode, 1, to, 0), &[segment(from, 0, 8)]);
        }
        rig.run();
        overflowed(&rig, 1);
        assert_eq!(memory(&rig), before, "{opcode:?}");
        rig.advance(1_000_000_000);
        rig.advance(1_000_000_000);
        rig.advance(1_000_000_000);
        assert_eq!(status(&rig.sent(&mut a)), Status::RetryExceeded, "{opcode:?}: no answer came");
        assert_eq!(memory(&rig).1, before.1, "{opcode:?}");
    }
}

#[test]
fn a_request_whose_srq_limit_event_fails_the_device_moves_nothing() {
    for opcode in [wqe::Opcode::Send, wqe::Opcode::WriteImmediate] {
        let mut rig = Rig::new(2);
        let ring = rig.create_srq(1, 4, 0);
        let a = rig.create_qp(0, QpSpec::default());
        let b = rig.create_qp(1, QpSpec { flags: QpFlags::SRQ, srq: 4, ..QpSpec::default() });
        rig.join(&a, &b);
        rig.join(&b, &a);
        let mut a = a;
        let ((from, source), (to, target)) = (rig.region(0, 64), rig.region(1, 64));
        rig.fill(source, 64, 1);
        rig.fill(target, 64, 2);
        rig.write_receive(ring, 0, 9, &[segment(to, 0, 8)]);
        rig.ring(1, Kind::SharedReceive, 4, 1);
        rig.command(1, Opcode::ModifySrq, 4, &ModifySrq { limit: 1, reserved: 0 }).expect("a limit");
        fill_events(&mut rig, 1);
        let memory = |rig: &Rig| (rig.bytes(target, 64), rig.bytes(b.receive_cq.ring.addr, 64));
        let before = memory(&rig);
        rig.post(&mut a, rdma(opcode, 1, to, 0), &[segment(from, 0, 8)]);
        rig.run();
        overflowed(&rig, 1);
        assert_eq!(memory(&rig), before, "{opcode:?}");
    }
}

#[test]
fn a_completion_whose_event_fails_the_device_is_the_last() {
    let mut rig = Rig::new(2);
    let (mut a, mut b) = rig.pair();
    for tag in 0..3 {
        rig.post_receive(&mut b, tag, &[]);
    }
    fill_events(&mut rig, 1);
    rig.arm_cq(&b.receive_cq, ARM_NEXT);
    for tag in 0..3 {
        rig.post(&mut a, header(wqe::Opcode::Send, tag), &[]);
    }
    rig.run();
    overflowed(&rig, 1);
    assert_eq!(rig.poll_cq(&mut b.receive_cq).expect("the one that raised the event").tag, 0);
    assert!(rig.poll_cq(&mut b.receive_cq).is_none());
    // Events that overflow while a queue is flushed, on a device of its own.
    let mut rig = Rig::new(1);
    let mut qp = rig.create_qp(0, QpSpec::default());
    rig.init(&qp);
    for tag in 0..3 {
        rig.post_receive(&mut qp, tag, &[]);
    }
    fill_events(&mut rig, 0);
    rig.arm_cq(&qp.receive_cq, ARM_NEXT);
    rig.set_state(&qp, QpState::Error).expect("ERROR");
    rig.run();
    overflowed(&rig, 0);
    assert_eq!(rig.poll_cq(&mut qp.receive_cq).expect("the one that raised the event").tag, 0);
    assert!(rig.poll_cq(&mut qp.receive_cq).is_none());
}

#[test]
fn a_command_whose_event_fails_the_device_is_not_answered() {
    for case in 0..2 {
        let mut rig = Rig::new(1);
        rig.create_srq(0, 4, 0);
        fill_events(&mut rig, 0);
        let last = match case {
            // The limit is above the entries left, so the event comes at once.
            0 => Command { object: 4, ..command(Opcode::ModifySrq, &ModifySrq { limit: 1, reserved: 0 }) },
            _ => command(Opcode::Inject, &Inject { what: Injection::Port as u32, count: 0, value: 0 }),
        };
        assert!(rig.raw_command(0, &last).is_none());
        overflowed(&rig, 0);
    }
}

/// A queue pair whose send CQ has overflowed, and its peer.
fn overflowed_cq(rig: &mut Rig) -> (Qp, Qp) {
    let (send_cq, receive_cq) = (rig.create_cq(0, 1), rig.create_cq(0, 4));
    let mut a = rig.create_qp_on(0, QpSpec::default(), send_cq, receive_cq);
    let b = rig.create_qp(1, QpSpec::default());
    rig.join(&a, &b);
    rig.join(&b, &a);
    for tag in 0..3 {
        rig.post(&mut a, rdma(wqe::Opcode::Write, tag, 0, 0), &[]);
    }
    rig.run();
    assert_eq!(rig.event_types(0), [(EventType::CqError, send_cq.number), (EventType::QpFatal, a.qpn)]);
    (a, b)
}

#[test]
fn a_queue_pair_of_a_failed_cq_stays_out_of_service() {
    let mut rig = Rig::new(2);
    let (a, b) = overflowed_cq(&mut rig);
    let state_field = 16 + offset_of!(ModifyQp, state) as u16;
    for _ in 0..2 {
        rig.set_state(&a, QpState::Reset).expect("RESET is always allowed");
        let refused = rig.set_state(&a, QpState::Init);
        assert_eq!(refused, Err((admin::Status::BadState, state_field)));
        assert_eq!(rig.query(&a).state, QpState::Reset as u32, "a refused command changes nothing");
        rig.set_state(&a, QpState::Error).expect("ERROR is always allowed");
    }
    assert_eq!(rig.query(&b).state, QpState::Rts as u32);
    rig.command(0, Opcode::DestroyQp, a.qpn, &()).expect("it can be destroyed");
    rig.command(0, Opcode::DestroyCq, a.send_cq.number, &()).expect("the CQ as well");
}

#[test]
fn no_queue_pair_is_created_on_a_failed_queue() {
    let mut rig = Rig::new(2);
    let (a, _) = overflowed_cq(&mut rig);
    let good = rig.create_cq(0, 4);
    rig.create_srq(0, 4, 0);
    let fields = [offset_of!(CreateQp, send_cq), offset_of!(CreateQp, receive_cq)];
    for ([send_cq, receive_cq], field) in [[a.send_cq, good], [good, a.send_cq]].into_iter().zip(fields) {
        let args = rig.qp_args(QpSpec::default(), send_cq, receive_cq);
        let refused = rig.command(0, Opcode::CreateQp, nic_abi::ident::qpn(77, 1), &args);
        assert_eq!(refused.map(|_| ()), Err((admin::Status::BadState, 16 + field as u16)));
    }
    // An impossible tail fails the SRQ when a message needs a receive.
    let x = rig.create_qp(0, QpSpec { flags: QpFlags::SRQ, srq: 4, ..QpSpec::default() });
    let mut y = rig.create_qp(1, QpSpec::default());
    rig.join(&x, &y);
    rig.join(&y, &x);
    rig.ring(0, Kind::SharedReceive, 4, 1000);
    rig.post(&mut y, header(wqe::Opcode::Send, 1), &[]);
    rig.run();
    assert!(rig.event_types(0).contains(&(EventType::SrqError, 4)));
    let spec = QpSpec { flags: QpFlags::SRQ, srq: 4, ..QpSpec::default() };
    let args = rig.qp_args(spec, good, good);
    let refused = rig.command(0, Opcode::CreateQp, nic_abi::ident::qpn(77, 1), &args);
    let field = 16 + offset_of!(CreateQp, srq) as u16;
    assert_eq!(refused.map(|_| ()), Err((admin::Status::BadState, field)));
    rig.set_state(&x, QpState::Reset).expect("RESET");
    assert_eq!(rig.set_state(&x, QpState::Init).map_err(|e| e.0), Err(admin::Status::BadState));
    let refused = rig.command(0, Opcode::ModifySrq, 4, &ModifySrq { limit: 1, reserved: 0 });
    let field = offset_of!(Command, object) as u16;
    assert_eq!(refused.map(|_| ()), Err((admin::Status::BadState, field)));
    let args = rig.qp_args(QpSpec::default(), good, good);
    rig.command(0, Opcode::CreateQp, nic_abi::ident::qpn(77, 1), &args)
        .expect("none of its objects has failed");
}
