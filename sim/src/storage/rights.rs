//! Who may use a namespace that hosts share: a model of its reservation.
//!
//! Several hosts have commands outstanding, and only the target knows in which order it carries
//! them out. So the model keeps all *worlds*: each is a state that the namespace may be in,
//! with the commands that are carried out in it and what they are answered. A response rules out
//! the worlds in which the command gets another one, and a target that leaves no world is wrong. A
//! command whose host is lost may be carried out at any time, until the target ends.

use std::collections::{BTreeMap, BTreeSet};

use nvme::reservation::{
    Acquire, AcquireAction, ChangePersistence, Register, RegisterAction, Release, ReleaseAction, Type,
};

use crate::harness::wrong::{Step, Wrong};

/// A host, by its number.
pub(super) type Who = u8;

/// What is known of a namespace: what a Reservation Report says.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct State {
    pub(super) generation: u32,
    pub(super) persists: bool,
    /// The keys of those who are registered.
    pub(super) keys: BTreeMap<Who, u64>,
    /// The type of the reservation, and the host that has acquired it; 0 if each registrant is a
    /// holder.
    pub(super) held: Option<(Type, Who)>,
}

/// A command.
#[derive(Clone, Debug)]
pub(super) enum Asked {
    Register {
        how: Register,
        current: u64,
        new: u64,
    },
    Acquire {
        how: Acquire,
        current: u64,
        preempted: u64,
    },
    Release {
        how: Release,
        current: u64,
    },
    Report,
    /// It reads blocks, or does something else to them.
    Access {
        reads: bool,
    },
}

impl Asked {
    /// Whether it may change the state.
    fn changes(&self) -> bool {
        !matches!(self, Asked::Access { .. } | Asked::Report)
    }

    /// Whether it is carried out at one moment.
    fn is_at_once(&self) -> bool {
        !matches!(self, Asked::Access { .. })
    }
}

/// How a command is answered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Answer {
    Done,
    Conflict,
    Invalid,
    /// A report.
    Is(State),
}

impl State {
    pub(super) fn is_holder(&self, who: Who) -> bool {
        self.held.is_some_and(|(kind, holder)| match kind.is_of_all() {
            true => self.keys.contains_key(&who),
            false => holder == who,
        })
    }

    pub(super) fn allows(&self, who: Who, reads: bool) -> bool {
        let Some((kind, _)) = self.held else { return true };
        let is_registrant = kind.is_for_registrants() && self.keys.contains_key(&who);
        self.is_holder(who) || is_registrant || reads && !kind.is_exclusive_access()
    }

    fn hold(&mut self, kind: Type, who: Who) {
        self.held = Some((kind, if kind.is_of_all() { 0 } else { who }));
    }

    /// Ends the registration of `who`, which is what this host asks for.
    fn leave(&mut self, who: Who) {
        self.keys.remove(&who);
        let ends = |(kind, holder): (Type, Who)| match kind.is_of_all() {
            true => self.keys.is_empty(),
            false => holder == who,
        };
        if self.held.is_some_and(ends) {
            self.held = None;
        }
    }

    /// Carries out a command; `persist` says whether there is a place where it persists. What
    /// fails changes nothing.
    fn carry_out(&mut self, who: Who, asked: &Asked, persist: bool) -> Answer {
        let own = self.keys.get(&who).copied();
        match *asked {
            Asked::Access { reads } if self.allows(who, reads) => Answer::Done,
            Asked::Access { .. } => Answer::Conflict,
            Asked::Report => Answer::Is(self.clone()),
            Asked::Register { how, current, new } => {
                let fits = how.ignores_key || own == Some(current);
                match how.action {
                    RegisterAction::Unregister if own.is_none() || !fits => return Answer::Conflict,
                    RegisterAction::Unregister => self.leave(who),
                    _ if new == 0 => return Answer::Invalid,
                    RegisterAction::Register if own.is_some_and(|own| own != new) => {
                        return Answer::Conflict;
                    }
                    RegisterAction::Replace if !fits => return Answer::Conflict,
                    RegisterAction::Register | RegisterAction::Replace => _ = self.keys.insert(who, new),
                }
                match how.persistence {
                    ChangePersistence::Keep => {}
                    ChangePersistence::Clear => self.persists = false,
                    ChangePersistence::Set => self.persists = persist,
                }
                self.generation += 1;
                Answer::Done
            }
            Asked::Acquire { current, .. } | Asked::Release { current, .. } if own != Some(current) => {
                Answer::Conflict
            }
            Asked::Acquire { how, preempted, .. } => match (how.action, self.held) {
                (AcquireAction::Acquire, None) => {
                    self.hold(how.kind, who);
                    Answer::Done
                }
                (AcquireAction::Acquire, Some((kind, _))) => {
                    let has_it = kind == how.kind && self.is_holder(who);
                    if has_it { Answer::Done } else { Answer::Conflict }
                }
                _ => self.preempt(who, how.kind, preempted),
            },
            Asked::Release { how, .. } => match (how.action, self.held) {
                (ReleaseAction::Clear, _) => {
                    self.keys.clear();
                    self.held = None;
                    self.generation += 1;
                    Answer::Done
                }
                (ReleaseAction::Release, Some((kind, _))) if self.is_holder(who) => {
                    if kind as u8 != how.kind {
                        return Answer::Invalid;
                    }
                    self.held = None;
                    Answer::Done
                }
                (ReleaseAction::Release, _) => Answer::Done,
            },
        }
    }

