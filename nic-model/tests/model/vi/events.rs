//! Completion queues, armed rings, events, and the attributes of virtual interfaces.

use super::*;

#[test]
fn a_descriptor_whose_region_is_gone_cannot_be_completed() {
    each(&LEVELS, |mut s, level, way| {
        let (handle, at) = s.rig.vi_region(1, PD, 4096, ALL_RIGHTS);
        s.rig.post_descriptor(&mut s.b, 1, at, handle);
        s.rig.inject(1, Injection::StallResponder, s.b.qp.qpn, 1, 0);
        s.rig.command(1, Command::DestroyRegion, vi_key(handle), &()).expect("destroyed");
        for _ in 0..2 {
            s.rig.post_request(&mut s.a, SEND, None, 0);
        }
        s.rig.run();
        s.rig.advance(LONG);
        assert_eq!(s.rig.mark(&s.b, 1, 0), MARK_LOST, "{level:?} {way:?}");
        let errors = s.rig.vi_errors(1);
        assert_eq!(errors[0], (ViError::PostDescriptor, 1, at), "{level:?} {way:?}");
        assert!(s.rig.bytes(at, 4096).iter().all(|byte| *byte == 0));
    });
    // The device has read the descriptor, and can no longer write its status.
    each(&RELIABLE, |mut s, level, way| {
        let (handle, at) = s.rig.vi_region(0, PD, 4096, ALL_RIGHTS);
        s.rig.inject(1, Injection::HoldReads, s.b.qp.qpn, u32::MAX, 0);
        let control = ControlSegment {
            segments: 2,
            control: Control::RDMA_READ.bits(),
            length: 64,
            ..ControlSegment::default()
        };
        let address = AddressSegment { address: s.b.data, handle: s.b.handle, reserved: 0 };
        let data = DataSegment { address: s.a.data, handle: s.a.handle, length: 64 };
        s.rig.memory.write(at, control.as_bytes()).expect("memory");
        s.rig.memory.write(at + 32, address.as_bytes()).expect("memory");
        s.rig.memory.write(at + 48, data.as_bytes()).expect("memory");
        s.rig.post_descriptor(&mut s.a, 0, at, handle);
        s.rig.run();
        s.rig.command(0, Command::DestroyRegion, vi_key(handle), &()).expect("destroyed");
        s.rig.inject(1, Injection::HoldReads, s.b.qp.qpn, 0, 0);
        s.rig.advance(LONG);
        assert_eq!(s.rig.mark(&s.a, 0, 0), MARK_LOST, "{level:?} {way:?}");
        let read = Status::OP_RDMA_READ.bits() >> 16;
        let errors = s.rig.vi_errors(0);
        assert_eq!(errors[0], (ViError::CompletionProtection, read, at));
        assert_eq!((errors[1].0, s.state(s.a)), (ViError::ConnectionLost, QpState::Error as u32));
    });
}

#[test]
fn a_completion_queue_names_the_queues_and_loses_what_it_has_no_room_for() {
    for way in WAYS {
        let mut rig = rig(way);
        let (mut of_a, mut of_b) = (rig.create_vi_cq(0, 1), rig.create_vi_cq(1, 1));
        let spec = ViSpec::new(Reliability::Reception);
        let mut a = rig.create_vi(0, ViSpec { cqs: [Some(of_a); 2], ..spec });
        let mut b = rig.create_vi(1, ViSpec { cqs: [None, Some(of_b)], ..spec });
        rig.join(&a.qp, &b.qp);
        rig.join(&b.qp, &a.qp);
        rig.arm_cq(&of_a, ARM_NEXT);
        let receives: Vec<u64> = (0..3).map(|_| rig.post_vi_receive(&mut b, 64)).collect();
        let sends: Vec<u64> = (0..3).map(|_| rig.post_request(&mut a, SEND, None, 64)).collect();
        rig.run();
        for at in sends.into_iter().chain(receives) {
            assert!(rig.vi_status(at).contains(DONE));
        }
        for (cq, flags, qpn) in [(&mut of_a, 0, a.qp.qpn), (&mut of_b, 1, b.qp.qpn)] {
            for index in 0..2 {
                let entry = rig.poll_cq(cq).expect("an entry");
                assert_eq!((entry.qpn, entry.flags, entry.tag), (qpn, flags, index));
            }
            assert!(rig.poll_cq(cq).is_none(), "the third has no room");
        }
        assert_eq!(rig.event_types(0), [(EventType::Completion, of_a.number)]);
        assert_eq!((rig.event_types(1), rig.stats(0).lost_completions), (vec![], 1));
        // The queue and its virtual interfaces still work.
        rig.post_vi_receive(&mut b, 64);
        rig.post_request(&mut a, SEND, None, 64);
        rig.run();
        assert!(rig.poll_cq(&mut of_a).is_some() && rig.poll_cq(&mut of_b).is_some());
    }
}

