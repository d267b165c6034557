//! The table of neighbours' MACs.
//!
//! The port asks for an address when the first packet goes to it. An answer is valid for [`FRESH`];
//! after that the next packet makes the port ask that neighbour again, and still uses the MAC. The
//! port does not ask a silent neighbour again for [`SILENCE`].
//!
//! The port remembers a neighbour that asks for it, since the answer will go there. Such an entry
//! replaces no neighbour that is in use. Other announcements only change existing entries.

use alloc::collections::{BTreeMap, VecDeque};
use core::time::Duration;

use platform::Instant;
use roce::Gid;

/// The most entries.
const ENTRIES: usize = 256;
/// The most entries without a MAC.
const UNRESOLVED: usize = 64;
/// How many questions the port asks before a neighbour counts as silent, and ([`PROBES`]) before it
/// gives up a known MAC.
const TRIES: u32 = 5;
const PROBES: u32 = 3;
/// The wait after the first question; it doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// How long an answer is valid.
const FRESH: Duration = Duration::from_secs(30);
/// How long the port does not ask a silent neighbour again.
const SILENCE: Duration = Duration::from_secs(1);

/// A MAC.
type Mac = [u8; 6];

/// What the port knows of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The port has asked `tries` times, and asks again at `next`.
    Resolving { tries: u32, next: Instant },
    /// It has answered.
    Fresh { mac: Mac, until: Instant },
    /// It had this MAC.
    Stale { mac: Mac },
    /// The neighbour had this MAC, and the port is asking whether it still has it.
    Probing { mac: Mac, tries: u32, next: Instant },
    /// It did not answer.
    Silent { until: Instant },
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    state: State,
    /// When the last packet went to the neighbour; `None` if none did.
    used: Option<Instant>,
    /// When the entry was made.
    made: Instant,
}

/// How to send a packet to a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Mac(Mac),
    Resolving,
    NoAnswer,
}

/// A question to send: to a neighbour's MAC, or to all neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub gid: Gid,
    pub mac: Option<Mac>,
}

/// A neighbour's statement about its MAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub mac: Mac,
    /// It answers a question.
    pub solicited: bool,
    /// It replaces another MAC.
    pub replaces: bool,
}

/// The table.
#[derive(Debug)]
pub(super) struct Neighbours {
    entries: BTreeMap<Gid, Entry>,
    questions: VecDeque<Ask>,
    /// No timer is due before.
    next: Option<Instant>,
}

impl Neighbours {
    pub const fn new() -> Neighbours {
        Neighbours { entries: BTreeMap::new(), questions: VecDeque::new(), next: None }
    }

    pub fn clear(&mut self) {
        *self = Neighbours::new();
    }

    /// A packet goes to `gid`.
    #[inline]
    pub fn resolve(&mut self, gid: Gid, now: Instant) -> Target {
        match self.entries.get_mut(&gid) {
            Some(Entry { state: State::Fresh { mac, until }, used, .. }) if now < *until => {
                *used = Some(now);
                Target::Mac(*mac)
            }
            _ => self.resolve_slowly(gid, now),
        }
    }

    #[cold]
    fn resolve_slowly(&mut self, gid: Gid, now: Instant) -> Target {
        let next = now + FIRST_WAIT;
        let Some(entry) = self.entries.get_mut(&gid) else {
            self.make_room(true);
            let state = State::Resolving { tries: 1, next };
            self.entries.insert(gid, Entry { state, used: Some(now), made: now });
            self.question(Ask { gid, mac: None }, next);
            return Target::Resolving;
        };
        entry.used = Some(now);
        match entry.state {
            State::Resolving { .. } => Target::Resolving,
            State::Probing { mac, .. } => Target::Mac(mac),
            State::Fresh { mac, .. } | State::Stale { mac } => {
                entry.state = State::Probing { mac, tries: 1, next };
                self.question(Ask { gid, mac: Some(mac) }, next);
                Target::Mac(mac)
            }
            State::Silent { until } if now < until => Target::NoAnswer,
            State::Silent { .. } => {
                entry.state = State::Resolving { tries: 1, next };
                self.question(Ask { gid, mac: None }, next);
                Target::Resolving
            }
        }
    }

    /// A neighbour states its MAC. Returns whether packets waited for it.
    pub fn claim(&mut self, gid: Gid, claim: Claim, now: Instant) -> bool {
        let Claim { mac, solicited, replaces } = claim;
        let Some(entry) = self.entries.get_mut(&gid) else { return false };
        let fresh = State::Fresh { mac, until: now + FRESH };
        let (known, asked) = match entry.state {
            State::Resolving { .. } => {
                // An answer to a question, or an announcement that crossed the question: both give
                // the MAC.
                entry.state = if solicited { fresh } else { State::Stale { mac } };
                return true;
            }
            State::Silent { .. } => {
                entry.state = State::Stale { mac };
                return false;
            }
            State::Probing { mac, .. } => (mac, true),
            State::Fresh { mac, .. } | State::Stale { mac } => (mac, false),
        };
        if known == mac {
            if solicited && asked {
                entry.state = fresh;
            }
        } else if replaces {
            entry.state = if solicited && asked { fresh } else { State::Stale { mac } };
        }
        false
    }

