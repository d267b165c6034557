//! Tasks that wait for one thing, of whatever number.

use alloc::vec::Vec;
use core::task::Waker;

/// The tasks. Whoever wakes them takes them all out of their lock first.
#[derive(Default)]
pub(crate) struct Wakers(Vec<Waker>);

impl Wakers {
    /// Adds a task, unless it is there. Without memory for it the task is returned: wake it at
    /// once, so that it looks again.
    pub(crate) fn add(&mut self, task: Waker) -> Result<bool, Waker> {
        if self.0.iter().any(|other| other.will_wake(&task)) {
            return Ok(false);
        }
        if self.0.try_reserve(1).is_err() {
            return Err(task);
        }
        self.0.push(task);
        Ok(true)
    }

    /// Takes all tasks out.
    pub(crate) fn take(&mut self) -> Wakers {
        core::mem::take(self)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Wakes them. The caller holds no lock.
    pub(crate) fn wake(self) {
        self.0.into_iter().for_each(Waker::wake);
    }
}
