//! The short cut: when segments take it, and that its outcomes are those of a wire.

use nic_abi::admin::{
    AcceptStream, DestroyQp, Injection, ModifyQp, Opcode as Command, QpMask, QpState, RegisterRegion,
    StreamFlags,
};
use nic_abi::cqe::{Cqe, Status};
use nic_abi::doorbell::Kind;
use nic_abi::eqe::{EventType, NOT_COMPLETED, StreamFault};
use nic_abi::ident::qpn_slot;
use nic_abi::wqe::{LinkFlags, ListArgs, Opcode, ReceiveHeader};
use nic_model::GuestMemory;
use nic_model::testing::{ALL_RIGHTS, MAX_MESSAGE, PD, Qp, Rig, header, rdma, segment, status};
use zerocopy::IntoBytes;

use super::{both, ends, join, pair_on, pairs, spec, take, wait};
use crate::keys::list;
use crate::packets::completions_in_steps;
use crate::streams::{
    ACTIVE, LISTENER, PASSIVE, connect_again, connect_on, connecting, listening, send, settle,
};

/// Two queue pairs of two NICs with a connection by the short cut.
fn near() -> (Rig, Qp, Qp) {
    let mut rig = Rig::new(2);
    let (a, b) = pair_on(&mut rig, spec());
    (rig, a, b)
}

/// How many segments each NIC has sent by the short cut.
fn segments(rig: &Rig) -> [u64; 2] {
    [0, 1].map(|n| rig.stats(n).short_cut_segments)
}

fn tags(entries: &[Cqe]) -> Vec<(u32, Status)> {
    entries.iter().map(|entry| (entry.tag, status(entry))).collect()
}

/// Lets time pass until a send queue has completed `count` work requests.
fn sent(rig: &mut Rig, qp: &mut Qp, count: usize) -> Vec<Cqe> {
    completions_in_steps(rig, qp, count, (4000, 1_000_000))
}

/// Whether memory ends with a byte that is not zero.
fn is_filled(rig: &Rig, at: u64, length: u64) -> bool {
    rig.bytes(at + length - 1, 1) != [0]
}

#[test]
fn a_segment_is_a_whole_message_where_two_nics_are_of_one_process() {
    for ((mut rig, mut a, mut b), expected) in pairs().into_iter().zip([[0, 0], [3, 1]]) {
        let (from, source) = rig.region(0, 100_000);
        let (to, target) = rig.region(1, 100_000);
        rig.fill(source, 100_000, 5);
        rig.post_receive(&mut b, 9, &[segment(to, 0, 1000)]);
        rig.post(&mut a, rdma(Opcode::Write, 1, to, 0), &[segment(from, 0, 100_000)]);
        rig.post(&mut a, header(Opcode::Send, 2), &[segment(from, 0, 1000)]);
        rig.post(&mut a, rdma(Opcode::Read, 3, to, 0), &[segment(from, 0, 50_000)]);
        let ok = Status::Success;
        assert_eq!(tags(&sent(&mut rig, &mut a, 3)), [(1, ok), (2, ok), (3, ok)]);
        assert_eq!(rig.received(&mut b).tag, 9);
        assert_eq!(rig.bytes(target, 100_000), rig.bytes(source, 100_000));
        assert_eq!(segments(&rig), expected);
    }
}

#[test]
fn a_write_and_a_send_need_nothing_of_the_peers_driver_and_one_poll() {
    let (mut rig, mut a, mut b) = near();
    rig.post_receive(&mut b, 9, &[]);
    rig.post(&mut a, header(Opcode::Send, 1), &[]);
    // The turns of both NICs.
    rig.step();
    rig.step();
    assert_eq!(rig.poll_cq(&mut a.send_cq).map(|entry| entry.tag), Some(1));
    assert_eq!(rig.poll_cq(&mut b.receive_cq).map(|entry| entry.tag), Some(9));
}

