//! One end against a peer that does what it should not.

use core::net::SocketAddr;
use core::time::Duration;

use ferrovia_tcp::config::{MAX_FORMER, MIN_SEGMENT};
use ferrovia_tcp::testing::{MTU, address, config};
use ferrovia_tcp::{Config, Dropped, End, Error, Happened, Polled};
use smoltcp::wire::{TcpControl, TcpSeqNumber};

use crate::raw::{Peer, packet, segment};

#[test]
fn overlapping_repeated_and_reordered_segments_make_one_stream() {
    let (mut peer, listener) = Peer::listening();
    let (id, seq, ack) = peer.open(listener);
    let bytes: Vec<u8> = (0..100).collect();
    for (from, to) in [(50, 70), (10, 20), (60, 100), (0, 5), (0, 15), (3, 55), (0, 100)] {
        peer.send(&segment(TcpControl::Psh, seq.wrapping_add(from), Some(ack), &bytes[from as usize..to]))
            .unwrap();
    }
    assert_eq!(peer.read(id), bytes);
    // Other bytes at a place that was taken already change nothing.
    peer.send(&segment(TcpControl::Psh, seq, Some(ack), &[0xff; 100])).unwrap();
    assert_eq!(peer.read(id), []);
    assert_eq!(peer.sent().last().unwrap().ack, Some(seq.wrapping_add(100)));
}

#[test]
fn one_byte_a_segment() {
    let (mut peer, listener) = Peer::listening();
    let (id, seq, ack) = peer.open(listener);
    for n in 0..5000_u32 {
        peer.send(&segment(TcpControl::Psh, seq.wrapping_add(n), Some(ack), &[n as u8])).unwrap();
    }
    assert_eq!(peer.read(id), (0..5000).map(|n| n as u8).collect::<Vec<_>>());
    // Only every other byte: the holes have an end, and the bytes before it are acknowledged.
    for n in (5001..6000_u32).step_by(2) {
        peer.send(&segment(TcpControl::Psh, seq.wrapping_add(n), Some(ack), &[n as u8])).unwrap();
    }
    let rest: Vec<u8> = (5000..6000).map(|n| n as u8).collect();
    peer.send(&segment(TcpControl::Psh, seq.wrapping_add(5000), Some(ack), &rest)).unwrap();
    assert_eq!(peer.read(id), rest);
}

#[test]
fn a_peer_that_asks_for_less_gets_segments_of_the_smallest_size() {
    let asks = |control, ack, mss| {
        let mut syn = segment(control, 1000, ack, &[]);
        syn.max_seg_size = mss;
        syn
    };
    let least = usize::from(MIN_SEGMENT);
    for (mss, len, small) in [
        (Some(1), least, 1),
        (Some(MIN_SEGMENT - 1), least, 1),
        (Some(MIN_SEGMENT), least, 0),
        (Some(MIN_SEGMENT + 1), least + 1, 0),
        // It does not ask.
        (Some(0), 536, 0),
        (None, 536, 0),
    ] {
        // A connection that the peer opens, and one that this side opens.
        for active in [false, true] {
            let (mut peer, listener) = Peer::listening();
            let id = if active {
                let id = peer.streams.connect(peer.own.ip(), Some(80), peer.peer, peer.now).unwrap();
                let next = peer.one().seq.wrapping_add(1);
                peer.send(&asks(TcpControl::Syn, Some(next), mss)).unwrap();
                id
            } else {
                peer.open_with(listener, 1000, &asks(TcpControl::Syn, None, mss)).0
            };
            peer.sent();
            peer.write(id, &vec![7; 3 * len]);
            let sent: Vec<usize> = peer.sent().iter().map(|seen| seen.len).collect();
            assert_eq!(sent, [len; 3], "{mss:?} {active}");
            assert_eq!(peer.streams.counters().small_segments, small, "{mss:?} {active}");
        }
    }
}

#[test]
fn a_window_of_one_byte_costs_a_packet_for_each_answer() {
    let (mut peer, listener) = Peer::listening();
    let (id, seq, ack) = peer.open(listener);
    let mut answer = segment(TcpControl::None, seq, Some(ack), &[]);
    answer.window_len = 1;
    peer.send(&answer).unwrap();
    peer.write(id, &[7; 1000]);
    for n in 1..100 {
        let sent = peer.sent();
        assert_eq!((sent.len(), sent[0].len), (1, 1));
        answer.ack_number = Some(TcpSeqNumber(ack.wrapping_add(n) as i32));
        peer.send(&answer).unwrap();
    }
}

