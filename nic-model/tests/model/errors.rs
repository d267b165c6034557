//! Each way in which a work request can fail, and the state of both queue pairs afterwards.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use nic_abi::admin::{
    self, Command, CreateQp, FLAG_EVENT, Inject, Injection, ModifyQp, ModifySrq, Opcode, QpFlags, QpMask,
    QpState,
};
use nic_abi::cqe::{NO_FIELD, Status};
use nic_abi::doorbell::{ARM_NEXT, Kind};
use nic_abi::eqe::{EventType, NO_COMPLETION};
use nic_abi::registers::{self, Fault, State};
use nic_abi::wqe::{self, AtomicArgs, Header, LinkFlags, ReceiveHeader};
use nic_model::GuestMemory;

use nic_model::testing::{ALL_RIGHTS, MAX_MESSAGE, Qp, QpSpec, Rig, command, header, rdma, segment, status};

/// Connected queue pairs on two NICs, memory on both sides.
struct Scene {
    rig: Rig,
    a: Qp,
    b: Qp,
    from: u32,
    to: u32,
}

fn scene() -> Scene {
    let mut rig = Rig::new(2);
    let (a, b) = rig.pair();
    let (from, _) = rig.region(0, 4096);
    let (to, _) = rig.region(1, 4096);
    Scene { rig, a, b, from, to }
}

impl Scene {
    /// Posts, expects failure with that status at the sender, and the sender in ERROR with its
    /// event.
    fn fails(&mut self, head: Header, segments: &[wqe::Segment], expected: Status) {
        self.rig.post(&mut self.a, head, segments);
        self.ends(expected);
    }

    fn ends(&mut self, expected: Status) {
        let sent = self.rig.sent(&mut self.a);
        assert_eq!(status(&sent), expected);
        assert_eq!(self.rig.query(&self.a).state, QpState::Error as u32);
        assert_eq!(self.rig.query(&self.a).error, expected as u32);
        let events = self.rig.events(0);
        assert_eq!(events.len(), 1, "{events:?}");
        let event = events[0];
        assert_eq!((event.event, event.status), (EventType::QpFatal as u8, expected as u8));
        assert_eq!((event.number, event.generation), (self.a.qpn, self.a.generation));
        assert_eq!(event.detail, 0, "the completion says so");
    }

    /// The responder is in ERROR and has raised this event.
    fn responder(&mut self, event: EventType) {
        assert_eq!(self.rig.event_types(1), [(event, self.b.qpn)]);
        assert_eq!(self.rig.query(&self.b).state, QpState::Error as u32);
    }

    fn responder_lives(&mut self) {
        assert_eq!(self.rig.event_types(1), []);
        assert_eq!(self.rig.query(&self.b).state, QpState::Rts as u32);
    }
}

#[test]
fn a_malformed_entry_names_its_field() {
    let good = Header { blocks: 1, ..header(wqe::Opcode::Send, 4) };
    let cases: [(Header, usize); 9] = [
        (Header { opcode: 0x7f, ..good }, offset_of!(Header, opcode)),
        (Header { flags: 0x80, ..good }, offset_of!(Header, flags)),
        (Header { segments: 7, blocks: 3, ..good }, offset_of!(Header, segments)),
        (Header { segments: 255, blocks: 65, ..good }, offset_of!(Header, blocks)),
        (Header { blocks: 2, ..good }, offset_of!(Header, blocks)),
        (Header { length: 1, ..good }, offset_of!(Header, length)),
        (Header { opcode: wqe::Opcode::FetchAdd as u8, segments: 2, ..good }, offset_of!(Header, segments)),
        (
            Header { opcode: wqe::Opcode::LocalInvalidate as u8, segments: 1, ..good },
            offset_of!(Header, segments),
        ),
        (Header { opcode: wqe::Opcode::BindWindow as u8, blocks: 2, ..good }, offset_of!(Header, blocks)),
    ];
    for (head, field) in cases {
        let mut s = scene();
        s.rig.write_send(&mut s.a, Header { blocks: head.blocks.min(3), ..head }, [0; 4], &[]);
        let at = s.a.send_ring;
        let bytes: [u8; 32] = zerocopy::transmute!(head);
        s.rig.memory.write(at, &bytes).unwrap();
        s.rig.ring_send(&s.a);
        s.rig.run();
        let sent = s.rig.poll_cq(&mut s.a.send_cq).expect("a completion");
        assert_eq!((status(&sent), sent.tag), (Status::LocalQpOperation, 4), "{head:?}");
        assert_eq!(sent.source_or_field, field as u32, "{head:?}");
        assert_eq!(s.rig.query(&s.a).state, QpState::Error as u32);
        s.responder_lives();
    }
}