#[test]
fn what_was_written_to_tcp_comes_before_what_takes_the_short_cut() {
    let mut rig = Rig::new(2);
    connect_on(&mut rig);
    let (mut a, mut b) = (rig.create_qp(0, spec()), rig.create_qp(1, spec()));
    rig.init(&b);
    join(&mut rig, &a, ACTIVE, StreamFlags::CRC);
    let size = 1 << 20;
    let (from, source) = rig.region(0, size);
    let (to, target) = rig.region(1, size);
    rig.fill(source, size as usize, 5);
    // More than the rings hold, while the peer's end is not a queue pair's.
    rig.post(&mut a, header(Opcode::Send, 1), &[]);
    rig.post(&mut a, rdma(Opcode::Write, 2, to, 0), &[segment(from, 0, size as u32)]);
    for tag in 3..8 {
        rig.post(&mut a, header(Opcode::Send, tag), &[]);
    }
    settle(&mut rig);
    assert_eq!((rig.sent(&mut a).tag, rig.poll_cq(&mut a.send_cq)), (1, None));
    for tag in [1, 3, 4, 5, 6, 7] {
        rig.post_receive(&mut b, tag, &[]);
    }
    rig.modify(&b, &take(PASSIVE, StreamFlags::CRC | StreamFlags::RESPONDER)).expect("RTR");
    rig.set_state(&b, QpState::Rts).expect("RTS");
    let done: Vec<_> = sent(&mut rig, &mut a, 6).iter().map(|entry| entry.tag).collect();
    assert_eq!(done, [2, 3, 4, 5, 6, 7]);
    for tag in [1, 3, 4, 5, 6, 7] {
        assert_eq!(rig.received(&mut b).tag, tag);
    }
    assert_eq!(rig.bytes(target, size as usize), rig.bytes(source, size as usize));
    assert!(segments(&rig)[0] > 0);
    assert_eq!(ends(&mut rig, 1), []);
}

#[test]
fn an_end_waits_for_what_is_in_tcp_and_goes_on_when_it_has_been_taken() {
    for dies in [false, true] {
        let mut rig = Rig::new(2);
        connect_on(&mut rig);
        let (mut a, mut b) = (rig.create_qp(0, spec()), rig.create_qp(1, spec()));
        join(&mut rig, &a, ACTIVE, StreamFlags::CRC);
        rig.post(&mut a, header(Opcode::Send, 1), &[]);
        settle(&mut rig);
        assert_eq!(rig.sent(&mut a).tag, 1);
        // The peer's end is a queue pair's, which has no turn.
        rig.inject(1, Injection::Hold, 0, 0, 1);
        rig.init(&b);
        rig.post_receive(&mut b, 1, &[]);
        rig.post_receive(&mut b, 2, &[]);
        rig.modify(&b, &take(PASSIVE, StreamFlags::CRC | StreamFlags::RESPONDER)).expect("RTR");
        rig.post(&mut a, header(Opcode::Send, 2), &[]);
        settle(&mut rig);
        assert_eq!((rig.poll_cq(&mut a.send_cq), segments(&rig)), (None, [0, 0]));
        if dies {
            // What waits goes to TCP, whose time limit holds.
            rig.inject(1, Injection::Mute, 0, 0, 0);
            rig.advance(100_000_000);
            assert_eq!(tags(&[rig.sent(&mut a)]), [(2, Status::Success)]);
            for _ in 0..40 {
                rig.advance(1_000_000_000);
            }
            assert_eq!(ends(&mut rig, 0), [(a.qpn, StreamFault::Lost, NOT_COMPLETED)]);
            continue;
        }
        rig.inject(1, Injection::Hold, 0, 0, 0);
        rig.run();
        assert_eq!((rig.sent(&mut a).tag, segments(&rig)), (2, [1, 0]));
        assert_eq!([rig.received(&mut b).tag, rig.received(&mut b).tag], [1, 2]);
    }
}

