//! What connections do on each level, and how they end.

use super::*;

#[test]
fn without_a_connection_sends_end_at_once_and_receives_wait() {
    for way in WAYS {
        let mut s = scene(way, ViSpec::new(Reliability::Reception));
        let mut c = s.rig.create_vi(0, ViSpec::new(Reliability::Reception));
        let receive = s.rig.post_vi_receive(&mut c, 64);
        let flushed = |s: &mut Scene, c: &mut Vi| {
            let to = Some((s.b.handle, s.b.data));
            for (control, to, bits) in [
                (SEND, None, Status::empty()),
                (Control::RDMA_WRITE, to, Status::OP_RDMA_WRITE),
                (Control::RDMA_READ, to, Status::OP_RDMA_READ),
            ] {
                let at = s.rig.post_request(c, control, to, 16);
                assert_eq!(s.done(at), DONE | Status::DESC_FLUSHED_ERROR | bits, "{way:?}");
            }
            assert_eq!(s.rig.vi_status(receive), Status::empty());
        };
        flushed(&mut s, &mut c);
        s.rig.init(&c.qp);
        flushed(&mut s, &mut c);
        let rtr = s.rig.rtr_args(&c.qp, &s.b.qp);
        s.rig.modify(&c.qp, &rtr).expect("RTR");
        flushed(&mut s, &mut c);
        s.rig.end_vi(&c, &ModifyQp::default()).expect("RESET");
        assert_eq!(s.rig.vi_status(receive), DONE | Status::DESC_FLUSHED_ERROR | Status::OP_RECEIVE);
        let at = s.rig.post_request(&mut c, SEND, None, 16);
        assert_eq!(s.done(at), DONE | Status::DESC_FLUSHED_ERROR, "{way:?}");
        assert_eq!(s.errors(0), []);
    }
}

#[test]
fn receives_stay_posted_if_the_reset_keeps_them() {
    let keep = ModifyQp { mask: QpMask::KEEP_RECEIVES.bits(), ..ModifyQp::default() };
    each(&LEVELS, |mut s, level, way| {
        let mut c = s.rig.create_vi(0, ViSpec::new(level));
        let receives = [0; 3].map(|_| s.rig.post_vi_receive(&mut c, 64));
        let waits = |s: &Scene, which: &[u64]| which.iter().all(|&at| s.rig.vi_status(at).is_empty());
        // From RESET, INIT and RTR.
        for state in 0..3 {
            if state > 0 {
                s.rig.init(&c.qp);
            }
            if state > 1 {
                let rtr = s.rig.rtr_args(&c.qp, &s.b.qp);
                s.rig.modify(&c.qp, &rtr).expect("RTR");
            }
            s.rig.end_vi(&c, &keep).expect("RESET");
            assert!(waits(&s, &receives), "{level:?} {way:?} from {state}");
        }
        // From RTS: a message took the first receive, and the second one is next.
        let mut d = s.rig.create_vi(1, ViSpec::new(level));
        for (round, &at) in receives[..2].iter().enumerate() {
            s.rig.join(&c.qp, &d.qp);
            s.rig.join(&d.qp, &c.qp);
            s.rig.post_request(&mut d, SEND, None, 64);
            assert_eq!(s.done(at), DONE | Status::OP_RECEIVE, "{level:?} {way:?} {round}");
            s.rig.end_vi(&c, &keep).expect("RESET");
            s.rig.end_vi(&d, &keep).expect("RESET");
            assert!(waits(&s, &receives[round + 1..]), "{level:?} {way:?} {round}");
        }
        // Not from ERROR, and not without the bit.
        s.rig.init(&c.qp);
        s.rig.set_state(&c.qp, QpState::Error).expect("ERROR");
        s.rig.end_vi(&c, &keep).expect("RESET");
        let flushed = DONE | Status::DESC_FLUSHED_ERROR | Status::OP_RECEIVE;
        assert_eq!(s.rig.vi_status(receives[2]), flushed);
        let last = s.rig.post_vi_receive(&mut c, 64);
        s.rig.end_vi(&c, &ModifyQp::default()).expect("RESET");
        assert_eq!(s.rig.vi_status(last), flushed);
    });
    // Ordinary queue pairs have no such bit, and it needs the transition.
    let mut rig = Rig::new(1);
    let (a, _) = rig.pair();
    let reset = ModifyQp { mask: keep.mask | QpMask::STATE.bits(), ..ModifyQp::default() };
    assert_eq!(rig.modify(&a, &reset).map_err(|(status, _)| status), Err(Refused::BadField));
    let vi = rig.create_vi(0, ViSpec::new(Reliability::Delivery));
    assert_eq!(rig.modify(&vi.qp, &keep).map_err(|(status, _)| status), Err(Refused::BadField));
}

