//! Streams: plain bytes, by threads, tasks and those who poll; how they end.

use std::thread;
use std::time::Duration;

use ferrovia_rdma::{Address, ConnectError, CreateError, Stream, StreamError};

use crate::support::{Host, PORT, block_on};

/// Two ends of a stream; the first has connected it.
pub fn streams(host: &Host) -> (Stream, Stream) {
    let (a, b) = (host.nic(0), host.nic(1));
    let listener = b.listen_for_streams(PORT).unwrap();
    let connecting = a.connect_stream(b.address(), PORT);
    let accepted = listener.wait().unwrap();
    (connecting.wait().unwrap(), accepted)
}

/// Receives until as many bytes have come.
fn read(stream: &Stream, count: usize) -> Vec<u8> {
    let (mut all, mut part) = (Vec::new(), [0; 3000]);
    while all.len() < count {
        let most = part.len().min(count - all.len());
        match stream.receive(&mut part[..most]).wait().unwrap() {
            0 => break,
            some => all.extend_from_slice(&part[..some]),
        }
    }
    all
}

#[test]
fn bytes_go_both_ways_and_end_in_order() {
    let host = Host::new(2);
    let (a, b) = streams(&host);
    assert_eq!((a.from(), b.from()), (host.nic(1).address(), host.nic(0).address()));
    assert_eq!((a.ports().0, b.ports().1, a.ports().1), (PORT, PORT, b.ports().0));
    let sent: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
    thread::scope(|scope| {
        scope.spawn(|| a.send(&sent).wait().unwrap());
        assert!(read(&b, sent.len()) == sent);
    });
    b.send(b"an answer").wait().unwrap();
    a.finish().unwrap();
    assert_eq!(a.send(b"more").wait(), Err(StreamError::Finished));
    assert_eq!(a.send(b"").wait(), Ok(()));
    // The other direction goes on.
    assert_eq!((read(&a, 9), b.receive(&mut [0]).wait()), (b"an answer".to_vec(), Ok(0)));
    b.send(b"and the last").wait().unwrap();
    drop(b);
    assert_eq!(read(&a, 100), b"and the last");
    assert_eq!(a.receive(&mut [0]).wait(), Ok(0));
    assert_eq!(a.receive(&mut []).wait(), Ok(0));
}

#[test]
fn a_reset_ends_both_directions() {
    let host = Host::new(2);
    let (a, b) = streams(&host);
    b.reset();
    assert_eq!(a.receive(&mut [0]).wait(), Err(StreamError::Broken));
    assert_eq!(a.send(b"x").wait(), Err(StreamError::Broken));
    assert_eq!(a.try_receive(&mut [0]), Err(StreamError::Broken));
}

#[test]
fn tasks_await_streams_and_those_who_poll_do_not_block() {
    let host = Host::new(2);
    let (a, b) = (host.nic(0), host.nic(1));
    let listener = b.listen_for_streams(PORT).unwrap();
    assert!(listener.try_accept().unwrap().is_none());
    let address = b.address();
    let serving = thread::spawn(move || {
        block_on(async {
            let stream = listener.accept().await.unwrap();
            let mut word = [0; 8];
            let count = stream.receive(&mut word).await.unwrap();
            stream.send(&word[..count]).await.unwrap();
            assert_eq!(stream.receive(&mut word).await, Ok(0));
        })
    });
    block_on(async {
        let stream = a.connect_stream(address, PORT).await.unwrap();
        let mut word = [0; 8];
        assert_eq!(stream.try_receive(&mut word), Ok(None));
        let none = stream.receive(&mut word).wait_timeout(Duration::from_millis(1));
        assert_eq!(none, Ok(None));
        assert_eq!(stream.try_send(b"ping"), Ok(4));
        assert_eq!(stream.receive(&mut word).await, Ok(4));
        assert_eq!(&word[..4], b"ping");
    });
    serving.join().unwrap();
}

