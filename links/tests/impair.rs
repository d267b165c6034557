//! Impaired links: how often what happens, that a seed decides it, and that queues are bounded.

extern crate ferrovia_links as links;

use std::time::Duration;

use links::{
    Chance, Counters, Dropped, Fault, Impaired, Impairment, Link, MAX_FRAME, PairEnd, Stream, Wire, pair,
};
use platform::Instant;

fn at(us: u64) -> Instant {
    Instant::ZERO + Duration::from_micros(us)
}

fn impaired(text: &str) -> (Impaired<PairEnd>, PairEnd) {
    let (a, b) = pair();
    let impairment = if text.is_empty() { Impairment::default() } else { text.parse().unwrap() };
    (Impaired::new(a, impairment), b)
}

/// A frame that carries its number.
fn numbered(n: u32) -> Vec<u8> {
    let mut frame = vec![0; 100];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[20..24].copy_from_slice(&n.to_be_bytes());
    frame
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[20..24].try_into().unwrap())
}

fn drain(link: &mut impl Link, now: Instant) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut into = vec![0; MAX_FRAME];
    while let Some(len) = link.receive(&mut into, now) {
        frames.push(into[..len].to_vec());
    }
    frames
}

/// Sends numbered frames, one each microsecond, and waits for the last; in both directions at once.
fn run(text: &str, count: u32) -> (Vec<Vec<u8>>, Vec<Vec<u8>>, Counters) {
    let (mut link, mut peer) = impaired(text);
    let (mut there, mut back) = (Vec::new(), Vec::new());
    for n in 0..count {
        let now = at(n.into());
        link.send(&numbered(n), now);
        peer.send(&numbered(n), now);
        link.flush(now);
        there.extend(drain(&mut peer, now));
        back.extend(drain(&mut link, now));
    }
    while let Some(now) = link.deadline() {
        link.flush(now);
        there.extend(drain(&mut peer, now));
        back.extend(drain(&mut link, now));
    }
    (there, back, link.counters())
}

const MANY: u32 = 20_000;

fn is_near(count: u64, expected: u64) -> bool {
    count.abs_diff(expected) < 5 * expected.isqrt()
}

#[test]
fn a_perfect_link_changes_nothing() {
    let (there, back, counters) = run("seed=5", 1000);
    let expected: Vec<_> = (0..1000).map(numbered).collect();
    assert!(there == expected && back == expected);
    let Counters { sent, received, .. } = counters;
    assert_eq!((sent, received), (1000, 1000));
    assert_eq!(Fault::ALL.map(|fault| counters.met(fault)), [0; Fault::ALL.len()]);
    assert_eq!(counters.all_dropped(), 0);
}

#[test]
fn each_direction_loses_as_many_as_the_chance_says() {
    let (there, back, counters) = run("loss=1%", MANY);
    for frames in [&there, &back] {
        assert!(is_near(u64::from(MANY) - frames.len() as u64, 200));
    }
    let lost = 2 * u64::from(MANY) - (there.len() + back.len()) as u64;
    assert_eq!(counters.dropped(Dropped::Lost), lost);
    let (numbers, others): (Vec<_>, Vec<_>) =
        (there.iter().map(|f| number(f)).collect(), back.iter().map(|f| number(f)).collect());
    assert!(numbers.is_sorted() && numbers != others, "each direction has its own losses");
    assert_eq!(run("loss=100%", 1000).0.len(), 0);
}

#[test]
fn duplicates_come_as_often_as_the_chance_says_and_beside_their_originals() {
    let (there, _, counters) = run("dup=2%", MANY);
    let twice = there.windows(2).filter(|pair| pair[0] == pair[1]).count() as u64;
    assert_eq!(there.len() as u64, u64::from(MANY) + twice);
    assert!(is_near(twice, 400), "{twice}");
    assert!(counters.met(Fault::Dup) > twice);
}

#[test]
fn reordered_frames_arrive_once_and_at_most_a_few_places_later() {
    let (there, back, counters) = run("reorder=5%", MANY);
    for frames in [&there, &back] {
        let mut numbers: Vec<_> = frames.iter().map(|frame| number(frame)).collect();
        let late = numbers.windows(2).filter(|pair| pair[0] > pair[1]).count() as u64;
        assert!((600..=1100).contains(&late), "{late}");
        for (place, n) in numbers.iter().enumerate() {
            assert!((*n as usize).abs_diff(place) <= 4);
        }
        numbers.sort();
        assert!(numbers.into_iter().eq(0..MANY));
    }
    assert!((1200..=2200).contains(&counters.met(Fault::Reorder)), "{}", counters.met(Fault::Reorder));
}