    fn preempt(&mut self, who: Who, kind: Type, key: u64) -> Answer {
        let of_all = self.held.is_some_and(|(kind, _)| kind.is_of_all());
        let holder = self.held.filter(|_| !of_all).and_then(|(_, holder)| self.keys.get(&holder).copied());
        if key == 0 && !of_all {
            return Answer::Invalid;
        }
        let takes_over = key == 0 || holder == Some(key);
        if !takes_over && !self.keys.values().any(|&other| other == key) {
            return Answer::Conflict;
        }
        // The host that takes over keeps its own registration, also if it has the same key.
        self.keys.retain(|&other, &mut its| {
            let is_meant = key == 0 || its == key;
            !is_meant || takes_over && other == who
        });
        if takes_over {
            self.hold(kind, who);
        } else if self.keys.is_empty() {
            self.held = None;
        }
        self.generation += 1;
        Answer::Done
    }
}

/// How a command may be answered in a world.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Known {
    /// It was carried out, with this answer.
    Answered(Answer),
    /// It is for blocks: whether there was a time, while it was outstanding, when its host was
    /// allowed that, and one when it was not.
    Met { allowed: bool, refused: bool },
}

impl Known {
    fn fits(&self, answer: &Answer) -> bool {
        match self {
            Known::Answered(known) => known == answer,
            Known::Met { allowed, refused } => match answer {
                Answer::Done => *allowed,
                Answer::Conflict => *refused,
                _ => false,
            },
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct World {
    state: State,
    /// Commands that are outstanding.
    known: BTreeMap<u64, Known>,
}

/// See the module's documentation.
pub(super) struct Rights {
    worlds: BTreeSet<World>,
    open: BTreeMap<u64, (Who, Asked)>,
    number: u64,
    /// How many commands that change something have begun.
    changes: u64,
    /// There is a place where the state persists.
    can_persist: bool,
}

impl Rights {
    pub(super) fn new(can_persist: bool) -> Rights {
        let world = World { state: State::default(), known: BTreeMap::new() };
        Rights { worlds: [world].into(), open: BTreeMap::new(), number: 0, changes: 0, can_persist }
    }

    /// A host sends a command; its number.
    pub(super) fn begin(&mut self, who: Who, asked: Asked) -> u64 {
        self.number += 1;
        self.changes += u64::from(asked.changes());
        if let Asked::Access { reads } = asked {
            for mut world in std::mem::take(&mut self.worlds) {
                let allowed = world.state.allows(who, reads);
                world.known.insert(self.number, Known::Met { allowed, refused: !allowed });
                self.worlds.insert(world);
            }
        }
        self.open.insert(self.number, (who, asked));
        self.grow();
        self.number
    }

    /// Adds the worlds that those which are there lead to.
    fn grow(&mut self) {
        let mut fresh: Vec<World> = self.worlds.iter().cloned().collect();
        while let Some(world) = fresh.pop() {
            let waits = |(number, (_, asked)): &(&u64, &(Who, Asked))| {
                asked.is_at_once() && !world.known.contains_key(number)
            };
            for (&number, (who, asked)) in self.open.iter().filter(waits) {
                let mut next = world.clone();
                let answer = next.state.carry_out(*who, asked, self.can_persist);
                next.known.insert(number, Known::Answered(answer));
                for (other, known) in &mut next.known {
                    let (Some((who, Asked::Access { reads })), Known::Met { allowed, refused }) =
                        (self.open.get(other), known)
                    else {
                        continue;
                    };
                    let is_allowed = next.state.allows(*who, *reads);
                    (*allowed, *refused) = (*allowed || is_allowed, *refused || !is_allowed);
                }
                if self.worlds.insert(next.clone()) {
                    fresh.push(next);
                }
            }
        }
    }

    /// A command was answered.
    pub(super) fn end(&mut self, number: u64, answer: &Answer) -> Step {
        let Some((who, asked)) = self.open.remove(&number) else { return Ok(()) };
        let before = std::mem::take(&mut self.worlds);
        for world in &before {
            let mut world = world.clone();
            if world.known.remove(&number).is_some_and(|known| known.fits(answer)) {
                self.worlds.insert(world);
            }
        }
        match self.worlds.is_empty() {
            false => Ok(()),
            true => {
                Err(Wrong(format!("sharer {who}: {asked:?} is answered {answer:?}, in any of {before:?}")))
            }
        }
    }

    /// A command has no answer: one that changes something may be carried out later.
    pub(super) fn lose(&mut self, number: u64) {
        if self.open.get(&number).is_some_and(|(_, asked)| asked.changes()) {
            return;
        }
        self.open.remove(&number);
        for mut world in std::mem::take(&mut self.worlds) {
            world.known.remove(&number);
            self.worlds.insert(world);
        }
    }

    /// The target has ended, and starts again.
    pub(super) fn restart(&mut self) {
        self.open.clear();
        for World { state, .. } in std::mem::take(&mut self.worlds) {
            let state = if state.persists && !state.keys.is_empty() { state } else { State::default() };
            self.worlds.insert(World { state, known: BTreeMap::new() });
        }
    }

    /// The state, if it is known, and no command can change it. It stays as long as the number does
    /// that comes with it.
    pub(super) fn settled(&self) -> Option<(State, u64)> {
        let is_open = self.open.values().any(|(_, asked)| asked.changes());
        let mut worlds = self.worlds.iter().map(|world| &world.state);
        let first = worlds.next().filter(|_| !is_open)?;
        worlds.all(|state| state == first).then(|| (first.clone(), self.changes))
    }

    /// The number that [`Rights::settled`] gives.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGISTER: Register = Register {
        action: RegisterAction::Register,
        ignores_key: false,
        persistence: ChangePersistence::Keep,
    };
    const EXCLUSIVE: Acquire = Acquire { action: AcquireAction::Acquire, kind: Type::WriteExclusive };
    const WRITE: Asked = Asked::Access { reads: false };

    /// Host 1 has registered with key 1, and host 2 with key 2.
    fn registered() -> Rights {
        let mut rights = Rights::new(false);
        for who in [1, 2] {
            let new = u64::from(who);
            let number = rights.begin(who, Asked::Register { how: REGISTER, current: 0, new });
            rights.end(number, &Answer::Done).expect("it is right");
        }
        rights
    }

    fn acquire(rights: &mut Rights, who: Who) -> u64 {
        rights.begin(who, Asked::Acquire { how: EXCLUSIVE, current: who.into(), preempted: 0 })
    }

    #[test]
    fn a_write_is_refused_only_while_another_host_may_hold_the_reservation() {
        let mut rights = registered();
        let write = rights.begin(2, WRITE);
        assert!(rights.end(write, &Answer::Conflict).is_err());
        for answer in [Answer::Done, Answer::Conflict] {
            let mut rights = registered();
            let taken = acquire(&mut rights, 1);
            let write = rights.begin(2, WRITE);
            assert!(rights.end(write, &answer).is_ok(), "either may have been first");
            assert!(rights.end(taken, &Answer::Done).is_ok());
            let write = rights.begin(2, WRITE);
            assert!(rights.end(write, &Answer::Done).is_err(), "the reservation is held");
        }
    }

    #[test]
    fn of_two_acquires_one_fails_and_a_report_says_which() {
        let mut rights = registered();
        let (one, two) = (acquire(&mut rights, 1), acquire(&mut rights, 2));
        let report = rights.begin(1, Asked::Report);
        let state = State {
            generation: 2,
            persists: false,
            keys: [(1, 1), (2, 2)].into(),
            held: Some((Type::WriteExclusive, 2)),
        };
        assert!(rights.settled().is_none());
        assert!(rights.end(report, &Answer::Is(state)).is_ok());
        assert!(rights.end(two, &Answer::Done).is_ok());
        assert!(rights.end(one, &Answer::Done).is_err());
    }

    #[test]
    fn what_has_no_answer_may_happen_later_and_what_does_not_persist_is_forgotten() {
        let mut rights = registered();
        let lost = acquire(&mut rights, 1);
        rights.lose(lost);
        let write = rights.begin(2, WRITE);
        assert!(rights.end(write, &Answer::Done).is_ok());
        let write = rights.begin(2, WRITE);
        assert!(rights.end(write, &Answer::Conflict).is_ok());
        let write = rights.begin(2, WRITE);
        assert!(rights.end(write, &Answer::Done).is_err(), "it is held by now");
        let mut rights = registered();
        rights.restart();
        assert_eq!(rights.settled().expect("one state").0, State::default());
    }
}