#[test]
fn an_entry_without_blocks_hides_what_follows() {
    let mut s = scene();
    s.rig.write_send(&mut s.a, Header { blocks: 0, ..header(wqe::Opcode::Send, 4) }, [0; 4], &[]);
    s.a.send_tail += 1;
    s.rig.post(&mut s.a, header(wqe::Opcode::Send, 5), &[]);
    let sent = s.rig.sent(&mut s.a);
    assert_eq!((status(&sent), sent.source_or_field), (Status::LocalQpOperation, 3));
    assert!(s.rig.poll_cq(&mut s.a.send_cq).is_none());
    assert_eq!(s.rig.query(&s.a).send_head, 2, "everything posted is taken");
}

#[test]
fn a_tail_beyond_the_ring_fails_the_queue_pair() {
    let mut s = scene();
    s.a.send_tail = 1000;
    s.rig.ring_send(&s.a);
    s.rig.run();
    assert_eq!(s.rig.event_types(0), [(EventType::QpFatal, s.a.qpn)]);
    assert_eq!(s.rig.query(&s.a).state, QpState::Error as u32);
    assert!(s.rig.stats(0).bad_tails > 0);
    assert!(s.rig.poll_cq(&mut s.a.send_cq).is_none());
}

#[test]
fn a_length_beyond_the_limits_is_the_requesters_error() {
    let mut s = scene();
    let (big, _) = s.rig.region(0, MAX_MESSAGE + 1);
    let length = MAX_MESSAGE as u32 + 1;
    s.fails(rdma(wqe::Opcode::Write, 1, s.to, 0), &[segment(big, 0, length)], Status::LocalLength);
    s.responder_lives();
    let mut s = scene();
    let args = AtomicArgs { sink: segment(s.from, 0, 4), ..AtomicArgs::default() };
    let head = Header { segments: 1, ..rdma(wqe::Opcode::FetchAdd, 1, s.to, 0) };
    s.rig.post_args(&mut s.a, head, zerocopy::transmute!(args));
    s.ends(Status::LocalLength);
}

#[test]
fn local_memory_is_checked() {
    let bad = |s: &mut Scene| -> Vec<(wqe::Opcode, wqe::Segment)> {
        let (no_read, _) = s.rig.region_with(0, 64, LinkFlags::LOCAL_WRITE | LinkFlags::RELATIVE, 0);
        let (no_write, _) = s.rig.region_with(0, 64, LinkFlags::LOCAL_READ | LinkFlags::RELATIVE, 0);
        let (absolute, _) = s.rig.region_with(0, 64, ALL_RIGHTS, 0x1000);
        let from = s.from;
        vec![
            (wqe::Opcode::Write, segment(from ^ 1, 0, 8)),
            (wqe::Opcode::Write, segment(from ^ 1 << 24, 0, 8)),
            (wqe::Opcode::Write, segment(nic_abi::ident::key(60_000, 0), 0, 8)),
            (wqe::Opcode::Write, segment(from, 4090, 8)),
            (wqe::Opcode::Write, segment(from, u64::MAX - 3, 8)),
            (wqe::Opcode::Write, segment(no_read, 0, 8)),
            (wqe::Opcode::Read, segment(no_write, 0, 8)),
            (wqe::Opcode::Write, segment(absolute, 0xfff, 8)),
            (wqe::Opcode::Write, segment(absolute, 0x103c, 8)),
            (wqe::Opcode::Write, segment(0, 4096, 8)),
        ]
    };
    let count = bad(&mut scene()).len();
    for i in 0..count {
        let mut s = scene();
        let (opcode, seg) = bad(&mut s)[i];
        s.fails(rdma(opcode, 1, s.to, 0), &[seg], Status::LocalProtection);
        s.responder_lives();
    }
}

#[test]
fn another_domain_is_a_violation_on_both_sides() {
    let mut s = scene();
    s.rig.command(0, Opcode::CreatePd, 7, &()).unwrap();
    s.rig.command(1, Opcode::CreatePd, 7, &()).unwrap();
    let register = |rig: &mut Rig, n: usize| {
        let key = rig.fresh_key();
        let args = nic_abi::admin::RegisterRegion {
            pd: 7,
            flags: (ALL_RIGHTS | LinkFlags::RELATIVE | LinkFlags::CONTIGUOUS).bits(),
            base: 0,
            length: 64,
            list: wqe::ListArgs { list: 4096, remote: key, ..wqe::ListArgs::default() },
        };
        rig.command(n, Opcode::RegisterRegion, key, &args).unwrap();
        key
    };
    let (near, far) = (register(&mut s.rig, 0), register(&mut s.rig, 1));
    s.fails(rdma(wqe::Opcode::Write, 1, far, 0), &[segment(s.from, 0, 8)], Status::RemoteAccess);
    s.responder(EventType::QpAccessError);
    let (mut a, _) = s.rig.pair();
    s.rig.post(&mut a, rdma(wqe::Opcode::Write, 1, s.to, 0), &[segment(near, 0, 8)]);
    assert_eq!(status(&s.rig.sent(&mut a)), Status::LocalProtection);
}

