//! Unreliable connections: what arrives, and what is dropped. The requester notices neither. By the
//! short cut and by packets.

use std::cell::Cell;
use std::mem::offset_of;
use std::rc::Rc;

use nic_abi::admin::{
    self, CreateQp, Injection, ModifyQp, Opcode as Command, QpFlags, QpMask, QpState, QpType,
};
use nic_abi::cqe::{CqeFlags, Status};
use nic_abi::eqe::EventType;
use nic_abi::wqe::{AtomicArgs, Header, LinkFlags, Opcode};
use nic_model::testing::{
    ALL_RIGHTS, CableEnd, MAX_MESSAGE, Qp, QpSpec, Rig, Through, cable, header, rdma, segment, status,
};
use nic_model::{PacketDropped, Wire};
use roce::transport::Reason;

use crate::keys::{bind, bind_args, remote, window};
use crate::packets::{completions, dropped, forge, reason, rig as wired};

const UC: QpSpec = QpSpec { kind: QpType::Uc, flags: QpFlags::empty(), srq: 0, slot: None, log: 6, owner: 0 };
/// Operation codes of the unreliable connection's packets.
pub(crate) const SEND_MIDDLE: u8 = 0x21;
const WRITE_FIRST: u8 = 0x26;
pub(crate) const WRITE_MIDDLE: u8 = 0x27;
const WRITE_LAST: u8 = 0x28;
pub(crate) const WRITE_LAST_IMMEDIATE: u8 = 0x29;
/// An operation code of the reliable connection's packets.
pub(crate) const RC_WRITE_LAST_IMMEDIATE: u8 = 0x09;
/// Where the operation code is in a frame over IPv4.
const OPCODE: usize = 14 + 20 + 8;

/// How the two NICs reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    ShortCut,
    Packets,
}

const BOTH: [Way; 2] = [Way::ShortCut, Way::Packets];

/// Queue pairs with an unreliable connection, and memory of 8 KiB on both sides.
struct Scene {
    rig: Rig,
    a: Qp,
    b: Qp,
    from: u32,
    source: u64,
    to: u32,
    target: u64,
}

fn over(mut rig: Rig) -> Scene {
    let (a, b) = rig.pair_of(0, 1, UC);
    let (from, source) = rig.region(0, 8192);
    let (to, target) = rig.region(1, 8192);
    rig.fill(source, 8192, 3);
    Scene { rig, a, b, from, source, to, target }
}

fn scene(way: Way) -> Scene {
    over(match way {
        Way::ShortCut => Rig::new(2),
        Way::Packets => wired().0,
    })
}

impl Scene {
    /// Posts a request of this length, which has to complete with success.
    fn sends(&mut self, head: Header, length: u32) {
        self.rig.post(&mut self.a, head, &[segment(self.from, 0, length)]);
        assert_eq!(status(&self.rig.sent(&mut self.a)), Status::Success);
    }

    fn receive(&mut self, tag: u32, length: u32) {
        self.rig.post_receive(&mut self.b, tag, &[segment(self.to, 0, length)]);
    }

    /// Checks that a Send has arrived in the receive with this tag.
    fn arrives(&mut self, tag: u32, length: u32) {
        let bytes = self.rig.bytes(self.source, length as usize);
        let entry = self.rig.received(&mut self.b);
        assert_eq!((status(&entry), entry.tag, entry.length), (Status::Success, tag, length));
        assert!(self.rig.bytes(self.target, length as usize) == bytes);
    }

    /// Checks that nothing has arrived, and that the responder still works: no event, no
    /// completion.
    fn nothing_arrives(&mut self) {
        self.rig.run();
        assert!(self.rig.poll_cq(&mut self.b.receive_cq).is_none());
        assert_eq!(self.rig.event_types(1), []);
        assert_eq!(self.rig.query(&self.b).state, QpState::Rts as u32);
    }

