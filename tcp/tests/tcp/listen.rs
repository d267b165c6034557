//! Listeners: who gets in, and what waits.

use core::net::SocketAddr;
use core::time::Duration;

use ferrovia_tcp::config::{MAX_BACKLOG, MAX_HALF_OPEN, MAX_LISTENERS};
use ferrovia_tcp::testing::{address, config};
use ferrovia_tcp::{Config, Dropped, Error, Event};
use smoltcp::wire::TcpControl;

use crate::raw::{Peer, segment};

fn syn(seq: u32) -> smoltcp::wire::TcpRepr<'static> {
    segment(TcpControl::Syn, seq, None, &[])
}

#[test]
fn a_flood_of_syns_takes_no_memory_and_an_honest_peer_gets_in() {
    let mut peer = Peer::new(config(1));
    let listener = peer.streams.listen(None, 80, 64).unwrap();
    for n in 0..10_000_u32 {
        peer.peer = SocketAddr::new([10, 1, (n >> 8) as u8, n as u8].into(), 1000);
        peer.send(&syn(n)).unwrap();
        peer.sent();
    }
    assert_eq!((peer.streams.half_open(), peer.streams.names(), peer.streams.memory()), (64, 64, 0));
    assert_eq!(peer.streams.counters().half_open_lost, 10_000 - 64);
    // The latest ones are still there.
    peer.peer = SocketAddr::new(address(1), 5000);
    peer.open(listener);
    // All others are answered some times more, and then given up.
    peer.pass(Duration::from_secs(10));
    assert_eq!((peer.streams.half_open(), peer.streams.names()), (0, 1));
    assert_eq!(peer.sent().len(), 63 * 5);
}

#[test]
fn one_peer_has_half_of_a_backlog() {
    let mut peer = Peer::new(config(1));
    let listener = peer.streams.listen(None, 80, 8).unwrap();
    let mut results = Vec::new();
    for n in 0..6 {
        peer.peer.set_port(1000 + n);
        results.push(peer.send(&syn(1)));
    }
    peer.sent();
    let (ok, backlog) = (Ok(()), Err(Dropped::Backlog));
    assert_eq!(results, [ok, ok, ok, ok, backlog, backlog]);
    peer.peer = SocketAddr::new([10, 0, 0, 77].into(), 1);
    peer.open(listener);
    // The first one makes room for more when its time is over.
    peer.pass(Duration::from_secs(7));
    peer.peer = SocketAddr::new(address(1), 1005);
    peer.sent();
    peer.open(listener);
}

#[test]
fn a_lost_answer_is_repeated_and_so_is_one_to_a_repeated_syn() {
    let (mut peer, listener) = Peer::listening();
    peer.send(&syn(7)).unwrap();
    let first = peer.one();
    peer.send(&syn(7)).unwrap();
    assert_eq!(peer.one(), first);
    peer.pass(Duration::from_millis(100));
    assert_eq!(peer.one(), first);
    // A peer that has started again has another number.
    peer.send(&syn(99)).unwrap();
    let second = peer.one();
    assert!(second.ack == Some(100) && second.seq != first.seq);
    assert_eq!((peer.streams.half_open(), peer.streams.counters().half_open_lost), (1, 1));
    // An acknowledgement of something else, a reset of something else, and the right ones.
    let ack = |seq, ack| segment(TcpControl::None, seq, Some(ack), &[]);
    assert_eq!(peer.send(&ack(100, first.seq.wrapping_add(1))), Err(Dropped::NoConnection));
    assert_eq!((peer.one().control, peer.streams.half_open()), (TcpControl::Rst, 1));
    assert_eq!(peer.send(&segment(TcpControl::Rst, 101, None, &[])), Err(Dropped::OutOfWindow));
    assert_eq!(peer.send(&ack(100_000, second.seq.wrapping_add(1))), Err(Dropped::OutOfWindow));
    peer.send(&segment(TcpControl::Rst, 100, None, &[])).unwrap();
    assert_eq!((peer.streams.half_open(), peer.streams.accept(listener)), (0, Ok(None)));
}

#[test]
fn a_full_queue_of_connections_makes_the_peer_wait() {
    let mut peer = Peer::new(config(1));
    let listener = peer.streams.listen(None, 80, 2).unwrap();
    let mut answers = Vec::new();
    for n in 0..3 {
        peer.peer = SocketAddr::new([10, 0, 0, 50 + n].into(), 1000);
        peer.send(&syn(0)).unwrap();
        answers.push(peer.one().seq.wrapping_add(1));
        let ack = segment(TcpControl::None, 1, Some(answers[usize::from(n)]), &[]);
        assert_eq!(peer.send(&ack), if n < 2 { Ok(()) } else { Err(Dropped::Backlog) });
    }
    assert_eq!(
        (peer.streams.next_event(), peer.streams.next_event()),
        (Some(Event::Waiting(listener)), None)
    );
    let first = peer.streams.accept(listener).unwrap().unwrap();
    assert_eq!(peer.streams.info(first).unwrap().remote.ip(), core::net::IpAddr::from([10, 0, 0, 50]));
    // The third one repeats itself, with data.
    peer.send(&segment(TcpControl::Psh, 1, Some(answers[2]), b"data")).unwrap();
    assert!(peer.streams.accept(listener).unwrap().is_some());
    let third = peer.streams.accept(listener).unwrap().unwrap();
    assert_eq!((peer.read(third), peer.streams.accept(listener)), (b"data".to_vec(), Ok(None)));
    // Since the owner has taken all, the next one is told again.
    while peer.streams.next_event().is_some() {}
    peer.peer.set_port(1001);
    peer.send(&syn(0)).unwrap();
    let next = peer.one().seq.wrapping_add(1);
    peer.send(&segment(TcpControl::None, 1, Some(next), &[])).unwrap();
    assert_eq!(peer.streams.next_event(), Some(Event::Waiting(listener)));
}