#[test]
fn remote_memory_is_checked() {
    let bad = |s: &mut Scene| -> Vec<(wqe::Opcode, u32, u64)> {
        let base = LinkFlags::LOCAL_READ | LinkFlags::LOCAL_WRITE | LinkFlags::RELATIVE;
        let (only_write, _) = s.rig.region_with(1, 64, base | LinkFlags::REMOTE_WRITE, 0);
        let (only_read, _) = s.rig.region_with(1, 64, base | LinkFlags::REMOTE_READ, 0);
        vec![
            (wqe::Opcode::Write, only_read, 0),
            (wqe::Opcode::Read, only_write, 0),
            (wqe::Opcode::Write, s.to ^ 1, 0),
            (wqe::Opcode::Write, s.to, 4089),
            (wqe::Opcode::Write, s.to, u64::MAX),
            (wqe::Opcode::Read, s.to, u64::MAX - 7),
            (wqe::Opcode::WriteImmediate, only_read, 0),
        ]
    };
    let count = bad(&mut scene()).len();
    for i in 0..count {
        let mut s = scene();
        let (opcode, key, addr) = bad(&mut s)[i];
        s.fails(rdma(opcode, 1, key, addr), &[segment(s.from, 0, 8)], Status::RemoteAccess);
        s.responder(EventType::QpAccessError);
    }
    // An atomic on memory that allows none.
    let mut s = scene();
    let (no_atomics, word) = s.rig.region_with(1, 64, ALL_RIGHTS.difference(LinkFlags::REMOTE_ATOMIC), 0);
    let args = AtomicArgs { sink: segment(s.from, 0, 8), compare_add: 1, swap: 0 };
    let head = Header { segments: 1, ..rdma(wqe::Opcode::FetchAdd, 1, no_atomics, 0) };
    s.rig.post_args(&mut s.a, head, zerocopy::transmute!(args));
    s.ends(Status::RemoteAccess);
    assert_eq!(s.rig.bytes(word, 8), [0; 8]);
}

#[test]
fn the_detail_of_an_access_error_is_whether_a_completion_shows_it() {
    // RDMA takes no receive.
    let mut s = scene();
    s.fails(rdma(wqe::Opcode::Write, 1, s.to ^ 1, 0), &[segment(s.from, 0, 8)], Status::RemoteAccess);
    let [event] = s.rig.events(1)[..] else { panic!("one event") };
    assert_eq!((event.event, event.detail), (EventType::QpAccessError as u8, NO_COMPLETION));
    assert_eq!(event.status, Status::LocalAccess as u8);
    // A Send with invalidate has taken one when its key is refused.
    let mut s = scene();
    s.rig.post_receive(&mut s.b, 7, &[segment(s.to, 0, 8)]);
    let head = Header { immediate: s.to, ..header(wqe::Opcode::SendInvalidate, 1) };
    s.fails(head, &[segment(s.from, 0, 8)], Status::RemoteAccess);
    let [event] = s.rig.events(1)[..] else { panic!("one event") };
    assert_eq!((event.event, event.detail), (EventType::QpAccessError as u8, 0));
    let received = s.rig.received(&mut s.b);
    assert_eq!((received.tag, status(&received)), (7, Status::LocalAccess));
}

#[test]
fn a_remote_gid_of_no_nic_is_accepted_and_times_out() {
    let mut rig = Rig::new(2);
    let (mut a, b) = (rig.create_qp(0, QpSpec::default()), rig.create_qp(1, QpSpec::default()));
    rig.init(&a);
    let rtr = ModifyQp { remote_gid: [0; 16], ..rig.rtr_args(&a, &b) };
    rig.modify(&a, &rtr).unwrap();
    let rts = rig.rts_args(&a);
    rig.modify(&a, &rts).unwrap();
    rig.post(&mut a, header(wqe::Opcode::Send, 1), &[]);
    for _ in 0..=rts.retry_count {
        rig.run();
        assert!(rig.poll_cq(&mut a.send_cq).is_none());
        rig.advance(4096 << rts.timeout);
    }
    assert_eq!(status(&rig.sent(&mut a)), Status::RetryExceeded);
}

