//! Queue pairs whose peers are on the other side of a wire: two NICs, and only packets between
//! them.

use std::collections::VecDeque;

use nic_abi::admin::{Injection, ModifyQp, Opcode as Command, QpMask, QpState};
use nic_abi::cqe::{Cqe, CqeFlags, Status};
use nic_abi::eqe::EventType;
use nic_abi::wqe::{AddressVector, AtomicArgs, Header, LinkFlags, Opcode, SendFlags};
use nic_model::PacketDropped;
use nic_model::testing::{
    ALL_RIGHTS, CableEnd, Qp, QpSpec, Rig, Through, cable, command, header, rdma, segment, status,
};
use proptest::prelude::*;
use roce::transport::Reason;
use roce::wire::icrc;

use crate::keys::{bind, bind_args, remote, window};

/// The local ACK timeout of the rig's queue pairs.
const TIMEOUT: u64 = 4096 << 10;

/// Two NICs, and the ends of the cable between their ports.
pub(crate) fn rig() -> (Rig, [CableEnd; 2]) {
    let ends = cable();
    (Rig::wired(ends.clone(), 1500), ends)
}

/// A counter of a NIC.
fn counter(rig: &Rig, n: usize, name: &str) -> u64 {
    rig.fabric.counters(rig.nics[n].id).find(|(other, _)| *other == name).expect("a counter").1
}

pub(crate) fn dropped(rig: &Rig, n: usize, why: PacketDropped) -> u64 {
    rig.fabric.packet_counters(rig.nics[n].id).expect("a NIC").dropped(why)
}

pub(crate) fn reason(rig: &Rig, n: usize, why: Reason) -> u64 {
    rig.fabric.packet_counters(rig.nics[n].id).expect("a NIC").reason(why)
}

/// Lets time pass until a send queue has completed `count` work requests.
pub(crate) fn completions(rig: &mut Rig, qp: &mut Qp, count: usize) -> Vec<Cqe> {
    completions_in_steps(rig, qp, count, (10_000, TIMEOUT / 4))
}

/// The same in this many steps at most, of so many nanoseconds each.
pub(crate) fn completions_in_steps(
    rig: &mut Rig,
    qp: &mut Qp,
    count: usize,
    (steps, step): (u32, u64),
) -> Vec<Cqe> {
    let mut done = Vec::new();
    for _ in 0..steps {
        rig.run();
        while let Some(entry) = rig.poll_cq(&mut qp.send_cq) {
            done.push(entry);
        }
        if done.len() >= count {
            return done;
        }
        rig.now += step;
    }
    panic!("{} of {count} work requests are complete: {done:?}", done.len());
}

/// Allows the most possible retries.
fn patient(rig: &mut Rig, qp: &Qp) {
    rig.set_state(qp, QpState::Sqd).expect("SQD");
    let mask = (QpMask::STATE | QpMask::RETRY_COUNT | QpMask::RNR_RETRY).bits();
    let args =
        ModifyQp { mask, state: QpState::Rts as u32, retry_count: 7, rnr_retry: 7, ..ModifyQp::default() };
    rig.modify(qp, &args).expect("RTS");
}

/// Loses, repeats, reorders and changes frames on a wire.
///
/// At most two frames in a row do not arrive as they were sent. With independent losses one message
/// in 100,000 would have its eight attempts fail, which is a test in a hundred.
struct Bad {
    seed: u64,
    late: VecDeque<Vec<u8>>,
    spoiled: u8,
}

impl Bad {
    fn chance(&mut self, percent: u64) -> bool {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % 100 < percent
    }

