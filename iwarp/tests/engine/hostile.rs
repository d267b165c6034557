//! Whatever the peer sends: no panic, one end, and bounded work and memory.

use iwarp::ddp::{Header, Place};
use iwarp::engine::{Config, Event, Role};
use iwarp::mpa::fpdu;
use iwarp::mpa::frame::{Kind, Parser};
use platform::random::Random;

use super::order::{SEND, read as reads, write};
use super::streams::{all, connections, direction};
use super::world::{CONFIG, Node};

/// An end with a region, Receives and requests that wait.
fn node(random: &mut Random, config: Config) -> (Node, Vec<u32>) {
    let mut node = Node::new(config);
    node.region(1, 0, vec![0; 3000]);
    for _ in 0..4 {
        node.receive(1000);
    }
    let mut posted = Vec::new();
    for _ in 0..random.below(5) {
        posted.push(match random.below(3) {
            0 => node.post(SEND, vec![1; random.below(600) as usize]),
            1 => node.post(write(1, 0), vec![1; random.below(600) as usize]),
            _ => node.post(reads(1, 0), vec![0; random.below(600) as usize]),
        });
    }
    (node, posted)
}

/// Passes bytes in pieces, sends in between, and ends the stream. Each request and each Receive
/// that was taken has one outcome.
fn play(random: &mut Random, mut node: Node, posted: &[u32], bytes: &[u8]) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let most = 1 + random.below(300) as usize;
        let (piece, behind) = rest.split_at(most.min(rest.len()));
        node.take(piece);
        if random.rarely(2) {
            let room = 1 + random.below(300) as usize;
            node.send(room);
        }
        rest = behind;
    }
    match random.below(3) {
        0 => node.engine.finished(),
        1 => node.engine.disconnect(),
        _ => node.engine.lost(),
    }
    node.take_events();
    node.send_all();
    node.engine.finished();
    node.engine.lost();
    node.take_events();
    let ends: Vec<u32> = node
        .events
        .iter()
        .filter_map(|event| match *event {
            Event::Completed { id } | Event::Failed { id, .. } => Some(id),
            _ => None,
        })
        .collect();
    assert_eq!(ends, posted);
    assert!(matches!(node.events.last(), Some(Event::Ended(_))));
    let receives = node
        .events
        .iter()
        .filter(|event| matches!(event, Event::Received { .. } | Event::ReceiveFailed { .. }));
    assert_eq!(receives.count() + node.device.posted.len(), 4);
}

#[test]
fn random_bytes_do_no_harm() {
    let mut random = Random::new(7);
    for _ in 0..400 {
        let config = Config { crc: random.rarely(2), ..CONFIG };
        let (node, posted) = node(&mut random, config);
        let length = random.below(400);
        let bytes: Vec<u8> = (0..length).map(|_| random.word() as u8).collect();
        play(&mut random, node, &posted, &bytes);
    }
}

/// A segment that is nearly right.
fn segment(random: &mut Random, msn: &mut [u32; 3]) -> Vec<u8> {
    let opcode = random.below(if random.clone().rarely(10) { 16 } else { 8 }) as u8;
    let tagged = matches!(opcode, 0 | 2) != random.rarely(30);
    let place = if tagged {
        let to = match random.below(5) {
            0 => random.word(),
            1 => u64::MAX - random.below(100),
            _ => random.below(2000),
        };
        Place::Tagged { stag: [1, 1, 1, 0x77, 9][random.below(5) as usize], to }
    } else {
        let queue = match opcode {
            1 => 1,
            7 => 2,
            _ => 0,
        };
        let queue = if random.rarely(30) { random.word() as u32 } else { queue };
        let slot = (queue as usize).min(2);
        msn[slot] += u32::from(!random.rarely(4));
        let mo = if random.rarely(4) { random.below(600) as u32 } else { 0 };
        Place::Untagged { invalidate: random.below(3) as u32, queue, msn: msn[slot], mo }
    };
    let header = Header {
        last: !random.rarely(4),
        version: if random.rarely(40) { random.below(4) as u8 } else { 1 },
        control: if random.rarely(40) { random.word() as u8 } else { 0x40 | opcode },
        place,
    };
    let mut ulpdu = vec![0; header.size()];
    header.emit(&mut ulpdu).unwrap();
    let length = match (opcode, random.below(4)) {
        (1, 1..) => 28,
        (_, 0) => 0,
        _ => random.below(500) as usize,
    };
    ulpdu.extend((0..length).map(|_| if random.rarely(3) { random.word() as u8 } else { 0 }));
    let mut bytes = vec![0; fpdu::length(ulpdu.len())];
    fpdu::emit(&ulpdu, true, &mut bytes).unwrap();
    bytes
}

