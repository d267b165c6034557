//! The requester's RDMA Reads: how many are asked for, what is asked for again, and in which parts.

use roce::transport::{
    Answer, Body, Config, Event, Limits, Piece, PostError, Reason, Received, Requester, Status,
};
use roce::wire::aeth::Syndrome;

use crate::requester::{ADD, NOW, READ, SEND, TIMEOUT, ack, aeth, bytes, completed, pieces, psn, sent, with};
use crate::world::{config, limits, message};

#[test]
fn reads_and_atomics_are_as_many_at_once_as_allowed() {
    let limits = Limits { max_rd_atomic: 2, ..limits() };
    let mut it =
        with(&Config { limits, ..config() }, &[(READ, 300), (ADD, 8), (SEND, 1), (READ, 1), (SEND, 1)]);
    assert_eq!(sent(&mut it), [0, 2, 3]);
    assert_eq!(it.receive(&bytes(0, 256, false), NOW), Received::Read { id: 0, offset: 0, length: 256 });
    assert_eq!(sent(&mut it), []);
    assert_eq!(it.receive(&bytes(1, 44, true), NOW), Received::Read { id: 0, offset: 256, length: 44 });
    assert_eq!((completed(&mut it), sent(&mut it)), (vec![0], vec![4, 5]));
    it.set_limits(Limits { max_rd_atomic: 0, ..limits });
    assert_eq!(it.post(message(9, READ, 1)), Err(PostError::Operation));
}

#[test]
fn a_read_that_is_forbidden_before_it_is_sent_fails_after_the_earlier_ones() {
    let limits = Limits { max_rd_atomic: 1, ..limits() };
    let mut it = with(&Config { limits, ..config() }, &[(READ, 300), (SEND, 1), (ADD, 8), (SEND, 1)]);
    assert_eq!(sent(&mut it), [0, 2]);
    it.set_limits(Limits { max_rd_atomic: 0, ..limits });
    assert_eq!((sent(&mut it), it.poll()), (vec![], None));
    assert!(matches!(it.receive(&bytes(0, 256, false), NOW), Received::Read { .. }));
    assert!(matches!(it.receive(&bytes(1, 44, true), NOW), Received::Read { .. }));
    assert_eq!(ack(&mut it, 2), Received::Acknowledged);
    let events: Vec<Event> = std::iter::from_fn(|| it.poll()).collect();
    let failed = Event::Failed { id: 2, status: Status::Aborted };
    assert_eq!(events, [Event::Completed { id: 0 }, Event::Completed { id: 1 }, failed]);
    assert_eq!(it.flush(), Some(3));
}

#[test]
fn a_read_is_asked_for_again_from_the_first_byte_that_is_missing() {
    let mut it = with(&config(), &[(SEND, 1), (READ, 1000), (SEND, 1)]);
    let first = pieces(&mut it);
    let addr = message(1, READ, 0).addr;
    assert_eq!(first[1].remote.map(|r| (r.addr, r.length)), Some((addr, 1000)));
    // The answer acknowledges the Send before.
    assert!(matches!(it.receive(&bytes(1, 256, false), NOW), Received::Read { .. }));
    assert_eq!(completed(&mut it), [0]);
    // The second packet is lost: the third shows it, and so does the acknowledgement behind.
    assert_eq!(it.receive(&bytes(3, 256, false), NOW), Received::Retry(Reason::ImpliedNakSeqErr));
    assert_eq!(it.receive(&bytes(4, 232, true), NOW), Received::Dropped(Reason::KnownGap));
    assert_eq!(ack(&mut it, 5), Received::Dropped(Reason::KnownGap));
    let again = pieces(&mut it);
    assert_eq!((again.len(), again[0].psn, again[1].psn), (2, psn(2), psn(5)));
    assert_eq!(again[0].remote.map(|r| (r.addr, r.length)), Some((addr + 256, 744)));
    for (n, length) in [(2, 256), (3, 256), (4, 232)] {
        assert!(matches!(it.receive(&bytes(n, length, n == 4), NOW), Received::Read { .. }));
    }
    assert_eq!(ack(&mut it, 5), Received::Acknowledged);
    assert_eq!(completed(&mut it), [1, 2]);
}