#[test]
fn a_held_frame_arrives_although_none_overtakes_it() {
    let (mut link, mut peer) = impaired("reorder=100%");
    link.send(&numbered(1), at(0));
    assert_eq!(drain(&mut peer, at(0)).len(), 0);
    let deadline = link.deadline().unwrap();
    assert!(deadline <= at(10_000));
    link.flush(deadline);
    assert_eq!(drain(&mut peer, deadline), [numbered(1)]);
    assert_eq!((link.counters().met(Fault::Reorder), link.deadline()), (0, None));
}

#[test]
fn corruption_changes_one_bit_behind_the_ethernet_header() {
    let (there, _, counters) = run("corrupt=1%", MANY);
    let mut changed = 0;
    let mut places = std::collections::BTreeSet::new();
    for (n, frame) in (0..).zip(&there) {
        let original = numbered(n);
        let bits: u32 = original.iter().zip(frame).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert!(bits <= 1 && frame.len() == original.len() && frame[..14] == original[..14]);
        changed += u64::from(bits);
        places.extend((0..frame.len()).find(|&at| frame[at] != original[at]));
    }
    assert!(is_near(changed, 200), "{changed}");
    assert!(counters.met(Fault::Corrupt) > changed && places.len() > 50);
}

#[test]
fn corrupt_arp_and_empty_frames_are_lost_as_ethernet_would_lose_them() {
    let (mut link, mut peer) = impaired("corrupt=100%");
    let mut arp = numbered(0);
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    link.send(&arp, at(0));
    link.send(&[0; 14], at(0));
    // The same with the tag of a VLAN, which is of the header.
    let tag = [0x81, 0, 0, 7];
    link.send(&[&arp[..12], &tag, &arp[12..]].concat(), at(0));
    link.send(&[&[0; 12][..], &tag, &[8, 0]].concat(), at(0));
    assert_eq!(drain(&mut peer, at(0)).len(), 0);
    assert_eq!((link.counters().met(Fault::Corrupt), link.counters().dropped(Dropped::Lost)), (4, 4));
    for n in 0..500 {
        let sent = numbered(n);
        let sent = [&sent[..12], &tag, &sent[12..]].concat();
        link.send(&sent, at(0));
        assert_eq!(drain(&mut peer, at(0))[0][..18], sent[..18]);
    }
}

#[test]
fn a_delayed_frame_arrives_at_its_time_in_both_directions() {
    let (mut link, mut peer) = impaired("delay=2ms");
    link.send(&numbered(1), at(10));
    peer.send(&numbered(2), at(10));
    assert_eq!(drain(&mut link, at(10)).len(), 0);
    assert_eq!(link.deadline(), Some(at(2010)));
    link.flush(at(2009));
    assert_eq!(drain(&mut peer, at(2009)).len() + drain(&mut link, at(2009)).len(), 0);
    link.flush(at(2010));
    assert_eq!(drain(&mut peer, at(2010)), [numbered(1)]);
    assert_eq!(drain(&mut link, at(2010)), [numbered(2)]);
    assert_eq!(link.deadline(), None);
}

#[test]
fn a_rate_spaces_frames_by_their_length() {
    // 100 bytes take 100 microseconds.
    let (mut link, mut peer) = impaired("rate=8Mbit");
    for n in 0..10 {
        link.send(&numbered(n), at(0));
    }
    for n in 0..10 {
        let due = at(100 * (u64::from(n) + 1));
        assert_eq!(link.deadline(), Some(due));
        link.flush(due);
        assert_eq!(drain(&mut peer, due), [numbered(n)]);
    }
    // The wire was idle meanwhile, which gives no credit.
    link.send(&numbered(10), at(5000));
    assert_eq!(link.deadline(), Some(at(5100)));
}

#[test]
fn the_same_seed_has_the_same_effect_and_another_seed_another() {
    let all = "loss=3%,dup=3%,reorder=3%,corrupt=3%,delay=5us,rate=1Gbit,seed=";
    let of = |seed: u64| run(&format!("{all}{seed}"), 3000);
    assert!(of(7) == of(7));
    assert!(of(7).0 != of(8).0);
}

#[test]
fn one_chance_does_not_change_what_another_decides() {
    let lost = |text: &str| -> Vec<u32> {
        let arrived: std::collections::BTreeSet<_> = run(text, 3000).0.iter().map(|f| number(f)).collect();
        (0..3000).filter(|n| !arrived.contains(n)).collect()
    };
    assert_eq!(lost("loss=5%,seed=3"), lost("loss=5%,dup=50%,reorder=20%,seed=3"));
}

