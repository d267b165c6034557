//! What work requests do when nothing fails.

use nic_abi::admin::{ModifyQp, Opcode, QpFlags, QpInfo, QpMask, QpState, Status};
use nic_abi::cqe::{self, CqeFlags};
use nic_abi::eqe::EventType;
use nic_abi::ident::KEY_RESERVED;
use nic_abi::wqe::{self, AtomicArgs, Header, SendFlags};
use nic_model::GuestMemory;

use nic_model::testing::{Qp, QpSpec, Rig, header, rdma, segment, status};
use zerocopy::FromBytes;

#[test]
fn a_send_arrives_in_a_receive() {
    for nics in [1, 2] {
        let mut rig = Rig::new(nics);
        let (mut a, mut b) = rig.pair();
        let (from, source) = rig.region(a.nic, 300);
        let (to, target) = rig.region(b.nic, 300);
        rig.fill(source, 300, 3);
        rig.post_receive(&mut b, 22, &[segment(to, 0, 100), segment(to, 150, 150)]);
        let pieces = [segment(from, 10, 50), segment(from, 100, 0), segment(from, 100, 100)];
        rig.post(&mut a, header(wqe::Opcode::Send, 11), &pieces);
        let sent = rig.sent(&mut a);
        assert_eq!(
            (status(&sent), sent.tag, sent.opcode),
            (cqe::Status::Success, 11, wqe::Opcode::Send as u8)
        );
        let received = rig.received(&mut b);
        assert_eq!((received.tag, received.length, received.qpn), (22, 150, b.qpn));
        assert_eq!(CqeFlags::from_bits(received.flags), Some(CqeFlags::RECEIVE));
        let (bytes, landed) = (rig.bytes(source, 300), rig.bytes(target, 300));
        assert_eq!(landed[..50], bytes[10..60]);
        assert_eq!(landed[50..100], bytes[100..150]);
        assert_eq!(landed[100..150], [0; 50], "between the segments nothing is written");
        assert_eq!(landed[150..200], bytes[150..200]);
        assert_eq!(landed[200..], [0; 100]);
    }
}

/// A queue pair's sequence according to QueryQp: the next PSN to send, the next one expected.
fn sequence(rig: &mut Rig, qp: &Qp) -> (u32, u32) {
    let result = rig.command(qp.nic, Opcode::QueryQp, qp.qpn, &()).expect("a queue pair");
    let info = QpInfo::read_from_prefix(&result).expect("large enough").0;
    (info.send_psn, info.receive_psn)
}

#[test]
fn a_message_takes_a_psn_for_each_packet() {
    let mut rig = Rig::new(2);
    let (mut a, b) = rig.pair();
    let (from, _) = rig.region(0, 16384);
    let (to, _) = rig.region(1, 16384);
    let mtu = rig.rtr_args(&a, &b).mtu;
    for opcode in [wqe::Opcode::Write, wqe::Opcode::Read] {
        for (length, packets) in [(0, 1), (1, 1), (mtu - 1, 1), (mtu, 1), (mtu + 1, 2), (3 * mtu, 3)] {
            let (sent, expected) = (sequence(&mut rig, &a).0, sequence(&mut rig, &b).1);
            rig.post(&mut a, rdma(opcode, 1, to, 0), &[segment(from, 0, length)]);
            assert_eq!(status(&rig.sent(&mut a)), cqe::Status::Success);
            assert_eq!(sequence(&mut rig, &a).0, sent + packets, "{opcode:?} of {length} bytes");
            assert_eq!(sequence(&mut rig, &b).1, expected + packets, "{opcode:?} of {length} bytes");
        }
    }
}

#[test]
fn many_segments_wrap_around_the_ring() {
    let mut rig = Rig::new(2);
    let (mut a, mut b) = rig.pair();
    let (from, source) = rig.region(0, 4096);
    let (to, target) = rig.region(1, 4096);
    rig.fill(source, 4096, 9);
    for round in 0..100_u32 {
        rig.post_receive(&mut b, round, &[segment(to, 0, 4096)]);
        let pieces: Vec<_> = (0..6).map(|i| segment(from, u64::from(5 - i) * 100, 60 + i)).collect();
        rig.post(&mut a, header(wqe::Opcode::Send, round), &pieces);
        assert_eq!(rig.sent(&mut a).tag, round);
        let received = rig.received(&mut b);
        assert_eq!((received.tag, received.length), (round, 6 * 60 + 15));
        let bytes = rig.bytes(source, 4096);
        let expected: Vec<u8> =
            (0..6).flat_map(|i| bytes[(5 - i) * 100..(5 - i) * 100 + 60 + i].to_vec()).collect();
        assert_eq!(rig.bytes(target, 375), expected);
    }
}

