//! Threads and tasks that wait for one thing.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::task::{Context, Poll, Waker};

use platform::sync::Mutex;
use platform::{Instant, Platform, Signal};

use crate::error::TimedOut;
use crate::wait;

/// Those who wait. Whoever changes the thing calls [`Waiters::wake`] afterwards.
pub(crate) struct Waiters {
    signal: Signal,
    /// Who wakes the tasks takes them all out of the lock first.
    tasks: Mutex<Vec<Waker>>,
}

impl Waiters {
    /// Nobody waits.
    pub(crate) fn new(platform: &Arc<dyn Platform>) -> Waiters {
        Waiters { signal: Signal::new(platform.clone()), tasks: Mutex::default() }
    }

    /// What the threads sleep on.
    pub(crate) fn signal(&self) -> &Signal {
        &self.signal
    }

    /// Has all look again. The caller holds no lock.
    pub(crate) fn wake(&self) {
        self.signal.raise();
        self.wake_tasks(|_| ());
    }

    /// Has the tasks look again; `before` is told how many. The caller holds no lock.
    pub(crate) fn wake_tasks(&self, before: impl FnOnce(usize)) {
        let tasks = core::mem::take(&mut *self.tasks.lock());
        before(tasks.len());
        tasks.into_iter().for_each(Waker::wake);
    }

    /// Blocks until `look` returns something, which it looks for after each change, or the deadline
    /// has passed.
    pub(crate) fn wait_for<T>(
        &self,
        deadline: Option<Instant>,
        look: impl FnMut() -> Option<T>,
    ) -> Result<T, TimedOut> {
        wait::until(&self.signal, deadline, look)
    }

    /// Has a task woken at the next change; false if it is there already. Without memory for it, it
    /// is woken at once, so that it looks again.
    pub(crate) fn add(&self, task: Waker) -> bool {
        {
            let mut tasks = self.tasks.lock();
            if tasks.iter().any(|other| other.will_wake(&task)) {
                return false;
            }
            if tasks.try_reserve(1).is_ok() {
                tasks.push(task);
                return true;
            }
        }
        task.wake();
        false
    }

    /// Looks, and has the task woken at the next change if there is nothing.
    pub(crate) fn poll<T>(&self, context: &Context<'_>, mut look: impl FnMut() -> Option<T>) -> Poll<T> {
        if let Some(found) = look() {
            return Poll::Ready(found);
        }
        self.add(context.waker().clone());
        look().map_or(Poll::Pending, Poll::Ready)
    }
}