#[test]
fn source_and_remote_gid_may_be_of_different_families() {
    let mut rig = Rig::new(2);
    let (mut a, mut b) = (rig.create_qp(0, QpSpec::default()), rig.create_qp(1, QpSpec::default()));
    for (qp, peer) in [(&a, &b), (&b, &a)] {
        rig.init(qp);
        // GID 0 is link-local, the peer's is IPv4-mapped.
        let rtr = ModifyQp { source_gid: 0, ..rig.rtr_args(qp, peer) };
        rig.modify(qp, &rtr).unwrap();
        let rts = rig.rts_args(qp);
        rig.modify(qp, &rts).unwrap();
    }
    rig.post_receive(&mut b, 5, &[]);
    rig.post(&mut a, header(wqe::Opcode::Send, 1), &[]);
    assert_eq!(status(&rig.sent(&mut a)), Status::Success);
    assert_eq!(rig.received(&mut b).tag, 5);
}

#[test]
fn a_queue_pair_that_grants_nothing_refuses() {
    let mut s = scene();
    let args = ModifyQp { mask: QpMask::ACCESS.bits(), access: 0, ..ModifyQp::default() };
    s.rig.modify(&s.b, &args).unwrap();
    s.fails(rdma(wqe::Opcode::Write, 1, s.to, 0), &[segment(s.from, 0, 8)], Status::RemoteAccess);
    s.responder(EventType::QpAccessError);
}

#[test]
fn reads_need_resources_on_both_sides() {
    let mut s = scene();
    let args = ModifyQp { mask: QpMask::MAX_DEST_RD_ATOMIC.bits(), ..ModifyQp::default() };
    s.rig.modify(&s.b, &args).unwrap();
    s.fails(rdma(wqe::Opcode::Read, 1, s.to, 0), &[segment(s.from, 0, 8)], Status::RemoteInvalidRequest);
    s.responder(EventType::QpInvalidRequest);
    let mut s = scene();
    let args = ModifyQp { mask: QpMask::MAX_RD_ATOMIC.bits(), ..ModifyQp::default() };
    s.rig.modify(&s.a, &args).unwrap();
    s.fails(rdma(wqe::Opcode::Read, 1, s.to, 0), &[segment(s.from, 0, 8)], Status::LocalQpOperation);
    s.responder_lives();
}

#[test]
fn an_atomic_must_be_aligned() {
    let add = |s: &mut Scene, key: u32, at: u64| {
        let args = AtomicArgs { sink: segment(s.from, 0, 8), compare_add: 1, swap: 0 };
        let head = Header { segments: 1, ..rdma(wqe::Opcode::FetchAdd, 1, key, at) };
        s.rig.post_args(&mut s.a, head, zerocopy::transmute!(args));
    };
    let mut s = scene();
    let (absolute, _) = s.rig.region_with(1, 64, ALL_RIGHTS, 0x1000);
    add(&mut s, absolute, 0x1004);
    s.ends(Status::RemoteAccess);
    s.responder(EventType::QpAccessError);
    // With relative addressing the memory has to be aligned, not the offset.
    let mut s = scene();
    let to = s.to;
    add(&mut s, to, 4);
    s.ends(Status::RemoteAccess);
    s.responder(EventType::QpAccessError);
}

#[test]
fn a_message_longer_than_the_receive_fails_both() {
    let mut s = scene();
    s.rig.post_receive(&mut s.b, 8, &[segment(s.to, 0, 7)]);
    s.fails(header(wqe::Opcode::Send, 1), &[segment(s.from, 0, 8)], Status::RemoteInvalidRequest);
    let received = s.rig.received(&mut s.b);
    assert_eq!((status(&received), received.tag), (Status::LocalLength, 8));
    s.responder(EventType::QpInvalidRequest);
}

#[test]
fn a_receive_with_a_bad_key_fails_both() {
    let mut s = scene();
    s.rig.post_receive(&mut s.b, 8, &[segment(s.to ^ 1, 0, 8)]);
    s.fails(header(wqe::Opcode::Send, 1), &[segment(s.from, 0, 8)], Status::RemoteOperation);
    assert_eq!(status(&s.rig.received(&mut s.b)), Status::LocalProtection);
    s.responder(EventType::QpFatal);
}