#[test]
fn what_is_sent_again_does_not_change_the_number_of_acknowledgements() {
    let (mut peer, listener) = Peer::listening();
    let (id, seq, ack) = peer.open(listener);
    peer.write(id, &[7; 2000]);
    assert_eq!(peer.sent().iter().map(|seen| seen.len).sum::<usize>(), 2000);
    // The timeout: everything is sent again, and not all at once.
    peer.pass(Duration::from_millis(60));
    let again = peer.sent();
    assert!(again[0].seq == ack && again.iter().map(|seen| seen.len).sum::<usize>() < 2000);
    peer.send(&segment(TcpControl::Psh, seq + 5, Some(ack), b"later")).unwrap();
    let answer = peer.one();
    assert_eq!((answer.len, answer.seq, answer.ack), (0, ack.wrapping_add(2000), Some(seq)));
    peer.streams.abort(id).unwrap();
    let reset = peer.one();
    assert_eq!((reset.control, reset.seq), (TcpControl::Rst, ack.wrapping_add(2000)));
}

#[test]
fn a_window_that_stays_closed_ends_the_connection_in_time() {
    let mut peer = Peer::new(Config { user_timeout: Duration::from_secs(5), ..config(1) });
    let listener = peer.streams.listen(None, 80, 8).unwrap();
    let (id, seq, ack) = peer.open(listener);
    let mut sent = 0;
    let mut closed = |peer: &mut Peer| {
        let mut answer = segment(TcpControl::Psh, seq + sent, Some(ack), b"x");
        answer.window_len = 0;
        peer.send(&answer).unwrap();
        sent += 1;
    };
    closed(&mut peer);
    peer.write(id, &[7; 1000]);
    let mut probes = 0;
    for _ in 0..49 {
        peer.pass(Duration::from_millis(100));
        for probe in peer.sent() {
            assert!(probe.len <= 1);
            probes += probe.len;
        }
        // It answers with bytes of its own, but takes nothing.
        closed(&mut peer);
        assert_eq!(peer.streams.info(id).unwrap().end, None);
    }
    assert!((3..20).contains(&probes), "{probes} probes");
    peer.pass(Duration::from_millis(200));
    assert_eq!(peer.streams.info(id).unwrap().end, Some(End::TimedOut));
    assert_eq!(peer.sent().last().unwrap().control, TcpControl::Rst);
}

/// Bytes are lost, and an acknowledgement from before the peer had opened its window arrives late:
/// so nothing can be sent again when the time for that has come.
#[test]
fn a_window_that_closes_over_lost_bytes_is_asked_for() {
    for lost in [1, 100, 500] {
        let (mut peer, listener) = Peer::listening();
        let (id, seq, ack) = peer.open(listener);
        peer.write(id, &vec![7; lost]);
        assert_eq!(peer.sent().iter().map(|sent| sent.len).sum::<usize>(), lost);
        let mut late = segment(TcpControl::None, seq, Some(ack), &[]);
        late.window_len = 0;
        peer.send(&late).unwrap();
        peer.pass(Duration::from_secs(1));
        let sent = peer.sent();
        assert!(!sent.is_empty() && sent.iter().all(|sent| (sent.seq, sent.len) == (ack, 1)), "{sent:?}");
        assert!(sent.len() < 10, "{sent:?}");
        // The peer takes the byte, and tells its window.
        peer.send(&segment(TcpControl::None, seq, Some(ack.wrapping_add(1)), &[])).unwrap();
        let rest = peer.sent();
        assert_eq!(rest.iter().map(|sent| sent.len).sum::<usize>(), lost - 1, "{rest:?}");
        assert!(rest.first().is_none_or(|first| first.seq == ack.wrapping_add(1)), "{rest:?}");
        peer.send(&segment(TcpControl::None, seq, Some(ack.wrapping_add(lost as u32)), &[])).unwrap();
        let info = peer.streams.info(id).unwrap();
        assert_eq!((info.unacknowledged, info.end), (0, None));
    }
}