#[test]
fn the_end_of_a_connection_completes_everything_and_nothing_of_it_reaches_the_next() {
    each(&LEVELS, |mut s, level, way| {
        let receives: Vec<u64> = (0..5).map(|_| s.rig.post_vi_receive(&mut s.a, 64)).collect();
        s.rig.inject(1, Injection::StallResponder, s.b.qp.qpn, u32::MAX, 0);
        let sends: Vec<u64> = (0..5).map(|_| s.rig.post_request(&mut s.a, SEND, None, 64)).collect();
        s.rig.run();
        let number = nic_abi::ident::qpn(nic_abi::ident::qpn_slot(s.a.qp.qpn), 9);
        let args = ModifyQp { mask: QpMask::QPN.bits(), qpn: number, ..ModifyQp::default() };
        s.rig.end_vi(&s.a, &args).expect("RESET");
        let flushed = DONE | Status::DESC_FLUSHED_ERROR;
        for at in receives {
            assert_eq!(s.rig.vi_status(at), flushed | Status::OP_RECEIVE);
        }
        for at in sends {
            // Requests that had left are complete, except on Reliable Reception.
            let status = s.rig.vi_status(at);
            let left = status == DONE && level != Reliability::Reception;
            assert!(left || status == flushed, "{level:?} {way:?} {status:?}");
        }
        // The old queue pair number is invalid.
        let old = s.a.qp.qpn;
        assert_eq!(
            s.rig.set_state(&s.a.qp, QpState::Init).map_err(|(status, _)| status),
            Err(Refused::NoSuchObject)
        );
        s.a.qp.qpn = number;
        s.rig.end_vi(&s.b, &ModifyQp::default()).expect("RESET");
        let (a, b) = (s.a, s.b);
        s.rig.join(&a.qp, &b.qp);
        s.rig.join(&b.qp, &a.qp);
        assert_ne!(old, number);
        let to = s.rig.post_vi_receive(&mut s.b, 64);
        let from = s.rig.post_request(&mut s.a, SEND, None, 64);
        assert_eq!((s.done(from), s.done(to)), (DONE, DONE | Status::OP_RECEIVE), "{level:?} {way:?}");
    });
}

#[test]
fn an_empty_receive_queue_is_an_error_and_never_waited_for() {
    each(&LEVELS, |mut s, level, way| {
        let from = s.rig.post_request(&mut s.a, SEND, None, 64);
        let status = s.done(from);
        s.rig.advance(LONG);
        if level == Reliability::Unreliable {
            assert_eq!((status, s.errors(1), s.errors(0)), (DONE, vec![], vec![]));
            assert_eq!((s.state(s.a), s.state(s.b)), (QpState::Rts as u32, QpState::Rts as u32));
            return;
        }
        let shown = if level == Reliability::Reception { Status::REMOTE_DESC_ERROR } else { Status::empty() };
        assert_eq!(status, DONE | shown, "{way:?}");
        // The responder reports that it refused a request; the requester has refused none.
        let receive = Status::OP_RECEIVE.bits() >> 16;
        let errors = s.rig.vi_errors(1);
        let lost = (ViError::ConnectionLost, REFUSED, 0);
        assert_eq!(errors, [(ViError::ReceiveQueueEmpty, receive, 0), lost]);
        assert_eq!(s.rig.vi_errors(0), [(ViError::ConnectionLost, 0, 0)]);
        assert_eq!((s.state(s.a), s.state(s.b)), (QpState::Error as u32, QpState::Error as u32));
    });
}

