//! The turns of a queue pair that sends by the port: its answers and its requests, and requests
//! that have to wait.

use std::cell::RefCell;
use std::rc::Rc;

use nic_abi::admin::{ModifyQp, QpMask};
use nic_abi::cqe::Status;
use nic_abi::wqe::{Header, Opcode, SendFlags};
use nic_model::Wire;
use nic_model::testing::{CableEnd, Qp, Rig, Through, cable, header, rdma, segment, status};

use crate::packets::completions;

/// Where the operation code of a packet over IPv4 is in its frame.
const OPCODE: usize = 14 + 20 + 8;

/// The first request of a queue pair that has many answers to send does not wait for their end.
#[test]
fn a_first_request_takes_turns_with_the_answers_to_the_peer() {
    let opcodes = Rc::new(RefCell::new(Vec::new()));
    let [ours, theirs] = cable();
    let log = opcodes.clone();
    let recorder = move |end: &CableEnd, frame: &[u8]| {
        if frame[12..14] == [8, 0] {
            log.borrow_mut().push(frame[OPCODE]);
        }
        end.put(frame);
    };
    let wires: [Box<dyn Wire>; 2] = [Box::new(Through::new(ours, recorder)), Box::new(theirs)];
    let mut rig = Rig::wired(wires, 1500);
    let (mut a, mut b) = rig.pair();
    let size = 256 << 10;
    let (from, _) = rig.region(0, size);
    let (to, _) = rig.region(1, size);
    for tag in 0..4 {
        rig.post(&mut b, rdma(Opcode::Read, tag, from, 0), &[segment(to, 0, size as u32)]);
    }
    // The device answers already.
    while opcodes.borrow().len() < 40 {
        rig.step();
    }
    opcodes.borrow_mut().clear();
    rig.post_receive(&mut b, 9, &[segment(to, 0, 64)]);
    rig.post(&mut a, header(Opcode::Send, 9), &[segment(from, 0, 64)]);
    rig.run();
    let opcodes = opcodes.borrow();
    let before = opcodes.iter().position(|opcode| *opcode == 4).expect("the Send left");
    assert!(before < 64, "{before} packets left before the Send, of {}", opcodes.len());
    assert!(opcodes.len() > 600, "there were not so many answers: {}", opcodes.len());
}

/// Sets how many RDMA Reads and atomics a queue pair may have outstanding.
fn allow(rig: &mut Rig, qp: &Qp, max_rd_atomic: u8) {
    let mask = QpMask::MAX_RD_ATOMIC.bits();
    rig.modify(qp, &ModifyQp { mask, max_rd_atomic, ..ModifyQp::default() }).expect("a limit");
}

/// A request is checked when it is loaded. If the driver forbids it while it waits, it fails in its
/// place, as it would if it was posted now.
#[test]
fn a_read_that_waits_fails_when_reads_are_forbidden() {
    for fence in [SendFlags::FENCE_ALL, SendFlags::empty()] {
        for first in [Opcode::Write, Opcode::Read] {
            let late = Rc::new(RefCell::new(None));
            let [ours, theirs] = cable();
            let kept = late.clone();
            let holds = move |end: &CableEnd, frame: &[u8]| match &mut *kept.borrow_mut() {
                Some(frames) => Vec::push(frames, frame.to_vec()),
                None => end.put(frame),
            };
            let wires: [Box<dyn Wire>; 2] = [Box::new(ours), Box::new(Through::new(theirs.clone(), holds))];
            let mut rig = Rig::wired(wires, 1500);
            let (mut a, _b) = rig.pair();
            let (from, _) = rig.region(0, 4096);
            let (to, _) = rig.region(1, 4096);
            rig.post(&mut a, rdma(Opcode::Write, 0, to, 0), &[segment(from, 0, 8)]);
            assert_eq!(status(&rig.sent(&mut a)), Status::Success);
            allow(&mut rig, &a, 1);
            // The peer's answers are late, so what is behind the first request waits.
            *late.borrow_mut() = Some(Vec::new());
            rig.post(&mut a, rdma(first, 1, to, 0), &[segment(from, 0, 8)]);
            let waits = Header { flags: fence.bits(), ..rdma(Opcode::Read, 2, to, 0) };
            rig.post(&mut a, waits, &[segment(from, 0, 8)]);
            rig.post(&mut a, rdma(Opcode::Write, 3, to, 0), &[segment(from, 0, 8)]);
            rig.run();
            allow(&mut rig, &a, 0);
            let frames = late.borrow_mut().take().expect("answers");
            frames.iter().for_each(|frame| theirs.put(frame));
            let done = completions(&mut rig, &mut a, 3);
            let found: Vec<_> = done.iter().map(|entry| (entry.tag, status(entry))).collect();
            // Without a fence the Read behind a Write has left before.
            let left = first == Opcode::Write && fence.is_empty();
            let expected = match left {
                true => [Status::Success; 3],
                false => [Status::Success, Status::LocalQpOperation, Status::Flushed],
            };
            assert_eq!(found, [1, 2, 3].map(|tag| (tag, expected[tag as usize - 1])), "{fence:?} {first:?}");
        }
    }
}