#[test]
fn immediate_data_and_solicited_events_arrive() {
    let mut rig = Rig::new(2);
    let (mut a, mut b) = rig.pair();
    let (from, _) = rig.region(0, 64);
    let (to, _) = rig.region(1, 64);
    let written = CqeFlags::WRITE;
    for (opcode, room, way) in [
        (wqe::Opcode::SendImmediate, 64, CqeFlags::empty()),
        (wqe::Opcode::WriteImmediate, 64, written),
        // The data of a Write goes elsewhere, so the receive needs no room.
        (wqe::Opcode::WriteImmediate, 0, written),
    ] {
        rig.post_receive(&mut b, 2, &[segment(to, 0, 64)][..usize::from(room > 0)]);
        let head =
            Header { immediate: 0xdead_beef, flags: SendFlags::SOLICITED.bits(), ..rdma(opcode, 1, to, 32) };
        rig.post(&mut a, head, &[segment(from, 0, 16)]);
        assert_eq!(rig.sent(&mut a).opcode, opcode as u8);
        let received = rig.received(&mut b);
        let flags = CqeFlags::RECEIVE | CqeFlags::IMMEDIATE | CqeFlags::SOLICITED | way;
        assert_eq!(CqeFlags::from_bits(received.flags), Some(flags));
        let lengths = if way.is_empty() { (16, 0) } else { (0, 16) };
        assert_eq!((received.immediate, (received.length, received.detail)), (0xdead_beef, lengths));
    }
}

#[test]
fn a_write_arrives_and_takes_no_receive() {
    let mut rig = Rig::new(2);
    let (mut a, mut b) = rig.pair();
    let (from, source) = rig.region(0, 64);
    let (to, target) = rig.region_with(1, 64, nic_model::testing::ALL_RIGHTS, 0x7000_0000);
    rig.fill(source, 64, 1);
    rig.post_receive(&mut b, 2, &[]);
    rig.post(&mut a, rdma(wqe::Opcode::Write, 1, to, 0x7000_0010), &[segment(from, 0, 48)]);
    let sent = rig.sent(&mut a);
    assert_eq!((status(&sent), sent.length), (cqe::Status::Success, 48));
    assert_eq!(rig.bytes(target + 16, 48), rig.bytes(source, 48));
    assert!(rig.poll_cq(&mut b.receive_cq).is_none());
}

#[test]
fn a_read_copies_the_peers_memory() {
    let mut rig = Rig::new(2);
    let (mut a, b) = rig.pair();
    let (sink, target) = rig.region(0, 200);
    let (far, source) = rig.region(1, 200);
    rig.fill(source, 200, 1);
    rig.post(&mut a, rdma(wqe::Opcode::Read, 1, far, 50), &[segment(sink, 0, 30), segment(sink, 100, 70)]);
    let done = rig.sent(&mut a);
    assert_eq!((status(&done), done.length), (cqe::Status::Success, 100));
    assert_eq!(rig.bytes(target, 30), rig.bytes(source + 50, 30));
    assert_eq!(rig.bytes(target + 100, 70), rig.bytes(source + 80, 70));
    assert_eq!(rig.query(&b).receive_psn, (b_start(&a) + 1) & 0xff_ffff);
}

fn b_start(a: &nic_model::testing::Qp) -> u32 {
    a.qpn & 0xffff
}

#[test]
fn atomics_return_the_original_value() {
    let mut rig = Rig::new(2);
    let (mut a, _b) = rig.pair();
    let (sink, result) = rig.region(0, 64);
    let (far, word) = rig.region(1, 64);
    rig.memory.write(word + 8, &40_u64.to_le_bytes()).unwrap();
    let mut step = |opcode, first, second| {
        let args = AtomicArgs { sink: segment(sink, 16, 8), compare_add: first, swap: second };
        let head = Header { segments: 1, ..rdma(opcode, 1, far, 8) };
        rig.post_args(&mut a, head, zerocopy::transmute!(args));
        let done = rig.sent(&mut a);
        assert_eq!((status(&done), done.length), (cqe::Status::Success, 8));
        let original: u64 = rig.memory.load(result + 16).unwrap();
        let now: u64 = rig.memory.load(word + 8).unwrap();
        (original, now)
    };
    assert_eq!(step(wqe::Opcode::FetchAdd, 2, 0), (40, 42));
    assert_eq!(step(wqe::Opcode::CompareSwap, 41, 7), (42, 42));
    assert_eq!(step(wqe::Opcode::CompareSwap, 42, 7), (42, 7));
    assert_eq!(step(wqe::Opcode::FetchAdd, u64::MAX, 0), (7, 6));
}