#[test]
fn while_a_port_is_down_messages_wait_in_tcp() {
    for n in [0, 1] {
        let (mut rig, mut a, mut b) = near();
        for tag in 1..5 {
            rig.post_receive(&mut b, tag, &[]);
        }
        rig.post(&mut a, header(Opcode::Send, 1), &[]);
        assert_eq!((rig.sent(&mut a).tag, rig.received(&mut b).tag, segments(&rig)), (1, 1, [1, 0]));
        rig.inject(n, Injection::Port, 0, 0, 0);
        rig.post(&mut a, header(Opcode::Send, 2), &[]);
        settle(&mut rig);
        assert_eq!((rig.sent(&mut a).tag, rig.poll_cq(&mut b.receive_cq)), (2, None));
        rig.inject(n, Injection::Port, 0, 0, 1);
        rig.post(&mut a, header(Opcode::Send, 3), &[]);
        for _ in 0..10 {
            rig.advance(100_000_000);
        }
        rig.post(&mut a, header(Opcode::Send, 4), &[]);
        rig.run();
        for tag in [2, 3, 4] {
            assert_eq!(rig.received(&mut b).tag, tag, "NIC {n}");
        }
        assert_eq!((segments(&rig), ends(&mut rig, 0)), ([3, 0], vec![]), "NIC {n}");
    }
}

#[test]
fn a_peer_whose_nic_is_gone_ends_the_connection_in_time() {
    let (mut rig, mut a, _) = near();
    let (to, _) = rig.region(1, 64);
    let (from, _) = rig.region(0, 64);
    rig.post(&mut a, rdma(Opcode::Write, 1, to, 0), &[segment(from, 0, 64)]);
    assert_eq!(status(&rig.sent(&mut a)), Status::Success);
    rig.fabric.power_off(rig.nics[1].id);
    rig.post(&mut a, rdma(Opcode::Write, 2, to, 0), &[segment(from, 0, 64)]);
    rig.post(&mut a, rdma(Opcode::Read, 3, to, 0), &[segment(from, 0, 64)]);
    for _ in 0..40 {
        rig.advance(1_000_000_000);
    }
    let entries = sent(&mut rig, &mut a, 2);
    assert_eq!(tags(&entries), [(2, Status::Success), (3, Status::RetryExceeded)]);
    assert_eq!(ends(&mut rig, 0), [(a.qpn, StreamFault::Lost, 0)]);
}

#[test]
fn two_queue_pairs_of_one_nic_exchange_messages() {
    let mut rig = Rig::new(1);
    rig.command(0, Command::ListenStream, LISTENER, &listening()).expect("a listener");
    let args = connecting(&rig, 0);
    crate::streams::connect(&mut rig, args).expect("a stream");
    settle(&mut rig);
    let args = AcceptStream { listener: LISTENER, eq: 0, generation: 1, reserved: 0 };
    rig.command(0, Command::AcceptStream, PASSIVE, &args).expect("a connection");
    let (mut a, mut b) = (rig.create_qp(0, spec()), rig.create_qp(0, spec()));
    join(&mut rig, &b, PASSIVE, StreamFlags::CRC | StreamFlags::RESPONDER);
    join(&mut rig, &a, ACTIVE, StreamFlags::CRC);
    let (from, source) = rig.region(0, 4096);
    let (to, target) = rig.region(0, 4096);
    rig.fill(source, 4096, 5);
    rig.post_receive(&mut b, 9, &[]);
    rig.post(&mut a, header(Opcode::Send, 1), &[]);
    rig.post(&mut a, rdma(Opcode::Write, 2, to, 0), &[segment(from, 0, 4096)]);
    rig.post(&mut a, rdma(Opcode::Read, 3, to, 0), &[segment(from, 0, 64)]);
    let ok = Status::Success;
    assert_eq!(tags(&sent(&mut rig, &mut a, 3)), [(1, ok), (2, ok), (3, ok)]);
    assert_eq!(rig.received(&mut b).tag, 9);
    assert_eq!(rig.bytes(target, 4096), rig.bytes(source, 4096));
    // Three of one end, and the other's response.
    assert_eq!(rig.stats(0).short_cut_segments, 4);
    // A refusal is one at both ends.
    rig.post(&mut a, rdma(Opcode::Write, 4, 0x77_00, 0), &[segment(from, 0, 8)]);
    wait(&mut rig);
    assert_eq!(status(&rig.sent(&mut a)), ok);
    let mut faults: Vec<_> = ends(&mut rig, 0).iter().map(|end| (end.0, end.1)).collect();
    faults.sort_by_key(|(qpn, _)| *qpn != a.qpn);
    assert_eq!(faults, [(a.qpn, StreamFault::Terminated), (b.qpn, StreamFault::Write)]);
}

