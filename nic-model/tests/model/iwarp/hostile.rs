//! A peer that keeps to no rule: the other end is a stream of a driver, which sends what it likes.

use iwarp::ddp::{Header as Ddp, Place, VERSION, queue};
use iwarp::mpa::fpdu;
use iwarp::rdmap::{Control, Opcode as Rdmap};
use nic_abi::admin::{QpState, StreamFlags};
use nic_abi::cqe::Status;
use nic_abi::doorbell::Kind;
use nic_abi::eqe::{NOT_COMPLETED, StreamFault, TERMINATE_CODE};
use nic_abi::ident::qpn_slot;
use nic_abi::wqe::ReceiveHeader;
use nic_model::GuestMemory;
use nic_model::testing::{Qp, Rig, cable, segment, status};
use zerocopy::IntoBytes;

use super::{ends, join, spec, take, wait};
use crate::streams::{ACTIVE, PASSIVE, connect_on, destroy, receive, send, settle};

/// A responder with a posted receive of 64 bytes, and the driver's stream at the other end.
fn rig() -> (Rig, Qp) {
    let mut rig = Rig::wired(cable(), 1500);
    connect_on(&mut rig);
    let mut b = rig.create_qp(1, spec());
    join(&mut rig, &b, PASSIVE, StreamFlags::CRC | StreamFlags::RESPONDER);
    let (key, _) = rig.region(1, 64);
    rig.post_receive(&mut b, 1, &[segment(key, 0, 64)]);
    (rig, b)
}

/// Sends bytes as they are.
fn put(rig: &mut Rig, bytes: &[u8]) {
    let at = rig.alloc(bytes.len().max(1) as u64);
    rig.memory.write(at, bytes).expect("memory");
    assert_eq!(send(rig, 0, ACTIVE, (at, bytes.len() as u32)), Ok(bytes.len() as u32));
    settle(rig);
}

/// An FPDU with a Send's segment.
fn send_fpdu(msn: u32, mo: u32, last: bool, payload: &[u8]) -> Vec<u8> {
    let place = Place::Untagged { invalidate: 0, queue: queue::SEND, msn, mo };
    fpdu_of(last, Rdmap::send(false, false), place, payload)
}

fn fpdu_of(last: bool, opcode: Rdmap, place: Place, payload: &[u8]) -> Vec<u8> {
    let header = Ddp { last, version: VERSION, control: Control::new(opcode).to_byte(), place };
    let mut ulpdu = vec![0; 64];
    let len = header.emit(&mut ulpdu).expect("room");
    ulpdu.truncate(len);
    ulpdu.extend_from_slice(payload);
    framed(&ulpdu)
}

/// An FPDU with these bytes.
fn framed(ulpdu: &[u8]) -> Vec<u8> {
    let mut out = vec![0; ulpdu.len() + 16];
    let len = fpdu::emit(ulpdu, true, &mut out).expect("room");
    out.truncate(len);
    out
}

#[test]
fn bytes_that_are_no_messages_are_refused_by_their_kind() {
    let good = send_fpdu(1, 0, true, &[7; 20]);
    let mut bad_crc = good.clone();
    bad_crc[25] ^= 1;
    let tagged = |opcode, stag| fpdu_of(true, opcode, Place::Tagged { stag, to: 0 }, &[1; 4]);
    for (name, bytes, fault, code) in [
        ("a wrong CRC", bad_crc, StreamFault::Llp, 0x2002),
        ("another number", send_fpdu(2, 0, true, &[7; 4]), StreamFault::Receive, 0x1203),
        ("another place", send_fpdu(1, 4, true, &[7; 4]), StreamFault::Transport, 0x1204),
        ("too long", send_fpdu(1, 0, true, &[7; 65]), StreamFault::ReceiveLength, 0x1205),
        ("an answer without a question", tagged(Rdmap::ReadResponse, 5), StreamFault::Opcode, 0x0206),
        ("a wrong key", tagged(Rdmap::Write, 0xbad), StreamFault::Write, 0x1100),
        ("a frame without room for a header", framed(&[0x41, 0x43]), StreamFault::Llp, 0x2003),
    ] {
        let (mut rig, b) = rig();
        put(&mut rig, &bytes);
        wait(&mut rig);
        let told = ends(&mut rig, 1);
        assert_eq!(told.len(), 1, "{name}: {told:?}");
        let (number, seen, detail) = told[0];
        assert_eq!((number, seen, detail & TERMINATE_CODE), (b.qpn, fault, code), "{name}");
        // The peer can read why, and then the end.
        let at = rig.alloc(4096);
        let length = receive(&mut rig, 0, ACTIVE, (at, 4096)).expect("a Terminate");
        assert!(length > 22, "{name}");
        assert!(receive(&mut rig, 0, ACTIVE, (at, 4096)).is_err(), "{name}");
        destroy(&mut rig, 0, ACTIVE, 0);
        wait(&mut rig);
    }
}

