//! The table of neighbours' MACs.
//!
//! The port asks for an address when the first packet goes to it. An answer is valid for [`FRESH`];
//! after that the next packet makes the port ask that neighbour again, and still uses the MAC. The
//! port does not ask a silent neighbour again for [`SILENCE`].
//!
//! The port remembers a neighbour that asks for it, since the answer will go there. Such an entry
//! replaces no neighbour that is in use. Other announcements only change existing entries.
//!
//! The port asks for a bounded number of neighbours at once. Each sender of packets has a share of
//! them, and the port has asked for each at least once and waited for its answer before the
//! neighbour makes room for another. If none makes room, the packet is lost.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::ops::Bound;
use core::time::Duration;

use platform::Instant;
use roce::Gid;

/// The most entries.
const ENTRIES: usize = 1024;
/// The most entries without a MAC, and the most of them that one sender's packets made.
const UNRESOLVED: usize = 256;
const SHARE: usize = 64;
/// Entries that are compared when one has to go.
const COMPARED: usize = 32;
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

/// An entry without a MAC.
#[derive(Clone, Copy, Debug)]
struct Unresolved {
    gid: Gid,
    /// The sender whose packet made it.
    sender: u32,
    since: Instant,
}

/// The table.
#[derive(Debug)]
pub(super) struct Neighbours {
    entries: BTreeMap<Gid, Entry>,
    /// The entries in the state [`State::Resolving`], the oldest first.
    unresolved: VecDeque<Unresolved>,
    /// Those that have left that state, and whether they have a MAC.
    settled: VecDeque<(Gid, bool)>,
    /// The next search for an entry that may go begins behind this one.
    hand: Gid,
    questions: VecDeque<Ask>,
    /// No timer is due before.
    next: Option<Instant>,
}

impl Neighbours {
    pub const fn new() -> Neighbours {
        Neighbours {
            entries: BTreeMap::new(),
            unresolved: VecDeque::new(),
            settled: VecDeque::new(),
            hand: Gid([0; 16]),
            questions: VecDeque::new(),
            next: None,
        }
    }

    pub fn clear(&mut self) {
        while let Some(first) = self.unresolved.front() {
            self.settle(first.gid, false);
        }
        *self = Neighbours { settled: core::mem::take(&mut self.settled), ..Neighbours::new() };
    }

    /// A packet of a sender goes to `gid`. If the neighbour's MAC is not known, the packet goes to
    /// the one that `other` returns.
    #[inline]
    pub fn resolve(
        &mut self,
        gid: Gid,
        sender: u32,
        now: Instant,
        other: impl FnOnce() -> Option<Mac>,
    ) -> Target {
        match self.entries.get_mut(&gid) {
            Some(Entry { state: State::Fresh { mac, until }, used, .. }) if now < *until => {
                *used = Some(now);
                Target::Mac(*mac)
            }
            _ => self.resolve_slowly(gid, sender, now, other()),
        }
    }

    #[cold]
    fn resolve_slowly(&mut self, gid: Gid, sender: u32, now: Instant, other: Option<Mac>) -> Target {
        let next = now + FIRST_WAIT;
        if let Some(entry) = self.entries.get_mut(&gid) {
            match entry.state {
                State::Probing { mac, .. } => {
                    entry.used = Some(now);
                    return Target::Mac(mac);
                }
                State::Fresh { mac, .. } | State::Stale { mac } => {
                    entry.used = Some(now);
                    entry.state = State::Probing { mac, tries: 1, next };
                    self.question(Ask { gid, mac: Some(mac) }, next);
                    return Target::Mac(mac);
                }
                State::Resolving { .. } | State::Silent { .. } => {}
            }
        }
        if let Some(mac) = other {
            return Target::Mac(mac);
        }
        match self.entries.get_mut(&gid) {
            Some(Entry { state: State::Silent { until }, .. }) if now < *until => return Target::NoAnswer,
            Some(Entry { state: State::Silent { .. }, .. }) | None => {}
            Some(entry) => {
                entry.used = Some(now);
                return Target::Resolving;
            }
        }
        if !self.make_room_to_ask(sender, now) {
            return Target::NoAnswer;
        }
        if !self.entries.contains_key(&gid) {
            self.make_room(true);
        }
        let state = State::Resolving { tries: 1, next };
        self.entries.insert(gid, Entry { state, used: Some(now), made: now });
        self.unresolved.push_back(Unresolved { gid, sender, since: now });
        self.question(Ask { gid, mac: None }, next);
        Target::Resolving
    }

