//! How a queue pair takes its stream.

use nic_abi::admin::{ModifyQp, Opcode as Command, QpFlags, QpMask, QpState, QpType, Status, StreamFlags};
use nic_abi::eqe::EventType;
use nic_abi::wqe::Opcode;
use nic_model::testing::{QpSpec, Rig, cable, header};

use super::{both, join, pair, pairs, refused, spec, take};
use crate::streams::{ACTIVE, LISTENER, PASSIVE, connect_on, connected, happened, query, send, settle};

#[test]
fn a_queue_pair_takes_a_connected_stream_and_its_number_is_free_again() {
    let (mut rig, _) = connected();
    let qp = rig.create_qp(0, spec());
    rig.init(&qp);
    let flags = StreamFlags::CRC;
    let good = take(ACTIVE, flags);
    for (args, why) in [
        (take(77, flags), Status::NoSuchObject),
        (ModifyQp { stream_flags: 6, ..good }, Status::BadField),
        (ModifyQp { stream_flags: 8, ..good }, Status::BadField),
        (ModifyQp { stream_flags: 16, ..good }, Status::BadField),
        (ModifyQp { mask: good.mask & !QpMask::STREAM.bits(), ..good }, Status::BadField),
        (ModifyQp { max_rd_atomic: 255, ..good }, Status::BadField),
        (ModifyQp { mask: good.mask | QpMask::REMOTE_QPN.bits(), ..good }, Status::BadField),
    ] {
        assert_eq!(refused(rig.modify(&qp, &args)), Some(why));
        assert_eq!(rig.query(&qp).state, QpState::Init as u32);
    }
    rig.modify(&qp, &good).expect("RTR");
    let asked = rig.command(0, Command::QueryStream, ACTIVE, &());
    assert_eq!(refused(asked.map(drop)), Some(Status::NoSuchObject));
    // Another queue pair cannot take it.
    let other = rig.create_qp(0, spec());
    rig.init(&other);
    assert_eq!(refused(rig.modify(&other, &good)), Some(Status::NoSuchObject));
    // What was agreed on stays, but for the ORD.
    let later = |mask: QpMask| ModifyQp { mask: mask.bits(), ..good };
    let ird = later(QpMask::MAX_DEST_RD_ATOMIC);
    assert_eq!(refused(rig.modify(&qp, &ird)), Some(Status::BadField));
    rig.modify(&qp, &later(QpMask::MAX_RD_ATOMIC)).expect("another ORD");
    // A listener is no stream, and one that does not exist at the other end is none either.
    let passive = rig.create_qp(1, spec());
    rig.init(&passive);
    assert_eq!(refused(rig.modify(&passive, &take(LISTENER, flags))), Some(Status::NoSuchObject));
    rig.modify(&passive, &take(PASSIVE, flags | StreamFlags::RESPONDER)).expect("RTR");
}

#[test]
fn a_stream_that_is_not_connected_cannot_be_taken() {
    let cable = cable();
    let mut rig = Rig::wired(cable.clone(), 1500);
    cable[0].set_room(false);
    let args = crate::streams::connecting(&rig, 1);
    crate::streams::connect(&mut rig, args).expect("a stream");
    let qp = rig.create_qp(0, spec());
    rig.init(&qp);
    assert_eq!(refused(rig.modify(&qp, &take(ACTIVE, StreamFlags::CRC))), Some(Status::BadState));
    assert!(happened(&mut rig, 0, ACTIVE).is_empty());
}

#[test]
fn it_has_neither_atomics_nor_immediate_data() {
    for opcode in [Opcode::SendImmediate, Opcode::WriteImmediate, Opcode::CompareSwap, Opcode::FetchAdd] {
        for (mut rig, mut a, _) in pairs() {
            rig.post(&mut a, header(opcode, 7), &[]);
            let failed = rig.sent(&mut a);
            assert_eq!(failed.status, nic_abi::cqe::Status::LocalQpOperation as u8, "{opcode:?}");
            assert_eq!(failed.detail, core::mem::offset_of!(nic_abi::wqe::Header, opcode) as u32);
        }
    }
}

#[test]
fn a_responder_sends_after_the_initiators_first_message_and_says_so() {
    for (mut rig, mut a, mut b) in pairs() {
        rig.post_receive(&mut a, 1, &[]);
        rig.post(&mut b, header(Opcode::Send, 2), &[]);
        settle(&mut rig);
        assert!(rig.poll_cq(&mut a.receive_cq).is_none() && rig.poll_cq(&mut b.send_cq).is_none());
        assert!(rig.event_types(1).is_empty());
        rig.post_receive(&mut b, 3, &[]);
        rig.post(&mut a, header(Opcode::Send, 4), &[]);
        settle(&mut rig);
        assert_eq!(rig.received(&mut b).tag, 3);
        assert_eq!(rig.event_types(1), [(EventType::CommunicationEstablished, b.qpn)]);
        assert_eq!((rig.received(&mut a).tag, rig.sent(&mut b).tag), (1, 2));
        assert!(rig.event_types(0).is_empty());
    }
}

#[test]
fn an_initiator_can_announce_itself_so_that_the_responder_may_send() {
    for mut rig in both() {
        connect_on(&mut rig);
        let (mut a, mut b) = (rig.create_qp(0, spec()), rig.create_qp(1, spec()));
        join(&mut rig, &b, PASSIVE, StreamFlags::CRC | StreamFlags::RESPONDER);
        rig.init(&a);
        rig.post_receive(&mut a, 1, &[]);
        rig.post(&mut b, header(Opcode::Send, 2), &[]);
        rig.modify(&a, &take(ACTIVE, StreamFlags::CRC | StreamFlags::ANNOUNCE)).expect("RTR");
        rig.set_state(&a, QpState::Rts).expect("RTS");
        settle(&mut rig);
        assert_eq!(rig.event_types(1), [(EventType::CommunicationEstablished, b.qpn)]);
        assert_eq!((rig.received(&mut a).tag, rig.sent(&mut b).tag), (1, 2));
        // The announcement is no work request.
        assert!(rig.poll_cq(&mut a.send_cq).is_none());
    }
}

