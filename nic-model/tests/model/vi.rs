//! Virtual interfaces: descriptors in the consumer's memory, on each level, by the short cut and by
//! packets.

use std::cell::Cell;
use std::rc::Rc;

use nic_abi::admin::{CreateQp, Injection, ModifyQp, Opcode as Command, QpMask, QpState, Status as Refused};
use nic_abi::doorbell::ARM_NEXT;
use nic_abi::eqe::{EventType, REFUSED};
use nic_abi::registers::Features;
use nic_abi::vi::{
    AddressSegment, Control, ControlSegment, DataSegment, MARK_COMPLETE, MARK_LOST, Reliability, Status,
    ViError,
};
use nic_abi::wqe::LinkFlags;
use nic_model::testing::{ALL_RIGHTS, PD, Rig, VI_DATA, Vi, ViSpec, cable, vi_key};
use nic_model::{GuestMemory, Wire};
use zerocopy::IntoBytes;

use crate::packets::rig as wired;
use crate::unreliable::{SEND_MIDDLE, losing};

const LEVELS: [Reliability; 3] = [Reliability::Unreliable, Reliability::Delivery, Reliability::Reception];
const RELIABLE: [Reliability; 2] = [Reliability::Delivery, Reliability::Reception];
const SEND: Control = Control::empty();
const DONE: Status = Status::DONE;
/// Enough for a queue pair to give up.
const LONG: u64 = 1_000_000_000;

/// How the two NICs reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    ShortCut,
    Packets,
}

const WAYS: [Way; 2] = [Way::ShortCut, Way::Packets];

struct Scene {
    rig: Rig,
    a: Vi,
    b: Vi,
}

fn rig(way: Way) -> Rig {
    match way {
        Way::ShortCut => Rig::new(2),
        Way::Packets => wired().0,
    }
}

fn scene(way: Way, spec: ViSpec) -> Scene {
    let mut rig = rig(way);
    let [a, b] = rig.vi_pair(spec);
    rig.fill(a.data, VI_DATA as usize, 7);
    Scene { rig, a, b }
}

/// Both ways on each of these levels.
fn each(levels: &[Reliability], mut test: impl FnMut(Scene, Reliability, Way)) {
    for way in WAYS {
        for &level in levels {
            test(scene(way, ViSpec::new(level)), level, way);
        }
    }
}

impl Scene {
    /// Lets time pass until a descriptor is done.
    fn done(&mut self, at: u64) -> Status {
        for _ in 0..2000 {
            self.rig.run();
            let status = self.rig.vi_status(at);
            if status.contains(DONE) {
                return status;
            }
            self.rig.now += LONG / 500;
        }
        panic!("the descriptor is not done");
    }

    /// Whether the bytes at the end of a message are those of `a`'s data.
    fn arrived(&self, at: u64, length: usize) -> bool {
        self.rig.bytes(at, length) == self.rig.bytes(self.a.data, length)
    }

    fn state(&mut self, of: Vi) -> u32 {
        self.rig.query(&of.qp).state
    }

    fn errors(&mut self, n: usize) -> Vec<ViError> {
        self.rig.vi_errors(n).into_iter().map(|(error, ..)| error).collect()
    }
}

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

/// What is wrong with a descriptor of the send queue, and the bits that say so.
type Wrong = (&'static str, fn(&mut ControlSegment, &mut Option<AddressSegment>, &mut DataSegment), Status);

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
                // The connection is gone. The first breaks it; the others are flushed without it.
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
        // The virtual interface gets that tag, and then it may use nothing else.
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
            // Those that had left are complete, but on Reliable Reception.
            let status = s.rig.vi_status(at);
            let left = status == DONE && level != Reliability::Reception;
            assert!(left || status == flushed, "{level:?} {way:?} {status:?}");
        }
        // The old number names nothing any more.
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
        // The responder says that it refused a request; the requester has refused none.
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
        let (handle, at) = s.rig.vi_region(1, 1, 4096, LinkFlags::LOCAL_READ | LinkFlags::LOCAL_WRITE);
        let shown = |status| if level == Reliability::Reception { status } else { Status::empty() };
        let write = s.rig.post_request(&mut s.a, Control::RDMA_WRITE, Some((handle, at)), 64);
        assert_eq!(s.done(write), DONE | Status::OP_RDMA_WRITE | shown(Status::RDMA_PROT_ERROR), "{way:?}");
        s.rig.advance(LONG);
        assert!(s.rig.bytes(at, 64).iter().all(|byte| *byte == 0));
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
    // With immediate data the receive shows it, and no event.
    each(&LEVELS, |mut s, level, way| {
        let (handle, at) = s.rig.vi_region(1, 1, 4096, LinkFlags::LOCAL_READ | LinkFlags::LOCAL_WRITE);
        let to = s.rig.post_vi_receive(&mut s.b, 64);
        s.rig.post_request(&mut s.a, Control::RDMA_WRITE | Control::IMMEDIATE, Some((handle, at)), 64);
        let status = s.done(to);
        assert_eq!(
            status,
            DONE | Status::OP_REMOTE_RDMA_WRITE | Status::PROTECTION_ERROR,
            "{level:?} {way:?}"
        );
        s.rig.advance(LONG);
        let lost = if level.is_reliable() { vec![ViError::ConnectionLost] } else { vec![] };
        assert_eq!(s.errors(1), lost);
    });
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
    let [a, b] = cable();
    let mut rig = Rig::wired([Box::new(losing(a, lose)) as Box<dyn Wire>, Box::new(b)], 1500);
    let [mut a, mut b] = rig.vi_pair(ViSpec::new(Reliability::Unreliable));
    let receives = [4096, 4096].map(|length| rig.post_vi_receive(&mut b, length));
    let sends = [3000, 100].map(|length| rig.post_request(&mut a, SEND, None, length));
    rig.advance(LONG);
    assert_eq!(sends.map(|at| rig.vi_status(at)), [DONE; 2], "both have left");
    let partial = DONE | Status::PARTIAL_ERROR | Status::OP_RECEIVE;
    assert_eq!(receives.map(|at| rig.vi_status(at)), [partial, DONE | Status::OP_RECEIVE]);
    assert_eq!((rig.control_segment(receives[0]).length, rig.control_segment(receives[1]).length), (0, 100));
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
        // What is complete is the consumer's: the retry has the data that was sent.
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
    // The device has read the descriptor, and cannot write its status any more.
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
        // The queue and its virtual interfaces go on.
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
    // A consumer that arms again and again before it takes the event gets no second one.
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
    // Without a connection there is none to break.
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
    // Nor does an ordinary queue pair get a completion queue that loses entries.
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
