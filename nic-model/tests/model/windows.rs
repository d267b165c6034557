//! Windows: binding, the accesses that they grant, and their owners.

use core::mem::offset_of;

use nic_abi::admin::{DestroyQp, Opcode, QpInfo, QpState, Status as Admin};
use nic_abi::cqe::Status;
use nic_abi::wqe::{self, BindArgs, Header, LinkFlags, Wqe};
use nic_model::testing::{ALL_RIGHTS, Qp, QpSpec, REMOTE, Rig, header, rdma, segment, status};
use zerocopy::FromBytes;

use crate::keys::{bind, bind_args, invalidate, query, remote, window};

/// A pair for windows: `b` binds them on NIC 1, `a` accesses memory through them.
fn windows() -> (Rig, Qp, Qp, u32, u64) {
    let mut rig = Rig::new(2);
    let (a, b) = rig.pair();
    let (region, addr) = rig.region_with(1, 4096, ALL_RIGHTS.difference(REMOTE), 0x5000);
    (rig, a, b, region, addr)
}

#[test]
fn a_window_gives_access_while_it_is_bound() {
    for (kind, relative) in [(1, false), (1, true), (2, false), (2, true)] {
        let (mut rig, mut a, mut b, region, addr) = windows();
        let (from, source) = rig.region(0, 64);
        rig.fill(source, 64, 3);
        let local = window(&mut rig, 1, kind);
        let key = remote(local, 7);
        let mut flags = LinkFlags::REMOTE_WRITE;
        flags.set(LinkFlags::RELATIVE, relative);
        rig.post_args(&mut b, bind(local, region, 0x5100, 64), bind_args(key, flags));
        assert_eq!(status(&rig.sent(&mut b)), Status::Success);
        let info = query(&mut rig, 1, local);
        assert_eq!((info.kind, info.linked, info.remote, info.windows_or_region), (1, 1, key, region));
        assert_eq!(query(&mut rig, 1, region).windows_or_region, 1);
        let first = if relative { 0 } else { 0x5100 };
        rig.post(&mut a, rdma(wqe::Opcode::Write, 1, key, first + 8), &[segment(from, 0, 56)]);
        assert_eq!(status(&rig.sent(&mut a)), Status::Success);
        assert_eq!(rig.bytes(addr + 0x108, 56), rig.bytes(source, 56));
        // A bound window keeps its region from being destroyed.
        assert_eq!(rig.command(1, Opcode::DestroyRegion, region, &()), Err((Admin::Busy, 8)));
        rig.post_args(&mut b, invalidate(local), [0; 4]);
        assert_eq!(status(&rig.sent(&mut b)), Status::Success);
        assert_eq!(query(&mut rig, 1, region).windows_or_region, 0);
        let info = query(&mut rig, 1, local);
        assert_eq!((info.kind, info.linked, info.remote, info.windows_or_region), (1, 0, 0, 0));
        rig.post(&mut a, rdma(wqe::Opcode::Write, 1, key, first), &[segment(from, 0, 8)]);
        assert_eq!(status(&rig.sent(&mut a)), Status::RemoteAccess);
        rig.command(1, Opcode::DestroyRegion, region, &()).unwrap();
        rig.command(1, Opcode::DestroyWindow, local, &()).unwrap();
    }
}

#[test]
fn a_window_grants_its_bytes_and_rights_and_no_more() {
    for (opcode, addr, length) in [
        (wqe::Opcode::Read, 0x5100, 8),
        (wqe::Opcode::Write, 0x50ff, 8),
        (wqe::Opcode::Write, 0x5139, 8),
        (wqe::Opcode::Write, u64::MAX, 8),
    ] {
        let (mut rig, mut a, mut b, region, _) = windows();
        let (from, _) = rig.region(0, 64);
        let key = window(&mut rig, 1, 2);
        rig.post_args(&mut b, bind(key, region, 0x5100, 64), bind_args(key, LinkFlags::REMOTE_WRITE));
        assert_eq!(status(&rig.sent(&mut b)), Status::Success);
        rig.post(&mut a, rdma(opcode, 1, key, addr), &[segment(from, 0, length)]);
        assert_eq!(status(&rig.sent(&mut a)), Status::RemoteAccess, "{opcode:?} {addr:#x}");
    }
}

