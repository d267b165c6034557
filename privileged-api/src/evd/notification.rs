//! Notification objects: a kernel's equivalent of the file descriptor of IT_EVD_CREATE_FD (page
//! it_evd_create).
//!
//! A notification object is ready while its EVD is enabled and meets the notification criteria.
//! Checking it takes no event. A consumer polls it, waits for it, or registers a waker, so one loop
//! can serve many EVDs, IAs and other sources.
//!
//! Locks, outermost first: the EVD's control lock, its queue's lock. Wakers are called without
//! locks.

use alloc::sync::{Arc, Weak};
use core::future::{Future, poll_fn};
use core::sync::atomic::Ordering;
use core::task::{Context, Poll};
use core::time::Duration;

use platform::Wake;

use crate::attributes::TIMEOUT_INFINITE;
use crate::handle::EvdHandle;
use crate::ia::{Core, Ia};
use crate::objects::evd::{Evd, Notifier};
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
        self.evd.ready()
    }

    /// Waits until the object is ready. `timeout` is in microseconds: 0 only checks once,
    /// [`TIMEOUT_INFINITE`] sets no limit.
    ///
    /// Errors: `TimeoutExpired`; `Abort` if the event dispatcher or the IA was freed meanwhile.
    /// Blocks. Not for callbacks.
    pub fn wait(&self, timeout: u64) -> Result<()> {
        let core = self.core.upgrade().ok_or(Error::InvalidIa)?;
        core.shared.not_in_callback()?;
        core.still_live()?;
        let platform = core.shared.platform.clone();
        // A waiter must not keep the IA alive.
        drop(core);
        let deadline = match timeout {
            TIMEOUT_INFINITE => None,
            micros => platform.now().checked_add(Duration::from_micros(micros)),
        };
        let mut waited = false;
        loop {
            let seen = self.evd.signal.value();
            match self.is_ready() {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(Error::InvalidEvd | Error::InvalidIa) if waited => return Err(Error::Abort),
                Err(error) => return Err(error),
            }
            if waited && deadline.is_some_and(|deadline| platform.now() >= deadline) {
                return Err(Error::TimeoutExpired);
            }
            waited = true;
            let _: Wake = self.evd.signal.wait(seen, deadline);
        }
    }

    /// Returns what [`Notification::is_ready`] returns, and registers the task's waker, which is
    /// called when the object may have become ready. For one task at a time: a waker replaces the
    /// earlier one. Wakers are called in the agent's dispatcher thread and in consumers' calls, and
    /// must not wait.
    pub fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        let waker = context.waker().clone();
        // Clone and drop wakers without the lock, since both run the consumer's code.
        let before = match &mut self.evd.control.lock().notifier {
            Some(notifier) => notifier.waker.replace(waker),
            None => None,
        };
        drop(before);
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
        let notifier = {
            let mut control = self.evd.control.lock();
            if control.gone {
                return Err(Error::InvalidEvd);
            }
            let notifier = control.notifier.take().ok_or(Error::InvalidEvdState)?;
            self.evd.linked.store(control.aevd.is_some(), Ordering::Release);
            notifier
        };
        self.evd.wake();
        notifier.wake();
        Ok(())
    }
}

impl Notifier {
    /// Wakes the task that waits for the object, after the EVD was freed or the object was closed.
    pub(super) fn wake(self) {
        if let Some(waker) = self.waker {
            waker.wake();
        }
    }
}

impl Evd {
    /// Whether the notification object is ready. If it is not, arms the EVD, unless it is disabled.
    fn ready(&self) -> Result<bool> {
        let enabled = self.is_enabled();
        {
            let control = self.control.lock();
            if control.gone {
                return Err(Error::InvalidEvd);
            }
            let notifier = control.notifier.as_ref().ok_or(Error::InvalidEvdState)?;
            if !enabled && !notifier.kept {
                return Ok(false);
            }
        }
        let ready = self.watch();
        if !ready && !enabled {
            self.keep_ready(false);
        }
        Ok(ready)
    }

    /// Sets whether the object remains ready while the EVD is disabled.
    pub(super) fn keep_ready(&self, kept: bool) {
        if let Some(notifier) = &mut self.control.lock().notifier {
            notifier.kept = kept;
        }
    }

    /// Wakes the task that waits for the notification object.
    pub(crate) fn wake_task(&self) {
        let waker = self.control.lock().notifier.as_mut().and_then(|notifier| notifier.waker.take());
        if let Some(waker) = waker {
            waker.wake();
        }
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
        if evd.control.lock().notifier.is_none() {
            return Err(Error::InvalidEvdState);
        }
        Ok(Notification { core: Arc::downgrade(core), evd })
    }
}