#[test]
fn segments_that_are_nearly_right_do_no_harm() {
    let mut random = Random::new(8);
    let mut ended_early = 0;
    for _ in 0..1500 {
        let role = if random.rarely(2) { Role::Initiator } else { Role::Responder };
        let (mut node, posted) = node(&mut random, Config { role, ..CONFIG });
        node.send(2000);
        let mut msn = [0; 3];
        let count = 1 + random.below(8);
        let bytes: Vec<u8> = (0..count).flat_map(|_| segment(&mut random, &mut msn)).collect();
        ended_early += u32::from({
            let mut probe = Node::new(CONFIG);
            probe.take(&bytes);
            probe.end().is_some()
        });
        play(&mut random, node, &posted, &bytes);
    }
    assert!(ended_early > 500);
}

#[test]
fn recorded_streams_with_wrong_bytes_do_no_harm() {
    let mut random = Random::new(9);
    for path in all() {
        for records in connections(&path) {
            for responder in [false, true] {
                let bytes = direction(&records, responder);
                let kind = if responder { Kind::Reply } else { Kind::Request };
                let taken = Parser::new(kind).push(&bytes).unwrap();
                for _ in 0..8 {
                    let mut bytes = bytes[taken..].to_vec();
                    bytes.truncate(4000);
                    for _ in 0..random.below(4) {
                        if bytes.is_empty() {
                            break;
                        }
                        let at = random.below(bytes.len() as u64) as usize;
                        match random.below(4) {
                            0 => bytes[at] = random.word() as u8,
                            1 => bytes[at] ^= 1 << random.below(8),
                            2 => drop(bytes.remove(at)),
                            _ => bytes.insert(at, random.word() as u8),
                        }
                    }
                    let (node, posted) = node(&mut random, Config { crc: false, ..CONFIG });
                    play(&mut random, node, &posted, &bytes);
                }
            }
        }
    }
}

#[test]
fn a_peer_that_sends_empty_segments_for_ever_is_only_taken() {
    // A Send, a Write and a response without end, one after the other.
    let mut node = Node::new(CONFIG);
    node.receive(10);
    let id = node.post(reads(1, 0), vec![0; 10]);
    node.send_all();
    let bytes: Vec<u8> = [
        (0x43, Place::Untagged { invalidate: 0, queue: 0, msn: 1, mo: 0 }),
        (0x40, Place::Tagged { stag: 9, to: 5 }),
        (0x42, Place::Tagged { stag: 0x77, to: 0x1000 }),
    ]
    .into_iter()
    .flat_map(|(control, place)| {
        let header = Header { last: false, version: 1, control, place };
        let mut ulpdu = vec![0; header.size()];
        header.emit(&mut ulpdu).unwrap();
        let mut bytes = vec![0; fpdu::length(ulpdu.len())];
        fpdu::emit(&ulpdu, true, &mut bytes).unwrap();
        bytes
    })
    .collect();
    for _ in 0..1000 {
        node.take(&bytes);
    }
    assert!(node.events.is_empty() && node.end().is_none());
    node.engine.finished();
    node.take_events();
    let status = iwarp::engine::Status::Transport;
    assert_eq!(node.events[1], Event::Failed { id, status });
}