#[test]
fn a_narrow_window_belongs_to_its_queue_pair_and_a_wide_one_to_the_domain() {
    for (kind, expected) in [(1, Status::Success), (2, Status::RemoteAccess)] {
        let (mut rig, _a, mut b, region, _) = windows();
        let (mut c, mut d) = rig.pair();
        let (from, _) = rig.region(0, 64);
        let key = window(&mut rig, 1, kind);
        rig.post_args(&mut b, bind(key, region, 0x5100, 64), bind_args(key, LinkFlags::REMOTE_WRITE));
        assert_eq!(status(&rig.sent(&mut b)), Status::Success);
        rig.post(&mut c, rdma(wqe::Opcode::Write, 1, key, 0x5100), &[segment(from, 0, 8)]);
        assert_eq!(status(&rig.sent(&mut c)), expected);
        // Another queue pair may not unlink a narrow window.
        if kind == 2 {
            let (_, mut e) = rig.pair();
            rig.post_args(&mut e, invalidate(key), [0; 4]);
            assert_eq!(status(&rig.sent(&mut e)), Status::WindowBind);
        } else {
            rig.post_args(&mut d, invalidate(key), [0; 4]);
            assert_eq!(status(&rig.sent(&mut d)), Status::Success);
        }
    }
}

#[test]
fn a_wide_window_moves_and_a_narrow_one_does_not() {
    let (mut rig, _a, mut b, region, _) = windows();
    let wide = window(&mut rig, 1, 1);
    for count in 0..3 {
        let at = 0x5000 + u64::from(count) * 64;
        let args = bind_args(remote(wide, count), LinkFlags::REMOTE_READ);
        rig.post_args(&mut b, bind(wide, region, at, 64), args);
        assert_eq!(status(&rig.sent(&mut b)), Status::Success);
        assert_eq!(query(&mut rig, 1, wide).remote, remote(wide, count));
    }
    assert_eq!(query(&mut rig, 1, region).windows_or_region, 1);
    assert_eq!(query(&mut rig, 1, wide).base, 0x5080);
    rig.post_args(&mut b, bind(wide, 0, 0, 0), bind_args(remote(wide, 9), LinkFlags::empty()));
    assert_eq!(status(&rig.sent(&mut b)), Status::Success);
    let info = query(&mut rig, 1, wide);
    assert_eq!((info.linked, info.remote), (0, 0));
    assert_eq!(query(&mut rig, 1, region).windows_or_region, 0);
    let narrow = window(&mut rig, 1, 2);
    for (count, expected) in [(1, Status::Success), (2, Status::WindowBind)] {
        let args = bind_args(remote(narrow, count), LinkFlags::REMOTE_READ);
        rig.post_args(&mut b, bind(narrow, region, 0x5000, 64), args);
        assert_eq!(status(&rig.sent(&mut b)), expected);
    }
    assert_eq!(query(&mut rig, 1, narrow).remote, remote(narrow, 1), "the old binding stays");
}

