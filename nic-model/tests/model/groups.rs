//! Multicast groups: who gets a copy of a datagram, over a wire and by the short cut.

use nic_abi::admin::{Group, Injection, Opcode as Admin, QpType, Status as Refused};
use nic_abi::cqe::Status;
use nic_abi::ident::{MAX_GROUP_QPS, MAX_GROUPS};
use nic_abi::wqe::{AddressVector, Opcode};
use nic_model::testing::{Qp, QpSpec, Rig, segment, status};
use roce::Qpn;

use crate::packets::rig as wired;
use crate::queues::{datagram, send_datagram};

const QKEY: u32 = 5;
/// 239.1.2.`n`, mapped into IPv6.
fn group(n: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, n]
}

/// ff0e::`n`.
fn group_v6(n: u8) -> [u8; 16] {
    [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n]
}

fn ask(rig: &mut Rig, qp: &Qp, what: Admin, gid: [u8; 16]) -> Result<(), Refused> {
    rig.command(qp.nic, what, qp.qpn, &Group { gid }).map(drop).map_err(|(status, _)| status)
}

fn member(rig: &mut Rig, n: usize) -> Qp {
    rig.datagram_qp_of(n, QpSpec { kind: QpType::Ud, ..QpSpec::default() }, QKEY)
}

fn join(rig: &mut Rig, qp: &Qp, gid: [u8; 16]) {
    ask(rig, qp, Admin::JoinGroup, gid).expect("it joins");
}

/// The address of a group, from the GID of its kind.
fn address(rig: &Rig, qp: &Qp, gid: [u8; 16]) -> AddressVector {
    let source_gid = u8::from(gid[0] == 0);
    AddressVector { gid, source_gid, qpn: Qpn::MULTICAST.get(), ..datagram(rig, qp, QKEY) }
}

fn expect(rig: &mut Rig, qp: &mut Qp, key: u32) {
    rig.post_receive(qp, 3, &[segment(key, 0, 1064)]);
}

#[test]
fn each_queue_pair_of_a_group_gets_a_copy_but_not_the_sender() {
    for mut rig in [Rig::new(2), wired().0] {
        let mut own = [(); 2].map(|()| member(&mut rig, 0));
        let mut far = [(); 3].map(|()| member(&mut rig, 1));
        let (from, bytes) = rig.region(0, 1024);
        rig.fill(bytes, 1024, 3);
        let (own_to, _) = rig.region(0, 2048);
        let (to, target) = rig.region(1, 2048);
        for gid in [group(3), group_v6(3)] {
            for qp in own.iter().chain(&far[..2]) {
                join(&mut rig, qp, gid);
            }
            for qp in &mut own {
                expect(&mut rig, qp, own_to);
            }
            for qp in &mut far {
                expect(&mut rig, qp, to);
            }
            let to_group = address(&rig, &own[0], gid);
            send_datagram(&mut rig, &mut own[0], to_group, Opcode::Send, &[segment(from, 0, 100)]);
            let sender = own[0].qpn;
            for qp in [&mut own[1]].into_iter().chain(&mut far[..2]) {
                let got = rig.received(qp);
                assert_eq!((got.tag, got.length, got.detail), (3, 140, sender), "{gid:?}");
            }
            assert_eq!(status(&rig.sent(&mut own[0])), Status::Success);
            assert_eq!(rig.bytes(target + 40, 100), rig.bytes(bytes, 100)[..100]);
            // The GRH names the group.
            let front = rig.bytes(target, 40);
            assert_eq!(
                if gid[0] == 0 { &front[36..] } else { &front[24..] },
                if gid[0] == 0 { &gid[12..] } else { &gid[..] }
            );
            for qp in [&mut own[0], &mut far[2]] {
                assert!(rig.poll_cq(&mut qp.receive_cq).is_none(), "the sender, and one outside the group");
            }
            // Of those that have left, none gets it.
            for qp in own.iter().chain(&far[..2]) {
                ask(&mut rig, qp, Admin::LeaveGroup, gid).expect("it leaves");
            }
            send_datagram(&mut rig, &mut own[0], to_group, Opcode::Send, &[segment(from, 0, 100)]);
            assert_eq!(status(&rig.sent(&mut own[0])), Status::Success);
            rig.run();
            for qp in own.iter_mut().chain(&mut far) {
                assert!(rig.poll_cq(&mut qp.receive_cq).is_none());
            }
        }
    }
}

