//! Invalidation by a peer's message and by a read, and requests that are not executed.

use nic_abi::cqe::{CqeFlags, Status};
use nic_abi::wqe::{self, Header, LinkFlags, ListArgs};
use nic_model::testing::{ALL_RIGHTS, Qp, Rig, header, rdma, segment, status};

use crate::keys::{allocate, bind, bind_args, invalidate, link, linked, privileged, query, remote, window};

#[test]
fn a_send_invalidates_only_what_a_peer_may_invalidate() {
    for case in 0..4 {
        let mut rig = Rig::new(2);
        let (mut a, mut b) = rig.pair_of(0, 1, privileged());
        let key = match case {
            0 => rig.region(1, 64).0,
            1 => linked(&mut rig, 1, &mut b, LinkFlags::LOCAL_READ | LinkFlags::RELATIVE),
            2 => window(&mut rig, 1, 1),
            _ => window(&mut rig, 1, 2),
        };
        if case == 2 {
            let (region, _) = rig.region_with(1, 64, ALL_RIGHTS, 0x1000);
            let args = bind_args(remote(key, 1), LinkFlags::REMOTE_READ);
            rig.post_args(&mut b, bind(key, region, 0x1000, 64), args);
            assert_eq!(status(&rig.sent(&mut b)), Status::Success);
        }
        let named = query(&mut rig, 1, key).remote;
        rig.post_receive(&mut b, 1, &[]);
        rig.post(&mut a, Header { immediate: named, ..header(wqe::Opcode::SendInvalidate, 1) }, &[]);
        assert_eq!(status(&rig.sent(&mut a)), Status::RemoteAccess, "case {case}");
        assert_eq!(status(&rig.received(&mut b)), Status::LocalAccess, "case {case}");
        assert_eq!(query(&mut rig, 1, key).linked, u32::from(case < 3), "case {case}");
    }
}

#[test]
fn a_send_can_invalidate_the_receivers_key() {
    let mut rig = Rig::new(2);
    let (mut a, mut b) = rig.pair_of(0, 1, privileged());
    let key = linked(&mut rig, 1, &mut b, ALL_RIGHTS | LinkFlags::RELATIVE);
    rig.post_receive(&mut b, 1, &[]);
    let head = Header { immediate: remote(key, 1), ..header(wqe::Opcode::SendInvalidate, 1) };
    rig.post(&mut a, head, &[]);
    assert_eq!(status(&rig.sent(&mut a)), Status::Success);
    let received = rig.received(&mut b);
    assert_eq!(CqeFlags::from_bits(received.flags), Some(CqeFlags::RECEIVE | CqeFlags::INVALIDATED));
    assert_eq!(received.immediate, key);
    assert_eq!(query(&mut rig, 1, key).linked, 0);
    // The second time, the key is no longer linked.
    rig.post_receive(&mut b, 2, &[]);
    rig.post(&mut a, head, &[]);
    assert_eq!(status(&rig.sent(&mut a)), Status::RemoteAccess);
    assert_eq!(status(&rig.received(&mut b)), Status::LocalAccess);
}

/// Contiguous memory for a fast register with this remote key.
fn fresh_memory(rig: &mut Rig, remote: u32) -> ([u64; 4], u64) {
    let addr = rig.alloc(64);
    (zerocopy::transmute!(ListArgs { list: addr, remote, ..ListArgs::default() }), addr)
}

