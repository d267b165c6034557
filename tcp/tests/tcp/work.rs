//! The work for a packet does not grow with the number of streams.

use core::time::Duration;

use ferrovia_tcp::testing::{Link, Transfer, World, config};
use ferrovia_tcp::{Config, Polled};

/// The looks at streams of both ends while bytes pass through one stream, beside `idle` others.
fn looks(idle: usize) -> [u64; 2] {
    let config = Config { send_ring: 2048, receive_ring: 2048, ..config(1) };
    let mut world = World::new(&config, Link::CLEAN, 1);
    let listener = world.listen(80);
    for _ in 0..idle {
        world.pair(80, listener);
    }
    let (a, b) = world.pair(80, listener);
    let count = |world: &World| [0, 1].map(|end| world.ends[end].counters().looks);
    let before = count(&world);
    let mut transfer = Transfer::new((0, a), (1, b), 100_000, 1);
    assert!(world.run(Duration::from_secs(10), |world| transfer.go_on(world, 2048)));
    let after = count(&world);
    [0, 1].map(|end| after[end] - before[end])
}

#[test]
fn a_packet_is_the_same_work_beside_a_thousand_idle_streams() {
    let alone = looks(0);
    assert!(alone.iter().all(|count| *count > 50), "{alone:?}");
    assert_eq!(looks(1000), alone);
}

#[test]
fn a_poll_does_no_more_than_its_budget() {
    let mut world = World::new(&config(1), Link::CLEAN, 1);
    let listener = world.listen(80);
    let pairs: Vec<_> = (0..50).map(|_| world.pair(80, listener)).collect();
    let mut transfers: Vec<_> =
        pairs.iter().map(|(a, b)| Transfer::new((0, *a), (1, *b), 10_000, 1)).collect();
    for transfer in &mut transfers {
        transfer.go_on(&mut world, 10_000);
    }
    let now = world.now;
    let (streams, outbox) = world.end(0);
    for budget in [0, 1, 7] {
        outbox.packets.clear();
        let looks = streams.counters().looks;
        assert_eq!(streams.poll(now, budget, outbox), Polled::More);
        assert!(outbox.packets.len() <= budget);
        assert!(streams.counters().looks - looks <= budget as u64);
    }
}