    fn send(&mut self, end: &CableEnd, frame: &[u8]) {
        // ARP frames pass: a NIC without an answer to its ARP questions considers the peer silent,
        // and its requests fail.
        if frame[12..14] == [8, 6] {
            return end.put(frame);
        }
        let mut frame = frame.to_vec();
        let may_spoil = self.spoiled < 2;
        self.spoiled += 1;
        if may_spoil && self.chance(5) {
            return;
        }
        let changed = may_spoil && self.chance(3);
        if changed {
            let at = (self.seed >> 40) as usize % frame.len();
            frame[at] ^= 0x10;
        }
        if self.chance(5) {
            end.put(&frame);
        }
        if may_spoil && self.chance(5) {
            self.late.push_back(frame);
            return;
        }
        if !changed {
            self.spoiled = 0;
        }
        end.put(&frame);
        if self.chance(50)
            && let Some(late) = self.late.pop_front()
        {
            end.put(&late);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 40 }))]

    #[test]
    fn a_bad_wire_changes_nothing_but_the_time(
        seed: u64,
        kinds in prop::collection::vec((0..7_u8, 0..6000_u32), 1..60),
    ) {
        let mut seed = seed;
        let wires = cable().map(|end| {
            seed ^= 0x5555;
            let mut bad = Bad { seed, late: VecDeque::new(), spoiled: 0 };
            Through::new(end, move |end, frame| bad.send(end, frame))
        });
        let mut rig = Rig::wired(wires, 1500);
        let (mut a, mut b) = rig.pair();
        patient(&mut rig, &a);
        let size = 6000;
        let (from, source) = rig.region(0, size);
        let (to, target) = rig.region(1, size);
        let (sink, _) = rig.region(0, size);
        let (inbox, received) = rig.region(1, 64 * size);
        let (word, counter) = rig.region(1, 8);
        rig.fill(source, size as usize, 9);
        let (mut receives, mut added, mut written) = (Vec::new(), 0, 0);
        for (tag, (kind, length)) in kinds.iter().copied().enumerate() {
            let tag = tag as u32;
            // The queue has room for 32 blocks.
            if tag % 16 == 15 {
                let done = completions(&mut rig, &mut a, 15);
                prop_assert!(done.iter().all(|entry| status(entry) == Status::Success), "{done:?}");
                let tags: Vec<u32> = done.iter().map(|entry| entry.tag).collect();
                let first = tag - 15;
                prop_assert_eq!(tags, (first..tag).collect::<Vec<_>>());
            }
            let piece = [segment(from, 0, length)];
            let place = u64::from(tag) * size;
            if kind <= 1 {
                rig.post_receive(&mut b, tag, &[segment(inbox, place, size as u32)]);
                receives.push((place, length));
            }
            match kind {
                0 => rig.post(&mut a, header(Opcode::Send, tag), &piece),
                1 => {
                    let head = Header { immediate: tag, ..header(Opcode::SendImmediate, tag) };
                    rig.post(&mut a, head, &piece);
                }
                2 | 3 => {
                    rig.post(&mut a, rdma(Opcode::Write, tag, to, 0), &piece);
                    written = written.max(length);
                }
                4 => rig.post(&mut a, rdma(Opcode::Read, tag, to, 0), &[segment(sink, 0, length)]),
                _ => {
                    added += 1;
                    let head = rdma(Opcode::FetchAdd, tag, word, 0);
                    let args = AtomicArgs { sink: segment(sink, 0, 8), compare_add: 1, swap: 0 };
                    rig.post_args(&mut a, Header { segments: 1, ..head }, zerocopy::transmute!(args));
                }
            }
            if tag % 16 == 15 || tag as usize + 1 == kinds.len() {
                let left = if tag % 16 == 15 { 1 } else { tag as usize % 16 + 1 };
                let done = completions(&mut rig, &mut a, left);
                prop_assert!(done.iter().all(|entry| status(entry) == Status::Success), "{done:?}");
            }
        }
        prop_assert_eq!(rig.bytes(counter, 8), (added as u64).to_le_bytes());
        let bytes = rig.bytes(source, size as usize);
        prop_assert!(rig.bytes(target, written as usize) == bytes[..written as usize]);
        for (place, length) in receives {
            prop_assert!(rig.bytes(received + place, length as usize) == bytes[..length as usize]);
            let entry = rig.received(&mut b);
            prop_assert_eq!((status(&entry), entry.length), (Status::Success, length));
        }
    }
}