#[test]
fn a_peer_that_takes_little_at_a_time_is_not_given_up() {
    let mut peer = Peer::new(Config { user_timeout: Duration::from_secs(5), ..config(1) });
    let listener = peer.streams.listen(None, 80, 8).unwrap();
    let (id, seq, ack) = peer.open(listener);
    peer.write(id, &[7; 100]);
    for n in 1..10 {
        peer.pass(Duration::from_secs(4));
        peer.send(&segment(TcpControl::None, seq, Some(ack.wrapping_add(n)), &[])).unwrap();
        assert_eq!(peer.streams.info(id).unwrap().unacknowledged, 100 - n as usize);
    }
    peer.pass(Duration::from_secs(6));
    assert_eq!(peer.streams.info(id).unwrap().end, Some(End::TimedOut));
}

#[test]
fn an_own_window_that_stays_closed_is_told_and_opens_again() {
    let mut peer = Peer::new(Config { receive_ring: 2048, ..config(1) });
    let listener = peer.streams.listen(None, 80, 8).unwrap();
    let (id, seq, ack) = peer.open(listener);
    let bytes = [5; 2048];
    for (n, piece) in bytes.chunks(1024).enumerate() {
        peer.send(&segment(TcpControl::Psh, seq + n as u32 * 1024, Some(ack), piece)).unwrap();
    }
    peer.pass(Duration::from_millis(5));
    let last = *peer.sent().last().unwrap();
    assert_eq!((last.ack, last.window), (Some(seq + 2048), 0));
    // Probes are answered, and their byte is not taken.
    for _ in 0..5 {
        peer.send(&segment(TcpControl::Psh, seq + 2048, Some(ack), b"x")).unwrap();
        let answer = peer.one();
        assert_eq!((answer.ack, answer.window), (Some(seq + 2048), 0));
    }
    assert_eq!(peer.read(id).len(), 2048);
    let opened = peer.one();
    assert_eq!((opened.ack, opened.window), (Some(seq + 2048), 2048));
}

#[test]
fn bytes_beyond_the_ring_are_not_taken() {
    // The window of the answer to a SYN has no scale, and such a ring has one.
    let mut peer = Peer::new(Config { receive_ring: 1 << 18, ..config(1) });
    let listener = peer.streams.listen(None, 80, 8).unwrap();
    let mut syn = segment(TcpControl::Syn, 1000, None, &[]);
    syn.window_scale = Some(7);
    let far = |seq: u32, offset: u32, ack: u32| (seq.wrapping_add(offset), ack);
    for first in [true, false] {
        peer.peer.set_port(6000 + u16::from(first));
        peer.send(&syn).unwrap();
        let next = peer.one().seq.wrapping_add(1);
        let (seq, ack) = far(1001, (1 << 18) - 50, next);
        if first {
            // The opening acknowledgement itself has them.
            let _ = peer.send(&segment(TcpControl::Psh, seq, Some(ack), &[1; 1000]));
        }
        let _ = peer.send(&segment(TcpControl::None, 1001, Some(next), &[]));
        let result = peer.send(&segment(TcpControl::Psh, seq, Some(ack), &[1; 1000]));
        assert_eq!(result, Err(Dropped::OutOfWindow));
        for n in 0..300_u32 {
            let _ = peer.send(&segment(TcpControl::Psh, 1001 + n * 1000, Some(ack), &[n as u8; 1000]));
        }
        let id = peer.streams.accept(listener).unwrap().unwrap();
        assert_eq!(peer.streams.info(id).unwrap().readable, 262_000);
        peer.sent();
    }
}

