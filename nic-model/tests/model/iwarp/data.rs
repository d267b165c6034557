//! What the messages do.

use nic_abi::admin::{QpFlags, QpState, StreamFlags};
use nic_abi::cqe::{Cqe, CqeFlags, Status};
use nic_abi::eqe::EventType;
use nic_abi::wqe::{Header, LinkFlags, ListArgs, Opcode, SendFlags};
use nic_model::testing::{ALL_RIGHTS, Qp, QpSpec, Rig, Through, cable, header, rdma, segment, status};

use super::{both, pair_on, pairs, rig_on, spec};
use crate::keys::{allocate, bind, bind_args, link, query, remote, window};
use crate::packets::completions_in_steps;
use crate::streams::{ACTIVE, PASSIVE, connect_again, connect_on, settle};

/// Lets time pass until a send queue has completed `count` work requests.
fn sent(rig: &mut Rig, qp: &mut Qp, count: usize) -> Vec<Cqe> {
    completions_in_steps(rig, qp, count, (4000, 1_000_000))
}

#[test]
fn messages_of_all_kinds_arrive_whole_and_complete_in_order() {
    for (rig, a, b) in pairs() {
        carry_messages(rig, a, b);
    }
}

fn carry_messages(mut rig: Rig, mut a: Qp, mut b: Qp) {
    let size = 300_000;
    let (from, source) = rig.region(0, size);
    let (to, target) = rig.region(1, 2 * size);
    let (back, sink) = rig.region(0, size);
    rig.fill(source, size as usize, 5);
    let whole = size as u32;
    let pieces = [segment(from, 0, 1000), segment(from, 1000, whole - 1000)];
    rig.post_receive(&mut b, 9, &[segment(to, 0, whole)]);
    rig.post(&mut a, header(Opcode::Send, 1), &pieces);
    rig.post(&mut a, rdma(Opcode::Write, 2, to, size), &pieces);
    rig.post(&mut a, rdma(Opcode::Read, 3, to, size), &[segment(back, 0, whole)]);
    let done = sent(&mut rig, &mut a, 3);
    let seen: Vec<_> = done.iter().map(|entry| (entry.tag, status(entry), entry.length)).collect();
    let ok = Status::Success;
    assert_eq!(seen, [(1, ok, whole), (2, ok, whole), (3, ok, whole)]);
    let received = rig.received(&mut b);
    assert_eq!((received.tag, status(&received), received.length), (9, ok, whole));
    let expected = rig.bytes(source, size as usize);
    assert_eq!(rig.bytes(target, size as usize), expected);
    assert_eq!(rig.bytes(target + size, size as usize), expected);
    assert_eq!(rig.bytes(sink, size as usize), expected);
}

#[test]
fn a_send_says_that_it_is_solicited_and_what_it_has_invalidated() {
    for (mut rig, mut a, mut b) in pairs() {
        let flags = header(Opcode::Send, 1).flags | SendFlags::SOLICITED.bits();
        rig.post_receive(&mut b, 1, &[]);
        rig.post(&mut a, Header { flags, ..header(Opcode::Send, 1) }, &[]);
        settle(&mut rig);
        let received = rig.received(&mut b);
        assert_eq!(CqeFlags::from_bits(received.flags), Some(CqeFlags::RECEIVE | CqeFlags::SOLICITED));
        // A window of the receiver.
        let (region, _) = rig.region_with(1, 64, ALL_RIGHTS, 0x1000);
        let key = window(&mut rig, 1, 2);
        let args = bind_args(remote(key, 1), LinkFlags::REMOTE_READ);
        rig.post_args(&mut b, bind(key, region, 0x1000, 64), args);
        settle(&mut rig);
        assert_eq!(status(&rig.sent(&mut b)), Status::Success);
        rig.post_receive(&mut b, 2, &[]);
        let head = Header { immediate: remote(key, 1), ..header(Opcode::SendInvalidate, 2) };
        rig.post(&mut a, head, &[]);
        settle(&mut rig);
        let received = rig.received(&mut b);
        assert_eq!(CqeFlags::from_bits(received.flags), Some(CqeFlags::RECEIVE | CqeFlags::INVALIDATED));
        assert_eq!(received.immediate, key);
        assert_eq!(query(&mut rig, 1, key).linked, 0);
    }
}

#[test]
fn requests_that_need_no_peer_take_their_place_in_the_queue() {
    for mut rig in both() {
        let (mut a, b) = pair_on(&mut rig, QpSpec { flags: QpFlags::PRIVILEGED, ..spec() });
        let _ = b;
        let key = allocate(&mut rig, 0, 4);
        let memory = rig.alloc(4096);
        rig.fill(memory, 4096, 3);
        let (to, target) = rig.region(1, 4096);
        let args: [u64; 4] =
            zerocopy::transmute!(ListArgs { list: memory, remote: remote(key, 1), ..ListArgs::default() });
        rig.post_args(
            &mut a,
            link(key, ALL_RIGHTS | LinkFlags::CONTIGUOUS | LinkFlags::RELATIVE, 0, 4096),
            args,
        );
        rig.post(&mut a, rdma(Opcode::Write, 5, to, 0), &[segment(key, 0, 4096)]);
        // The Read needs the key until its last byte is here.
        rig.post(&mut a, rdma(Opcode::Read, 6, to, 0), &[segment(key, 0, 4096)]);
        rig.post(&mut a, crate::keys::invalidate(key), &[]);
        rig.post(&mut a, rdma(Opcode::Write, 7, to, 0), &[segment(key, 0, 4096)]);
        let done = sent(&mut rig, &mut a, 5);
        let seen: Vec<_> = done.iter().map(status).collect();
        let ok = Status::Success;
        assert_eq!(seen, [ok, ok, ok, ok, Status::LocalProtection]);
        assert_eq!(rig.bytes(target, 4096), rig.bytes(memory, 4096));
    }
}