#[test]
fn ends_that_disagree_about_crcs_break_the_connection() {
    for mut rig in both() {
        connect_on(&mut rig);
        let (mut a, mut b) = (rig.create_qp(0, spec()), rig.create_qp(1, spec()));
        join(&mut rig, &b, PASSIVE, StreamFlags::CRC | StreamFlags::RESPONDER);
        join(&mut rig, &a, ACTIVE, StreamFlags::empty());
        rig.post_receive(&mut b, 1, &[]);
        rig.post(&mut a, header(Opcode::Send, 2), &[]);
        wait(&mut rig);
        assert_eq!(status(&rig.sent(&mut a)), Status::Success);
        let faults: Vec<_> = ends(&mut rig, 1).iter().map(|end| end.1).collect();
        assert_eq!(faults, [StreamFault::Llp]);
    }
}

#[test]
fn bytes_that_a_driver_wrote_before_the_first_message_are_its_beginning() {
    for mut rig in both() {
        connect_on(&mut rig);
        let (mut a, b) = (rig.create_qp(0, spec()), rig.create_qp(1, spec()));
        // The length of a ULPDU, and nothing else.
        let at = rig.alloc(2);
        rig.memory.write(at, &[0, 40]).expect("memory");
        assert_eq!(send(&mut rig, 0, ACTIVE, (at, 2)), Ok(2));
        join(&mut rig, &b, PASSIVE, StreamFlags::CRC | StreamFlags::RESPONDER);
        join(&mut rig, &a, ACTIVE, StreamFlags::CRC);
        settle(&mut rig);
        for tag in 1..4 {
            rig.post(&mut a, rdma(Opcode::Write, tag, 0, 0), &[]);
        }
        wait(&mut rig);
        let faults: Vec<_> = ends(&mut rig, 1).iter().map(|end| end.1).collect();
        assert_eq!(faults, [StreamFault::Llp]);
        assert_eq!(rig.stats(0).short_cut_segments, 0);
    }
}

#[test]
fn a_malformed_receive_is_its_own_ends_fault() {
    for (mut rig, mut a, mut b) in pairs() {
        let header = ReceiveHeader { segments: 99, flags: 0, tag: 4, reserved: 0 };
        rig.memory.write(b.receive_ring, header.as_bytes()).expect("the ring");
        rig.ring(1, Kind::Receive, qpn_slot(b.qpn), 1);
        rig.post(&mut a, nic_model::testing::header(Opcode::Send, 1), &[]);
        wait(&mut rig);
        assert_eq!(status(&rig.sent(&mut a)), Status::Success);
        assert_eq!(status(&rig.received(&mut b)), Status::LocalQpOperation);
        let told = [0, 1].map(|n| ends(&mut rig, n)[0]);
        assert_eq!(told.map(|end| end.1), [StreamFault::Terminated, StreamFault::Receive]);
        // Only the receiver has a completion that shows it.
        assert_eq!(told.map(|end| end.2 & NOT_COMPLETED != 0), [true, false]);
    }
}

#[test]
fn a_write_may_be_longer_than_the_messages_of_the_peers_queue_pair() {
    for mut rig in both() {
        connect_on(&mut rig);
        let (mut a, b) = (rig.create_qp(0, spec()), rig.create_qp(1, spec()));
        rig.init(&b);
        let responder = take(PASSIVE, StreamFlags::CRC | StreamFlags::RESPONDER);
        let mask = responder.mask | QpMask::MAX_MESSAGE.bits();
        rig.modify(&b, &ModifyQp { mask, max_message: 2000, ..responder }).expect("RTR");
        join(&mut rig, &a, ACTIVE, StreamFlags::CRC);
        let (from, source) = rig.region(0, 5000);
        let (to, target) = rig.region(1, 5000);
        rig.fill(source, 5000, 5);
        rig.post(&mut a, rdma(Opcode::Write, 1, to, 0), &[segment(from, 0, 5000)]);
        settle(&mut rig);
        assert_eq!((status(&rig.sent(&mut a)), ends(&mut rig, 1)), (Status::Success, vec![]));
        assert_eq!(rig.bytes(target, 5000), rig.bytes(source, 5000));
    }
}