#[test]
fn queues_are_bounded_in_both_directions() {
    let (mut link, mut peer) = impaired("delay=60s");
    let mut room = 0;
    for n in 0..6000 {
        room += u32::from(link.has_room());
        link.send(&numbered(n), at(0));
        peer.send(&numbered(n), at(0));
        drain(&mut link, at(0));
    }
    assert!((1..=4096).contains(&room) && !link.has_room());
    let dropped = link.counters().dropped(Dropped::QueueFull);
    assert_eq!(dropped, 2 * (6000 - 4096));
    let (mut link, _peer) = impaired("delay=60s");
    for _ in 0..200 {
        link.send(&[0; MAX_FRAME], at(0));
    }
    assert_eq!(200 - link.counters().dropped(Dropped::QueueFull), (4 << 20) / MAX_FRAME as u64);
}

#[test]
fn frames_wait_while_the_link_below_has_no_room() {
    let (mut link, mut peer) = impaired("");
    let frame = vec![1; MAX_FRAME];
    let mut sent = 0;
    while link.has_room() {
        link.send(&frame, at(0));
        sent += 1;
    }
    link.send(&frame, at(0));
    assert_eq!(link.deadline(), None, "only the link below can wake it");
    assert_eq!(link.counters().all_dropped(), 0);
    assert_eq!(drain(&mut peer, at(0)).len(), sent);
    link.flush(at(0));
    assert_eq!(drain(&mut peer, at(0)).len(), 1);
}

#[test]
fn a_call_takes_a_share_and_asks_to_be_called_again() {
    let (mut link, mut peer) = impaired("loss=100%");
    for n in 0..1000 {
        peer.send(&numbered(n), at(0));
    }
    let mut calls = 0;
    loop {
        assert_eq!(link.receive(&mut [0; 200], at(7)), None);
        calls += 1;
        match link.deadline() {
            Some(again) => assert!(again <= at(7)),
            None => break,
        }
    }
    assert!((10..20).contains(&calls), "{calls}");
    assert_eq!(link.counters().dropped(Dropped::Lost), 1000);
}

#[test]
fn a_pulled_cable_loses_everything_until_it_is_plugged_in() {
    let (mut link, mut peer) = impaired("delay=1ms");
    link.send(&numbered(1), at(0));
    peer.send(&numbered(2), at(0));
    drain(&mut link, at(0));
    link.plug(false);
    assert!(!link.up());
    link.send(&numbered(3), at(1));
    peer.send(&numbered(4), at(1));
    assert_eq!(drain(&mut link, at(5000)).len(), 0);
    link.plug(true);
    assert!(link.up() && link.deadline().is_none());
    assert_eq!((link.counters().dropped(Dropped::Lost), link.counters().dropped(Dropped::NoPeer)), (3, 1));
    link.send(&numbered(5), at(6000));
    link.flush(at(7000));
    assert_eq!(drain(&mut peer, at(7000)), [numbered(5)]);
}

/// A stream socket that delays frames, with a peer in this process.
#[test]
fn frames_under_way_reach_neither_the_next_peer_nor_come_from_the_last_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("link");
    let mut link = Impaired::new(Stream::listen(&path).unwrap(), "delay=5ms".parse().unwrap());
    // There is no peer yet, so nothing is under way to one.
    link.send(&numbered(9), at(0));
    assert_eq!((link.counters().dropped(Dropped::NoPeer), link.deadline()), (1, None));
    for n in 0..2 {
        let now = at(1000 * n);
        let mut peer = Stream::connect(&path).unwrap();
        assert_eq!(drain(&mut peer, now).len() + drain(&mut link, now).len(), 0);
        assert!(link.up() && peer.up());
        peer.send(&numbered(1), now);
        peer.flush(now);
        link.send(&numbered(2), now);
        assert_eq!(drain(&mut link, now).len(), 0);
        assert_eq!(link.deadline(), Some(now + Duration::from_millis(5)));
        // It leaves before the frames arrive.
        drop(peer);
        assert_eq!(drain(&mut link, now).len(), 0);
        assert!(!link.up() && link.deadline().is_none());
        assert_eq!(link.counters().dropped(Dropped::PeerLeft), 2 * (n + 1));
    }
    let mut successor = Stream::connect(&path).unwrap();
    drain(&mut successor, at(2000));
    assert_eq!(drain(&mut link, at(9000)).len(), 0);
    assert!(link.up());
    link.flush(at(9000));
    assert_eq!(drain(&mut successor, at(9000)).len(), 0);
}

#[test]
fn an_impairment_can_change_while_the_link_is_in_use() {
    let (mut link, mut peer) = impaired("seed=1");
    link.set(Impairment::default().with(Fault::Loss, Chance::ALWAYS));
    link.send(&numbered(1), at(0));
    link.set(Impairment::default());
    link.send(&numbered(2), at(0));
    assert_eq!(drain(&mut peer, at(0)), [numbered(2)]);
}
