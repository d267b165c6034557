//! Datagrams that are dropped, or wait for a neighbour, over a wire and by the short cut.

use nic_abi::admin::{Injection, ModifyQp, QpFlags, QpMask, QpState, QpType};
use nic_abi::cqe::Status;
use nic_abi::eqe::EventType;
use nic_abi::wqe::{AddressVector, Opcode};
use nic_model::PacketDropped;
use nic_model::testing::{Qp, QpSpec, Rig, segment, status};

use crate::packets::rig as wired;
use crate::queues::{datagram, post_shared, send_datagram};

const QKEY: u32 = 5;

/// Sends a datagram of so many bytes.
fn send(rig: &mut Rig, from: &mut Qp, to: AddressVector, key: u32, length: u32) {
    send_datagram(rig, from, to, Opcode::Send, &[segment(key, 0, length)]);
}

#[test]
fn a_datagram_that_cannot_leave_is_dropped_and_counted_and_its_request_succeeds() {
    let (mut rig, _) = wired();
    let (mut a, mut b) = (rig.datagram_qp(0, 7, QKEY), rig.datagram_qp(1, 7, QKEY));
    let (from, _) = rig.region(0, 1024);
    let (to, _) = rig.region(1, 1024);
    let good = datagram(&rig, &b, QKEY);
    // Of another network, and from an address of another family than the destination's.
    let mut far = good;
    far.gid[12] = 11;
    for (n, av) in [far, AddressVector { source_gid: 0, ..good }].into_iter().enumerate() {
        send(&mut rig, &mut a, av, from, 100);
        assert_eq!(status(&rig.sent(&mut a)), Status::Success);
        assert_eq!(rig.stats(0).dropped_datagrams, n as u64 + 1);
    }
    rig.post_receive(&mut b, 3, &[segment(to, 0, 140)]);
    send(&mut rig, &mut a, good, from, 100);
    assert_eq!((rig.received(&mut b).tag, status(&rig.sent(&mut a))), (3, Status::Success));
    assert_eq!(rig.stats(0).dropped_datagrams, 2);
    // One that finds no receive counts at its receiver.
    assert_eq!(rig.stats(1).dropped_datagrams, 0);
    send(&mut rig, &mut a, good, from, 100);
    rig.run();
    assert_eq!([0, 1].map(|n| rig.stats(n).dropped_datagrams), [2, 1]);
}

#[test]
fn a_datagram_needs_both_ports_and_a_nic_that_runs() {
    let mut rig = Rig::new(2);
    let (mut a, mut b) = (rig.datagram_qp(0, 7, QKEY), rig.datagram_qp(1, 7, QKEY));
    let (from, _) = rig.region(0, 1024);
    let (to, _) = rig.region(1, 1024);
    let good = datagram(&rig, &b, QKEY);
    rig.post_receive(&mut b, 3, &[segment(to, 0, 140)]);
    for (n, down) in [0, 1].into_iter().enumerate() {
        rig.inject(down, Injection::Port, 0, 0, 0);
        send(&mut rig, &mut a, good, from, 100);
        assert_eq!(status(&rig.sent(&mut a)), Status::Success);
        assert_eq!(rig.stats(0).dropped_datagrams, n as u64 + 1);
        rig.inject(down, Injection::Port, 0, 0, 1);
    }
    rig.inject(1, Injection::Mute, 0, 0, 0);
    send(&mut rig, &mut a, good, from, 100);
    assert_eq!(status(&rig.sent(&mut a)), Status::Success);
    assert_eq!(rig.stats(0).dropped_datagrams, 3);
    assert!(rig.poll_cq(&mut b.receive_cq).is_none());
}

#[test]
fn queue_pairs_for_datagrams_share_receives_and_keep_one_that_is_too_short() {
    for mut rig in [Rig::new(2), wired().0] {
        let (ring, mut tail) = (rig.create_srq(1, 4, 0), 0);
        let mut a = rig.datagram_qp(0, 7, QKEY);
        let spec = QpSpec { kind: QpType::Ud, flags: QpFlags::SRQ, srq: 4, ..QpSpec::default() };
        let (mut b, mut c) = (rig.datagram_qp_of(1, spec, QKEY), rig.datagram_qp_of(1, spec, QKEY));
        let (from, _) = rig.region(0, 1024);
        let (to, _) = rig.region(1, 1024);
        let (to_b, to_c) = (datagram(&rig, &b, QKEY), datagram(&rig, &c, QKEY));
        // With no receive a datagram is lost, and with the last one gone too.
        send(&mut rig, &mut a, to_b, from, 100);
        assert_eq!(status(&rig.sent(&mut a)), Status::Success);
        for (tag, room) in [(0, 140), (1, 90), (2, 140)] {
            post_shared(&mut rig, ring, &mut tail, tag, &[segment(to, 0, room)]);
        }
        send(&mut rig, &mut a, to_b, from, 100);
        assert_eq!(rig.received(&mut b).tag, 0);
        // The second is too short for this one. It stays with the queue pair that has taken it.
        send(&mut rig, &mut a, to_b, from, 100);
        send(&mut rig, &mut a, to_c, from, 100);
        assert_eq!(rig.received(&mut c).tag, 2);
        send(&mut rig, &mut a, to_b, from, 50);
        let got = rig.received(&mut b);
        assert_eq!((got.tag, got.length, got.detail), (1, 90, a.qpn));
        assert_eq!(rig.stats(1).dropped_datagrams + rig.stats(0).dropped_datagrams, 2);
        rig.set_state(&b, QpState::Error).expect("ERROR");
        assert_eq!(rig.event_types(1).last().map(|event| event.0), Some(EventType::LastWqeReached));
    }
}

