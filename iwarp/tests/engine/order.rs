//! What is sent when, and when it is complete.

use iwarp::ddp::Header;
use iwarp::engine::{Config, End, Event, Operation, PostError, Role, Status};
use iwarp::engine::{Engine, Message};
use iwarp::mpa::fpdu::Receiver;
use iwarp::rdmap::{Control, Opcode};

use super::world::{CONFIG, Node, World};

pub const SEND: Operation = Operation::Send { solicited: false, invalidate: None };

pub fn write(stag: u32, to: u64) -> Operation {
    Operation::Write { stag, to }
}

pub fn read(source_stag: u32, source_to: u64) -> Operation {
    Operation::Read { source_stag, source_to, sink_stag: 0x77, sink_to: 0x1000, invalidate: None }
}

/// The opcodes of FPDUs, and which are the last of their message.
pub fn opcodes(mut bytes: &[u8]) -> Vec<(Opcode, bool)> {
    let mut receiver = Receiver::new(true);
    let mut found = Vec::new();
    while let Some(ulpdu) = receiver.next(&mut bytes).unwrap() {
        let (header, _) = Header::parse(ulpdu).unwrap();
        found.push((Control::parse(header.control).opcode().unwrap(), header.last));
    }
    assert!(!receiver.is_inside());
    found
}

fn pattern(length: usize, salt: u8) -> Vec<u8> {
    (0..length).map(|i| (i as u8).wrapping_mul(7) ^ salt).collect()
}

#[test]
fn each_operation_moves_its_bytes() {
    let mut world = World::new(1, CONFIG);
    let [a, b] = &mut world.nodes;
    b.region(0x500, 0x10_0000, pattern(5000, 1));
    b.region(0x600, 0, vec![0; 10]);
    a.region(0x700, 0, vec![0; 10]);
    let receives = [b.receive(3000), b.receive(3000), b.receive(3000), b.receive(0)];
    let sent = a.post(SEND, pattern(1000, 2));
    let written = a.post(write(0x500, 0x10_0003), pattern(1501, 3));
    let sink = a.post(
        Operation::Read {
            source_stag: 0x500,
            source_to: 0x10_0002,
            sink_stag: 9,
            sink_to: u64::MAX - 5,
            invalidate: Some(0x700),
        },
        vec![0; 1600],
    );
    let solicited = a.post(Operation::Send { solicited: true, invalidate: None }, pattern(1, 4));
    let invalidates = a.post(Operation::Send { solicited: true, invalidate: Some(0x600) }, pattern(200, 5));
    let local = a.post(Operation::Local, Vec::new());
    let empty = a.post(Operation::Send { solicited: false, invalidate: None }, Vec::new());
    world.run();
    let [a, b] = &world.nodes;
    for id in [sent, written, sink, solicited, invalidates, local, empty] {
        assert_eq!(a.outcome(id), Some(Event::Completed { id }), "{id}");
    }
    let received =
        |id, length, solicited, invalidated| Event::Received { id, length, solicited, invalidated };
    assert_eq!(
        b.events,
        [
            Event::Established,
            received(receives[0], 1000, false, None),
            received(receives[1], 1, true, None),
            received(receives[2], 200, true, Some(0x600)),
            received(receives[3], 0, false, None),
        ]
    );
    assert_eq!(b.device.receives[&receives[0]][..1000], pattern(1000, 2));
    assert_eq!(b.device.regions[&0x500].bytes[3..1504], pattern(1501, 3));
    assert_eq!(a.device.requests[&sink], b.device.regions[&0x500].bytes[2..1602]);
    assert!(!b.device.regions.contains_key(&0x600) && !a.device.regions.contains_key(&0x700));
    assert_eq!((a.end(), b.end()), (None, None));
}

#[test]
fn sends_and_writes_are_complete_when_the_stream_has_them() {
    let mut a = Node::new(CONFIG);
    let first = a.post(SEND, pattern(100, 0));
    let second = a.post(write(1, 0), pattern(100, 0));
    // An FPDU of 100 bytes, header, length, pad and CRC.
    assert_eq!(a.send(123).len(), 123);
    assert_eq!(a.outcome(first), None);
    assert_eq!(a.send(1).len(), 1);
    assert_eq!(a.outcome(first), Some(Event::Completed { id: first }));
    assert_eq!(a.outcome(second), None);
    assert_eq!(a.send(1000).len(), 120);
    assert_eq!(a.outcome(second), Some(Event::Completed { id: second }));
}