    /// How many frames the responder's NIC dropped for this reason.
    fn counted(&self, why: Reason) -> u64 {
        reason(&self.rig, 1, why)
    }
}

#[test]
fn sends_and_writes_arrive() {
    for way in BOTH {
        let mut s = scene(way);
        for (tag, length) in [(1, 0), (2, 1), (3, 1024), (4, 6000)] {
            s.receive(tag, 8192);
            s.sends(header(Opcode::Send, tag), length);
            s.arrives(tag, length);
        }
        s.rig.fill(s.target, 8192, 9);
        s.sends(rdma(Opcode::Write, 5, s.to, 100), 5000);
        s.rig.run();
        assert!(s.rig.bytes(s.target + 100, 5000) == s.rig.bytes(s.source, 5000));
        for (tag, head, kind, lengths) in [
            (6, header(Opcode::SendImmediate, 6), CqeFlags::empty(), (3000, 0)),
            (7, rdma(Opcode::WriteImmediate, 7, s.to, 0), CqeFlags::WRITE, (0, 3000)),
        ] {
            s.receive(tag, 8192);
            s.sends(Header { immediate: 0x1234, ..head }, 3000);
            let entry = s.rig.received(&mut s.b);
            assert_eq!((entry.tag, entry.immediate), (tag, 0x1234), "{way:?}");
            assert_eq!((entry.length, entry.detail), lengths, "{way:?}");
            assert_eq!(entry.flags, (CqeFlags::RECEIVE | CqeFlags::IMMEDIATE | kind).bits());
        }
        let (a, b) = (s.rig.query(&s.a), s.rig.query(&s.b));
        assert_eq!((a.state, a.send_psn), (QpState::Rts as u32, b.receive_psn), "{way:?}");
        assert_eq!(s.rig.stats(0).lost_requests, 0);
        assert_eq!(s.rig.stats(1).completed, 6);
    }
}

#[test]
fn requests_that_need_no_peer_are_carried_out_in_their_places() {
    for way in BOTH {
        let mut s = scene(way);
        let (key, _) = s.rig.region_with(0, 4096, ALL_RIGHTS, 0x7000_0000);
        let window = window(&mut s.rig, 0, 1);
        s.sends(header(Opcode::Send, 1), 2000);
        let bound = remote(window, 6);
        s.rig.post_args(
            &mut s.a,
            bind(window, key, 0x7000_0000, 64),
            bind_args(bound, LinkFlags::REMOTE_WRITE),
        );
        assert_eq!(status(&s.rig.sent(&mut s.a)), Status::Success);
        // The peer writes through the window.
        s.rig.post(&mut s.b, rdma(Opcode::Write, 2, bound, 0x7000_0000), &[segment(s.to, 0, 64)]);
        assert_eq!(status(&s.rig.sent(&mut s.b)), Status::Success);
        assert_eq!(s.counted(Reason::RespRemoteAccessErrors), 0);
        let invalidate = Header { immediate: window, ..header(Opcode::LocalInvalidate, 3) };
        s.rig.post_args(&mut s.a, invalidate, [0; 4]);
        assert_eq!(status(&s.rig.sent(&mut s.a)), Status::Success);
        s.rig.post(&mut s.b, rdma(Opcode::Write, 2, bound, 0x7000_0000), &[segment(s.to, 0, 64)]);
        assert_eq!(status(&s.rig.sent(&mut s.b)), Status::Success);
        s.rig.run();
        assert_eq!(reason(&s.rig, 0, Reason::RespRemoteAccessErrors), 1, "{way:?}");
    }
}