#[test]
fn reads_beyond_what_was_agreed_wait_here_and_are_refused_there() {
    for (ord, ird) in [(1, 1), (4, 1)] {
        for mut rig in both() {
            connect_on(&mut rig);
            let (mut a, b) = (rig.create_qp(0, spec()), rig.create_qp(1, spec()));
            rig.init(&b);
            let responder = take(PASSIVE, StreamFlags::CRC | StreamFlags::RESPONDER);
            rig.modify(&b, &ModifyQp { max_dest_rd_atomic: ird, ..responder }).expect("RTR");
            rig.init(&a);
            let initiator = take(ACTIVE, StreamFlags::CRC);
            rig.modify(&a, &ModifyQp { max_rd_atomic: ord, ..initiator }).expect("RTR");
            let (from, _) = rig.region(0, 4096);
            let (to, _) = rig.region(1, 4096);
            for tag in 1..5 {
                rig.post(&mut a, rdma(Opcode::Read, tag, to, 0), &[segment(from, 0, 4096)]);
            }
            rig.set_state(&a, QpState::Rts).expect("RTS");
            wait(&mut rig);
            let done: Vec<_> = sent(&mut rig, &mut a, 4).iter().map(status).collect();
            if ord <= ird {
                assert_eq!(done, [Status::Success; 4]);
                continue;
            }
            // The second one was too many.
            let (flushed, failed) = (Status::Flushed, Status::RemoteOperation);
            assert_eq!(done, [flushed, failed, flushed, flushed]);
            let faults = [0, 1].map(|n| ends(&mut rig, n)[0].1);
            assert_eq!(faults, [StreamFault::Terminated, StreamFault::ReadSource]);
        }
    }
}

#[test]
fn a_long_message_leaves_turns_to_other_connections() {
    let (mut rig, mut a, _) = near();
    connect_again(&mut rig);
    let (mut c, mut d) = (rig.create_qp(0, spec()), rig.create_qp(1, spec()));
    join(&mut rig, &d, PASSIVE, StreamFlags::RESPONDER);
    join(&mut rig, &c, ACTIVE, StreamFlags::empty());
    let (from, source) = rig.region(0, MAX_MESSAGE);
    let (to, target) = rig.region(1, MAX_MESSAGE);
    rig.fill(source, MAX_MESSAGE as usize, 5);
    rig.post(&mut a, rdma(Opcode::Write, 1, to, 0), &[segment(from, 0, MAX_MESSAGE as u32)]);
    rig.post_receive(&mut d, 2, &[]);
    begin(&mut rig, target);
    // A poll moves a megabyte at most.
    assert!(!is_filled(&rig, target, 2 << 20));
    rig.post(&mut c, header(Opcode::Send, 3), &[]);
    while rig.poll_cq(&mut d.receive_cq).is_none() {
        rig.step();
        assert!(rig.poll_cq(&mut a.send_cq).is_none(), "the long message came first");
    }
    rig.run();
    assert!(is_filled(&rig, target, MAX_MESSAGE));
}

/// Polls until the first byte of a message is there.
fn begin(rig: &mut Rig, target: u64) {
    while rig.bytes(target + 1, 1) == [0] {
        rig.step();
    }
}