#[test]
fn an_access_of_no_bytes_violates_nothing() {
    let mut rig = Rig::new(2);
    let (mut a, mut b) = rig.pair();
    for opcode in [wqe::Opcode::Write, wqe::Opcode::Read] {
        rig.post(&mut a, rdma(opcode, 1, 0xdead_0000, u64::MAX), &[segment(0xbeef, u64::MAX, 0)]);
        assert_eq!(status(&rig.sent(&mut a)), cqe::Status::Success);
    }
    rig.post_receive(&mut b, 9, &[segment(0xbeef, u64::MAX, 0)]);
    rig.post(&mut a, header(wqe::Opcode::Send, 1), &[]);
    assert_eq!(status(&rig.sent(&mut a)), cqe::Status::Success);
    assert_eq!(rig.received(&mut b).length, 0);
}

#[test]
fn large_messages_move_in_pieces_between_other_work() {
    let mut rig = Rig::new(2);
    let (mut a, _b) = rig.pair();
    let (mut c, _d) = rig.pair();
    let size = 5 << 20;
    let (from, source) = rig.region(0, size);
    let (to, target) = rig.region(1, size);
    rig.fill(source, size as usize, 1);
    rig.post(&mut a, rdma(wqe::Opcode::Write, 1, to, 0), &[segment(from, 0, size as u32)]);
    rig.post(&mut c, rdma(wqe::Opcode::Write, 2, to, 0), &[segment(from, 0, 8)]);
    rig.fabric.poll(platform::Instant::from_nanos(rig.now), 2);
    rig.fabric.poll(platform::Instant::from_nanos(rig.now), 2);
    assert!(rig.poll_cq(&mut c.send_cq).is_some(), "the small one is done");
    assert!(rig.poll_cq(&mut a.send_cq).is_none(), "the large one is in progress");
    assert_eq!(status(&rig.sent(&mut a)), cqe::Status::Success);
    assert!(rig.bytes(source, size as usize) == rig.bytes(target, size as usize));
}

#[test]
fn the_turn_passes_on_after_a_large_message_and_not_before() {
    for (length, expected) in [(u16::MAX.into(), [0, 1, 2]), (1 << 16, [0, 2, 1])] {
        let mut rig = Rig::new(1);
        let mut cq = rig.create_cq(0, 4);
        let mut qps = [(); 2].map(|()| {
            let (qp, peer) =
                (rig.create_qp_on(0, QpSpec::default(), cq, cq), rig.create_qp(0, QpSpec::default()));
            rig.join(&qp, &peer);
            rig.join(&peer, &qp);
            qp
        });
        let (key, _) = rig.region(0, 1 << 17);
        for (tag, of) in [(0, 0), (1, 0), (2, 1)] {
            rig.post(&mut qps[of], rdma(wqe::Opcode::Write, tag, key, 1 << 16), &[segment(key, 0, length)]);
        }
        rig.run();
        let order = [(); 3].map(|()| rig.poll_cq(&mut cq).map(|entry| entry.tag));
        assert_eq!(order, expected.map(Some), "{length}");
    }
}

#[test]
fn only_signalled_successes_complete() {
    let mut rig = Rig::new(2);
    let (mut a, _b) = rig.pair();
    let (from, _) = rig.region(0, 64);
    let (to, _) = rig.region(1, 64);
    let args = [0, 0, 0, 0];
    let silent = Header { blocks: 1, ..rdma(wqe::Opcode::Write, 1, to, 0) };
    rig.write_send(&mut a, silent, args, &[]);
    rig.write_send(&mut a, silent, args, &[]);
    rig.post(&mut a, rdma(wqe::Opcode::Write, 3, to, 0), &[segment(from, 0, 8)]);
    assert_eq!(rig.sent(&mut a).tag, 3);
    assert!(rig.poll_cq(&mut a.send_cq).is_none());
    assert_eq!(rig.query(&a).send_head, 3);
}