#[test]
fn a_bind_that_is_wrong_fails() {
    let setup = |rig: &mut Rig| {
        let (relative, _) = rig.region(1, 4096);
        let (no_bind, _) = rig.region_with(1, 4096, ALL_RIGHTS.difference(LinkFlags::BIND), 0x5000);
        let (read_only, _) = rig.region_with(1, 4096, LinkFlags::LOCAL_READ | LinkFlags::BIND, 0x5000);
        let (write_only, _) = rig.region_with(1, 4096, LinkFlags::LOCAL_WRITE | LinkFlags::BIND, 0x5000);
        (relative, no_bind, read_only, write_only)
    };
    let (read, write) = (LinkFlags::REMOTE_READ, LinkFlags::REMOTE_WRITE);
    let (key, region_key, length) =
        (offset_of!(Header, immediate), offset_of!(Header, remote_key), offset_of!(Header, length));
    let base = offset_of!(Header, remote_addr);
    let args = offset_of!(Wqe, args);
    let flags_at = args + offset_of!(BindArgs, flags);
    let remote_at = args + offset_of!(BindArgs, remote);
    let reserved = args + offset_of!(BindArgs, reserved);
    for case in 0..14 {
        let (mut rig, _a, mut b, region, _) = windows();
        let (relative, no_bind, read_only, write_only) = setup(&mut rig);
        let narrow = window(&mut rig, 1, 2);
        let (head, flags, expected, field) = match case {
            0 => (bind(narrow, relative, 0, 64), read, Status::MemoryManagement, region_key),
            1 => (bind(narrow, region, 0x5000, 0), read, Status::MemoryManagement, length),
            2 => (bind(narrow, no_bind, 0x5000, 64), read, Status::WindowBind, flags_at),
            3 => (bind(narrow, read_only, 0x5000, 64), write, Status::WindowBind, flags_at),
            4 => (bind(narrow, write_only, 0x5000, 64), read, Status::WindowBind, flags_at),
            5 => (bind(narrow, region, 0x4fff, 64), read, Status::WindowBind, base),
            6 => (bind(narrow, region, 0x5fff, 64), read, Status::WindowBind, base),
            7 => (bind(narrow, region, 0x5000, u64::MAX), read, Status::WindowBind, base),
            8 => (bind(narrow, region ^ 1, 0x5000, 64), read, Status::WindowBind, region_key),
            9 => (bind(narrow ^ 1, region, 0x5000, 64), read, Status::WindowBind, key),
            // A remote key with another slot.
            11 => (bind(narrow, region, 0x5000, 64), read, Status::WindowBind, remote_at),
            10 => (bind(region, region, 0x5000, 64), read, Status::WindowBind, key),
            12 => (bind(narrow, region, 0x5000, 64), read, Status::LocalQpOperation, reserved),
            _ => (bind(narrow, region, 0x5000, 64), LinkFlags::PAGES, Status::LocalQpOperation, flags_at),
        };
        let remote = if case == 11 { region } else { narrow };
        let mut words = bind_args(remote, flags);
        words[3] |= u64::from(case == 12) << 63;
        rig.post_args(&mut b, head, words);
        let sent = rig.sent(&mut b);
        assert_eq!((status(&sent), sent.detail), (expected, field as u32), "case {case}");
        assert_eq!(query(&mut rig, 1, narrow).linked, 0);
    }
}

#[test]
fn windows_may_write_where_the_region_says_so_without_its_own_right() {
    let (mut rig, _a, mut b, _, _) = windows();
    let flags = LinkFlags::LOCAL_READ | LinkFlags::BIND | LinkFlags::WINDOWS_WRITE;
    let (region, _) = rig.region_with(1, 4096, flags, 0x5000);
    let bound = |rig: &mut Rig, b: &mut Qp, slot| {
        let window = window(rig, 1, slot);
        rig.post_args(b, bind(window, region, 0x5000, 64), bind_args(window, LinkFlags::REMOTE_WRITE));
        status(&rig.sent(b))
    };
    assert_eq!(bound(&mut rig, &mut b, 2), Status::Success);
    // It is not one of the rights, which a modification replaces.
    let info = query(&mut rig, 1, region);
    assert_eq!(LinkFlags::from_bits(info.flags), Some(flags | LinkFlags::CONTIGUOUS));
}

/// The number of narrow windows that the queue pair's owner has bound.
fn bound(rig: &mut Rig, qp: &Qp) -> u32 {
    let result = rig.command(qp.nic, Opcode::QueryQp, qp.qpn, &()).expect("a queue pair");
    QpInfo::read_from_prefix(&result).expect("large enough").0.windows
}