#[test]
fn a_message_that_does_not_fit_its_receive_is_an_error_of_both() {
    each(&LEVELS, |mut s, level, way| {
        let to = s.rig.post_vi_receive(&mut s.b, 3000);
        let from = s.rig.post_request(&mut s.a, SEND, None, 3001);
        let status = s.done(from);
        assert_eq!(s.done(to), DONE | Status::LENGTH_ERROR | Status::OP_RECEIVE, "{level:?} {way:?}");
        assert_eq!(s.rig.control_segment(to).length, 0);
        s.rig.advance(LONG);
        let shown = if level == Reliability::Reception { Status::REMOTE_DESC_ERROR } else { Status::empty() };
        assert_eq!(status, DONE | shown);
        let lost = if level.is_reliable() { vec![ViError::ConnectionLost] } else { vec![] };
        assert_eq!((s.errors(0), s.errors(1)), (lost.clone(), lost));
        if level == Reliability::Unreliable {
            let to = s.rig.post_vi_receive(&mut s.b, 3000);
            let from = s.rig.post_request(&mut s.a, SEND, None, 3000);
            assert_eq!((s.done(from), s.done(to)), (DONE, DONE | Status::OP_RECEIVE));
        }
    });
}

#[test]
fn a_receive_descriptor_that_is_wrong_ends_in_its_error() {
    let wrong: &[Wrong] = &[
        ("a reserved field", |c, _, _| c.reserved = 1, Status::FORMAT_ERROR),
        ("reserved control bits", |c, _, _| c.control = 0x20, Status::FORMAT_ERROR),
        ("an RDMA Write", |c, _, _| c.control = 1, Status::FORMAT_ERROR),
        ("an RDMA Read", |c, _, _| c.control = 2, Status::FORMAT_ERROR),
        ("too many segments", |c, _, _| c.segments = 253, Status::FORMAT_ERROR),
        ("the handle", |_, _, d| d.handle ^= 1, Status::PROTECTION_ERROR),
    ];
    for (what, spoil, bits) in wrong {
        each(&LEVELS, |mut s, level, way| {
            let mut data = DataSegment { address: s.b.data, handle: s.b.handle, length: 100 };
            let (mut address, mut control) = (None, ControlSegment::default());
            control.segments = 1;
            spoil(&mut control, &mut address, &mut data);
            let to = s.rig.descriptor(&mut s.b, control, address, &[data]);
            s.rig.memory.write(to, control.as_bytes()).expect("memory");
            s.rig.post_own(&mut s.b, 1, to);
            let from = s.rig.post_request(&mut s.a, SEND, None, 50);
            let status = s.done(from);
            assert_eq!(s.done(to), DONE | Status::OP_RECEIVE | *bits, "{what} {level:?} {way:?}");
            let shown =
                if level == Reliability::Reception { Status::REMOTE_DESC_ERROR } else { Status::empty() };
            assert_eq!(status, DONE | shown, "{what}");
            s.rig.advance(LONG);
            let broken = if level.is_reliable() { QpState::Error } else { QpState::Rts };
            assert_eq!((s.state(s.a), s.state(s.b)), (broken as u32, broken as u32), "{what}");
        });
    }
}

#[test]
fn a_peer_that_reaches_for_wrong_memory_is_refused() {
    each(&LEVELS, |mut s, level, way| {
        let (handle, at) = s.rig.vi_region(1, 1, 8192, LinkFlags::LOCAL_READ | LinkFlags::LOCAL_WRITE);
        let shown = |status| if level == Reliability::Reception { status } else { Status::empty() };
        let length = if way == Way::Packets { 5000 } else { 64 };
        let write = s.rig.post_request(&mut s.a, Control::RDMA_WRITE, Some((handle, at)), length);
        assert_eq!(s.done(write), DONE | Status::OP_RDMA_WRITE | shown(Status::RDMA_PROT_ERROR), "{way:?}");
        s.rig.advance(LONG);
        assert!(s.rig.bytes(at, 8192).iter().all(|byte| *byte == 0));
        if level == Reliability::Unreliable {
            assert_eq!((s.errors(0), s.errors(1)), (vec![], vec![]));
            assert_eq!(s.state(s.b), QpState::Rts as u32);
        } else {
            assert_eq!(s.errors(1), [ViError::WriteProtection, ViError::ConnectionLost]);
            assert_eq!(s.errors(0), [ViError::ConnectionLost]);
        }
    });
    each(&RELIABLE, |mut s, _, _| {
        let (handle, at) = s.rig.vi_region(1, 1, 4096, LinkFlags::LOCAL_READ | LinkFlags::LOCAL_WRITE);
        let read = s.rig.post_request(&mut s.a, Control::RDMA_READ, Some((handle, at)), 64);
        assert_eq!(s.done(read), DONE | Status::OP_RDMA_READ | Status::RDMA_PROT_ERROR);
        s.rig.advance(LONG);
        assert_eq!(s.errors(1), [ViError::ReadProtection, ViError::ConnectionLost]);
    });
}

