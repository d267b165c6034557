//! What descriptors ask for, and faults in them.

use super::*;

#[test]
fn the_identity_says_what_virtual_interfaces_may_have() {
    let rig = Rig::new(1);
    let word = |at| rig.register(0, at).load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(word(16) & Features::VI.bits() as u32, Features::VI.bits() as u32);
    assert_eq!((word(384), word(388)), (252, 1 << 14));
}

#[test]
fn sends_take_receives_and_both_descriptors_say_so() {
    each(&LEVELS, |mut s, level, way| {
        for length in [0, 1, 1024, 5000, 32 << 10] {
            let to = s.rig.post_vi_receive(&mut s.b, 32 << 10);
            let from = s.rig.post_request(&mut s.a, SEND, None, length);
            assert_eq!(s.done(from), DONE, "{level:?} {way:?}");
            assert_eq!(s.done(to), DONE | Status::OP_RECEIVE);
            assert_eq!(s.rig.control_segment(from).length, length);
            assert_eq!(s.rig.control_segment(to).length, length);
            assert!(s.arrived(s.b.data + VI_DATA / 2, length as usize));
        }
        assert_eq!(s.rig.mark(&s.a, 0, 4), MARK_COMPLETE);
        assert_eq!((s.errors(0), s.errors(1)), (vec![], vec![]));
    });
}

#[test]
fn immediate_data_arrives_with_sends_and_with_writes() {
    each(&LEVELS, |mut s, level, way| {
        let with = |control: Control| (control | Control::IMMEDIATE).bits();
        let target = (s.b.handle, s.b.data + 100);
        for (control, to, taken) in [
            (SEND, None, Status::OP_RECEIVE),
            (Control::RDMA_WRITE, Some(target), Status::OP_REMOTE_RDMA_WRITE),
        ] {
            let receive = s.rig.post_vi_receive(&mut s.b, 4096);
            let data = [DataSegment { address: s.a.data, handle: s.a.handle, length: 3000 }];
            let address = to.map(|(handle, address)| AddressSegment { address, handle, reserved: 0 });
            let head = ControlSegment {
                control: with(control),
                immediate: 0x1234_5678,
                ..ControlSegment::default()
            };
            let at = s.rig.descriptor(&mut s.a, head, address, &data);
            s.rig.post_own(&mut s.a, 0, at);
            assert!(!s.done(at).intersects(Status::ERROR_MASK), "{level:?} {way:?}");
            assert_eq!(s.done(receive), DONE | taken | Status::IMMEDIATE);
            let segment = s.rig.control_segment(receive);
            assert_eq!((segment.immediate, segment.control), (0x1234_5678, Control::IMMEDIATE.bits()));
            assert_eq!(segment.length, if to.is_some() { 0 } else { 3000 });
        }
        assert!(s.arrived(s.b.data + 100, 3000));
    });
}

#[test]
fn writes_and_reads_move_data_without_a_receive() {
    each(&LEVELS, |mut s, level, _| {
        let to = Some((s.b.handle, s.b.data + 8));
        let write = s.rig.post_request(&mut s.a, Control::RDMA_WRITE, to, 7000);
        assert_eq!(s.done(write), DONE | Status::OP_RDMA_WRITE);
        s.rig.run();
        assert!(s.arrived(s.b.data + 8, 7000));
        s.rig.fill(s.b.data, 20_000, 99);
        let read = s.rig.post_request(&mut s.a, Control::RDMA_READ | Control::IMMEDIATE, to, 9000);
        let status = s.done(read);
        if level == Reliability::Unreliable {
            assert_eq!(status, DONE | Status::OP_RDMA_READ | Status::FORMAT_ERROR);
            assert_eq!(s.state(s.a), QpState::Rts as u32);
        } else {
            assert_eq!(status, DONE | Status::OP_RDMA_READ);
            assert_eq!(s.rig.control_segment(read).length, 9000);
            assert!(s.arrived(s.b.data + 8, 9000));
        }
    });
}