#[test]
fn a_message_of_many_short_pieces_is_moved_in_parts() {
    let (mut rig, mut a, mut b) = near();
    let (piece, count) = (16_u64, 8192_u64);
    let length = piece * count;
    let memory = rig.alloc(2 * length);
    rig.fill(memory, 2 * length as usize, 5);
    // No two pieces lie one behind the other.
    let pieces: Vec<u64> = (0..count).map(|n| memory + 2 * n * piece).collect();
    let elements = count as u32;
    let pieces = list(&mut rig, &pieces);
    let key = rig.fresh_key();
    let args = RegisterRegion {
        pd: PD,
        flags: (ALL_RIGHTS | LinkFlags::RELATIVE).bits(),
        base: 0,
        length,
        list: ListArgs { list: pieces, element_length: piece, elements, remote: key, ..ListArgs::default() },
    };
    rig.command(0, Command::RegisterRegion, key, &args).expect("a region");
    let (to, target) = rig.region(1, length);
    rig.post_receive(&mut b, 9, &[segment(to, 0, length as u32)]);
    rig.post(&mut a, header(Opcode::Send, 1), &[segment(key, 0, length as u32)]);
    begin(&mut rig, target);
    assert!(!is_filled(&rig, target, length));
    assert!(rig.poll_cq(&mut b.receive_cq).is_none());
    let (sent, received) = (rig.sent(&mut a), rig.received(&mut b));
    assert_eq!((status(&sent), status(&received)), (Status::Success, Status::Success));
    assert_eq!(u64::from(received.length), length);
    let there = rig.bytes(target, length as usize);
    let here = rig.bytes(memory, 2 * length as usize);
    let expected: Vec<u8> =
        here.chunks(2 * piece as usize).flat_map(|both| &both[..piece as usize]).copied().collect();
    assert_eq!(there, expected);
    assert!(segments(&rig)[0] > 1);
}

/// A connection on which the first part of a long Send is there, behind which another is posted.
fn in_a_message() -> (Rig, Qp, Qp) {
    let (mut rig, mut a, mut b) = near();
    let (from, source) = rig.region(0, MAX_MESSAGE);
    let (to, target) = rig.region(1, MAX_MESSAGE);
    rig.fill(source, MAX_MESSAGE as usize, 5);
    rig.post_receive(&mut b, 1, &[segment(to, 0, MAX_MESSAGE as u32)]);
    rig.post_receive(&mut b, 2, &[]);
    rig.post(&mut a, header(Opcode::Send, 1), &[segment(from, 0, MAX_MESSAGE as u32)]);
    rig.post(&mut a, header(Opcode::Send, 2), &[]);
    begin(&mut rig, target);
    (rig, a, b)
}

#[test]
fn a_message_that_is_begun_is_sent_before_an_orderly_end() {
    let (mut rig, mut a, mut b) = in_a_message();
    rig.set_state(&a, QpState::Error).expect("ERROR");
    wait(&mut rig);
    let both = [rig.received(&mut b), rig.received(&mut b)];
    assert_eq!(tags(&both), [(1, Status::Success), (2, Status::Flushed)]);
    assert_eq!(ends(&mut rig, 1), [(b.qpn, StreamFault::None, 0)]);
    let both = [rig.sent(&mut a), rig.sent(&mut a)];
    assert_eq!(tags(&both), [(1, Status::Success), (2, Status::Flushed)]);
}

#[test]
fn a_queue_pair_that_is_destroyed_in_a_message_breaks_the_peers() {
    for reset in [false, true] {
        let (mut rig, a, mut b) = in_a_message();
        match reset {
            true => rig.set_state(&a, QpState::Reset).expect("RESET"),
            false => {
                let args = DestroyQp { unless_bound: 0, reserved: 0 };
                rig.command(0, Command::DestroyQp, a.qpn, &args).expect("destroyed");
            }
        }
        wait(&mut rig);
        assert_eq!(ends(&mut rig, 1), [(b.qpn, StreamFault::Lost, 0)], "reset: {reset}");
        let both = [rig.received(&mut b), rig.received(&mut b)];
        assert_eq!(tags(&both), [(1, Status::RetryExceeded), (2, Status::Flushed)]);
        assert_eq!(ends(&mut rig, 0), []);
    }
}

