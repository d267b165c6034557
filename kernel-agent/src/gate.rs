//! Gates: the way to a queue by one lock and one comparison.
//!
//! A queue pair's send queue and a CQ's consumer each live in a gate. A gate may outlive what lives in it: whoever has objects with handles keeps one gate
//! for each index of its table, and has each object created in the gate of its index, with the handle as the pass. So
//! a handle leads to a gate that is always there, and whoever locks it sees at once whether the pass is right, and whether
//! there is anything to look at besides the queue: anything of that kind bars the way. Who finds it barred takes the long way, by the
//! object itself, and learns why.
//!
//! Locks: a gate's own (spins, leaf).

use alloc::sync::Arc;

use platform::sync::{Mutex, MutexGuard};

/// What no pass is.
const BARRED: u64 = u64::MAX;

/// The agent's reason to bar the way: the queue takes nothing now.
pub(crate) const CLOSED: u32 = 1;

/// The way to a queue. See [`crate::SendGate`] and [`crate::CqGate`].
pub struct Gate<T>(Mutex<Inside<T>>);

/// What is behind a gate.
pub(crate) struct Inside<T> {
    /// The pass while nothing bars the way, else [`BARRED`].
    open: u64,
    pass: u64,
    /// The reasons that bar the way, a bit each.
    bars: u32,
    /// Whose the content is.
    owner: u64,
    content: Option<T>,
}

impl<T> Default for Gate<T> {
    fn default() -> Gate<T> {
        Gate(Mutex::new(Inside { open: BARRED, pass: BARRED, bars: 0, owner: 0, content: None }))
    }
}

impl<T> Inside<T> {
    fn judge(&mut self) {
        self.open = if self.bars == 0 && self.content.is_some() { self.pass } else { BARRED };
    }

    /// The content, if `owner` is still its owner.
    #[inline]
    pub(crate) fn of(&mut self, owner: u64) -> Option<&mut T> {
        if self.owner == owner { self.content.as_mut() } else { None }
    }
}

/// Who is inside a gate.
pub(crate) struct Visit<'a, T>(MutexGuard<'a, Inside<T>>);

impl<T> Visit<'_, T> {
    #[inline(always)]
    pub(crate) fn content(&mut self) -> Option<&mut T> {
        self.0.content.as_mut()
    }
}

impl<T> Gate<T> {
    /// Goes in, if nothing bars the way and nobody is in it.
    #[inline(always)]
    pub(crate) fn enter(&self, pass: u64) -> Option<Visit<'_, T>> {
        let inside = self.0.try_lock()?;
        if inside.open == pass { Some(Visit(inside)) } else { None }
    }

    /// Bars the way for a reason (a bit that is not 1, which is the agent's), or lets go of that reason. `holds` is asked with the
    /// gate locked, so of several calls the last one is right. Does nothing for who has another pass.
    pub fn bar(&self, pass: u64, reason: u32, holds: impl FnOnce() -> bool) {
        let mut inside = self.0.lock();
        if inside.pass == pass {
            let holds = holds();
            inside.bars = if holds { inside.bars | reason } else { inside.bars & !reason };
            inside.judge();
        }
    }
}

/// Where the content of one object lives.
pub(crate) struct Place<T> {
    gate: Arc<Gate<T>>,
    owner: u64,
}

/// In which gate an object is created.
pub struct Admission<'a, T> {
    /// The gate. There must be nothing in it.
    pub gate: &'a Arc<Gate<T>>,
    /// Opens it; all bits set is none.
    pub pass: u64,
    /// Reasons for which it is barred at first.
    pub bars: u32,
}

impl<T> Clone for Admission<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Admission<'_, T> {}

impl<T> Place<T> {
    /// Moves in; `None` if somebody else lives there. Without an admission the gate is the owner's alone, and nobody enters.
    pub(crate) fn new(
        admission: Option<Admission<'_, T>>,
        owner: u64,
        bars: u32,
        content: T,
    ) -> Option<Place<T>> {
        let (gate, pass, more) = match admission {
            Some(Admission { gate, pass, bars }) => (gate.clone(), pass, bars),
            None => (Arc::default(), BARRED, 0),
        };
        let mut inside = gate.0.lock();
        if inside.content.is_some() {
            return None;
        }
        *inside = Inside { open: BARRED, pass, bars: bars | more, owner, content: Some(content) };
        inside.judge();
        drop(inside);
        Some(Place { gate, owner })
    }