#[test]
fn narrow_windows_belong_to_a_named_owner() {
    let mut rig = Rig::new(2);
    let named = |owner| QpSpec { owner, ..QpSpec::default() };
    let (_, mut first) = rig.pair_of(0, 1, named(7));
    let (mut a, mut second) = rig.pair_of(0, 1, named(7));
    let (mut other, mut stranger) = rig.pair_of(0, 1, named(8));
    let (region, _) = rig.region_with(1, 4096, ALL_RIGHTS.difference(REMOTE), 0x5000);
    let (from, _) = rig.region(0, 64);
    let narrow = [window(&mut rig, 1, 2), window(&mut rig, 1, 2), window(&mut rig, 1, 2)];
    let wide = window(&mut rig, 1, 1);
    for key in narrow.into_iter().chain([wide]) {
        let args = bind_args(remote(key, 1), LinkFlags::REMOTE_WRITE);
        rig.post_args(&mut first, bind(key, region, 0x5000, 64), args);
        assert_eq!(status(&rig.sent(&mut first)), Status::Success);
    }
    let counts = |rig: &mut Rig| [&first, &second, &stranger].map(|qp| bound(rig, qp));
    assert_eq!(counts(&mut rig), [3, 3, 0]);
    // The windows outlive the queue pair that bound them.
    rig.command(1, Opcode::DestroyQp, first.qpn, &()).unwrap();
    assert_eq!((bound(&mut rig, &second), bound(&mut rig, &stranger)), (3, 0));
    let write = rdma(wqe::Opcode::Write, 1, remote(narrow[0], 1), 0x5000);
    rig.post(&mut a, write, &[segment(from, 0, 8)]);
    assert_eq!(status(&rig.sent(&mut a)), Status::Success);
    rig.post(&mut other, write, &[segment(from, 0, 8)]);
    assert_eq!(status(&rig.sent(&mut other)), Status::RemoteAccess);
    let (_, mut stranger_too) = rig.pair_of(0, 1, named(8));
    rig.post_args(&mut stranger_too, invalidate(narrow[0]), [0; 4]);
    assert_eq!(status(&rig.sent(&mut stranger_too)), Status::WindowBind);
    // Each way in which a window is unbound counts once.
    rig.post_args(&mut second, invalidate(narrow[0]), [0; 4]);
    rig.post_args(&mut second, invalidate(narrow[0]), [0; 4]);
    for _ in 0..2 {
        assert_eq!(status(&rig.sent(&mut second)), Status::Success);
    }
    assert_eq!(bound(&mut rig, &second), 2);
    rig.post_receive(&mut second, 1, &[]);
    let head = Header { immediate: remote(narrow[1], 1), ..header(wqe::Opcode::SendInvalidate, 1) };
    rig.post(&mut a, head, &[]);
    assert_eq!(status(&rig.sent(&mut a)), Status::Success);
    let received = rig.received(&mut second);
    assert_eq!((received.immediate, received.detail), (narrow[1], remote(narrow[1], 1)), "local and remote");
    assert_eq!(bound(&mut rig, &second), 1);
    // A queue pair can be destroyed on the condition that its owner has none bound.
    let unless_bound = |unless_bound| DestroyQp { unless_bound, reserved: 0 };
    let refused = rig.command(1, Opcode::DestroyQp, second.qpn, &unless_bound(1));
    assert_eq!(refused.map(drop), Err((Admin::Busy, 8)));
    let refused = rig.command(1, Opcode::DestroyQp, second.qpn, &unless_bound(2));
    assert_eq!(refused.map(drop), Err((Admin::BadField, 16)));
    assert_eq!(rig.query(&second).state, QpState::Rts as u32);
    rig.command(1, Opcode::DestroyQp, stranger_too.qpn, &unless_bound(1)).expect("it has none");
    for key in narrow {
        rig.command(1, Opcode::DestroyWindow, key, &()).unwrap();
    }
    assert_eq!(bound(&mut rig, &second), 0);
    rig.command(1, Opcode::DestroyQp, second.qpn, &unless_bound(1)).expect("the owner has no bound window");
    let _ = &mut stranger;
}