#[test]
fn what_the_service_does_not_have_fails_at_the_requester() {
    for way in BOTH {
        for opcode in [
            Opcode::SendInvalidate,
            Opcode::Read,
            Opcode::ReadInvalidate,
            Opcode::CompareSwap,
            Opcode::FetchAdd,
        ] {
            let mut s = scene(way);
            s.rig.events(0);
            let head = rdma(opcode, 1, s.to, 0);
            if matches!(opcode, Opcode::CompareSwap | Opcode::FetchAdd) {
                let args = AtomicArgs { sink: segment(s.from, 0, 8), compare_add: 1, swap: 0 };
                s.rig.post_args(&mut s.a, Header { segments: 1, ..head }, zerocopy::transmute!(args));
            } else {
                s.rig.post(&mut s.a, head, &[segment(s.from, 0, 8)]);
            }
            let entry = s.rig.sent(&mut s.a);
            let blamed = (status(&entry), entry.detail);
            assert_eq!(blamed, (Status::LocalQpOperation, offset_of!(Header, opcode) as u32), "{opcode:?}");
            assert_eq!(s.rig.query(&s.a).state, QpState::Error as u32);
            assert_eq!(s.rig.event_types(0), [(EventType::QpFatal, s.a.qpn)]);
            s.nothing_arrives();
        }
    }
}

#[test]
fn local_errors_are_those_of_a_reliable_connection() {
    for way in BOTH {
        for (length, key, expected) in
            [(MAX_MESSAGE as u32 + 1, 0, Status::LocalLength), (8, 0xdead, Status::LocalProtection)]
        {
            let mut s = scene(way);
            s.rig.post(&mut s.a, header(Opcode::Send, 1), &[segment(key, 0, length)]);
            s.rig.post(&mut s.a, header(Opcode::Send, 2), &[]);
            let done = completions(&mut s.rig, &mut s.a, 2);
            assert_eq!([status(&done[0]), status(&done[1])], [expected, Status::Flushed], "{way:?}");
            assert_eq!(s.rig.query(&s.a).state, QpState::Error as u32);
            s.nothing_arrives();
        }
    }
}

#[test]
fn a_message_without_a_receive_is_dropped_and_the_next_one_arrives() {
    for way in BOTH {
        let mut s = scene(way);
        s.sends(header(Opcode::Send, 1), 3000);
        s.nothing_arrives();
        let immediate = rdma(Opcode::WriteImmediate, 2, s.to, 0);
        s.sends(immediate, 8);
        s.nothing_arrives();
        assert_eq!((s.counted(Reason::OutOfBuffer), s.rig.stats(1).not_ready), (2, 0), "{way:?}");
        s.receive(3, 8192);
        s.sends(header(Opcode::Send, 3), 3000);
        s.arrives(3, 3000);
    }
}

#[test]
fn what_the_peer_may_not_do_is_dropped_and_the_next_one_arrives() {
    let key = Reason::RespRemoteAccessErrors;
    for way in BOTH {
        for (case, expected) in [key, key, key, Reason::RespLocalLengthError].into_iter().enumerate() {
            let mut s = scene(way);
            s.receive(7, 1000);
            s.rig.fill(s.target, 8192, 9);
            let kept = s.rig.bytes(s.target, 8192);
            match case {
                // Out of bounds, another key, no right.
                0 => s.sends(rdma(Opcode::Write, 1, s.to, 8000), 500),
                1 => s.sends(rdma(Opcode::Write, 1, s.to ^ 1, 0), 500),
                2 => {
                    let access = LinkFlags::REMOTE_READ.bits();
                    let args = ModifyQp { mask: QpMask::ACCESS.bits(), access, ..ModifyQp::default() };
                    s.rig.modify(&s.b, &args).expect("no right");
                    s.sends(rdma(Opcode::Write, 1, s.to, 0), 500);
                }
                // Longer than the receive, of one packet.
                _ => s.sends(header(Opcode::Send, 1), 1001),
            }
            s.nothing_arrives();
            assert!(s.rig.bytes(s.target, 8192) == kept, "{way:?} {case}");
            assert_eq!(s.counted(expected), 1, "{way:?} {case}");
            // The long Send had taken a receive, which this Send uses.
            s.sends(header(Opcode::Send, 2), 900);
            s.arrives(7, 900);
        }
    }
}