#[test]
fn an_armed_ring_raises_one_event() {
    let mut s = scene(Way::ShortCut, ViSpec::new(Reliability::Reception));
    let arm = |s: &Scene, ring: u64| s.rig.memory.write(ring, &ARM_NEXT.to_le_bytes()).expect("the ring");
    let (send, receive) = (s.a.qp.send_ring, s.b.qp.receive_ring);
    arm(&s, send);
    arm(&s, receive);
    for _ in 0..3 {
        s.rig.post_vi_receive(&mut s.b, 64);
        s.rig.post_request(&mut s.a, SEND, None, 64);
    }
    s.rig.run();
    assert_eq!(s.rig.bytes(send, 4), [0; 4], "not armed any more");
    let event = |events: Vec<nic_abi::eqe::Eqe>| -> Vec<(u8, u32)> {
        events.iter().map(|event| (event.event, event.detail)).collect()
    };
    let completion = EventType::ViCompletion as u8;
    let events = s.rig.events(0);
    assert_eq!(event(events), [(completion, 0)]);
    let events = s.rig.events(1);
    assert_eq!(event(events), [(completion, 1)]);
    // A consumer that arms several times before it takes the event gets one event.
    for _ in 0..3 {
        arm(&s, send);
        s.rig.post_vi_receive(&mut s.b, 64);
        s.rig.post_request(&mut s.a, SEND, None, 64);
        s.rig.run();
    }
    assert_eq!(s.rig.events(0).len(), 1);
}

#[test]
fn errors_that_nobody_takes_do_not_fill_the_event_queue() {
    let mut s = scene(Way::ShortCut, ViSpec::new(Reliability::Unreliable));
    for _ in 0..200 {
        s.rig.post_descriptor(&mut s.a, 0, 64, 1);
        s.rig.run();
    }
    assert_eq!(s.errors(0), [ViError::PostDescriptor]);
    s.rig.post_descriptor(&mut s.a, 0, 64, 1);
    s.rig.run();
    assert_eq!(s.errors(0), [ViError::PostDescriptor]);
}

#[test]
fn an_error_of_a_former_connection_does_not_stand_for_one_of_this_connection() {
    each(&RELIABLE, |mut s, level, way| {
        let mut numbers = Vec::new();
        for n in 0..3 {
            numbers.push(s.a.qp.qpn);
            for _ in 0..2 {
                s.rig.post_descriptor(&mut s.a, 0, 64, 1);
                s.rig.run();
            }
            let number = nic_abi::ident::qpn(nic_abi::ident::qpn_slot(s.a.qp.qpn), 20 + n);
            let args = ModifyQp { mask: QpMask::QPN.bits(), qpn: number, ..ModifyQp::default() };
            s.rig.end_vi(&s.a, &args).expect("RESET");
            s.a.qp.qpn = number;
            s.rig.end_vi(&s.b, &ModifyQp::default()).expect("RESET");
            let (a, b) = (s.a, s.b);
            s.rig.join(&a.qp, &b.qp);
            s.rig.join(&b.qp, &a.qp);
        }
        let events = s.rig.events(0);
        let of = |error: ViError| -> Vec<u32> {
            events.iter().filter(|event| event.status == error as u8).map(|event| event.number).collect()
        };
        assert_eq!(of(ViError::ConnectionLost), numbers, "{level:?} {way:?}");
        // What was posted belongs to no connection.
        assert_eq!(of(ViError::PostDescriptor), numbers[..1], "{level:?} {way:?}");
    });
}

