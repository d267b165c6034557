//! Unreliable connections and datagrams.

use roce::transport::requester::{Event, Message, PostError, Status, Transmit};
use roce::transport::uc::{Requester, Responder};
use roce::transport::ud::{Datagram, Sender};
use roce::transport::{Executed, Execution, Extra, MAX_MESSAGE, Operation, Piece, Reason, Service, Verdict};
use roce::wire::packet;
use roce::{PathMtu, Psn, QKey, Qpn};

use crate::world::{Random, World, message};

const MTU: PathMtu = PathMtu::B256;
const SEND: Operation = Operation::Send;
const WRITE: Operation = Operation::Write;

fn start() -> Psn {
    Psn::new(0xff_fffd)
}

fn responder() -> Responder {
    Responder::new(start(), MTU)
}

/// All packets of these messages, named by their places.
fn packets(messages: &[(Operation, u32)]) -> Vec<(u32, Piece)> {
    let mut it = Requester::new(start(), MTU, 64);
    for (id, (operation, length)) in (0..).zip(messages) {
        it.post(message(id, *operation, *length)).unwrap();
    }
    std::iter::from_fn(|| it.transmit(1))
        .map(|transmit| match transmit {
            Transmit::Piece { id, piece, .. } => (id, piece),
            Transmit::Local { .. } => panic!("none was posted"),
        })
        .collect()
}

/// Carries out what may be; returns which messages arrived whole, and checks that each is whole.
fn deliver(it: &mut Responder, arriving: &[(u32, Piece)], messages: &[(Operation, u32)]) -> Vec<u32> {
    let (mut whole, mut bytes) = (Vec::new(), 0);
    for (id, piece) in arriving {
        let Verdict::Execute(execution) = it.receive(piece) else { continue };
        let Execution { offset, length, first, last, .. } = execution;
        assert_eq!(first, offset == 0 && piece.first);
        bytes = if first { length } else { bytes + length };
        assert_eq!(bytes, offset + length, "a packet is missing");
        it.executed(execution, Executed::Done(0));
        if last {
            assert_eq!(bytes, messages[*id as usize].1);
            whole.push(*id);
        }
    }
    whole
}

const MESSAGES: [(Operation, u32); 6] =
    [(SEND, 700), (WRITE, 0), (WRITE, 513), (SEND, 256), (SEND, 0), (WRITE, 900)];

#[test]
fn messages_are_complete_when_they_are_sent() {
    let mut it = Requester::new(start(), MTU, 3);
    it.post(message(0, SEND, 300)).unwrap();
    it.post_local(1).unwrap();
    it.post(message(2, WRITE, 1)).unwrap();
    assert_eq!((it.post(message(3, SEND, 1)), it.has_room()), (Err(PostError::Full), false));
    let Some(Transmit::Piece { id: 0, offset: 0, piece }) = it.transmit(1) else { panic!() };
    assert_eq!((piece.first, piece.last, piece.length, piece.psn), (true, false, 256, start()));
    assert_eq!(it.poll(), None);
    let Some(Transmit::Piece { id: 0, offset: 256, piece }) = it.transmit(1) else { panic!() };
    assert_eq!((piece.last, piece.length, piece.ack_request), (true, 44, false));
    assert_eq!((it.poll(), it.poll()), (Some(Event::Completed { id: 0 }), None));
    assert_eq!(it.len(), 2);
    assert_eq!(it.transmit(1), Some(Transmit::Local { id: 1 }));
    // It fails, and with it the rest.
    it.abort(1);
    assert_eq!(it.transmit(1), None);
    assert_eq!(it.poll(), Some(Event::Failed { id: 1, status: Status::Aborted }));
    assert_eq!((it.poll(), it.len(), it.flush(), it.flush()), (None, 1, Some(2), None));
    assert_eq!(it.post(message(3, SEND, 1)), Err(PostError::Closed));
    assert_eq!((it.len(), it.is_empty()), (0, true));
}

#[test]
fn a_failure_that_the_queue_pair_survives_ends_its_message_only() {
    let mut it = Requester::new(start(), MTU, 3);
    it.post(message(0, SEND, 600)).unwrap();
    it.post(message(1, WRITE, 1)).unwrap();
    assert!(matches!(it.transmit(1), Some(Transmit::Piece { id: 0, offset: 0, .. })));
    it.abort(0);
    assert_eq!((it.transmit(1), it.post(message(2, SEND, 1))), (None, Err(PostError::Closed)));
    assert_eq!(it.poll(), Some(Event::Failed { id: 0, status: Status::Aborted }));
    it.resume();
    let Some(Transmit::Piece { id: 1, offset: 0, piece }) = it.transmit(1) else { panic!() };
    assert_eq!((piece.first, piece.last, piece.psn), (true, true, start().add(1)));
    assert_eq!(it.poll(), Some(Event::Completed { id: 1 }));
    it.post(message(2, SEND, 1)).unwrap();
    assert!(matches!(it.transmit(1), Some(Transmit::Piece { id: 2, .. })));
}