#[test]
fn an_injection_loses_as_many_datagrams_as_it_says() {
    for mut rig in [Rig::new(2), wired().0] {
        let (mut a, mut b) = (rig.datagram_qp(0, 7, QKEY), rig.datagram_qp(1, 7, QKEY));
        let (from, _) = rig.region(0, 1024);
        let (to, _) = rig.region(1, 1024);
        rig.post_receive(&mut b, 3, &[segment(to, 0, 140)]);
        rig.inject(0, Injection::DropRequests, a.qpn, 2, 0);
        let good = datagram(&rig, &b, QKEY);
        for lost in 1..3 {
            send(&mut rig, &mut a, good, from, 100);
            assert_eq!(status(&rig.sent(&mut a)), Status::Success);
            assert_eq!(rig.stats(0).dropped_datagrams, lost);
            assert!(rig.poll_cq(&mut b.receive_cq).is_none());
        }
        send(&mut rig, &mut a, good, from, 100);
        assert_eq!(rig.received(&mut b).tag, 3);
        assert_eq!(rig.stats(0).dropped_datagrams, 2);
    }
}

/// Datagrams to neighbours that do not answer hold up no other datagram, whichever queue they are
/// in, and are lost in the end.
#[test]
fn datagrams_to_nobody_wait_beside_their_queue() {
    let (mut rig, _) = wired();
    let (mut a, mut b) = (rig.datagram_qp(0, 1, 0), rig.datagram_qp(1, 1, 0));
    let mut other = rig.datagram_qp(0, 7, QKEY);
    let (from, _) = rig.region(0, 1024);
    let (to, _) = rig.region(1, 1024);
    let good = datagram(&rig, &b, 0x8001_0000);
    let nobody = |n: u16| {
        let mut av = good;
        av.gid[14..].copy_from_slice(&(n + 100).to_be_bytes());
        av.gid[13] = 0;
        av
    };
    for tag in 0..3 {
        rig.post_receive(&mut b, tag, &[segment(to, 0, 140)]);
    }
    // The good neighbour is not known either. No time passes.
    let mut sent = 0;
    for round in 0..3 {
        for n in 0..20 {
            send(&mut rig, &mut a, nobody(20 * round + n), from, 100);
            assert_eq!(status(&rig.sent(&mut a)), Status::Success);
            for more in 0..5 {
                send(&mut rig, &mut other, nobody(300 + 100 * round + 5 * n + more), from, 100);
                assert_eq!(status(&rig.sent(&mut other)), Status::Success);
            }
            sent += 6;
        }
        send(&mut rig, &mut a, good, from, 100);
        assert_eq!(status(&rig.sent(&mut a)), Status::Success);
        assert_eq!(rig.received(&mut b).tag, round.into());
    }
    for _ in 0..40 {
        rig.advance(100_000_000);
    }
    assert_eq!(rig.stats(0).dropped_datagrams, sent);
}

/// A queue pair that answers a stranger that does not exist asks for no MAC, so a flood of such
/// strangers takes no answer from senders that do exist.
#[test]
fn an_answer_goes_to_the_mac_from_which_the_datagram_came() {
    let mut s = crate::wire::scene();
    let mut b = s.rig.datagram_qp(0, 1, 0);
    let (memory, _) = s.rig.region(0, 2048);
    let count = if cfg!(miri) { 3 } else { 200 };
    let own = s.rig.port(0).own_frames;
    for n in 0..count {
        let mut stranger = crate::wire::stranger(n as u8 + 50);
        let from = stranger.gids()[1];
        s.rig.post_receive(&mut b, n, &[segment(memory, 0, 1024)]);
        s.datagram_of(&mut stranger, b.qpn, 0x8001_0000, b"who are you?");
        assert_eq!(s.rig.received(&mut b).tag, n);
        let av = AddressVector {
            gid: from.0,
            qpn: 1,
            qkey: 0x8001_0000,
            source_gid: 1,
            ..AddressVector::default()
        };
        send_datagram(&mut s.rig, &mut b, av, Opcode::Send, &[segment(memory, 0, 8)]);
        assert_eq!(status(&s.rig.sent(&mut b)), Status::Success);
        let frame = s.take().expect("an answer");
        assert_eq!((&frame[..6], &frame[12..14]), (&stranger.mac()[..], &[8, 0][..]));
        assert!(s.take().is_none());
    }
    assert_eq!(s.rig.port(0).own_frames, own, "the port asked for nobody");
    // What a neighbour itself says of its MAC counts more.
    let mut stranger = crate::wire::stranger(250);
    s.datagram_of(&mut stranger, b.qpn, 0x8001_0000, b"no receive");
    s.rig.run();
    let av = AddressVector { gid: stranger.gids()[1].0, qpn: 1, source_gid: 1, ..AddressVector::default() };
    send_datagram(&mut s.rig, &mut b, av, Opcode::Send, &[segment(memory, 0, 8)]);
    assert_eq!(status(&s.rig.sent(&mut b)), Status::Success);
    let question = s.take().expect("a question");
    assert_eq!(question[12..14], [8, 6], "nobody took that datagram");
}

