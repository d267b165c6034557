//! The responder of a reliable connection, packet by packet.

use roce::transport::{
    Body, Executed, Execution, Extra, MAX_MESSAGE, Operation, Piece, Reason, Remote, Responder, Response,
    Service, Verdict,
};
use roce::wire::aeth::{Nak, Syndrome};
use roce::wire::opcode::Opcode;
use roce::{PathMtu, Psn, Qpn};

const MTU: PathMtu = PathMtu::B256;
const READ: Remote = Remote { addr: 0x1000, key: 7, length: 1000 };

/// A responder that expects the last PSN but one of the circle.
fn responder() -> Responder {
    Responder::new(psn(0), MTU, 2)
}

fn psn(n: u32) -> Psn {
    Psn::new(0xff_fffe).add(n)
}

/// A Send of one packet, the `n`th.
fn send(n: u32) -> Piece {
    Piece {
        psn: psn(n),
        packets: 1,
        operation: Operation::Send,
        first: true,
        last: true,
        length: 10,
        remote: None,
        extra: Extra::None,
        solicited: false,
        ack_request: true,
    }
}

/// Packet `n` of a message of three packets that begins with packet `start`.
fn part(operation: Operation, start: u32, n: u32) -> Piece {
    let (first, last) = (n == start, n == start + 2);
    let remote = (first && operation == Operation::Write).then_some(Remote { length: 600, ..READ });
    let length = if last { 600 - 512 } else { 256 };
    Piece { operation, first, last, length, remote, ack_request: last, ..send(n) }
}

fn read(n: u32, remote: Remote) -> Piece {
    Piece { operation: Operation::Read, length: 0, remote: Some(remote), ..send(n) }
}

fn add(n: u32) -> Piece {
    let remote = Some(Remote { length: 8, ..READ });
    Piece { operation: Operation::FetchAdd { add: 1 }, length: 0, remote, ..send(n) }
}