#[test]
fn after_a_loss_parts_of_a_read_are_asked_for_one_after_another() {
    let mut it = with(&config(), &[(READ, 100 * 256), (READ, 100 * 256), (SEND, 1)]);
    let asked = |it: &mut Requester| -> Vec<_> {
        pieces(it)
            .iter()
            .map(|piece| (piece.psn.offset_from(psn(0)), piece.remote.map(|remote| remote.length / 256)))
            .collect()
    };
    assert_eq!(asked(&mut it), [(0, Some(100)), (100, Some(100)), (200, None)]);
    // Packet 0 is lost: half of 200 packets are asked for, which is all of the first request.
    assert_eq!(it.receive(&bytes(1, 256, false), NOW), Received::Retry(Reason::ImpliedNakSeqErr));
    assert_eq!(asked(&mut it), [(0, Some(100))]);
    assert!(matches!(it.receive(&bytes(0, 256, false), NOW), Received::Read { .. }));
    // With one packet less under way, one would be asked for of the second; that is too little.
    assert_eq!(asked(&mut it), []);
    assert_eq!(it.receive(&bytes(2, 256, false), NOW), Received::Retry(Reason::ImpliedNakSeqErr));
    // A part of the first request, and nothing behind it before that part is answered.
    assert_eq!(asked(&mut it), [(1, Some(50))]);
    for n in 1..50 {
        assert!(matches!(it.receive(&bytes(n, 256, false), NOW), Received::Read { .. }));
        assert_eq!(asked(&mut it), []);
    }
    // The part's last packet says that it is the last. That of the former answer would not.
    assert!(matches!(it.receive(&bytes(50, 256, true), NOW), Received::Read { .. }));
    assert_eq!(asked(&mut it), [(51, Some(49))]);
    // Packets of the former answer come, too, and count.
    for n in 51..100 {
        let Received::Read { offset, .. } = it.receive(&bytes(n, 256, n == 99), NOW) else {
            panic!("it counts")
        };
        assert_eq!(offset, n * 256);
    }
    assert_eq!(completed(&mut it), [0]);
    // The window has grown meanwhile: 50 packets came, and then 49.
    assert_eq!(asked(&mut it), [(100, Some(56))]);
}

#[test]
fn credits_count_the_parts_of_a_read_as_the_responder_counts_them() {
    let config = Config { credits: true, ..config() };
    let mut it = with(&config, &[(READ, 100 * 256), (SEND, 1), (SEND, 1), (SEND, 1), (SEND, 1)]);
    // The first Send has no credit and asks for one.
    assert_eq!(sent(&mut it), [0, 100]);
    // Both are lost, so the responder sees two parts of the Read, which are two messages.
    assert_eq!(it.expired(NOW + TIMEOUT), Some(Reason::LocalAckTimeoutErr));
    let mut asked = sent(&mut it);
    for n in 0..100 {
        let Answer { psn, body, .. } = bytes(n, 256, n == 49 || n == 99);
        let answer = Answer { psn, aeth: aeth(Syndrome::Ack(0), 1 + n / 50), body };
        assert!(matches!(it.receive(&answer, NOW), Received::Read { .. }));
        asked.extend(sent(&mut it));
    }
    assert_eq!(asked, [0, 50, 100]);
    // The Send is the responder's third message. It has a receive for the fourth; the fifth goes
    // without a credit, and nothing follows it.
    let ack = Answer { psn: psn(100), aeth: aeth(Syndrome::Ack(1), 3), body: Body::Acknowledge };
    assert_eq!(it.receive(&ack, NOW), Received::Acknowledged);
    assert_eq!(sent(&mut it), [101, 102]);
}

#[test]
fn an_answer_that_was_not_divided_ends_where_its_request_does() {
    let pieces = |n: u32, packets: u32, last: bool| {
        let body = Body::Read { packets, first: false, last, length: packets * 256 };
        Answer { psn: psn(n), aeth: None, body }
    };
    // It ends early, it does not end, it goes on into the answer of the next Read.
    for answer in [pieces(0, 1, true), pieces(0, 2, false), pieces(0, 3, false), pieces(0, 3, true)] {
        let mut it = with(&config(), &[(READ, 2 * 256), (READ, 2 * 256)]);
        assert_eq!(sent(&mut it), [0, 2]);
        assert_eq!(it.receive(&answer, NOW), Received::Refused(Reason::BadAnswer), "{answer:?}");
    }
}