#[test]
fn a_write_with_immediate_data_to_wrong_memory_shows_in_the_receive_only() {
    for length in [64, 5000] {
        each(&LEVELS, |mut s, level, way| {
            let (handle, at) = s.rig.vi_region(1, 1, 8192, LinkFlags::LOCAL_READ | LinkFlags::LOCAL_WRITE);
            let to = s.rig.post_vi_receive(&mut s.b, 64);
            let control = Control::RDMA_WRITE | Control::IMMEDIATE;
            let write = s.rig.post_request(&mut s.a, control, Some((handle, at)), length);
            let refused = DONE | Status::OP_REMOTE_RDMA_WRITE | Status::PROTECTION_ERROR;
            assert_eq!(s.done(to), refused, "{length} {level:?} {way:?}");
            let shown = match level {
                Reliability::Reception => Status::RDMA_PROT_ERROR,
                _ => Status::empty(),
            };
            assert_eq!(s.done(write), DONE | Status::OP_RDMA_WRITE | shown, "{length} {level:?} {way:?}");
            s.rig.advance(LONG);
            let lost = if level.is_reliable() { vec![ViError::ConnectionLost] } else { vec![] };
            assert_eq!((s.errors(0), s.errors(1)), (lost.clone(), lost), "{length} {level:?} {way:?}");
            assert!(s.rig.bytes(at, 8192).iter().all(|byte| *byte == 0));
            if level == Reliability::Unreliable {
                let good = Some((s.b.handle, s.b.data));
                let to = s.rig.post_vi_receive(&mut s.b, 64);
                let write = s.rig.post_request(&mut s.a, control, good, length);
                assert!(!s.done(write).intersects(Status::ERROR_MASK));
                assert_eq!(s.done(to), DONE | Status::OP_REMOTE_RDMA_WRITE | Status::IMMEDIATE);
                assert!(s.arrived(s.b.data, length as usize), "{length} {way:?}");
            }
        });
    }
}

#[test]
fn a_write_that_is_refused_takes_no_receive_if_its_end_is_lost() {
    let lose = Rc::new(Cell::new(Some(WRITE_LAST_IMMEDIATE)));
    let mut rig = losing_rig(&lose);
    let [mut a, mut b] = rig.vi_pair(ViSpec::new(Reliability::Unreliable));
    let receives = [4096, 4096].map(|length| rig.post_vi_receive(&mut b, length));
    let control = Control::RDMA_WRITE | Control::IMMEDIATE;
    // The end of the first is lost; the second one is whole, and may be written.
    let sends = [(1, 0), (b.handle, b.data)].map(|to| rig.post_request(&mut a, control, Some(to), 3000));
    rig.advance(LONG);
    assert_eq!(sends.map(|at| rig.vi_status(at)), [DONE | Status::OP_RDMA_WRITE; 2], "both have left");
    let good = DONE | Status::OP_REMOTE_RDMA_WRITE | Status::IMMEDIATE;
    assert_eq!(receives.map(|at| rig.vi_status(at)), [good, Status::empty()]);
    assert!(rig.bytes(b.data, 3000) == rig.bytes(a.data, 3000));
}

#[test]
fn a_write_that_is_refused_stays_refused_if_the_memory_may_be_written_before_its_end() {
    let lose = Rc::new(Cell::new(Some(RC_WRITE_LAST_IMMEDIATE)));
    let mut rig = losing_rig(&lose);
    let [a, b] = rig.vi_pair(ViSpec::new(Reliability::Reception));
    let mut s = Scene { rig, a, b };
    s.rig.fill(s.a.data, VI_DATA as usize, 7);
    let (handle, at) = s.rig.vi_region(1, 1, 8192, LinkFlags::LOCAL_READ | LinkFlags::LOCAL_WRITE);
    let to = s.rig.post_vi_receive(&mut s.b, 64);
    let control = Control::RDMA_WRITE | Control::IMMEDIATE;
    let write = s.rig.post_request(&mut s.a, control, Some((handle, at)), 3000);
    s.rig.run();
    assert_eq!((lose.get(), s.rig.vi_status(to)), (None, Status::empty()), "the end of the Write is lost");
    // It comes again after this.
    let rights = LinkFlags::LOCAL_READ | LinkFlags::LOCAL_WRITE | LinkFlags::REMOTE_WRITE;
    let open = ModifyRegion { pd: 0, flags: rights.bits(), rights: 1, remote: handle };
    s.rig.command(1, Command::ModifyRegion, vi_key(handle), &open).expect("the rights change");
    assert_eq!(s.done(write), DONE | Status::OP_RDMA_WRITE | Status::RDMA_PROT_ERROR);
    assert_eq!(s.done(to), DONE | Status::OP_REMOTE_RDMA_WRITE | Status::PROTECTION_ERROR);
    assert!(s.rig.bytes(at, 8192).iter().all(|byte| *byte == 0));
}