#[test]
fn every_operation_crosses_at_once_and_several_are_under_way() {
    let (mut rig, _) = rig();
    let (mut a, mut b) = rig.pair();
    let (from, source) = rig.region(0, 8192);
    let (to, target) = rig.region(1, 8192);
    rig.fill(source, 8192, 3);
    // No time passes: what was lost while the port asked for the MAC is sent again when the MAC is
    // known.
    rig.post(&mut a, rdma(Opcode::Write, 1, to, 0), &[segment(from, 0, 3000), segment(from, 5000, 3000)]);
    assert_eq!(status(&rig.sent(&mut a)), Status::Success);
    let bytes = rig.bytes(source, 8192);
    assert_eq!(rig.bytes(target, 3000), bytes[..3000]);
    assert_eq!(rig.bytes(target + 3000, 3000), bytes[5000..8000]);
    assert_eq!(rig.now, 0);
    // Writes of one packet each leave before the first is answered.
    for tag in 0..8 {
        rig.post(&mut a, rdma(Opcode::Write, tag, to, 0), &[segment(from, 0, 64)]);
    }
    rig.post(&mut a, rdma(Opcode::Read, 8, to, 0), &[segment(from, 4096, 4096)]);
    let packets = rig.port(1).packets_out;
    let done = completions(&mut rig, &mut a, 9);
    assert_eq!(done.iter().map(|entry| entry.tag).collect::<Vec<_>>(), (0..9).collect::<Vec<_>>());
    assert_eq!(done[8].length, 4096);
    // Four packets of the Read's answer, and fewer acknowledgements than Writes.
    assert!(rig.port(1).packets_out - packets < 4 + 8);
    assert_eq!(rig.bytes(source + 4096, 4096), rig.bytes(target, 4096));
    rig.post_receive(&mut b, 5, &[segment(to, 0, 8192)]);
    let head = Header { immediate: 7, ..rdma(Opcode::WriteImmediate, 9, to, 100) };
    rig.post(&mut a, head, &[segment(from, 0, 2000)]);
    assert_eq!(status(&rig.sent(&mut a)), Status::Success);
    let entry = rig.received(&mut b);
    assert_eq!((entry.tag, entry.immediate, entry.length, entry.detail), (5, 7, 0, 2000));
    assert_eq!(entry.flags, (CqeFlags::RECEIVE | CqeFlags::IMMEDIATE | CqeFlags::WRITE).bits());
}

#[test]
fn a_wire_that_is_cut_ends_the_connection_and_another_can_follow() {
    let (mut rig, ends) = rig();
    let (mut a, b) = rig.pair();
    let (from, _) = rig.region(0, 4096);
    let (to, _) = rig.region(1, 4096);
    rig.post(&mut a, rdma(Opcode::Write, 1, to, 0), &[segment(from, 0, 64)]);
    assert_eq!(status(&rig.sent(&mut a)), Status::Success);
    rig.events(0);
    ends[0].plug(false);
    for tag in 2..5 {
        rig.post(&mut a, rdma(Opcode::Write, tag, to, 0), &[segment(from, 0, 64)]);
    }
    let done = completions(&mut rig, &mut a, 3);
    let found: Vec<_> = done.iter().map(|entry| (entry.tag, status(entry))).collect();
    let expected = [(2, Status::RetryExceeded), (3, Status::Flushed), (4, Status::Flushed)];
    assert_eq!(found, expected);
    assert_eq!(rig.stats(0).lost_requests, 3, "the first attempt and two retries");
    assert_eq!(reason(&rig, 0, Reason::LocalAckTimeoutErr), 3);
    assert_eq!(counter(&rig, 0, "local_ack_timeout_err"), 3);
    let events = rig.event_types(0);
    assert!(events.contains(&(EventType::QpFatal, a.qpn)), "{events:?}");
    assert!(events.contains(&(EventType::PortDown, 0)), "{events:?}");
    ends[0].plug(true);
    for qp in [&a, &b] {
        rig.set_state(qp, QpState::Reset).expect("RESET");
    }
    rig.join(&a, &b);
    rig.join(&b, &a);
    rig.post(&mut a, rdma(Opcode::Write, 6, to, 0), &[segment(from, 0, 64)]);
    assert_eq!(status(&rig.sent(&mut a)), Status::Success);
}

/// A Send that was refused because its peer had no Receive; the peer has posted one since. The
/// number is the key of a region of the sender.
fn send_too_early() -> (Rig, Qp, Qp, u32) {
    let (mut rig, _) = rig();
    let (mut a, mut b) = rig.pair();
    let (from, _) = rig.region(0, 64);
    rig.post(&mut a, header(Opcode::Send, 1), &[segment(from, 0, 0)]);
    rig.run();
    assert_eq!(rig.stats(1).not_ready, 1);
    assert!(rig.poll_cq(&mut a.send_cq).is_none());
    rig.post_receive(&mut b, 2, &[]);
    (rig, a, b, from)
}