/// The first PSN and the number of packets of each request of an RDMA Read that is sent now; 0
/// packets stand for a Send.
fn asked(it: &mut Requester) -> Vec<(u32, u32)> {
    let packets = |piece: &Piece| piece.remote.map_or(0, |remote| remote.length / 256);
    pieces(it).iter().map(|piece| (piece.psn.offset_from(psn(0)), packets(piece))).collect()
}

/// Answers packet `n`.
fn arrives(it: &mut Requester, n: u32, last: bool) {
    assert!(matches!(it.receive(&bytes(n, 256, last), NOW), Received::Read { .. }));
}

#[test]
fn long_reads_are_asked_for_at_once_while_half_of_the_circle_has_room() {
    let mut it = with(&config(), &[(READ, 4096 * 256), (READ, 4096 * 256), (READ, 1 << 31)]);
    assert_eq!(asked(&mut it), [(0, 4096), (4096, 4096)]);
}

#[test]
fn several_reads_are_asked_for_again_at_once_if_the_window_has_room() {
    let mut it = with(&config(), &[(READ, 8 * 256); 4]);
    assert_eq!(asked(&mut it), [(0, 8), (8, 8), (16, 8), (24, 8)]);
    // 32 packets were under way, and 16 may be from now on.
    assert_eq!(it.expired(NOW + TIMEOUT), Some(Reason::LocalAckTimeoutErr));
    assert_eq!(asked(&mut it), [(0, 8), (8, 8)]);
    for n in 0..3 {
        arrives(&mut it, n, false);
        assert_eq!(asked(&mut it), []);
    }
    // A quarter of the window, and no less.
    arrives(&mut it, 3, false);
    assert_eq!(asked(&mut it), [(16, 4)]);
    // The other part follows when this one is answered, which is after all before it.
    for n in 4..16 {
        arrives(&mut it, n, n % 8 == 7);
        assert_eq!(asked(&mut it), []);
    }
    for n in 16..20 {
        arrives(&mut it, n, n == 19);
    }
    assert_eq!((completed(&mut it), asked(&mut it)), (vec![0, 1], vec![(20, 4), (24, 8)]));
}

#[test]
fn credits_count_the_parts_of_a_new_read_that_the_window_divides() {
    let mut it = with(&Config { credits: true, ..config() }, &[(READ, 100 * 256)]);
    assert_eq!(asked(&mut it), [(0, 100)]);
    assert_eq!(it.expired(NOW + TIMEOUT), Some(Reason::LocalAckTimeoutErr));
    // The responder knows the first request, so its parts are no messages of their own. It has
    // receives for six more.
    let answer = |it: &mut Requester, n: u32, last: bool| {
        let Answer { psn, body, .. } = bytes(n, 256, last);
        let aeth = if last { aeth(Syndrome::Ack(5), 1) } else { None };
        assert!(matches!(it.receive(&Answer { psn, aeth, body }, NOW), Received::Read { .. }));
    };
    let mut sent = asked(&mut it);
    for n in 0..100 {
        answer(&mut it, n, n == 49 || n == 99);
        sent.extend(asked(&mut it));
    }
    assert_eq!((sent, completed(&mut it)), (vec![(0, 50), (50, 50)], vec![0]));
    // The window is 56 packets now, and grows.
    it.post(message(1, READ, 100 * 256)).unwrap();
    for id in 2..6 {
        it.post(message(id, SEND, 1)).unwrap();
    }
    let mut sent = asked(&mut it);
    for n in 100..150 {
        answer(&mut it, n, false);
        sent.extend(asked(&mut it));
    }
    // The second Read's four parts are the second to the fifth message, the first two Sends are the
    // sixth and the seventh. One more goes without a credit, and nothing follows it.
    let parts = [(100, 56), (156, 15), (171, 15), (186, 14)];
    assert_eq!((&sent[..4], &sent[4..]), (&parts[..], &[(200, 0), (201, 0), (202, 0)][..]));
}
