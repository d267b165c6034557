//! Which queue pairs have work, and which wait for a time.

use alloc::collections::{BTreeSet, VecDeque};

use platform::Instant;

use crate::NicId;
use crate::ids::QpId;
use crate::qp::Qp;

/// Queue pairs that have work, and queue pairs that wait for a time.
pub(crate) struct Schedule {
    /// The time of the present poll.
    pub now: Instant,
    /// Queue pairs that have work, each at most once: those with [`Qp::active`].
    active: VecDeque<QpId>,
    /// Queue pairs that wait, each at most once: those with [`Qp::deadline`].
    timers: BTreeSet<(Instant, QpId)>,
}

impl Schedule {
    pub const fn new() -> Schedule {
        Schedule { now: Instant::ZERO, active: VecDeque::new(), timers: BTreeSet::new() }
    }

    /// Queue pairs that have work.
    pub fn waiting(&self) -> usize {
        self.active.len()
    }

    /// Appends a queue pair to those that have work, unless it is among them.
    #[inline]
    pub fn activate(&mut self, qp: &mut Qp) {
        if !core::mem::replace(&mut qp.active, true) {
            self.active.push_back(qp.id);
        }
    }

    /// Takes the first of the queue pairs that have work. The caller clears its [`Qp::active`].
    #[inline]
    pub fn next(&mut self) -> Option<QpId> {
        self.active.pop_front()
    }

    /// Sets the timer of a queue pair.
    pub fn start_timer(&mut self, qp: &mut Qp, at: Instant) {
        self.stop_timer(qp);
        qp.deadline = Some(at);
        self.timers.insert((at, qp.id));
    }

    /// Clears the timer of a queue pair.
    pub fn stop_timer(&mut self, qp: &mut Qp) {
        if let Some(at) = qp.deadline.take() {
            self.timers.remove(&(at, qp.id));
        }
    }

    /// The earliest timer.
    pub fn deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Takes a queue pair whose time has come. The caller clears its [`Qp::deadline`].
    pub fn expired(&mut self) -> Option<QpId> {
        let (at, id) = *self.timers.first()?;
        if at > self.now {
            return None;
        }
        self.timers.pop_first();
        Some(id)
    }

    /// Removes a queue pair from both lists.
    pub fn remove(&mut self, qp: &mut Qp) {
        self.stop_timer(qp);
        if core::mem::take(&mut qp.active) {
            self.active.retain(|id| *id != qp.id);
        }
    }

    /// Removes all queue pairs of a NIC from both lists.
    pub fn remove_nic(&mut self, nic: NicId) {
        self.active.retain(|id| id.nic != nic);
        self.timers.retain(|(_, id)| id.nic != nic);
    }
}