#[test]
fn a_send_waits_for_a_receive_and_gives_up_after_its_retries() {
    let (mut rig, mut a, mut b, from) = send_too_early();
    assert_eq!(completions(&mut rig, &mut a, 1)[0].status, Status::Success as u8);
    rig.received(&mut b);
    rig.post(&mut a, header(Opcode::Send, 3), &[segment(from, 0, 0)]);
    assert_eq!(status(&completions(&mut rig, &mut a, 1)[0]), Status::RnrRetryExceeded);
    assert_eq!(rig.stats(1).not_ready, 4, "the first attempt and two retries more");
    assert_eq!(counter(&rig, 1, "out_of_buffer"), 4);
}

/// The timer of the RNR NAK ends long before the retry timer, which is already running.
#[test]
fn a_send_goes_again_as_soon_as_the_peer_said() {
    let (mut rig, mut a, ..) = send_too_early();
    // min_rnr_timer 1 is 10 us.
    rig.advance(5_000);
    assert!(rig.poll_cq(&mut a.send_cq).is_none());
    rig.advance(10_000);
    assert_eq!(rig.poll_cq(&mut a.send_cq).map(|entry| status(&entry)), Some(Status::Success));
}

#[test]
fn what_the_wire_has_no_room_for_waits() {
    let (mut rig, ends) = rig();
    let (mut a, mut b) = rig.pair();
    let (mut c, d) = rig.pair();
    let (from, _) = rig.region(0, 4096);
    let (to, _) = rig.region(1, 4096);
    for qp in [&mut a, &mut c] {
        rig.post(qp, rdma(Opcode::Write, 1, to, 0), &[segment(from, 0, 64)]);
        assert_eq!(status(&rig.sent(qp)), Status::Success);
    }
    ends[0].set_room(false);
    let sent = rig.port(0).packets_out;
    for qp in [&mut a, &mut c] {
        for tag in 2..6 {
            rig.post(qp, rdma(Opcode::Write, tag, to, 0), &[segment(from, 0, 64)]);
        }
    }
    rig.run();
    assert_eq!(rig.port(0).packets_out, sent);
    // The device forgets a queue pair that is destroyed while it waits.
    rig.command(0, Command::DestroyQp, c.qpn, &[0_u32; 2]).expect("destroyed");
    rig.command(1, Command::DestroyQp, d.qpn, &[0_u32; 2]).expect("destroyed");
    ends[0].set_room(true);
    let done = completions(&mut rig, &mut a, 4);
    assert!(done.iter().all(|entry| status(entry) == Status::Success));
    assert_eq!(rig.stats(0).lost_requests, 0, "no request was lost");
    // A queue pair whose peer no longer answers is flushed, whether the wire has room or not.
    ends[0].set_room(false);
    for tag in 6..9 {
        rig.post(&mut a, rdma(Opcode::Write, tag, to, 0), &[segment(from, 0, 64)]);
    }
    rig.run();
    rig.set_state(&a, QpState::Error).expect("ERROR");
    let done = completions(&mut rig, &mut a, 3);
    assert!(done.iter().all(|entry| status(entry) == Status::Flushed));
    assert!(rig.poll_cq(&mut b.receive_cq).is_none());
}

#[test]
fn a_queue_pair_ends_under_load() {
    for how in [None, Some(QpState::Reset), Some(QpState::Error)] {
        let (mut rig, ends) = rig();
        let (mut a, b) = rig.pair();
        let (from, _) = rig.region(0, 1 << 20);
        let (to, _) = rig.region(1, 1 << 20);
        for tag in 0..8 {
            rig.post(&mut a, rdma(Opcode::Write, tag, to, 0), &[segment(from, 0, 1 << 20)]);
        }
        while rig.port(0).packets_out < 100 {
            rig.step();
        }
        match how {
            None => {
                rig.command(1, Command::DestroyQp, b.qpn, &[0_u32; 2]).expect("destroyed");
                assert!(dropped(&rig, 1, PacketDropped::NoQueuePair) > 0);
            }
            Some(state) => {
                rig.set_state(&b, state).expect("a state");
                assert!(dropped(&rig, 1, PacketDropped::NotConnected) > 0);
            }
        }
        let done = completions(&mut rig, &mut a, 8);
        let statuses: Vec<_> = done.iter().map(status).collect();
        let failed = statuses.iter().position(|found| *found != Status::Success).expect("a failure");
        assert_eq!(statuses[failed], Status::RetryExceeded);
        assert!(statuses[failed + 1..].iter().all(|found| *found == Status::Flushed), "{statuses:?}");
        rig.run();
        assert_eq!(ends[0].waiting() + ends[1].waiting(), 0);
    }
}

