//! Streams that become the connections of endpoints.

use std::thread;

use ferrovia_rdma::{Access, ConnectError, Ending, Endpoint, Nic, Stream};

use crate::streams::streams;
use crate::support::{Host, block_on, settle};

/// Two ends of a stream and endpoints, each pair of one opening.
fn ends(host: &Host) -> [(Stream, Endpoint); 2] {
    let (a, b) = (host.nic(0), host.nic(1));
    let listener = b.listen_for_streams(1).unwrap();
    let connecting = a.connect_stream(b.address(), 1);
    let accepted = listener.wait().unwrap();
    [(connecting.wait().unwrap(), a), (accepted, b)]
        .map(|(stream, nic)| (stream, nic.domain().unwrap().endpoint().build().unwrap()))
}

fn read(stream: &Stream, expected: &[u8]) {
    let mut bytes = vec![0; expected.len()];
    let mut have = 0;
    while have < bytes.len() {
        match stream.receive(&mut bytes[have..]).wait().unwrap() {
            0 => panic!("an end after {have} bytes"),
            some => have += some,
        }
    }
    assert_eq!(bytes, expected);
}

#[test]
fn a_stream_becomes_a_connection_whoever_speaks_last() {
    for turn in [0, 1] {
        let host = Host::new(2);
        let mut both = ends(&host);
        both.rotate_left(turn);
        let [(says, passive), (hears, active)] = both;
        hears.send(b"RDMA?").wait().unwrap();
        read(&says, b"RDMA?");
        let accepting = says.convert_after(&passive, b"yes");
        read(&hears, b"yes");
        let connecting = hears.convert(&active);
        assert_eq!(connecting.wait().unwrap().bytes(), b"");
        assert_eq!(block_on(accepting).unwrap().bytes(), b"");
        settle(&active, &passive);
        settle(&passive, &active);
        // RDMA Reads, too.
        let (into, from) = (region!(active, 8, Access::empty()), region!(passive, 8, Access::READ));
        from.slice(..).write(b"is there");
        active.read(into.slice(..), from.remote().unwrap()).unwrap().wait().unwrap();
        assert_eq!(into.slice(..).to_vec(), b"is there");
        active.disconnect();
        passive.wait_closed(None).unwrap();
        assert_eq!(passive.ending(), Some(Ending::ByPeer));
        active.wait_closed(None).unwrap();
    }
}

#[test]
fn a_conversion_is_given_up_and_fails_as_an_attempt_to_connect_does() {
    let host = Host::new(2);
    let [(says, passive), (hears, active)] = ends(&host);
    let accepting = says.convert_after(&passive, b"go on");
    read(&hears, b"go on");
    passive.disconnect();
    assert_eq!(accepting.wait().err(), Some(ConnectError::Closed));
    assert!(hears.receive(&mut [0]).wait().is_err());
    assert_eq!(hears.convert(&active).wait().err(), Some(ConnectError::Withdrawn));
    // The endpoint is as before.
    let [(says, passive), (hears, _)] = ends(&host);
    let waiting = thread::spawn(move || says.convert_after(&passive, b"go on").wait().err());
    read(&hears, b"go on");
    hears.send(b"GET / HTTP/1.1\r\n").wait().unwrap();
    assert!(matches!(waiting.join().unwrap(), Some(ConnectError::RejectedByAgent(_))));
}

#[test]
fn what_cannot_be_converted_is_refused() {
    let host = Host::new(2);
    let [(stream, own), (other, _peer)] = ends(&host);
    assert_eq!(stream.convert_after(&own, b"").wait().err(), Some(ConnectError::OutOfRange("last message")));
    assert_eq!(other.receive(&mut [0]).wait(), Ok(0), "a stream that was not converted has ended");
    let (stream, _other) = streams(&host);
    assert_eq!(stream.convert(&own).wait().err(), Some(ConnectError::Foreign));
    // An opening for InfiniBand has streams, and endpoints that cannot have them.
    let [a, b] = [0, 1].map(|number| Nic::open(&host.agents[number]).unwrap());
    let listener = b.listen_for_streams(1).unwrap();
    let stream = a.connect_stream(b.address(), 1).wait().unwrap();
    let _accepted = listener.wait().unwrap();
    let infiniband = a.domain().unwrap().endpoint().build().unwrap();
    let refused = stream.convert(&infiniband).wait().err();
    assert_eq!(refused, Some(ConnectError::OutOfRange("queue pair type")));
}