#[test]
fn a_malformed_receive_names_its_field() {
    let good = ReceiveHeader { segments: 0, tag: 8, flags: 0, reserved: 0 };
    let cases = [
        (ReceiveHeader { segments: 7, ..good }, offset_of!(ReceiveHeader, segments)),
        (ReceiveHeader { segments: u32::MAX, ..good }, offset_of!(ReceiveHeader, segments)),
        (ReceiveHeader { flags: 2, ..good }, offset_of!(ReceiveHeader, flags)),
        (ReceiveHeader { reserved: 1, ..good }, offset_of!(ReceiveHeader, reserved)),
    ];
    for (head, field) in cases {
        let mut s = scene();
        s.rig.post_receive(&mut s.b, 8, &[]);
        let bytes: [u8; 16] = zerocopy::transmute!(head);
        s.rig.memory.write(s.b.receive_ring, &bytes).unwrap();
        s.fails(header(wqe::Opcode::Send, 1), &[], Status::RemoteOperation);
        let received = s.rig.received(&mut s.b);
        assert_eq!((status(&received), received.tag), (Status::LocalQpOperation, 8));
        assert_eq!(received.source_or_field, field as u32);
    }
}

#[test]
fn a_receive_tail_beyond_the_ring_is_no_receive() {
    let mut s = scene();
    s.b.receive_tail = 999;
    s.rig.post_receive(&mut s.b, 8, &[]);
    s.fails(header(wqe::Opcode::Send, 1), &[], Status::RemoteOperation);
    s.responder(EventType::QpFatal);
    assert!(s.rig.poll_cq(&mut s.b.receive_cq).is_none());
    assert!(s.rig.fabric.prepare_sleep(), "nothing spins on it");
}

#[test]
fn without_a_receive_the_sender_waits_and_then_gives_up() {
    let mut s = scene();
    s.rig.post(&mut s.a, header(wqe::Opcode::Send, 1), &[segment(s.from, 0, 8)]);
    s.rig.run();
    assert!(s.rig.poll_cq(&mut s.a.send_cq).is_none());
    // A receive in time is taken: min_rnr_timer 1 is 10 us.
    s.rig.post_receive(&mut s.b, 8, &[segment(s.to, 0, 8)]);
    s.rig.run();
    assert!(s.rig.poll_cq(&mut s.a.send_cq).is_none(), "the timer has not fired");
    s.rig.advance(10_000);
    assert_eq!(status(&s.rig.sent(&mut s.a)), Status::Success);
    assert_eq!(s.rig.received(&mut s.b).tag, 8);
    // Without a receive there are three attempts, as rnr_retry is 2.
    s.rig.post(&mut s.a, header(wqe::Opcode::Send, 2), &[segment(s.from, 0, 8)]);
    s.rig.run();
    s.rig.advance(10_000);
    assert!(s.rig.poll_cq(&mut s.a.send_cq).is_none());
    s.rig.advance(10_000);
    s.ends(Status::RnrRetryExceeded);
    assert_eq!(s.rig.stats(1).not_ready, 4);
    s.responder_lives();
}

#[test]
fn an_rnr_retry_of_seven_is_for_ever() {
    let mut rig = Rig::new(2);
    let (mut a, mut b) = (rig.create_qp(0, QpSpec::default()), rig.create_qp(1, QpSpec::default()));
    rig.join(&b, &a);
    rig.init(&a);
    let args = rig.rtr_args(&a, &b);
    rig.modify(&a, &args).unwrap();
    let args = ModifyQp { rnr_retry: 7, ..rig.rts_args(&a) };
    rig.modify(&a, &args).unwrap();
    rig.post(&mut a, header(wqe::Opcode::Send, 2), &[]);
    for _ in 0..1000 {
        rig.advance(10_000);
    }
    assert_eq!(rig.query(&a).state, QpState::Rts as u32);
    rig.post_receive(&mut b, 8, &[]);
    rig.advance(10_000);
    assert_eq!(status(&rig.sent(&mut a)), Status::Success);
}

/// 4.096 us times 2 to the 10th.
const TIMEOUT: u64 = 4096 << 10;

#[test]
fn a_request_without_an_answer_is_repeated_and_then_an_error() {
    let mut s = scene();
    s.rig.command(1, Opcode::DestroyQp, s.b.qpn, &()).unwrap();
    s.rig.post(&mut s.a, rdma(wqe::Opcode::Write, 1, s.to, 0), &[segment(s.from, 0, 8)]);
    s.rig.run();
    for _ in 0..2 {
        s.rig.advance(TIMEOUT);
        assert!(s.rig.poll_cq(&mut s.a.send_cq).is_none());
    }
    s.rig.advance(TIMEOUT);
    s.ends(Status::RetryExceeded);
    assert_eq!(s.rig.stats(0).lost_requests, 3);
}