/// How long a silent initiator is waited for at least, and a little more.
const PATIENCE: u64 = 126_000_000;

#[test]
fn a_responder_may_send_to_an_initiator_that_is_silent_if_its_driver_wants_that() {
    for mut rig in both() {
        connect_on(&mut rig);
        let (mut a, mut b) = (rig.create_qp(0, spec()), rig.create_qp(1, spec()));
        join(&mut rig, &b, PASSIVE, StreamFlags::CRC | StreamFlags::RESPONDER | StreamFlags::UNASKED);
        join(&mut rig, &a, ACTIVE, StreamFlags::CRC);
        rig.post_receive(&mut a, 1, &[]);
        rig.post(&mut b, header(Opcode::Send, 2), &[]);
        rig.advance(PATIENCE);
        assert!(rig.poll_cq(&mut b.send_cq).is_none() && rig.event_types(1).is_empty());
        rig.advance(PATIENCE);
        settle(&mut rig);
        assert_eq!(rig.event_types(1), [(EventType::CommunicationEstablished, b.qpn)]);
        assert_eq!((rig.received(&mut a).tag, rig.sent(&mut b).tag), (1, 2));
        // The first message of the initiator establishes nothing any more.
        rig.post_receive(&mut b, 3, &[]);
        rig.post(&mut a, header(Opcode::Send, 4), &[]);
        settle(&mut rig);
        assert_eq!(rig.received(&mut b).tag, 3);
        assert!(rig.event_types(1).is_empty());
    }
}

#[test]
fn a_responder_waits_until_the_initiator_has_the_reply() {
    let ends_of_cable = cable();
    let mut rig = Rig::wired(ends_of_cable.clone(), 1500);
    connect_on(&mut rig);
    let mut b = rig.create_qp(1, spec());
    ends_of_cable[0].plug(false);
    // As if it were a Reply.
    let reply = rig.alloc(20);
    assert_eq!(send(&mut rig, 1, PASSIVE, (reply, 20)), Ok(20));
    join(&mut rig, &b, PASSIVE, StreamFlags::CRC | StreamFlags::RESPONDER | StreamFlags::UNASKED);
    rig.post(&mut b, header(Opcode::Send, 2), &[]);
    for _ in 0..4 {
        rig.advance(PATIENCE);
    }
    assert!(rig.poll_cq(&mut b.send_cq).is_none());
    assert_eq!(rig.event_types(1), [(EventType::PortDown, 0)]);
    ends_of_cable[0].plug(true);
    while !rig.event_types(1).contains(&(EventType::CommunicationEstablished, b.qpn)) {
        rig.advance(PATIENCE);
    }
    assert_eq!(rig.sent(&mut b).tag, 2);
}

#[test]
fn an_announcement_is_repeated_while_the_peer_is_silent() {
    for mut rig in both() {
        connect_on(&mut rig);
        let (mut a, mut b) = (rig.create_qp(0, spec()), rig.create_qp(1, spec()));
        join(&mut rig, &a, ACTIVE, StreamFlags::CRC | StreamFlags::ANNOUNCE);
        // The peer's end is the driver's: what is in the stream is not looked at.
        let readable = |rig: &mut Rig| query(rig, 1, PASSIVE).readable;
        let mut counts = Vec::new();
        for _ in 0..20 {
            rig.advance(100_000_000);
            settle(&mut rig);
            counts.push(readable(&mut rig) / 20);
        }
        assert_eq!((counts[0], counts[19]), (2, 5));
        join(&mut rig, &b, PASSIVE, StreamFlags::CRC | StreamFlags::RESPONDER);
        rig.post_receive(&mut a, 1, &[]);
        rig.post(&mut b, header(Opcode::Send, 2), &[]);
        settle(&mut rig);
        assert_eq!(rig.received(&mut a).tag, 1);
    }
}

#[test]
fn bytes_that_came_before_the_queue_pair_took_the_stream_are_its_first() {
    for mut rig in both() {
        connect_on(&mut rig);
        let (mut a, mut b) = (rig.create_qp(0, spec()), rig.create_qp(1, spec()));
        join(&mut rig, &a, ACTIVE, StreamFlags::CRC);
        rig.post(&mut a, header(Opcode::Send, 4), &[]);
        settle(&mut rig);
        assert!(happened(&mut rig, 1, PASSIVE).contains(nic_abi::admin::StreamHappened::READABLE));
        rig.init(&b);
        rig.post_receive(&mut b, 3, &[]);
        rig.modify(&b, &take(PASSIVE, StreamFlags::CRC | StreamFlags::RESPONDER)).expect("RTR");
        settle(&mut rig);
        assert_eq!(rig.received(&mut b).tag, 3);
    }
}

#[test]
fn packets_of_infiniband_do_not_reach_them() {
    let (mut rig, _, b) = pair();
    let rc = QpSpec { kind: QpType::Rc, flags: QpFlags::empty(), ..spec() };
    let mut stray = rig.create_qp(0, rc);
    rig.join(&stray, &b);
    rig.post(&mut stray, header(Opcode::Send, 1), &[]);
    for _ in 0..20 {
        rig.advance(10_000_000);
    }
    assert_eq!(rig.sent(&mut stray).status, nic_abi::cqe::Status::RetryExceeded as u8);
    assert!(rig.event_types(1).is_empty());
}
