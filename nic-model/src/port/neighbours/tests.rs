//! Tests of the table of neighbours.

use core::net::Ipv4Addr;

use super::*;

fn gid(n: u32) -> Gid {
    Gid::from_ipv4(Ipv4Addr::from_bits(10 << 24 | n))
}

fn mac(n: u8) -> Mac {
    [2, 0, 0, 0, 0, n]
}

fn ms(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn answer(n: u8) -> Claim {
    Claim { mac: mac(n), solicited: true, replaces: true }
}

fn resolve(table: &mut Neighbours, gid: Gid, now: Instant) -> Target {
    table.resolve(gid, 7, now, || None)
}

/// All questions until `until`, each with its time, while nothing answers. Questions that are
/// queued already have the time 0.
fn questions(table: &mut Neighbours, until: Instant) -> Vec<(u64, Option<Mac>)> {
    let mut asked = Vec::new();
    while let Some(ask) = table.next_question() {
        asked.push((0, ask.mac));
    }
    loop {
        let now = table.deadline().filter(|at| *at <= until);
        table.poll(now.unwrap_or(until));
        while let Some(ask) = table.next_question() {
            asked.push((now.map_or(0, Instant::as_nanos) / 1_000_000, ask.mac));
        }
        if now.is_none() {
            return asked;
        }
    }
}

#[test]
fn a_silent_neighbour_is_asked_five_times_and_again_after_a_while() {
    let mut table = Neighbours::new();
    assert_eq!(resolve(&mut table, gid(1), ms(0)), Target::Resolving);
    let asked = questions(&mut table, ms(60_000));
    assert_eq!(asked, [(0, None), (100, None), (300, None), (700, None), (1500, None)]);
    assert_eq!(table.deadline(), None);
    let mut table = Neighbours::new();
    resolve(&mut table, gid(1), ms(0));
    questions(&mut table, ms(3100));
    assert_eq!(resolve(&mut table, gid(1), ms(4099)), Target::NoAnswer);
    assert_eq!(resolve(&mut table, gid(1), ms(4100)), Target::Resolving);
    assert_eq!(table.deadline(), Some(ms(4200)));
    assert!(table.claim(gid(1), answer(1), ms(4150)));
    assert_eq!(resolve(&mut table, gid(1), ms(4150)), Target::Mac(mac(1)));
}

#[test]
fn an_answer_is_good_for_a_while_and_then_asked_for_again_while_it_is_used() {
    let mut table = Neighbours::new();
    resolve(&mut table, gid(1), ms(0));
    assert!(table.claim(gid(1), answer(1), ms(1000)));
    assert_eq!(questions(&mut table, ms(1000)), [(0, None)]);
    for now in [1000, 30_999] {
        assert_eq!(resolve(&mut table, gid(1), ms(now)), Target::Mac(mac(1)));
    }
    assert_eq!((table.next_question(), table.deadline()), (None, None));
    assert_eq!(resolve(&mut table, gid(1), ms(31_000)), Target::Mac(mac(1)));
    assert_eq!(table.next_question(), Some(Ask { gid: gid(1), mac: Some(mac(1)) }));
    assert!(!table.claim(gid(1), answer(1), ms(31_001)));
    assert_eq!(resolve(&mut table, gid(1), ms(61_000)), Target::Mac(mac(1)));
    assert_eq!(table.next_question(), None);
}

#[test]
fn a_neighbour_that_has_gone_is_looked_for_elsewhere() {
    let mut table = Neighbours::new();
    resolve(&mut table, gid(1), ms(0));
    table.claim(gid(1), answer(1), ms(0));
    questions(&mut table, ms(0));
    resolve(&mut table, gid(1), ms(40_000));
    let asked = questions(&mut table, ms(40_700));
    let probe = Some(mac(1));
    assert_eq!(asked, [(0, probe), (40_100, probe), (40_300, probe), (40_700, None)]);
    assert_eq!(resolve(&mut table, gid(1), ms(40_700)), Target::Resolving);
    assert!(table.claim(gid(1), answer(2), ms(40_750)));
    assert_eq!(resolve(&mut table, gid(1), ms(40_750)), Target::Mac(mac(2)));
}

#[test]
fn an_announcement_changes_a_known_neighbour_only() {
    let mut table = Neighbours::new();
    let announced = |n| Claim { solicited: false, ..answer(n) };
    assert!(!table.claim(gid(1), announced(1), ms(0)));
    assert_eq!(resolve(&mut table, gid(1), ms(0)), Target::Resolving);
    assert!(table.claim(gid(1), announced(1), ms(0)), "it crosses the question");
    assert_eq!(resolve(&mut table, gid(1), ms(1)), Target::Mac(mac(1)));
    // The advertisement was not solicited, so the port asks the neighbour.
    assert_eq!(questions(&mut table, ms(1)).last(), Some(&(0, Some(mac(1)))));
    table.claim(gid(1), answer(1), ms(2));
    table.claim(gid(1), announced(2), ms(3));
    assert_eq!(resolve(&mut table, gid(1), ms(4)), Target::Mac(mac(2)));
    assert_eq!(table.next_question(), Some(Ask { gid: gid(1), mac: Some(mac(2)) }));
    // A claim that may not replace a MAC changes nothing.
    table.claim(gid(1), Claim { replaces: false, ..answer(3) }, ms(5));
    assert_eq!(resolve(&mut table, gid(1), ms(6)), Target::Mac(mac(2)));
    table.claim(gid(1), Claim { replaces: true, ..answer(4) }, ms(7));
    assert_eq!(resolve(&mut table, gid(1), ms(8)), Target::Mac(mac(4)));
    assert_eq!(table.next_question(), None);
}

/// A statement confirms a MAC only if it answers a question that the port has asked.
#[test]
fn what_nobody_asked_for_confirms_no_mac() {
    let probe = Some(Ask { gid: gid(1), mac: Some(mac(1)) });
    let announced = |n| Claim { solicited: false, ..answer(n) };
    let mut table = Neighbours::new();
    resolve(&mut table, gid(1), ms(0));
    assert!(table.claim(gid(1), answer(1), ms(0)));
    assert!(table.next_question().is_some());
    // It says that it answers, but there was no question.
    assert!(!table.claim(gid(1), answer(1), ms(20_000)));
    assert_eq!(resolve(&mut table, gid(1), ms(30_000)), Target::Mac(mac(1)));
    assert_eq!(table.next_question(), probe);
    // There was one, but it does not answer it.
    assert!(!table.claim(gid(1), announced(1), ms(30_001)));
    table.poll(ms(30_100));
    assert_eq!(table.next_question(), probe);
    // Another MAC, unasked: the next packet asks for it.
    assert!(!table.claim(gid(1), answer(1), ms(30_150)));
    table.poll(ms(40_000));
    assert_eq!(table.next_question(), None);
    assert!(!table.claim(gid(1), answer(2), ms(40_000)));
    assert_eq!(resolve(&mut table, gid(1), ms(40_000)), Target::Mac(mac(2)));
    assert_eq!(table.next_question(), Some(Ask { gid: gid(1), mac: Some(mac(2)) }));
}

#[test]
fn a_silent_neighbour_that_speaks_is_reached_again() {
    let mut table = Neighbours::new();
    resolve(&mut table, gid(1), ms(0));
    questions(&mut table, ms(3100));
    assert_eq!(resolve(&mut table, gid(1), ms(3100)), Target::NoAnswer);
    table.asked_by(gid(1), mac(1), ms(3200));
    assert_eq!(resolve(&mut table, gid(1), ms(3200)), Target::Mac(mac(1)));
}

/// A table whose entries, from 0 on, have a MAC and are in use.
fn full(now: Instant) -> Neighbours {
    let mut table = Neighbours::new();
    for n in 0..ENTRIES as u32 {
        resolve(&mut table, gid(n), now);
        assert!(table.claim(gid(n), answer(n as u8), now));
        while table.next_question().is_some() {}
    }
    table
}

fn waiting(table: &Neighbours) -> usize {
    let resolving = |entry: &&Entry| matches!(entry.state, State::Resolving { .. });
    let count = table.entries.values().filter(resolving).count();
    assert_eq!(table.unresolved.len(), count);
    count
}

#[test]
fn a_neighbour_that_asks_is_remembered_but_takes_no_place_from_one_in_use() {
    let mut table = Neighbours::new();
    assert!(!table.asked_by(gid(0), mac(9), ms(0)));
    assert_eq!(resolve(&mut table, gid(0), ms(0)), Target::Mac(mac(9)));
    let mut table = full(ms(0));
    for n in 5000..if cfg!(miri) { 5020 } else { 7000 } {
        assert!(!table.asked_by(gid(n), mac(1), ms(1)));
    }
    assert_eq!(table.entries.len(), ENTRIES);
    assert!((0..ENTRIES as u32).all(|n| matches!(resolve(&mut table, gid(n), ms(2)), Target::Mac(_))));
}

#[test]
fn those_that_ask_take_no_place_from_a_neighbour_that_packets_wait_for() {
    let mut table = full(ms(0));
    for n in 0..SHARE as u32 {
        resolve(&mut table, gid(5000 + n), ms(0));
    }
    assert_eq!((table.entries.len(), waiting(&table)), (ENTRIES, SHARE));
    for n in 0..ENTRIES as u32 {
        table.asked_by(gid(7000 + n), mac(9), ms(1));
    }
    assert_eq!((table.entries.len(), waiting(&table)), (ENTRIES, SHARE));
}

/// The owner of the table may be slow to send the questions, and to take what they lead to.
#[test]
fn questions_that_nobody_takes_use_bounded_memory() {
    let mut table = Neighbours::new();
    let rounds = if cfg!(miri) { 1 } else { 9 };
    for round in 0..rounds {
        for n in 0..UNRESOLVED as u32 {
            table.resolve(gid(1000 * round + n), n, ms(10_000 * u64::from(round)), || None);
        }
        for _ in 0..TRIES {
            let now = table.deadline().expect("questions to repeat");
            table.poll(now);
        }
    }
    assert!(table.questions.len() <= ENTRIES && table.settled.len() <= ENTRIES);
    assert!(!table.questions.is_empty() && table.has_settled());
}

#[test]
fn those_that_ask_take_places_from_each_other() {
    let mut table = Neighbours::new();
    let count = ENTRIES as u32 + if cfg!(miri) { 20 } else { 1000 };
    for n in 0..count {
        table.asked_by(gid(n), mac(1), ms(n.into()));
    }
    assert_eq!(table.entries.len(), ENTRIES);
    assert!(table.entries.contains_key(&gid(count - 1)) && !table.entries.contains_key(&gid(0)));
}

/// A sender of packets to many addresses that nobody has takes no place from the neighbours in
/// use, and leaves other senders room to ask. Its own addresses are each asked for once.
#[test]
fn a_sender_to_many_silent_addresses_has_a_share() {
    let mut table = Neighbours::new();
    for n in 0..100 {
        resolve(&mut table, gid(n), ms(0));
        table.claim(gid(n), answer(n as u8), ms(0));
    }
    while table.next_question().is_some() || table.settled().is_some() {}
    // A thousand a millisecond.
    let (mut asked, mut questions) = (0, 0);
    let count = if cfg!(miri) { 300 } else { 300_000_u32 };
    for n in 0..count {
        let now = ms(u64::from(n) / 1000);
        match table.resolve(gid(5000 + n), 8, now, || None) {
            Target::Resolving => asked += 1,
            other => assert_eq!(other, Target::NoAnswer),
        }
        while table.next_question().is_some() {
            questions += 1;
        }
        while let Some((_, found)) = table.settled() {
            assert!(!found);
        }
        assert!(table.entries.len() <= ENTRIES && waiting(&table) <= SHARE);
    }
    assert!((SHARE..=3 * SHARE).contains(&asked) && questions == asked, "{asked} {questions}");
    let now = ms(300);
    assert!((0..100).all(|n| matches!(resolve(&mut table, gid(n), now), Target::Mac(_))));
    // Another sender is asked for at once, and gets its answer.
    assert_eq!(table.resolve(gid(200), 9, now, || None), Target::Resolving);
    assert!(table.claim(gid(200), answer(2), now));
    assert_eq!(table.settled(), Some((gid(200), true)));
}

/// With more senders than shares the one that was asked for longest gives way, once it has had
/// the time of a question.
#[test]
fn of_many_senders_the_oldest_question_gives_way_in_time() {
    let mut table = Neighbours::new();
    let ask = |table: &mut Neighbours, n: u32, now: Instant| table.resolve(gid(n), n, now, || None);
    for n in 0..UNRESOLVED as u32 {
        assert_eq!(ask(&mut table, n, ms(n.into())), Target::Resolving);
    }
    assert_eq!(ask(&mut table, 1000, ms(99)), Target::NoAnswer);
    assert_eq!(table.settled(), None);
    assert_eq!(ask(&mut table, 1000, ms(300)), Target::Resolving);
    assert_eq!((table.settled(), table.settled()), (Some((gid(0), false)), None));
    assert_eq!(ask(&mut table, 0, ms(300)), Target::Resolving);
    assert_eq!(table.settled(), Some((gid(1), false)));
    assert_eq!(waiting(&table), UNRESOLVED);
    // One that is silent at last is reported as well, and all are when the port goes down.
    table.poll(ms(60_000));
    for _ in 0..TRIES {
        let now = table.deadline().unwrap_or(ms(60_000));
        table.poll(now);
    }
    assert_eq!(core::iter::from_fn(|| table.settled()).filter(|(_, found)| !found).count(), UNRESOLVED);
    assert_eq!(ask(&mut table, 0, ms(90_000)), Target::Resolving);
    table.clear();
    assert_eq!((table.settled(), table.settled()), (Some((gid(0), false)), None));
}

/// More neighbours in use than the table has places for: most packets still find their MAC,
/// although they go to the neighbours one after the other.
#[test]
fn a_table_that_is_too_small_is_no_use_to_some_only() {
    let mut table = full(ms(0));
    let count = ENTRIES as u32 + 100;
    let rounds = if cfg!(miri) { 1 } else { 20 };
    let mut found = 0;
    for n in (0..rounds).flat_map(|_| 0..count) {
        match resolve(&mut table, gid(n), ms(1)) {
            Target::Mac(_) => found += 1,
            _ => assert!(table.claim(gid(n), answer(1), ms(1))),
        }
        while table.next_question().is_some() || table.settled().is_some() {}
    }
    assert!(found * 4 > rounds * count * 3, "{found} of {}", rounds * count);
    assert_eq!(table.entries.len(), ENTRIES);
}

#[test]
fn of_those_compared_the_neighbour_that_was_used_least_recently_goes() {
    let mut table = full(ms(0));
    for n in 0..ENTRIES as u32 {
        resolve(&mut table, gid(n), ms(if n == 5 { 1 } else { 2 + u64::from(n) }));
    }
    resolve(&mut table, gid(5000), ms(2000));
    assert_eq!(table.entries.len(), ENTRIES);
    let gone = (0..ENTRIES as u32).filter(|n| !table.entries.contains_key(&gid(*n)));
    assert_eq!(gone.collect::<Vec<_>>(), [5]);
    // The next comparison is among others.
    resolve(&mut table, gid(5001), ms(2000));
    assert!(!table.entries.contains_key(&gid(COMPARED as u32)));
}

/// A datagram goes to the MAC from which its neighbour's own came, which costs no question,
/// unless the table knows the neighbour's MAC.
#[test]
fn a_mac_from_elsewhere_serves_where_the_table_has_none() {
    let mut table = Neighbours::new();
    let other = |table: &mut Neighbours, now| table.resolve(gid(1), 7, now, || Some(mac(9)));
    assert_eq!(other(&mut table, ms(0)), Target::Mac(mac(9)));
    assert_eq!((table.next_question(), table.entries.len()), (None, 0));
    assert_eq!(resolve(&mut table, gid(1), ms(0)), Target::Resolving);
    assert_eq!(other(&mut table, ms(0)), Target::Mac(mac(9)));
    questions(&mut table, ms(3100));
    assert_eq!(resolve(&mut table, gid(1), ms(3100)), Target::NoAnswer);
    assert_eq!(other(&mut table, ms(3100)), Target::Mac(mac(9)));
    table.asked_by(gid(1), mac(1), ms(3200));
    assert_eq!(other(&mut table, ms(3200)), Target::Mac(mac(1)));
}