/// A stranger must not be able to end a queue pair, or to use up its receives, by sending.
#[test]
fn a_datagram_that_does_not_fit_is_dropped_and_changes_nothing_at_its_receiver() {
    // By the short cut and by packets; to a UD queue pair and to the general services one.
    for mut rig in [Rig::new(2), wired().0] {
        for (slot, qkey) in [(7, QKEY), (1, 0x8001_0000)] {
            let (mut a, mut b) = (rig.datagram_qp(0, slot, QKEY), rig.datagram_qp(1, slot, QKEY));
            let (from, _) = rig.region(0, 1024);
            let (to, target) = rig.region(1, 1024);
            rig.fill(target, 256, 9);
            let before = rig.bytes(target, 256);
            rig.post_receive(&mut b, 3, &[segment(to, 0, 140)]);
            rig.post_receive(&mut b, 4, &[segment(to, 0, 39)]);
            rig.post_receive(&mut b, 5, &[segment(to, 0, 139)]);
            let good = datagram(&rig, &b, qkey);
            for (length, tag) in [(101, None), (100, Some(3)), (0, None)] {
                let dropped = rig.stats(0).dropped_datagrams + rig.stats(1).dropped_datagrams;
                send(&mut rig, &mut a, good, from, length);
                assert_eq!(status(&rig.sent(&mut a)), Status::Success, "the sender gets no error");
                let received = rig.poll_cq(&mut b.receive_cq);
                assert_eq!(
                    received.map(|entry| (entry.tag, status(&entry))),
                    tag.map(|n| (n, Status::Success))
                );
                let now = rig.stats(0).dropped_datagrams + rig.stats(1).dropped_datagrams;
                assert_eq!(now - dropped, u64::from(tag.is_none()));
                if length == 101 {
                    assert_eq!(rig.bytes(target, 256), before);
                }
            }
            assert_eq!(rig.query(&b).state, QpState::Rts as u32);
            assert_eq!(rig.events(1).len(), 0);
            // The receive that is too short for any datagram is flushed as one that stayed posted.
            rig.set_state(&b, QpState::Error).expect("ERROR");
            for tag in [4, 5] {
                let flushed = rig.received(&mut b);
                assert_eq!((flushed.tag, status(&flushed)), (tag, Status::Flushed));
            }
        }
    }
}

/// The longest message of the receiving queue pair, and the MTU of its NIC, bound a datagram as
/// well as the receive does.
#[test]
fn a_datagram_longer_than_the_message_or_the_mtu_of_its_receiver_is_dropped() {
    for mut rig in [Rig::new(2), wired().0] {
        let (mut a, mut b) = (rig.datagram_qp(0, 7, QKEY), rig.datagram_qp(1, 7, QKEY));
        let mask = QpMask::MAX_MESSAGE.bits();
        rig.modify(&b, &ModifyQp { mask, max_message: 64, ..ModifyQp::default() }).expect("a limit");
        let (from, _) = rig.region(0, 1024);
        let (to, _) = rig.region(1, 1024);
        rig.post_receive(&mut b, 3, &[segment(to, 0, 1024)]);
        let good = datagram(&rig, &b, QKEY);
        for length in [65, 64] {
            send(&mut rig, &mut a, good, from, length);
            assert_eq!(status(&rig.sent(&mut a)), Status::Success);
        }
        assert_eq!(rig.received(&mut b).length, 104);
    }
    let mut s = crate::wire::scene();
    let mut b = s.rig.datagram_qp(0, 7, QKEY);
    let (to, _) = s.rig.region(0, 2048);
    // Each packet fits the link's MTU of 1500; the path MTU is 1024.
    for (length, room) in [(1400, 2048), (1025, 1064), (1024, 1064)] {
        s.rig.post_receive(&mut b, length, &[segment(to, 0, room)]);
        s.datagram(b.qpn, QKEY, &vec![7; length as usize]);
        s.rig.run();
        let got = s.rig.poll_cq(&mut b.receive_cq).map(|entry| (entry.tag, status(&entry), entry.length));
        assert_eq!(got, (length == 1024).then_some((1400, Status::Success, 1064)));
    }
    assert_eq!(s.packets(PacketDropped::TooLong), 2);
    assert_eq!(s.rig.query(&b).state, QpState::Rts as u32);
}