#[test]
fn the_reserved_key_is_for_the_privileged() {
    let mut rig = Rig::new(2);
    let privileged = QpSpec { flags: QpFlags::PRIVILEGED, ..QpSpec::default() };
    let (mut a, mut b) = rig.pair_of(0, 1, privileged);
    let (to, target) = rig.region(1, 64);
    let source = rig.alloc(64);
    rig.fill(source, 64, 5);
    rig.post(&mut a, rdma(wqe::Opcode::Write, 1, to, 0), &[segment(KEY_RESERVED, source, 64)]);
    assert_eq!(status(&rig.sent(&mut a)), cqe::Status::Success);
    assert_eq!(rig.bytes(target, 64), rig.bytes(source, 64));
    let sink = rig.alloc(64);
    rig.post_receive(&mut b, 3, &[segment(KEY_RESERVED, sink, 64)]);
    rig.post(&mut a, header(wqe::Opcode::Send, 1), &[segment(KEY_RESERVED, source, 64)]);
    assert_eq!(status(&rig.sent(&mut a)), cqe::Status::Success);
    assert_eq!(rig.bytes(sink, 64), rig.bytes(source, 64));
    // The sink of an atomic operation.
    let old = rig.bytes(target, 8);
    let head = Header { segments: 1, ..rdma(wqe::Opcode::FetchAdd, 1, to, 0) };
    let atomic = |sink| AtomicArgs { sink, compare_add: 1, swap: 0 };
    rig.post_args(&mut a, head, zerocopy::transmute!(atomic(segment(KEY_RESERVED, sink + 8, 8))));
    assert_eq!(status(&rig.sent(&mut a)), cqe::Status::Success);
    assert_eq!(rig.bytes(sink + 8, 8), old);
    // The reserved key is not allowed for the sink of a Read.
    rig.post(&mut a, rdma(wqe::Opcode::Read, 1, to, 0), &[segment(KEY_RESERVED, sink, 8)]);
    assert_eq!(status(&rig.sent(&mut a)), cqe::Status::LocalProtection);
    // The reserved key is not allowed as a remote key.
    let (mut a, _b) = rig.pair_of(0, 1, privileged);
    rig.post(&mut a, rdma(wqe::Opcode::Write, 1, KEY_RESERVED, target), &[segment(KEY_RESERVED, source, 8)]);
    assert_eq!(status(&rig.sent(&mut a)), cqe::Status::RemoteAccess);
    // The reserved key is not allowed without privilege.
    let (mut a, _b) = rig.pair();
    rig.post(&mut a, rdma(wqe::Opcode::Write, 1, to, 0), &[segment(KEY_RESERVED, source, 8)]);
    assert_eq!(status(&rig.sent(&mut a)), cqe::Status::LocalProtection);
    let (mut a, _b) = rig.pair();
    rig.post_args(&mut a, head, zerocopy::transmute!(atomic(segment(KEY_RESERVED, sink, 8))));
    assert_eq!(status(&rig.sent(&mut a)), cqe::Status::LocalProtection);
}

#[test]
fn the_first_message_before_rts_is_reported_once() {
    let mut rig = Rig::new(2);
    let (mut a, mut b) = (rig.create_qp(0, QpSpec::default()), rig.create_qp(1, QpSpec::default()));
    rig.join(&a, &b);
    rig.init(&b);
    let args = rig.rtr_args(&b, &a);
    rig.modify(&b, &args).unwrap();
    rig.post_receive(&mut b, 1, &[]);
    rig.post_receive(&mut b, 2, &[]);
    rig.post(&mut a, header(wqe::Opcode::Send, 1), &[]);
    rig.post(&mut a, header(wqe::Opcode::Send, 2), &[]);
    rig.run();
    assert_eq!(rig.event_types(1), [(EventType::CommunicationEstablished, b.qpn)]);
    assert_eq!(rig.received(&mut b).tag, 1);
}

#[test]
fn sends_wait_for_rts_and_for_the_end_of_sqd() {
    let mut rig = Rig::new(2);
    let (mut a, mut b) = (rig.create_qp(0, QpSpec::default()), rig.create_qp(1, QpSpec::default()));
    rig.join(&b, &a);
    rig.post_receive(&mut b, 1, &[]);
    rig.init(&a);
    rig.post(&mut a, header(wqe::Opcode::Send, 7), &[]);
    rig.run();
    assert!(rig.poll_cq(&mut a.send_cq).is_none());
    let args = rig.rtr_args(&a, &b);
    rig.modify(&a, &args).unwrap();
    let args = rig.rts_args(&a);
    rig.modify(&a, &args).unwrap();
    assert_eq!(rig.sent(&mut a).tag, 7);
    rig.set_state(&a, QpState::Sqd).unwrap();
    rig.run();
    assert_eq!(rig.event_types(0), [(EventType::SendQueueDrained, a.qpn)]);
    rig.post_receive(&mut b, 1, &[]);
    rig.post(&mut a, header(wqe::Opcode::Send, 8), &[]);
    rig.run();
    assert!(rig.poll_cq(&mut a.send_cq).is_none(), "a drained queue begins no request");
    rig.set_state(&a, QpState::Rts).unwrap();
    assert_eq!(rig.sent(&mut a).tag, 8);
}