    /// An entry is no longer in the state [`State::Resolving`].
    fn settle(&mut self, gid: Gid, found: bool) {
        if let Some(place) = self.unresolved.iter().position(|entry| entry.gid == gid) {
            self.unresolved.remove(place);
            // The owner takes these after each call, or does not need them.
            if self.settled.len() >= ENTRIES {
                self.settled.pop_front();
            }
            self.settled.push_back((gid, found));
        }
    }

    #[inline]
    pub fn has_settled(&self) -> bool {
        !self.settled.is_empty()
    }

    /// Takes a neighbour that the port has asked for, and whether it has a MAC now.
    pub fn settled(&mut self) -> Option<(Gid, bool)> {
        self.settled.pop_front()
    }

    /// Makes room for one more entry without a MAC. False if all that may have to go for it have
    /// not had the time of a question yet.
    fn make_room_to_ask(&mut self, sender: u32, now: Instant) -> bool {
        let own = self.unresolved.iter().filter(|entry| entry.sender == sender).count() >= SHARE;
        if !own && self.unresolved.len() < UNRESOLVED {
            return true;
        }
        let oldest = self.unresolved.iter().find(|entry| !own || entry.sender == sender);
        let Some(&Unresolved { gid, .. }) = oldest.filter(|entry| entry.since + FIRST_WAIT <= now) else {
            return false;
        };
        self.entries.remove(&gid);
        self.settle(gid, false);
        true
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
                self.settle(gid, true);
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

    /// Makes room for an entry: of some entries, the one that is missed least goes. If no packet
    /// needs the new one, only an entry goes that no packet needs either.
    fn make_room(&mut self, needed: bool) -> bool {
        if self.entries.len() < ENTRIES {
            return true;
        }
        let behind = (Bound::Excluded(self.hand), Bound::Unbounded);
        // Those without a MAC have a bound of their own.
        let settled = |(_, entry): &(&Gid, &Entry)| !matches!(entry.state, State::Resolving { .. });
        let from = self.entries.range(behind).chain(&self.entries).filter(settled).take(COMPARED);
        let (mut victim, mut last) = (None, self.hand);
        for (gid, entry) in from {
            last = *gid;
            let worth = (entry.worth(), *gid);
            if (needed || worth.0.0 < Entry::WANTED) && victim.is_none_or(|least| worth < least) {
                victim = Some(worth);
            }
        }
        self.hand = last;
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
        let (mut silent, mut gone) = (Vec::new(), Vec::new());
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
                    State::Resolving { .. } => {
                        silent.push(*gid);
                        State::Silent { until: now + SILENCE }
                    }
                    State::Probing { mac, tries, .. } if tries < PROBES => {
                        State::Probing { mac, tries: tries + 1, next: wait(tries) }
                    }
                    // Another port may have the address now: ask all.
                    State::Probing { .. } => {
                        gone.push(*gid);
                        State::Resolving { tries: 1, next: wait(0) }
                    }
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
        for gid in silent {
            self.settle(gid, false);
        }
        // No sender asks for these.
        let since = |gid| Unresolved { gid, sender: 0, since: now };
        self.unresolved.extend(gone.into_iter().map(since));
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
            (_, Some(used)) => (2, used),
        }
    }
}

#[cfg(test)]
mod tests;