#[test]
fn a_virtual_interface_that_accepts_no_rdma_accepts_none_of_0_bytes_either() {
    for length in [0, 64] {
        for control in [Control::RDMA_WRITE, Control::RDMA_WRITE | Control::IMMEDIATE, Control::RDMA_READ] {
            each(&LEVELS, |mut s, level, way| {
                if control == Control::RDMA_READ && level == Reliability::Unreliable {
                    return;
                }
                let args = ModifyQp { mask: QpMask::ACCESS.bits(), access: 0, ..ModifyQp::default() };
                s.rig.modify(&s.b.qp, &args).expect("no right");
                let receive = s.rig.post_vi_receive(&mut s.b, 64);
                let to = Some((s.b.handle, s.b.data));
                let from = s.rig.post_request(&mut s.a, control, to, length);
                let status = s.done(from) & Status::ERROR_MASK;
                s.rig.advance(LONG);
                let what = format!("{length} {control:?} {level:?} {way:?}");
                let shown = level == Reliability::Reception || control == Control::RDMA_READ;
                assert_eq!(status, if shown { Status::RDMA_PROT_ERROR } else { Status::empty() }, "{what}");
                if control.contains(Control::IMMEDIATE) {
                    let refused = DONE | Status::OP_REMOTE_RDMA_WRITE | Status::PROTECTION_ERROR;
                    assert_eq!(s.rig.vi_status(receive), refused, "{what}");
                } else if level.is_reliable() {
                    let error = match control {
                        Control::RDMA_READ => ViError::ReadProtection,
                        _ => ViError::WriteProtection,
                    };
                    assert_eq!(s.errors(1), [error, ViError::ConnectionLost], "{what}");
                }
            });
        }
    }
}

#[test]
fn corrupt_and_incomplete_messages_show_at_the_receiver() {
    for (what, bits, error) in [
        (Injection::Corrupt, Status::TRANSPORT_ERROR, ViError::WriteData),
        (Injection::Truncate, Status::PARTIAL_ERROR, ViError::WriteAbort),
    ] {
        each(&LEVELS, |mut s, level, way| {
            let to = s.rig.post_vi_receive(&mut s.b, 4096);
            s.rig.inject(1, what, s.b.qp.qpn, 1, 0);
            let from = s.rig.post_request(&mut s.a, SEND, None, 2000);
            let status = s.done(from);
            assert_eq!(s.done(to), DONE | bits | Status::OP_RECEIVE, "{what:?} {level:?} {way:?}");
            let shown =
                if level == Reliability::Reception { Status::TRANSPORT_ERROR } else { Status::empty() };
            assert_eq!(status, DONE | shown, "{what:?} {level:?} {way:?}");
        });
        each(&RELIABLE, |mut s, _, _| {
            s.rig.inject(1, what, s.b.qp.qpn, 1, 0);
            let to = Some((s.b.handle, s.b.data));
            let write = s.rig.post_request(&mut s.a, Control::RDMA_WRITE, to, 64);
            s.done(write);
            s.rig.advance(LONG);
            assert_eq!(s.errors(1), [error, ViError::ConnectionLost]);
            assert!(!s.arrived(s.b.data, 64));
        });
    }
}

#[test]
fn a_message_of_which_a_packet_is_lost_ends_in_a_partial_error() {
    let lose = Rc::new(Cell::new(Some(SEND_MIDDLE)));
    let mut rig = losing_rig(&lose);
    let [mut a, mut b] = rig.vi_pair(ViSpec::new(Reliability::Unreliable));
    let receives = [4096, 4096].map(|length| rig.post_vi_receive(&mut b, length));
    let sends = [3000, 100].map(|length| rig.post_request(&mut a, SEND, None, length));
    rig.advance(LONG);
    assert_eq!(sends.map(|at| rig.vi_status(at)), [DONE; 2], "both have left");
    let partial = DONE | Status::PARTIAL_ERROR | Status::OP_RECEIVE;
    assert_eq!(receives.map(|at| rig.vi_status(at)), [partial, DONE | Status::OP_RECEIVE]);
    assert_eq!((rig.control_segment(receives[0]).length, rig.control_segment(receives[1]).length), (0, 100));
}

