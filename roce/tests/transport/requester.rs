//! The requester of a reliable connection, packet by packet.

use std::time::Duration;

use platform::Instant;
use roce::transport::code::rnr_delay;
use roce::transport::{
    Answer, Body, Config, Event, Extra, Limits, MAX_MESSAGE, Message, Operation, Piece, PostError, Reason,
    Received, Requester, Status, Transmit,
};
use roce::wire::aeth::{self, Nak, Syndrome};
use roce::{PathMtu, Psn, TimeoutCode};

use crate::world::{config, limits, message};

pub const NOW: Instant = Instant::from_nanos(1_000_000);
/// 4.096 us * 2^14.
pub const TIMEOUT: Duration = Duration::from_nanos(4096 << 14);
pub const SEND: Operation = Operation::Send;
pub const WRITE: Operation = Operation::Write;
pub const READ: Operation = Operation::Read;
pub const ADD: Operation = Operation::FetchAdd { add: 1 };

pub fn psn(n: u32) -> Psn {
    config().psn.add(n)
}

/// A requester with these work requests, each named by its place.
pub fn with(config: &Config, requests: &[(Operation, u32)]) -> Requester {
    let mut it = Requester::new(config);
    for (id, (operation, length)) in (0..).zip(requests) {
        it.post(message(id, *operation, *length)).unwrap();
    }
    it
}

/// The PSNs of the packets that are sent now, counted from the first.
pub fn sent(it: &mut Requester) -> Vec<u32> {
    pieces(it).iter().map(|piece| piece.psn.offset_from(psn(0))).collect()
}

pub fn pieces(it: &mut Requester) -> Vec<Piece> {
    std::iter::from_fn(|| it.transmit(NOW, 1))
        .filter_map(|transmit| match transmit {
            Transmit::Piece { piece, .. } => Some(piece),
            Transmit::Local { .. } => None,
        })
        .collect()
}

pub fn aeth(syndrome: Syndrome, msn: u32) -> Option<aeth::Repr> {
    Some(aeth::Repr { syndrome, msn })
}

fn answer(n: u32, syndrome: Syndrome) -> Answer {
    Answer { psn: psn(n), aeth: aeth(syndrome, 0), body: Body::Acknowledge }
}

pub fn ack(it: &mut Requester, n: u32) -> Received {
    it.receive(&answer(n, Syndrome::ACK), NOW)
}

fn nak(it: &mut Requester, n: u32, nak: Nak) -> Received {
    it.receive(&answer(n, Syndrome::Nak(nak)), NOW)
}

/// A packet of an RDMA Read's answer.
pub fn bytes(n: u32, length: u32, last: bool) -> Answer {
    let body = Body::Read { packets: 1, first: false, last, length };
    Answer { psn: psn(n), aeth: if last { aeth(Syndrome::ACK, 0) } else { None }, body }
}

fn original(n: u32) -> Answer {
    Answer { psn: psn(n), aeth: aeth(Syndrome::ACK, 0), body: Body::Atomic { original: 42 } }
}

pub fn completed(it: &mut Requester) -> Vec<u32> {
    std::iter::from_fn(|| it.poll())
        .map(|event| match event {
            Event::Completed { id } => id,
            Event::Failed { .. } => panic!("{event:?}"),
        })
        .collect()
}

/// The failure of a work request, which is the next event and the last.
#[track_caller]
fn failed(it: &mut Requester, id: u32, status: Status) {
    assert_eq!(it.poll(), Some(Event::Failed { id, status }));
    assert_eq!((it.poll(), it.timer(), it.transmit(NOW, 1)), (None, None, None));
    assert_eq!(it.post(message(99, SEND, 1)), Err(PostError::Closed));
    assert_eq!(ack(it, 0), Received::Dropped(Reason::Closed));
}

#[test]
fn an_acknowledgement_completes_all_up_to_it_in_the_order_of_posting() {
    let mut it = with(&config(), &[(SEND, 10), (WRITE, 600), (SEND, 0), (SEND, 5)]);
    assert_eq!(it.unacknowledged_psn(), None);
    assert_eq!(sent(&mut it), [0, 1, 2, 3, 4, 5]);
    assert_eq!(it.unacknowledged_psn(), Some(psn(0)));
    assert_eq!(ack(&mut it, 2), Received::Acknowledged);
    assert_eq!(it.unacknowledged_psn(), Some(psn(3)));
    assert_eq!(completed(&mut it), [0]);
    assert_eq!(ack(&mut it, 4), Received::Acknowledged);
    assert_eq!(completed(&mut it), [1, 2]);
    assert_eq!(it.timer(), Some(NOW + TIMEOUT));
    assert_eq!(ack(&mut it, 5), Received::Acknowledged);
    assert_eq!(completed(&mut it), [3]);
    assert_eq!((it.timer(), it.is_empty(), it.unacknowledged_psn()), (None, true, None));
}

