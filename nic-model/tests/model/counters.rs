//! What a NIC counts: each thing once, whichever way it comes.

use std::sync::atomic::Ordering;

use nic_abi::admin::{Injection, Opcode as Command, QpFlags, QpState};
use nic_abi::cqe::Status;
use nic_abi::doorbell::{self, Kind};
use nic_abi::ident::qpn_slot;
use nic_abi::registers;
use nic_abi::vi::Reliability;
use nic_abi::wqe::Opcode;
use nic_model::testing::{PD, Qp, QpSpec, Rig, ViSpec, header, rdma, segment, status};

use crate::packets::{completions, rig as wired};

/// A tail that no ring of the rig allows.
const IMPOSSIBLE: u32 = 5000;

/// Writes a tail into a queue's doorbell record, without a doorbell.
fn set_tail(rig: &Rig, qp: &Qp, records: usize, tail: u32) {
    let record = doorbell::record(records, qpn_slot(qp.qpn));
    rig.register(qp.nic, record).store(tail, Ordering::Release);
}

/// Lets a queue pair in the error state look at its queues.
fn look(rig: &mut Rig, qp: &Qp) {
    rig.push_doorbell(qp.nic, Kind::Receive, qpn_slot(qp.qpn));
    rig.run();
}

#[test]
fn requests_and_receives_count_when_they_end_and_flushed_ones_apart() {
    for (mut rig, way) in [(Rig::new(2), "short cut"), (wired().0, "wire")] {
        let (mut a, mut b) = rig.pair();
        let (from, _) = rig.region(0, 64);
        for tag in 0..2 {
            rig.post_receive(&mut b, tag, &[]);
            rig.post(&mut a, header(Opcode::Send, tag), &[]);
        }
        completions(&mut rig, &mut a, 2);
        for n in 0..2 {
            assert_eq!((rig.stats(n).completed, rig.stats(n).flushed), (2, 0), "{way}");
        }
        // Three requests that no answer comes to, and receives that no message takes.
        rig.inject(0, Injection::DropRequests, a.qpn, u32::MAX, 0);
        for tag in 0..3 {
            rig.post(&mut a, header(Opcode::Send, tag), &[segment(from, 0, 8)]);
            rig.post_receive(&mut b, tag, &[]);
        }
        rig.run();
        rig.set_state(&a, QpState::Error).unwrap();
        rig.set_state(&b, QpState::Error).unwrap();
        rig.run();
        for n in 0..2 {
            assert_eq!((rig.stats(n).completed, rig.stats(n).flushed), (2, 3), "{way}");
        }
        while let Some(entry) = rig.poll_cq(&mut a.send_cq) {
            assert_eq!(status(&entry), Status::Flushed);
        }
    }
}

#[test]
fn lost_answers_count_on_both_ways() {
    for (mut rig, way) in [(Rig::new(2), "short cut"), (wired().0, "wire")] {
        let (mut a, _b) = rig.pair();
        let (from, _) = rig.region(0, 64);
        let (to, _) = rig.region(1, 64);
        rig.inject(0, Injection::DropResponses, a.qpn, 2, 0);
        rig.post(&mut a, rdma(Opcode::Write, 1, to, 0), &[segment(from, 0, 8)]);
        assert_eq!(status(&completions(&mut rig, &mut a, 1)[0]), Status::Success, "{way}");
        assert_eq!((rig.stats(0).lost_answers, rig.stats(0).lost_requests), (2, 2), "{way}");
    }
}