/// A wire on which each frame comes again: at once, and once more after the next frame.
fn repeating(end: CableEnd) -> impl Wire {
    let mut before: Option<Vec<u8>> = None;
    Through::new(end, move |end, frame| {
        end.put(frame);
        end.put(frame);
        if let Some(before) = before.replace(frame.to_vec()) {
            end.put(&before);
        }
    })
}

#[test]
fn packets_that_come_again_deliver_nothing_twice() {
    for level in LEVELS {
        let mut rig = Rig::wired(cable().map(repeating), 1500);
        let [mut a, mut b] = rig.vi_pair(ViSpec::new(level));
        rig.fill(a.data, VI_DATA as usize, 7);
        let lengths = [0, 1, 1024, 100, 1025, 5000, 100, 0];
        let receives: Vec<u64> = (0..20).map(|_| rig.post_vi_receive(&mut b, 8192)).collect();
        let write = Control::RDMA_WRITE | Control::IMMEDIATE;
        let to = Some((b.handle, b.data));
        let mut sends = Vec::new();
        for length in lengths {
            sends.push(rig.post_request(&mut a, SEND, None, length));
            sends.push(rig.post_request(&mut a, write, to, length));
        }
        rig.advance(LONG);
        for at in sends {
            assert_eq!(rig.vi_status(at) & (DONE | Status::ERROR_MASK), DONE, "{level:?}");
        }
        // As many receives as messages, each with its own length, and the rest is still posted.
        let mut left = receives.into_iter();
        for length in lengths {
            let (send, write) = (left.next().expect("a receive"), left.next().expect("a receive"));
            assert_eq!(rig.vi_status(send), DONE | Status::OP_RECEIVE, "{level:?} {length}");
            assert_eq!(rig.control_segment(send).length, length, "{level:?}");
            let taken = DONE | Status::OP_REMOTE_RDMA_WRITE | Status::IMMEDIATE;
            assert_eq!(rig.vi_status(write), taken, "{level:?} {length}");
        }
        assert!(left.all(|at| rig.vi_status(at).is_empty()), "{level:?}");
        let again = reason(&rig, 1, Reason::DuplicateRequest);
        assert!(again > 2 * lengths.len() as u64, "{level:?}: {again} packets came again");
        assert_eq!((rig.vi_errors(0), rig.vi_errors(1)), (vec![], vec![]), "{level:?}");
    }
}

#[test]
fn delivery_is_complete_when_it_has_left_and_reception_when_it_has_arrived() {
    each(&RELIABLE, |mut s, level, way| {
        let to = s.rig.post_vi_receive(&mut s.b, 8192);
        s.rig.inject(1, Injection::StallResponder, s.b.qp.qpn, u32::MAX, 0);
        let from = s.rig.post_request(&mut s.a, SEND, None, 5000);
        let sent = s.rig.bytes(s.a.data, 5000);
        s.rig.run();
        let left = level == Reliability::Delivery;
        assert_eq!(s.rig.vi_status(from).contains(DONE), left, "{level:?} {way:?}");
        assert_eq!(s.rig.vi_status(to), Status::empty());
        // The consumer owns the memory of a completed request: the retry sends the data that it had
        // before.
        if left {
            s.rig.fill(s.a.data, 5000, 200);
        }
        s.rig.inject(1, Injection::StallResponder, s.b.qp.qpn, 0, 0);
        assert_eq!((s.done(to), s.done(from)), (DONE | Status::OP_RECEIVE, DONE), "{level:?} {way:?}");
        assert!(s.rig.bytes(s.b.data + VI_DATA / 2, 5000) == sent, "{level:?} {way:?}");
        let next = s.rig.post_vi_receive(&mut s.b, 64);
        s.rig.post_request(&mut s.a, SEND, None, 64);
        assert_eq!(s.done(next), DONE | Status::OP_RECEIVE);
    });
}

