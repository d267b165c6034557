//! Rings that become large with use, and small again when others need the memory.

use core::time::Duration;

use ferrovia_tcp::testing::{Link, Transfer, World, growing};
use ferrovia_tcp::{Config, StreamId};
use smoltcp::wire::TcpControl;

use crate::raw::{Peer, segment};

const LONG: Duration = Duration::from_secs(100);
/// A connection, by its ends.
type Pair = (StreamId, StreamId);

fn world(config: &Config, pairs: u32) -> (World, Vec<Pair>) {
    let mut world = World::new(config, Link::CLEAN, 1);
    let listener = world.listen(80);
    let pairs = (0..pairs).map(|_| world.pair(80, listener)).collect();
    (world, pairs)
}

/// Carries bytes from end 0 to end 1, and as many back.
#[track_caller]
fn carry(world: &mut World, (a, b): Pair, bytes: u64, key: u64) {
    let mut there = Transfer::new((0, a), (1, b), bytes, key);
    assert!(world.run(LONG, |world| there.go_on(world, 1 << 20)), "{there:?}");
    let mut back = Transfer::new((1, b), (0, a), bytes, key + 1);
    assert!(world.run(LONG, |world| back.go_on(world, 1 << 20)), "{back:?}");
    world.pass(Duration::from_millis(10));
}

fn large(world: &World) -> [usize; 2] {
    [0, 1].map(|end| world.ends[end].large())
}

#[test]
fn a_stream_gets_large_rings_when_it_carries_much() {
    let (mut world, pairs) = world(&growing(1), 4);
    let small = 4 * 2 * 2048;
    for (n, pair) in (0..).zip(&pairs) {
        carry(&mut world, *pair, 100, n);
    }
    assert_eq!((large(&world), world.ends[0].memory()), ([0, 0], small));
    let begun = world.now;
    carry(&mut world, pairs[2], 1 << 20, 1);
    assert_eq!(large(&world), [1, 1]);
    assert_eq!(world.ends.each_ref().map(|end| end.memory()), [small + 2 * (62 << 10); 2]);
    // 2 KiB in a round trip of 200 us would take 200 ms.
    assert!(world.now.since(begun) < Duration::from_millis(60), "{:?}", world.now.since(begun));
}

/// A segment fills less than half of these rings, several do more.
#[test]
fn who_only_receives_gets_large_rings() {
    let config = Config { small_ring: 4 << 10, ..growing(1) };
    let (mut world, pairs) = world(&config, 1);
    let [(a, b)] = pairs[..] else { panic!("one pair") };
    let mut transfer = Transfer::new((0, a), (1, b), 1 << 20, 1);
    assert!(world.run(LONG, |world| transfer.go_on(world, 1 << 20)), "{transfer:?}");
    assert_eq!(large(&world), [1, 1]);
}

#[test]
fn a_stream_that_carries_nothing_gives_its_large_rings_to_one_that_does() {
    // Memory for the small rings of eight streams, and the large ones of two.
    let config = Config { streams: 8, memory: 8 * 4096 + 2 * (124 << 10), ..growing(1) };
    let (mut world, pairs) = world(&config, 8);
    for round in 0..3 {
        for (n, pair) in (0..).zip(&pairs) {
            carry(&mut world, *pair, 200_000, round * 8 + n);
            assert!(large(&world).iter().all(|large| *large <= 2));
        }
    }
    assert_eq!(large(&world), [2, 2]);
    // Two that go on carrying keep theirs, and the third goes on with small ones.
    let mut busy: Vec<_> = pairs.iter().map(|(a, b)| Transfer::new((0, *a), (1, *b), 400_000, 99)).collect();
    assert!(world.run(LONG, |world| {
        let done = busy.iter_mut().map(|transfer| transfer.go_on(world, 1 << 20));
        done.fold(true, |all, done| all & done)
    }));
    for end in &world.ends {
        assert!(end.memory() <= config.memory);
    }
    // All memory comes back.
    for (a, b) in pairs {
        world.ends[0].abort(a).unwrap();
        world.ends[1].abort(b).unwrap();
    }
    world.poll();
    assert_eq!(world.ends.each_ref().map(|end| (end.memory(), end.large())), [(0, 0); 2]);
}

