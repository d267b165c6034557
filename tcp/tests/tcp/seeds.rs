//! Connections over a link that loses, repeats, reorders and corrupts packets, by seeds.

use core::time::Duration;

use ferrovia_tcp::testing::{Link, Transfer, World, config};
use ferrovia_tcp::{Config, End};
use platform::random::Random;

#[test]
fn whatever_the_link_does_the_bytes_arrive_and_both_sides_close() {
    let mut lost = 0;
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let link = Link {
            delay: Duration::from_micros(random.below(3000)),
            rate: [0, 10_000_000, 125_000_000][random.below(3) as usize],
            queue: 30_000 + random.below(200_000) as usize,
            loss: random.small(1000),
            duplicate: random.small(500),
            reorder: random.small(1000),
            corrupt: random.small(500),
        };
        let mut ring = || 1 << (11 + random.below(7));
        let (send_ring, receive_ring, small_ring) = (ring(), ring(), ring());
        let config = Config { send_ring, receive_ring, small_ring, ..config(seed) };
        let mut world = World::new(&config, link, seed);
        let listener = world.listen(80);
        let pairs: Vec<_> = (0..1 + random.below(4)).map(|_| world.pair(80, listener)).collect();
        let mut transfers = Vec::new();
        for (n, (a, b)) in pairs.iter().enumerate() {
            let mut len = || random.below(60_000);
            transfers.push((Transfer::new((0, *a), (1, *b), len(), n as u64), false));
            transfers.push((Transfer::new((1, *b), (0, *a), len(), n as u64), false));
        }
        let piece = 1 + random.below(5000) as usize;
        let done = world.run(Duration::from_secs(600), |world| {
            for (transfer, closed) in &mut transfers {
                transfer.go_on(world, piece);
                // Each side closes as soon as it has written everything, at most.
                if transfer.written == transfer.len && !*closed {
                    let (end, id) = transfer.from;
                    world.ends[end].close(id, world.now).expect("an open stream");
                    *closed = true;
                }
            }
            transfers.iter().all(|(transfer, _)| {
                let (end, id) = transfer.to;
                transfer.read == transfer.len && world.ends[end].info(id).unwrap().end == Some(End::Closed)
            })
        });
        assert!(done, "seed {seed}: {transfers:?}");
        for (a, b) in pairs {
            world.ends[0].release(a, world.now).unwrap();
            world.ends[1].release(b, world.now).unwrap();
        }
        world.ends[1].stop(listener).unwrap();
        world.link.loss = 0;
        world.pass(Duration::from_secs(30));
        for end in &world.ends {
            assert_eq!((end.names(), end.memory(), end.half_open(), end.deadline()), (0, 0, 0, None));
        }
        lost += world.lost;
    }
    assert!(lost > 500, "{lost} packets were lost");
}

/// The work of a few seeds with more bytes, to both sides at once, over a link that loses many.
#[test]
fn both_sides_send_again_at_the_same_time_and_neither_waits_for_ever() {
    for seed in 0..20 {
        let link = Link { loss: 1500, ..Link::CLEAN };
        let mut world = World::new(&Config { send_ring: 4096, ..config(seed) }, link, seed);
        let listener = world.listen(80);
        let (a, b) = world.pair(80, listener);
        let mut there = Transfer::new((0, a), (1, b), 100_000, 1);
        let mut back = Transfer::new((1, b), (0, a), 100_000, 2);
        let done = |world: &mut World| there.go_on(world, 4096) & back.go_on(world, 4096);
        assert!(world.run(Duration::from_secs(600), done), "seed {seed}");
    }
}

#[test]
fn streams_that_begin_and_end_all_the_time_leave_nothing_behind() {
    for seed in 0..4 {
        let mut random = Random::new(seed);
        let link = Link { loss: 200, reorder: 300, corrupt: 50, ..Link::CLEAN };
        let config = Config { linger: Duration::from_secs(2), streams: 32, ..config(seed) };
        let mut world = World::new(&config, link, seed);
        let listener = world.listen(80);
        let mut open: [Vec<_>; 2] = Default::default();
        for _ in 0..3000 {
            let end = random.below(2) as usize;
            match random.below(8) {
                0 if end == 0 => {
                    let to = core::net::SocketAddr::new(ferrovia_tcp::testing::address(1), 80);
                    let from = ferrovia_tcp::testing::address(0);
                    open[0].extend(world.ends[0].connect(from, None, to, world.now));
                }
                0 => open[1].extend(world.ends[1].accept(listener).unwrap()),
                1 | 2 if !open[end].is_empty() => {
                    let at = random.below(open[end].len() as u64) as usize;
                    let id = open[end][at];
                    let _ = world.ends[end].send(id, |bytes| (bytes.len().min(3000), ()));
                    let _ = world.ends[end].receive(id, |bytes| (bytes.len(), ()));
                }
                3 if !open[end].is_empty() => {
                    let at = random.below(open[end].len() as u64) as usize;
                    let now = world.now;
                    let id = open[end][at];
                    match random.below(4) {
                        0 => drop(world.ends[end].close(id, now)),
                        1 => world.ends[end].abort(open[end].swap_remove(at)).unwrap(),
                        _ => world.ends[end].release(open[end].swap_remove(at), now).unwrap(),
                    }
                }
                _ => {
                    world.events(end);
                    world.pass(Duration::from_micros(random.below(50_000)));
                }
            }
        }
        for (end, ids) in open.iter().enumerate() {
            for id in ids {
                world.ends[end].release(*id, world.now).unwrap();
            }
        }
        world.pass(Duration::from_secs(20));
        while let Some(id) = world.ends[1].accept(listener).unwrap() {
            world.ends[1].abort(id).unwrap();
        }
        world.pass(Duration::from_secs(20));
        for end in &world.ends {
            assert_eq!((end.names(), end.memory(), end.half_open(), end.deadline()), (0, 0, 0, None));
        }
        assert!(world.ends[0].counters().connected > 100 && world.ends[1].counters().accepted > 100);
    }
}