#[test]
fn a_peer_with_another_partner_or_another_sequence_does_not_answer() {
    for case in 0..3 {
        let mut rig = Rig::new(2);
        let (mut a, b) = (rig.create_qp(0, QpSpec::default()), rig.create_qp(1, QpSpec::default()));
        let other = rig.create_qp(0, QpSpec::default());
        rig.join(&a, &b);
        rig.init(&b);
        let mut args = rig.rtr_args(&b, &a);
        match case {
            0 => args.remote_qpn = other.qpn,
            1 => args.remote_gid[15] = 9,
            _ => args.receive_psn += 1,
        }
        rig.modify(&b, &args).unwrap();
        rig.post(&mut a, rdma(wqe::Opcode::Write, 1, 0, 0), &[]);
        rig.run();
        if case == 2 {
            // A request with an earlier PSN is taken for a repetition, and acknowledged.
            assert_eq!(status(&rig.sent(&mut a)), Status::Success);
            continue;
        }
        for _ in 0..3 {
            rig.advance(TIMEOUT);
        }
        assert_eq!(status(&rig.sent(&mut a)), Status::RetryExceeded);
    }
}

#[test]
fn lost_requests_and_answers_are_repeated_and_executed_once() {
    for what in [Injection::DropRequests, Injection::DropResponses] {
        let mut s = scene();
        s.rig.inject(0, what, s.a.qpn, 2, 0);
        let word = s.rig.region(1, 64);
        let args = AtomicArgs { sink: segment(s.from, 0, 8), compare_add: 5, swap: 0 };
        let head = Header { segments: 1, ..rdma(wqe::Opcode::FetchAdd, 1, word.0, 0) };
        s.rig.post_args(&mut s.a, head, zerocopy::transmute!(args));
        s.rig.run();
        s.rig.advance(TIMEOUT);
        assert!(s.rig.poll_cq(&mut s.a.send_cq).is_none());
        s.rig.advance(TIMEOUT);
        assert_eq!(status(&s.rig.sent(&mut s.a)), Status::Success);
        assert_eq!(s.rig.bytes(word.1, 8), 5_u64.to_le_bytes(), "added once");
        // A Send consumes one receive and completes it once.
        s.rig.inject(0, what, s.a.qpn, 1, 0);
        s.rig.post_receive(&mut s.b, 1, &[segment(s.to, 0, 8)]);
        s.rig.post_receive(&mut s.b, 2, &[segment(s.to, 0, 8)]);
        s.rig.post(&mut s.a, header(wqe::Opcode::Send, 1), &[segment(s.from, 0, 8)]);
        s.rig.run();
        s.rig.advance(TIMEOUT);
        assert_eq!(status(&s.rig.sent(&mut s.a)), Status::Success);
        assert_eq!(s.rig.received(&mut s.b).tag, 1);
        assert!(s.rig.poll_cq(&mut s.b.receive_cq).is_none());
        // A read of several pieces begins again.
        s.rig.inject(0, what, s.a.qpn, 1, 0);
        let (far, source) = s.rig.region(1, 3 << 20);
        let (near, sink) = s.rig.region(0, 3 << 20);
        s.rig.fill(source, 3 << 20, 4);
        s.rig.post(&mut s.a, rdma(wqe::Opcode::Read, 1, far, 0), &[segment(near, 0, 3 << 20)]);
        s.rig.run();
        s.rig.advance(TIMEOUT);
        assert_eq!(status(&s.rig.sent(&mut s.a)), Status::Success);
        assert!(s.rig.bytes(sink, 3 << 20) == s.rig.bytes(source, 3 << 20));
        // The sequence goes on.
        s.rig.post(&mut s.a, rdma(wqe::Opcode::Write, 1, s.to, 0), &[segment(s.from, 0, 8)]);
        assert_eq!(status(&s.rig.sent(&mut s.a)), Status::Success);
    }
}

#[test]
fn a_bad_response_and_a_delay() {
    let mut s = scene();
    s.rig.inject(0, Injection::Delay, s.a.qpn, 1, 5_000_000);
    s.rig.post(&mut s.a, rdma(wqe::Opcode::Write, 1, s.to, 0), &[segment(s.from, 0, 8)]);
    s.rig.run();
    s.rig.advance(4_999_999);
    assert!(s.rig.poll_cq(&mut s.a.send_cq).is_none());
    s.rig.advance(1);
    assert_eq!(status(&s.rig.sent(&mut s.a)), Status::Success);
    s.rig.inject(0, Injection::BadResponse, s.a.qpn, 1, 0);
    s.fails(rdma(wqe::Opcode::Write, 1, s.to, 0), &[segment(s.from, 0, 8)], Status::BadResponse);
}