#[test]
fn a_receive_that_cannot_be_used_fails_the_responder_alone() {
    for way in BOTH {
        let mut s = scene(way);
        s.rig.events(1);
        s.rig.post_receive(&mut s.b, 1, &[segment(0xdead, 0, 4096)]);
        s.sends(header(Opcode::Send, 1), 100);
        let entry = s.rig.received(&mut s.b);
        assert_eq!((status(&entry), entry.tag), (Status::LocalProtection, 1), "{way:?}");
        assert_eq!(s.rig.query(&s.b).state, QpState::Error as u32);
        let [event] = s.rig.events(1)[..] else { panic!("one event") };
        assert_eq!((event.event, event.number), (EventType::QpFatal as u8, s.b.qpn));
        assert_eq!(event.detail, 0, "the completion shows it, and no refusal goes to the peer");
        s.sends(header(Opcode::Send, 2), 100);
        assert_eq!(s.rig.query(&s.a).state, QpState::Rts as u32);
    }
}

#[test]
fn a_peer_that_is_gone_costs_the_messages_and_nothing_else() {
    for way in BOTH {
        let mut s = scene(way);
        s.rig.command(1, Command::DestroyQp, s.b.qpn, &[0_u32; 2]).expect("destroyed");
        for tag in 0..20 {
            s.sends(header(Opcode::Send, tag), 2000);
        }
        match way {
            Way::ShortCut => assert_eq!(s.rig.stats(0).lost_requests, 20),
            Way::Packets => assert_eq!(dropped(&s.rig, 1, PacketDropped::NoQueuePair), 40),
        }
        assert_eq!(s.rig.query(&s.a).state, QpState::Rts as u32);
        assert_eq!(s.rig.now, 0, "nothing is waited for");
    }
}

#[test]
fn a_port_that_is_down_loses_messages() {
    for way in BOTH {
        let mut s = scene(way);
        s.receive(1, 8192);
        s.sends(header(Opcode::Send, 1), 2000);
        s.arrives(1, 2000);
        s.rig.inject(0, Injection::Port, 0, 1, 0);
        s.rig.post(&mut s.a, header(Opcode::Send, 2), &[segment(s.from, 0, 2000)]);
        assert_eq!(status(&completions(&mut s.rig, &mut s.a, 1)[0]), Status::Success, "{way:?}");
        s.nothing_arrives();
        s.rig.inject(0, Injection::Port, 0, 1, 1);
        s.receive(3, 8192);
        s.rig.post(&mut s.a, header(Opcode::Send, 3), &[segment(s.from, 0, 2000)]);
        assert_eq!(status(&completions(&mut s.rig, &mut s.a, 1)[0]), Status::Success);
        s.arrives(3, 2000);
    }
}

#[test]
fn injected_faults_lose_delay_and_fail_messages() {
    for way in BOTH {
        let mut s = scene(way);
        s.receive(9, 8192);
        s.sends(header(Opcode::Send, 0), 8);
        s.arrives(9, 8);
        for what in [Injection::DropRequests, Injection::BadRequest] {
            s.rig.inject(0, what, s.a.qpn, 1, 0);
            s.receive(1, 8192);
            s.sends(header(Opcode::Send, 1), 3000);
            s.nothing_arrives();
            s.sends(header(Opcode::Send, 2), 3000);
            s.arrives(1, 3000);
        }
        // A garbled message is the receiver's to drop; of a packet it sees that before the engine.
        match way {
            Way::ShortCut => assert_eq!(s.counted(Reason::UnsupportedRequest), 1),
            Way::Packets => assert_eq!(dropped(&s.rig, 1, PacketDropped::Malformed), 1),
        }
        s.rig.inject(0, Injection::Delay, s.a.qpn, 1, 5_000);
        s.receive(2, 8192);
        s.rig.post(&mut s.a, header(Opcode::Send, 3), &[segment(s.from, 0, 3000)]);
        s.nothing_arrives();
        s.rig.advance(5_000);
        s.arrives(2, 3000);
        assert_eq!(status(&s.rig.sent(&mut s.a)), Status::Success, "{way:?}");
        s.rig.inject(0, Injection::Failure, s.a.qpn, 1, Status::RemoteOperation as u64);
        s.rig.post(&mut s.a, header(Opcode::Send, 4), &[]);
        assert_eq!(status(&s.rig.sent(&mut s.a)), Status::RemoteOperation);
        assert_eq!(s.rig.query(&s.a).state, QpState::Error as u32);
    }
}