#[test]
fn an_impossible_tail_counts_where_the_device_finds_it() {
    // The admin queue's.
    let mut rig = Rig::new(1);
    rig.ring(0, Kind::Admin, 0, 1000);
    rig.run();
    assert_eq!(rig.stats(0).bad_tails, 1);
    // A send queue's, at the doorbell.
    let mut rig = Rig::new(2);
    let (a, _b) = rig.pair();
    rig.ring(0, Kind::Send, qpn_slot(a.qpn), IMPOSSIBLE);
    rig.run();
    assert_eq!(rig.stats(0).bad_tails, 1);
    // A receive queue's and an SRQ's, when a message comes.
    for shared in [false, true] {
        let mut rig = Rig::new(2);
        rig.create_srq(1, 4, 0);
        let flags = if shared { QpFlags::SRQ } else { QpFlags::empty() };
        let mut a = rig.create_qp(0, QpSpec::default());
        let b = rig.create_qp(1, QpSpec { flags, srq: 4, ..QpSpec::default() });
        rig.join(&a, &b);
        rig.join(&b, &a);
        set_tail(&rig, &b, registers::RQ_RECORDS, IMPOSSIBLE);
        let srq = doorbell::record(registers::SRQ_RECORDS, 4);
        rig.register(1, srq).store(IMPOSSIBLE, Ordering::Release);
        assert_eq!(rig.stats(1).bad_tails, 0);
        rig.post(&mut a, header(Opcode::Send, 1), &[]);
        assert_eq!(status(&rig.sent(&mut a)), Status::RemoteOperation);
        assert_eq!(rig.stats(1).bad_tails, 1, "shared: {shared}");
    }
    // The receive queue's of a virtual interface.
    let mut rig = Rig::new(2);
    let [mut a, b] = rig.vi_pair(ViSpec::new(Reliability::Reception));
    set_tail(&rig, &b.qp, registers::RQ_RECORDS, IMPOSSIBLE);
    rig.post_request(&mut a, nic_abi::vi::Control::empty(), None, 8);
    rig.run();
    assert_eq!(rig.stats(1).bad_tails, 1);
}

/// The device looks at the tail of a send queue in the error state with each doorbell of the
/// receive queue, too.
#[test]
fn each_impossible_tail_of_a_send_queue_that_is_flushed_counts_once() {
    for vi in [false, true] {
        let mut rig = Rig::new(1);
        let qp = match vi {
            true => rig.create_vi(0, ViSpec::new(Reliability::Reception)).qp,
            false => rig.create_qp(0, QpSpec::default()),
        };
        rig.set_state(&qp, QpState::Error).unwrap();
        rig.run();
        let counted = |rig: &mut Rig, tail| {
            let before = rig.stats(0).bad_tails;
            set_tail(rig, &qp, registers::SQ_RECORDS, tail);
            look(rig, &qp);
            rig.stats(0).bad_tails - before
        };
        assert_eq!(counted(&mut rig, 0), 0, "vi: {vi}");
        let first = counted(&mut rig, IMPOSSIBLE);
        assert_eq!(first, 1, "vi: {vi}");
        if !vi {
            assert_eq!(counted(&mut rig, IMPOSSIBLE), 0, "it has been counted");
            assert_eq!(counted(&mut rig, IMPOSSIBLE + 1), 1);
        }
        assert_eq!(rig.stats(0).flushed, 0, "nothing is flushed while the tail is impossible");
    }
}

#[test]
fn a_doorbell_counts_as_bad_if_there_is_no_such_queue() {
    let mut rig = Rig::new(1);
    rig.create_srq(0, 4, 0);
    let qp = rig.create_qp(0, QpSpec::default());
    let slot = qpn_slot(qp.qpn);
    let good = [(Kind::SharedReceive, 4), (Kind::Send, slot), (Kind::Receive, slot), (Kind::Admin, 0)];
    for (kind, slot) in good {
        rig.push_doorbell(0, kind, slot);
    }
    rig.run();
    assert_eq!(rig.stats(0).bad_doorbells, 0);
    for (n, (kind, slot)) in good.into_iter().enumerate() {
        rig.push_doorbell(0, kind, slot + 1);
        rig.run();
        assert_eq!(rig.stats(0).bad_doorbells, n as u64 + 1, "{kind:?}");
    }
}

#[test]
fn an_interrupt_counts_once() {
    let mut rig = Rig::new(1);
    let before = rig.stats(0).interrupts;
    rig.arm_eq(0);
    // The limit of an SRQ that is empty is reached at once.
    rig.create_srq(0, 4, 0);
    let limit = nic_abi::admin::ModifySrq { limit: 1, reserved: 0 };
    rig.command(0, Command::ModifySrq, 4, &limit).unwrap();
    assert_eq!((rig.raised(0, 1), rig.stats(0).interrupts - before), (1, 1));
    rig.command(0, Command::CreatePd, PD + 1, &()).unwrap();
    assert_eq!(rig.stats(0).interrupts - before, 1);
}