#[test]
fn a_lossy_wire_costs_time_and_nothing_else() {
    let mut seed = 7_u64;
    let mut lost = 0;
    let wires = cable().map(|end| {
        seed += 1;
        let mut state = seed;
        Through::new(end, move |end, frame: &[u8]| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // ARP passes: a peer that does not answer is not asked again soon.
            if frame.len() < 60 || !(state >> 33).is_multiple_of(20) {
                end.put(frame);
            }
        })
    });
    let (mut rig, mut a, mut b) = rig_on(wires);
    let size = 200_000_u64;
    let (from, source) = rig.region(0, size);
    let (to, target) = rig.region(1, size);
    rig.fill(source, size as usize, 8);
    rig.post_receive(&mut b, 1, &[]);
    rig.post(&mut a, rdma(Opcode::Write, 1, to, 0), &[segment(from, 0, size as u32)]);
    rig.post(&mut a, header(Opcode::Send, 2), &[]);
    for _ in 0..20_000 {
        rig.advance(1_000_000);
        lost += 1;
        if rig.poll_cq(&mut b.receive_cq).is_some() {
            assert_eq!(rig.bytes(target, size as usize), rig.bytes(source, size as usize));
            return;
        }
    }
    panic!("nothing after {lost} ms");
}

#[test]
fn receives_of_a_shared_queue_take_messages() {
    for mut rig in both() {
        let ring = rig.create_srq(1, 4, 0);
        let (to, target) = rig.region(1, 64);
        rig.write_receive(ring, 0, 33, &[segment(to, 0, 64)]);
        rig.ring(1, nic_abi::doorbell::Kind::SharedReceive, 4, 1);
        connect_on(&mut rig);
        let mut a = rig.create_qp(0, spec());
        let mut b = rig.create_qp(1, QpSpec { flags: QpFlags::SRQ, srq: 4, ..spec() });
        let responder = StreamFlags::RESPONDER;
        super::join(&mut rig, &b, PASSIVE, responder);
        super::join(&mut rig, &a, ACTIVE, StreamFlags::empty());
        let (from, source) = rig.region(0, 64);
        rig.fill(source, 64, 2);
        rig.post(&mut a, header(Opcode::Send, 1), &[segment(from, 0, 64)]);
        settle(&mut rig);
        assert_eq!(rig.received(&mut b).tag, 33);
        assert_eq!(rig.bytes(target, 64), rig.bytes(source, 64));
    }
}

#[test]
fn a_send_queue_that_is_drained_sends_nothing_more() {
    let cable = cable();
    let (mut rig, mut a, mut b) = rig_on(cable.clone());
    let (from, _) = rig.region(0, 1 << 20);
    let (to, _) = rig.region(1, 1 << 20);
    rig.post(&mut a, rdma(Opcode::Write, 1, to, 0), &[segment(from, 0, 1 << 20)]);
    cable[0].set_room(false);
    rig.run();
    rig.set_state(&a, QpState::Sqd).expect("SQD");
    cable[0].set_room(true);
    rig.post_receive(&mut b, 1, &[]);
    rig.post(&mut a, header(Opcode::Send, 2), &[]);
    let first = sent(&mut rig, &mut a, 1);
    settle(&mut rig);
    assert_eq!((first.len(), first[0].tag), (1, 1));
    assert_eq!(rig.event_types(0), [(EventType::SendQueueDrained, a.qpn)]);
    assert!(rig.poll_cq(&mut b.receive_cq).is_none());
    rig.set_state(&a, QpState::Rts).expect("RTS");
    settle(&mut rig);
    assert_eq!((rig.sent(&mut a).tag, rig.received(&mut b).tag), (2, 1));
}

#[test]
fn a_long_message_leaves_turns_to_other_connections() {
    let mut rig = Rig::wired(cable(), 1500);
    let (mut a, _) = pair_on(&mut rig, spec());
    connect_again(&mut rig);
    let (mut c, mut d) = (rig.create_qp(0, spec()), rig.create_qp(1, spec()));
    super::join(&mut rig, &d, PASSIVE, StreamFlags::RESPONDER);
    super::join(&mut rig, &c, ACTIVE, StreamFlags::empty());
    let size = 8 << 20;
    let (from, _) = rig.region(0, size);
    let (to, _) = rig.region(1, size);
    rig.post(&mut a, rdma(Opcode::Write, 1, to, 0), &[segment(from, 0, size as u32)]);
    rig.post_receive(&mut d, 2, &[]);
    for _ in 0..100 {
        rig.step();
    }
    rig.post(&mut c, header(Opcode::Send, 3), &[]);
    while rig.poll_cq(&mut d.receive_cq).is_none() {
        rig.now += 1000;
        rig.step();
        assert!(rig.poll_cq(&mut a.send_cq).is_none(), "the long message came first");
    }
}