    /// A neighbour asks for this port. Returns whether packets waited for its MAC.
    pub fn asked_by(&mut self, gid: Gid, mac: Mac, now: Instant) -> bool {
        if self.entries.contains_key(&gid) {
            return self.claim(gid, Claim { mac, solicited: false, replaces: true }, now);
        }
        if self.make_room(false) {
            self.entries.insert(gid, Entry { state: State::Stale { mac }, used: None, made: now });
        }
        false
    }

    /// Makes room for an entry. If a packet needs it, another entry is always removed; otherwise
    /// only one that no packet needs.
    fn make_room(&mut self, needed: bool) -> bool {
        let unresolved = |entry: &Entry| matches!(entry.state, State::Resolving { .. });
        let many = needed && self.entries.values().filter(|entry| unresolved(entry)).count() >= UNRESOLVED;
        if self.entries.len() < ENTRIES && !many {
            return true;
        }
        let victim = self
            .entries
            .iter()
            .filter(|(_, entry)| !many || unresolved(entry))
            .map(|(gid, entry)| (entry.worth(), *gid))
            .filter(|((class, _), _)| needed || *class < Entry::WANTED)
            .min();
        if let Some((_, gid)) = victim {
            self.entries.remove(&gid);
        }
        victim.is_some()
    }

    fn question(&mut self, ask: Ask, next: Instant) {
        // The queue cannot exceed the table: the owner takes all questions after each call.
        if self.questions.len() < ENTRIES {
            self.questions.push_back(ask);
        }
        self.next = Some(self.next.map_or(next, |at| at.min(next)));
    }

    /// The next question to send.
    pub fn next_question(&mut self) -> Option<Ask> {
        self.questions.pop_front()
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.next
    }

    /// Repeats the questions that are due, and gives up on neighbours that did not answer enough of
    /// them.
    pub fn poll(&mut self, now: Instant) {
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        self.next = None;
        let mut again: Option<Instant> = None;
        for (gid, entry) in &mut self.entries {
            let due = match entry.state {
                State::Resolving { next, .. } | State::Probing { next, .. } => next,
                State::Fresh { .. } | State::Stale { .. } | State::Silent { .. } => continue,
            };
            if due <= now {
                let wait = |tries: u32| now + FIRST_WAIT * 2_u32.saturating_pow(tries);
                entry.state = match entry.state {
                    State::Resolving { tries, .. } if tries < TRIES => {
                        State::Resolving { tries: tries + 1, next: wait(tries) }
                    }
                    State::Resolving { .. } => State::Silent { until: now + SILENCE },
                    State::Probing { mac, tries, .. } if tries < PROBES => {
                        State::Probing { mac, tries: tries + 1, next: wait(tries) }
                    }
                    // Another port may have the address now: ask all.
                    State::Probing { .. } => State::Resolving { tries: 1, next: wait(0) },
                    other => other,
                };
            }
            let (mac, next) = match entry.state {
                State::Resolving { next, .. } => (None, next),
                State::Probing { mac, next, .. } => (Some(mac), next),
                _ => continue,
            };
            if due <= now && self.questions.len() < ENTRIES {
                self.questions.push_back(Ask { gid: *gid, mac });
            }
            again = Some(again.map_or(next, |at| at.min(next)));
        }
        self.next = again;
    }
}

impl Entry {
    /// Entries of this class and above are those that packets need.
    const WANTED: u8 = 2;