#[test]
fn what_is_not_for_a_group_as_a_whole_reaches_nobody() {
    for mut rig in [Rig::new(2), wired().0] {
        let (mut a, mut b) = (member(&mut rig, 0), member(&mut rig, 1));
        let (from, _) = rig.region(0, 1024);
        let (to, _) = rig.region(1, 2048);
        join(&mut rig, &b, group(3));
        expect(&mut rig, &mut b, to);
        let good = address(&rig, &a, group(3));
        for wrong in [
            AddressVector { gid: group(4), ..good },
            AddressVector { qpn: b.qpn, ..good },
            AddressVector { qkey: QKEY + 1, ..good },
        ] {
            send_datagram(&mut rig, &mut a, wrong, Opcode::Send, &[segment(from, 0, 100)]);
            assert_eq!(status(&rig.sent(&mut a)), Status::Success);
            rig.run();
            assert!(rig.poll_cq(&mut b.receive_cq).is_none(), "{wrong:?}");
        }
        // Nor while a port is down.
        rig.inject(0, Injection::Port, 0, 0, 0);
        send_datagram(&mut rig, &mut a, good, Opcode::Send, &[segment(from, 0, 100)]);
        assert_eq!(status(&rig.sent(&mut a)), Status::Success);
        rig.inject(0, Injection::Port, 0, 0, 1);
        rig.run();
        assert!(rig.poll_cq(&mut b.receive_cq).is_none());
        send_datagram(&mut rig, &mut a, good, Opcode::Send, &[segment(from, 0, 100)]);
        assert_eq!(rig.received(&mut b).tag, 3);
    }
}

#[test]
fn groups_of_strangers_are_dropped_by_the_port() {
    let (mut rig, _) = wired();
    let (mut a, b) = (member(&mut rig, 0), member(&mut rig, 1));
    let (from, _) = rig.region(0, 1024);
    join(&mut rig, &b, group(3));
    for (gid, taken) in [(group(4), 0), (group_v6(4), 0), (group(3), 1)] {
        let before = rig.port(1).packets_in;
        let to_group = address(&rig, &a, gid);
        send_datagram(&mut rig, &mut a, to_group, Opcode::Send, &[segment(from, 0, 100)]);
        assert_eq!(status(&rig.sent(&mut a)), Status::Success);
        rig.run();
        assert_eq!(rig.port(1).packets_in - before, taken, "{gid:?}");
    }
}

#[test]
fn a_queue_pair_joins_what_is_a_group_and_leaves_what_it_has_joined() {
    let mut rig = Rig::new(1);
    let qp = member(&mut rig, 0);
    let (connected, _) = rig.pair_of(0, 0, QpSpec { kind: QpType::Rc, ..QpSpec::default() });
    for (what, gid, expected) in [
        (Admin::JoinGroup, [0; 16], Refused::BadField),
        (Admin::JoinGroup, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3], Refused::BadField),
        (Admin::LeaveGroup, group(1), Refused::NoSuchObject),
    ] {
        assert_eq!(ask(&mut rig, &qp, what, gid), Err(expected), "{what:?} {gid:?}");
    }
    assert_eq!(ask(&mut rig, &connected, Admin::JoinGroup, group(1)), Err(Refused::BadField), "no UD");
    join(&mut rig, &qp, group(1));
    assert_eq!(ask(&mut rig, &qp, Admin::JoinGroup, group(1)), Err(Refused::Exists));
    assert_eq!(ask(&mut rig, &qp, Admin::LeaveGroup, group(1)), Ok(()));
    assert_eq!(ask(&mut rig, &qp, Admin::LeaveGroup, group(1)), Err(Refused::NoSuchObject));
    rig.command(0, Admin::DestroyQp, qp.qpn, &()).unwrap();
    assert_eq!(ask(&mut rig, &qp, Admin::JoinGroup, group(1)), Err(Refused::NoSuchObject));
}

#[test]
fn groups_and_their_queue_pairs_have_a_limit_and_a_queue_pair_leaves_at_its_end() {
    let mut rig = Rig::new(1);
    let qps: Vec<Qp> = (0..=MAX_GROUP_QPS).map(|_| member(&mut rig, 0)).collect();
    let (one_more, members) = qps.split_last().expect("many");
    for qp in members {
        join(&mut rig, qp, group(1));
    }
    assert_eq!(ask(&mut rig, one_more, Admin::JoinGroup, group(1)), Err(Refused::NoResources));
    rig.command(0, Admin::DestroyQp, members[3].qpn, &()).unwrap();
    join(&mut rig, one_more, group(1));
    let gid = |n: u32| {
        let mut gid = group_v6(0);
        gid[12..].copy_from_slice(&n.to_be_bytes());
        gid
    };
    for n in 1..MAX_GROUPS {
        join(&mut rig, one_more, gid(n));
    }
    assert_eq!(ask(&mut rig, one_more, Admin::JoinGroup, gid(MAX_GROUPS)), Err(Refused::NoResources));
    rig.command(0, Admin::DestroyQp, one_more.qpn, &()).unwrap();
    join(&mut rig, &members[0], gid(MAX_GROUPS));
}
