//! Streams and listeners: two agents, whose NICs are joined by a wire.

extern crate ferrovia_kernel_agent as kernel_agent;

mod common;

use common::*;
use host::Machine;
use host::fake::identity;
use kernel_agent::{Config, Error, Resource, Stream, StreamEnd, StreamState};
use roce::Gid;

const PORT: u16 = 4711;
const LISTENER: u64 = 5;
const ACTIVE: u64 = 6;
const PASSIVE: u64 = 7;

fn gid(node: &Node) -> Gid {
    Gid(node.agent.identity().gids[1])
}

fn nodes() -> (Machine, Node, Node) {
    let machine = by_wire();
    let [a, b] = [0, 1].map(|nic| Node::new(&machine, &open(&machine, nic)));
    (machine, a, b)
}

fn connected(a: &Node, b: &Node) -> (Stream, Stream) {
    let listener = b.client.listen_for_streams(None, PORT, 4, LISTENER).unwrap();
    let active = a.client.connect_stream((gid(a), 0), (gid(b), PORT), ACTIVE).unwrap();
    let passive = until(b, LISTENER, || listener.accept(PASSIVE).unwrap());
    until(a, ACTIVE, || active.state().connected.then_some(()));
    listener.destroy().unwrap();
    (active, passive)
}

/// Receives until as many bytes have come.
fn receive(node: &Node, context: u64, stream: &Stream, count: usize) -> Vec<u8> {
    let (mut all, mut part) = (Vec::new(), [0; 700]);
    until(node, context, || {
        while all.len() < count {
            match stream.receive(&mut part).unwrap() {
                0 => return None,
                some => all.extend_from_slice(&part[..some]),
            }
        }
        Some(())
    });
    all
}

#[test]
fn a_stream_carries_bytes_both_ways_and_ends_in_order() {
    let (_machine, a, b) = nodes();
    let (active, passive) = connected(&a, &b);
    let (ours, theirs) = (active.ends(), passive.ends());
    assert_eq!((ours.remote_gid, ours.remote_port, theirs.local_port), (gid(&b), PORT, PORT));
    assert_eq!((theirs.remote_gid, theirs.remote_port), (gid(&a), ours.local_port));
    assert_eq!((ours.source_gid, theirs.source_gid), (1, 1));
    // More than a command passes, and than there is room for.
    let sent: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut left = &sent[..];
            until(&a, ACTIVE, || {
                while !left.is_empty() {
                    match active.send(left).unwrap() {
                        0 => return None,
                        some => left = &left[some..],
                    }
                }
                Some(())
            });
        });
        assert!(receive(&b, PASSIVE, &passive, sent.len()) == sent);
    });
    assert_eq!(passive.send(b"an answer"), Ok(9));
    let mut look = [0; 4];
    until(&a, ACTIVE, || (active.look(&mut look).unwrap() == 4).then_some(()));
    assert_eq!(&look, b"an a");
    assert_eq!(receive(&a, ACTIVE, &active, 9), b"an answer");
    active.close().unwrap();
    assert_eq!(active.send(b"more"), Err(Error::StreamState));
    until(&b, PASSIVE, || passive.state().peer_closed.then_some(()));
    assert_eq!(passive.receive(&mut look), Err(Error::StreamState));
    passive.close().unwrap();
    let closed = StreamState { connected: true, peer_closed: true, end: Some(StreamEnd::Closed) };
    until(&a, ACTIVE, || (active.state() == closed).then_some(()));
    assert_eq!((a.agent.counts().streams, b.agent.counts().streams), (1, 1));
    active.destroy(false).unwrap();
    assert_eq!((active.destroy(false), active.send(b"x")), (Err(Error::Gone), Err(Error::Gone)));
    passive.destroy(true).unwrap();
    assert_eq!((a.agent.counts().streams, b.agent.counts().streams), (0, 0));
}

#[test]
fn what_cannot_be_connected_is_refused_or_told() {
    let (_machine, a, b) = nodes();
    let listener = b.client.listen_for_streams(Some(gid(&b)), PORT, 4, LISTENER).unwrap();
    let again = b.client.listen_for_streams(Some(gid(&b)), PORT, 4, LISTENER);
    assert_eq!(again.err(), Some(Error::ServiceInUse));
    assert_eq!(listener.accept(PASSIVE).unwrap().map(|_| ()), None);
    let foreign = b.client.listen_for_streams(Some(gid(&a)), PORT, 4, LISTENER);
    assert_eq!(foreign.err(), Some(Error::OutOfRange("source GID")));
    for (port, backlog, what) in [(0, 4, "port"), (PORT, 0, "backlog"), (PORT, 1025, "backlog")] {
        let error = b.client.listen_for_streams(None, port, backlog, LISTENER).err();
        assert_eq!(error, Some(Error::OutOfRange(what)));
    }
    let stream = a.client.connect_stream((gid(&a), 0), (gid(&b), PORT + 1), ACTIVE).unwrap();
    assert_eq!(stream.send(b"too early"), Err(Error::StreamState));
    let refused = StreamState { connected: false, peer_closed: false, end: Some(StreamEnd::Refused) };
    until(&a, ACTIVE, || (stream.state() == refused).then_some(()));
    listener.destroy().unwrap();
    assert_eq!(listener.accept(PASSIVE).err(), Some(Error::Gone));
    let reset = a.client.connect_stream((gid(&a), 0), (gid(&b), PORT), ACTIVE).unwrap();
    until(&a, ACTIVE, || (reset.state().end == Some(StreamEnd::Refused)).then_some(()));
}

#[test]
fn the_end_of_a_client_resets_its_streams() {
    let (_machine, a, b) = nodes();
    let (active, passive) = connected(&a, &b);
    let listener = b.client.listen_for_streams(None, PORT, 4, LISTENER).unwrap();
    b.client.detach();
    until(&a, ACTIVE, || (active.state().end == Some(StreamEnd::Reset)).then_some(()));
    assert_eq!(b.agent.counts().streams, 0);
    assert_eq!(passive.send(b"x"), Err(Error::Gone));
    assert_eq!(listener.accept(PASSIVE).err(), Some(Error::Gone));
    assert_eq!(b.client.listen_for_streams(None, PORT, 4, LISTENER).err(), Some(Error::Gone));
}

#[test]
fn streams_have_an_end_and_their_numbers_come_back() {
    let machine = by_wire();
    let config = Config { max_streams: 2, ..Config::default() };
    let node = Node::new(&machine, &open_with(&machine, 0, config));
    let listen = |port| node.client.listen_for_streams(None, port, 4, LISTENER);
    let full = Some(Error::NoResources(Resource::Streams));
    // Those that are destroyed keep their room until the dispatcher thread has looked.
    let make = |port| loop {
        match listen(port) {
            Err(Error::NoResources(Resource::Streams)) => std::thread::yield_now(),
            made => break made.unwrap(),
        }
    };
    // Also more often than the event queue has entries.
    for _ in 0..600 {
        let [first, second] = [1, 2].map(make);
        assert_eq!(listen(3).err(), full);
        first.destroy().unwrap();
        second.destroy().unwrap();
    }
    // A NIC that does not offer streams has none.
    let (_fake, agent, client, _ears) = on_fake(identity(), Config::default());
    assert_eq!(agent.config().max_streams, 0);
    let none = client.listen_for_streams(None, PORT, 4, LISTENER);
    assert_eq!(none.err(), full);
    agent.close();
}