#[test]
fn a_read_is_complete_when_its_last_byte_is_placed() {
    let [mut a, mut b] = [Node::new(CONFIG), Node::new(CONFIG)];
    b.region(5, 0, pattern(400, 1));
    b.receive(10);
    let reads = a.post(read(5, 0), vec![0; 400]);
    let sends = a.post(SEND, vec![1]);
    b.take(&a.send_all());
    // The Send has overtaken the Read, but is reported behind it.
    assert!(matches!(b.events[..], [Event::Received { .. }]));
    let answer = b.send_all();
    assert_eq!(
        opcodes(&answer),
        [(Opcode::ReadResponse, false), (Opcode::ReadResponse, false), (Opcode::ReadResponse, true)]
    );
    let (last, before) = answer.split_last().unwrap();
    a.take(before);
    assert!(a.events.is_empty());
    a.take(&[*last]);
    assert_eq!(a.events, [Event::Completed { id: reads }, Event::Completed { id: sends }]);
    assert_eq!(a.device.requests[&reads], pattern(400, 1));
}

#[test]
fn no_more_reads_are_outstanding_than_there_may_be() {
    let [mut a, mut b] = [Node::new(Config { ord: 2, ..CONFIG }), Node::new(CONFIG)];
    b.region(5, 0, pattern(10, 1));
    b.receive(10);
    let ids = [0; 3].map(|_| a.post(read(5, 0), vec![0; 10]));
    let behind = a.post(SEND, vec![1]);
    let sent = a.send_all();
    assert_eq!(opcodes(&sent), [(Opcode::ReadRequest, true); 2]);
    b.take(&sent);
    let answers = b.send_all();
    assert_eq!(opcodes(&answers), [(Opcode::ReadResponse, true); 2]);
    a.take(&answers);
    assert_eq!(a.events, ids[..2].iter().map(|&id| Event::Completed { id }).collect::<Vec<_>>());
    let sent = a.send_all();
    assert_eq!(opcodes(&sent), [(Opcode::ReadRequest, true), (Opcode::Send, true)]);
    b.take(&sent);
    a.take(&b.send_all());
    assert_eq!(a.outcome(behind), Some(Event::Completed { id: behind }));
}

#[test]
fn an_ord_that_is_lowered_or_raised_counts_for_reads_that_are_not_sent() {
    let [mut a, mut b] = [Node::new(Config { ord: 3, ..CONFIG }), Node::new(CONFIG)];
    b.region(5, 0, pattern(10, 1));
    let mut reads = |a: &mut Node| {
        let requests = a.send_all();
        b.take(&requests);
        (opcodes(&requests).len(), b.send_all())
    };
    for _ in 0..8 {
        a.post(read(5, 0), vec![0; 10]);
    }
    let (count, answers) = reads(&mut a);
    assert_eq!(count, 3);
    // Those that are under way stay so, and others wait until there are fewer.
    a.engine.set_ord(1);
    a.take(&answers[..1]);
    a.take(&answers[1..2]);
    assert_eq!(reads(&mut a).0, 0);
    a.take(&answers[2..]);
    let (count, answers) = reads(&mut a);
    assert_eq!(count, 1);
    a.engine.set_ord(2);
    assert_eq!(reads(&mut a).0, 1);
    a.engine.set_ord(0);
    a.take(&answers);
    assert_eq!(reads(&mut a).0, 0);
    a.engine.set_ord(4);
    assert_eq!(reads(&mut a).0, 3);
}

#[test]
fn a_fence_waits_for_the_reads_before_it() {
    for operation in [SEND, write(5, 0), read(5, 0), Operation::Local] {
        let [mut a, mut b] = [Node::new(CONFIG), Node::new(CONFIG)];
        b.region(5, 0, pattern(500, 1));
        b.receive(100);
        a.post(read(5, 0), vec![0; 500]);
        a.post(write(5, 0), vec![0; 4]);
        let fenced = a.post_fenced(operation, vec![1; 8], true);
        let first = a.send_all();
        assert_eq!(opcodes(&first), [(Opcode::ReadRequest, true), (Opcode::Write, true)]);
        b.take(&first);
        let answer = b.send_all();
        let (last, before) = answer.split_last().unwrap();
        a.take(before);
        assert!(a.send_all().is_empty());
        a.take(&[*last]);
        let second = a.send_all();
        assert_eq!(second.is_empty(), operation == Operation::Local);
        b.take(&second);
        a.take(&b.send_all());
        assert_eq!(a.outcome(fenced), Some(Event::Completed { id: fenced }));
    }
}