#[test]
fn a_message_that_was_received_is_acknowledged_though_its_receiver_ends_at_once() {
    let state =
        |to: QpState| ModifyQp { mask: QpMask::STATE.bits(), state: to as u32, ..ModifyQp::default() };
    for end in [
        command(Command::DestroyQp, &[0_u32; 2]),
        command(Command::ModifyQp, &state(QpState::Reset)),
        command(Command::ModifyQp, &state(QpState::Error)),
    ] {
        let (mut rig, ends) = rig();
        let (mut a, mut b) = rig.pair();
        let (from, _) = rig.region(0, 64);
        let (to, _) = rig.region(1, 64);
        rig.post_receive(&mut b, 1, &[segment(to, 0, 64)]);
        rig.post_receive(&mut b, 2, &[segment(to, 0, 64)]);
        // The first message makes the peers find each other's MAC.
        rig.post(&mut a, header(Opcode::Send, 3), &[segment(from, 0, 64)]);
        assert_eq!(status(&rig.sent(&mut a)), Status::Success);
        assert_eq!(rig.received(&mut b).tag, 1);

        rig.post(&mut a, header(Opcode::Send, 4), &[segment(from, 0, 64)]);
        while ends[1].waiting() == 0 {
            rig.step();
        }
        // The device executes commands before the turn of the queue pair that has to answer.
        rig.issue(1, &nic_abi::admin::Command { object: b.qpn, ..end });
        let done = completions(&mut rig, &mut a, 1);
        assert_eq!(rig.poll_cq(&mut b.receive_cq).expect("the message").tag, 2);
        assert_eq!(status(&done[0]), Status::Success, "{end:?}");
    }
}

