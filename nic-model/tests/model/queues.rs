//! Completion queues, shared receive queues, datagrams.

use std::sync::atomic::Ordering;

use nic_abi::admin::{
    CqInfo, Injection, ModifyQp, ModifySrq, Opcode, QpFlags, QpMask, QpState, ResizeCq, ResizeSrq, SrqInfo,
    Status,
};
use nic_abi::cqe::{self, CqeFlags};
use nic_abi::doorbell::{self, ARM_NEXT, ARM_NONE, ARM_SOLICITED, Kind};
use nic_abi::eqe::EventType;
use nic_abi::registers;
use nic_abi::wqe::{self, AddressVector, Header, SendFlags};
use roce::wire::datagram::Network;
use zerocopy::FromBytes;

use nic_model::NicConfig;
use nic_model::testing::{Cq, LOG_ENTRIES, MEMORY, Qp, QpSpec, Rig, header, rdma, segment, status, stride};

fn cq_info(rig: &mut Rig, cq: &Cq) -> CqInfo {
    let result = rig.command(cq.nic, Opcode::QueryCq, cq.number, &()).expect("a CQ");
    CqInfo::read_from_prefix(&result).expect("large enough").0
}

#[test]
fn a_full_cq_is_not_an_overflow_but_one_more_is() {
    let mut rig = Rig::new(2);
    let (send_cq, receive_cq) = (rig.create_cq(0, 2), rig.create_cq(0, 4));
    let mut a = rig.create_qp_on(0, QpSpec::default(), send_cq, receive_cq);
    let b = rig.create_qp(1, QpSpec::default());
    rig.join(&a, &b);
    rig.join(&b, &a);
    for tag in 0..4 {
        rig.post(&mut a, rdma(wqe::Opcode::Write, tag, 0, 0), &[]);
    }
    rig.run();
    let info = cq_info(&mut rig, &a.send_cq);
    assert_eq!((info.producer, info.failed), (4, 0));
    rig.post(&mut a, rdma(wqe::Opcode::Write, 4, 0, 0), &[]);
    rig.run();
    assert_eq!(cq_info(&mut rig, &a.send_cq).failed, 1);
    let events = rig.event_types(0);
    assert_eq!(events, [(EventType::CqError, a.send_cq.number), (EventType::QpFatal, a.qpn)]);
    assert_eq!(rig.query(&a).state, QpState::Error as u32);
    for tag in 0..4 {
        assert_eq!(rig.poll_cq(&mut a.send_cq).expect("the queued entries stay").tag, tag);
    }
    rig.post(&mut a, rdma(wqe::Opcode::Write, 5, 0, 0), &[]);
    rig.run();
    assert!(rig.poll_cq(&mut a.send_cq).is_none(), "a failed CQ takes nothing");
    assert!(rig.stats(0).lost_completions >= 2);
}

#[test]
fn a_cq_wraps_while_it_is_consumed() {
    let mut rig = Rig::new(2);
    let (send_cq, receive_cq) = (rig.create_cq(0, 2), rig.create_cq(0, 4));
    let mut a = rig.create_qp_on(0, QpSpec::default(), send_cq, receive_cq);
    let b = rig.create_qp(1, QpSpec::default());
    rig.join(&a, &b);
    rig.join(&b, &a);
    for tag in 0..if cfg!(miri) { 100 } else { 1000 } {
        rig.post(&mut a, rdma(wqe::Opcode::Write, tag, 0, 0), &[]);
        assert_eq!(rig.sent(&mut a).tag, tag);
    }
}

#[test]
fn an_impossible_consumer_index_is_an_overflow() {
    let mut rig = Rig::new(2);
    let (mut a, _b) = rig.pair();
    let record = doorbell::record(registers::CQ_RECORDS, a.send_cq.number);
    rig.register(0, record).store(0x8000_0000, Ordering::Release);
    for tag in 0..300 {
        rig.post(&mut a, rdma(wqe::Opcode::Write, tag, 0, 0), &[]);
        rig.run();
    }
    assert_eq!(cq_info(&mut rig, &a.send_cq).failed, 1);
}

