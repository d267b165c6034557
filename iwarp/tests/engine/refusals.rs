//! What an end refuses, with the code of its Terminate, what the Terminate quotes, and what both
//! ends report.

use iwarp::ddp::{Header, Place, queue};
use iwarp::engine::{Cause, Close, Config, End, Event, Fault, Kind, Operation, Status};
use iwarp::mpa::fpdu::{self, Receiver};
use iwarp::rdmap::terminate::{self, Code, Form};
use iwarp::rdmap::{Control, Opcode, read};

use super::order::{SEND, read as reads, write};
use super::world::{CONFIG, Node};

/// An end with a region of 100 bytes at 0x1000 for each case.
fn node() -> Node {
    let mut node = Node::new(CONFIG);
    for (stag, change) in [(1, 0), (2, 1), (3, 2), (4, 3)] {
        node.region(stag, 0x1000, vec![stag as u8; 100]);
        let region = node.device.regions.get_mut(&stag).unwrap();
        match change {
            1 => region.readable = false,
            2 => region.writable = false,
            3 => region.own = false,
            _ => {}
        }
    }
    node
}

fn segment(last: bool, opcode: Opcode, place: Place, payload: &[u8]) -> Vec<u8> {
    raw(Header::new(last, Control::new(opcode).to_byte(), place), payload)
}

fn raw(header: Header, payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = vec![0; header.size()];
    header.emit(&mut ulpdu).unwrap();
    ulpdu.extend(payload);
    framed(&ulpdu)
}

fn framed(ulpdu: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; fpdu::length(ulpdu.len())];
    fpdu::emit(ulpdu, true, &mut bytes).unwrap();
    bytes
}

fn tagged(stag: u32, to: u64) -> Place {
    Place::Tagged { stag, to }
}

fn untagged(queue: u32, msn: u32, mo: u32) -> Place {
    Place::Untagged { invalidate: 0, queue, msn, mo }
}

fn written(stag: u32, to: u64, length: usize) -> Vec<u8> {
    segment(true, Opcode::Write, tagged(stag, to), &vec![9; length])
}

fn asked(msn: u32, source_stag: u32, source_to: u64, size: u32) -> Vec<u8> {
    let request = read::Repr { sink_stag: 0x77, sink_to: 0x1000, size, source_stag, source_to };
    let mut bytes = [0; read::Repr::LEN];
    request.emit(&mut bytes).unwrap();
    segment(true, Opcode::ReadRequest, untagged(queue::READ, msn, 0), &bytes)
}

fn sent(last: bool, msn: u32, mo: u32, payload: &[u8]) -> Vec<u8> {
    segment(last, Opcode::Send, untagged(queue::SEND, msn, mo), payload)
}

/// The Terminate that is all that the end still sends.
fn last_words(node: &mut Node) -> terminate::Repr {
    assert_eq!(node.engine.close(), None);
    let bytes = node.send_all();
    assert_eq!(node.engine.close(), Some(Close::Finish));
    let mut rest = &bytes[..];
    let mut receiver = Receiver::new(true);
    let (header, payload) = Header::parse(receiver.next(&mut rest).unwrap().unwrap()).unwrap();
    assert!(rest.is_empty() && header.last);
    assert_eq!(header.control, Control::new(Opcode::Terminate).to_byte());
    assert_eq!(header.place, untagged(queue::TERMINATE, 1, 0));
    terminate::Repr::parse(payload).unwrap()
}

/// Passes these bytes, and checks that the last FPDU of them is refused like this.
fn refuses(mut node: Node, bytes: &[u8], code: Code, kind: Kind) -> Node {
    node.take(bytes);
    let fault = Fault { code, kind };
    assert_eq!(node.end(), Some(End::Broken(Cause::Refused(fault))));
    let last = node.events.last();
    assert_eq!(last, Some(&Event::Ended(End::Broken(Cause::Refused(fault)))));
    let terminate = last_words(&mut node);
    assert_eq!((terminate.code, terminate.form), (code, Form::Standard));
    if code.layer() < 2 && code != Code::LOCAL {
        // It quotes the last segment.
        let (mut rest, mut receiver, mut ulpdu) = (bytes, Receiver::new(true), Vec::new());
        while let Some(next) = receiver.next(&mut rest).unwrap() {
            ulpdu = next.to_vec();
        }
        let (header, payload) = Header::parse(&ulpdu).unwrap();
        let quoted = terminate.quoted.unwrap();
        assert_eq!((quoted.length, quoted.header), (ulpdu.len() as u16, Some(header)));
        let opcode = Control::parse(header.control).opcode();
        let request = read::Repr::parse(payload).ok().map(|(request, _)| request);
        assert_eq!(quoted.read, request.filter(|_| opcode == Some(Opcode::ReadRequest)));
    } else {
        assert_eq!(terminate.quoted, None);
    }
    // It neither takes nor sends anything more.
    node.receive(10);
    node.take(&written(1, 0x1000, 10));
    assert!(node.send_all().is_empty());
    node
}