#[test]
fn a_link_that_is_not_executed_changes_nothing() {
    let mut rig = Rig::new(2);
    let (mut a, mut b) = rig.pair_of(0, 1, privileged());
    let flags = ALL_RIGHTS | LinkFlags::RELATIVE;
    let key = linked(&mut rig, 1, &mut b, flags);
    let before = query(&mut rig, 1, key);
    let relink = |rig: &mut Rig, qp: &mut Qp, count| {
        let (args, _) = fresh_memory(rig, remote(key, count));
        rig.post_args(qp, link(key, flags | LinkFlags::CONTIGUOUS, 0, 64), args);
    };
    // One request is refused, one flushed, and one waits behind a Send for which there is no
    // receive.
    let (_, mut refused) = rig.pair_of(0, 1, privileged());
    relink(&mut rig, &mut refused, 2);
    assert_eq!(status(&rig.sent(&mut refused)), Status::MemoryManagement);
    relink(&mut rig, &mut refused, 3);
    assert_eq!(status(&rig.sent(&mut refused)), Status::Flushed);
    let (_, mut waiting) = rig.pair_of(0, 1, privileged());
    rig.post(&mut waiting, header(wqe::Opcode::Send, 9), &[]);
    relink(&mut rig, &mut waiting, 4);
    rig.run();
    let info = query(&mut rig, 1, key);
    assert_eq!((info.remote, info.linked, info.length), (before.remote, 1, before.length));
    let (from, source) = rig.region(0, 64);
    rig.fill(source, 64, 8);
    rig.post(&mut a, rdma(wqe::Opcode::Write, 1, before.remote, 0), &[segment(from, 0, 64)]);
    assert_eq!(status(&rig.sent(&mut a)), Status::Success);
    rig.post(&mut b, rdma(wqe::Opcode::Write, 1, from, 0), &[segment(key, 0, 64)]);
    assert_eq!(status(&rig.sent(&mut b)), Status::Success);
    rig.post_args(&mut b, invalidate(key), [0; 4]);
    assert_eq!(status(&rig.sent(&mut b)), Status::Success);
    assert_eq!(query(&mut rig, 1, key).remote, 0);
    // Unlinked, neither key allows an access.
    rig.post(&mut a, rdma(wqe::Opcode::Write, 1, before.remote, 0), &[segment(from, 0, 64)]);
    assert_eq!(status(&rig.sent(&mut a)), Status::RemoteAccess);
}

#[test]
fn a_receive_uses_the_link_in_force_when_the_message_comes() {
    let mut rig = Rig::new(2);
    let (mut a, mut b) = rig.pair_of(0, 1, privileged());
    let (_, mut linker) = rig.pair_of(0, 1, privileged());
    let key = allocate(&mut rig, 1, 1);
    let (from, source) = rig.region(0, 64);
    for tag in 0..3 {
        rig.post_receive(&mut b, tag, &[segment(key, 0, 64)]);
    }
    for tag in 0..2 {
        let (args, target) = fresh_memory(&mut rig, remote(key, tag));
        let flags = ALL_RIGHTS | LinkFlags::RELATIVE | LinkFlags::CONTIGUOUS;
        rig.post_args(&mut linker, link(key, flags, 0, 64), args);
        assert_eq!(status(&rig.sent(&mut linker)), Status::Success);
        rig.fill(source, 64, tag as u8);
        rig.post(&mut a, header(wqe::Opcode::Send, tag), &[segment(from, 0, 64)]);
        assert_eq!(status(&rig.sent(&mut a)), Status::Success);
        assert_eq!((rig.received(&mut b).tag, rig.bytes(target, 64)), (tag, rig.bytes(source, 64)));
        rig.post_args(&mut linker, invalidate(key), [0; 4]);
        assert_eq!(status(&rig.sent(&mut linker)), Status::Success);
    }
    rig.post(&mut a, header(wqe::Opcode::Send, 2), &[segment(from, 0, 64)]);
    assert_eq!(status(&rig.sent(&mut a)), Status::RemoteOperation);
    assert_eq!(status(&rig.received(&mut b)), Status::LocalProtection);
}

#[test]
fn a_read_can_invalidate_its_sink() {
    let mut rig = Rig::new(2);
    let (mut a, _b) = rig.pair();
    let (sink, target) = rig.region(0, 64);
    let (far, source) = rig.region(1, 64);
    rig.fill(source, 64, 4);
    let head = Header { immediate: sink, ..rdma(wqe::Opcode::ReadInvalidate, 1, far, 0) };
    rig.post(&mut a, head, &[segment(sink, 0, 64)]);
    assert_eq!(status(&rig.sent(&mut a)), Status::Success);
    assert_eq!(rig.bytes(target, 64), rig.bytes(source, 64));
    assert_eq!(query(&mut rig, 0, sink).linked, 0);
    let (other, _) = rig.region(0, 64);
    rig.post(&mut a, head, &[segment(other, 0, 64)]);
    assert_eq!(status(&rig.sent(&mut a)), Status::LocalProtection);
}