#[test]
fn an_armed_cq_raises_one_event_for_the_next_entry() {
    let mut rig = Rig::new(2);
    let (mut a, _b) = rig.pair();
    let mut post = |rig: &mut Rig| {
        rig.post(&mut a, rdma(wqe::Opcode::Write, 0, 0, 0), &[]);
        rig.run();
        a.send_cq
    };
    let cq = post(&mut rig);
    assert_eq!(rig.event_types(0), [], "not armed");
    rig.arm_cq(&cq, ARM_NEXT);
    rig.arm_eq(0);
    post(&mut rig);
    post(&mut rig);
    assert_eq!(rig.event_types(0), [(EventType::Completion, cq.number)]);
    assert_eq!(rig.raised(0, 1), 1);
    assert_eq!(
        rig.register(0, doorbell::record(registers::CQ_RECORDS, cq.number) + 4).load(Ordering::Relaxed),
        ARM_NONE
    );
}

#[test]
fn a_solicited_arm_waits_for_a_solicited_entry_or_an_error() {
    let mut rig = Rig::new(2);
    let (mut a, mut b) = rig.pair();
    rig.arm_cq(&b.receive_cq, ARM_SOLICITED);
    for (flags, expected) in [(0, 0), (SendFlags::SOLICITED.bits(), 1)] {
        rig.post_receive(&mut b, 1, &[]);
        rig.post(&mut a, Header { flags, ..header(wqe::Opcode::Send, 1) }, &[]);
        rig.run();
        assert_eq!(rig.events(1).len(), expected);
    }
    rig.arm_cq(&b.receive_cq, ARM_SOLICITED);
    rig.post_receive(&mut b, 1, &[]);
    rig.run();
    rig.set_state(&b, QpState::Error).unwrap();
    rig.run();
    assert_eq!(rig.event_types(1), [(EventType::Completion, b.receive_cq.number)], "an error counts");
}

#[test]
fn a_resize_moves_the_unconsumed_entries() {
    let mut rig = Rig::new(2);
    let (mut a, _b) = rig.pair();
    for tag in 0..6 {
        rig.post(&mut a, rdma(wqe::Opcode::Write, tag, 0, 0), &[]);
    }
    for tag in 0..3 {
        assert_eq!(rig.sent(&mut a).tag, tag);
    }
    let resize = |rig: &mut Rig, cq: &Cq, log: u32| {
        let ring = rig.alloc(32 << log);
        let args = ResizeCq { ring, log_entries: log, reserved: 0 };
        rig.command(0, Opcode::ResizeCq, cq.number, &args).map(|_| ring)
    };
    let field = 16 + std::mem::offset_of!(ResizeCq, log_entries) as u16;
    assert_eq!(resize(&mut rig, &a.send_cq, 1), Err((Status::BadField, field)), "three do not fit into two");
    for log in [2, 5, 3] {
        let ring = resize(&mut rig, &a.send_cq, log).unwrap();
        (a.send_cq.ring.addr, a.send_cq.ring.log) = (ring, log);
    }
    for tag in 3..6 {
        assert_eq!(rig.sent(&mut a).tag, tag);
    }
    for tag in 10..30 {
        rig.post(&mut a, rdma(wqe::Opcode::Write, tag, 0, 0), &[]);
        assert_eq!(rig.sent(&mut a).tag, tag);
    }
}

#[test]
fn a_resize_to_a_ring_that_is_not_all_there_writes_nothing() {
    let mut rig = Rig::new(1);
    let (mut a, _b) = rig.pair();
    rig.post(&mut a, rdma(wqe::Opcode::Write, 1, 0, 0), &[]);
    rig.run();
    // Two entries are in memory, and the one that would move is the first.
    let args = ResizeCq { ring: MEMORY - 64, log_entries: 3, reserved: 0 };
    let field = 16 + std::mem::offset_of!(ResizeCq, ring) as u16;
    assert_eq!(rig.command(0, Opcode::ResizeCq, a.send_cq.number, &args), Err((Status::Dma, field)));
    assert_eq!(rig.bytes(MEMORY - 64, 64), [0; 64]);
    assert_eq!(rig.sent(&mut a).tag, 1);
}