#[test]
fn those_that_end_in_the_queue_are_forgotten_and_those_of_a_stopped_listener_reset() {
    let (mut peer, listener) = Peer::listening();
    for n in 0..3 {
        peer.peer.set_port(2000 + n);
        peer.send(&syn(0)).unwrap();
        let next = peer.one().seq.wrapping_add(1);
        peer.send(&segment(TcpControl::None, 1, Some(next), &[])).unwrap();
    }
    peer.send(&segment(TcpControl::Rst, 1, None, &[])).unwrap();
    assert_eq!((peer.streams.counters().ended_unaccepted, peer.streams.names()), (1, 2));
    peer.peer.set_port(3000);
    peer.send(&syn(0)).unwrap();
    peer.sent();
    let id = peer.streams.accept(listener).unwrap().unwrap();
    peer.streams.stop(listener).unwrap();
    assert_eq!(peer.streams.accept(listener), Err(Error::NoSuch));
    assert_eq!((peer.streams.stop(listener), peer.streams.half_open()), (Err(Error::NoSuch), 0));
    let sent = peer.sent();
    assert_eq!((sent.len(), sent[0].control, sent[0].to.port()), (1, TcpControl::Rst, 2001));
    assert_eq!((peer.streams.names(), peer.streams.info(id).unwrap().end), (1, None));
    // The next listener at the port has an id of its own.
    let next = peer.streams.listen(None, 80, 8).unwrap();
    assert!(next != listener && peer.streams.accept(listener) == Err(Error::NoSuch));
    assert!(matches!(peer.streams.next_event(), Some(Event::Stream(of, _)) if of == id));
    assert_eq!(peer.streams.next_event(), None);
    peer.peer.set_port(4000);
    peer.open(next);
}

#[test]
fn a_listener_at_one_address_goes_before_one_at_all() {
    let mut peer = Peer::new(config(1));
    let all = peer.streams.listen(None, 80, 8).unwrap();
    let one = peer.streams.listen(Some(address(0)), 80, 8).unwrap();
    assert_eq!(peer.streams.listen(None, 80, 8), Err(Error::InUse));
    assert_eq!(peer.streams.listen(Some(address(0)), 80, 8), Err(Error::InUse));
    assert_eq!(peer.streams.listen(Some([0; 4].into()), 80, 8), Err(Error::BadAddress));
    assert_eq!(peer.streams.listen(None, 0, 8), Err(Error::BadAddress));
    assert_eq!(peer.streams.listen(None, 1, 0), Err(Error::Config("backlog")));
    assert_eq!(peer.streams.listen(None, 1, MAX_BACKLOG + 1), Err(Error::Config("backlog")));
    peer.open(one);
    peer.own = SocketAddr::new([10, 0, 0, 9].into(), 80);
    peer.open(all);
}

#[test]
fn listeners_and_their_backlogs_have_an_end() {
    let mut peer = Peer::new(config(1));
    let mut listen = |port, backlog| peer.streams.listen(None, port, backlog);
    let few = (1..).map_while(|port| listen(port, MAX_BACKLOG).ok()).collect::<Vec<_>>();
    assert_eq!(few.len(), MAX_HALF_OPEN / MAX_BACKLOG);
    for id in few {
        peer.streams.stop(id).unwrap();
    }
    let mut listen = |port| peer.streams.listen(None, port, 1);
    assert_eq!((1..).map_while(|port| listen(port).ok()).count(), MAX_LISTENERS);
    assert_eq!(listen(9999), Err(Error::TooMany));
}

#[test]
fn streams_and_their_memory_have_an_end() {
    for (config, most, error) in [
        (Config { streams: 3, ..config(1) }, 3, Error::TooMany),
        (Config { memory: 5 * (64 << 10), ..config(1) }, 2, Error::NoMemory),
    ] {
        let mut peer = Peer::new(config);
        let listener = peer.streams.listen(None, 80, 8).unwrap();
        let mut ids = Vec::new();
        for n in 0..most {
            peer.peer.set_port(1000 + n);
            ids.push(peer.open(listener).0);
        }
        peer.peer.set_port(2000);
        assert_eq!((peer.send(&syn(1)), peer.sent()), (Err(Dropped::NoRoom), vec![]));
        let to = SocketAddr::new(address(1), 80);
        assert_eq!(peer.streams.connect(address(0), None, to, peer.now), Err(error));
        // One that is given back makes room.
        peer.streams.abort(ids[0]).unwrap();
        peer.sent();
        peer.open(listener);
    }
}

