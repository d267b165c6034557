//! How descriptors end that no message takes any more, or that are unreadable, and what injections
//! do to those that come.

use nic_abi::vi::MARK_POSTED;

use super::*;
use crate::unreliable::WRITE_MIDDLE;

/// Marks of the first `count` entries of a queue.
fn marks(s: &Scene, vi: &Vi, queue: usize, count: u32) -> Vec<u32> {
    (0..count).map(|n| s.rig.mark(vi, queue, n)).collect()
}

/// Rings that are full, and as many requests under way as there may be.
#[test]
#[cfg_attr(miri, ignore = "hundreds of descriptors")]
fn the_end_of_a_connection_completes_all_that_two_full_rings_and_the_wire_can_hold() {
    const UNDER_WAY: u32 = 64;
    for (way, log) in WAYS.into_iter().flat_map(|way| [0, 7].map(|log| (way, log))) {
        let mut s = scene(way, ViSpec { log, ..ViSpec::new(Reliability::Delivery) });
        s.rig.inject(1, Injection::HoldReads, s.b.qp.qpn, u32::MAX, 0);
        let data = DataSegment { address: s.a.data, handle: s.a.handle, length: 8 };
        let control = ControlSegment { control: Control::RDMA_READ.bits(), ..ControlSegment::default() };
        let from = AddressSegment { address: s.b.data, handle: s.b.handle, reserved: 0 };
        let (mut vi, entries) = (s.a, 1 << log);
        let read = s.rig.descriptor(&mut vi, control, Some(from), &[data]);
        let receive = s.rig.descriptor(&mut vi, ControlSegment::default(), None, &[]);
        // The requests that the wire holds have left the ring, so that there is room for others.
        let early = if way == Way::Packets { UNDER_WAY } else { 0 };
        for _ in 0..early {
            s.rig.post_own(&mut vi, 0, read);
            s.rig.run();
        }
        for _ in 0..entries {
            s.rig.post_own(&mut vi, 0, read);
            s.rig.post_own(&mut vi, 1, receive);
        }
        s.rig.run();
        for queue in [0, 1] {
            assert!(marks(&s, &vi, queue, entries).iter().all(|mark| *mark == MARK_POSTED), "{way:?} {log}");
        }
        let flushed = s.rig.stats(0).flushed;
        s.rig.end_vi(&vi, &ModifyQp::default()).expect("RESET");
        for queue in [0, 1] {
            assert!(
                marks(&s, &vi, queue, entries).iter().all(|mark| *mark == MARK_COMPLETE),
                "{way:?} {log}"
            );
        }
        assert_eq!(s.rig.stats(0).flushed - flushed, u64::from(early + entries), "{way:?} {log}");
    }
}

#[test]
fn an_unreadable_receive_is_passed_over_or_breaks_the_connection() {
    each(&LEVELS, |mut s, level, way| {
        let handle = s.b.handle ^ 1;
        let bad = s.b.data;
        s.rig.post_descriptor(&mut s.b, 1, bad, handle);
        let good = s.rig.post_vi_receive(&mut s.b, 64);
        let from = s.rig.post_request(&mut s.a, SEND, None, 64);
        let status = s.done(from);
        s.rig.run();
        let receive = Status::OP_RECEIVE.bits() >> nic_abi::vi::OP_SHIFT;
        let errors = s.rig.vi_errors(1);
        assert_eq!(errors.first(), Some(&(ViError::PostDescriptor, receive, bad)), "{level:?} {way:?}");
        assert_eq!(s.rig.mark(&s.b, 1, 0), MARK_LOST);
        if level.is_reliable() {
            assert_eq!(s.rig.vi_status(good), DONE | Status::OP_RECEIVE | Status::DESC_FLUSHED_ERROR);
            assert_eq!((errors.len(), s.state(s.b)), (2, QpState::Error as u32));
        } else {
            assert_eq!((status, s.rig.vi_status(good)), (DONE, DONE | Status::OP_RECEIVE));
            assert_eq!((errors.len(), s.state(s.b)), (1, QpState::Rts as u32));
            assert!(s.arrived(s.b.data + VI_DATA / 2, 64), "{way:?}");
        }
    });
}