#[test]
fn a_send_queue_that_is_drained_sends_nothing_more() {
    let (mut rig, mut a, mut b) = in_a_message();
    rig.set_state(&a, QpState::Sqd).expect("SQD");
    rig.run();
    // The second one had left the send queue.
    assert_eq!([rig.sent(&mut a).tag, rig.sent(&mut a).tag], [1, 2]);
    assert_eq!([rig.received(&mut b).tag, rig.received(&mut b).tag], [1, 2]);
    assert_eq!(rig.event_types(0), [(EventType::SendQueueDrained, a.qpn)]);
    rig.post_receive(&mut b, 3, &[]);
    rig.post(&mut a, header(Opcode::Send, 3), &[]);
    rig.run();
    assert!(rig.poll_cq(&mut b.receive_cq).is_none());
    rig.set_state(&a, QpState::Rts).expect("RTS");
    assert_eq!((rig.sent(&mut a).tag, rig.received(&mut b).tag), (3, 3));
}

#[test]
fn a_peer_that_resets_its_device_breaks_the_connection() {
    for (mut rig, mut a, _) in pairs() {
        let (to, _) = rig.region(1, 64);
        let (from, _) = rig.region(0, 64);
        rig.post(&mut a, rdma(Opcode::Write, 1, to, 0), &[segment(from, 0, 64)]);
        settle(&mut rig);
        assert_eq!(status(&rig.sent(&mut a)), Status::Success);
        rig.control(1, nic_abi::registers::CONTROL_RESET);
        rig.start(1);
        // Over a wire the resets of its streams are lost, and the peer learns of it when it sends.
        rig.post(&mut a, rdma(Opcode::Write, 2, to, 0), &[segment(from, 0, 64)]);
        wait(&mut rig);
        assert_eq!(ends(&mut rig, 0), [(a.qpn, StreamFault::Lost, NOT_COMPLETED)]);
    }
}

#[test]
fn a_completion_queue_of_the_receiver_that_overflows_breaks_the_connection() {
    for mut rig in both() {
        connect_on(&mut rig);
        let (small, large) = (rig.create_cq(1, 1), rig.create_cq(1, 8));
        let mut a = rig.create_qp(0, spec());
        let mut b = rig.create_qp_on(1, spec(), large, small);
        join(&mut rig, &b, PASSIVE, StreamFlags::RESPONDER);
        join(&mut rig, &a, ACTIVE, StreamFlags::empty());
        for tag in 0..3 {
            rig.post_receive(&mut b, tag, &[]);
            rig.post(&mut a, header(Opcode::Send, tag), &[]);
        }
        wait(&mut rig);
        assert_eq!(ends(&mut rig, 1), [(b.qpn, StreamFault::Local, NOT_COMPLETED)]);
        assert_eq!(ends(&mut rig, 0), [(a.qpn, StreamFault::Lost, NOT_COMPLETED)]);
    }
}

/// The queue pair has the same slot and number, and another peer.
#[test]
fn a_queue_pair_with_another_connection_takes_nothing_of_its_former_peer() {
    let mut rig = Rig::new(3);
    let (mut a, mut b) = pair_on(&mut rig, spec());
    let (to, target) = rig.region(1, 64);
    let (from, source) = rig.region(0, 64);
    rig.fill(source, 64, 5);
    rig.post(&mut a, header(Opcode::Send, 1), &[]);
    rig.post_receive(&mut b, 1, &[]);
    settle(&mut rig);
    assert_eq!((rig.sent(&mut a).tag, rig.received(&mut b).tag), (1, 1));
    // The former peer does not hear that its connection has ended.
    rig.inject(0, Injection::Port, 0, 0, 0);
    rig.set_state(&b, QpState::Reset).expect("RESET");
    settle(&mut rig);
    let mut c = rig.create_qp(2, spec());
    let args = connecting(&rig, 1);
    rig.command(2, Command::ConnectStream, ACTIVE, &args).expect("a stream");
    settle(&mut rig);
    let args = AcceptStream { listener: LISTENER, eq: 0, generation: 1, reserved: 0 };
    rig.command(1, Command::AcceptStream, PASSIVE, &args).expect("a connection");
    join(&mut rig, &b, PASSIVE, StreamFlags::CRC | StreamFlags::RESPONDER);
    join(&mut rig, &c, ACTIVE, StreamFlags::CRC);
    rig.inject(0, Injection::Port, 0, 0, 1);
    rig.post(&mut a, rdma(Opcode::Write, 2, to, 0), &[segment(from, 0, 64)]);
    wait(&mut rig);
    assert_eq!(rig.bytes(target, 64), [0; 64]);
    assert_eq!(ends(&mut rig, 0), [(a.qpn, StreamFault::None, 0)]);
    rig.post_receive(&mut b, 3, &[]);
    rig.post(&mut c, header(Opcode::Send, 3), &[]);
    assert_eq!((rig.sent(&mut c).tag, rig.received(&mut b).tag), (3, 3));
}

