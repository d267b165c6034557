//! Two ends with a workload, and a stream that is cut where a seed says; or none, and segments that
//! are passed.

use iwarp::engine::{Config, End, Event, Operation};
use platform::random::Random;

use super::world::{CONFIG, Node, World};

/// What one end has posted.
#[derive(Default)]
struct Posted {
    requests: Vec<u32>,
    /// The payload of each Send.
    sends: Vec<Vec<u8>>,
    /// Where in the peer's region each Write goes, and its payload.
    writes: Vec<(usize, Vec<u8>)>,
    /// Each Read, and where in the peer's region its bytes lie.
    reads: Vec<(u32, usize, usize)>,
}

const SOURCE: u32 = 6;
const TARGET: u32 = 5;
const SIZE: usize = 30_000;

fn length(random: &mut Random) -> usize {
    match random.below(4) {
        0 => random.below(4) as usize,
        1 => random.below(100) as usize,
        2 => 180 + random.below(10) as usize,
        _ => random.below(1500) as usize,
    }
}

fn bytes(random: &mut Random, length: usize) -> Vec<u8> {
    (0..length).map(|_| random.word() as u8).collect()
}

/// Posts one request, if there is room.
fn post(random: &mut Random, node: &mut Node, posted: &mut Posted) {
    let length = length(random);
    let fence = random.rarely(4);
    if node.engine.posted() >= 16 || node.engine.ended().is_some() {
        return;
    }
    let (operation, payload) = match random.below(8) {
        0..3 => {
            let payload = bytes(random, length);
            posted.sends.push(payload.clone());
            let invalidate = random.rarely(8).then_some(100 + posted.sends.len() as u32);
            (Operation::Send { solicited: random.rarely(2), invalidate }, payload)
        }
        3..5 => {
            let payload = bytes(random, length);
            // Each Write has a place of its own.
            let at = posted.writes.last().map_or(0, |(at, payload)| at + payload.len());
            if at + length > SIZE {
                return;
            }
            posted.writes.push((at, payload.clone()));
            (Operation::Write { stag: TARGET, to: 0x1000 + at as u64 }, payload)
        }
        5..7 => {
            let at = random.below((SIZE - length) as u64) as usize;
            let (sink_stag, sink_to) = (random.word() as u32, random.word());
            let source_to = 0x9000 + at as u64;
            let operation =
                Operation::Read { source_stag: SOURCE, source_to, sink_stag, sink_to, invalidate: None };
            let id = node.post_fenced(operation, vec![0; length], fence);
            posted.reads.push((id, at, length));
            posted.requests.push(id);
            return;
        }
        _ => (Operation::Local, Vec::new()),
    };
    posted.requests.push(node.post_fenced(operation, payload, fence));
}

fn config(random: &mut Random) -> Config {
    Config {
        mulpdu: 128 + random.below(1400) as u16,
        crc: !random.rarely(4),
        ord: 1 + random.below(5) as u16,
        ird: 5,
        ..CONFIG
    }
}

fn world(seed: u64) -> (World, Random) {
    let mut random = Random::new(seed);
    let config = config(&mut random);
    let mut world = World::new(random.word(), config);
    world.passes = seed % 2 == 1;
    for node in &mut world.nodes {
        node.region(TARGET, 0x1000, vec![0; SIZE]);
        let source = bytes(&mut random, SIZE);
        node.region(SOURCE, 0x9000, source);
        for stag in 101..200 {
            node.region(stag, 0, Vec::new());
        }
        for _ in 0..60 {
            node.receive(1500);
        }
    }
    (world, random)
}

/// Each request has one outcome, in the order of posting; so far, if the stream has not ended.
fn in_order(node: &Node, posted: &Posted) -> usize {
    let ends = node.events.iter().filter_map(|event| match *event {
        Event::Completed { id } | Event::Failed { id, .. } => Some(id),
        _ => None,
    });
    let ends: Vec<u32> = ends.collect();
    assert_eq!(ends[..], posted.requests[..ends.len()]);
    ends.len()
}