#[test]
fn resets_and_syns_that_do_not_fit_change_nothing() {
    let (mut peer, listener) = Peer::listening();
    let (id, seq, ack) = peer.open(listener);
    peer.sent();
    let next = seq;
    for wrong in [1, 100, 60_000] {
        let reset = segment(TcpControl::Rst, next + wrong, Some(ack), &[]);
        assert_eq!(peer.send(&reset), Err(Dropped::OutOfWindow));
        // The peer, if it was the peer, learns which number it has to name.
        let challenge = peer.one();
        assert_eq!((challenge.control, challenge.ack), (TcpControl::None, Some(next)));
    }
    for wrong in [next - 1, next.wrapping_add(1 << 20), next.wrapping_sub(1 << 30)] {
        let reset = segment(TcpControl::Rst, wrong, Some(ack), &[]);
        assert_eq!((peer.send(&reset), peer.sent()), (Err(Dropped::OutOfWindow), vec![]));
    }
    for seq in [next, next + 7, next + 1_000_000] {
        let _ = peer.send(&segment(TcpControl::Syn, seq, None, &[]));
        let _ = peer.send(&segment(TcpControl::Syn, seq, Some(ack), &[]));
    }
    let _ = peer.send(&segment(TcpControl::None, next, Some(ack.wrapping_add(5000)), b"forged"));
    assert_eq!((peer.read(id), peer.streams.info(id).unwrap().end), (vec![], None));
    peer.send(&segment(TcpControl::Psh, next, Some(ack), b"right")).unwrap();
    assert_eq!(peer.read(id), b"right");
    peer.send(&segment(TcpControl::Rst, next + 5, Some(ack), &[])).unwrap();
    assert_eq!(peer.streams.info(id).unwrap().end, Some(End::Reset));
}

#[test]
fn a_flood_of_challenges_and_of_resets_is_answered_at_a_bounded_rate() {
    let (mut peer, listener) = Peer::listening();
    let (_, seq, ack) = peer.open(listener);
    peer.sent();
    for _ in 0..1000 {
        let _ = peer.send(&segment(TcpControl::Rst, seq + 9, Some(ack), &[]));
    }
    assert!(peer.sent().len() <= 16);
    peer.pass(Duration::from_secs(1));
    for n in 0..10_000 {
        peer.peer.set_port(7000 + n % 50);
        let segment = segment(TcpControl::None, 5, Some(77), b"x");
        assert_eq!(peer.send(&segment), Err(Dropped::NoConnection));
    }
    let sent = peer.sent();
    assert!(sent.len() <= 16 && sent.iter().all(|seen| seen.control == TcpControl::Rst && seen.seq == 77));
    assert_eq!(peer.streams.counters().answers_held, 984 + 9984);
    // Another peer has its answer, and one without an acknowledgement gets the number it used.
    peer.peer = SocketAddr::new([10, 0, 9, 9].into(), 1);
    peer.own.set_port(81);
    assert_eq!(peer.send(&segment(TcpControl::Syn, 41, None, &[])), Err(Dropped::NoConnection));
    let refused = peer.one();
    assert_eq!((refused.control, refused.seq, refused.ack), (TcpControl::Rst, 0, Some(42)));
    // Nobody answers a reset.
    let _ = peer.send(&segment(TcpControl::Rst, 41, Some(5), &[]));
    assert_eq!(peer.sent(), []);
}

#[test]
fn broken_packets_are_counted_by_reason() {
    let (mut peer, listener) = Peer::listening();
    let (id, seq, ack) = peer.open(listener);
    let good = packet(peer.peer, peer.own, &segment(TcpControl::Psh, seq, Some(ack), b"data"));
    let mut input = |packet: &[u8]| peer.streams.input(packet, peer.now, &mut peer.out);
    let changed = |at: usize, bits: u8| {
        let mut packet = good.clone();
        packet[at] ^= bits;
        packet
    };
    // With the checksum of the header made right again.
    let header = |at: usize, value: u8| {
        let mut packet = good.clone();
        packet[at] = value;
        smoltcp::wire::Ipv4Packet::new_unchecked(&mut packet[..]).fill_checksum();
        packet
    };
    let from = SocketAddr::new([224, 0, 0, 1].into(), 5000);
    let cases = [
        (vec![], Dropped::Malformed),
        (changed(0, 0x80), Dropped::Malformed),
        (good[..19].to_vec(), Dropped::Truncated),
        (good[..good.len() - 1].to_vec(), Dropped::Truncated),
        (changed(8, 1), Dropped::BadChecksum),
        (changed(40, 1), Dropped::BadChecksum),
        (changed(37, 1), Dropped::BadChecksum),
        (header(6, 0x20), Dropped::Fragment),
        (header(7, 1), Dropped::Fragment),
        (header(9, 17), Dropped::NotTcp),
        (packet(from, peer.own, &segment(TcpControl::None, 1, Some(1), &[])), Dropped::BadAddress),
        (packet(peer.own, peer.own, &segment(TcpControl::None, 1, Some(1), &[])), Dropped::BadAddress),
        (vec![0x45; MTU + 1], Dropped::Oversized),
    ];
    for (packet, why) in &cases {
        assert_eq!(input(packet), Err(*why));
    }
    assert_eq!(input(&good), Ok(()));
    assert_eq!(peer.read(id), b"data");
    let counters = peer.streams.counters();
    assert_eq!(counters.drops().map(|(_, count)| count).sum::<u64>(), cases.len() as u64);
    assert_eq!(counters.dropped(Dropped::BadChecksum), 3);
}