#[test]
fn a_write_reaches_only_what_it_may() {
    let cases = [
        (written(9, 0x1000, 1), Code::DDP_STAG),
        (written(1, 0xfff, 10), Code::DDP_BOUNDS),
        (written(1, 0x1000, 101), Code::DDP_BOUNDS),
        (written(1, u64::MAX, 2), Code::DDP_WRAP),
        (written(3, 0x1000, 10), Code::RIGHT),
        (written(4, 0x1000, 10), Code::DDP_ASSOCIATION),
    ];
    for (bytes, code) in cases {
        let node = refuses(node(), &bytes, code, Kind::Write);
        assert!(node.device.regions.values().all(|region| !region.bytes.contains(&9)), "{code:?}");
    }
    let mut good = node();
    good.take(&written(1, 0x1000, 100));
    good.take(&written(2, 0x1063, 1));
    assert_eq!(good.end(), None);
}

#[test]
fn a_write_has_no_gaps() {
    let first = segment(false, Opcode::Write, tagged(1, 0x1000), &[9; 10]);
    let behind = |stag, to| [first.clone(), written(stag, to, 5)].concat();
    refuses(node(), &behind(2, 0x100a), Code::DDP_STAG, Kind::Write);
    refuses(node(), &behind(1, 0x100b), Code::DDP_BOUNDS, Kind::Write);
    refuses(node(), &behind(1, 0x1000), Code::DDP_BOUNDS, Kind::Write);
    let mut good = node();
    good.receive(3);
    // A Send may lie in it, and the next Write begins anew.
    good.take(&[first.clone(), sent(true, 1, 0, &[5; 3]), written(1, 0x100a, 5)].concat());
    good.take(&written(2, 0x1000, 5));
    assert_eq!((good.end(), good.events.len()), (None, 1));
}

#[test]
fn a_read_reaches_only_what_it_may() {
    let cases = [
        (asked(1, 9, 0x1000, 1), Code::READ_STAG),
        (asked(1, 1, 0x1000, 101), Code::READ_BOUNDS),
        (asked(1, 1, u64::MAX, 1), Code::READ_WRAP),
        (asked(1, 2, 0x1000, 1), Code::RIGHT),
        (asked(1, 4, 0x1000, 1), Code::READ_ASSOCIATION),
    ];
    for (bytes, code) in cases {
        refuses(node(), &bytes, code, Kind::ReadSource);
    }
}

#[test]
fn requests_of_reads_come_in_order_and_no_more_than_agreed() {
    let body = [0; read::Repr::LEN];
    let request = |last, place, payload: &[u8]| segment(last, Opcode::ReadRequest, place, payload);
    let numbered = [asked(2, 1, 0x1000, 1), (1..=5).flat_map(|msn| asked(msn, 1, 0x1000, 1)).collect()];
    for bytes in numbered {
        refuses(node(), &bytes, Code::DDP_MSN, Kind::ReadSource);
    }
    let cases = [
        (request(true, untagged(queue::READ, 1, 1), &body), Code::DDP_MO),
        (request(true, untagged(queue::SEND, 1, 0), &body), Code::DDP_QUEUE),
        (request(false, untagged(queue::READ, 1, 0), &body), Code::DDP_TOO_LONG),
        (request(true, untagged(queue::READ, 1, 0), &[0; 29]), Code::DDP_TOO_LONG),
        (request(true, untagged(queue::READ, 1, 0), &body[1..]), Code::STREAM),
    ];
    for (bytes, code) in cases {
        refuses(node(), &bytes, code, Kind::Transport);
    }
    // As many as agreed are taken, and more once they are answered.
    let mut good = node();
    good.take(&(1..=4).flat_map(|msn| asked(msn, 1, 0x1000, 1)).collect::<Vec<_>>());
    assert!(!good.send_all().is_empty());
    good.take(&(5..=8).flat_map(|msn| asked(msn, 1, 0x1000, 1)).collect::<Vec<_>>());
    assert_eq!(good.end(), None);
}

