//! Each way in which a work request can fail, and the state of both queue pairs afterwards.

use std::mem::offset_of;

use nic_abi::admin::{Injection, ModifyQp, Opcode, QpFlags, QpMask, QpState, RegisterRegion};
use nic_abi::cqe::{NO_FIELD, Status};
use nic_abi::eqe::{EventType, NO_COMPLETION, REFUSED};
use nic_abi::wqe::{self, AtomicArgs, Header, LinkFlags, ListArgs, ListElement, ReceiveHeader};
use nic_model::GuestMemory;
use nic_model::testing::{
    ALL_RIGHTS, MAX_MESSAGE, MEMORY, PD, Qp, QpSpec, Rig, header, rdma, segment, status,
};
use zerocopy::IntoBytes;

/// Connected queue pairs on two NICs, memory on both sides.
pub(crate) struct Scene {
    pub(crate) rig: Rig,
    pub(crate) a: Qp,
    pub(crate) b: Qp,
    pub(crate) from: u32,
    pub(crate) to: u32,
}

pub(crate) fn scene() -> Scene {
    let mut rig = Rig::new(2);
    let (a, b) = rig.pair();
    let (from, _) = rig.region(0, 4096);
    let (to, _) = rig.region(1, 4096);
    Scene { rig, a, b, from, to }
}

impl Scene {
    /// Posts a request. It must fail with that status, and the sender must be in ERROR with its
    /// event.
    pub(crate) fn fails(&mut self, head: Header, segments: &[wqe::Segment], expected: Status) {
        self.rig.post(&mut self.a, head, segments);
        self.ends(expected);
    }

    pub(crate) fn ends(&mut self, expected: Status) {
        let sent = self.rig.sent(&mut self.a);
        assert_eq!(status(&sent), expected);
        assert_eq!(self.rig.query(&self.a).state, QpState::Error as u32);
        assert_eq!(self.rig.query(&self.a).error, expected as u32);
        let events = self.rig.events(0);
        assert_eq!(events.len(), 1, "{events:?}");
        let event = events[0];
        assert_eq!((event.event, event.status), (EventType::QpFatal as u8, expected as u8));
        assert_eq!((event.number, event.generation), (self.a.qpn, self.a.generation));
        assert_eq!(event.detail, 0, "the completion shows the error");
    }

    /// The responder is in ERROR and has raised this event.
    pub(crate) fn responder(&mut self, event: EventType) {
        assert_eq!(self.rig.event_types(1), [(event, self.b.qpn)]);
        assert_eq!(self.rig.query(&self.b).state, QpState::Error as u32);
    }

    pub(crate) fn responder_lives(&mut self) {
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
        assert_eq!(sent.detail, field as u32, "{head:?}");
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
    assert_eq!((status(&sent), sent.detail), (Status::LocalQpOperation, 3));
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
    assert_eq!(s.rig.stats(0).bad_tails, 1);
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
    assert_eq!((event.event, event.detail), (EventType::QpAccessError as u8, NO_COMPLETION | REFUSED));
    assert_eq!(event.status, Status::LocalAccess as u8);
    // A Send with invalidate has taken a receive when its key is refused.
    let mut s = scene();
    s.rig.post_receive(&mut s.b, 7, &[segment(s.to, 0, 8)]);
    let head = Header { immediate: s.to, ..header(wqe::Opcode::SendInvalidate, 1) };
    s.fails(head, &[segment(s.from, 0, 8)], Status::RemoteAccess);
    let [event] = s.rig.events(1)[..] else { panic!("one event") };
    assert_eq!((event.event, event.detail), (EventType::QpAccessError as u8, REFUSED));
    let received = s.rig.received(&mut s.b);
    assert_eq!((received.tag, status(&received)), (7, Status::LocalAccess));
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
    s.ends(Status::RemoteInvalidRequest);
    s.responder(EventType::QpInvalidRequest);
    // With relative addressing the memory has to be aligned, not the offset.
    let mut s = scene();
    let to = s.to;
    add(&mut s, to, 4);
    s.ends(Status::RemoteInvalidRequest);
    s.responder(EventType::QpInvalidRequest);
}

/// Its eight bytes have to be neighbours: what lies behind an element of a list is other memory.
#[test]
fn an_atomic_does_not_reach_beyond_an_element() {
    let mut s = scene();
    let memory = s.rig.alloc(4096);
    let elements = [(0, 8), (64, 4), (128, 12)].map(|(at, length)| ListElement { addr: memory + at, length });
    let list = s.rig.alloc(4096);
    s.rig.memory.write(list, elements.as_bytes()).unwrap();
    let key = s.rig.fresh_key();
    let args = RegisterRegion {
        pd: PD,
        flags: (ALL_RIGHTS | LinkFlags::RELATIVE | LinkFlags::VARIABLE).bits(),
        base: 0,
        length: 24,
        list: ListArgs { list, element_length: 0, first_byte_offset: 0, elements: 3, remote: key },
    };
    s.rig.command(1, Opcode::RegisterRegion, key, &args).unwrap();
    let add = |s: &mut Scene, at: u64| {
        let args = AtomicArgs { sink: segment(s.from, 0, 8), compare_add: 1, swap: 0 };
        let head = Header { segments: 1, ..rdma(wqe::Opcode::FetchAdd, 1, key, at) };
        s.rig.post_args(&mut s.a, head, zerocopy::transmute!(args));
    };
    for (at, place) in [(0, 0), (12, 128)] {
        add(&mut s, at);
        assert_eq!(status(&s.rig.sent(&mut s.a)), Status::Success);
        assert_eq!(s.rig.bytes(memory + place, 1), [1]);
    }
    let before = s.rig.bytes(memory, 256);
    add(&mut s, 8);
    s.ends(Status::RemoteAccess);
    s.responder(EventType::QpAccessError);
    assert_eq!(s.rig.bytes(memory, 256), before);
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
        assert_eq!(received.detail, field as u32);
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
    assert!(s.rig.fabric.prepare_sleep(), "no work is left, so the device may sleep");
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
    assert_eq!(event.detail, NO_COMPLETION | REFUSED, "no completion shows the error");
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
        assert_eq!(flushed.detail, NO_FIELD);
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
    assert_eq!(s.rig.event_types(0), [], "the driver made the change itself");
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
    // The objects that the queue pair used are not in use any more.
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
    for (addr, expected) in [
        (MEMORY - 8, Status::Success),
        (MEMORY - 7, Status::LocalProtection),
        (MEMORY, Status::LocalProtection),
        (u64::MAX - 3, Status::LocalProtection),
    ] {
        let (mut a, _) = rig.pair_of(0, 1, privileged);
        let (to, _) = rig.region(1, 64);
        rig.post(&mut a, rdma(wqe::Opcode::Write, 1, to, 0), &[segment(0, addr, 8)]);
        assert_eq!(status(&rig.sent(&mut a)), expected, "{addr:#x}");
    }
}