#[test]
fn packets_say_what_the_message_says_in_their_place() {
    let mut it = Requester::new(&config());
    it.post(Message { extra: Extra::Immediate(7), ..message(0, WRITE, 600) }).unwrap();
    let pieces = pieces(&mut it);
    assert_eq!(
        pieces.iter().map(|p| (p.first, p.last, p.length)).collect::<Vec<_>>(),
        [(true, false, 256), (false, false, 256), (false, true, 88)]
    );
    assert_eq!(
        pieces.iter().map(|p| p.remote.map(|r| r.length)).collect::<Vec<_>>(),
        [Some(600), None, None]
    );
    let last = Extra::Immediate(7);
    assert_eq!(pieces.iter().map(|p| p.extra).collect::<Vec<_>>(), [Extra::None, Extra::None, last]);
    assert_eq!(pieces.iter().map(|p| p.solicited).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!(pieces.iter().map(|p| p.ack_request).collect::<Vec<_>>(), [false, false, true]);
}

#[test]
fn no_more_packets_are_sent_than_the_window_allows_and_its_last_asks_for_an_acknowledgement() {
    for window in [1, 2, 5, 16] {
        let mut it = with(&Config { window, ..config() }, &[(WRITE, 100 * 256)]);
        let first = pieces(&mut it);
        assert_eq!(first.len() as u32, window);
        assert!(first.last().unwrap().ack_request);
        assert_eq!(ack(&mut it, 0), Received::Acknowledged);
        assert_eq!(sent(&mut it), [window]);
        // After going back the same packets are sent, and the last asks again.
        assert!(matches!(nak(&mut it, 1, Nak::PsnSequenceError), Received::Retry(_)));
        let again = pieces(&mut it);
        assert_eq!(again.len() as u32, window);
        assert!(again.last().unwrap().ack_request);
    }
    // A piece is cut where the window ends, and covers the rest later.
    let mut it = with(&Config { window: 5, ..config() }, &[(WRITE, 8 * 256)]);
    let Some(Transmit::Piece { piece, offset: 0, .. }) = it.transmit(NOW, 100) else { panic!() };
    assert_eq!((piece.packets, piece.length, piece.last, piece.ack_request), (5, 1280, false, true));
    assert_eq!(ack(&mut it, 4), Received::Acknowledged);
    let Some(Transmit::Piece { piece, offset: 1280, .. }) = it.transmit(NOW, 100) else { panic!() };
    assert_eq!((piece.packets, piece.length, piece.last, piece.first), (3, 768, true, false));
}

#[test]
fn the_answer_of_an_rdma_read_does_not_fill_the_window() {
    let mut it = with(&Config { window: 2, ..config() }, &[(READ, 2560), (SEND, 1), (SEND, 1), (SEND, 1)]);
    assert_eq!(sent(&mut it), [0, 10, 11]);
}

#[test]
fn half_a_circle_is_outstanding_at_most() {
    let mut it = with(&config(), &[(READ, MAX_MESSAGE), (SEND, 1), (ADD, 8)]);
    assert_eq!(sent(&mut it), [0]);
    let body = Body::Read { packets: 1 << 23, first: true, last: true, length: MAX_MESSAGE };
    let all = Answer { psn: psn(0), aeth: aeth(Syndrome::ACK, 0), body };
    assert_eq!(it.receive(&all, NOW), Received::Read { id: 0, offset: 0, length: MAX_MESSAGE });
    assert_eq!(sent(&mut it), [1 << 23, (1 << 23) + 1]);
    // A Write of that many packets, in two halves, and back to its start.
    let wide = Config { window: u32::MAX, ..config() };
    let mut it = with(&wide, &[(WRITE, MAX_MESSAGE), (SEND, 1)]);
    for _ in 0..2 {
        assert!(it.transmit(NOW, 1 << 22).is_some());
    }
    assert_eq!(it.transmit(NOW, 1 << 22), None);
    assert!(it.expired(NOW + TIMEOUT).is_some());
    assert_eq!(it.next_psn(), psn(0));
    for _ in 0..2 {
        assert!(it.transmit(NOW, 1 << 22).is_some());
    }
    assert_eq!(ack(&mut it, (1 << 23) - 1), Received::Acknowledged);
    assert_eq!((completed(&mut it), sent(&mut it)), (vec![0], vec![1 << 23]));
}

#[test]
fn a_fenced_request_waits_for_all_earlier_reads_and_atomics() {
    for (length, fenced) in [(8, ADD), (1, SEND), (0, WRITE), (1, READ)] {
        let mut it = with(&config(), &[(SEND, 1), (READ, 300), (ADD, 8)]);
        it.post(Message { fence: true, ..message(3, fenced, length) }).unwrap();
        it.post(message(4, SEND, 1)).unwrap();
        assert_eq!(sent(&mut it), [0, 1, 3]);
        assert_eq!(ack(&mut it, 0), Received::Acknowledged);
        assert!(matches!(it.receive(&bytes(1, 256, false), NOW), Received::Read { .. }));
        assert!(matches!(it.receive(&bytes(2, 44, true), NOW), Received::Read { .. }));
        assert_eq!(sent(&mut it), []);
        assert_eq!(it.receive(&original(3), NOW), Received::Atomic { id: 2, original: 42 });
        assert_eq!(sent(&mut it), [4, 5]);
        // A fence does not hold up what was sent before.
        assert_eq!(it.expired(NOW + TIMEOUT), Some(Reason::LocalAckTimeoutErr));
        assert_eq!(sent(&mut it), [4, 5]);
    }
}

#[test]
fn local_requests_take_part_in_order_and_fences() {
    let mut it = with(&config(), &[(READ, 1)]);
    it.post_local(1, false).unwrap();
    it.post_local(2, true).unwrap();
    it.post(message(3, SEND, 1)).unwrap();
    let transmit = |it: &mut Requester| match it.transmit(NOW, 1) {
        Some(Transmit::Piece { id, .. } | Transmit::Local { id }) => Some(id),
        None => None,
    };
    assert_eq!((transmit(&mut it), transmit(&mut it), transmit(&mut it)), (Some(0), Some(1), None));
    assert_eq!(completed(&mut it), []);
    assert_eq!(it.expired(NOW + TIMEOUT), Some(Reason::LocalAckTimeoutErr));
    // The RDMA Read goes out again, the local request is not carried out again.
    assert_eq!((transmit(&mut it), transmit(&mut it)), (Some(0), None));
    assert!(matches!(it.receive(&bytes(0, 1, true), NOW), Received::Read { .. }));
    assert_eq!(completed(&mut it), [0, 1]);
    assert_eq!((transmit(&mut it), transmit(&mut it)), (Some(2), Some(3)));
    assert_eq!(completed(&mut it), [2]);
    assert_eq!(ack(&mut it, 1), Received::Acknowledged);
    assert_eq!(completed(&mut it), [3]);
}

#[test]
fn only_what_can_be_is_posted() {
    let mut it = with(&Config { depth: 2, ..config() }, &[]);
    for length in [0, 7, 9] {
        assert_eq!(it.post(Message { length, ..message(0, ADD, 8) }), Err(PostError::Length));
    }
    assert_eq!(it.post(message(0, SEND, MAX_MESSAGE + 1)), Err(PostError::Length));
    let invalidate = Extra::Invalidate(1);
    assert_eq!(it.post(Message { extra: invalidate, ..message(0, WRITE, 8) }), Err(PostError::Operation));
    assert_eq!(it.post(Message { extra: invalidate, ..message(0, READ, 8) }), Err(PostError::Operation));
    assert_eq!(
        it.post(Message { extra: Extra::Immediate(1), ..message(0, ADD, 8) }),
        Err(PostError::Operation)
    );
    it.post(message(0, SEND, 1)).unwrap();
    it.post_local(1, false).unwrap();
    assert_eq!((it.post(message(2, SEND, 1)), it.has_room(), it.len()), (Err(PostError::Full), false, 2));
}

#[test]
fn retries_after_timeouts_run_out_and_start_again_with_progress() {
    let limits = Limits { retry_count: 2, ..limits() };
    let mut it = with(&Config { limits, ..config() }, &[(SEND, 1), (SEND, 1)]);
    let mut now = NOW;
    let timeout = |it: &mut Requester, now: &mut Instant, wait: Duration| {
        assert_eq!(it.timer(), Some(*now + wait));
        assert_eq!(it.expired(*now + (wait - Duration::from_nanos(1))), None);
        *now = *now + wait;
        it.expired(*now)
    };
    for n in 1..3 {
        while it.transmit(now, 1).is_some() {}
        assert_eq!(timeout(&mut it, &mut now, n * TIMEOUT), Some(Reason::LocalAckTimeoutErr));
    }
    while it.transmit(now, 1).is_some() {}
    assert_eq!(it.receive(&answer(0, Syndrome::ACK), now), Received::Acknowledged);
    assert_eq!(completed(&mut it), [0]);
    // The acknowledgement took two timeouts, so the timer waits as long as it may.
    for _ in 0..3 {
        assert_eq!(it.poll(), None);
        while it.transmit(now, 1).is_some() {}
        assert_eq!(timeout(&mut it, &mut now, 4 * TIMEOUT), Some(Reason::LocalAckTimeoutErr));
    }
    failed(&mut it, 1, Status::RetryExceeded);
}

#[test]
fn a_timeout_of_zero_is_for_ever() {
    let limits = Limits { timeout: TimeoutCode::new(0).unwrap(), ..limits() };
    let mut it = with(&Config { limits, ..config() }, &[(SEND, 1)]);
    assert_eq!((sent(&mut it), it.timer()), (vec![0], None));
    assert_eq!(it.expired(Instant::from_nanos(u64::MAX)), None);
}

#[test]
fn a_receiver_that_is_not_ready_is_asked_again_after_its_time() {
    let limits = Limits { rnr_retry: 2, ..limits() };
    let mut it = with(&Config { limits, ..config() }, &[(WRITE, 1), (SEND, 600), (SEND, 1)]);
    let mut now = NOW;
    assert_eq!(sent(&mut it), [0, 1, 2, 3, 4]);
    let rnr = |it: &mut Requester, now| it.receive(&answer(1, Syndrome::RnrNak(7)), now);
    for round in 0..2 {
        assert_eq!(rnr(&mut it, now), Received::Retry(Reason::RnrNakRetryErr));
        // It acknowledges what came before.
        assert_eq!(completed(&mut it), if round == 0 { vec![0] } else { vec![] });
        // The same report again changes nothing.
        assert_eq!(rnr(&mut it, now), Received::Dropped(Reason::DuplicateAnswer));
        assert_eq!(it.timer(), Some(now + rnr_delay(7)));
        let almost = now + (rnr_delay(7) - Duration::from_nanos(1));
        assert_eq!((it.expired(almost), it.transmit(almost, 1)), (None, None));
        now = now + rnr_delay(7);
        assert_eq!((it.expired(now), it.timer()), (None, None));
        let again = std::iter::from_fn(|| it.transmit(now, 1)).count();
        assert_eq!(again, 4);
        assert_eq!(it.timer(), Some(now + TIMEOUT));
    }
    assert_eq!(rnr(&mut it, now), Received::Retry(Reason::RnrNakRetryErr));
    failed(&mut it, 1, Status::RnrRetryExceeded);
    assert_eq!((it.flush(), it.flush()), (Some(2), None));
}

#[test]
fn a_peer_that_is_not_ready_but_answers_restores_the_retry_count() {
    let limits = Limits { rnr_retry: 7, ..limits() };
    let mut it = with(&Config { limits, ..config() }, &[(SEND, 1)]);
    let mut now = NOW;
    // Each round loses as much as is forgiven in a row.
    for _ in 0..10 {
        for _ in 0..limits.retry_count {
            assert!(it.transmit(now, 1).is_some());
            now = it.timer().unwrap();
            assert_eq!((it.expired(now), it.poll()), (Some(Reason::LocalAckTimeoutErr), None));
        }
        assert!(it.transmit(now, 1).is_some());
        let report = answer(0, Syndrome::RnrNak(1));
        assert_eq!(it.receive(&report, now), Received::Retry(Reason::RnrNakRetryErr));
        now = it.timer().unwrap();
        assert_eq!(it.expired(now), None);
    }
    assert!(it.transmit(now, 1).is_some());
    let _ = it.receive(&answer(0, Syndrome::ACK), now);
    assert_eq!(completed(&mut it), [0]);
}

#[test]
fn an_rnr_retry_count_of_seven_is_for_ever_and_progress_restores_any_other() {
    for (rnr_retry, rounds) in [(7, 1000), (1, 1), (0, 0)] {
        let limits = Limits { rnr_retry, ..limits() };
        let mut it = with(&Config { limits, ..config() }, &[(SEND, 1), (SEND, 1)]);
        let mut now = NOW;
        for n in 0..2 {
            for _ in 0..rounds {
                while it.transmit(now, 1).is_some() {}
                let report = answer(n, Syndrome::RnrNak(1));
                assert_eq!(it.receive(&report, now), Received::Retry(Reason::RnrNakRetryErr));
                assert_eq!(it.poll(), None);
                now = now + rnr_delay(1);
            }
            if rounds > 0 {
                while it.transmit(now, 1).is_some() {}
                assert_eq!(it.receive(&answer(n, Syndrome::ACK), now), Received::Acknowledged);
                assert_eq!(completed(&mut it), [n]);
            }
        }
        if rounds == 0 {
            while it.transmit(now, 1).is_some() {}
            let report = answer(0, Syndrome::RnrNak(1));
            assert_eq!(it.receive(&report, now), Received::Retry(Reason::RnrNakRetryErr));
            failed(&mut it, 0, Status::RnrRetryExceeded);
        }
    }
}

#[test]
fn each_refusal_has_its_status_and_acknowledges_what_came_before() {
    for (code, status, reason) in [
        (Nak::RemoteAccessError, Status::RemoteAccess, Reason::ReqRemoteAccessErrors),
        (Nak::InvalidRequest, Status::RemoteInvalidRequest, Reason::ReqRemoteInvalidRequest),
        (Nak::RemoteOperationalError, Status::RemoteOperation, Reason::ReqRemoteOperationalErrors),
        (Nak::InvalidRdRequest, Status::RemoteInvalidRequest, Reason::ReqRemoteInvalidRequest),
    ] {
        let mut it = with(&config(), &[(SEND, 1), (WRITE, 600), (SEND, 1)]);
        assert_eq!(sent(&mut it), [0, 1, 2, 3, 4]);
        assert_eq!(nak(&mut it, 2, code), Received::Refused(reason));
        // The first reason counts.
        it.abort(1);
        assert_eq!(it.poll(), Some(Event::Completed { id: 0 }));
        failed(&mut it, 1, status);
        assert_eq!((it.flush(), it.flush()), (Some(2), None));
    }
}

#[test]
fn a_refusal_that_overtakes_the_answer_of_a_read_counts_when_that_is_complete() {
    let mut it = with(&config(), &[(READ, 300), (WRITE, 1)]);
    assert_eq!(sent(&mut it), [0, 2]);
    assert_eq!(nak(&mut it, 2, Nak::RemoteAccessError), Received::Retry(Reason::ImpliedNakSeqErr));
    assert!(matches!(it.receive(&bytes(0, 256, false), NOW), Received::Read { .. }));
    assert!(matches!(it.receive(&bytes(1, 44, true), NOW), Received::Read { .. }));
    assert_eq!(it.poll(), Some(Event::Completed { id: 0 }));
    failed(&mut it, 1, Status::RemoteAccess);
}

#[test]
fn a_gap_is_mended_once() {
    let mut it = with(&config(), &[(WRITE, 5 * 256)]);
    assert_eq!(sent(&mut it), [0, 1, 2, 3, 4]);
    let gap = Nak::PsnSequenceError;
    assert_eq!(nak(&mut it, 2, gap), Received::Retry(Reason::PacketSeqErr));
    assert_eq!(nak(&mut it, 2, gap), Received::Dropped(Reason::KnownGap));
    assert_eq!(sent(&mut it), [2, 3, 4]);
    assert_eq!(nak(&mut it, 2, gap), Received::Dropped(Reason::KnownGap));
    assert_eq!(sent(&mut it), []);
    assert_eq!(nak(&mut it, 1, gap), Received::Dropped(Reason::DuplicateAnswer));
    assert_eq!(nak(&mut it, 4, gap), Received::Retry(Reason::PacketSeqErr));
    assert_eq!(sent(&mut it), [4]);
    // What is acknowledged before it is sent again need not be sent.
    let mut it = with(&config(), &[(WRITE, 5 * 256), (SEND, 1)]);
    assert_eq!(sent(&mut it), [0, 1, 2, 3, 4, 5]);
    assert_eq!(nak(&mut it, 1, gap), Received::Retry(Reason::PacketSeqErr));
    assert_eq!(ack(&mut it, 3), Received::Acknowledged);
    assert_eq!(sent(&mut it), [4, 5]);
}

#[test]
fn gaps_in_a_row_without_progress_exceed_the_retry_count() {
    let limits = Limits { retry_count: 0, ..limits() };
    let mut it = with(&Config { limits, ..config() }, &[(SEND, 1), (SEND, 1)]);
    assert_eq!(sent(&mut it), [0, 1]);
    assert_eq!(nak(&mut it, 0, Nak::PsnSequenceError), Received::Retry(Reason::PacketSeqErr));
    failed(&mut it, 0, Status::RetryExceeded);
}

#[test]
fn answers_without_a_question_change_nothing() {
    let mut it = with(&config(), &[(SEND, 1), (READ, 600), (ADD, 8), (SEND, 300)]);
    let never = Received::Dropped(Reason::AnswerNeverAskedFor);
    let duplicate = Received::Dropped(Reason::DuplicateAnswer);
    assert_eq!(ack(&mut it, 0), never);
    assert_eq!(sent(&mut it), [0, 1, 4, 5, 6]);
    // Not sent; the last before the first.
    assert_eq!(
        (ack(&mut it, 7), ack(&mut it, 0xff_ffff), ack(&mut it, 0x80_0007)),
        (never, duplicate, duplicate)
    );
    // A Send has no such answers.
    assert_eq!(it.receive(&bytes(0, 1, true), NOW), never);
    assert_eq!(it.receive(&original(0), NOW), never);
    assert_eq!(it.receive(&bytes(5, 256, false), NOW), never);
    assert_eq!(it.receive(&original(6), NOW), never);
    assert_eq!((completed(&mut it), sent(&mut it), it.next_psn()), (vec![], vec![], psn(7)));
    // An acknowledgement cannot replace the answer of an RDMA Read.
    assert_eq!(ack(&mut it, 3), Received::Retry(Reason::ImpliedNakSeqErr));
    assert_eq!((completed(&mut it), it.next_psn()), (vec![0], psn(1)));
    // An acknowledgement without its header is no packet.
    let bare = Answer { aeth: None, ..answer(5, Syndrome::ACK) };
    assert_eq!(it.receive(&bare, NOW), Received::Dropped(Reason::BadAnswer));
}

#[test]
fn an_answer_of_another_kind_or_length_ends_the_connection() {
    let nak = aeth(Syndrome::Nak(Nak::RemoteAccessError), 0);
    let bad = [
        original(0),
        bytes(0, 255, false),
        bytes(0, 257, false),
        bytes(0, 600, true),
        bytes(0, 256, true),
        bytes(0, 0, true),
        Answer { body: Body::Read { packets: 0, first: true, last: false, length: 0 }, ..bytes(0, 0, false) },
        Answer {
            body: Body::Read { packets: 4, first: true, last: true, length: 600 },
            ..bytes(0, 0, false)
        },
        Answer {
            body: Body::Read { packets: 3, first: true, last: false, length: 768 },
            ..bytes(0, 0, false)
        },
        Answer { aeth: nak, ..bytes(0, 256, false) },
    ];
    for answer in bad {
        let mut it = with(&config(), &[(READ, 600), (SEND, 1)]);
        assert_eq!(sent(&mut it), [0, 3]);
        assert_eq!(it.receive(&answer, NOW), Received::Refused(Reason::BadAnswer), "{answer:?}");
        failed(&mut it, 0, Status::BadResponse);
    }
    for answer in [bytes(0, 256, true), bytes(0, 8, true), Answer { aeth: nak, ..original(0) }] {
        let mut it = with(&config(), &[(ADD, 8)]);
        assert_eq!(sent(&mut it), [0]);
        assert_eq!(it.receive(&answer, NOW), Received::Refused(Reason::BadAnswer), "{answer:?}");
        failed(&mut it, 0, Status::BadResponse);
    }
    // The whole answer at once is one answer.
    let mut it = with(&config(), &[(READ, 600)]);
    assert_eq!(sent(&mut it), [0]);
    let body = Body::Read { packets: 3, first: true, last: true, length: 600 };
    let whole = Answer { body, ..bytes(0, 0, true) };
    assert_eq!(it.receive(&whole, NOW), Received::Read { id: 0, offset: 0, length: 600 });
    assert_eq!(completed(&mut it), [0]);
}

#[test]
fn a_request_that_the_device_aborts_fails_after_the_earlier_ones() {
    let mut it = with(&config(), &[(SEND, 1), (WRITE, 600), (SEND, 1)]);
    assert!(it.transmit(NOW, 1).is_some() && it.transmit(NOW, 1).is_some());
    // Its payload cannot be gathered.
    it.abort(1);
    assert_eq!((it.transmit(NOW, 1), it.poll()), (None, None));
    assert_eq!(it.post(message(3, SEND, 1)), Err(PostError::Closed));
    assert_eq!(ack(&mut it, 0), Received::Acknowledged);
    assert_eq!(it.poll(), Some(Event::Completed { id: 0 }));
    failed(&mut it, 1, Status::Aborted);
    assert_eq!((it.flush(), it.flush()), (Some(2), None));
    // An answer that cannot be scattered.
    let mut it = with(&config(), &[(READ, 1), (SEND, 1)]);
    assert_eq!(sent(&mut it), [0, 1]);
    assert!(matches!(it.receive(&bytes(0, 1, true), NOW), Received::Read { id: 0, .. }));
    it.abort(0);
    failed(&mut it, 0, Status::Aborted);
    // Of several the oldest fails.
    for ids in [[1, 2], [2, 1]] {
        let mut it = with(&config(), &[(SEND, 1), (SEND, 1), (SEND, 1)]);
        assert_eq!(sent(&mut it), [0, 1, 2]);
        for id in ids {
            it.abort(id);
        }
        it.abort(77);
        assert_eq!(ack(&mut it, 2), Received::Acknowledged);
        assert_eq!(it.poll(), Some(Event::Completed { id: 0 }));
        failed(&mut it, 1, Status::Aborted);
    }
}

#[test]
fn a_queue_that_drains_ends_what_it_began_and_begins_nothing() {
    let mut it = with(&Config { window: 2, ..config() }, &[(WRITE, 600), (SEND, 1)]);
    assert_eq!(sent(&mut it), [0, 1]);
    it.drain(true);
    assert!(!it.is_drained());
    assert_eq!(ack(&mut it, 1), Received::Acknowledged);
    assert!(!it.is_drained(), "the message is not sent to its end");
    assert_eq!(sent(&mut it), [2]);
    // It also sends again.
    assert_eq!(it.expired(NOW + TIMEOUT), Some(Reason::LocalAckTimeoutErr));
    assert_eq!(sent(&mut it), [2]);
    assert_eq!(ack(&mut it, 2), Received::Acknowledged);
    assert!(!it.is_drained(), "an event is left");
    assert_eq!(completed(&mut it), [0]);
    assert!(it.is_drained());
    it.post_local(5, false).unwrap();
    assert_eq!(it.transmit(NOW, 1), None);
    it.drain(false);
    assert!(!it.is_drained());
    assert_eq!(sent(&mut it), [3]);
}

#[test]
fn without_credits_one_packet_at_a_time_is_sent() {
    let counted = Config { credits: true, ..config() };
    let mut it = with(&counted, &[(SEND, 300), (SEND, 1), (SEND, 1), (SEND, 1), (WRITE, 1)]);
    let credits = |it: &mut Requester, n: u32, msn: u32, code: u8| {
        let ack = Answer { aeth: aeth(Syndrome::Ack(code), msn), ..answer(n, Syndrome::ACK) };
        it.receive(&ack, NOW)
    };
    let first = pieces(&mut it);
    assert_eq!((first.len(), first[0].ack_request), (1, true));
    // Of two messages in all, one is under way.
    assert_eq!(credits(&mut it, 0, 0, 2), Received::Acknowledged);
    assert_eq!(sent(&mut it), [1, 2, 3]);
    assert_eq!(sent(&mut it), []);
    // The acknowledgement without a further credit, then the same with one.
    assert_eq!(credits(&mut it, 3, 3, 0), Received::Acknowledged);
    assert_eq!(completed(&mut it), [0, 1, 2]);
    assert_eq!(sent(&mut it), [4, 5], "one without a credit, and one that needs none");
    // A later limit that is lower is none.
    assert_eq!(credits(&mut it, 4, 4, 5), Received::Acknowledged);
    assert_eq!(credits(&mut it, 4, 3, 1), Received::Dropped(Reason::DuplicateAnswer));
    for id in 5..8 {
        it.post(message(id, SEND, 1)).unwrap();
    }
    assert_eq!(sent(&mut it), [6, 7, 8]);
}

#[test]
fn the_last_acknowledgement_again_may_bring_credits() {
    let mut it = with(&Config { credits: true, ..config() }, &[(SEND, 1), (SEND, 1), (SEND, 1), (SEND, 1)]);
    let credits = |it: &mut Requester, code| {
        let ack = Answer { aeth: aeth(Syndrome::Ack(code), 1), ..answer(0, Syndrome::ACK) };
        it.receive(&ack, NOW)
    };
    assert_eq!(sent(&mut it), [0]);
    assert_eq!(credits(&mut it, 0), Received::Acknowledged);
    assert_eq!(sent(&mut it), [1]);
    assert_eq!(credits(&mut it, 3), Received::Dropped(Reason::DuplicateAnswer));
    assert_eq!(sent(&mut it), [2, 3]);
    // 31: the responder does not count.
    let mut it = with(&Config { credits: true, ..config() }, &[(SEND, 1), (SEND, 1), (SEND, 1), (SEND, 1)]);
    assert_eq!(sent(&mut it), [0]);
    assert_eq!(credits(&mut it, 31), Received::Acknowledged);
    assert_eq!(sent(&mut it), [1, 2, 3]);
}

#[test]
fn a_packet_without_a_credit_asks_for_an_acknowledgement_again() {
    let mut it = with(&Config { credits: true, window: 256, ..config() }, &[(SEND, 1), (SEND, 2560)]);
    let credits = |it: &mut Requester, n, msn, code| {
        let ack = Answer { aeth: aeth(Syndrome::Ack(code), msn), ..answer(n, Syndrome::ACK) };
        assert_eq!(it.receive(&ack, NOW), Received::Acknowledged);
    };
    let next = |it: &mut Requester, max_packets| match it.transmit(NOW, max_packets) {
        Some(Transmit::Piece { piece, .. }) => {
            (piece.psn.offset_from(psn(0)), piece.packets, piece.ack_request)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(next(&mut it, 4), (0, 1, true));
    // Credits are not counted; then they are, and there are none.
    credits(&mut it, 0, 1, 31);
    assert_eq!(next(&mut it, 4), (1, 4, false));
    credits(&mut it, 2, 1, 0);
    assert_eq!(next(&mut it, 4), (5, 1, true));
    assert_eq!(it.transmit(NOW, 4), None);
    assert_eq!(it.expired(NOW + TIMEOUT), Some(Reason::LocalAckTimeoutErr));
    assert_eq!(next(&mut it, 4), (3, 3, true));
    assert_eq!(it.transmit(NOW, 4), None);
    // Only the piece that has it asks, not the one in front of it.
    assert_eq!(it.expired(NOW + 3 * TIMEOUT), Some(Reason::LocalAckTimeoutErr));
    assert_eq!(next(&mut it, 2), (3, 2, false));
    assert_eq!(next(&mut it, 2), (5, 1, true));
}

#[test]
fn of_a_write_with_immediate_data_the_last_packet_needs_a_credit() {
    for max_packets in [1, 10] {
        let mut it = Requester::new(&Config { credits: true, ..config() });
        it.post(Message { extra: Extra::Immediate(1), ..message(0, WRITE, 900) }).unwrap();
        it.post(Message { extra: Extra::Immediate(1), ..message(1, WRITE, 900) }).unwrap();
        let mut packets = 0;
        while let Some(Transmit::Piece { piece, .. }) = it.transmit(NOW, max_packets) {
            packets += piece.packets;
        }
        // All of the first, whose last packet goes without a credit, and three of the second.
        assert_eq!(packets, 7);
    }
}

#[test]
fn a_request_begins_once_with_its_first_packet() {
    let mut it = with(&config(), &[(SEND, 300), (READ, 1)]);
    it.post_local(7, false).unwrap();
    it.post(message(8, SEND, 1)).unwrap();
    let mut begun = Vec::new();
    for sent in 0..=5 {
        begun.push(it.begins());
        assert_eq!(it.transmit(NOW, 1).is_some(), sent < 5);
    }
    // The Send has two packets, and what is local does not begin.
    assert_eq!(begun, [Some(0), None, Some(1), None, Some(8), None]);
    assert_eq!(it.expired(NOW + TIMEOUT), Some(Reason::LocalAckTimeoutErr));
    assert_eq!(it.begins(), None, "it has begun already");
}

#[test]
fn a_flushed_queue_sends_nothing() {
    let mut it = with(&config(), &[(SEND, 1), (SEND, 1), (SEND, 1)]);
    assert!(it.transmit(NOW, 1).is_some());
    assert_eq!(it.flush(), Some(0));
    assert_eq!((it.transmit(NOW, 1), it.len()), (None, 2));
}

#[test]
fn what_has_not_left_the_device_is_sent_again_and_that_counts_as_no_retry() {
    let limits = Limits { retry_count: 0, ..limits() };
    let mut it = with(&Config { limits, ..config() }, &[(SEND, 1), (SEND, 1)]);
    for _ in 0..3 {
        assert_eq!(sent(&mut it), [0, 1]);
        assert_eq!(it.timer(), Some(NOW + TIMEOUT));
        it.restart();
        assert_eq!((it.timer(), it.next_psn()), (None, psn(0)));
    }
    assert_eq!(sent(&mut it), [0, 1]);
    it.abort(0);
    it.restart();
    assert_eq!(it.next_psn(), psn(2), "it fails");
}

#[test]
fn mtus_are_those_of_the_path() {
    for mtu in [PathMtu::B256, PathMtu::B4096] {
        let mut it = with(&Config { mtu, ..config() }, &[(SEND, 4096)]);
        assert_eq!(pieces(&mut it).len() as u32, 4096 / mtu.bytes());
    }
}
