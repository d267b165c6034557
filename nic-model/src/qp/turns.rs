//! How a queue pair enters and leaves the lists of the schedule.

use platform::Instant;

use super::Qp;
use crate::schedule::Schedule;

/// Places of a list that are searched in a unit of work.
const QUEUED: usize = 256;

impl Schedule {
    /// Appends a queue pair to those that have work, unless it is among them.
    #[inline]
    pub fn activate(&mut self, qp: &mut Qp) {
        if !core::mem::replace(&mut qp.active, true) {
            self.lane(qp.id.nic).active.push_back(qp.id.slot);
        }
    }

    /// Sets the timer of a queue pair.
    pub fn start_timer(&mut self, qp: &mut Qp, at: Instant) {
        self.stop_timer(qp);
        qp.deadline = Some(at);
        self.lane(qp.id.nic).timers.insert((at, qp.id.slot));
    }

    /// Clears the timer of a queue pair.
    pub fn stop_timer(&mut self, qp: &mut Qp) {
        if let Some(at) = qp.deadline.take() {
            self.lane(qp.id.nic).timers.remove(&(at, qp.id.slot));
        }
    }

    /// Removes a queue pair from both lists.
    pub fn remove(&mut self, qp: &mut Qp) {
        self.stop_timer(qp);
        if core::mem::take(&mut qp.active) {
            let waiting = self.waiting(qp.id.nic);
            self.charge((waiting / QUEUED) as u32);
            self.lane(qp.id.nic).active.retain(|slot| *slot != qp.id.slot);
        }
    }
}

impl Qp {
    /// Continues: the peer for whose MAC the queue pair waited has one, or did not answer.
    pub fn neighbour_settled(&mut self, schedule: &mut Schedule, found: bool) {
        (self.unresolved, self.unreached) = (false, !found);
        if let Some(requests) = &mut self.requests {
            requests.restart();
        }
        schedule.activate(self);
    }
}