#[test]
fn a_drained_queue_goes_on_when_it_may() {
    for way in BOTH {
        let mut s = scene(way);
        s.rig.run();
        s.rig.events(0);
        s.rig.set_state(&s.a, QpState::Sqd).expect("SQD");
        assert_eq!(s.rig.event_types(0), [(EventType::SendQueueDrained, s.a.qpn)], "{way:?}");
        s.receive(1, 8192);
        s.rig.post(&mut s.a, header(Opcode::Send, 1), &[segment(s.from, 0, 3000)]);
        s.nothing_arrives();
        s.rig.set_state(&s.a, QpState::Rts).expect("RTS");
        assert_eq!(status(&s.rig.sent(&mut s.a)), Status::Success);
        s.arrives(1, 3000);
    }
}

#[test]
fn a_receiver_that_starts_anew_in_mid_message_gets_the_next_one_whole() {
    let length = 4_u32 << 20;
    for way in BOTH {
        let mut s = scene(way);
        let (from, source) = s.rig.region(0, length.into());
        let (to, target) = s.rig.region(1, length.into());
        s.rig.fill(source, length as usize, 5);
        let receive = |s: &mut Scene| s.rig.post_receive(&mut s.b, 1, &[segment(to, 0, length)]);
        receive(&mut s);
        s.rig.post(&mut s.a, header(Opcode::Send, 1), &[segment(from, 0, length)]);
        while s.rig.bytes(target + (1 << 20) - 8, 8) == [0; 8] {
            s.rig.step();
        }
        s.rig.set_state(&s.b, QpState::Reset).expect("RESET");
        s.rig.join(&s.b, &s.a);
        assert_eq!(status(&completions(&mut s.rig, &mut s.a, 1)[0]), Status::Success, "{way:?}");
        s.nothing_arrives();
        receive(&mut s);
        s.rig.post(&mut s.a, header(Opcode::Send, 2), &[segment(from, 0, length)]);
        assert_eq!(status(&completions(&mut s.rig, &mut s.a, 1)[0]), Status::Success);
        let entry = s.rig.received(&mut s.b);
        assert_eq!((status(&entry), entry.length), (Status::Success, length));
        assert!(s.rig.bytes(target, length as usize) == s.rig.bytes(source, length as usize));
    }
}

#[test]
fn a_queue_pair_needs_what_its_service_needs_and_no_more() {
    let mut rig = Rig::new(2);
    let (a, b) = (rig.create_qp(0, UC), rig.create_qp(1, UC));
    let without = |args: ModifyQp, mask: QpMask| ModifyQp { mask: args.mask & !mask.bits(), ..args };
    rig.init(&a);
    let reads = QpMask::MAX_DEST_RD_ATOMIC | QpMask::MIN_RNR_TIMER;
    let rtr = without(rig.rtr_args(&a, &b), reads);
    let refused = Err((admin::Status::BadField, (16 + offset_of!(ModifyQp, mask)) as u16));
    for needed in [QpMask::PATH, QpMask::REMOTE_QPN, QpMask::MTU, QpMask::RECEIVE_PSN] {
        assert_eq!(rig.modify(&a, &without(rtr, needed)), refused);
    }
    rig.modify(&a, &rtr).expect("RTR");
    let retries = QpMask::TIMEOUT | QpMask::RETRY_COUNT | QpMask::RNR_RETRY | QpMask::MAX_RD_ATOMIC;
    let rts = without(rig.rts_args(&a), retries);
    assert_eq!(rig.modify(&a, &without(rts, QpMask::SEND_PSN)), refused);
    rig.modify(&a, &rts).expect("RTS");
    // No receives from an SRQ.
    rig.create_srq(0, 1, 0);
    let shared = QpSpec { flags: QpFlags::SRQ, srq: 1, ..UC };
    let args = rig.qp_args(shared, a.send_cq, a.receive_cq);
    let flags = (16 + offset_of!(CreateQp, flags)) as u16;
    let created = rig.command(0, Command::CreateQp, nic_abi::ident::qpn(9, 0), &args);
    assert_eq!(created.unwrap_err(), (admin::Status::BadField, flags));
}