#[test]
fn a_send_needs_a_receive_and_its_number() {
    let mut with = node();
    with.receive(10);
    refuses(node(), &sent(true, 1, 0, b"x"), Code::DDP_NO_BUFFER, Kind::Receive);
    refuses(node(), &sent(true, 1, 0, b""), Code::DDP_NO_BUFFER, Kind::Receive);
    refuses(with, &sent(true, 2, 0, b"x"), Code::DDP_MSN, Kind::Receive);
    let with = || {
        let mut node = node();
        node.receive(10);
        node
    };
    refuses(with(), &sent(true, 0, 0, b"x"), Code::DDP_MSN, Kind::Receive);
    refuses(with(), &sent(true, 1, 1, b"x"), Code::DDP_MO, Kind::Transport);
    let queue = segment(true, Opcode::Send, untagged(queue::READ, 1, 0), b"x");
    refuses(with(), &queue, Code::DDP_QUEUE, Kind::Transport);
    let first = sent(false, 1, 0, b"abc");
    let cases = [
        (sent(true, 2, 3, b"x"), Code::DDP_MSN, Kind::Receive),
        (sent(true, 1, 4, b"x"), Code::DDP_MO, Kind::Transport),
        (segment(true, Opcode::SendSolicited, untagged(0, 1, 3), b"x"), Code::OPCODE, Kind::Opcode),
    ];
    for (second, code, kind) in cases {
        let node = refuses(with(), &[first.clone(), second].concat(), code, kind);
        assert!(matches!(node.events[0], Event::ReceiveFailed { status: Status::Flushed, .. }));
    }
}

#[test]
fn a_send_that_is_too_long_fails_its_receive() {
    for bytes in
        [sent(true, 1, 0, &[9; 11]), [sent(false, 1, 0, &[9; 6]), sent(true, 1, 6, &[8; 5])].concat()]
    {
        let mut node = node();
        let id = node.receive(10);
        let node = refuses(node, &bytes, Code::DDP_TOO_LONG, Kind::ReceiveLength);
        assert_eq!(node.events[0], Event::ReceiveFailed { id, status: Status::LocalLength });
        assert!(!node.device.receives[&id].contains(&8));
    }
}

#[test]
fn what_cannot_be_invalidated_breaks_the_stream_of_a_send_that_is_there() {
    let place = Place::Untagged { invalidate: 1, queue: 0, msn: 1, mo: 0 };
    let bytes = segment(true, Opcode::SendInvalidate, place, b"text");
    let mut with = node();
    with.device.regions.get_mut(&1).unwrap().invalidable = false;
    let id = with.receive(4);
    let with = refuses(with, &bytes, Code::INVALIDATE, Kind::Invalidate);
    assert_eq!(with.events[0], Event::ReceiveFailed { id, status: Status::Invalidate });
    assert_eq!(with.device.receives[&id], b"text");
    // The segments before the last one invalidate nothing.
    let mut with = node();
    with.receive(4);
    with.take(&segment(false, Opcode::SendInvalidate, place, b"te"));
    assert!(with.device.regions.contains_key(&1));
    let place = Place::Untagged { invalidate: 1, queue: 0, msn: 1, mo: 2 };
    with.take(&segment(true, Opcode::SendInvalidate, place, b"xt"));
    assert!(matches!(with.events[..], [Event::Received { invalidated: Some(1), length: 4, .. }]));
    assert!(!with.device.regions.contains_key(&1));
}

#[test]
fn versions_and_opcodes_are_those_of_the_specification() {
    let control = Control::new(Opcode::Write).to_byte();
    let other = |place, version, control| raw(Header { last: true, version, control, place }, b"x");
    let (there, queue) = (tagged(1, 0x1000), untagged(0, 1, 0));
    for version in [0, 2, 3] {
        let bytes = other(there, version, control);
        refuses(node(), &bytes, Code::DDP_TAGGED_VERSION, Kind::Transport);
        let bytes = other(queue, version, Control::new(Opcode::Send).to_byte());
        refuses(node(), &bytes, Code::DDP_UNTAGGED_VERSION, Kind::Transport);
        let old = Control { version, opcode: 0 }.to_byte();
        refuses(node(), &other(there, 1, old), Code::RDMAP_VERSION, Kind::Opcode);
    }
    for opcode in 0..16 {
        let control = Control { version: 1, opcode }.to_byte();
        let is_tagged = matches!(opcode, 0 | 2);
        let wrong = if is_tagged { queue } else { there };
        refuses(node(), &other(wrong, 1, control), Code::OPCODE, Kind::Opcode);
        if opcode > 7 {
            refuses(node(), &other(queue, 1, control), Code::OPCODE, Kind::Opcode);
        }
    }
}

