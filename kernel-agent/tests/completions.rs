//! Completions: how many are taken and counted, and for which of them a CQ is armed.

extern crate ferrovia_kernel_agent as kernel_agent;

mod common;

use std::sync::atomic::Ordering;

use common::scene::*;
use kernel_agent::{Arm, QpAttributes, Shadow};
use nic_abi::admin::{CreateCq, Opcode};
use nic_abi::cqe::{CqeFlags, Status};
use nic_abi::doorbell::{ARM_NEXT, ARM_SOLICITED, record};
use nic_abi::registers::CQ_RECORDS;
use nic_abi::wqe::Segment;

#[test]
fn a_poll_takes_the_oldest_completions_up_to_a_number_and_counts_them() {
    let scene = Scene::new();
    let mut slotted = posted(&scene);
    (1..=5).for_each(|tag| slotted.complete(&scene, tag, 0));
    let poll = |most| {
        let mut cookies = Vec::new();
        let count = slotted.cq.poll(most, |completion| cookies.push(completion.cookie));
        assert_eq!(count, cookies.len());
        cookies
    };
    assert_eq!([poll(0), poll(3), poll(9), poll(9)], [vec![], vec![1, 2, 3], vec![4, 5], vec![]]);
}

#[test]
fn a_cq_whose_event_has_not_come_can_be_armed_for_more_and_not_for_less() {
    let cases = [
        (Arm::Solicited, Arm::Solicited, ARM_SOLICITED),
        (Arm::Solicited, Arm::Next, ARM_NEXT),
        (Arm::Next, Arm::Solicited, ARM_NEXT),
        (Arm::Next, Arm::Next, ARM_NEXT),
    ];
    let scene = Scene::new();
    for (first, second, armed) in cases {
        let cq = scene.client.create_cq(16, 1).unwrap();
        cq.arm(first);
        cq.arm(second);
        let word = scene.fake.registers().atomic_u32(record(CQ_RECORDS, cq.number()) + 4).unwrap();
        assert_eq!(word.load(Ordering::Acquire), armed, "{first:?} and then {second:?}");
        cq.destroy().unwrap();
    }
}

#[test]
fn a_run_of_any_successes_ends_at_a_failure_and_drops_what_makes_no_sense() {
    const REASON: u32 = 1 << 3;
    let scene = Scene::new();
    let mut slotted = posted(&scene);
    let take = |slotted: &Slotted, handle, but, most| {
        let mut into = vec![0; most];
        let (count, other) =
            slotted.completions.take_any_n(handle, but, &mut into, |completion| completion.cookie);
        assert!(into[count..].iter().all(|&cookie| cookie == 0));
        into.truncate(count);
        (into, other)
    };
    assert_eq!(take(&slotted, HANDLE, 0, 4), (vec![], false));
    // The second 2 is of a request that is complete, and has no place in the run.
    for tag in [1, 2, 2, 3, 4, 5] {
        slotted.write(&scene, entry(&slotted.qp, slotted.qp.generation(), tag, 5, 0, CqeFlags::GRH.bits()));
    }
    slotted.complete(&scene, 6, Status::Flushed as u8);
    assert_eq!(take(&slotted, HANDLE + 1, 0, 4), (vec![], true));
    slotted.completions.set_closed(HANDLE, REASON, || true);
    assert_eq!(take(&slotted, HANDLE, 0, 4), (vec![], true));
    assert_eq!(take(&slotted, HANDLE, REASON, 4), (vec![1, 2], true));
    assert_eq!((slotted.cq.dropped(), slotted.consumed(&scene)), (1, 4));
    assert_eq!(take(&slotted, HANDLE, REASON, 2), (vec![3, 4], true));
    assert_eq!(take(&slotted, HANDLE, REASON, 2), (vec![5], true));
    assert_eq!((slotted.cq.dropped(), slotted.consumed(&scene)), (1, 7));
    assert_eq!(slotted.cq.poll_one().map(|completion| completion.cookie), Some(6));
}

#[test]
fn a_completion_of_a_shared_receive_waits_only_if_that_receive_is_outstanding() {
    let scene = Scene::new();
    let pd = scene.client.create_pd().unwrap();
    let cq = scene.client.create_cq(16, 9).unwrap();
    let (_, ring) = scene.fake.last::<CreateCq>(Opcode::CreateCq);
    let srq = scene.client.create_srq(&pd, 8, 1, 0, 5).unwrap();
    let qp = scene.client.create_qp(&QpAttributes { srq: Some(&srq), ..attributes(&pd, &cq, 1) }).unwrap();
    let segment = Segment { addr: 0, length: 100, key: 0 };
    srq.post_receive(false, &[segment], |&segment| segment, Shadow { cookie: 70, data: 0 }).unwrap();
    let write = |index, tag| {
        let words = entry(&qp, qp.generation(), tag, 5, 0, CqeFlags::RECEIVE.bits());
        scene.fake.write_entry(ring.ring, ring.log_entries, index, words);
    };
    // Entries are judged one by one only while some may be of a queue pair that is gone.
    let another_goes = || scene.client.create_qp(&attributes(&pd, &cq, 2)).unwrap().destroy().unwrap();
    write(0, 0);
    another_goes();
    assert!(cq.has_completion());
    assert_eq!(cq.poll_one().map(|completion| completion.cookie), Some(70));
    write(1, 0);
    another_goes();
    assert_eq!((cq.has_completion(), cq.dropped()), (false, 1));
}