#[test]
fn each_of_several_failures_ends_its_own_request() {
    let failed = |id| Some(Event::Failed { id, status: Status::Aborted });
    // In either order.
    for order in [[1, 2, 4], [4, 2, 1]] {
        let mut it = Requester::new(start(), MTU, 8);
        it.post(message(0, SEND, 600)).unwrap();
        it.post_local(1).unwrap();
        it.post(message(2, WRITE, 1)).unwrap();
        it.post(message(3, SEND, 1)).unwrap();
        it.post_local(4).unwrap();
        assert!(it.transmit(1).is_some());
        order.into_iter().for_each(|id| it.abort(id));
        it.abort(7);
        assert!(it.transmit(7).is_some() && it.transmit(7).is_none());
        assert_eq!((it.poll(), it.poll()), (Some(Event::Completed { id: 0 }), failed(1)));
        assert_eq!((it.poll(), it.transmit(1)), (None, None), "until the queue pair goes on");
        it.resume();
        assert_eq!((it.transmit(1), it.poll()), (None, failed(2)));
        it.resume();
        assert_eq!(it.post(message(5, SEND, 1)), Err(PostError::Closed));
        assert!(matches!(it.transmit(1), Some(Transmit::Piece { id: 3, .. })));
        assert_eq!(it.transmit(1), None);
        assert_eq!((it.poll(), it.poll()), (Some(Event::Completed { id: 3 }), failed(4)));
        it.resume();
        assert!(it.is_empty() && it.post(message(5, SEND, 1)).is_ok());
        assert!(matches!(it.transmit(1), Some(Transmit::Piece { id: 5, .. })));
    }
}

#[test]
fn local_requests_are_carried_out_in_their_places() {
    let mut it = Requester::new(start(), MTU, 8);
    it.post_local(0).unwrap();
    it.post_local(1).unwrap();
    it.post(message(2, SEND, 1)).unwrap();
    assert_eq!(it.transmit(1), Some(Transmit::Local { id: 0 }));
    assert_eq!(it.transmit(1), Some(Transmit::Local { id: 1 }));
    assert!(matches!(it.transmit(1), Some(Transmit::Piece { id: 2, .. })));
    let completed: Vec<_> = std::iter::from_fn(|| it.poll()).collect();
    assert_eq!(completed, [0, 1, 2].map(|id| Event::Completed { id }));
    assert_eq!((it.transmit(1), it.is_empty()), (None, true));
}

#[test]
fn a_drained_queue_has_sent_its_message_to_the_end() {
    let mut it = Requester::new(start(), MTU, 8);
    it.post(message(0, SEND, 300)).unwrap();
    it.post(message(1, SEND, 300)).unwrap();
    assert!(it.transmit(1).is_some());
    it.drain(true);
    assert!(!it.is_drained() && it.transmit(1).is_some() && it.transmit(1).is_none());
    assert!(!it.is_drained() && it.poll().is_some() && it.is_drained());
    it.drain(false);
    assert!(it.transmit(7).is_some());
    assert!(it.poll().is_some() && it.is_empty());
    assert_eq!(it.next_psn(), start().add(4));
}

#[test]
fn only_sends_and_writes_are_posted() {
    let mut it = Requester::new(start(), MTU, 8);
    for operation in [Operation::Read, Operation::FetchAdd { add: 1 }] {
        assert_eq!(it.post(message(0, operation, 8)), Err(PostError::Operation));
    }
    let invalidate = Message { extra: Extra::Invalidate(1), ..message(0, SEND, 1) };
    assert_eq!(it.post(invalidate), Err(PostError::Operation));
    assert_eq!(it.post(message(0, SEND, MAX_MESSAGE + 1)), Err(PostError::Length));
    assert!(it.is_empty() && it.has_room());
    assert_eq!(it.post(message(0, SEND, MAX_MESSAGE)), Ok(()));
    assert!(!it.is_empty() && it.has_room());
}