#[test]
fn a_descriptor_may_have_252_data_segments_and_no_more() {
    each(&LEVELS, |mut s, level, _| {
        let segments = |vi: &Vi, at: u64, count: u64| -> Vec<DataSegment> {
            (0..count)
                .map(|n| DataSegment { address: at + 40 * n, handle: vi.handle, length: 32 - (n % 3) as u32 })
                .collect()
        };
        let (a, b) = (s.a, s.b);
        let to = s.rig.descriptor(&mut s.b, ControlSegment::default(), None, &segments(&b, b.data, 252));
        s.rig.post_own(&mut s.b, 1, to);
        let from = s.rig.descriptor(&mut s.a, ControlSegment::default(), None, &segments(&a, a.data, 252));
        s.rig.post_own(&mut s.a, 0, from);
        assert_eq!(s.done(from), DONE, "{level:?}");
        assert_eq!(s.done(to), DONE | Status::OP_RECEIVE);
        for n in [0, 100, 251] {
            let length = 32 - n as usize % 3;
            assert_eq!(s.rig.bytes(b.data + 40 * n, length), s.rig.bytes(a.data + 40 * n, length));
        }
        let from = s.rig.descriptor(&mut s.a, ControlSegment::default(), None, &segments(&a, a.data, 253));
        s.rig.post_own(&mut s.a, 0, from);
        assert_eq!(s.done(from), DONE | Status::FORMAT_ERROR);
        let broken = if level.is_reliable() { QpState::Error } else { QpState::Rts };
        assert_eq!(s.state(a), broken as u32);
    });
}

#[test]
fn what_is_wrong_with_a_request_shows_in_its_descriptor() {
    let wrong: &[Wrong] = &[
        ("a reserved field", |c, _, _| c.reserved = 1, Status::FORMAT_ERROR),
        ("reserved control bits", |c, _, _| c.control |= 0x10, Status::FORMAT_ERROR),
        ("the highest control bit", |c, _, _| c.control |= 0x8000, Status::FORMAT_ERROR),
        ("no operation", |c, _, _| c.control |= 3, Status::FORMAT_ERROR),
        ("no address segment", |c, _, _| (c.control, c.segments) = (1, 0), Status::FORMAT_ERROR),
        (
            "a reserved address field",
            |c, a, _| {
                c.control = 1;
                c.segments = 2;
                *a = Some(AddressSegment { reserved: 1, ..AddressSegment::default() });
            },
            Status::FORMAT_ERROR,
        ),
        ("the length", |c, _, _| c.length += 1, Status::LENGTH_ERROR),
        ("no length", |c, _, _| c.length = 0, Status::LENGTH_ERROR),
        ("the handle", |_, _, d| d.handle ^= 1, Status::PROTECTION_ERROR),
        ("the address", |_, _, d| d.address = 0, Status::PROTECTION_ERROR),
        ("an address at the end", |_, _, d| d.address = u64::MAX - 3, Status::PROTECTION_ERROR),
        ("segments beyond the region", |c, _, _| c.segments = 4000, Status::FORMAT_ERROR),
    ];
    for (what, spoil, bits) in wrong {
        each(&LEVELS, |mut s, level, way| {
            let mut data = DataSegment { address: s.a.data, handle: s.a.handle, length: 100 };
            let (mut address, mut control) = (None, ControlSegment::default());
            (control.segments, control.length) = (1, 100);
            spoil(&mut control, &mut address, &mut data);
            let at = s.rig.descriptor(&mut s.a, control, address, &[data]);
            s.rig.memory.write(at, control.as_bytes()).expect("memory");
            s.rig.post_own(&mut s.a, 0, at);
            let status = s.done(at);
            assert_eq!(status & Status::ERROR_MASK, *bits, "{what} {level:?} {way:?}");
            assert_eq!(s.rig.control_segment(at).length, 0);
            if level.is_reliable() {
                assert_eq!(s.state(s.a), QpState::Error as u32, "{what}");
                assert_eq!(s.errors(0), [ViError::ConnectionLost]);
                return;
            }
            assert_eq!(s.state(s.a), QpState::Rts as u32, "{what}");
            assert_eq!(s.errors(0), []);
            let to = s.rig.post_vi_receive(&mut s.b, 100);
            let next = s.rig.post_request(&mut s.a, SEND, None, 100);
            assert_eq!((s.done(next), s.done(to)), (DONE, DONE | Status::OP_RECEIVE), "{what} {way:?}");
        });
    }
}