#[test]
fn a_record_answers_repeated_fins_and_gives_way_to_a_new_connection() {
    let (mut peer, listener) = Peer::listening();
    let (id, seq, ack) = peer.open(listener);
    peer.streams.close(id, peer.now).unwrap();
    assert_eq!(peer.one().control, TcpControl::Fin);
    peer.send(&segment(TcpControl::Fin, seq, Some(ack.wrapping_add(1)), &[])).unwrap();
    let last = peer.one();
    assert_eq!((last.seq, last.ack), (ack.wrapping_add(1), Some(seq + 1)));
    assert_eq!((peer.streams.info(id).unwrap().end, peer.streams.former()), (Some(End::Closed), 1));
    peer.send(&segment(TcpControl::Fin, seq, Some(ack.wrapping_add(1)), &[])).unwrap();
    let again = peer.one();
    assert_eq!((again.seq, again.ack), (last.seq, last.ack));
    // A reset does not end it, nor does an old SYN.
    assert_eq!(peer.send(&segment(TcpControl::Rst, seq + 1, None, &[])), Err(Dropped::OutOfWindow));
    peer.send(&segment(TcpControl::Syn, seq, None, &[])).unwrap();
    assert_eq!((peer.one().ack, peer.streams.former()), (Some(seq + 1), 1));
    // A SYN with a later number opens a connection.
    let (next, ..) = peer.open_with(listener, seq + 2, &segment(TcpControl::Syn, seq + 2, None, &[]));
    assert!(peer.streams.info(next).unwrap().connected);
    assert_eq!(peer.streams.info(id).unwrap().end, Some(End::Closed));
}

#[test]
fn a_syn_that_comes_before_the_own_one_has_left_is_not_taken() {
    let mut peer = Peer::new(config(1));
    let id = peer.streams.connect(peer.own.ip(), Some(80), peer.peer, peer.now).unwrap();
    let syn = segment(TcpControl::Syn, 1000, None, &[]);
    assert_eq!(peer.send(&syn), Err(Dropped::OutOfWindow));
    let own = peer.one();
    assert_eq!((own.control, own.ack), (TcpControl::Syn, None));
    // Now both have asked.
    peer.send(&syn).unwrap();
    assert_eq!(peer.one().ack, Some(1001));
    peer.send(&segment(TcpControl::None, 1001, Some(own.seq.wrapping_add(1)), &[])).unwrap();
    assert_eq!(peer.streams.info(id).map(|info| info.connected), Ok(true));
}

#[test]
fn records_have_an_end_and_the_oldest_goes() {
    let (mut peer, listener) = Peer::listening();
    let count = MAX_FORMER + 10;
    for n in 0..count {
        peer.peer = SocketAddr::new([10, 7, (n >> 8) as u8, n as u8].into(), 5000);
        let (id, seq, ack) = peer.open(listener);
        peer.streams.release(id, peer.now).unwrap();
        peer.sent();
        peer.send(&segment(TcpControl::Fin, seq, Some(ack.wrapping_add(1)), &[])).unwrap();
        peer.sent();
    }
    let counters = peer.streams.counters();
    assert_eq!((peer.streams.former(), counters.formers_dropped), (MAX_FORMER, 10));
    assert_eq!((peer.streams.names(), peer.streams.memory()), (MAX_FORMER, 0));
    // The latest one still answers.
    assert_eq!((peer.send(&segment(TcpControl::Fin, 1001, None, &[])), peer.one().ack), (Ok(()), Some(1002)));
    peer.pass(Duration::from_secs(11));
    assert_eq!((peer.streams.former(), peer.streams.names()), (0, 0));
}