#[test]
fn a_close_or_a_reset_at_each_byte_of_a_message_is_seen_for_what_it_is() {
    let message = send_fpdu(1, 0, true, &[7; 12]);
    for reset in [false, true] {
        for length in (0..=message.len()).step_by(if cfg!(miri) { 17 } else { 1 }) {
            let (mut rig, mut b) = rig();
            if length > 0 {
                put(&mut rig, &message[..length]);
            }
            destroy(&mut rig, 0, ACTIVE, u32::from(reset));
            wait(&mut rig);
            let whole = length == message.len();
            let fault = match reset {
                true => StreamFault::Lost,
                false if whole || length == 0 => StreamFault::None,
                false => StreamFault::InsideMessage,
            };
            let detail = if fault == StreamFault::None { 0 } else { NOT_COMPLETED };
            assert_eq!(ends(&mut rig, 1), [(b.qpn, fault, detail)], "reset: {reset}, {length} bytes");
            let receive = status(&rig.received(&mut b));
            assert_eq!(receive, if whole { Status::Success } else { Status::Flushed }, "{length} bytes");
        }
    }
}

#[test]
fn one_byte_at_a_time_is_a_message_too() {
    let (mut rig, mut b) = rig();
    for byte in send_fpdu(1, 0, true, &[9; 21]) {
        put(&mut rig, &[byte]);
    }
    let received = rig.received(&mut b);
    assert_eq!((status(&received), received.length), (Status::Success, 21));
}

#[test]
fn a_peer_that_sends_on_behind_a_terminate_is_cut_off() {
    let (mut rig, _) = rig();
    put(&mut rig, &[0xff; 64]);
    let at = rig.alloc(1 << 16);
    let mut more = 0;
    for _ in 0..200 {
        match send(&mut rig, 0, ACTIVE, (at, 1 << 16)) {
            Ok(count) => more += count,
            Err(_) => break,
        }
        settle(&mut rig);
    }
    assert!((1 << 19..1 << 22).contains(&more), "{more} bytes were taken");
}

#[test]
fn a_receive_that_is_malformed_is_this_ends_own_fault() {
    let mut rig = Rig::wired(cable(), 1500);
    connect_on(&mut rig);
    let mut b = rig.create_qp(1, spec());
    rig.init(&b);
    let header = ReceiveHeader { segments: 99, flags: 0, tag: 4, reserved: 0 };
    rig.memory.write(b.receive_ring, header.as_bytes()).expect("the ring");
    rig.ring(1, Kind::Receive, qpn_slot(b.qpn), 1);
    rig.modify(&b, &take(PASSIVE, StreamFlags::CRC | StreamFlags::RESPONDER)).expect("RTR");
    put(&mut rig, &send_fpdu(1, 0, true, &[7; 4]));
    wait(&mut rig);
    assert_eq!(status(&rig.received(&mut b)), Status::LocalQpOperation);
    assert_eq!(ends(&mut rig, 1).len(), 1);
    assert_eq!(rig.query(&b).state, QpState::Error as u32);
}

#[test]
fn a_bad_tail_of_an_iwarp_queue_pair_is_its_own() {
    let (mut rig, b) = rig();
    rig.ring(1, Kind::Send, qpn_slot(b.qpn), 1 << 20);
    wait(&mut rig);
    assert_eq!(ends(&mut rig, 1), [(b.qpn, StreamFault::Local, NOT_COMPLETED)]);
    // The device goes on.
    let other = rig.create_qp(1, spec());
    assert_eq!(rig.query(&other).state, QpState::Reset as u32);
}