#[test]
fn a_peer_that_never_answers_breaks_the_connection_of_both_levels() {
    each(&RELIABLE, |mut s, level, way| {
        s.rig.post_vi_receive(&mut s.b, 64);
        s.rig.inject(1, Injection::StallResponder, s.b.qp.qpn, u32::MAX, 0);
        let from = s.rig.post_request(&mut s.a, SEND, None, 64);
        let status = s.done(from);
        let shown = if level == Reliability::Reception { Status::TRANSPORT_ERROR } else { Status::empty() };
        assert_eq!(status, DONE | shown, "{way:?}");
        for _ in 0..100 {
            s.rig.advance(LONG / 10);
        }
        assert_eq!((s.errors(0), s.state(s.a)), (vec![ViError::ConnectionLost], QpState::Error as u32));
    });
}

/// Posts a Send of so many segments of this length.
fn send_segments(s: &mut Scene, segments: usize, length: u32) -> u64 {
    let data = vec![DataSegment { address: s.a.data, handle: s.a.handle, length }; segments];
    let at = s.rig.descriptor(&mut s.a, ControlSegment::default(), None, &data);
    s.rig.post_own(&mut s.a, 0, at);
    at
}

#[test]
fn a_message_that_ends_before_it_has_left_is_no_success() {
    let (left, part) = (Status::empty(), Status::PARTIAL_ERROR);
    // More than the window of unacknowledged packets and than a part of the short cut; then also
    // more than the longest copy; and a packet.
    for (segments, each_has, bits) in [(40, 64 << 10, part), (100, 64 << 10, part), (2, 100, left)] {
        for (silent, error) in [(true, Status::TRANSPORT_ERROR), (false, Status::REMOTE_DESC_ERROR)] {
            each(&RELIABLE, |mut s, level, way| {
                if silent {
                    s.rig.inject(1, Injection::StallResponder, s.b.qp.qpn, u32::MAX, 0);
                }
                s.rig.post_vi_receive(&mut s.b, 100);
                let at = send_segments(&mut s, segments, each_has);
                let status = s.done(at);
                let error = match level {
                    Reliability::Reception => error | bits,
                    // On Reliable Delivery these errors are not valid.
                    _ if bits == part => Status::DESC_FLUSHED_ERROR | bits,
                    _ => Status::empty(),
                };
                assert_eq!(status, DONE | error, "{segments} silent: {silent} {level:?} {way:?}");
                let length = if error.is_empty() { 200 } else { 0 };
                assert_eq!(s.rig.control_segment(at).length, length);
                for _ in 0..100 {
                    s.rig.advance(LONG / 10);
                }
                assert_eq!(s.errors(0), [ViError::ConnectionLost], "{segments} {level:?} {way:?}");
            });
        }
    }
}

#[test]
fn a_flushed_message_of_which_a_part_has_left_says_so() {
    each(&RELIABLE, |mut s, level, way| {
        s.rig.inject(1, Injection::StallResponder, s.b.qp.qpn, u32::MAX, 0);
        let [first, second] = [40, 40].map(|segments| send_segments(&mut s, segments, 64 << 10));
        s.rig.run();
        s.rig.end_vi(&s.a, &ModifyQp::default()).expect("RESET");
        let flushed = DONE | Status::DESC_FLUSHED_ERROR;
        // By the short cut the device does not know of the request that was lost.
        let part = if way == Way::Packets { Status::PARTIAL_ERROR } else { Status::empty() };
        assert_eq!(s.rig.vi_status(first), flushed | part, "{level:?} {way:?}");
        assert_eq!(s.rig.vi_status(second), flushed, "{level:?} {way:?}");
    });
}