#[test]
fn a_read_needs_the_right_to_read_until_its_last_byte() {
    let (mut rig, mut a, b) = near();
    let rights = LinkFlags::LOCAL_READ | LinkFlags::REMOTE_READ | LinkFlags::RELATIVE;
    let (to, source) = rig.region_with(1, MAX_MESSAGE, rights, 0);
    let (from, sink) = rig.region(0, MAX_MESSAGE);
    rig.fill(source, MAX_MESSAGE as usize, 5);
    let remote = crate::keys::query(&mut rig, 1, to).remote;
    let whole = segment(from, 0, MAX_MESSAGE as u32);
    rig.post(&mut a, rdma(Opcode::Read, 1, remote, 0), &[whole]);
    assert_eq!(tags(&sent(&mut rig, &mut a, 1)), [(1, Status::Success)]);
    assert_eq!(rig.bytes(sink, MAX_MESSAGE as usize), rig.bytes(source, MAX_MESSAGE as usize));
    rig.fill(sink, MAX_MESSAGE as usize, 5);
    rig.memory.write(sink + 1, &[0]).expect("memory");
    rig.post(&mut a, rdma(Opcode::Read, 2, remote, 0), &[whole]);
    begin(&mut rig, sink);
    rig.command(1, Command::DestroyRegion, to, &()).expect("destroyed");
    wait(&mut rig);
    assert_eq!(tags(&[rig.sent(&mut a)]), [(2, Status::RemoteAccess)]);
    let told = [0, 1].map(|n| ends(&mut rig, n)[0]);
    assert_eq!(
        told.map(|end| (end.0, end.1)),
        [(a.qpn, StreamFault::Terminated), (b.qpn, StreamFault::ReadSource)]
    );
}

#[test]
fn a_send_queue_is_drained_when_the_response_of_its_last_read_is_here() {
    let (mut rig, mut a, _) = near();
    let (to, source) = rig.region(1, MAX_MESSAGE);
    let (from, sink) = rig.region(0, MAX_MESSAGE);
    rig.fill(source, MAX_MESSAGE as usize, 5);
    rig.post(&mut a, rdma(Opcode::Read, 1, to, 0), &[segment(from, 0, MAX_MESSAGE as u32)]);
    begin(&mut rig, sink);
    let args = ModifyQp { mask: QpMask::STATE.bits(), state: QpState::Sqd as u32, ..ModifyQp::default() };
    rig.modify(&a, &args).expect("SQD");
    rig.run();
    assert_eq!(rig.sent(&mut a).tag, 1);
    assert_eq!(rig.event_types(0), [(EventType::SendQueueDrained, a.qpn)]);
}

#[test]
fn a_nic_that_fails_takes_nothing_more() {
    let (mut rig, mut a, _) = near();
    let (to, target) = rig.region(1, 64);
    let (from, source) = rig.region(0, 64);
    rig.fill(source, 64, 5);
    // Its event queue is full.
    for slot in 100..164 {
        let qp = rig.datagram_qp(1, slot, 7);
        rig.set_state(&qp, QpState::Sqd).expect("SQD");
    }
    // The first message establishes the connection, of which an event tells.
    rig.post(&mut a, rdma(Opcode::Write, 1, to, 0), &[segment(from, 0, 8)]);
    rig.post(&mut a, rdma(Opcode::Write, 2, to, 32), &[segment(from, 0, 8)]);
    settle(&mut rig);
    assert_eq!(rig.state(1), nic_abi::registers::State::Failed as u32);
    assert_eq!([rig.sent(&mut a).tag, rig.sent(&mut a).tag], [1, 2]);
    assert_eq!(rig.bytes(target + 32, 8), [0; 8]);
}
