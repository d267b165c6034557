//! What a run tells of itself: the story that `--trace` prints, and the figures of [`Tally`].

use std::collections::BTreeMap;
use std::fmt;

use crate::world::Clock;

/// Prints what happens, with virtual time, if it was asked to.
#[derive(Clone)]
pub(crate) struct Story {
    clock: Option<Clock>,
    teller: String,
}

impl Story {
    /// The story of a seed, which is printed only with `--trace`.
    pub(crate) fn new(clock: Clock, told: bool) -> Story {
        Story { clock: told.then_some(clock), teller: "main".into() }
    }

    /// For another thread, whose lines begin with the name `teller`.
    pub(crate) fn of(&self, teller: &str) -> Story {
        Story { clock: self.clock.clone(), teller: teller.into() }
    }

    /// Prints what `what` returns, with the time. Calls `what` only if the seed is traced.
    pub(crate) fn tell(&self, what: impl FnOnce() -> String) {
        if let Some(clock) = &self.clock {
            let now = clock.peek();
            println!("{:>6}.{:06} ms  {:<5} {}", now / 1_000_000, now % 1_000_000, self.teller, what());
        }
    }
}

/// How often each thing happened: operations that completed, faults that fired.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Operations and what became of them.
    pub done: BTreeMap<&'static str, u64>,
    /// Faults that fired.
    pub faults: BTreeMap<&'static str, u64>,
}

impl Tally {
    /// Counts something done.
    pub(crate) fn did(&mut self, what: &'static str) {
        *self.done.entry(what).or_default() += 1;
    }

    /// Counts things done.
    pub(crate) fn done(&mut self, what: &'static str, times: u64) {
        *self.done.entry(what).or_default() += times;
    }

    /// Counts faults that fired.
    pub(crate) fn fault(&mut self, what: &'static str, times: u64) {
        *self.faults.entry(what).or_default() += times;
    }

    /// Adds the figures of another run.
    pub fn add(&mut self, other: &Tally) {
        for (mine, others) in [(&mut self.done, &other.done), (&mut self.faults, &other.faults)] {
            for (&what, times) in others {
                *mine.entry(what).or_default() += times;
            }
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (title, figures) in [("what was done", &self.done), ("faults that fired", &self.faults)] {
            writeln!(f, "{title}:")?;
            for (what, times) in figures {
                writeln!(f, "  {what:<32} {times:>12}")?;
            }
        }
        Ok(())
    }
}
