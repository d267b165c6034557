//! Regions that end while requests name them: those that were dropped, and those that are being
//! closed. Each waits for the requests that the endpoints had posted by then.
//!
//! Locks: `Dropped::waiting` and `Dropped::closers` (spin, leaves).

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::ops::Deref;

use kernel_agent::{Agent, Posted};
use platform::Platform;
use platform::planted::{Bug, planted};
use platform::sync::Mutex;
use platform::sync::atomic::{AtomicUsize, Ordering};

use crate::endpoint::Inner as Endpoint;
use crate::memory::{Memory, USERS, WorkQueue};
use crate::nic::Inner as NicInner;
use crate::queue::Inner as QueueInner;
use crate::waiters::Waiters;

/// What some requests are waited for by.
struct Use {
    endpoint: Weak<Endpoint>,
    work_queue: WorkQueue,
    posted: Posted,
    /// Where they end.
    queue: Weak<QueueInner>,
}

/// The end of all requests that name some memory: up to where the endpoints that used it had posted
/// when the region was dropped, or was to be closed.
pub(crate) struct Until {
    few: [Option<Use>; 2 * USERS],
    more: Vec<Use>,
}

impl Until {
    pub(crate) fn new() -> Until {
        Until { few: Default::default(), more: Vec::new() }
    }

    /// Adds an endpoint, unless its requests have ended. False if there is no memory.
    pub(crate) fn add(&mut self, endpoint: &Arc<Endpoint>, work_queue: WorkQueue) -> bool {
        let posted = endpoint.posted();
        if endpoint.is_past(work_queue, posted) {
            return true;
        }
        let queue = Arc::downgrade(endpoint.queue_of(work_queue));
        let one = Use { endpoint: Arc::downgrade(endpoint), work_queue, posted, queue };
        if let Some(place) = self.few.iter_mut().find(|place| place.is_none()) {
            *place = Some(one);
            return true;
        }
        let room = self.more.try_reserve(1).is_ok();
        if room {
            self.more.push(one);
        }
        room
    }

    fn all(&self) -> impl Iterator<Item = &Use> {
        self.few.iter().flatten().chain(&self.more)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.all().all(|Use { endpoint, work_queue, posted, .. }| {
            endpoint.upgrade().is_none_or(|endpoint| endpoint.is_past(*work_queue, *posted))
        })
    }

    /// The completion queues where the requests end.
    fn queues(&self) -> impl Iterator<Item = Arc<QueueInner>> {
        self.all().filter_map(|one| one.queue.upgrade())
    }

    /// Waits for the requests from now on: no poll takes their completions without a look at what
    /// waits.
    pub(crate) fn begin(self) -> Awaited {
        self.queues().for_each(|queue| queue.awaited(true));
        Awaited(self)
    }

    /// Takes what has completed on the endpoints' queues.
    pub(crate) fn drain(&self) {
        self.queues().for_each(|queue| queue.drain());
    }

    /// Has what completes next on the endpoints' queues announced.
    pub(crate) fn arm(&self) {
        self.queues().for_each(|queue| queue.arm());
    }
}

/// The end of requests for which a region waits. Dropping it ends the wait.
pub(crate) struct Awaited(Until);

impl Deref for Awaited {
    type Target = Until;

    fn deref(&self) -> &Until {
        &self.0
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.queues().for_each(|queue| queue.awaited(false));
    }
}

/// Memory of a dropped region.
struct Waiting {
    memory: Memory,
    until: Awaited,
}

/// Regions that were dropped while requests named them, and those that are being closed.
pub(crate) struct Dropped {
    /// How many were dropped.
    count: AtomicUsize,
    waiting: Mutex<Vec<Waiting>>,
    /// How many are being closed.
    closing: AtomicUsize,
    /// The threads and tasks that close them.
    pub(crate) closers: Waiters,
}

impl Dropped {
    pub(crate) fn new(platform: &Arc<dyn Platform>) -> Dropped {
        Dropped {
            count: AtomicUsize::new(0),
            waiting: Mutex::default(),
            closing: AtomicUsize::new(0),
            closers: Waiters::new(platform),
        }
    }

    /// Whether none waits that was dropped.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Counts a region that is being closed, or is not any more.
    pub(crate) fn closing(&self, begins: bool) {
        if begins {
            self.closing.fetch_add(1, Ordering::SeqCst);
        } else {
            self.closing.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Requests have ended: wakes who closes a region, to look whether it was waiting for these.
    pub(crate) fn wake_closers(&self) {
        if self.closing.load(Ordering::SeqCst) > 0 {
            self.closers.wake();
        }
    }

    /// Releases those that were dropped and whose requests have ended. Blocks for the device if
    /// there are any.
    #[cold]
    #[inline(never)]
    pub(crate) fn sweep(&self, agent: &Agent) {
        loop {
            let over = {
                let mut waiting = self.waiting.lock();
                let at = waiting.iter().position(|waiting| waiting.until.is_over());
                at.map(|at| waiting.swap_remove(at))
            };
            let Some(over) = over else { return };
            self.count.fetch_sub(1, Ordering::Relaxed);
            // If it fails the memory is kept.
            let _ = over.memory.release(agent);
        }
    }

    /// Releases all, when no endpoint is left.
    pub(crate) fn release_all(&self, agent: &Agent) {
        let all = core::mem::take(&mut *self.waiting.lock());
        self.count.fetch_sub(all.len(), Ordering::Relaxed);
        for waiting in all {
            let _ = waiting.memory.release(agent);
        }
    }

    /// Takes over the memory of a dropped region. Blocks for the device.
    pub(crate) fn take(&self, nic: &NicInner, memory: Memory) {
        if let Some(until) = memory.until(nic) {
            if until.is_over() || planted(Bug::RegionEarly) {
                let _ = memory.release(nic.agent());
                return;
            }
            let until = until.begin();
            let mut waiting = self.waiting.lock();
            if waiting.try_reserve(1).is_ok() {
                waiting.push(Waiting { memory, until });
                self.count.fetch_add(1, Ordering::Relaxed);
                drop(waiting);
                // The endpoint may have ended meanwhile, after its last look here.
                return self.sweep(nic.agent());
            }
        }
        log::warn!("out of memory: a region ends although requests name it");
        memory.release_in_use(nic.agent());
    }
}