/// A request of one data segment at the front of the data, spoiled in this way; not posted.
fn spoiled(s: &mut Scene, kind: &str, length: u32) -> (u64, Status) {
    let mut data = DataSegment { address: s.a.data, handle: s.a.handle, length };
    let mut control = ControlSegment::default();
    let mut to = None;
    let bits = match kind {
        "nothing" => Status::empty(),
        "reserved" => {
            control.reserved = 1;
            Status::FORMAT_ERROR
        }
        "length" => Status::LENGTH_ERROR,
        "handle" => {
            data.handle ^= 1;
            Status::PROTECTION_ERROR
        }
        _ => {
            control.control = Control::RDMA_READ.bits();
            to = Some(AddressSegment { address: s.b.data, handle: s.b.handle, reserved: 0 });
            Status::FORMAT_ERROR | Status::OP_RDMA_READ
        }
    };
    let at = s.rig.descriptor(&mut s.a, control, to, &[data]);
    if kind == "length" {
        let wrong = ControlSegment { length: length / 2, ..s.rig.control_segment(at) };
        s.rig.memory.write(at, wrong.as_bytes()).expect("memory");
    }
    (at, DONE | bits)
}

/// Posts requests that are spoiled in these ways behind a long one, and checks that each ends in
/// its own status, and that the good ones arrive and no others.
fn a_row_of(kinds: &[&str]) {
    each(&[Reliability::Unreliable], |mut s, _, way| {
        let long = 30 << 10;
        let mut posts = vec![(spoiled(&mut s, "nothing", long), long)];
        posts.extend(kinds.iter().map(|kind| (spoiled(&mut s, kind, 100), 100)));
        let receives: Vec<u64> = posts.iter().map(|_| s.rig.post_vi_receive(&mut s.b, 32 << 10)).collect();
        for ((at, _), _) in &posts {
            s.rig.post_own(&mut s.a, 0, *at);
        }
        for ((at, status), _) in &posts {
            assert_eq!(s.done(*at), *status, "{kinds:?} {way:?}");
        }
        s.rig.run();
        let good: Vec<u32> = posts.iter().filter(|post| post.0.1 == DONE).map(|post| post.1).collect();
        for (n, at) in receives.into_iter().enumerate() {
            let status = if n < good.len() { DONE | Status::OP_RECEIVE } else { Status::empty() };
            assert_eq!(s.rig.vi_status(at), status, "{kinds:?} {way:?}");
            if let Some(length) = good.get(n) {
                assert_eq!(s.rig.control_segment(at).length, *length);
            }
        }
        assert_eq!((s.state(s.a), s.errors(0), s.errors(1)), (QpState::Rts as u32, vec![], vec![]));
    });
}

#[test]
fn a_wrong_request_behind_a_wrong_one_is_not_sent() {
    for second in ["reserved", "length", "read"] {
        a_row_of(&["reserved", second, "nothing"]);
    }
}

#[test]
fn a_wrong_request_keeps_its_error_if_an_earlier_one_fails_after_it() {
    // The memory of a request is looked up when it is sent, and the rest before that.
    a_row_of(&["handle", "reserved", "nothing"]);
    a_row_of(&["nothing", "handle", "handle", "length", "nothing"]);
    a_row_of(&["handle", "nothing", "handle", "read"]);
}