#[test]
fn all_messages_arrive_over_a_network_without_faults() {
    let packets = packets(&MESSAGES);
    // As packets.
    let parsed: Vec<_> = packets
        .iter()
        .map(|(id, piece)| {
            let payload = vec![0; piece.length as usize];
            let bytes = World::packet(&piece.to_packet(Service::Uc, Qpn::GSI, &payload).unwrap());
            let (service, back) = Piece::from_packet(&packet::Repr::parse(&bytes).unwrap()).unwrap();
            assert_eq!((service, back), (Service::Uc, *piece));
            (*id, back)
        })
        .collect();
    let mut it = responder();
    assert_eq!(deliver(&mut it, &parsed, &MESSAGES), [0, 1, 2, 3, 4, 5]);
    assert_eq!((it.incomplete(), it.expected()), (0, start().add(packets.len() as u32)));
}

#[test]
fn a_lost_packet_costs_its_message_alone() {
    let packets = packets(&MESSAGES);
    for lost in 0..packets.len() {
        let mut arriving = packets.clone();
        let (id, _) = arriving.remove(lost);
        let expected: Vec<_> = (0..6).filter(|n| *n != id).collect();
        assert_eq!(deliver(&mut responder(), &arriving, &MESSAGES), expected, "{lost}");
    }
}

#[test]
fn whatever_the_network_does_messages_arrive_whole_once_and_in_order() {
    for seed in 0..if cfg!(miri) { 2 } else { 2000 } {
        let random = &mut Random::new(seed);
        let mut arriving = packets(&MESSAGES);
        for _ in 0..random.below(6) {
            let (from, to) = (random.below(arriving.len() as u32), random.below(arriving.len() as u32));
            let packet = arriving[from as usize];
            match random.below(3) {
                0 => drop(arriving.remove(from as usize)),
                1 => arriving.insert(to as usize, packet),
                _ => arriving.swap(from as usize, to as usize),
            }
        }
        let whole = deliver(&mut responder(), &arriving, &MESSAGES);
        assert!(whole.is_sorted_by(|earlier, later| earlier < later), "{whole:?}");
    }
}

#[test]
fn what_cannot_be_carried_out_ends_its_message_and_nothing_else() {
    let packets = packets(&MESSAGES);
    for failing in 0..packets.len() {
        for outcome in [Executed::NotReady(3), Executed::Refused(Reason::RespRemoteAccessErrors)] {
            let mut it = responder();
            let mut whole = Vec::new();
            for (n, (id, piece)) in packets.iter().enumerate() {
                let Verdict::Execute(execution) = it.receive(piece) else { continue };
                let last = execution.last;
                let failed = n == failing;
                it.executed(execution, if failed { outcome } else { Executed::Done(0) });
                whole.extend((last && !failed).then_some(*id));
            }
            let expected: Vec<_> = (0..6).filter(|n| *n != packets[failing].0).collect();
            assert_eq!((whole, it.incomplete()), (expected, 1));
        }
    }
}

#[test]
fn packets_out_of_place_are_dropped_for_their_reasons() {
    let all = packets(&[(SEND, 700), (WRITE, 700), (SEND, 1)]);
    let first = |n: usize| all[n].1;
    let reason = |it: &mut Responder, piece: Piece| match it.receive(&piece) {
        Verdict::Nothing(reason) => Some(reason),
        Verdict::Execute(execution) => {
            it.executed(execution, Executed::Done(0));
            None
        }
        Verdict::Refused(reason) => panic!("{reason:?}"),
    };
    let mut it = responder();
    assert_eq!(reason(&mut it, Piece { psn: start(), ..first(1) }), Some(Reason::IncompleteMessage));
    assert_eq!(reason(&mut it, first(2)), Some(Reason::OutOfSequence));
    // A first packet is where it begins again, whatever the PSN that was expected.
    let psn = |n: u32| start().add((1 << 20) + n);
    assert_eq!(reason(&mut it, Piece { psn: psn(0), ..first(0) }), None);
    let short = Piece { psn: psn(1), length: 9, ..first(1) };
    assert_eq!(reason(&mut it, short), Some(Reason::BadPacketLength));
    assert_eq!(it.incomplete(), 1);
    assert_eq!(reason(&mut it, Piece { psn: psn(2), ..first(2) }), Some(Reason::IncompleteMessage));
    assert_eq!(reason(&mut it, Piece { psn: psn(3), ..first(3) }), None);
    let other = Piece { psn: psn(4), operation: SEND, ..first(4) };
    assert_eq!(reason(&mut it, other), Some(Reason::BadOpcodeSequence));
    // A new message ends the one that is open.
    let again = Piece { psn: it.expected(), ..first(0) };
    assert_eq!(reason(&mut it, again), None);
    let only = Piece { psn: it.expected(), ..first(6) };
    assert_eq!(reason(&mut it, only), None);
    assert_eq!(it.incomplete(), 3);
    for operation in [Operation::Read, Operation::FetchAdd { add: 1 }] {
        let piece = Piece { operation, psn: it.expected(), ..only };
        assert_eq!(reason(&mut it, piece), Some(Reason::UnsupportedRequest));
    }
    let invalidate = Piece { extra: Extra::Invalidate(1), psn: it.expected(), ..only };
    assert_eq!(reason(&mut it, invalidate), Some(Reason::UnsupportedRequest));
    // An execution that is dropped is a packet that was lost.
    let here = it.expected();
    assert_eq!(reason(&mut it, Piece { psn: here, ..first(0) }), None);
    drop(it.receive(&Piece { psn: here.add(1), ..first(1) }));
    let last = Piece { psn: here.add(2), ..first(2) };
    assert_eq!(reason(&mut it, last), Some(Reason::OutOfSequence));
    assert_eq!(it.incomplete(), 4);
}

