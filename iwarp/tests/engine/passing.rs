//! Segments that are passed from one engine to the other without a stream.

use iwarp::engine::{Cause, Close, Config, End, Event, Kind, Operation, Role, Status};

use super::order::{SEND, read, write};
use super::world::{CONFIG, Node};

/// Two ends; the second may send.
fn ends() -> [Node; 2] {
    let node = |role| Node::new(Config { role, ..CONFIG });
    let mut nodes = [node(Role::Initiator), node(Role::Responder)];
    let first = nodes[0].post(write(0, 0), Vec::new());
    let [a, b] = &mut nodes;
    pass_all(a, b);
    assert_eq!(a.outcome(first), Some(Event::Completed { id: first }));
    assert_eq!(b.events, [Event::Established]);
    nodes
}

/// Passes everything that an end has, in segments of any length that are moved at once.
fn pass_all(from: &mut Node, to: &mut Node) {
    while from.pass(to, u32::MAX, usize::MAX) {}
}

#[test]
fn a_segment_may_be_longer_than_an_fpdu() {
    let [mut a, mut b] = ends();
    let receive = b.receive(100_000);
    b.region(5, 0x1000, vec![7; 100_000]);
    a.post(SEND, vec![3; 100_000]);
    assert!(a.pass(&mut b, u32::MAX, usize::MAX));
    let length = 100_000;
    let received = Event::Received { id: receive, length, solicited: false, invalidated: None };
    assert_eq!(b.outcome(receive), Some(received));
    let asked = a.post(read(5, 0x1000), vec![0; 100_000]);
    pass_all(&mut a, &mut b);
    assert_eq!(a.outcome(asked), None);
    assert!(b.pass(&mut a, u32::MAX, usize::MAX));
    assert_eq!(a.outcome(asked), Some(Event::Completed { id: asked }));
    assert_eq!(a.device.requests[&asked], vec![7; 100_000]);
}

#[test]
fn a_message_ends_with_its_last_byte_whatever_its_segments_were_to_be() {
    let [mut a, mut b] = ends();
    b.region(5, 0x1000, vec![0; 100]);
    b.region(6, 0x1000, vec![4; 100]);
    for operation in [SEND, write(5, 0x1000), read(6, 0x1000)] {
        let receive = b.receive(100);
        let id = a.post(operation, vec![9; 100]);
        let reads = matches!(operation, Operation::Read { .. });
        if reads {
            assert!(a.pass(&mut b, u32::MAX, usize::MAX));
        }
        // The whole message is one segment, of which 30 bytes are moved at a time.
        let (from, to) = if reads { (&mut b, &mut a) } else { (&mut a, &mut b) };
        for _ in 0..3 {
            assert!(from.pass(to, u32::MAX, 30));
        }
        assert_eq!((a.outcome(id), b.outcome(receive)), (None, None), "{operation:?}");
        let (from, to) = if reads { (&mut b, &mut a) } else { (&mut a, &mut b) };
        assert!(from.pass(to, u32::MAX, 30));
        assert!(!from.pass(to, u32::MAX, 30));
        assert_eq!(a.outcome(id), Some(Event::Completed { id }), "{operation:?}");
        assert_eq!(b.outcome(receive).is_some(), operation == SEND);
    }
    assert_eq!(b.device.regions[&5].bytes, vec![9; 100]);
}

#[test]
fn a_refusal_follows_a_success_and_is_told_by_a_terminate() {
    let [mut a, mut b] = ends();
    let id = a.post(write(9, 0), vec![1; 50]);
    assert!(a.pass(&mut b, u32::MAX, usize::MAX));
    assert_eq!((a.outcome(id), a.end()), (Some(Event::Completed { id }), None));
    let Some(End::Broken(Cause::Refused(fault))) = b.end() else { panic!("{:?}", b.end()) };
    assert_eq!((fault.kind, b.engine.close()), (Kind::Write, None));
    // What is passed meanwhile is taken, and does nothing.
    b.receive(100);
    let late = a.post(SEND, vec![2; 70]);
    assert!(a.pass(&mut b, u32::MAX, usize::MAX));
    assert_eq!(a.outcome(late), Some(Event::Completed { id: late }));
    assert_eq!(b.device.posted.len(), 1);
    assert!(b.pass(&mut a, u32::MAX, usize::MAX));
    let Some(End::Broken(Cause::Terminated(terminate))) = a.end() else { panic!("{:?}", a.end()) };
    let quoted = terminate.quoted.expect("the segment's header");
    assert_eq!((terminate.code, quoted.length), (fault.code, 14 + 50));
    assert_eq!((a.engine.close(), b.engine.close()), (Some(Close::Finish), Some(Close::Finish)));
    assert!(!a.pass(&mut b, u32::MAX, usize::MAX) && !b.pass(&mut a, u32::MAX, usize::MAX));
}

#[test]
fn memory_that_goes_while_a_segment_is_passed_resets_the_stream() {
    let [mut a, mut b] = ends();
    let receive = b.receive(100);
    let id = a.post(SEND, vec![1; 100]);
    assert!(a.pass(&mut b, 60, usize::MAX));
    a.device.gathers = Some(0);
    assert!(a.pass(&mut b, 60, usize::MAX));
    assert_eq!(a.outcome(id), Some(Event::Failed { id, status: Status::LocalProtection }));
    assert_eq!(a.engine.close(), Some(Close::Reset));
    assert_eq!(b.outcome(receive), None);
    b.engine.lost();
    b.take_events();
    let status = Status::Transport;
    assert_eq!(b.outcome(receive), Some(Event::ReceiveFailed { id: receive, status }));
}

#[test]
fn nothing_is_passed_in_the_middle_of_an_fpdu() {
    let [mut a, mut b] = ends();
    let receive = b.receive(50);
    a.post(SEND, vec![1; 50]);
    let first = a.send(10);
    b.take(&first);
    assert!(!a.engine.is_between() && !b.engine.may_take());
    assert!(!a.pass(&mut b, u32::MAX, usize::MAX));
    // Behind the rest there is nothing, though another request is posted.
    a.post(SEND, vec![2; 50]);
    let mut rest = vec![0; 1000];
    let len = a.engine.transmit_rest(&mut rest, &mut a.device);
    b.take(&rest[..len]);
    assert!(a.engine.is_between() && b.engine.may_take());
    assert!(b.outcome(receive).is_some());
    let other = b.receive(50);
    pass_all(&mut a, &mut b);
    assert_eq!(b.device.receives[&other], vec![2; 50]);
}