#[test]
fn a_resized_srq_goes_on_in_the_new_ring() {
    let mut rig = Rig::new(2);
    let (mut ring, mut tail) = (rig.create_srq(1, 4, 0), 0);
    let (mut a, mut b) = shared_pair(&mut rig);
    for tag in 0..10 {
        post_shared(&mut rig, ring, &mut tail, tag, &[]);
    }
    let mut take = |rig: &mut Rig, tags: std::ops::Range<u32>| {
        for tag in tags {
            rig.post(&mut a, header(wqe::Opcode::Send, 1), &[]);
            rig.run();
            assert_eq!(rig.received(&mut b).tag, tag);
        }
    };
    take(&mut rig, 0..4);
    let field = 16 + std::mem::offset_of!(ResizeSrq, log_entries) as u16;
    let resize = |rig: &mut Rig, ring: u64, log_entries: u32, limit: u32| {
        rig.command(1, Opcode::ResizeSrq, 4, &ResizeSrq { ring, log_entries, limit })
    };
    assert_eq!(resize(&mut rig, ring, 2, 0), Err((Status::BadField, field)), "six do not fit into four");
    // The driver has written the waiting entries to the same indices of the new ring.
    for limit in [6, 0] {
        ring = rig.alloc(u64::from(stride()) << LOG_ENTRIES);
        for tag in 4..10 {
            rig.write_receive(ring, tag, tag, &[]);
        }
        resize(&mut rig, ring, LOG_ENTRIES, limit).unwrap();
    }
    let info = rig.command(1, Opcode::QuerySrq, 4, &()).unwrap();
    let info = SrqInfo::read_from_prefix(&info).unwrap().0;
    assert_eq!((info.taken, info.limit), (4, 6), "a limit of 0 leaves it");
    take(&mut rig, 4..5);
    assert_eq!(rig.event_types(1), [(EventType::SrqLimit, 4)]);
    for tag in 10..20 {
        post_shared(&mut rig, ring, &mut tail, tag, &[]);
    }
    take(&mut rig, 5..20);
    // A limit above the entries left raises the event at once; a failed queue cannot be resized.
    resize(&mut rig, ring, LOG_ENTRIES, 1).unwrap();
    assert_eq!(rig.event_types(1), [(EventType::SrqLimit, 4)]);
    rig.ring(1, Kind::SharedReceive, 4, tail + 1000);
    let refused = Err((Status::BadState, std::mem::offset_of!(nic_abi::admin::Command, object) as u16));
    assert_eq!(resize(&mut rig, ring, LOG_ENTRIES, 0), refused);
}

pub(crate) fn post_shared(rig: &mut Rig, ring: u64, tail: &mut u32, tag: u32, segments: &[wqe::Segment]) {
    rig.write_receive(ring, *tail, tag, segments);
    *tail += 1;
    rig.ring(1, Kind::SharedReceive, 4, *tail);
}

fn shared_pair(rig: &mut Rig) -> (Qp, Qp) {
    let a = rig.create_qp(0, QpSpec::default());
    let b = rig.create_qp(1, QpSpec { flags: QpFlags::SRQ, srq: 4, ..QpSpec::default() });
    rig.join(&a, &b);
    rig.join(&b, &a);
    (a, b)
}