#[test]
fn services_do_not_mix_by_the_short_cut() {
    for (kind, other) in [(QpType::Uc, QpType::Rc), (QpType::Rc, QpType::Uc)] {
        let mut rig = Rig::new(2);
        let mut a = rig.create_qp(0, QpSpec { kind, ..UC });
        let mut b = rig.create_qp(1, QpSpec { kind: other, ..UC });
        rig.join(&a, &b);
        rig.join(&b, &a);
        rig.post_receive(&mut b, 1, &[]);
        rig.post(&mut a, header(Opcode::Send, 1), &[]);
        let expected = if kind == QpType::Uc { Status::Success } else { Status::RetryExceeded };
        assert_eq!(status(&completions(&mut rig, &mut a, 1)[0]), expected);
        assert!(rig.poll_cq(&mut b.receive_cq).is_none());
        assert_eq!(rig.query(&b).state, QpState::Rts as u32);
        assert!(rig.stats(0).lost_requests > 0);
    }
}

#[test]
fn packets_of_another_service_are_dropped_and_counted() {
    let (mut rig, ends) = wired();
    let (mut uc, uc_peer) = rig.pair_of(0, 1, UC);
    let (mut rc, rc_peer) = rig.pair();
    let (from, _) = rig.region(0, 64);
    let (to, target) = rig.region(1, 64);
    rig.fill(target, 64, 9);
    let mut taken = Vec::new();
    for (qp, peer) in [(&mut uc, &uc_peer), (&mut rc, &rc_peer)] {
        // The first request finds the MAC.
        rig.post(qp, rdma(Opcode::Write, 1, to, 0), &[segment(from, 0, 0)]);
        assert_eq!(status(&rig.sent(qp)), Status::Success);
        rig.post(qp, rdma(Opcode::Write, 2, to, 0), &[segment(from, 0, 64)]);
        while ends[1].waiting() == 0 {
            rig.step();
        }
        taken.push((ends[1].take().expect("the Write"), peer));
    }
    let kept = rig.bytes(target, 64);
    for (n, (frame, peer)) in taken.iter().enumerate() {
        // A request of the other service; an answer to an RDMA Read; a code that does not exist.
        // The reliable one's are 0x10 and 0x1f, and the unreliable one has neither.
        let (answer, unknown, why) = match n {
            0 => (0x10, 0x1f, PacketDropped::WrongService),
            _ => (0x30, 0x3f, PacketDropped::Malformed),
        };
        let request = frame[OPCODE] ^ 0x20;
        for (code, why) in [(request, PacketDropped::WrongService), (answer, why), (unknown, why)] {
            let before = dropped(&rig, 1, why);
            ends[0].put(&forge(frame, |bth| bth[0] = code));
            rig.run();
            assert_eq!(dropped(&rig, 1, why), before + 1, "{n} {code:#x}");
        }
        assert_eq!(rig.query(peer).state, QpState::Rts as u32);
    }
    assert!(rig.bytes(target, 64) == kept, "nothing was written");
}