#[test]
fn one_peer_has_half_of_the_streams_at_all_listeners_until_they_are_taken() {
    let mut peer = Peer::new(Config { streams: 20, ..config(1) });
    let listeners = [0, 1, 2].map(|n| peer.streams.listen(None, 80 + n, 8).unwrap());
    let mut ports = 1000..;
    let mut knock = |peer: &mut Peer, listener: u16| {
        peer.own.set_port(80 + listener);
        peer.peer.set_port(ports.next().unwrap());
        let result = peer.send(&syn(0));
        (result, peer.sent().first().map_or(0, |answer| answer.seq.wrapping_add(1)))
    };
    let ack = |next| segment(TcpControl::None, 1, Some(next), &[]);
    // Four half-open ones at each listener would be twelve; four that are open count as well.
    for n in 0..4 {
        let (result, next) = knock(&mut peer, 0);
        assert_eq!((result, peer.send(&ack(next))), (Ok(()), Ok(())), "{n}");
    }
    for n in 0..6 {
        assert_eq!(knock(&mut peer, 1 + n % 2).0, Ok(()), "{n}");
    }
    for listener in 0..3 {
        assert_eq!(knock(&mut peer, listener).0, Err(Dropped::PeerShare));
    }
    assert_eq!(peer.streams.counters().dropped(Dropped::PeerShare), 3);
    // Another peer gets in at each listener.
    let bad = core::mem::replace(&mut peer.peer, SocketAddr::new([10, 0, 0, 77].into(), 1));
    for (n, listener) in (0..).zip(listeners) {
        let (result, next) = knock(&mut peer, n);
        assert_eq!((result, peer.send(&ack(next))), (Ok(()), Ok(())));
        let mut last = None;
        while let Some(id) = peer.streams.accept(listener).unwrap() {
            last = Some(id);
        }
        let info = peer.streams.info(last.unwrap()).unwrap();
        assert_eq!(info.remote.ip(), peer.peer.ip());
    }
    // Those at the first listener are taken, and the half-open ones are given up in time.
    peer.peer = bad;
    for n in 0..4 {
        assert_eq!(knock(&mut peer, 0).0, Ok(()), "{n}");
    }
    assert_eq!(knock(&mut peer, 1).0, Err(Dropped::PeerShare));
    peer.pass(Duration::from_secs(10));
    peer.sent();
    for n in 0..10 {
        assert_eq!(knock(&mut peer, n % 3).0, Ok(()), "{n}");
    }
    assert_eq!(knock(&mut peer, 1).0, Err(Dropped::PeerShare));
    // The end of the listeners is the end of all that wait, whatever they wait for.
    for listener in listeners {
        peer.streams.stop(listener).unwrap();
    }
    peer.sent();
    let listener = peer.streams.listen(None, 80, 40).unwrap();
    for n in 0..10 {
        let (result, next) = knock(&mut peer, 0);
        // Every other one is open, and then reset.
        let reset = segment(TcpControl::Rst, 1, None, &[]);
        let open = if n % 2 == 0 { peer.send(&ack(next)) } else { Ok(()) };
        assert_eq!((result, open, peer.send(&reset)), (Ok(()), Ok(()), Ok(())), "{n}");
    }
    assert_eq!((peer.streams.half_open(), peer.streams.accept(listener)), (0, Ok(None)));
    for n in 0..10 {
        assert_eq!(knock(&mut peer, 0).0, Ok(()), "{n}");
    }
    assert_eq!(knock(&mut peer, 0).0, Err(Dropped::PeerShare));
}

#[test]
fn streams_that_nobody_has_taken_leave_their_listener_when_all_are_aborted() {
    let mut peer = Peer::new(config(1));
    let listener = peer.streams.listen(None, 80, 2).unwrap();
    let knock = |peer: &mut Peer, host: u8| {
        peer.peer = SocketAddr::new([10, 0, 0, host].into(), 1000);
        peer.send(&syn(0)).unwrap();
        let next = peer.one().seq.wrapping_add(1);
        peer.send(&segment(TcpControl::None, 1, Some(next), &[])).unwrap();
    };
    for host in [50, 51] {
        knock(&mut peer, host);
    }
    peer.streams.abort_all();
    let resets = peer.sent();
    assert!(resets.len() == 2 && resets.iter().all(|sent| sent.control == TcpControl::Rst));
    assert_eq!((peer.streams.accept(listener), peer.streams.names()), (Ok(None), 0));
    // Their places in the queue are free.
    for host in [52, 53] {
        knock(&mut peer, host);
        let id = peer.streams.accept(listener).unwrap().unwrap();
        assert_eq!(peer.streams.info(id).unwrap().remote, peer.peer);
    }
    assert_eq!(peer.streams.accept(listener), Ok(None));
}