#[test]
fn queue_pairs_share_receives() {
    let mut rig = Rig::new(2);
    let (ring, mut tail) = (rig.create_srq(1, 4, 2), 0);
    let (mut a, mut b) = shared_pair(&mut rig);
    let (mut c, mut d) = shared_pair(&mut rig);
    let (to, _) = rig.region(1, 64);
    for tag in 0..4 {
        post_shared(&mut rig, ring, &mut tail, tag, &[segment(to, 0, 64)]);
    }
    rig.post(&mut a, header(wqe::Opcode::Send, 1), &[]);
    rig.run();
    rig.post(&mut c, header(wqe::Opcode::Send, 1), &[]);
    assert_eq!((rig.received(&mut b).tag, rig.received(&mut d).tag), (0, 1));
    assert_eq!(rig.event_types(1), [], "two are left, the limit is two");
    rig.post(&mut a, header(wqe::Opcode::Send, 1), &[]);
    rig.run();
    let [event] = rig.events(1)[..] else { panic!("one event") };
    assert_eq!((event.event, event.number), (EventType::SrqLimit as u8, 4));
    assert_eq!(event.detail, 1, "entries that were left");
    rig.post(&mut a, header(wqe::Opcode::Send, 1), &[]);
    rig.run();
    assert_eq!(rig.event_types(1), [], "disarmed");
    let info = rig.command(1, Opcode::QuerySrq, 4, &()).unwrap();
    let info = SrqInfo::read_from_prefix(&info).unwrap().0;
    assert_eq!((info.taken, info.limit), (4, 0));
    // Arming a limit above the entries left raises the event at once.
    rig.command(1, Opcode::ModifySrq, 4, &ModifySrq { limit: 1, reserved: 0 }).unwrap();
    assert_eq!(rig.event_types(1), [(EventType::SrqLimit, 4)]);
    // Arming again and again does not fill the event queue: the event that is not consumed stands
    // for the later ones.
    for _ in 0..100 {
        rig.command(1, Opcode::ModifySrq, 4, &ModifySrq { limit: 1, reserved: 0 }).unwrap();
    }
    assert_eq!(rig.event_types(1), [(EventType::SrqLimit, 4)]);
    // In ERROR the shared receives stay, and LastWqeReached is raised.
    post_shared(&mut rig, ring, &mut tail, 9, &[]);
    rig.set_state(&b, QpState::Error).unwrap();
    rig.run();
    assert_eq!(rig.event_types(1), [(EventType::LastWqeReached, b.qpn)]);
    rig.post(&mut c, header(wqe::Opcode::Send, 1), &[]);
    assert_eq!(rig.received(&mut d).tag, 9);
    assert_eq!(rig.command(1, Opcode::DestroySrq, 4, &()), Err((Status::Busy, 8)));
    for qp in [b, d] {
        rig.command(1, Opcode::DestroyQp, qp.qpn, &()).unwrap();
    }
    rig.command(1, Opcode::DestroySrq, 4, &()).unwrap();
}

#[test]
fn a_shared_receive_in_progress_is_flushed_at_reset_and_destroy() {
    const LENGTH: u32 = 3 << 20;
    for destroyed in [true, false] {
        let mut rig = Rig::new(2);
        let (ring, mut tail) = (rig.create_srq(1, 4, 0), 0);
        let (mut a, mut b) = shared_pair(&mut rig);
        let ((from, source), (to, target)) =
            (rig.region(0, u64::from(LENGTH)), rig.region(1, u64::from(LENGTH)));
        rig.fill(source, LENGTH as usize, 1);
        post_shared(&mut rig, ring, &mut tail, 7, &[segment(to, 0, LENGTH)]);
        rig.post(&mut a, header(wqe::Opcode::Send, 1), &[segment(from, 0, LENGTH)]);
        // Run until one of three pieces has arrived.
        while rig.bytes(target, 8) == [0; 8] {
            rig.step();
        }
        assert!(rig.poll_cq(&mut b.receive_cq).is_none());
        if destroyed {
            rig.command(1, Opcode::DestroyQp, b.qpn, &()).unwrap();
        } else {
            rig.set_state(&b, QpState::Reset).unwrap();
        }
        let entry = rig.poll_cq(&mut b.receive_cq).expect("a completion");
        assert_eq!((entry.tag, status(&entry), entry.qpn), (7, cqe::Status::Flushed, b.qpn));
        assert!(rig.poll_cq(&mut b.receive_cq).is_none());
        assert_eq!(rig.bytes(target + u64::from(LENGTH) - 8, 8), [0; 8], "the rest never came");
    }
}