#[test]
fn on_reception_what_follows_a_read_waits_for_its_answer() {
    each(&RELIABLE, |mut s, level, way| {
        let to = s.rig.post_vi_receive(&mut s.b, 64);
        s.rig.inject(1, Injection::HoldReads, s.b.qp.qpn, u32::MAX, 0);
        let target = Some((s.b.handle, s.b.data));
        let read = s.rig.post_request(&mut s.a, Control::RDMA_READ, target, 64);
        let send = s.rig.post_request(&mut s.a, SEND, None, 64);
        s.rig.run();
        assert_eq!(s.rig.vi_status(read), Status::empty());
        if level == Reliability::Reception {
            assert_eq!((s.rig.vi_status(send), s.rig.vi_status(to)), (Status::empty(), Status::empty()));
        }
        s.rig.inject(1, Injection::HoldReads, s.b.qp.qpn, 0, 0);
        assert_eq!((s.done(read), s.done(send)), (DONE | Status::OP_RDMA_READ, DONE), "{level:?} {way:?}");
        assert_eq!(s.done(to), DONE | Status::OP_RECEIVE);
    });
    // The Read fails, so the Send behind it has no effect.
    each(&[Reliability::Reception], |mut s, _, way| {
        let to = s.rig.post_vi_receive(&mut s.b, 64);
        let read = s.rig.post_request(&mut s.a, Control::RDMA_READ, Some((1, 0)), 64);
        let send = s.rig.post_request(&mut s.a, SEND, None, 64);
        assert_eq!(s.done(read), DONE | Status::OP_RDMA_READ | Status::RDMA_PROT_ERROR, "{way:?}");
        assert_eq!(s.done(send), DONE | Status::DESC_FLUSHED_ERROR);
        assert_eq!(s.done(to), DONE | Status::OP_RECEIVE | Status::DESC_FLUSHED_ERROR);
    });
}

#[test]
fn on_reception_nothing_is_delivered_behind_the_message_that_fails() {
    // The first message arrives, but no answer to it does: its fate is unknown (table 1 of 2.5).
    each(&[Reliability::Reception], |mut s, _, way| {
        s.rig.inject(0, Injection::DropResponses, s.a.qp.qpn, u32::MAX, 0);
        let receives: Vec<u64> = (0..3).map(|_| s.rig.post_vi_receive(&mut s.b, 5000)).collect();
        let sends = [5000, 64, 0].map(|length| s.rig.post_request(&mut s.a, SEND, None, length));
        let write = s.rig.post_request(&mut s.a, Control::RDMA_WRITE, Some((s.b.handle, s.b.data)), 64);
        assert_eq!(s.done(sends[0]), DONE | Status::TRANSPORT_ERROR, "{way:?}");
        for at in &sends[1..] {
            assert_eq!(s.done(*at), DONE | Status::DESC_FLUSHED_ERROR, "{way:?}");
        }
        assert_eq!(s.done(write), DONE | Status::DESC_FLUSHED_ERROR | Status::OP_RDMA_WRITE);
        s.rig.advance(LONG);
        let got = receives.iter().map(|at| s.rig.vi_status(*at));
        let first = DONE | Status::OP_RECEIVE;
        assert!(got.eq([first, Status::empty(), Status::empty()]), "{way:?}");
        assert!(s.rig.bytes(s.b.data, 64).iter().all(|byte| *byte == 0), "{way:?}");
    });
    // Without an error all of many arrive, each as soon as the one before is answered.
    each(&[Reliability::Reception], |mut s, _, way| {
        let receives: Vec<u64> = (0..40).map(|_| s.rig.post_vi_receive(&mut s.b, 5000)).collect();
        let sends: Vec<u64> = (0..40).map(|n| s.rig.post_request(&mut s.a, SEND, None, n * 120)).collect();
        s.rig.run();
        assert!(sends.iter().all(|at| s.rig.vi_status(*at) == DONE), "{way:?}");
        assert!(receives.iter().all(|at| s.rig.vi_status(*at) == DONE | Status::OP_RECEIVE), "{way:?}");
    });
}

#[test]
fn in_error_everything_is_flushed() {
    each(&RELIABLE, |mut s, level, way| {
        let receives: Vec<u64> = (0..3).map(|_| s.rig.post_vi_receive(&mut s.a, 64)).collect();
        let bad = s.rig.post_request(&mut s.a, Control::RDMA_READ | Control::RDMA_WRITE, Some((0, 0)), 8);
        let later: Vec<u64> = (0..3).map(|_| s.rig.post_request(&mut s.a, SEND, None, 64)).collect();
        assert!(s.done(bad).contains(Status::FORMAT_ERROR));
        let flushed = DONE | Status::DESC_FLUSHED_ERROR;
        for at in receives {
            assert_eq!(s.done(at), flushed | Status::OP_RECEIVE, "{level:?} {way:?}");
        }
        for at in later {
            assert_eq!(s.done(at), flushed);
        }
        let (late, receive) =
            (s.rig.post_request(&mut s.a, SEND, None, 64), s.rig.post_vi_receive(&mut s.a, 64));
        assert_eq!((s.done(late), s.done(receive)), (flushed, flushed | Status::OP_RECEIVE));
        assert_eq!(s.errors(0), [ViError::ConnectionLost]);
    });
}
