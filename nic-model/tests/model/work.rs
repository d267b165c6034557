//! What counts as how much work: a poll ends when it has done enough, whatever it did.

use nic_abi::admin::{
    AllocateRegion, Command, ModifyQp, Opcode, QpMask, QpState, QpType, RegisterRegion, ResizeCq,
    ShareRegion, Status as Refused,
};
use nic_abi::cqe::Status;
use nic_abi::wqe::{self, LinkFlags, ListArgs};
use nic_model::Progress;
use nic_model::testing::{ALL_RIGHTS, PD, QpSpec, Rig, command, rdma, segment, status};
use platform::Instant;

use crate::keys::{allocate, link, list, privileged};
use crate::packets::rig as wired;
use crate::queues::{self, send_datagram};

/// Polls until there is nothing to do; returns the units of work of all polls.
fn work(rig: &mut Rig) -> u32 {
    let mut units = 0;
    while rig.fabric.poll(Instant::from_nanos(rig.now), 1) == Progress::Worked {
        units += rig.fabric.work_of_last_poll();
    }
    assert_eq!(rig.fabric.work_of_last_poll(), 0);
    units
}

#[test]
fn a_command_is_as_much_work_as_what_it_names_is_long() {
    let mut rig = Rig::new(1);
    let cq = rig.create_cq(0, 4);
    let page = rig.alloc(4096);
    let pages = list(&mut rig, &[page; 640]);
    let ring = rig.alloc(32 << 10);
    let [one, other, third] = [(); 3].map(|()| rig.fresh_key());
    let of = |key: u32, elements: u32| RegisterRegion {
        pd: PD,
        flags: (ALL_RIGHTS | LinkFlags::RELATIVE).bits(),
        base: 0,
        length: 4096,
        list: ListArgs { list: pages, element_length: 4096, elements, remote: key, ..ListArgs::default() },
    };
    let share = |key: u32, elements: u32| {
        let RegisterRegion { pd, flags, base, length, list } = of(key, elements);
        ShareRegion { pd, flags, base, length, list, of: one, reserved: 0 }
    };
    let resize = |log_entries: u32| ResizeCq { ring, log_entries, reserved: 0 };
    let (good, bad) = (Refused::Success, Refused::BadField);
    // 64 elements or entries are a unit; of what is too long no more counts than the NIC allows.
    for (object, command, units, expected) in [
        (0, command(Opcode::Nop, &()), 0, good),
        (one, command(Opcode::RegisterRegion, &of(one, 640)), 10, good),
        (other, command(Opcode::ShareRegion, &share(other, 640)), 10, good),
        (third, command(Opcode::ShareRegion, &share(third, u32::MAX)), 1 << 12, bad),
        (cq.number, command(Opcode::ResizeCq, &resize(10)), 16, good),
        (cq.number, command(Opcode::ResizeCq, &resize(u32::MAX)), 1 << 14, bad),
        (third, command(Opcode::AllocateRegion, &AllocateRegion { pd: PD, max_elements: 640 }), 0, good),
        // The longest list that it may have, at 4096 elements.
        (other, command(Opcode::DestroyRegion, &()), 64, good),
    ] {
        let index = rig.issue(0, &Command { object, ..command });
        let opcode = command.opcode;
        assert_eq!(work(&mut rig), 2 + units, "the doorbell, the command, and more: {opcode:#x}");
        assert_eq!(rig.answer(0, index).map(|answer| answer.status), Some(expected as u16), "{opcode:#x}");
    }
}

#[test]
fn a_link_is_as_much_work_as_its_list_is_long() {
    let mut units = [1, 128, 640].map(|elements| {
        let mut rig = Rig::new(1);
        let (mut a, _b) = rig.pair_of(0, 0, privileged());
        let page = rig.alloc(4096);
        let pages = list(&mut rig, &[page; 640]);
        let key = allocate(&mut rig, 0, 640);
        let args =
            ListArgs { list: pages, element_length: 4096, first_byte_offset: 0, elements, remote: key };
        let flags = LinkFlags::LOCAL_READ | LinkFlags::RELATIVE;
        rig.post_args(&mut a, link(key, flags, 0, 4096), zerocopy::transmute!(args));
        let units = work(&mut rig);
        assert_eq!(status(&rig.sent(&mut a)), Status::Success);
        units
    });
    let least = units[0];
    units.iter_mut().for_each(|units| *units -= least);
    assert_eq!(units, [0, 128 / 64, 640 / 64]);
}