/// What has been received is what was sent, in order.
fn delivered(from: &Posted, to: &Node) -> usize {
    let received = to.events.iter().filter_map(|event| match *event {
        Event::Received { id, length, .. } => Some((id, length as usize)),
        _ => None,
    });
    let mut count = 0;
    for (payload, (id, length)) in from.sends.iter().zip(received) {
        assert_eq!(to.device.receives[&id][..length], payload[..]);
        count += 1;
    }
    count
}

#[test]
fn a_workload_arrives_whole_and_in_order() {
    for seed in 0..120 {
        let (mut world, mut random) = world(seed);
        let mut posted = [Posted::default(), Posted::default()];
        // The responder's requests wait for the initiator's first FPDU.
        let first = world.nodes[0].post(Operation::Write { stag: 0, to: 0 }, Vec::new());
        posted[0].requests.push(first);
        for _ in 0..40 {
            let who = random.below(2) as usize;
            post(&mut random, &mut world.nodes[who], &mut posted[who]);
            for _ in 0..random.below(4) {
                let from = random.below(2) as usize;
                world.step(from);
            }
        }
        world.run();
        for (me, other) in [(0, 1), (1, 0)] {
            let (node, peer) = (&world.nodes[me], &world.nodes[other]);
            assert_eq!(node.end(), None, "seed {seed}");
            let mine = &posted[me];
            assert_eq!(in_order(node, mine), mine.requests.len(), "seed {seed}");
            assert!(!node.events.iter().any(|event| matches!(event, Event::Failed { .. })));
            assert_eq!(delivered(mine, peer), mine.sends.len(), "seed {seed}");
            for (at, payload) in &mine.writes {
                assert_eq!(peer.device.regions[&TARGET].bytes[*at..at + payload.len()], payload[..]);
            }
            for &(id, at, length) in &mine.reads {
                let source = &peer.device.regions[&SOURCE].bytes[at..at + length];
                assert_eq!(&node.device.requests[&id], source, "seed {seed}");
            }
        }
    }
}

#[test]
fn an_end_at_any_moment_is_one_end_and_flushes_the_rest() {
    let mut ends = [0; 2];
    for seed in 1000..1300 {
        let (mut world, mut random) = world(seed);
        let mut posted = [Posted::default(), Posted::default()];
        for _ in 0..random.below(30) {
            let who = random.below(2) as usize;
            post(&mut random, &mut world.nodes[who], &mut posted[who]);
            for _ in 0..random.below(6) {
                let from = random.below(2) as usize;
                world.step(from);
            }
        }
        let who = random.below(2) as usize;
        match random.below(4) {
            0 | 1 => world.nodes[who].engine.disconnect(),
            2 => world.nodes[who].engine.lost(),
            _ => {
                // The peer's memory is gone.
                world.nodes[who].device.regions.clear();
                world.nodes[who].device.posted.clear();
            }
        }
        world.nodes[who].take_events();
        world.run();
        // An end that has not learned of the failure must not wait for its peer for ever.
        for node in &mut world.nodes {
            node.engine.disconnect();
        }
        world.run();
        for (node, posted) in world.nodes.iter_mut().zip(&posted) {
            if node.end().is_none() {
                node.engine.lost();
                node.take_events();
            }
            assert_eq!(in_order(node, posted), posted.requests.len(), "seed {seed}");
            let Some(Event::Ended(end)) = node.events.last() else { panic!("seed {seed}") };
            ends[usize::from(*end == End::Disconnected)] += 1;
            assert!(node.engine.close().is_some());
        }
        for (me, other) in [(0, 1), (1, 0)] {
            delivered(&posted[me], &world.nodes[other]);
        }
    }
    assert!(ends.iter().all(|&count| count > 100), "{ends:?}");
}