#[test]
fn a_relative_region_may_have_bit_5_but_no_window() {
    let (mut rig, _a, mut b, _, _) = windows();
    let (relative, _) = rig.region_with(1, 4096, ALL_RIGHTS | LinkFlags::RELATIVE, 0);
    let flags = LinkFlags::from_bits_retain(query(&mut rig, 1, relative).flags);
    assert!(flags.contains(LinkFlags::BIND | LinkFlags::RELATIVE));
    let narrow = window(&mut rig, 1, 2);
    rig.post_args(&mut b, bind(narrow, relative, 0, 64), bind_args(narrow, LinkFlags::REMOTE_READ));
    assert_eq!(status(&rig.sent(&mut b)), Status::MemoryManagement);
}

/// A consumer of verbs chooses the low byte of each key of a narrow window.
#[test]
fn of_the_keys_of_a_narrow_window_only_the_last_one_is_good() {
    let (mut rig, mut a, mut b, region, _) = windows();
    let (from, _) = rig.region(0, 64);
    let narrow = window(&mut rig, 1, 2);
    let keys = [0x3f00, 0x3fff, 0x3f00].map(|count| remote(narrow, count));
    let invalidate_as = |remote_key| Header { remote_key, ..invalidate(narrow) };
    for key in keys {
        rig.post_args(&mut b, bind(narrow, region, 0x5100, 64), bind_args(key, LinkFlags::REMOTE_WRITE));
        assert_eq!(status(&rig.sent(&mut b)), Status::Success);
        rig.post(&mut a, rdma(wqe::Opcode::Write, 1, key, 0x5100), &[segment(from, 0, 8)]);
        assert_eq!(status(&rig.sent(&mut a)), Status::Success);
        rig.post_args(&mut b, invalidate_as(key), [0; 4]);
        assert_eq!(status(&rig.sent(&mut b)), Status::Success);
    }
    // Bound by the second key, and named by the first: that one is of the past.
    rig.post_args(&mut b, bind(narrow, region, 0x5100, 64), bind_args(keys[1], LinkFlags::REMOTE_WRITE));
    rig.post_args(&mut b, invalidate_as(keys[0]), [0; 4]);
    assert_eq!(status(&rig.sent(&mut b)), Status::Success);
    let refused = rig.sent(&mut b);
    let field = offset_of!(Header, remote_key) as u32;
    assert_eq!((status(&refused), refused.detail), (Status::WindowBind, field));
    assert_eq!(query(&mut rig, 1, narrow).remote, keys[1], "it is still bound");
    // A window that is not bound has no remote key.
    let (_, mut c) = rig.pair();
    rig.command(1, Opcode::DestroyWindow, narrow, &()).unwrap();
    let narrow = window(&mut rig, 1, 2);
    rig.post_args(&mut c, Header { remote_key: remote(narrow, 0), ..invalidate(narrow) }, [0; 4]);
    assert_eq!(status(&rig.sent(&mut c)), Status::WindowBind);
}

#[test]
fn a_stale_key_of_a_narrow_window_gives_no_access_and_invalidates_nothing() {
    for write in [true, false] {
        let (mut rig, mut a, mut b, region, _) = windows();
        let (from, _) = rig.region(0, 64);
        let narrow = window(&mut rig, 1, 2);
        let (stale, good) = (remote(narrow, 0x100), remote(narrow, 0x101));
        let args = bind_args(good, LinkFlags::REMOTE_WRITE);
        rig.post_args(&mut b, bind(narrow, region, 0x5100, 64), args);
        assert_eq!(status(&rig.sent(&mut b)), Status::Success);
        rig.post_receive(&mut b, 1, &[]);
        match write {
            true => rig.post(&mut a, rdma(wqe::Opcode::Write, 1, stale, 0x5100), &[segment(from, 0, 8)]),
            false => {
                let head = Header { immediate: stale, ..header(wqe::Opcode::SendInvalidate, 1) };
                rig.post(&mut a, head, &[]);
            }
        }
        assert_eq!(status(&rig.sent(&mut a)), Status::RemoteAccess);
        assert_eq!(query(&mut rig, 1, narrow).remote, good, "it is still bound");
    }
}