    /// The value of an entry; the lowest is removed first.
    fn worth(&self) -> (u8, Instant) {
        match (self.state, self.used) {
            (State::Silent { .. }, _) => (0, self.made),
            (_, None) => (1, self.made),
            (State::Resolving { .. }, _) => (2, self.made),
            (_, Some(used)) => (3, used),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use core::net::Ipv4Addr;
    use std::vec::Vec;

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
        assert_eq!(table.resolve(gid(1), ms(0)), Target::Resolving);
        let asked = questions(&mut table, ms(60_000));
        assert_eq!(asked, [(0, None), (100, None), (300, None), (700, None), (1500, None)]);
        assert_eq!(table.deadline(), None);
        let mut table = Neighbours::new();
        table.resolve(gid(1), ms(0));
        questions(&mut table, ms(3100));
        assert_eq!(table.resolve(gid(1), ms(4099)), Target::NoAnswer);
        assert_eq!(table.resolve(gid(1), ms(4100)), Target::Resolving);
        assert_eq!(table.deadline(), Some(ms(4200)));
        assert!(table.claim(gid(1), answer(1), ms(4150)));
        assert_eq!(table.resolve(gid(1), ms(4150)), Target::Mac(mac(1)));
    }

    #[test]
    fn an_answer_is_good_for_a_while_and_then_asked_for_again_while_it_is_used() {
        let mut table = Neighbours::new();
        table.resolve(gid(1), ms(0));
        assert!(table.claim(gid(1), answer(1), ms(1000)));
        assert_eq!(questions(&mut table, ms(1000)), [(0, None)]);
        for now in [1000, 30_999] {
            assert_eq!(table.resolve(gid(1), ms(now)), Target::Mac(mac(1)));
        }
        assert_eq!((table.next_question(), table.deadline()), (None, None));
        assert_eq!(table.resolve(gid(1), ms(31_000)), Target::Mac(mac(1)));
        assert_eq!(table.next_question(), Some(Ask { gid: gid(1), mac: Some(mac(1)) }));
        assert!(!table.claim(gid(1), answer(1), ms(31_001)));
        assert_eq!(table.resolve(gid(1), ms(61_000)), Target::Mac(mac(1)));
        assert_eq!(table.next_question(), None);
    }

    #[test]
    fn a_neighbour_that_has_gone_is_looked_for_elsewhere() {
        let mut table = Neighbours::new();
        table.resolve(gid(1), ms(0));
        table.claim(gid(1), answer(1), ms(0));
        questions(&mut table, ms(0));
        table.resolve(gid(1), ms(40_000));
        let asked = questions(&mut table, ms(40_700));
        let probe = Some(mac(1));
        assert_eq!(asked, [(0, probe), (40_100, probe), (40_300, probe), (40_700, None)]);
        assert_eq!(table.resolve(gid(1), ms(40_700)), Target::Resolving);
        assert!(table.claim(gid(1), answer(2), ms(40_750)));
        assert_eq!(table.resolve(gid(1), ms(40_750)), Target::Mac(mac(2)));
    }

    #[test]
    fn an_announcement_changes_a_known_neighbour_only() {
        let mut table = Neighbours::new();
        let announced = |n| Claim { solicited: false, ..answer(n) };
        assert!(!table.claim(gid(1), announced(1), ms(0)));
        assert_eq!(table.resolve(gid(1), ms(0)), Target::Resolving);
        assert!(table.claim(gid(1), announced(1), ms(0)), "it crosses the question");
        assert_eq!(table.resolve(gid(1), ms(1)), Target::Mac(mac(1)));
        // The advertisement was not solicited, so the port asks the neighbour.
        assert_eq!(questions(&mut table, ms(1)).last(), Some(&(0, Some(mac(1)))));
        table.claim(gid(1), answer(1), ms(2));
        table.claim(gid(1), announced(2), ms(3));
        assert_eq!(table.resolve(gid(1), ms(4)), Target::Mac(mac(2)));
        assert_eq!(table.next_question(), Some(Ask { gid: gid(1), mac: Some(mac(2)) }));
        // A claim that may not replace a MAC changes nothing.
        table.claim(gid(1), Claim { replaces: false, ..answer(3) }, ms(5));
        assert_eq!(table.resolve(gid(1), ms(6)), Target::Mac(mac(2)));
        table.claim(gid(1), Claim { replaces: true, ..answer(4) }, ms(7));
        assert_eq!(table.resolve(gid(1), ms(8)), Target::Mac(mac(4)));
        assert_eq!(table.next_question(), None);
    }

    /// A statement confirms a MAC only if it answers a question that the port has asked.
    #[test]
    fn what_nobody_asked_for_confirms_no_mac() {
        let probe = Some(Ask { gid: gid(1), mac: Some(mac(1)) });
        let announced = |n| Claim { solicited: false, ..answer(n) };
        let mut table = Neighbours::new();
        table.resolve(gid(1), ms(0));
        assert!(table.claim(gid(1), answer(1), ms(0)));
        assert!(table.next_question().is_some());
        // It says that it answers, but there was no question.
        assert!(!table.claim(gid(1), answer(1), ms(20_000)));
        assert_eq!(table.resolve(gid(1), ms(30_000)), Target::Mac(mac(1)));
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
        assert_eq!(table.resolve(gid(1), ms(40_000)), Target::Mac(mac(2)));
        assert_eq!(table.next_question(), Some(Ask { gid: gid(1), mac: Some(mac(2)) }));
    }

    #[test]
    fn a_silent_neighbour_that_speaks_is_reached_again() {
        let mut table = Neighbours::new();
        table.resolve(gid(1), ms(0));
        questions(&mut table, ms(3100));
        assert_eq!(table.resolve(gid(1), ms(3100)), Target::NoAnswer);
        table.asked_by(gid(1), mac(1), ms(3200));
        assert_eq!(table.resolve(gid(1), ms(3200)), Target::Mac(mac(1)));
    }

    #[test]
    fn a_neighbour_that_asks_is_remembered_but_takes_no_place_from_one_in_use() {
        let mut table = Neighbours::new();
        assert!(!table.asked_by(gid(0), mac(9), ms(0)));
        assert_eq!(table.resolve(gid(0), ms(0)), Target::Mac(mac(9)));
        for n in 1..ENTRIES as u32 {
            table.resolve(gid(n), ms(0));
            assert!(table.claim(gid(n), answer(n as u8), ms(0)));
        }
        for n in 1000..if cfg!(miri) { 1020 } else { 3000 } {
            assert!(!table.asked_by(gid(n), mac(1), ms(1)));
        }
        assert_eq!(table.entries.len(), ENTRIES);
        assert!((0..ENTRIES as u32).all(|n| matches!(table.resolve(gid(n), ms(2)), Target::Mac(_))));
    }

    #[test]
    fn those_that_ask_take_no_place_from_a_neighbour_that_packets_wait_for() {
        let mut table = Neighbours::new();
        for n in 0..ENTRIES as u32 {
            table.resolve(gid(n), ms(0));
            if n >= UNRESOLVED as u32 {
                assert!(table.claim(gid(n), answer(1), ms(0)));
            }
        }
        // One of those without a MAC had to go; one that has asked, and gets packets, comes.
        table.asked_by(gid(1000), mac(9), ms(0));
        table.resolve(gid(1000), ms(0));
        let waiting = |table: &Neighbours| {
            table.entries.values().filter(|entry| matches!(entry.state, State::Resolving { .. })).count()
        };
        assert_eq!((table.entries.len(), waiting(&table)), (ENTRIES, UNRESOLVED - 1));
        for n in 0..ENTRIES as u32 {
            table.asked_by(gid(2000 + n), mac(9), ms(1));
        }
        assert_eq!((table.entries.len(), waiting(&table)), (ENTRIES, UNRESOLVED - 1));
    }

    /// The owner of the table may be slow to send the questions.
    #[test]
    fn questions_that_nobody_takes_use_bounded_memory() {
        let mut table = Neighbours::new();
        for n in 0..UNRESOLVED as u32 {
            table.resolve(gid(n), ms(0));
        }
        for _ in 0..TRIES {
            let now = table.deadline().expect("questions to repeat");
            table.poll(now);
        }
        assert_eq!(table.questions.len(), ENTRIES);
    }

    #[test]
    fn those_that_ask_take_places_from_each_other() {
        let mut table = Neighbours::new();
        let count = if cfg!(miri) { 280 } else { 1000 };
        for n in 0..count {
            table.asked_by(gid(n), mac(1), ms(n.into()));
        }
        assert_eq!(table.entries.len(), ENTRIES);
        assert!(table.entries.contains_key(&gid(count - 1)) && !table.entries.contains_key(&gid(0)));
    }

    #[test]
    fn packets_to_many_silent_addresses_leave_the_neighbours_in_use() {
        let mut table = Neighbours::new();
        for n in 0..100 {
            table.resolve(gid(n), ms(0));
            table.claim(gid(n), answer(n as u8), ms(0));
        }
        while table.next_question().is_some() {}
        for n in 1000..if cfg!(miri) { 1070 } else { 3000_u32 } {
            assert_eq!(table.resolve(gid(n), ms(n.into())), Target::Resolving);
            assert!(table.entries.len() <= ENTRIES && table.questions.len() <= ENTRIES);
        }
        let unresolved =
            table.entries.values().filter(|e| matches!(e.state, State::Resolving { .. })).count();
        assert_eq!(unresolved, UNRESOLVED);
        assert!((0..100).all(|n| matches!(table.resolve(gid(n), ms(3000)), Target::Mac(_))));
    }

    #[test]
    fn of_a_full_table_the_neighbour_that_was_used_least_recently_goes() {
        let mut table = Neighbours::new();
        for n in 0..ENTRIES as u32 {
            table.resolve(gid(n), ms(0));
            table.claim(gid(n), answer(1), ms(0));
            table.resolve(gid(n), ms(1000 - u64::from(n)));
        }
        table.resolve(gid(5000), ms(2000));
        assert_eq!(table.entries.len(), ENTRIES);
        assert!(!table.entries.contains_key(&gid(ENTRIES as u32 - 1)));
        assert!(table.entries.contains_key(&gid(0)));
    }
}