#[test]
fn an_operation_code_that_does_not_exist_is_refused() {
    let mut s = scene();
    s.rig.inject(0, Injection::BadRequest, s.a.qpn, 1, 0);
    s.rig.post(&mut s.a, rdma(wqe::Opcode::Write, 1, s.to, 0), &[segment(s.from, 0, 8)]);
    assert_eq!(status(&s.rig.sent(&mut s.a)), Status::RemoteInvalidRequest);
    let events = s.rig.events(1);
    let [event] = events[..] else { panic!("{events:?}") };
    assert_eq!((event.event, event.number), (EventType::QpInvalidRequest as u8, s.b.qpn));
    assert_eq!(event.detail, NO_COMPLETION, "no completion says so");
}

#[test]
fn an_injected_failure_has_the_status_that_was_asked_for() {
    for failure in [Status::LocalQpOperation, Status::WindowBind, Status::MemoryManagement] {
        let mut s = scene();
        s.rig.inject(0, Injection::Failure, s.a.qpn, 1, failure as u64);
        s.fails(rdma(wqe::Opcode::Write, 1, s.to, 0), &[segment(s.from, 0, 8)], failure);
        s.responder_lives();
    }
}

#[test]
fn a_port_that_is_down_loses_everything() {
    let mut s = scene();
    s.rig.inject(1, Injection::Port, 0, 0, 0);
    assert_eq!(s.rig.event_types(1), [(EventType::PortDown, 0)]);
    s.rig.post(&mut s.a, rdma(wqe::Opcode::Write, 1, s.to, 0), &[segment(s.from, 0, 8)]);
    s.rig.run();
    s.rig.inject(1, Injection::Port, 0, 0, 1);
    assert_eq!(s.rig.event_types(1), [(EventType::PortUp, 0)]);
    s.rig.advance(TIMEOUT);
    assert_eq!(status(&s.rig.sent(&mut s.a)), Status::Success);
}

#[test]
fn an_error_flushes_the_rest_in_order_and_what_is_posted_later() {
    let mut s = scene();
    for tag in 10..15 {
        s.rig.post_receive(&mut s.a, tag, &[]);
    }
    // The first fails; the later ones complete as flushed, signalled or not.
    let silent = Header { blocks: 1, ..header(wqe::Opcode::Send, 2) };
    let bad = Header { blocks: 1, opcode: 0x55, ..header(wqe::Opcode::Send, 1) };
    s.rig.write_send(&mut s.a, bad, [0; 4], &[]);
    s.rig.write_send(&mut s.a, silent, [0; 4], &[]);
    s.rig.post(&mut s.a, header(wqe::Opcode::Send, 3), &[]);
    s.rig.run();
    let mut order = Vec::new();
    while let Some(entry) = s.rig.poll_cq(&mut s.a.send_cq) {
        order.push((entry.tag, status(&entry)));
    }
    assert_eq!(order, [(1, Status::LocalQpOperation), (2, Status::Flushed), (3, Status::Flushed)]);
    for tag in 10..15 {
        let flushed = s.rig.received(&mut s.a);
        assert_eq!((flushed.tag, status(&flushed)), (tag, Status::Flushed));
        assert_eq!(flushed.source_or_field, NO_FIELD);
    }
    s.rig.post_receive(&mut s.a, 20, &[]);
    assert_eq!(s.rig.received(&mut s.a).tag, 20);
    s.rig.post_receive(&mut s.a, 21, &[]);
    assert_eq!(s.rig.received(&mut s.a).tag, 21);
    s.rig.post(&mut s.a, header(wqe::Opcode::Send, 4), &[]);
    let sent = s.rig.sent(&mut s.a);
    assert_eq!((sent.tag, status(&sent)), (4, Status::Flushed));
    assert!(s.rig.fabric.prepare_sleep());
}

#[test]
fn modify_to_error_flushes_a_message_that_waits() {
    let mut s = scene();
    s.rig.post(&mut s.a, header(wqe::Opcode::Send, 1), &[]);
    s.rig.post(&mut s.a, header(wqe::Opcode::Send, 2), &[]);
    s.rig.run();
    s.rig.set_state(&s.a, QpState::Error).unwrap();
    for tag in [1, 2] {
        let sent = s.rig.sent(&mut s.a);
        assert_eq!((sent.tag, status(&sent)), (tag, Status::Flushed));
    }
    assert_eq!(s.rig.event_types(0), [], "the driver knows");
    s.rig.advance(1 << 40);
    assert!(s.rig.poll_cq(&mut s.a.send_cq).is_none());
}