/// A message that takes no receive leaves the one alone that the message before it took.
#[test]
fn a_write_of_which_a_packet_is_lost_touches_no_descriptor() {
    let lose = Rc::new(Cell::new(Some(WRITE_MIDDLE)));
    let mut rig = losing_rig(&lose);
    let [mut a, mut b] = rig.vi_pair(ViSpec::new(Reliability::Unreliable));
    let receive = rig.post_vi_receive(&mut b, 64);
    rig.post_request(&mut a, SEND, None, 64);
    rig.advance(LONG);
    assert_eq!(rig.vi_status(receive), DONE | Status::OP_RECEIVE);
    // The consumer uses the descriptor's memory again.
    rig.memory.write(receive, &[0x5a; 64]).expect("memory");
    let write = rig.post_request(&mut a, Control::RDMA_WRITE, Some((b.handle, b.data)), 4000);
    rig.advance(LONG);
    assert_eq!((rig.vi_status(write), lose.get()), (DONE | Status::OP_RDMA_WRITE, None));
    assert_eq!(reason(&rig, 1, Reason::IncompleteMessage), 1);
    assert_eq!(rig.bytes(receive, 64), [0x5a; 64]);
}

#[test]
fn reads_are_held_alone_and_the_sends_before_them_arrive() {
    each(&RELIABLE, |mut s, level, way| {
        s.rig.inject(1, Injection::HoldReads, s.b.qp.qpn, u32::MAX, 0);
        let to = s.rig.post_vi_receive(&mut s.b, 64);
        let send = s.rig.post_request(&mut s.a, SEND, None, 64);
        let read = s.rig.post_request(&mut s.a, Control::RDMA_READ, Some((s.b.handle, s.b.data)), 64);
        s.rig.run();
        assert_eq!((s.rig.vi_status(send), s.rig.vi_status(to)), (DONE, DONE | Status::OP_RECEIVE));
        assert_eq!(s.rig.vi_status(read), Status::empty(), "{level:?} {way:?}");
        // On Reliable Delivery a Send is complete when it has left, though an earlier Read is not.
        let next = s.rig.post_request(&mut s.a, SEND, None, 64);
        s.rig.run();
        let left = level == Reliability::Delivery && way == Way::Packets;
        assert_eq!(s.rig.vi_status(next).contains(DONE), left, "{level:?} {way:?}");
    });
}

/// On Unreliable Delivery the connection survives a fault, so the next one shows.
#[test]
fn as_many_requests_fail_as_injected() {
    each(&[Reliability::Unreliable], |mut s, _, way| {
        s.rig.inject(0, Injection::Failure, s.a.qp.qpn, 2, nic_abi::cqe::Status::LocalLength as u64);
        let receives = [(); 2].map(|()| s.rig.post_vi_receive(&mut s.b, 64));
        let sends = [(); 4].map(|()| s.rig.post_request(&mut s.a, SEND, None, 64));
        let wrong = DONE | Status::LENGTH_ERROR;
        assert_eq!(sends.map(|at| s.done(at)), [wrong, wrong, DONE, DONE], "{way:?}");
        assert_eq!(receives.map(|at| s.done(at)), [DONE | Status::OP_RECEIVE; 2]);
    });
}

#[test]
fn a_message_that_waits_for_the_peers_mac_has_not_left_in_part() {
    for level in RELIABLE {
        // Nothing arrives, so the port never learns the MAC.
        let wires = cable().map(|end| Through::new(end, |_: &CableEnd, _: &[u8]| {}));
        let mut rig = Rig::wired(wires, 1500);
        let [mut a, _] = rig.vi_pair(ViSpec::new(level));
        let at = rig.post_request(&mut a, SEND, None, 3000);
        rig.run();
        assert_eq!(rig.vi_status(at), Status::empty());
        rig.end_vi(&a, &ModifyQp::default()).expect("RESET");
        assert_eq!(rig.vi_status(at), DONE | Status::DESC_FLUSHED_ERROR, "{level:?}");
    }
}

/// The control field of a receive says afterwards whether immediate data came, and is otherwise the
/// consumer's.
#[test]
fn of_a_receives_control_field_only_the_immediate_bit_changes() {
    each(&LEVELS, |mut s, level, way| {
        for control in [Control::empty(), Control::QUEUE_FENCE, Control::IMMEDIATE] {
            for sent in [Control::empty(), Control::IMMEDIATE] {
                let own = ControlSegment { control: control.bits(), ..ControlSegment::default() };
                let to = s.rig.descriptor(&mut s.b, own, None, &[]);
                s.rig.post_own(&mut s.b, 1, to);
                s.rig.post_request(&mut s.a, sent, None, 0);
                assert!(s.done(to).contains(DONE | Status::OP_RECEIVE), "{level:?} {way:?}");
                let expected = control.difference(Control::IMMEDIATE) | sent;
                assert_eq!(s.rig.control_segment(to).control, expected.bits(), "{control:?} {sent:?}");
                assert_eq!(s.rig.control_segment(to).segments, 0);
            }
        }
    });
}