#[test]
fn without_memory_for_large_rings_streams_go_on_with_small_ones() {
    let config = Config { streams: 3, memory: 3 * 4096, ..growing(1) };
    let (mut world, pairs) = world(&config, 3);
    for (n, pair) in (0..).zip(&pairs) {
        carry(&mut world, *pair, 100_000, n);
    }
    assert_eq!((large(&world), world.ends[0].memory()), ([0, 0], 3 * 4096));
}

#[test]
fn rings_change_under_losses_and_both_directions_arrive() {
    for seed in 0..30 {
        let link = Link { loss: 200, duplicate: 100, reorder: 300, ..Link::CLEAN };
        let config = Config { streams: 6, memory: 6 * 4096 + 2 * (124 << 10), ..growing(seed) };
        let mut world = World::new(&config, Link::CLEAN, seed);
        let listener = world.listen(80);
        let pairs: Vec<Pair> = (0..6).map(|_| world.pair(80, listener)).collect();
        world.link = link;
        let both = pairs.iter().flat_map(|&(a, b)| {
            [Transfer::new((0, a), (1, b), 50_000, seed), Transfer::new((1, b), (0, a), 30_000, seed + 1)]
        });
        let mut both: Vec<Transfer> = both.collect();
        // They take turns, so that rings change hands.
        let done = (0..5).all(|turn| {
            let part = |transfer: &Transfer| transfer.len / 5 * (turn + 1);
            both.chunks_mut(2).all(|pair| {
                world.run(LONG, |world| {
                    let done = pair.iter_mut().map(|transfer| {
                        let mut until = Transfer { len: part(transfer), ..*transfer };
                        let done = until.go_on(world, 5000);
                        *transfer = Transfer { len: transfer.len, ..until };
                        done
                    });
                    done.fold(true, |all, done| all & done)
                })
            })
        });
        assert!(done, "seed {seed}: {both:?}");
        assert!(large(&world).iter().all(|large| (1..=2).contains(large)), "{:?}", large(&world));
    }
}

/// The ring has been more than half full, and the next segment finds the stream idle.
#[test]
fn an_owner_that_takes_bytes_late_has_large_rings_from_the_next_segment_on() {
    let mut peer = Peer::new(Config { small_ring: 4 << 10, ..growing(1) });
    let listener = peer.streams.listen(None, 80, 8).unwrap();
    let (id, mut seq, ack) = peer.open(listener);
    let data = |seq| segment(TcpControl::Psh, seq, Some(ack), &[7; 1200]);
    for _ in 0..2 {
        peer.send(&data(seq)).unwrap();
        seq = seq.wrapping_add(1200);
        // The second one comes so late that only the ring tells of the first.
        peer.pass(Duration::from_millis(5));
    }
    assert_eq!((peer.read(id).len(), peer.streams.large()), (2400, 0));
    peer.pass(Duration::from_millis(5));
    peer.send(&data(seq)).unwrap();
    assert_eq!(peer.streams.large(), 1);
    assert_eq!(peer.read(id).len(), 1200);
}

#[test]
fn a_byte_behind_the_window_does_not_keep_a_stream_from_large_rings() {
    let mut peer = Peer::new(growing(1));
    let listener = peer.streams.listen(None, 80, 8).unwrap();
    let (id, mut seq, ack) = peer.open(listener);
    let data = |seq, bytes| segment(TcpControl::Psh, seq, Some(ack), bytes);
    for bytes in [&[7; 1][..], &[7; 1200], &[7; 1200]] {
        peer.send(&data(seq, bytes)).unwrap();
        assert_eq!(peer.read(id).len(), bytes.len());
        seq = seq.wrapping_add(bytes.len() as u32);
        // This side tells its window.
        peer.pass(Duration::from_millis(5));
        peer.sent();
        if bytes.len() == 1 {
            peer.send(&data(seq.wrapping_add(2048), b"x")).unwrap();
        }
    }
    assert_eq!(peer.streams.large(), 1);
}