#[test]
fn a_response_that_nobody_asked_for_is_refused() {
    let response = |last, stag, to, length: usize| {
        segment(last, Opcode::ReadResponse, tagged(stag, to), &vec![9; length])
    };
    refuses(node(), &response(true, 0x77, 0x1000, 1), Code::OPCODE, Kind::Opcode);
    let asks = || {
        let mut node = node();
        let id = node.post(reads(1, 0x1000), vec![0; 10]);
        assert!(!node.send_all().is_empty());
        (node, id)
    };
    let part = response(false, 0x77, 0x1000, 4);
    let cases = [
        (response(true, 0x78, 0x1000, 10), Code::DDP_STAG),
        (response(true, 0x77, 0x1001, 10), Code::DDP_BOUNDS),
        (response(true, 0x77, 0x1000, 11), Code::DDP_BOUNDS),
        (response(false, 0x77, 0x1000, 11), Code::DDP_BOUNDS),
        (response(true, 0x77, 0x1000, 9), Code::DDP_BOUNDS),
        ([part.clone(), response(true, 0x77, 0x1000, 6)].concat(), Code::DDP_BOUNDS),
        ([part.clone(), response(true, 0x77, 0x1004, 7)].concat(), Code::DDP_BOUNDS),
        ([part.clone(), response(true, 0x78, 0x1004, 6)].concat(), Code::DDP_STAG),
    ];
    for (bytes, code) in cases {
        let (node, id) = asks();
        let node = refuses(node, &bytes, code, Kind::Transport);
        assert_eq!(node.outcome(id), Some(Event::Failed { id, status: Status::Flushed }));
    }
    // The bytes may all be there before the segment that says so.
    let (mut node, id) = asks();
    node.take(&[response(false, 0x77, 0x1000, 10), response(true, 0x77, 0x100a, 0)].concat());
    assert_eq!(node.events, [Event::Completed { id }]);
    // And the next response is one too many.
    refuses(node, &response(true, 0x77, 0x1000, 10), Code::OPCODE, Kind::Opcode);
}

#[test]
fn a_sink_that_is_gone_fails_the_read() {
    let response = segment(true, Opcode::ReadResponse, tagged(0x77, 0x1000), &[9; 10]);
    let mut first = node();
    let id = first.post(reads(1, 0x1000), vec![0; 10]);
    let behind = first.post(reads(1, 0x1000), vec![0; 10]);
    first.send_all();
    first.device.gone.push(id);
    let first = refuses(first, &response, Code::DDP_STAG, Kind::ReadSink);
    assert_eq!(first.outcome(id), Some(Event::Failed { id, status: Status::LocalProtection }));
    assert_eq!(first.outcome(behind), Some(Event::Failed { id: behind, status: Status::Flushed }));
    // So does an STag that it was to invalidate.
    let mut second = node();
    let operation = Operation::Read {
        source_stag: 1,
        source_to: 0,
        sink_stag: 0x77,
        sink_to: 0x1000,
        invalidate: Some(9),
    };
    let id = second.post(operation, vec![0; 10]);
    second.send_all();
    let second = refuses(second, &response, Code::LOCAL, Kind::Local);
    assert_eq!(second.outcome(id), Some(Event::Failed { id, status: Status::LocalProtection }));
}

#[test]
fn what_is_no_fpdu_fails_what_was_arriving() {
    let mut with = node();
    let receive = with.receive(10);
    let id = with.post(reads(1, 0x1000), vec![0; 10]);
    with.send_all();
    with.take(&sent(false, 1, 0, b"abc"));
    let mut wrong = written(1, 0x1000, 10);
    let last = wrong.len() - 1;
    wrong[last] ^= 1;
    with.take(&wrong);
    let fault = Fault { code: Code::MPA_CRC, kind: Kind::Llp };
    let status = Status::Transport;
    let expected = [
        Event::ReceiveFailed { id: receive, status },
        Event::Failed { id, status },
        Event::Ended(End::Broken(Cause::Refused(fault))),
    ];
    assert_eq!(with.events, expected);
    assert_eq!(last_words(&mut with), Code::MPA_CRC.into());
    assert_eq!(with.device.regions[&1].bytes, [1; 100]);
    // A segment without room for its header.
    for short in [framed(&[0xc1; 13]), framed(&[0x41; 17]), framed(&[])] {
        refuses(node(), &short, Code::MPA_LENGTH, Kind::Llp);
    }
    let empty = segment(true, Opcode::Terminate, untagged(queue::TERMINATE, 1, 0), &[0; 3]);
    refuses(node(), &empty, Code::MPA_LENGTH, Kind::Llp);
}