#[test]
fn waits_have_time_limits_and_go_on_afterwards() {
    let host = Host::new(2);
    let nic = host.nic(1);
    let listener = nic.listen_for_streams(PORT + 1).unwrap();
    assert!(listener.wait_timeout(Duration::from_millis(1)).unwrap().is_none());
    let (a, b) = streams(&host);
    let bytes = vec![7; 4 << 20];
    let Err(sending) = a.send(&bytes).wait_timeout(Duration::from_millis(1)) else {
        panic!("nobody has received 4 MiB");
    };
    let left = sending.rest().len();
    assert!(left > 0 && left < bytes.len());
    thread::scope(|scope| {
        scope.spawn(|| sending.wait().unwrap());
        assert!(read(&b, bytes.len()) == bytes);
    });
}

#[test]
fn what_is_not_there_is_an_error_of_its_own() {
    let host = Host::new(2);
    let (a, b) = (host.nic(0), host.nic(1));
    let connect = |address, port| a.connect_stream(address, port).wait().err();
    assert_eq!(connect(b.address(), PORT), Some(ConnectError::NoListener));
    let nowhere = Address::from(std::net::Ipv4Addr::new(224, 0, 0, 1));
    assert_eq!(connect(nowhere, PORT), Some(ConnectError::NoPath));
    assert_eq!(connect(b.address(), 0), Some(ConnectError::OutOfRange("port")));
    let listener = b.listen_for_streams(PORT).unwrap();
    assert_eq!(b.listen_for_streams(PORT).err(), Some(CreateError::ServiceInUse));
    assert_eq!(b.listen_for_streams(0).err(), Some(CreateError::OutOfRange("port")));
    // Those that wait at a listener that ends are reset.
    let waits = a.connect_stream(b.address(), PORT).wait().unwrap();
    drop(listener);
    assert_eq!(waits.receive(&mut [0]).wait(), Err(StreamError::Broken));
    // The attempt that is given up leaves nothing, as the host checks.
    drop(a.connect_stream(b.address(), PORT));
}

#[test]
fn a_listener_keeps_so_many_streams_and_the_others_wait_at_their_peers() {
    /// Those that wait at a listener.
    const WAIT: usize = 128;
    /// Those of one peer that the device keeps half-open besides.
    const HALF_OPEN: usize = 64;
    let host = Host::new(2);
    let (a, b) = (host.nic(0), host.nic(1));
    let (listener, address) = (b.listen_for_streams(PORT).unwrap(), b.address());
    let connect = |_| a.connect_stream(address, PORT).wait().unwrap();
    let waiting: Vec<Stream> = (0..WAIT + HALF_OPEN).map(connect).collect();
    let Err(late) = a.connect_stream(address, PORT).wait_timeout(Duration::from_millis(50)) else {
        panic!("the device has room for more than {} streams", WAIT + HALF_OPEN);
    };
    // The first ones are there at once, in their order.
    for stream in &waiting[..WAIT] {
        let accepted = listener.try_accept().unwrap().expect("a stream that waits");
        assert_eq!(accepted.ports().0, stream.ports().1);
    }
    // Those that were half-open come when they repeat themselves, and so does the last one.
    let mut ports: Vec<u16> = waiting[WAIT..].iter().map(|stream| stream.ports().1).collect();
    for _ in 0..HALF_OPEN + 1 {
        let from = listener.wait().unwrap().ports().0;
        ports.retain(|&port| port != from);
    }
    assert!(ports.is_empty(), "{ports:?} did not come");
    assert!(late.wait().is_ok());
}

#[test]
fn the_end_of_the_agent_ends_all_waits() {
    let host = Host::new(2);
    let (a, b) = streams(&host);
    let listener = host.nic(1).listen_for_streams(PORT + 1).unwrap();
    thread::scope(|scope| {
        let receiving = scope.spawn(|| b.receive(&mut [0]).wait());
        let accepting = scope.spawn(|| listener.wait().err());
        host.agents[1].close();
        assert_eq!(receiving.join().unwrap(), Err(StreamError::Closed));
        assert_eq!(accepting.join().unwrap(), Some(CreateError::Closed));
    });
    assert_eq!(b.try_send(b"x"), Err(StreamError::Closed));
    drop((b, listener));
    assert_eq!(a.receive(&mut [0]).wait(), Err(StreamError::Broken));
}