#[test]
fn late_packets_and_ids_of_a_former_stream_do_not_reach_the_next_one_in_its_place() {
    let (mut peer, listener) = Peer::listening();
    let (old, seq, ack) = peer.open(listener);
    peer.streams.abort(old).unwrap();
    peer.sent();
    peer.peer.set_port(5001);
    let (new, ..) = peer.open(listener);
    assert_eq!((old.index(), old == new), (new.index(), false));
    // The former one's peer.
    peer.peer.set_port(5000);
    for control in [TcpControl::Psh, TcpControl::Fin, TcpControl::Rst] {
        let late = segment(control, seq, Some(ack), if control == TcpControl::Psh { b"late" } else { b"" });
        assert_eq!(peer.send(&late), Err(Dropped::NoConnection));
    }
    assert_eq!(peer.happened(new), Happened::CONNECTED | Happened::WRITABLE);
    assert_eq!((peer.read(new), peer.streams.info(new).unwrap().end), (vec![], None));
    // The former one's owner.
    assert_eq!(peer.streams.send(old, |_| (1, ())), Err(Error::NoSuch));
    assert_eq!(peer.streams.receive(old, |_| (1, ())), Err(Error::NoSuch));
    assert_eq!(peer.streams.close(old, peer.now), Err(Error::NoSuch));
    assert_eq!(peer.streams.release(old, peer.now), Err(Error::NoSuch));
    assert_eq!(peer.streams.abort(old), Err(Error::NoSuch));
    assert_eq!(peer.streams.info(new).unwrap().end, None);
}

#[test]
fn numbers_and_ports_do_not_follow_from_those_before() {
    let numbers = |seed: u64| {
        let mut peer = Peer::new(config(seed));
        let mut numbers = Vec::new();
        for n in 0..200 {
            let to = SocketAddr::new([10, 0, 1, n].into(), 80);
            let id = peer.streams.connect(address(0), None, to, peer.now).unwrap();
            numbers.push((peer.one().seq, peer.streams.info(id).unwrap().local.port()));
        }
        numbers
    };
    let (one, two) = (numbers(1), numbers(2));
    assert_eq!(one, numbers(1));
    for pairs in [&one, &two] {
        let close = pairs.windows(2).filter(|two| two[1].0.wrapping_sub(two[0].0) < 1 << 24).count();
        assert!(close < 10, "{close} numbers are a little behind the one before");
        let follows = pairs.windows(2).filter(|two| two[1].1.wrapping_sub(two[0].1) < 64).count();
        assert!(follows < 10, "{follows} ports are a little behind the one before");
        assert!(pairs.iter().all(|(_, port)| *port >= 49_152));
    }
    assert!(one.iter().zip(&two).all(|(a, b)| a.0 != b.0));
    // To one port of one peer each has another port.
    let mut peer = Peer::new(config(3));
    let to = SocketAddr::new(address(1), 80);
    let mut ports: Vec<_> = (0..500)
        .map(|_| {
            let id = peer.streams.connect(address(0), None, to, peer.now).unwrap();
            peer.streams.info(id).unwrap().local.port()
        })
        .collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 500);
}

#[test]
fn a_stream_that_was_given_back_ends_in_time_whatever_its_peer_does() {
    let config =
        Config { linger: Duration::from_secs(5), user_timeout: Duration::from_secs(20), ..config(1) };
    // The peer takes a byte now and then, or sends one.
    for takes in [true, false] {
        let mut peer = Peer::new(config.clone());
        let listener = peer.streams.listen(None, 80, 8).unwrap();
        let (id, mut seq, ack) = peer.open(listener);
        if takes {
            peer.write(id, &[7; 100]);
        }
        peer.streams.drain(id, 1000, peer.now).unwrap();
        let last = if takes { 0 } else { 1 };
        let mut ended = None;
        for n in 1..=10 {
            peer.pass(Duration::from_secs(2));
            let acked = if takes { n } else { last };
            let answer = segment(TcpControl::Psh, seq, Some(ack.wrapping_add(acked)), b"x");
            seq += 1;
            if peer.send(&answer) == Err(Dropped::NoConnection) {
                ended = Some(n);
                break;
            }
        }
        // What it sends gives it no time; what it takes does, for so long in all.
        assert_eq!(ended, Some(if takes { 10 } else { 4 }));
        assert_eq!((peer.streams.names(), peer.streams.memory()), (0, 0));
        assert!(peer.sent().iter().any(|seen| seen.control == TcpControl::Rst));
    }
}