#[test]
fn the_peer_of_a_refused_read_hears_which_one_it_was() {
    let [mut a, mut b] = [node(), node()];
    let good = a.post(reads(1, 0x1000), vec![0; 10]);
    let bad = a.post(reads(9, 0x1000), vec![0; 10]);
    let behind = a.post(reads(1, 0x1000), vec![0; 10]);
    let written = a.post(write(1, 0x1000), vec![5; 10]);
    b.take(&a.send_all());
    // The response to the first one is not sent any more: the stream has ended.
    a.take(&b.send_all());
    let flushed = |id| Some(Event::Failed { id, status: Status::Flushed });
    assert_eq!(a.outcome(good), flushed(good));
    assert_eq!(a.outcome(bad), Some(Event::Failed { id: bad, status: Status::RemoteAccess }));
    assert_eq!(a.outcome(behind), flushed(behind));
    // It was given to the stream, but nothing succeeds behind what failed.
    assert_eq!(a.outcome(written), flushed(written));
    let Some(End::Broken(Cause::Terminated(terminate))) = a.end() else { panic!("{:?}", a.end()) };
    assert_eq!(terminate.code, Code::READ_STAG);
    assert!(a.send_all().is_empty());
    assert_eq!(a.engine.close(), Some(Close::Finish));
}

#[test]
fn memory_that_goes_before_its_response_refuses_the_read() {
    let [mut a, mut b] = [node(), node()];
    a.post(reads(2, 0x1000), Vec::new());
    let id = a.post(reads(1, 0x1000), vec![0; 100]);
    b.take(&a.send_all());
    b.device.regions.remove(&1);
    a.take(&b.send_all());
    assert_eq!(a.outcome(id), Some(Event::Failed { id, status: Status::RemoteAccess }));
    let fault = Fault { code: Code::READ_STAG, kind: Kind::ReadSource };
    assert_eq!(b.end(), Some(End::Broken(Cause::Refused(fault))));
}

#[test]
fn a_request_whose_own_memory_is_gone_fails_with_the_stream() {
    let mut a = node();
    let first = a.post(SEND, vec![1; 10]);
    let bad = a.post(SEND, vec![1; 10]);
    let behind = a.post(SEND, vec![1; 10]);
    a.device.gone.push(bad);
    let bytes = a.send_all();
    let mut b = node();
    b.receive(10);
    b.take(&bytes);
    let fault = Fault { code: Code::LOCAL, kind: Kind::Local };
    let expected = [
        Event::Completed { id: first },
        Event::Failed { id: bad, status: Status::LocalProtection },
        Event::Failed { id: behind, status: Status::Flushed },
        Event::Ended(End::Broken(Cause::Refused(fault))),
    ];
    assert_eq!(a.events, expected);
    assert_eq!(b.end(), Some(End::Broken(Cause::Terminated(Code::LOCAL.into()))));
    // The same for a local request.
    let mut a = node();
    let bad = a.post(Operation::Local, Vec::new());
    a.device.gone.push(bad);
    assert!(!a.send_all().is_empty());
    assert_eq!(a.outcome(bad), Some(Event::Failed { id: bad, status: Status::LocalProtection }));
}

#[test]
fn memory_that_goes_inside_an_fpdu_resets_the_stream() {
    let mut a = node();
    let id = a.post(SEND, vec![1; 100]);
    assert_eq!(a.send(50).len(), 50);
    a.device.gathers = Some(0);
    assert!(a.send(1).is_empty());
    assert_eq!(a.engine.close(), Some(Close::Reset));
    let fault = Fault { code: Code::LOCAL, kind: Kind::Local };
    let expected = [
        Event::Failed { id, status: Status::LocalProtection },
        Event::Ended(End::Broken(Cause::Refused(fault))),
    ];
    assert_eq!(a.events, expected);
    assert!(a.send_all().is_empty());
}

#[test]
fn no_reads_are_taken_where_none_may_be() {
    let none = Node::new(Config { ird: 0, ..CONFIG });
    refuses(none, &asked(1, 1, 0x1000, 0), Code::DDP_MSN, Kind::ReadSource);
}