#[test]
fn a_requester_that_ends_under_load_flushes_in_order() {
    let (mut rig, _) = rig();
    let (mut a, _b) = rig.pair();
    let (from, _) = rig.region(0, 1 << 20);
    let (to, _) = rig.region(1, 1 << 20);
    for tag in 0..8 {
        rig.post(&mut a, rdma(Opcode::Read, tag, to, 0), &[segment(from, 0, 1 << 20)]);
    }
    while rig.port(1).packets_out < 100 {
        rig.step();
    }
    rig.set_state(&a, QpState::Error).expect("ERROR");
    let done = completions(&mut rig, &mut a, 8);
    assert_eq!(done.iter().map(|entry| entry.tag).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
    assert!(done.iter().all(|entry| status(entry) == Status::Flushed));
    rig.run();
    assert!(dropped(&rig, 0, PacketDropped::NotConnected) > 0);
}

#[test]
fn a_send_queue_drains_when_what_is_under_way_is_answered() {
    let (mut rig, ends) = rig();
    let (mut a, mut b) = rig.pair();
    let (from, _) = rig.region(0, 4096);
    rig.post(&mut a, header(Opcode::Send, 1), &[segment(from, 0, 3000)]);
    rig.post(&mut a, header(Opcode::Send, 2), &[segment(from, 0, 3000)]);
    rig.run();
    rig.events(0);
    rig.set_state(&a, QpState::Sqd).expect("SQD");
    assert_eq!(rig.event_types(0), [], "no receive is there yet");
    let (to, _) = rig.region(1, 4096);
    for tag in 0..2 {
        rig.post_receive(&mut b, tag, &[segment(to, 0, 4096)]);
    }
    completions(&mut rig, &mut a, 1);
    rig.run();
    let drained = rig.event_types(0);
    assert_eq!(drained, [(EventType::SendQueueDrained, a.qpn)]);
    rig.post(&mut a, header(Opcode::Send, 3), &[segment(from, 0, 8)]);
    rig.run();
    let sent = rig.port(0).packets_out;
    rig.advance(10 * TIMEOUT);
    assert_eq!(rig.port(0).packets_out, sent, "nothing new begins");
    rig.set_state(&a, QpState::Rts).expect("RTS");
    rig.post_receive(&mut b, 3, &[segment(to, 0, 4096)]);
    completions(&mut rig, &mut a, 1);
    assert_eq!(ends[0].waiting(), 0);
}

#[test]
fn the_peers_refusals_have_their_statuses_at_both_ends() {
    for (kind, expected, event, receive) in [
        (0, Status::RemoteAccess, EventType::QpAccessError, None),
        (1, Status::RemoteInvalidRequest, EventType::QpInvalidRequest, Some(Status::LocalLength)),
        (2, Status::RemoteAccess, EventType::QpAccessError, Some(Status::LocalAccess)),
        (3, Status::RemoteOperation, EventType::QpFatal, Some(Status::LocalProtection)),
        (4, Status::RemoteAccess, EventType::QpAccessError, None),
        (5, Status::RemoteInvalidRequest, EventType::QpInvalidRequest, None),
    ] {
        let (mut rig, _) = rig();
        let (mut a, mut b) = rig.pair();
        let (from, _) = rig.region(0, 4096);
        let (to, _) = rig.region(1, 4096);
        rig.events(1);
        let piece = [segment(from, 0, 2000)];
        match kind {
            0 => rig.post(&mut a, rdma(Opcode::Write, 1, to, 4000), &piece),
            1 => {
                rig.post_receive(&mut b, 1, &[segment(to, 0, 1500)]);
                rig.post(&mut a, header(Opcode::Send, 1), &piece);
            }
            2 => {
                rig.post_receive(&mut b, 1, &[segment(to, 0, 4096)]);
                let head = Header { immediate: 0xdead, ..header(Opcode::SendInvalidate, 1) };
                rig.post(&mut a, head, &piece);
            }
            3 => {
                rig.post_receive(&mut b, 1, &[segment(0xdead, 0, 4096)]);
                rig.post(&mut a, header(Opcode::Send, 1), &piece);
            }
            4 => rig.post(&mut a, rdma(Opcode::Read, 1, to ^ 1, 0), &piece),
            _ => {
                rig.inject(0, Injection::BadRequest, a.qpn, 1, 0);
                rig.post(&mut a, rdma(Opcode::Write, 1, to, 0), &[segment(from, 0, 100)]);
            }
        }
        rig.post(&mut a, rdma(Opcode::Write, 2, to, 0), &[]);
        let done = completions(&mut rig, &mut a, 2);
        assert_eq!((status(&done[0]), status(&done[1])), (expected, Status::Flushed), "{kind}");
        assert_eq!(rig.query(&b).state, QpState::Error as u32, "{kind}");
        let events = rig.event_types(1);
        assert!(events.contains(&(event, b.qpn)), "{kind}: {events:?}");
        if let Some(expected) = receive {
            assert_eq!(status(&rig.received(&mut b)), expected, "{kind}");
        }
    }
}

#[test]
fn memory_that_is_taken_away_ends_a_read_that_is_being_answered() {
    let (mut rig, _) = rig();
    let (mut a, b) = rig.pair();
    let (from, _) = rig.region(0, 1 << 20);
    let (to, _) = rig.region(1, 1 << 20);
    rig.post(&mut a, rdma(Opcode::Read, 1, to, 0), &[segment(from, 0, 1 << 20)]);
    while rig.port(1).packets_out < 20 {
        rig.step();
    }
    rig.command(1, Command::DestroyRegion, to, &()).expect("no window is bound");
    let done = completions(&mut rig, &mut a, 1);
    assert_eq!(status(&done[0]), Status::RemoteAccess);
    assert_eq!(rig.query(&b).state, QpState::Error as u32);
}

#[test]
fn injected_faults_act_on_packets() {
    let (mut rig, _) = rig();
    let (mut a, _b) = rig.pair();
    let (from, _) = rig.region(0, 4096);
    let (to, _) = rig.region(1, 4096);
    let write = |rig: &mut Rig, a: &mut Qp, tag: u32| {
        rig.post(a, rdma(Opcode::Write, tag, to, 0), &[segment(from, 0, 100)]);
        completions(rig, a, 1)[0]
    };
    rig.inject(0, Injection::DropRequests, a.qpn, 2, 0);
    assert_eq!(status(&write(&mut rig, &mut a, 1)), Status::Success);
    assert_eq!(rig.stats(0).lost_requests, 2);
    rig.inject(0, Injection::DropResponses, a.qpn, 1, 0);
    assert_eq!(status(&write(&mut rig, &mut a, 2)), Status::Success);
    assert_eq!((rig.stats(0).lost_answers, reason(&rig, 1, Reason::DuplicateRequest)), (1, 1));
    let before = rig.now;
    rig.inject(0, Injection::Delay, a.qpn, 1, 10 * TIMEOUT);
    assert_eq!(status(&write(&mut rig, &mut a, 3)), Status::Success);
    assert!(rig.now >= before + 10 * TIMEOUT);
    rig.inject(0, Injection::BadResponse, a.qpn, 1, 0);
    assert_eq!(status(&write(&mut rig, &mut a, 4)), Status::BadResponse);
}

/// Changes a frame's BTH, and makes its ICRC right again.
pub(crate) fn forge(frame: &[u8], change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut frame = frame.to_vec();
    change(&mut frame[14 + 20 + 8..]);
    let end = frame.len() - icrc::LEN;
    let right = icrc::compute(&frame[14..end]).unwrap().to_le_bytes();
    frame[end..].copy_from_slice(&right);
    frame
}

#[test]
fn packets_that_are_not_the_peers_are_dropped_and_counted() {
    let (mut rig, ends) = rig();
    let (mut a, b) = rig.pair();
    let (from, _) = rig.region(0, 4096);
    let (to, target) = rig.region(1, 4096);
    rig.post(&mut a, rdma(Opcode::Write, 1, to, 0), &[segment(from, 0, 100)]);
    assert_eq!(status(&rig.sent(&mut a)), Status::Success);
    rig.fill(target, 100, 7);
    let kept = rig.bytes(target, 100);
    rig.post(&mut a, rdma(Opcode::Write, 2, to, 0), &[segment(from, 0, 100)]);
    while ends[1].waiting() == 0 {
        rig.step();
    }
    let frame = ends[1].take().expect("the Write");
    for (why, forged) in [
        (PacketDropped::WrongPartition, forge(&frame, |bth| bth[2] = 0x12)),
        (PacketDropped::NoQueuePair, forge(&frame, |bth| bth[6] ^= 0x40)),
        (PacketDropped::WrongService, forge(&frame, |bth| bth[0] |= 0x20)),
        (PacketDropped::Malformed, forge(&frame, |bth| bth[1] |= 1)),
        // An operation code of the unreliable connection, and one that it does not define.
        (PacketDropped::Malformed, forge(&frame, |bth| bth[0] = 0x3f)),
    ] {
        let before = dropped(&rig, 1, why);
        ends[0].put(&forged);
        rig.run();
        assert_eq!(dropped(&rig, 1, why), before + 1, "{why:?}");
    }
    // From another host of the link, and to a datagram queue pair.
    let mut stranger = frame.clone();
    stranger[14 + 15] = 9;
    stranger[14 + 10..14 + 12].fill(0);
    let sum: u32 = stranger[14..34].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    stranger[14 + 10..14 + 12].copy_from_slice(&sum.to_be_bytes());
    ends[0].put(&forge(&stranger, |_| {}));
    rig.run();
    assert_eq!(dropped(&rig, 1, PacketDropped::WrongPeer), 1);
    assert_eq!(counter(&rig, 1, "wrong_peer"), 1);
    assert_eq!(rig.bytes(target, 100), kept, "nothing was written");
    // The right request arrives by the retry. An undefined operation of the peer ends the
    // connection.
    assert_eq!(status(&completions(&mut rig, &mut a, 1)[0]), Status::Success);
    ends[0].put(&forge(&frame, |bth| {
        bth[0] = 0x1f;
        bth[11] += 1;
    }));
    rig.run();
    assert_eq!(rig.query(&b).state, QpState::Error as u32);
}

#[test]
fn datagrams_cross_and_one_to_nobody_holds_up_no_other() {
    let (mut rig, _) = rig();
    let (mut a, mut b) = (rig.datagram_qp(0, 7, 5), rig.datagram_qp(1, 7, 5));
    let (from, source) = rig.region(0, 1024);
    let (to, target) = rig.region(1, 4096);
    rig.fill(source, 1024, 1);
    let send = |rig: &mut Rig, a: &mut Qp, gid: [u8; 16], tag: u32| {
        let qpn = nic_abi::ident::qpn(7, 3);
        let av =
            AddressVector { gid, qpn, qkey: 5, source_gid: 1, hop_limit: 64, ..AddressVector::default() };
        let head =
            Header { segments: 1, blocks: 2, flags: SendFlags::SIGNALED.bits(), ..header(Opcode::Send, tag) };
        rig.write_send(a, head, zerocopy::transmute!(av), &[segment(from, 0, 1024)]);
        rig.ring_send(a);
    };
    for tag in 0..3 {
        rig.post_receive(&mut b, tag, &[segment(to, 0, 1064)]);
    }
    let gid = rig.gid(1);
    send(&mut rig, &mut a, gid, 1);
    assert_eq!(status(&rig.sent(&mut a)), Status::Success);
    let entry = rig.received(&mut b);
    assert_eq!((entry.length, entry.detail), (1064, a.qpn));
    assert_eq!(rig.bytes(target + 40, 1024), rig.bytes(source, 1024));
    let mut nobody = gid;
    nobody[15] = 99;
    send(&mut rig, &mut a, nobody, 2);
    send(&mut rig, &mut a, gid, 3);
    // No time passes.
    assert_eq!([rig.sent(&mut a).tag, rig.sent(&mut a).tag], [2, 3]);
    assert_eq!(rig.received(&mut b).tag, 1);
    assert_eq!(rig.stats(0).dropped_datagrams, 0);
    // The port gives the neighbour up after its last question.
    for _ in 0..40 {
        rig.advance(100_000_000);
    }
    assert_eq!(rig.stats(0).dropped_datagrams, 1);
    // A datagram with another key, and one without a receive.
    send(&mut rig, &mut a, gid, 4);
    rig.received(&mut b);
    send(&mut rig, &mut a, gid, 5);
    rig.run();
    assert_eq!(counter(&rig, 1, "no_receive"), 1);
}

#[test]
fn a_link_takes_effect_between_the_requests_around_it() {
    let (mut rig, _) = rig();
    let (mut a, mut b) = rig.pair();
    let (from, _) = rig.region(0, 4096);
    let (key, _) = rig.region_with(0, 4096, ALL_RIGHTS, 0x7000_0000);
    let window = window(&mut rig, 0, 1);
    let bound = remote(window, 6);
    rig.post(&mut a, header(Opcode::Send, 1), &[segment(from, 0, 8)]);
    let args = bind_args(bound, LinkFlags::REMOTE_READ);
    rig.post_args(&mut a, bind(window, key, 0x7000_0000, 64), args);
    rig.post(&mut a, header(Opcode::Send, 3), &[segment(from, 0, 8)]);
    rig.run();
    let (to, _) = rig.region(1, 64);
    // The window is not bound while the Send before it waits for a receive.
    let (mut c, mut d) = rig.pair();
    rig.post(&mut d, rdma(Opcode::Read, 9, bound, 0x7000_0000), &[segment(to, 0, 8)]);
    assert_eq!(status(&completions(&mut rig, &mut d, 1)[0]), Status::RemoteAccess);
    assert!(rig.poll_cq(&mut c.send_cq).is_none());
    for tag in 0..2 {
        rig.post_receive(&mut b, tag, &[segment(to, 0, 64)]);
    }
    let done = completions(&mut rig, &mut a, 3);
    let found: Vec<_> = done.iter().map(|entry| (entry.tag, status(entry))).collect();
    assert_eq!(found, [1, 3, 3].map(|tag| (tag, Status::Success)));
    rig.post(&mut b, rdma(Opcode::Read, 4, bound, 0x7000_0000), &[segment(to, 0, 8)]);
    assert_eq!(status(&completions(&mut rig, &mut b, 1)[0]), Status::Success);
}

#[test]
fn a_reset_of_the_nic_forgets_what_was_under_way() {
    let (mut rig, _) = rig();
    let (mut a, _) = rig.pair();
    let (from, _) = rig.region(0, 1 << 20);
    let (to, _) = rig.region(1, 1 << 20);
    rig.post(&mut a, rdma(Opcode::Write, 1, to, 0), &[segment(from, 0, 1 << 20)]);
    while rig.port(0).packets_out < 20 {
        rig.step();
    }
    rig.control(0, nic_abi::registers::CONTROL_RESET);
    let sent = rig.port(0).packets_out;
    rig.advance(100 * TIMEOUT);
    assert_eq!(rig.port(0).packets_out, sent);
    rig.bring_up(0);
    let (mut a, _) = rig.pair_of(0, 1, QpSpec::default());
    let (from, _) = rig.region(0, 4096);
    rig.post(&mut a, rdma(Opcode::Write, 1, to, 0), &[segment(from, 0, 4096)]);
    assert_eq!(status(&completions(&mut rig, &mut a, 1)[0]), Status::Success);
}