#[test]
fn an_overrun_is_reported_and_breaks_a_connection() {
    use nic_abi::doorbell::Kind;
    each(&LEVELS, |mut s, level, way| {
        let slot = nic_abi::ident::qpn_slot(s.a.qp.qpn);
        s.rig.ring(0, Kind::Send, slot, 65);
        s.rig.run();
        assert_eq!(s.errors(0), [ViError::Overrun, ViError::ConnectionLost], "{level:?} {way:?}");
        assert_eq!(s.state(s.a), QpState::Error as u32);
        let slot = nic_abi::ident::qpn_slot(s.b.qp.qpn);
        s.rig.ring(1, Kind::Receive, slot, 65);
        // The peer of a broken connection sends nothing, so another pair shows the receive queue.
        let [mut c, d] = s.rig.vi_pair(ViSpec::new(level));
        let slot = nic_abi::ident::qpn_slot(d.qp.qpn);
        s.rig.ring(1, Kind::Receive, slot, 65);
        s.rig.post_request(&mut c, SEND, None, 8);
        s.rig.advance(LONG);
        let errors = s.errors(1);
        assert_eq!(errors.first(), Some(&ViError::Overrun), "{level:?} {way:?}");
    });
    // A virtual interface without a connection: no connection breaks.
    let mut rig = Rig::new(1);
    let mut vi = rig.create_vi(0, ViSpec::new(Reliability::Delivery));
    rig.ring(0, Kind::Send, nic_abi::ident::qpn_slot(vi.qp.qpn), 65);
    rig.run();
    assert_eq!(rig.vi_errors(0).len(), 1);
    vi.posted[0] = 65;
    let at = rig.post_request(&mut vi, SEND, None, 8);
    rig.run();
    assert_eq!(rig.vi_status(at), DONE | Status::DESC_FLUSHED_ERROR);
    assert_eq!(rig.query(&vi.qp).state, QpState::Reset as u32);
}

#[test]
fn attributes_change_without_a_connection_only() {
    let mut rig = Rig::new(1);
    rig.command(0, Command::CreatePd, 2, &()).expect("a domain");
    let [a, b] = rig.vi_pair(ViSpec::new(Reliability::Unreliable));
    let only =
        |mask: QpMask| ModifyQp { mask: mask.bits(), level: 1, pd: 2, qpn: a.qp.qpn, ..ModifyQp::default() };
    for mask in [QpMask::LEVEL, QpMask::PD, QpMask::QPN] {
        assert_eq!(rig.modify(&a.qp, &only(mask)).map_err(|(status, _)| status), Err(Refused::BadField));
    }
    for (args, status) in [
        (ModifyQp { level: 3, ..only(QpMask::LEVEL) }, Refused::BadField),
        (ModifyQp { pd: 7, ..only(QpMask::PD) }, Refused::NoSuchObject),
        (ModifyQp { qpn: a.qp.qpn ^ 1, ..only(QpMask::QPN) }, Refused::BadField),
        (ModifyQp { qpn: a.qp.qpn | 1 << 24, ..only(QpMask::QPN) }, Refused::BadField),
    ] {
        assert_eq!(rig.end_vi(&a, &args).map_err(|(status, _)| status), Err(status));
        assert_eq!(rig.query(&a.qp).state, QpState::Rts as u32, "a refused command changes nothing");
    }
    rig.end_vi(&a, &only(QpMask::LEVEL | QpMask::PD)).expect("all");
    // The domain counts its users.
    assert_eq!(rig.command(0, Command::DestroyPd, 2, &()).map_err(|(s, _)| s), Err(Refused::Busy));
    rig.command(0, Command::DestroyQp, a.qp.qpn, &nic_abi::admin::DestroyQp::default()).expect("destroyed");
    rig.command(0, Command::DestroyPd, 2, &()).expect("no user");
    rig.command(0, Command::DestroyQp, b.qp.qpn, &nic_abi::admin::DestroyQp::default()).expect("destroyed");
}