#[test]
fn an_empty_srq_is_not_ready_and_a_broken_one_an_error() {
    let mut rig = Rig::new(2);
    let (ring, mut tail) = (rig.create_srq(1, 4, 0), 0);
    let (mut a, mut b) = shared_pair(&mut rig);
    rig.post(&mut a, header(wqe::Opcode::Send, 1), &[]);
    rig.run();
    post_shared(&mut rig, ring, &mut tail, 3, &[]);
    rig.advance(10_000);
    assert_eq!(rig.received(&mut b).tag, 3);
    assert_eq!(status(&rig.sent(&mut a)), cqe::Status::Success);
    tail = 5000;
    post_shared(&mut rig, ring, &mut tail, 3, &[]);
    rig.post(&mut a, header(wqe::Opcode::Send, 2), &[]);
    assert_eq!(status(&rig.sent(&mut a)), cqe::Status::RemoteOperation);
    let events = rig.event_types(1);
    assert_eq!(events[..2], [(EventType::SrqError, 4), (EventType::QpFatal, b.qpn)]);
}

/// The address of a queue pair for datagrams.
pub(crate) fn datagram(rig: &Rig, to: &Qp, qkey: u32) -> AddressVector {
    AddressVector {
        gid: rig.gid(to.nic),
        flow_label: 0x12345,
        hop_limit: 9,
        traffic_class: 0x20,
        service_level: 0,
        source_gid: 1,
        qpn: to.qpn,
        qkey,
    }
}

/// Sends a datagram.
pub(crate) fn send_datagram(
    rig: &mut Rig,
    from: &mut Qp,
    av: AddressVector,
    opcode: wqe::Opcode,
    segments: &[wqe::Segment],
) {
    let head = Header {
        blocks: wqe::datagram_blocks(segments.len() as u32) as u8,
        segments: segments.len() as u8,
        flags: SendFlags::SIGNALED.bits(),
        immediate: 0x1122,
        ..header(opcode, 1)
    };
    rig.write_send(from, head, zerocopy::transmute!(av), segments);
    rig.ring_send(from);
}

#[test]
fn datagrams_arrive_with_their_header_in_front() {
    for slot in [1, 7] {
        let mut rig = Rig::new(2);
        let (mut a, mut b) = (rig.datagram_qp(0, slot, 0x1234), rig.datagram_qp(1, slot, 0x1234));
        let (from, source) = rig.region(0, 2048);
        let (to, target) = rig.region(1, 2048);
        rig.fill(source, 256, 7);
        rig.post_receive(&mut b, 2, &[segment(to, 0, 20), segment(to, 100, 1000)]);
        let qkey = if slot == 1 { 0x8001_0000 } else { 0x1234 };
        let av = datagram(&rig, &b, qkey);
        let pieces: Vec<_> = (0..5).map(|i| segment(from, i * 50, 50)).collect();
        send_datagram(&mut rig, &mut a, av, wqe::Opcode::SendImmediate, &pieces);
        assert_eq!(status(&rig.sent(&mut a)), cqe::Status::Success);
        let received = rig.received(&mut b);
        let flags = CqeFlags::RECEIVE | CqeFlags::GRH | CqeFlags::IMMEDIATE;
        assert_eq!(CqeFlags::from_bits(received.flags), Some(flags));
        assert_eq!((received.length, received.detail, received.immediate), (290, a.qpn, 0x1122));
        let mut landed = rig.bytes(target, 20);
        landed.extend(rig.bytes(target + 100, 270));
        assert_eq!(landed[..20], [0; 20]);
        let header: [u8; 40] = landed[..40].try_into().unwrap();
        let Ok(Network::V4(ip)) = Network::parse_grh(&header) else { panic!("{header:?}") };
        assert_eq!((ip.tos, ip.ttl, ip.protocol), (0x20, 9, 17));
        // UDP, BTH, DETH, immediate data, the bytes and their padding, ICRC.
        assert_eq!(ip.payload_len, 8 + 12 + 8 + 4 + 252 + 4);
        assert_eq!([ip.src.octets(), ip.dst.octets()], [[10, 0, 0, 1], [10, 0, 0, 2]]);
        assert_eq!(landed[40..], rig.bytes(source, 250));
    }
}