#[test]
fn responses_and_sends_take_turns_and_writes_wait() {
    let [mut a, mut b] = [Node::new(CONFIG), Node::new(CONFIG)];
    b.region(5, 0, pattern(600, 1));
    a.post(read(5, 0), vec![0; 600]);
    b.take(&a.send_all());
    b.post(SEND, pattern(500, 2));
    b.post(write(9, 0), pattern(300, 2));
    let (response, send, write) = (Opcode::ReadResponse, Opcode::Send, Opcode::Write);
    let order = opcodes(&b.send_all());
    let expected = [
        (send, false),
        (response, false),
        (send, false),
        (response, false),
        (send, true),
        (response, false),
        (response, true),
        (write, false),
        (write, true),
    ];
    assert_eq!(order, expected);
    // A Write that is begun is not divided by a response.
    let mut b = Node::new(CONFIG);
    b.region(5, 0, pattern(600, 1));
    b.post(super::order::write(9, 0), pattern(500, 2));
    b.post(super::order::write(9, 0), pattern(10, 2));
    let mut bytes = b.send(50);
    let mut a = Node::new(CONFIG);
    a.post(read(5, 0), vec![0; 200]);
    b.take(&a.send_all());
    bytes.extend(b.send_all());
    let expected =
        [(write, false), (write, false), (write, true), (response, false), (response, true), (write, true)];
    assert_eq!(opcodes(&bytes), expected);
}

#[test]
fn an_empty_message_reaches_for_no_memory() {
    let [mut a, mut b] = [Node::new(CONFIG), Node::new(CONFIG)];
    // No such STags; the device's memory panics when it is asked for nothing.
    let written = a.post(write(0xdead, u64::MAX), Vec::new());
    let reads = a.post(read(0xdead, u64::MAX), Vec::new());
    b.take(&a.send_all());
    a.take(&b.send_all());
    assert_eq!(a.events, [Event::Completed { id: written }, Event::Completed { id: reads }]);
    assert_eq!((a.end(), b.end()), (None, None));
}

#[test]
fn a_responder_sends_nothing_before_the_first_fpdu() {
    let [mut a, mut b] = [Node::new(CONFIG), Node::new(Config { role: Role::Responder, ..CONFIG })];
    let local = b.post(Operation::Local, Vec::new());
    let sends = b.post(SEND, vec![1, 2, 3]);
    assert!(b.send_all().is_empty());
    assert_eq!(b.events, [Event::Completed { id: local }]);
    a.post(write(0, 0), Vec::new());
    let first = a.send_all();
    let (last, before) = first.split_last().unwrap();
    b.take(before);
    assert!(b.send_all().is_empty());
    b.take(&[*last]);
    assert_eq!(b.events[1..], [Event::Established]);
    assert_eq!(opcodes(&b.send_all()), [(Opcode::Send, true)]);
    assert_eq!(b.outcome(sends), Some(Event::Completed { id: sends }));
    // The initiator's end is not told.
    a.receive(8);
    a.take(&[]);
    assert_eq!(a.events.len(), 1);
}

#[test]
fn a_call_takes_one_message_for_a_receive() {
    let [mut a, mut b] = [Node::new(CONFIG), Node::new(CONFIG)];
    for _ in 0..3 {
        a.post(SEND, pattern(20, 0));
        a.post(write(0, 0), Vec::new());
        b.receive(20);
    }
    let bytes = a.send_all();
    let each = bytes.len() / 3;
    let mut rest = &bytes[..];
    // The empty Writes are taken with what is behind them.
    for expected in [each - 20, each, each, 20] {
        assert_eq!(b.engine.receive(rest, &mut b.device), expected);
        rest = &rest[expected..];
        // Nothing more is taken before the event is.
        if !rest.is_empty() {
            assert_eq!(b.engine.receive(rest, &mut b.device), 0);
            assert!(matches!(b.engine.poll(), Some(Event::Received { length: 20, .. })));
        }
    }
    assert_eq!(b.engine.poll(), None);
}

#[test]
fn what_cannot_be_posted_is_named() {
    let message = |operation, length| Message { id: 1, operation, length, fence: false };
    let mut engine = Engine::new(Config { depth: 2, ord: 0, ..CONFIG });
    assert_eq!(engine.post(message(read(1, 0), 1)), Err(PostError::Operation));
    assert_eq!(engine.post(message(SEND, (1 << 31) + 1)), Err(PostError::Length));
    assert_eq!(engine.post(message(SEND, 1 << 31)), Ok(()));
    assert_eq!(engine.post(message(SEND, 1)), Ok(()));
    assert_eq!(engine.post(message(SEND, 1)), Err(PostError::Full));
    engine.disconnect();
    assert_eq!(engine.post(message(SEND, 1)), Err(PostError::Closed));
    let flushed = Some(Event::Failed { id: 1, status: Status::Flushed });
    assert_eq!((engine.poll(), engine.poll()), (flushed, flushed));
    assert_eq!(engine.poll(), Some(Event::Ended(End::Disconnected)));
    assert_eq!(engine.poll(), None);
}
