//! Which queue pairs have work, which wait for a time, and how much work a poll has done.
//!
//! Work is counted in units. A unit is a doorbell, a command, a step of a queue pair, or as much of
//! a larger piece of work as takes about as long: some hundred nanoseconds. A piece that counts as
//! many units ends the slice, and the poll, in which it was done, so that the clock and the control
//! pages are looked at again.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

use platform::Instant;

use crate::NicId;
use crate::ids::QpId;

/// The queue pairs of one NIC that have work, and those that wait for a time, by slot.
pub(crate) struct Lane {
    /// Queue pairs that have work, each at most once: those with `Qp::active`.
    pub active: VecDeque<u32>,
    /// Queue pairs that wait, each at most once: those with `Qp::deadline`.
    pub timers: BTreeSet<(Instant, u32)>,
}

/// Queue pairs that have work, queue pairs that wait for a time, and the work of the present poll.
pub(crate) struct Schedule {
    /// The time of the present poll.
    pub now: Instant,
    /// By NIC.
    lanes: Vec<Lane>,
    /// Units of work that this poll has done.
    done: u32,
    /// How many units end the poll.
    budget: u32,
    /// How many units end the present slice.
    slice: u32,
}

impl Schedule {
    pub const fn new() -> Schedule {
        Schedule { now: Instant::ZERO, lanes: Vec::new(), done: 0, budget: 0, slice: 0 }
    }

    /// Makes room for one more NIC.
    pub fn add_nic(&mut self) {
        self.lanes.push(Lane { active: VecDeque::new(), timers: BTreeSet::new() });
    }

    /// Begins a poll.
    pub fn begin(&mut self, now: Instant, budget: u32) {
        (self.now, self.done, self.budget) = (now, 0, budget);
    }

    /// Begins a slice of so many units.
    #[inline]
    pub fn begin_slice(&mut self, units: u32) {
        self.slice = self.done.saturating_add(units);
    }

    /// Counts work that was done.
    #[inline]
    pub fn charge(&mut self, units: u32) {
        self.done = self.done.saturating_add(units);
    }

    /// Whether the slice is over.
    #[inline]
    pub fn slice_is_over(&self) -> bool {
        self.done >= self.slice
    }

    /// Whether the poll is over.
    #[inline]
    pub fn poll_is_over(&self) -> bool {
        self.done >= self.budget
    }

    /// Units of work that this poll has done.
    pub fn done(&self) -> u32 {
        self.done
    }

    /// The lists of a NIC. A queue pair enters and leaves them by the methods in `qp::turns`, which
    /// keep the marks that the queue pair has of that.
    #[inline]
    pub fn lane(&mut self, nic: NicId) -> &mut Lane {
        &mut self.lanes[nic.index()]
    }

    /// Queue pairs of a NIC that have work.
    #[inline]
    pub fn waiting(&self, nic: NicId) -> usize {
        self.lanes[nic.index()].active.len()
    }

    /// Takes the first of a NIC's queue pairs that have work. The caller clears its `Qp::active`.
    #[inline]
    pub fn next(&mut self, nic: NicId) -> Option<QpId> {
        let slot = self.lane(nic).active.pop_front()?;
        Some(QpId { nic, slot })
    }

    /// The earliest timer.
    pub fn deadline(&self) -> Option<Instant> {
        self.lanes.iter().filter_map(|lane| lane.timers.first()).map(|(at, _)| *at).min()
    }

    /// Takes a queue pair of a NIC whose time has come. The caller clears its `Qp::deadline`.
    #[inline]
    pub fn expired(&mut self, nic: NicId) -> Option<QpId> {
        let now = self.now;
        let timers = &mut self.lane(nic).timers;
        let (at, slot) = *timers.first()?;
        if at > now {
            return None;
        }
        timers.pop_first();
        Some(QpId { nic, slot })
    }

    /// Removes all queue pairs of a NIC from both lists.
    pub fn remove_nic(&mut self, nic: NicId) {
        let lane = self.lane(nic);
        lane.active.clear();
        lane.timers.clear();
    }
}
