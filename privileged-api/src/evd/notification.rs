//! Notification objects: a kernel's equivalent of the file descriptor of IT_EVD_CREATE_FD (page
//! it_evd_create).
//!
//! A notification object is ready while its EVD is enabled and meets the notification criteria.
//! Checking it takes no event. A consumer polls it, waits for it, or registers a waker, so one loop
//! can serve many EVDs, IAs and other sources.
//!

use alloc::sync::{Arc, Weak};
use core::future::{Future, poll_fn};
use core::task::{Context, Poll};

use super::wait::times;
use crate::handle::EvdHandle;
use crate::ia::{Core, Ia};
use crate::objects::evd::Evd;
use crate::status::{Error, Result};

/// An object that is ready while an event dispatcher notifies: the equivalent of the file
/// descriptor of IT_EVD_CREATE_FD.
///
/// It belongs to one event dispatcher. It is ready while the event dispatcher is enabled and meets
/// the notification criteria. If it was ready when the event dispatcher was disabled, it remains
/// ready until so many events were taken that the criteria are absent. A clone is the same object.
/// The object keeps neither the event dispatcher nor the IA alive.
///
/// All methods return `InvalidEvd` once the event dispatcher is freed, `InvalidEvdState` once the
/// object is closed, `InvalidIa` and `IaCatastrophe`. All are thread-safe, and may be called in
/// callbacks unless they say otherwise.
#[derive(Clone)]
pub struct Notification {
    core: Weak<Core>,
    evd: Arc<Evd>,
}

impl Notification {
    /// The event dispatcher that the object belongs to.
    pub fn evd(&self) -> EvdHandle {
        self.evd.handle
    }

    /// Whether the object is ready. Does not block.
    pub fn is_ready(&self) -> Result<bool> {
        let core = self.core.upgrade().ok_or(Error::InvalidIa)?;
        core.still_live()?;
        Ok(self.evd.is_ready()?)
    }

    /// Waits until the object is ready. `timeout` is in microseconds: 0 only checks once,
    /// [`TIMEOUT_INFINITE`](crate::TIMEOUT_INFINITE) sets no limit.
    ///
    /// Errors: `TimeoutExpired`; `Abort` if the event dispatcher or the IA was freed meanwhile.
    /// Blocks. Not for callbacks.
    pub fn wait(&self, timeout: u64) -> Result<()> {
        let core = self.core.upgrade().ok_or(Error::InvalidIa)?;
        core.shared.not_in_callback()?;
        core.still_live()?;
        let times = times(&core.shared.platform, timeout);
        // A waiter must not keep the IA alive.
        drop(core);
        let mut waited = false;
        let look = |_| {
            let waited = core::mem::replace(&mut waited, true);
            match self.is_ready() {
                Ok(ready) => ready.then_some(Ok(())),
                Err(Error::InvalidEvd | Error::InvalidIa) if waited => Some(Err(Error::Abort)),
                Err(error) => Some(Err(error)),
            }
        };
        // To look arms the queue.
        rdma::wait::for_queue(self.evd.signal(), times, look, |_| ()).unwrap_or(Err(Error::TimeoutExpired))
    }

    /// Returns what [`Notification::is_ready`] returns, and registers the task's waker, which is
    /// called when the object may have become ready. For one task at a time: a waker replaces the
    /// earlier one. Wakers are called in the agent's dispatcher thread and in consumers' calls, and
    /// must not wait.
    pub fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.evd.set_task(context.waker().clone());
        match self.is_ready() {
            Ok(true) => Poll::Ready(Ok(())),
            Ok(false) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// A future that completes when the object is ready. For one task at a time.
    pub fn ready(&self) -> impl Future<Output = Result<()>> + '_ {
        poll_fn(|context| self.poll_ready(context))
    }

    /// Closes the object and all its clones. The event dispatcher's flag
    /// [`EvdFlags::CREATE_FD`](crate::EvdFlags::CREATE_FD) is cleared, and threads that wait for
    /// the object return `InvalidEvdState`. Does not block.
    pub fn close(&self) -> Result<()> {
        let core = self.core.upgrade().ok_or(Error::InvalidIa)?;
        core.still_live()?;
        Ok(self.evd.close_notifier()?)
    }
}

impl Ia {
    /// Returns the notification object of an event dispatcher that was created with
    /// [`EvdFlags::CREATE_FD`](crate::EvdFlags::CREATE_FD): the `fd` of it_evd_create and
    /// it_evd_query.
    ///
    /// Errors: `InvalidEvd`; `InvalidEvdState` (it has no notification object, or the object was
    /// closed); `InvalidIa`; `IaCatastrophe`. Does not block. May be called in callbacks.
    /// Thread-safe. Pages it_evd_create, it_evd_query.
    pub fn evd_notification(&self, evd: EvdHandle) -> Result<Notification> {
        let core = self.live()?;
        let evd = core.evd(evd)?;
        if !evd.has_notifier() {
            return Err(Error::InvalidEvdState);
        }
        Ok(Notification { core: Arc::downgrade(core), evd })
    }
}