#[test]
fn a_reset_forgets_what_was_posted_and_counts_on() {
    let mut s = scene();
    s.rig.post(&mut s.a, header(wqe::Opcode::Send, 1), &[]);
    s.rig.post_receive(&mut s.a, 1, &[]);
    s.rig.run();
    s.rig.set_state(&s.a, QpState::Reset).unwrap();
    s.rig.advance(1 << 40);
    assert!(s.rig.poll_cq(&mut s.a.send_cq).is_none());
    let info = s.rig.query(&s.a);
    assert_eq!((info.state, info.send_head, info.receive_head), (QpState::Reset as u32, 1, 1));
    s.rig.set_state(&s.b, QpState::Reset).unwrap();
    let (a, b) = (s.a, s.b);
    s.rig.join(&a, &b);
    s.rig.join(&b, &a);
    s.rig.post_receive(&mut s.b, 7, &[]);
    s.rig.post(&mut s.a, header(wqe::Opcode::Send, 6), &[]);
    assert_eq!((s.rig.sent(&mut s.a).tag, s.rig.received(&mut s.b).tag), (6, 7));
}

#[test]
fn a_destroyed_queue_pair_writes_nothing_any_more() {
    let mut s = scene();
    s.rig.post(&mut s.a, header(wqe::Opcode::Send, 1), &[]);
    s.rig.run();
    s.rig.command(0, Opcode::DestroyQp, s.a.qpn, &()).unwrap();
    s.rig.post_receive(&mut s.b, 1, &[]);
    s.rig.post(&mut s.a, header(wqe::Opcode::Send, 2), &[]);
    s.rig.advance(1 << 40);
    assert!(s.rig.poll_cq(&mut s.a.send_cq).is_none());
    assert!(s.rig.poll_cq(&mut s.b.receive_cq).is_none());
    assert_eq!(s.rig.event_types(0), []);
    // What the queue pair used is free.
    for cq in [s.a.send_cq, s.a.receive_cq] {
        s.rig.command(0, Opcode::DestroyCq, cq.number, &()).unwrap();
    }
}

#[test]
fn memory_that_goes_away_under_a_message_ends_it() {
    let mut s = scene();
    let size = 6 << 20;
    let (from, _) = s.rig.region(0, size);
    let (to, _) = s.rig.region(1, size);
    s.rig.post(&mut s.a, rdma(wqe::Opcode::Write, 1, to, 0), &[segment(from, 0, size as u32)]);
    s.rig.fabric.poll(platform::Instant::from_nanos(s.rig.now), 2);
    let command = nic_abi::admin::Command {
        opcode: Opcode::DestroyRegion as u16,
        flags: 0,
        id: 0,
        object: to,
        reserved: 0,
        args: [0; 112],
    };
    s.rig.issue(1, &command);
    s.ends(Status::RemoteAccess);
    s.responder(EventType::QpAccessError);
}

#[test]
fn a_privileged_address_outside_of_memory_is_a_violation() {
    let mut rig = Rig::new(2);
    let privileged = QpSpec { flags: QpFlags::PRIVILEGED, ..QpSpec::default() };
    for addr in [nic_model::testing::MEMORY - 4, nic_model::testing::MEMORY, u64::MAX - 3] {
        let (mut a, _) = rig.pair_of(0, 1, privileged);
        let (to, _) = rig.region(1, 64);
        rig.post(&mut a, rdma(wqe::Opcode::Write, 1, to, 0), &[segment(0, addr, 8)]);
        assert_eq!(status(&rig.sent(&mut a)), Status::LocalProtection);
    }
}

/// Fills event queue 0 of NIC `n` with events that nothing consumes: the next one overflows it.
fn fill_events(rig: &mut Rig, n: usize) {
    rig.events(n);
    for _ in 0..64 {
        let nop = Command { flags: FLAG_EVENT, ..command(Opcode::Nop, &()) };
        rig.raw_command(n, &nop).expect("an answer");
    }
    assert_eq!(rig.state(n), State::Ready as u32, "full is not too full");
}

/// The device of NIC `n` has failed because an event did not fit.
fn overflowed(rig: &Rig, n: usize) {
    assert_eq!(rig.state(n), State::Failed as u32);
    let fault = rig.register(n, registers::STATUS_FAULT).load(Ordering::Relaxed);
    assert_eq!(fault, Fault::EventQueueOverflow as u32);
}

/// The queue pair on NIC 1 is in RTR with the one on NIC 0, which is in RTS.
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
    // The same while a queue is flushed, on a device of its own.
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
            // More than what is left, so the event comes at once.
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
    rig.command(0, Opcode::CreateQp, nic_abi::ident::qpn(77, 1), &args).expect("nothing of it has failed");
}