#[test]
fn what_a_virtual_interface_is_created_with_is_checked() {
    let mut rig = Rig::new(1);
    let (cq, vi_cq) = (rig.create_cq(0, 4), rig.create_vi_cq(0, 4));
    let good = rig.vi_args(ViSpec { cqs: [Some(vi_cq), None], ..ViSpec::new(Reliability::Delivery) });
    let qpn = nic_abi::ident::qpn(40, 1);
    let bad = [
        CreateQp { flags: 1, ..good },
        CreateQp { flags: 2, ..good },
        CreateQp { owner: 1, ..good },
        CreateQp { max_send_segments: 253, ..good },
        CreateQp { max_receive_segments: 253, ..good },
        CreateQp { log_send_blocks: 15, ..good },
        CreateQp { log_receive_entries: 15, ..good },
        CreateQp { send_ring: good.send_ring + 8, ..good },
        CreateQp { receive_ring: !63, ..good },
        CreateQp { send_ring: MEMORY - 128, ..good },
        CreateQp { receive_ring: MEMORY - 128, ..good },
        CreateQp { send_cq: cq.number, ..good },
        CreateQp { receive_cq: cq.number, ..good },
        CreateQp { send_cq: 77, ..good },
        CreateQp { srq: 9, ..good },
        CreateQp { eq: 9, ..good },
        CreateQp { pd: 9, ..good },
        CreateQp { max_message: 1 << 32, ..good },
        CreateQp { qp_type: 5, ..good },
    ];
    for (n, args) in bad.iter().enumerate() {
        assert!(rig.command(0, Command::CreateQp, qpn, args).is_err(), "{n}");
    }
    rig.command(0, Command::CreateQp, qpn, &good).expect("a virtual interface");
    // An ordinary queue pair gets no completion queue that loses entries either.
    let ordinary = rig.qp_args(nic_model::testing::QpSpec::default(), vi_cq, cq);
    assert!(rig.command(0, Command::CreateQp, nic_abi::ident::qpn(41, 1), &ordinary).is_err());
}

#[test]
fn a_status_can_be_lost_by_injection() {
    each(&RELIABLE, |mut s, level, way| {
        let first = s.rig.post_vi_receive(&mut s.b, 64);
        let second = s.rig.post_vi_receive(&mut s.b, 64);
        s.rig.inject(1, Injection::LoseStatus, s.b.qp.qpn, 1, 0);
        s.rig.post_request(&mut s.a, SEND, None, 8);
        s.rig.advance(LONG);
        assert_eq!(s.rig.vi_status(first), Status::empty(), "{level:?} {way:?}");
        assert_eq!(s.rig.mark(&s.b, 1, 0), MARK_LOST);
        assert_eq!(s.rig.vi_status(second), DONE | Status::DESC_FLUSHED_ERROR | Status::OP_RECEIVE);
        assert_eq!(s.errors(1), [ViError::CompletionProtection, ViError::ConnectionLost]);
    });
}

#[test]
fn ordinary_queue_pairs_suffer_no_injections_of_virtual_interfaces() {
    let mut rig = Rig::new(1);
    let (a, _) = rig.pair();
    let args = nic_abi::admin::Inject { what: Injection::Corrupt as u32, count: 1, value: 0 };
    let refused = rig.command(0, Command::Inject, a.qpn, &args).map_err(|(status, _)| status);
    assert_eq!(refused, Err(Refused::BadState));
}