/// The 40 bytes in front of a datagram from a link-local address. `change` changes its address
/// vector.
fn front(change: impl FnOnce(&mut AddressVector)) -> [u8; 40] {
    let mut rig = Rig::new(2);
    let (mut a, mut b) = (rig.datagram_qp(0, 7, 5), rig.datagram_qp(1, 7, 5));
    let (from, _) = rig.region(0, 64);
    let (to, target) = rig.region(1, 2048);
    rig.post_receive(&mut b, 2, &[segment(to, 0, 1000)]);
    let mut av = AddressVector { source_gid: 0, ..datagram(&rig, &b, 5) };
    change(&mut av);
    send_datagram(&mut rig, &mut a, av, wqe::Opcode::Send, &[segment(from, 0, 6)]);
    assert_eq!(status(&rig.sent(&mut a)), cqe::Status::Success);
    assert_eq!(rig.received(&mut b).length, 46);
    rig.bytes(target, 40).try_into().unwrap()
}

#[test]
fn the_header_of_a_datagram_is_that_of_its_addresses_family() {
    let link_local = |n: u64| {
        let interface = NicConfig::numbered(n as u8, 0).node_guid;
        (0xfe80_u128 << 112 | u128::from(interface)).to_be_bytes()
    };
    let header = front(|av| av.gid = link_local(1));
    let Ok(Network::V6(ip)) = Network::parse_grh(&header) else { panic!("{header:?}") };
    assert_eq!((ip.traffic_class, ip.flow_label, ip.hop_limit, ip.next_header), (0x20, 0x12345, 9, 17));
    assert_eq!((ip.src.0, ip.dst.0), (link_local(0), link_local(1)));
    // UDP, BTH, DETH, the bytes and their padding, ICRC.
    assert_eq!(ip.payload_len, 8 + 12 + 8 + 8 + 4);
    // Between two address families there is no packet, so the header is InfiniBand's own, without
    // UDP.
    let header = front(|_| ());
    assert_eq!(header[0] >> 4, 6);
    assert_eq!(header[..4], [0x62, 0x01, 0x23, 0x45], "version, traffic class, flow label");
    assert_eq!(header[4..8], [0, 12 + 8 + 8 + 4, 0x1b, 9], "length, next header, hop limit");
    assert_eq!(header[8..24], link_local(0));
    assert_eq!(header[24..], Rig::new(2).gid(1));
}

/// Bit 31 of an address's queue key means the sender's own key. So the key that arrives shows which
/// key the general services queue pair has.
#[test]
fn the_general_services_queue_pair_has_its_well_known_key() {
    for reset in [false, true] {
        let mut rig = Rig::new(2);
        let mut b = rig.datagram_qp(1, 1, 0x1234);
        if reset {
            for state in [QpState::Reset, QpState::Init, QpState::Rtr] {
                rig.set_state(&b, state).unwrap();
            }
        }
        for (slot, qkey, arrives) in [(7, 0x8001_0000, true), (8, 0x8001_0001, false), (9, 0, false)] {
            let mut a = rig.datagram_qp(0, slot, qkey);
            let (from, _) = rig.region(0, 64);
            let (to, _) = rig.region(1, 64);
            rig.post_receive(&mut b, 1, &[segment(to, 0, 64)]);
            let av = datagram(&rig, &b, 1 << 31);
            send_datagram(&mut rig, &mut a, av, wqe::Opcode::Send, &[segment(from, 0, 8)]);
            assert_eq!(status(&rig.sent(&mut a)), cqe::Status::Success);
            assert_eq!(rig.poll_cq(&mut b.receive_cq).is_some(), arrives, "{qkey:#x}");
        }
    }
}