#[test]
fn what_a_peer_sends_to_a_stream_that_is_drained_is_dropped_up_to_a_number() {
    let mut peer = Peer::new(Config { receive_ring: 2048, ..config(1) });
    let listener = peer.streams.listen(None, 80, 8).unwrap();
    let (id, seq, ack) = peer.open(listener);
    peer.send(&segment(TcpControl::Psh, seq, Some(ack), &[1; 1000])).unwrap();
    peer.streams.drain(id, 5000, peer.now).unwrap();
    assert_eq!(peer.one().control, TcpControl::Fin);
    for n in 1..5 {
        let more = segment(TcpControl::Psh, seq + n * 1000, Some(ack + 1), &[1; 1000]);
        peer.send(&more).unwrap();
        peer.pass(Duration::from_millis(50));
        let answered = peer.sent();
        assert_eq!(answered.last().unwrap().ack, Some(seq + (n + 1) * 1000));
        assert!(answered.iter().all(|seen| seen.control == TcpControl::None && seen.window > 1000));
    }
    peer.send(&segment(TcpControl::Psh, seq + 5000, Some(ack + 1), b"x")).unwrap();
    assert_eq!(peer.one().control, TcpControl::Rst);
    assert_eq!((peer.streams.names(), peer.streams.memory()), (0, 0));
    // The end behind the number is an end in good order.
    peer.peer.set_port(5001);
    let (id, seq, ack) = peer.open(listener);
    peer.streams.drain(id, 10, peer.now).unwrap();
    assert_eq!(peer.one().control, TcpControl::Fin);
    peer.send(&segment(TcpControl::Fin, seq, Some(ack + 1), &[1; 10])).unwrap();
    peer.pass(Duration::from_millis(50));
    assert_eq!((peer.one().ack, peer.streams.former()), (Some(seq + 11), 1));
}

#[test]
fn peers_that_do_not_close_keep_nobody_out() {
    let limits = [Config { streams: 3, ..config(1) }, Config { memory: 3 * (128 << 10), ..config(1) }];
    for config in limits {
        let mut peer = Peer::new(config);
        let listener = peer.streams.listen(None, 80, 8).unwrap();
        let mut ends = Vec::new();
        for n in 0..3 {
            peer.peer.set_port(1000 + n);
            ends.push(peer.open(listener));
            peer.pass(Duration::from_millis(1));
        }
        // A stream with an owner does not give way.
        for &(id, ..) in &ends[1..] {
            peer.streams.release(id, peer.now).unwrap();
            peer.pass(Duration::from_millis(1));
        }
        peer.sent();
        peer.peer.set_port(2000);
        peer.open(listener);
        assert_eq!(peer.streams.counters().gave_way, 1);
        // The one that was given back first has gone, and its peer learns it.
        peer.peer.set_port(1001);
        let (_, seq, ack) = ends[1];
        let closes = segment(TcpControl::Fin, seq, Some(ack + 1), &[]);
        assert_eq!(peer.send(&closes), Err(Dropped::NoConnection));
        assert_eq!(peer.one().control, TcpControl::Rst);
        let to = SocketAddr::new(address(1), 80);
        peer.streams.connect(address(0), None, to, peer.now).unwrap();
        peer.sent();
        assert_eq!(peer.streams.counters().gave_way, 2);
        assert!(peer.streams.connect(address(0), None, to, peer.now).is_err());
        assert_eq!(peer.streams.info(ends[0].0).unwrap().end, None);
    }
}

#[test]
fn streams_whose_peers_do_not_close_end_within_the_budget_of_a_poll() {
    let mut peer = Peer::new(Config { linger: Duration::from_secs(60), ..config(1) });
    let listener = peer.streams.listen(None, 80, 8).unwrap();
    for n in 0..5 {
        peer.peer.set_port(1000 + n);
        let (id, seq, ack) = peer.open(listener);
        peer.streams.release(id, peer.now).unwrap();
        peer.sent();
        peer.send(&segment(TcpControl::None, seq, Some(ack.wrapping_add(1)), &[])).unwrap();
    }
    peer.pass(Duration::from_secs(29));
    peer.now = peer.now + Duration::from_secs(2);
    for left in [3, 1] {
        assert_eq!(peer.streams.poll(peer.now, 2, &mut peer.out), Polled::More);
        assert_eq!(peer.streams.names(), left);
    }
}
