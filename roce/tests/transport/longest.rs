//! RDMA Reads whose answers have half as many packets as there are PSNs, or nearly as many. Their
//! requester may send the next request as soon as the first packet is answered.

use platform::Instant;
use roce::transport::{
    Answer, Body, Config, Executed, Extra, Limits, Message, Piece, Reason, Received, Remote, Requester,
    Responder, Response, Transmit, Verdict,
};
use roce::{PathMtu, Psn};

use crate::requester::{READ, SEND, WRITE, completed};
use crate::world::{config, limits, message};

/// Half of the PSNs.
const HALF: u32 = 1 << 23;
const MTU: u32 = 256;
const NOW: Instant = Instant::from_nanos(1);

fn first() -> Psn {
    Psn::new(0xff_ff00)
}

fn send(n: u32) -> Piece {
    Piece {
        psn: first().add(n),
        packets: 1,
        operation: SEND,
        first: true,
        last: true,
        length: 8,
        remote: None,
        extra: Extra::None,
        solicited: false,
        ack_request: true,
    }
}

/// The request of an RDMA Read for packets of a range that begins at packet `from`.
fn read(from: u32, packets: u32) -> Piece {
    let remote = Remote { addr: u64::from(from * MTU), key: 7, length: packets * MTU };
    Piece { operation: READ, length: 0, remote: Some(remote), ..send(from) }
}

fn carried_out(it: &mut Responder, piece: &Piece) {
    let Verdict::Execute(execution) = it.receive(piece) else { panic!("it is the next") };
    it.executed(execution, Executed::Done(0));
}

/// Takes answers of an RDMA Read that begin with packet `next`, so many at once, until `until`.
fn take_answers(it: &mut Responder, mut next: u32, at_once: u32, until: u32) {
    while next < until {
        let Response { answer: Answer { psn, body, .. }, gather } = it.respond(at_once, None).unwrap();
        let Body::Read { packets, length, .. } = body else { panic!("packet {next:#x}: {body:?}") };
        assert_eq!((psn, length), (first().add(next), packets * MTU));
        assert_eq!(gather.unwrap().addr, u64::from(next * MTU));
        next += packets;
    }
}

/// A responder that answers an RDMA Read of so many packets, 32 of which it has sent, when a Send
/// comes.
fn answering(packets: u32) -> Responder {
    let mut it = Responder::new(first(), PathMtu::B256, 2);
    carried_out(&mut it, &read(0, packets));
    take_answers(&mut it, 0, 1, 32);
    carried_out(&mut it, &send(packets));
    it
}

#[test]
fn a_read_under_way_is_answered_to_its_end() {
    for packets in [HALF - 1, HALF] {
        let mut it = answering(packets);
        take_answers(&mut it, 32, 1 << 12, packets);
        assert!(matches!(it.respond(1, None), Some(Response { gather: None, .. })));
        assert_eq!(it.respond(1, None), None);
    }
}

/// The end of a Read, from packet `from` on, is asked for again and answered.
#[track_caller]
fn asked_again(it: &mut Responder, from: u32, packets: u32) {
    let verdict = it.receive(&read(from, packets - from));
    assert!(matches!(verdict, Verdict::Nothing(Reason::DuplicateRequest)), "{verdict:?}");
    take_answers(it, from, 1 << 12, packets);
}

#[test]
fn the_rest_of_a_read_under_way_can_be_asked_for_again() {
    for packets in [HALF - 1, HALF] {
        let mut it = answering(packets);
        asked_again(&mut it, 16, packets);
        // More comes behind it. Half the circle before the expected PSN is what may be missing.
        for n in 1..20 {
            carried_out(&mut it, &send(packets + n));
        }
        let oldest = packets + 20 - HALF;
        asked_again(&mut it, oldest, packets);
        let verdict = it.receive(&read(oldest - 1, packets - oldest + 1));
        assert!(!matches!(verdict, Verdict::Nothing(Reason::DuplicateRequest)), "{verdict:?}");
        // The last packet alone; and the Read is forgotten when all of it is far enough behind.
        asked_again(&mut it, packets - 1, packets);
        let write = Piece { psn: it.expected(), packets: HALF - 21, length: (HALF - 21) * MTU, ..send(0) };
        carried_out(&mut it, &Piece { operation: WRITE, remote: read(0, HALF - 21).remote, ..write });
        assert!(matches!(it.respond(1, None), Some(Response { gather: None, .. })));
        asked_again(&mut it, packets - 1, packets);
        let next = Piece { psn: it.expected(), ..send(0) };
        carried_out(&mut it, &next);
        let verdict = it.receive(&read(packets - 1, 1));
        assert!(!matches!(verdict, Verdict::Nothing(Reason::DuplicateRequest)), "{verdict:?}");
    }
}

/// Both engines, joined without losses. Each exchange moves many packets.
fn exchange(reads: &[u32]) {
    let limits = Limits { max_rd_atomic: 16, ..limits() };
    let mut requester = Requester::new(&Config { psn: first(), depth: 64, limits, ..config() });
    let mut responder = Responder::new(first(), PathMtu::B256, 16);
    let mut posted: Vec<Message> = Vec::new();
    for (id, packets) in (0..).zip(reads) {
        posted.push(message(2 * id, READ, packets * MTU));
        posted.push(message(2 * id + 1, WRITE, 8));
    }
    for message in &posted {
        requester.post(*message).unwrap();
    }
    let mut done = Vec::new();
    for _ in 0..200_000 {
        while let Some(transmit) = requester.transmit(NOW, 1) {
            let Transmit::Piece { piece, .. } = transmit else { panic!("{transmit:?}") };
            carried_out(&mut responder, &piece);
        }
        let Some(Response { answer, .. }) = responder.respond(1 << 12, None) else { break };
        let received = requester.receive(&answer, NOW);
        assert!(matches!(received, Received::Read { .. } | Received::Acknowledged), "{received:?}");
        done.extend(completed(&mut requester));
    }
    assert_eq!(done, posted.iter().map(|message| message.id).collect::<Vec<_>>());
}

#[test]
fn requests_follow_the_longest_reads_while_these_are_answered() {
    exchange(&[HALF, 1, HALF - 1, HALF]);
    // 16 Reads of 2^27 bytes and a packet each are a little more than half the circle.
    exchange(&[(HALF >> 4) + 1; 16]);
}
