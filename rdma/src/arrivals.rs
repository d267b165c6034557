//! What peers ask a listener for, until its consumer takes it.
//!
//! Locks: `queue` (spins, leaf).

use alloc::collections::VecDeque;
use core::task::Waker;

use platform::sync::Mutex;

use crate::error::CreateError;
use crate::nic::Inner as NicInner;
use crate::waiters::Waiters;
use crate::watch::Watch;

/// The most requests that wait at a listener. Those beyond are left to the peer's repetition.
const BACKLOG: usize = 128;

/// The requests that wait at a listener, and who waits for them.
pub(crate) struct Arrivals<T> {
    queue: Mutex<Backlog<T>>,
    /// Who waits for a request: [`Arrivals::wake`] has them look.
    pub(crate) waiters: Waiters,
    watch: Watch,
}

struct Backlog<T> {
    waiting: VecDeque<T>,
    /// The listener is dropped.
    is_closed: bool,
}

/// Why a request does not wait.
pub(crate) enum NotTaken {
    /// The consumer dropped the listener, so no call will take the request.
    Closed,
    /// Too many wait: the peer asks again.
    Full,
}

impl<T> Arrivals<T> {
    pub(crate) fn new(nic: &NicInner) -> Result<Arrivals<T>, CreateError> {
        let mut waiting = VecDeque::new();
        waiting.try_reserve_exact(BACKLOG)?;
        Ok(Arrivals {
            queue: Mutex::new(Backlog { waiting, is_closed: false }),
            waiters: Waiters::new(nic.agent().platform()),
            watch: Watch::new(),
        })
    }

    /// A request has come. In the dispatcher thread.
    pub(crate) fn add(&self, request: T) -> Result<(), NotTaken> {
        let mut queue = self.queue.lock();
        if queue.is_closed {
            return Err(NotTaken::Closed);
        }
        if queue.waiting.len() == BACKLOG {
            return Err(NotTaken::Full);
        }
        queue.waiting.push_back(request);
        drop(queue);
        self.wake();
        Ok(())
    }

    /// Takes the oldest request.
    pub(crate) fn take(&self) -> Option<T> {
        self.queue.lock().waiting.pop_front()
    }

    /// Removes requests that have been given up.
    pub(crate) fn retain(&self, stays: impl FnMut(&T) -> bool) {
        self.queue.lock().waiting.retain(stays);
    }

    /// From now on nothing is added.
    pub(crate) fn close(&self) {
        self.queue.lock().is_closed = true;
    }

    pub(crate) fn watch(&self, waker: Waker) {
        self.watch.set(waker);
    }

    /// Wakes all who wait.
    pub(crate) fn wake(&self) {
        self.waiters.wake();
        self.watch.wake();
    }
}