/// A wire that loses the next frame with the operation code in `lose`.
pub(crate) fn losing(end: CableEnd, lose: Rc<Cell<Option<u8>>>) -> impl Wire {
    Through::new(end, move |end, frame| {
        // RoCEv2 over IPv4; ARP frames are shorter.
        if lose.get().is_some() && frame.get(OPCODE).copied() == lose.get() {
            lose.set(None);
        } else {
            end.put(frame);
        }
    })
}

#[test]
fn a_lost_packet_costs_its_message_alone() {
    let lose = Rc::new(Cell::new(None));
    let wires = cable().map(|end| losing(end, lose.clone()));
    let mut s = over(Rig::wired(wires, 1500));
    s.receive(1, 8192);
    lose.set(Some(SEND_MIDDLE));
    s.sends(header(Opcode::Send, 1), 6000);
    s.nothing_arrives();
    assert_eq!(lose.get(), None, "it was lost");
    assert_eq!(s.counted(Reason::OutOfSequence), 1);
    assert_eq!(s.counted(Reason::IncompleteMessage), 3);
    // The next Send begins at the start of the same receive.
    s.sends(header(Opcode::Send, 2), 5000);
    s.arrives(1, 5000);
    s.rig.fill(s.target, 8192, 9);
    let kept = s.rig.bytes(s.target, 8192);
    lose.set(Some(WRITE_FIRST));
    s.sends(rdma(Opcode::Write, 3, s.to, 0), 3000);
    s.nothing_arrives();
    assert!(s.rig.bytes(s.target, 8192) == kept, "a Write without its first packet has no address");
    // A Write with immediate data whose last packet is lost completes no receive.
    s.receive(4, 8192);
    lose.set(Some(WRITE_LAST + 1));
    s.sends(rdma(Opcode::WriteImmediate, 4, s.to, 0), 3000);
    s.nothing_arrives();
    s.sends(header(Opcode::Send, 5), 0);
    s.arrives(4, 0);
}

#[test]
fn a_packet_that_comes_again_is_not_a_message_more() {
    let (rig, ends) = wired();
    let mut s = over(rig);
    s.receive(1, 8192);
    s.sends(header(Opcode::Send, 1), 0);
    s.arrives(1, 0);
    s.receive(2, 8192);
    s.receive(3, 8192);
    s.rig.post(&mut s.a, header(Opcode::Send, 2), &[segment(s.from, 0, 100)]);
    while ends[1].waiting() == 0 {
        s.rig.step();
    }
    let frame = ends[1].take().expect("the Send");
    for _ in 0..3 {
        ends[0].put(&frame);
    }
    s.arrives(2, 100);
    s.nothing_arrives();
    assert_eq!(s.counted(Reason::DuplicateRequest), 2);
}

#[test]
fn messages_to_a_neighbour_that_does_not_answer_are_lost_in_the_end() {
    let (rig, ends) = wired();
    let mut s = over(rig);
    ends[1].plug(true);
    let mut nobody = s.rig.rtr_args(&s.a, &s.b);
    nobody.remote_gid[15] = 99;
    s.rig.set_state(&s.a, QpState::Reset).expect("RESET");
    s.rig.init(&s.a);
    s.rig.modify(&s.a, &nobody).expect("RTR");
    let args = s.rig.rts_args(&s.a);
    s.rig.modify(&s.a, &args).expect("RTS");
    for tag in 0..3 {
        s.rig.post(&mut s.a, header(Opcode::Send, tag), &[segment(s.from, 0, 2000)]);
    }
    s.rig.run();
    assert!(s.rig.poll_cq(&mut s.a.send_cq).is_none(), "the neighbour may answer");
    let done = completions(&mut s.rig, &mut s.a, 3);
    assert!(done.iter().all(|entry| status(entry) == Status::Success));
    assert_eq!(s.rig.query(&s.a).state, QpState::Rts as u32);
}