/// The work of a request of this length over a wire: of both NICs.
fn request(opcode: wqe::Opcode, length: u32) -> u32 {
    let (mut rig, _) = wired();
    let (mut a, _b) = rig.pair();
    let (from, _) = rig.region(0, 1024);
    let (to, _) = rig.region(1, 1024);
    // The ports find each other.
    rig.post(&mut a, rdma(wqe::Opcode::Write, 0, to, 0), &[]);
    assert_eq!(status(&rig.sent(&mut a)), Status::Success);
    rig.post(&mut a, rdma(opcode, 1, to, 0), &[segment(from, 0, length)]);
    let units = work(&mut rig);
    assert_eq!(status(&rig.sent(&mut a)), Status::Success);
    units
}

/// The work of a datagram of this length.
fn datagram(length: u32) -> u32 {
    let (mut rig, _) = wired();
    let [mut a, b] = [0, 1].map(|n| rig.datagram_qp(n, 7, 5));
    let (from, _) = rig.region(0, 1024);
    let to = queues::datagram(&rig, &b, 5);
    let mut send = |rig: &mut Rig, length| {
        send_datagram(rig, &mut a, to, wqe::Opcode::Send, &[segment(from, 0, length)]);
        let units = work(rig);
        assert_eq!(status(&rig.sent(&mut a)), Status::Success);
        units
    };
    send(&mut rig, 0);
    send(&mut rig, length)
}

#[test]
fn bytes_in_packets_are_work_at_the_sender_and_at_the_receiver() {
    // 512 bytes are a unit. The sender counts those of the payload, the receiver those of the
    // frame, in which 62 to 74 are around the payload.
    for (length, units) in [(430, 0), (454, 1), (512, 2), (940, 2), (966, 3), (1024, 4)] {
        assert_eq!(datagram(length) - datagram(0), units, "{length}");
        assert_eq!(request(wqe::Opcode::Write, length) - request(wqe::Opcode::Write, 0), units, "{length}");
        assert_eq!(request(wqe::Opcode::Read, length) - request(wqe::Opcode::Read, 0), units, "{length}");
    }
}

/// The work in which a completion queue fails, on a NIC whose queue pairs have slots up to this
/// one.
fn failure(slot: u32) -> u32 {
    let mut rig = Rig::new(1);
    let cq = rig.create_cq(0, 1);
    rig.create_qp(0, QpSpec { slot: Some(slot), kind: QpType::Rc, ..QpSpec::default() });
    let (x, y) = (rig.create_qp_on(0, QpSpec::default(), cq, cq), rig.create_qp(0, QpSpec::default()));
    rig.join(&x, &y);
    rig.join(&y, &x);
    let mut x = x;
    for tag in 0..3 {
        rig.post(&mut x, rdma(wqe::Opcode::Write, tag, 0, 0), &[]);
    }
    let units = work(&mut rig);
    assert_eq!(rig.stats(0).lost_completions, 1);
    assert_eq!(rig.query(&x).state, QpState::Error as u32);
    units
}

#[test]
fn to_search_for_the_users_of_a_failed_completion_queue_is_work() {
    // 32 slots are a unit, and there are slots from 0 on.
    assert_eq!(failure(639) - failure(20), 640 / 32);
}

/// The work of a reset of a queue pair while another one has work; `busy` says whether the one that
/// is reset has some, too.
fn reset(busy: bool) -> u32 {
    let mut rig = Rig::new(1);
    let [(mut a, _), (mut b, _)] = [(); 2].map(|()| rig.pair_of(0, 0, QpSpec::default()));
    rig.post(&mut b, rdma(wqe::Opcode::Write, 1, 0, 0), &[]);
    if busy {
        rig.post(&mut a, rdma(wqe::Opcode::Write, 1, 0, 0), &[]);
    }
    let args = ModifyQp { mask: QpMask::STATE.bits(), state: QpState::Reset as u32, ..ModifyQp::default() };
    rig.issue(0, &Command { object: a.qpn, ..command(Opcode::ModifyQp, &args) });
    let before = rig.stats(0).completed;
    assert_eq!(rig.fabric.poll(Instant::from_nanos(rig.now), 64), Progress::Worked);
    assert_eq!(rig.stats(0).completed - before, 1, "the request of the other one");
    rig.fabric.work_of_last_poll()
}

#[test]
fn to_find_a_queue_pair_among_a_few_that_have_work_is_no_work() {
    assert_eq!(reset(true) - reset(false), 1, "its doorbell");
}