#[test]
fn datagrams_without_a_receiver_are_dropped() {
    let mut rig = Rig::new(2);
    let (mut a, mut b) = (rig.datagram_qp(0, 7, 5), rig.datagram_qp(1, 7, 5));
    let rc = rig.create_qp(1, QpSpec::default());
    let (from, _) = rig.region(0, 2048);
    let (to, _) = rig.region(1, 2048);
    let good = datagram(&rig, &b, 5);
    let mut nowhere = good;
    nowhere.gid[15] = 99;
    let dropped = [
        (good, "no receive"),
        (nowhere, "no such GID"),
        (AddressVector { qpn: b.qpn ^ 1 << 14, ..good }, "an earlier life"),
        (AddressVector { qpn: 5, ..good }, "no such queue pair"),
        (AddressVector { qkey: 6, ..good }, "another key"),
        (AddressVector { qpn: rc.qpn, ..good }, "not a datagram queue pair"),
    ];
    for (i, (av, why)) in dropped.into_iter().enumerate() {
        send_datagram(&mut rig, &mut a, av, wqe::Opcode::Send, &[segment(from, 0, 100)]);
        assert_eq!(status(&rig.sent(&mut a)), cqe::Status::Success, "{why}");
        assert_eq!(rig.stats(0).dropped_datagrams, i as u64 + 1, "{why}");
    }
    // The sender's own key, by the top bit.
    rig.post_receive(&mut b, 3, &[segment(to, 0, 140)]);
    let own = AddressVector { qkey: 1 << 31, ..good };
    send_datagram(&mut rig, &mut a, own, wqe::Opcode::Send, &[segment(from, 0, 100)]);
    assert_eq!(rig.received(&mut b).tag, 3);
}

#[test]
fn a_wrong_datagram_is_the_senders_error() {
    let mut s = Rig::new(2);
    let b = s.datagram_qp(1, 7, 5);
    let (from, _) = s.region(0, 4096);
    let av = datagram(&s, &b, 5);
    let args_at = 32;
    let cases = [
        (AddressVector { source_gid: 2, ..av }, 10, cqe::Status::LocalQpOperation, args_at + 23),
        (AddressVector { qpn: 1 << 24, ..av }, 10, cqe::Status::LocalQpOperation, args_at + 24),
        (av, 1025, cqe::Status::LocalLength, cqe::NO_FIELD),
    ];
    for (i, (av, length, expected, field)) in cases.into_iter().enumerate() {
        let mut a = s.datagram_qp(0, 20 + i as u32, 5);
        send_datagram(&mut s, &mut a, av, wqe::Opcode::Send, &[segment(from, 0, length)]);
        let sent = s.sent(&mut a);
        assert_eq!((status(&sent), sent.detail), (expected, field));
    }
    let mut a = s.datagram_qp(0, 30, 5);
    send_datagram(&mut s, &mut a, av, wqe::Opcode::Write, &[]);
    let sent = s.sent(&mut a);
    assert_eq!((status(&sent), sent.detail), (cqe::Status::LocalQpOperation, 0));
}

#[test]
fn management_datagrams_can_be_lost() {
    let mut rig = Rig::new(1);
    let mut a = rig.datagram_qp(0, 1, 0);
    rig.inject(0, Injection::DropManagement, 0, 2, 0);
    let (key, _) = rig.region(0, 512);
    let av = datagram(&rig, &a, 0x8001_0000);
    for tag in 0..3 {
        rig.post_receive(&mut a, tag, &[segment(key, 0, 300)]);
        send_datagram(&mut rig, &mut a, av, wqe::Opcode::Send, &[segment(key, 0, 256)]);
    }
    rig.run();
    assert_eq!(rig.received(&mut a).tag, 0);
    assert!(rig.poll_cq(&mut a.receive_cq).is_none());
    assert_eq!(rig.stats(0).dropped_datagrams, 2);
}

#[test]
fn the_well_known_queue_key_cannot_be_changed() {
    let mut rig = Rig::new(1);
    let mut a = rig.datagram_qp(0, 1, 77);
    let args = ModifyQp { mask: QpMask::QKEY.bits(), qkey: 77, ..ModifyQp::default() };
    rig.modify(&a, &args).unwrap();
    let (key, _) = rig.region(0, 512);
    rig.post_receive(&mut a, 1, &[segment(key, 0, 300)]);
    let av = datagram(&rig, &a, 0x8001_0000);
    send_datagram(&mut rig, &mut a, av, wqe::Opcode::Send, &[]);
    assert_eq!(rig.received(&mut a).tag, 1);
}