#[test]
fn a_longer_message_than_the_transfer_size_is_a_length_error() {
    for way in WAYS {
        let spec = ViSpec { max_message: 4096, ..ViSpec::new(Reliability::Unreliable) };
        let mut s = scene(way, spec);
        s.rig.post_vi_receive(&mut s.b, 8192);
        let fits = s.rig.post_request(&mut s.a, SEND, None, 4096);
        assert_eq!(s.done(fits), DONE);
        let longer = s.rig.post_request(&mut s.a, SEND, None, 4097);
        assert_eq!(s.done(longer), DONE | Status::LENGTH_ERROR);
    }
}

#[test]
fn a_post_that_names_no_descriptor_is_an_event_and_the_queue_goes_on() {
    each(&LEVELS, |mut s, level, way| {
        let good = s.rig.descriptor(&mut s.a, ControlSegment::default(), None, &[]);
        let (handle, end) = s.rig.vi_region(0, 1, 4096 - 32, ALL_RIGHTS);
        let (local, read_only) = s.rig.vi_region(0, 1, 4096, LinkFlags::LOCAL_READ);
        let posts = [
            (good, s.a.handle ^ 1),
            (good + 32, s.a.handle),
            (good + 1, s.a.handle),
            (end + 4096, handle),
            (!63, s.a.handle),
            (read_only, local),
            (0, 0),
        ];
        for (n, (address, handle)) in posts.into_iter().enumerate() {
            s.rig.post_descriptor(&mut s.a, 0, address, handle);
            s.rig.run();
            assert_eq!(s.rig.mark(&s.a, 0, n as u32), MARK_LOST, "{n} {level:?} {way:?}");
            let errors = s.rig.vi_errors(0);
            assert_eq!(errors.first(), Some(&(ViError::PostDescriptor, 0, address)), "{n}");
            if level.is_reliable() {
                // The connection is gone. The first descriptor breaks it; the others are flushed.
                assert_eq!(s.state(s.a), QpState::Error as u32);
                assert_eq!(errors.len(), if n == 0 { 2 } else { 1 }, "{errors:?}");
            } else {
                assert_eq!(errors.len(), 1);
            }
        }
        if level == Reliability::Unreliable {
            let to = s.rig.post_vi_receive(&mut s.b, 10);
            s.rig.post_own(&mut s.a, 0, good);
            assert_eq!((s.done(good), s.done(to)), (DONE, DONE | Status::OP_RECEIVE));
        }
    });
}

#[test]
fn a_region_of_another_tag_holds_neither_descriptors_nor_data() {
    each(&[Reliability::Unreliable], |mut s, _, _| {
        s.rig.command(0, Command::CreatePd, 2, &()).expect("a domain");
        let (handle, other) = s.rig.vi_region(0, 2, 8192, ALL_RIGHTS);
        let data = DataSegment { address: other + 4096, handle, length: 8 };
        let at = s.rig.descriptor(&mut s.a, ControlSegment::default(), None, &[data]);
        s.rig.post_own(&mut s.a, 0, at);
        assert_eq!(s.done(at), DONE | Status::PROTECTION_ERROR);
        s.rig.post_descriptor(&mut s.a, 0, other, handle);
        s.rig.run();
        assert_eq!(s.errors(0), [ViError::PostDescriptor]);
        // The virtual interface gets that tag. From then on it may use no other memory.
        let tag = ModifyQp { mask: QpMask::PD.bits(), pd: 2, ..ModifyQp::default() };
        s.rig.end_vi(&s.a, &tag).expect("another tag");
        let (a, b) = (s.a, s.b);
        s.rig.end_vi(&b, &ModifyQp::default()).expect("RESET");
        s.rig.join(&a.qp, &b.qp);
        s.rig.join(&b.qp, &a.qp);
        let control = ControlSegment { segments: 1, length: 8, ..ControlSegment::default() };
        s.rig.memory.write(other, control.as_bytes()).expect("memory");
        s.rig.memory.write(other + 32, data.as_bytes()).expect("memory");
        let to = s.rig.post_vi_receive(&mut s.b, 10);
        s.rig.post_descriptor(&mut s.a, 0, other, handle);
        assert_eq!((s.done(other), s.done(to)), (DONE, DONE | Status::OP_RECEIVE));
    });
}