#[test]
fn a_packet_that_comes_late_or_again_is_dropped_and_disturbs_nothing() {
    let all = packets(&[(SEND, 1), (WRITE, 700), (SEND, 1)]);
    let mut it = responder();
    let mut arriving: Vec<(u32, Piece)> = Vec::new();
    for (n, packet) in all.iter().enumerate() {
        arriving.push(*packet);
        arriving.extend_from_slice(&all[..=n]);
    }
    let messages = [(SEND, 1), (WRITE, 700), (SEND, 1)];
    assert_eq!(deliver(&mut it, &arriving, &messages), [0, 1, 2]);
    assert_eq!(it.incomplete(), 0);
    // The packets before the expected one that count as late, and the first that does not.
    for (before, late) in [(1, true), (1 << 16, true), ((1 << 16) + 1, false)] {
        let mut it = responder();
        let psn = Psn::new(it.expected().get().wrapping_sub(before));
        let judged = it.receive(&Piece { psn, ..all[0].1 });
        let dropped = matches!(judged, Verdict::Nothing(Reason::DuplicateRequest));
        assert_eq!(dropped, late, "{before}");
    }
}

#[test]
fn a_piece_that_could_not_be_sent_comes_again() {
    let mut it = Requester::new(start(), MTU, 8);
    it.post(message(0, SEND, 700)).unwrap();
    it.post(message(1, SEND, 0)).unwrap();
    let mut sent = 0;
    for n in 0..8 {
        let Some(Transmit::Piece { id, piece, offset }) = it.transmit(1) else { panic!() };
        assert_eq!((id, offset), if sent < 3 { (0, sent * 256) } else { (1, 0) });
        assert_eq!(piece.psn, start().add(sent));
        if n % 2 == 0 {
            it.take_back(&piece);
            assert_eq!((it.poll(), it.next_psn()), (None, piece.psn));
            continue;
        }
        sent += 1;
        assert_eq!(it.poll(), piece.last.then_some(Event::Completed { id }));
    }
    assert!(it.is_empty());
}

#[test]
fn a_datagram_and_its_packet_say_the_same() {
    let mut sender = Sender::new(Psn::new(0xff_ffff));
    for immediate in [None, Some(7)] {
        let datagram = Datagram {
            psn: sender.next_psn(),
            qkey: QKey(5),
            src_qp: Qpn::GSI,
            length: 9,
            immediate,
            solicited: immediate.is_some(),
        };
        let bytes = World::packet(&datagram.to_packet(Qpn::GSI, &[1; 9]).unwrap());
        let packet = packet::Repr::parse(&bytes).unwrap();
        assert_eq!(Datagram::from_packet(&packet), Some(datagram));
        assert_eq!(Piece::from_packet(&packet), None);
        assert_eq!(datagram.to_packet(Qpn::GSI, &[1; 8]), None);
    }
    assert_eq!(sender.next_psn(), Psn::new(1));
    let (_, piece) = packets(&[(SEND, 1)])[0];
    let packet = piece.to_packet(Service::Rc, Qpn::GSI, &[0]).unwrap();
    assert_eq!(Datagram::from_packet(&packet), None);
}

#[test]
fn a_datagram_needs_the_key_and_fits_the_mtu() {
    let datagram = Datagram {
        psn: start(),
        qkey: QKey(5),
        src_qp: Qpn::GSI,
        length: 1024,
        immediate: None,
        solicited: false,
    };
    assert_eq!(datagram.judge(QKey(5), 1024), Ok(()));
    assert_eq!(datagram.judge(QKey(6), 1024), Err(Reason::BadQKey));
    assert_eq!(datagram.judge(QKey(5), 1023), Err(Reason::BadPacketLength));
    let own = QKey(5);
    assert_eq!(Sender::qkey(QKey(0x7fff_ffff), own), QKey(0x7fff_ffff));
    assert_eq!(Sender::qkey(QKey(0x8000_0000), own), own);
}