// An entry that asks for it raises the drained event after its completion. An event that the driver
// has not consumed stands for later ones too. A flushed entry raises none.
#[test]
fn an_entry_raises_the_drained_event() {
    let mut rig = Rig::new(2);
    let (mut a, mut b) = (rig.create_qp(0, QpSpec::default()), rig.create_qp(1, QpSpec::default()));
    rig.join(&b, &a);
    rig.join(&a, &b);
    let asks = |tag| Header { flags: SendFlags::DRAINED_EVENT.bits(), ..header(wqe::Opcode::Send, tag) };
    rig.post(&mut a, asks(1), &[]);
    rig.post(&mut a, asks(2), &[]);
    rig.post(&mut a, header(wqe::Opcode::Send, 3), &[]);
    assert_eq!(rig.event_types(0), []);
    for tag in 1..=3 {
        rig.post_receive(&mut b, tag, &[]);
    }
    for tag in 1..=3 {
        assert_eq!(rig.sent(&mut a).tag, tag);
    }
    let drained = [(EventType::SendQueueDrained, a.qpn)];
    assert_eq!(rig.event_types(0), drained);
    rig.post_receive(&mut b, 4, &[]);
    rig.post(&mut a, asks(4), &[]);
    assert_eq!(rig.sent(&mut a).tag, 4);
    assert_eq!(rig.event_types(0), drained);
    rig.set_state(&a, QpState::Error).unwrap();
    rig.post(&mut a, asks(5), &[]);
    assert_eq!(rig.sent(&mut a).tag, 5);
    assert_eq!(rig.event_types(0), []);
}

#[test]
fn a_modify_is_all_or_nothing() {
    let mut rig = Rig::new(1);
    let qp = rig.create_qp(0, QpSpec::default());
    rig.init(&qp);
    let mut args = rig.rtr_args(&qp, &qp);
    args.mask &= !QpMask::MTU.bits();
    let mask_field = 16;
    assert_eq!(rig.modify(&qp, &args), Err((Status::BadField, mask_field)));
    let mut args = rig.rtr_args(&qp, &qp);
    args.mtu = 1000;
    let mtu_field = 16 + std::mem::offset_of!(ModifyQp, mtu) as u16;
    assert_eq!(rig.modify(&qp, &args), Err((Status::BadField, mtu_field)));
    assert_eq!(rig.query(&qp).state, QpState::Init as u32);
    assert_eq!(rig.query(&qp).receive_psn, 0);
    assert_eq!(rig.set_state(&qp, QpState::Rts), Err((Status::BadState, 20)));
    let args = ModifyQp { mask: 1 << 31, ..ModifyQp::default() };
    assert_eq!(rig.modify(&qp, &args), Err((Status::BadField, mask_field)));
    let args = ModifyQp { mask: 1, state: 5, ..ModifyQp::default() };
    assert_eq!(rig.modify(&qp, &args), Err((Status::BadField, 20)));
    assert_eq!(rig.command(0, Opcode::ModifyQp, qp.qpn + 1, &args), Err((Status::NoSuchObject, 8)));
}

#[test]
fn a_queue_pair_can_be_its_own_peer() {
    let mut rig = Rig::new(1);
    let mut qp = rig.create_qp(0, QpSpec::default());
    rig.join(&qp, &qp);
    let (key, addr) = rig.region(0, 128);
    rig.fill(addr, 64, 8);
    rig.post(&mut qp, rdma(wqe::Opcode::Write, 1, key, 64), &[segment(key, 0, 64)]);
    assert_eq!(status(&rig.sent(&mut qp)), cqe::Status::Success);
    assert_eq!(rig.bytes(addr, 64), rig.bytes(addr + 64, 64));
    rig.post(&mut qp, rdma(wqe::Opcode::Write, 2, 0xbad0, 64), &[segment(key, 0, 64)]);
    let done = rig.sent(&mut qp);
    assert_eq!(status(&done), cqe::Status::RemoteAccess);
    assert!(rig.poll_cq(&mut qp.send_cq).is_none(), "one completion for one request");
    assert_eq!(rig.query(&qp).state, QpState::Error as u32);
}