    pub(crate) fn lock(&self) -> Lodger<'_, T> {
        Lodger { inside: self.gate.0.lock(), owner: self.owner }
    }

    /// Bars the way as [`Gate::bar`] does, for the agent's reason.
    pub(crate) fn close(&self, holds: impl FnOnce() -> bool) {
        let mut inside = self.gate.0.lock();
        if inside.owner == self.owner {
            let holds = holds();
            inside.bars = if holds { inside.bars | CLOSED } else { inside.bars & !CLOSED };
            inside.judge();
        }
    }

    /// Moves out.
    pub(crate) fn leave(&self) -> Option<T> {
        let mut inside = self.gate.0.lock();
        if inside.owner != self.owner {
            return None;
        }
        inside.owner = 0;
        inside.pass = BARRED;
        let content = inside.content.take();
        inside.judge();
        content
    }
}

/// The owner, in its place; the content may be gone.
pub(crate) struct Lodger<'a, T> {
    inside: MutexGuard<'a, Inside<T>>,
    owner: u64,
}

impl<T> Lodger<'_, T> {
    /// Bars the way for a reason, as [`Gate::bar`] does.
    pub(crate) fn bar(&mut self, reason: u32) {
        if self.content().is_some() {
            self.inside.bars |= reason;
            self.inside.judge();
        }
    }

    #[inline]
    pub(crate) fn content(&mut self) -> Option<&mut T> {
        self.inside.of(self.owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHERS: u32 = 2;

    fn admission(gate: &Arc<Gate<u8>>, pass: u64) -> Option<Admission<'_, u8>> {
        Some(Admission { gate, pass, bars: OTHERS })
    }

    #[test]
    fn the_way_is_open_when_nothing_bars_it() {
        let gate = Arc::default();
        let place = Place::new(admission(&gate, 7), 1, CLOSED, 5).unwrap();
        assert!(gate.enter(7).is_none());
        gate.bar(7, OTHERS, || false);
        assert!(gate.enter(7).is_none());
        place.close(|| false);
        assert_eq!(gate.enter(7).unwrap().content(), Some(&mut 5));
        assert!(gate.enter(8).is_none(), "another pass");
        let inside = gate.enter(7);
        assert!(gate.enter(7).is_none(), "one at a time");
        drop(inside);
        gate.bar(7, OTHERS, || true);
        assert!(gate.enter(7).is_none());
    }

    #[test]
    fn who_moved_out_has_no_say() {
        let gate = Arc::default();
        let former = Place::new(admission(&gate, 7), 1, 0, 5).unwrap();
        assert!(Place::new(admission(&gate, 8), 2, 0, 6).is_none(), "taken");
        assert_eq!(former.leave(), Some(5));
        assert!(gate.enter(7).is_none());
        let place = Place::new(admission(&gate, 8), 2, 0, 6).unwrap();
        gate.bar(8, OTHERS, || false);
        gate.bar(7, OTHERS, || true);
        former.close(|| true);
        assert_eq!((former.leave(), former.lock().content()), (None, None));
        assert_eq!(gate.enter(8).unwrap().content(), Some(&mut 6));
        assert_eq!(place.lock().content(), Some(&mut 6));
    }

    #[test]
    fn no_word_opens_a_gate_without_content() {
        let gate: Arc<Gate<u8>> = Arc::default();
        let place = Place::new(admission(&gate, 7), 1, 0, 5).unwrap();
        gate.bar(7, OTHERS, || false);
        place.leave();
        gate.bar(BARRED, OTHERS, || false);
        for pass in [0, 7, BARRED] {
            assert!(gate.enter(pass).is_none_or(|mut visit| visit.content().is_none()));
        }
    }
}