#[track_caller]
fn execution(responder: &mut Responder, piece: Piece) -> Execution {
    match responder.receive(&piece) {
        Verdict::Execute(execution) => execution,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn carried_out(responder: &mut Responder, piece: Piece) {
    let execution = execution(responder, piece);
    responder.executed(execution, Executed::Done(u64::from(piece.psn.get())));
}

#[track_caller]
fn nothing(responder: &mut Responder, piece: Piece, reason: Reason) {
    match responder.receive(&piece) {
        Verdict::Nothing(found) => assert_eq!(found, reason),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn refused(responder: &mut Responder, piece: Piece, reason: Reason) {
    match responder.receive(&piece) {
        Verdict::Refused(found) => assert_eq!(found, reason),
        other => panic!("{other:?}"),
    }
}

/// PSN (counted from the first), syndrome and MSN of each acknowledgement that is due; there is
/// nothing else.
#[track_caller]
fn acks(responder: &mut Responder) -> Vec<(u32, Syndrome, u32)> {
    let mut acks = Vec::new();
    while let Some(Response { answer, gather }) = responder.respond(1, None) {
        assert_eq!((answer.body, gather), (Body::Acknowledge, None));
        let aeth = answer.aeth.unwrap();
        acks.push((answer.psn.offset_from(psn(0)), aeth.syndrome, aeth.msn));
    }
    acks
}

/// PSN, first, last, address and length of each RDMA Read's answer packet that is due.
#[track_caller]
fn reads(responder: &mut Responder) -> Vec<(u32, bool, bool, u64, u32)> {
    let mut packets = Vec::new();
    while let Some(Response { answer, gather }) = responder.respond(1, None) {
        let Body::Read { packets: 1, first, last, length } = answer.body else { panic!("{answer:?}") };
        let gather = gather.unwrap();
        assert_eq!((gather.key, gather.length), (READ.key, length));
        assert_eq!(answer.aeth.is_some(), first || last);
        assert!(answer.to_packet(Qpn::GSI, &vec![0; length as usize]).is_some());
        packets.push((answer.psn.offset_from(psn(0)), first, last, gather.addr, length));
    }
    packets
}

const SEQUENCE: Syndrome = Syndrome::Nak(Nak::PsnSequenceError);
const INVALID: Syndrome = Syndrome::Nak(Nak::InvalidRequest);

#[test]
fn one_acknowledgement_covers_many_messages() {
    let mut it = responder();
    for n in 0..5 {
        carried_out(&mut it, send(n));
    }
    assert_eq!(acks(&mut it), [(4, Syndrome::ACK, 5)]);
    // Without a request there is none.
    carried_out(&mut it, Piece { ack_request: false, ..send(5) });
    assert_eq!(acks(&mut it), []);
    carried_out(&mut it, send(6));
    assert_eq!(acks(&mut it), [(6, Syndrome::ACK, 7)]);
    assert_eq!((it.msn(), it.expected()), (7, psn(7)));
}

#[test]
fn a_message_is_carried_out_packet_by_packet_with_its_offsets() {
    for operation in [Operation::Send, Operation::Write] {
        let mut it = responder();
        for n in 0..3 {
            let last = n == 2;
            let piece = Piece { extra: Extra::Immediate(9), solicited: true, ..part(operation, 0, n) };
            let execution = execution(&mut it, piece);
            assert_eq!((execution.offset, execution.length), (n * 256, piece.length));
            assert_eq!((execution.first, execution.last), (n == 0, last));
            assert_eq!(execution.extra, if last { Extra::Immediate(9) } else { Extra::None });
            assert_eq!(execution.solicited, last);
            assert_eq!(execution.needs_receive(), last || operation == Operation::Send);
            if operation == Operation::Write {
                assert_eq!(execution.remote, Remote { length: 600, ..READ });
            }
            it.executed(execution, Executed::Done(0));
            assert_eq!(it.msn(), u32::from(last));
        }
        assert_eq!(acks(&mut it), [(2, Syndrome::ACK, 1)]);
    }
}

#[test]
fn a_gap_is_reported_once_until_it_is_closed() {
    let mut it = responder();
    carried_out(&mut it, send(0));
    for n in [2, 3, 2] {
        nothing(&mut it, send(n), Reason::OutOfSequence);
    }
    assert_eq!(acks(&mut it), [(1, SEQUENCE, 1)]);
    nothing(&mut it, send(5), Reason::OutOfSequence);
    assert_eq!(acks(&mut it), []);
    carried_out(&mut it, send(1));
    nothing(&mut it, send(3), Reason::OutOfSequence);
    assert_eq!(acks(&mut it), [(2, SEQUENCE, 2)]);
    // A report that was not sent before the packet came is none any more.
    let mut it = responder();
    nothing(&mut it, send(1), Reason::OutOfSequence);
    carried_out(&mut it, send(0));
    assert_eq!(acks(&mut it), [(0, Syndrome::ACK, 1)]);
}

#[test]
fn a_duplicate_is_acknowledged_again_and_not_carried_out() {
    let mut it = responder();
    for n in 0..3 {
        carried_out(&mut it, part(Operation::Write, 0, n));
    }
    acks(&mut it);
    for n in [0, 2, 1] {
        nothing(&mut it, part(Operation::Write, 0, n), Reason::DuplicateRequest);
        assert_eq!(acks(&mut it), [(2, Syndrome::ACK, 1)]);
    }
    // Whatever is half a circle behind is a duplicate, whatever is before that lies ahead.
    nothing(&mut it, Piece { psn: psn(3).add(0x80_0000), ..send(0) }, Reason::DuplicateRequest);
    acks(&mut it);
    nothing(&mut it, Piece { psn: psn(3).add(0x7f_ffff), ..send(0) }, Reason::OutOfSequence);
}

#[test]
fn a_message_without_a_receive_is_asked_for_again() {
    let mut it = responder();
    for round in 0..3 {
        let execution = execution(&mut it, send(0));
        assert!(execution.needs_receive());
        it.executed(execution, Executed::NotReady(12));
        // What follows meanwhile brings no other NAK.
        nothing(&mut it, send(1), Reason::OutOfSequence);
        assert_eq!(acks(&mut it), [(0, Syndrome::RnrNak(12), 0)], "{round}");
    }
    carried_out(&mut it, send(0));
    assert_eq!(acks(&mut it), [(0, Syndrome::ACK, 1)]);
}

#[test]
fn an_execution_that_is_dropped_is_a_packet_that_was_lost() {
    let mut it = responder();
    drop(execution(&mut it, send(0)));
    assert_eq!((acks(&mut it), it.expected()), (vec![], psn(0)));
    let (early, late) = (execution(&mut it, send(0)), execution(&mut it, send(0)));
    it.executed(early, Executed::Done(0));
    it.executed(late, Executed::Refused(Reason::RespRemoteAccessErrors));
    assert_eq!((acks(&mut it), it.msn(), it.is_closed()), (vec![(0, Syndrome::ACK, 1)], 1, false));
}

#[test]
fn a_message_that_is_expected_may_pass_whole() {
    let mut responder = responder();
    assert!(responder.expects(psn(0)) && !responder.expects(psn(1)));
    responder.passed(3);
    assert_eq!((responder.expected(), responder.msn()), (psn(3), 1));
    assert_eq!(acks(&mut responder), []);
    // A repetition of it is acknowledged.
    nothing(&mut responder, part(Operation::Send, 0, 0), Reason::DuplicateRequest);
    assert_eq!(acks(&mut responder).len(), 1);
    // It closes a gap that was reported.
    nothing(&mut responder, send(4), Reason::OutOfSequence);
    responder.passed(1);
    nothing(&mut responder, send(6), Reason::OutOfSequence);
    let gap = Syndrome::Nak(Nak::PsnSequenceError);
    assert_eq!(acks(&mut responder), [(4, gap, 2)]);
    // Nothing passes into a message that is open, or after a refusal.
    carried_out(&mut responder, part(Operation::Send, 4, 4));
    assert!(!responder.expects(psn(5)));
    refused(&mut responder, send(5), Reason::BadOpcodeSequence);
    assert!(!responder.expects(psn(5)));
}

#[test]
fn the_device_s_refusals_have_their_codes() {
    for (reason, nak) in [
        (Reason::RespRemoteAccessErrors, Nak::RemoteAccessError),
        (Reason::RespOperationalError, Nak::RemoteOperationalError),
        (Reason::RespLocalLengthError, Nak::InvalidRequest),
    ] {
        let mut it = responder();
        carried_out(&mut it, send(0));
        let execution = execution(&mut it, send(1));
        it.executed(execution, Executed::Refused(reason));
        assert!(it.is_closed());
        assert_eq!(acks(&mut it), [(1, Syndrome::Nak(nak), 1)]);
        // The refusal comes again to a requester that does not know of it: it acknowledges what
        // came before.
        for n in [1, 0] {
            nothing(&mut it, send(n), Reason::DuplicateRequest);
            assert_eq!(acks(&mut it), [(1, Syndrome::Nak(nak), 1)]);
        }
        nothing(&mut it, send(2), Reason::Closed);
        assert_eq!(acks(&mut it), []);
    }
}

#[test]
fn what_came_before_a_refusal_is_answered_again_after_it() {
    let mut it = responder();
    carried_out(&mut it, read(0, READ));
    carried_out(&mut it, add(4));
    refused(&mut it, Piece { first: false, ..send(5) }, Reason::BadOpcodeSequence);
    while it.respond(1, None).is_some() {}
    // All answers were lost.
    for piece in [read(0, READ), add(4), Piece { first: false, ..send(5) }] {
        nothing(&mut it, piece, Reason::DuplicateRequest);
    }
    for n in 0..4 {
        let answer = it.respond(1, None).unwrap().answer;
        assert_eq!((answer.psn, matches!(answer.body, Body::Read { .. })), (psn(n), true));
    }
    let original = u64::from(psn(4).get());
    assert_eq!(it.respond(1, None).unwrap().answer.body, Body::Atomic { original });
    assert_eq!(acks(&mut it), [(5, INVALID, 2)]);
}

#[test]
fn packets_that_may_not_follow_are_refused() {
    let (w, s) = (Operation::Write, Operation::Send);
    let bad = |before: &[Piece], piece: Piece, reason: Reason| {
        let mut it = responder();
        for piece in before {
            carried_out(&mut it, *piece);
        }
        acks(&mut it);
        refused(&mut it, piece, reason);
        let n = before.len() as u32;
        assert_eq!(acks(&mut it), [(n, INVALID, it.msn())], "{piece:?}");
    };
    let sequence = Reason::BadOpcodeSequence;
    bad(&[], part(s, 5, 0), sequence);
    bad(&[], Piece { first: false, ..send(0) }, sequence);
    for open in [s, w] {
        bad(&[part(open, 0, 0)], part(open, 1, 1), sequence);
        bad(&[part(open, 0, 0)], send(1), sequence);
        bad(&[part(open, 0, 0)], read(1, READ), sequence);
        bad(&[part(open, 0, 0)], add(1), sequence);
        let other = if open == s { w } else { s };
        bad(&[part(open, 0, 0)], part(other, 0, 1), sequence);
        bad(&[part(open, 0, 0), part(open, 0, 1)], part(other, 0, 2), sequence);
        // After the last packet nothing is open.
        bad(&[0, 1, 2].map(|n| part(open, 0, n)), part(open, 2, 3), sequence);
    }
}

#[test]
fn an_unknown_opcode_is_refused_in_its_place() {
    let unknown = |it: &mut Responder, n: u32| match it.receive_unknown(psn(n)) {
        Verdict::Nothing(reason) | Verdict::Refused(reason) => reason,
        other => panic!("{other:?}"),
    };
    let mut it = responder();
    carried_out(&mut it, send(0));
    assert_eq!(unknown(&mut it, 0), Reason::ForgottenRequest);
    assert_eq!(unknown(&mut it, 2), Reason::OutOfSequence);
    assert_eq!(acks(&mut it), [(1, SEQUENCE, 1)]);
    assert_eq!(unknown(&mut it, 1), Reason::UnsupportedRequest);
    assert_eq!(acks(&mut it), [(1, INVALID, 1)]);
    assert_eq!(unknown(&mut it, 1), Reason::DuplicateRequest);
    assert_eq!(acks(&mut it), [(1, INVALID, 1)]);
    assert_eq!(unknown(&mut it, 2), Reason::Closed);
    assert_eq!(acks(&mut it), []);
}

#[test]
fn packets_of_wrong_lengths_are_refused() {
    let (w, s) = (Operation::Write, Operation::Send);
    let bad = |before: &[Piece], piece: Piece, reason: Reason| {
        let mut it = responder();
        for piece in before {
            carried_out(&mut it, *piece);
        }
        refused(&mut it, piece, reason);
    };
    let packet = Reason::BadPacketLength;
    for op in [s, w] {
        for length in [0, 255, 257] {
            bad(&[], Piece { length, ..part(op, 0, 0) }, packet);
            bad(&[part(op, 0, 0)], Piece { length, ..part(op, 0, 1) }, packet);
        }
        for length in [0, 257, u32::MAX] {
            bad(&[part(op, 0, 0)], Piece { length, last: true, ..part(op, 0, 1) }, packet);
            bad(&[part(op, 0, 0), part(op, 0, 1)], Piece { length, ..part(op, 0, 2) }, packet);
        }
    }
    bad(&[], Piece { length: 257, ..send(0) }, packet);
    bad(&[], Piece { packets: 0, ..send(0) }, packet);
    bad(&[], Piece { packets: 2, length: 256, ..send(0) }, packet);
    bad(&[], Piece { packets: 2, length: 513, ..send(0) }, packet);
    // Requests without payload have one packet.
    for request in [read(0, READ), add(0)] {
        bad(&[], Piece { length: 4, ..request }, packet);
        bad(&[], Piece { packets: 2, ..request }, packet);
    }
    let message = Reason::RespLocalLengthError;
    // More or less than the RETH announced.
    bad(&[part(w, 0, 0), part(w, 0, 1)], Piece { length: 87, ..part(w, 0, 2) }, message);
    bad(&[part(w, 0, 0), part(w, 0, 1)], Piece { length: 89, ..part(w, 0, 2) }, message);
    bad(&[0, 1].map(|n| part(w, 0, n)), Piece { last: false, length: 256, ..part(w, 0, 2) }, message);
    let only = Piece { operation: w, remote: Some(Remote { length: 9, ..READ }), ..send(0) };
    bad(&[], only, message);
    // The longest, and one that is longer than any message.
    let longest = Remote { length: MAX_MESSAGE, ..READ };
    assert_eq!(execution(&mut responder(), read(0, longest)).remote, longest);
    let huge = Remote { length: MAX_MESSAGE + 1, ..READ };
    bad(&[], read(0, huge), message);
    bad(&[], Piece { remote: Some(huge), ..part(w, 0, 0) }, message);
    // Without its header, which no packet is.
    bad(&[], Piece { remote: None, ..part(w, 0, 0) }, Reason::UnsupportedRequest);
    bad(&[], Piece { remote: None, ..read(0, READ) }, Reason::UnsupportedRequest);
    bad(&[], Piece { extra: Extra::Invalidate(1), ..only }, Reason::UnsupportedRequest);
}

#[test]
fn the_longest_send_ends_at_two_gibibytes() {
    let mut it = responder();
    let half = Piece { packets: 1 << 22, length: 1 << 30, last: false, ..send(0) };
    carried_out(&mut it, half);
    let rest = Piece { psn: it.expected(), first: false, last: true, ..half };
    carried_out(&mut it, rest);
    assert_eq!(it.msn(), 1);
    let half = Piece { psn: it.expected(), ..half };
    carried_out(&mut it, half);
    let rest = Piece { psn: it.expected(), last: false, ..rest };
    carried_out(&mut it, rest);
    let over = Piece { psn: it.expected(), packets: 1, length: 1, last: true, ..rest };
    refused(&mut it, over, Reason::RespLocalLengthError);
}

#[test]
fn an_rdma_read_is_answered_packet_by_packet_and_its_psns_are_skipped() {
    let mut it = responder();
    carried_out(&mut it, Piece { ack_request: false, ..send(0) });
    carried_out(&mut it, read(1, READ));
    assert_eq!((it.expected(), it.msn()), (psn(5), 2));
    assert_eq!(
        reads(&mut it),
        [
            (1, true, false, 0x1000, 256),
            (2, false, false, 0x1100, 256),
            (3, false, false, 0x1200, 256),
            (4, false, true, 0x1300, 232)
        ]
    );
    // One of no bytes has an answer of one packet.
    carried_out(&mut it, read(5, Remote { length: 0, ..READ }));
    assert_eq!(reads(&mut it), [(5, true, true, 0x1000, 0)]);
    nothing(&mut it, read(5, Remote { length: 0, ..READ }), Reason::DuplicateRequest);
    assert_eq!(reads(&mut it), [(5, true, true, 0x1000, 0)]);
    // Whole answers for the short cut.
    carried_out(&mut it, read(6, READ));
    let response = it.respond(3, None).unwrap();
    assert_eq!(response.answer.body, Body::Read { packets: 3, first: true, last: false, length: 768 });
    let response = it.respond(3, None).unwrap();
    assert_eq!(response.answer.psn, psn(9));
    assert_eq!(response.answer.body, Body::Read { packets: 1, first: false, last: true, length: 232 });
    assert_eq!(response.gather, Some(Remote { addr: 0x1300, length: 232, ..READ }));
}

#[test]
fn an_rdma_read_starts_again_in_mid_range() {
    let mut it = responder();
    carried_out(&mut it, send(0));
    carried_out(&mut it, read(1, READ));
    carried_out(&mut it, send(5));
    while it.respond(1, None).is_some() {}
    let from = |n: u32, length| Remote { addr: READ.addr + u64::from(n) * 256, length, ..READ };
    nothing(&mut it, read(3, from(2, 1000 - 512)), Reason::DuplicateRequest);
    assert_eq!(reads(&mut it), [(3, true, false, 0x1200, 256), (4, false, true, 0x1300, 232)]);
    nothing(&mut it, read(2, from(1, 256)), Reason::DuplicateRequest);
    assert_eq!(reads(&mut it), [(2, true, true, 0x1100, 256)]);
    // Not counted as a message, and not expected again.
    assert_eq!((it.msn(), it.expected()), (3, psn(6)));
    // While it is being answered, the newest request says where to go on, and nothing gets lost.
    nothing(&mut it, read(1, READ), Reason::DuplicateRequest);
    it.respond(1, None).unwrap();
    nothing(&mut it, read(3, from(2, 256)), Reason::DuplicateRequest);
    assert_eq!(reads(&mut it), [(3, true, false, 0x1200, 256), (4, false, true, 0x1300, 232)]);
    // Another key, a place that is not the packet's, more than there was.
    for (n, remote) in [
        (1, Remote { key: 8, ..READ }),
        (2, READ),
        (2, from(0, 256)),
        (2, from(1, 1000)),
        (1, Remote { length: 1001, ..READ }),
        (1, Remote { length: u32::MAX, ..READ }),
        (5, from(4, 1)),
        (0, READ),
    ] {
        nothing(&mut it, read(n, remote), Reason::ForgottenRequest);
    }
    nothing(&mut it, add(1), Reason::ForgottenRequest);
    assert_eq!(reads(&mut it), []);
    // Nothing is behind the last packet, not even no bytes.
    let mut it = responder();
    carried_out(&mut it, read(0, Remote { length: 512, ..READ }));
    carried_out(&mut it, send(2));
    while it.respond(1, None).is_some() {}
    nothing(&mut it, read(2, from(2, 0)), Reason::ForgottenRequest);
    nothing(&mut it, read(1, from(1, 256)), Reason::DuplicateRequest);
    assert_eq!(reads(&mut it), [(1, true, true, 0x1100, 256)]);
}

#[test]
fn an_atomic_operation_is_answered_again_and_carried_out_once() {
    let mut it = responder();
    let originals = |it: &mut Responder| {
        let mut found = Vec::new();
        while let Some(Response { answer, gather: None }) = it.respond(1, None) {
            let Body::Atomic { original } = answer.body else { panic!("{answer:?}") };
            found.push((answer.psn, original, answer.aeth.unwrap().msn));
        }
        found
    };
    for n in 0..3 {
        carried_out(&mut it, add(n));
        assert_eq!(originals(&mut it), [(psn(n), psn(n).get().into(), n + 1)]);
    }
    // Two are remembered.
    for n in [2, 1, 2] {
        nothing(&mut it, add(n), Reason::DuplicateRequest);
        assert_eq!(originals(&mut it), [(psn(n), psn(n).get().into(), n + 1)]);
    }
    nothing(&mut it, add(0), Reason::ForgottenRequest);
    nothing(&mut it, read(2, READ), Reason::ForgottenRequest);
    nothing(&mut it, add(1), Reason::DuplicateRequest);
    nothing(&mut it, add(2), Reason::DuplicateRequest);
    assert_eq!(originals(&mut it).len(), 2);
    assert_eq!(it.expected(), psn(3));
}

#[test]
fn a_result_is_forgotten_before_its_psn_comes_round_again() {
    let mut it = responder();
    carried_out(&mut it, add(0));
    it.respond(1, None);
    // Two messages of 2^22 packets are half a circle: from here on the PSN is not "before".
    for n in 0..4 {
        if n < 2 {
            nothing(&mut it, add(0), Reason::DuplicateRequest);
        }
        let big = Piece { psn: it.expected(), packets: 1 << 22, length: 1 << 30, ..send(0) };
        carried_out(&mut it, big);
    }
    assert_eq!(it.expected(), psn(1));
    nothing(&mut it, add(0), Reason::ForgottenRequest);
}

#[test]
fn answers_are_in_the_order_of_psns() {
    let mut it = responder();
    carried_out(&mut it, send(0));
    carried_out(&mut it, read(1, READ));
    carried_out(&mut it, send(5));
    carried_out(&mut it, add(6));
    carried_out(&mut it, send(7));
    nothing(&mut it, send(9), Reason::OutOfSequence);
    let psns: Vec<_> =
        std::iter::from_fn(|| it.respond(1, None)).map(|r| r.answer.psn.offset_from(psn(0))).collect();
    assert_eq!(psns, [1, 2, 3, 4, 6, 8]);
    // So are those of repetitions.
    nothing(&mut it, add(6), Reason::DuplicateRequest);
    nothing(&mut it, read(1, READ), Reason::DuplicateRequest);
    nothing(&mut it, send(7), Reason::DuplicateRequest);
    let psns: Vec<_> =
        std::iter::from_fn(|| it.respond(1, None)).map(|r| r.answer.psn.offset_from(psn(0))).collect();
    assert_eq!(psns, [1, 2, 3, 4, 6, 7]);
}

#[test]
fn more_reads_at_once_than_announced_are_refused() {
    let mut it = responder();
    carried_out(&mut it, read(0, READ));
    carried_out(&mut it, read(4, READ));
    refused(&mut it, read(8, READ), Reason::TooManyReads);
    let last = std::iter::from_fn(|| it.respond(1, None)).last().unwrap();
    assert_eq!((last.answer.psn, last.answer.aeth.unwrap().syndrome), (psn(8), INVALID));
    // One that is answered leaves its place, even while a repetition of it is due.
    let mut it = responder();
    carried_out(&mut it, read(0, READ));
    carried_out(&mut it, add(4));
    while it.respond(1, None).is_some() {}
    nothing(&mut it, read(0, READ), Reason::DuplicateRequest);
    carried_out(&mut it, read(5, READ));
    assert_eq!(reads(&mut it).len(), 4);
    // None at all.
    let mut it = Responder::new(psn(0), MTU, 0);
    refused(&mut it, read(0, READ), Reason::UnsupportedRequest);
    let mut it = Responder::new(psn(0), MTU, 0);
    it.set_resources(1);
    carried_out(&mut it, add(0));
    it.set_resources(0);
    nothing(&mut it, add(0), Reason::ForgottenRequest);
}

#[test]
fn bytes_that_cannot_be_read_end_the_answers() {
    let mut it = responder();
    carried_out(&mut it, read(0, READ));
    carried_out(&mut it, add(4));
    it.respond(1, None).unwrap();
    let second = it.respond(1, None).unwrap();
    assert!(it.unreadable(&second.answer, Reason::RespRemoteAccessErrors));
    assert_eq!(acks(&mut it), [(1, Syndrome::Nak(Nak::RemoteAccessError), 2)]);
    nothing(&mut it, add(4), Reason::Closed);
    // The packets before it may be asked for again; then it cannot be read again.
    nothing(&mut it, read(0, READ), Reason::DuplicateRequest);
    assert_eq!(it.respond(1, None).unwrap().answer.psn, psn(0));
    assert_eq!(it.respond(1, None).unwrap().answer, second.answer);
    assert!(it.unreadable(&second.answer, Reason::RespRemoteAccessErrors));
    assert_eq!(acks(&mut it), [(1, Syndrome::Nak(Nak::RemoteAccessError), 2)]);
}

/// The requester may have the answer, and the memory be gone since: a network that duplicates a
/// request ends no connection. If it waits for the answer, it hears that there is none.
#[test]
fn a_repetition_that_cannot_be_read_is_refused_and_ends_nothing() {
    let mut it = responder();
    carried_out(&mut it, read(0, READ));
    assert_eq!(reads(&mut it).len(), 4);
    carried_out(&mut it, read(4, READ));
    nothing(&mut it, read(0, READ), Reason::DuplicateRequest);
    let again = it.respond(1, None).unwrap();
    assert_eq!(again.answer.psn, psn(0));
    assert!(!it.unreadable(&again.answer, Reason::RespRemoteAccessErrors));
    let refusal = it.respond(1, None).unwrap().answer;
    let syndrome = refusal.aeth.unwrap().syndrome;
    assert_eq!((refusal.psn, syndrome), (psn(0), Syndrome::Nak(Nak::RemoteAccessError)));
    assert!(!it.is_closed());
    // What is not a repetition follows, and ends the answers if it cannot be read.
    let next = it.respond(1, None).unwrap();
    assert_eq!(next.answer.psn, psn(4));
    assert!(it.unreadable(&next.answer, Reason::RespRemoteAccessErrors));
    assert_eq!(acks(&mut it), [(4, Syndrome::Nak(Nak::RemoteAccessError), 2)]);
}

#[test]
fn credits_count_the_receive_of_the_open_message() {
    let mut it = responder();
    let credits = |it: &mut Responder, receives| {
        let aeth = it.respond(1, Some(receives)).unwrap().answer.aeth.unwrap();
        assert_eq!(aeth.msn, it.msn());
        aeth.syndrome
    };
    carried_out(&mut it, Piece { ack_request: true, ..part(Operation::Send, 0, 0) });
    assert_eq!(credits(&mut it, 2), Syndrome::Ack(3));
    carried_out(&mut it, part(Operation::Send, 0, 1));
    carried_out(&mut it, part(Operation::Send, 0, 2));
    assert_eq!(credits(&mut it, 5), Syndrome::Ack(4));
    carried_out(&mut it, Piece { ack_request: true, ..part(Operation::Write, 3, 3) });
    assert_eq!(credits(&mut it, 0), Syndrome::Ack(0));
}

#[test]
fn a_piece_that_is_known_in_part_is_carried_out_from_there_on() {
    for operation in [Operation::Send, Operation::Write] {
        let remote = (operation == Operation::Write).then_some(Remote { length: 1000, ..READ });
        let whole = Piece { operation, packets: 4, length: 1000, remote, ..send(0) };
        let mut it = responder();
        carried_out(&mut it, Piece { packets: 3, length: 768, last: false, ..whole });
        let execution = execution(&mut it, whole);
        assert_eq!((execution.offset, execution.length), (768, 232));
        assert_eq!((execution.first, execution.last), (false, true));
        it.executed(execution, Executed::Done(0));
        assert_eq!((it.expected(), it.msn()), (psn(4), 1));
        assert_eq!(acks(&mut it), [(3, Syndrome::ACK, 1)]);
        nothing(&mut it, whole, Reason::DuplicateRequest);
        // Nonsense.
        let bad = Piece { packets: 6, length: 5, ..whole };
        refused(&mut it, bad, Reason::BadPacketLength);
    }
}

#[test]
fn a_piece_and_its_packet_say_the_same() {
    let data = [7; 256];
    let mut opcodes = Vec::new();
    let extras = [Extra::None, Extra::Immediate(5), Extra::Invalidate(6)];
    let swap = Operation::CompareSwap { compare: 3, swap: 4 };
    for operation in
        [Operation::Send, Operation::Write, Operation::Read, swap, Operation::FetchAdd { add: 2 }]
    {
        for (first, last) in [(true, true), (true, false), (false, false), (false, true)] {
            for extra in extras {
                let payload = if operation.carries_payload() { &data[..] } else { &[] };
                let length = if operation == Operation::Read { 999 } else { 8 };
                let needs_remote = first && operation != Operation::Send;
                let piece = Piece {
                    operation,
                    first,
                    last,
                    extra,
                    length: payload.len() as u32,
                    remote: needs_remote.then_some(Remote { length, ..READ }),
                    solicited: first,
                    ..send(3)
                };
                for service in [Service::Rc, Service::Uc] {
                    let Some(packet) = piece.to_packet(service, Qpn::GSI, payload) else { continue };
                    let mut bytes = vec![0; packet.len()];
                    packet.emit(&mut bytes).unwrap();
                    let packet = roce::wire::packet::Repr::parse(&bytes).unwrap();
                    let (found, back) = Piece::from_packet(&packet).unwrap();
                    let extra = if last { extra } else { Extra::None };
                    assert_eq!((found, back), (service, Piece { extra, ..piece }));
                    opcodes.push(packet.bth.opcode);
                }
                assert_eq!(piece.to_packet(Service::Rc, Qpn::GSI, &data[1..]), None);
            }
        }
    }
    for opcode in Opcode::ALL {
        let request = (opcode.is_rc() || opcode.is_uc()) && !opcode.is_response();
        assert_eq!(opcodes.contains(opcode), request, "{opcode:?}");
    }
}
