//! Notification objects: a kernel's equivalent of the file descriptor of IT_EVD_CREATE_FD (page
//! it_evd_create).
//!
//! A notification object is ready while its EVD is enabled and in the notification criteria.
//! Reading it takes no event. An embedder polls it, waits for it, or has a waker called, so it fits
//! into a loop over many EVDs, IAs and other sources.
//!
//! Locks: the EVD's control lock, then its queue's. Wakers are called without locks.

use alloc::sync::{Arc, Weak};
use core::future::{Future, poll_fn};
use core::sync::atomic::Ordering;
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use platform::Wake;

use super::Evd;
use crate::attributes::TIMEOUT_INFINITE;
use crate::handle::EvdHandle;
use crate::ia::{Core, Ia};
use crate::status::{Error, Result};

/// The EVD's side of its notification object.
#[derive(Default)]
pub(super) struct Notifier {
    /// It was ready when the EVD was disabled, and remains ready until the criteria are absent.
    kept: bool,
    waker: Option<Waker>,
}

/// An object that is ready while an event dispatcher notifies: the equivalent of the file
/// descriptor of IT_EVD_CREATE_FD.
///
/// It belongs to one event dispatcher. It is ready while that is enabled and in the notification
/// criteria, until enough events were taken. If it was ready when the event dispatcher was
/// disabled, it also remains ready until then. A clone is the same object. It keeps neither the
/// event dispatcher nor the IA alive.
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
    /// The event dispatcher.
    pub fn evd(&self) -> EvdHandle {
        self.evd.handle
    }

    /// Whether it is ready. Does not block.
    pub fn is_ready(&self) -> Result<bool> {
        let core = self.core.upgrade().ok_or(Error::InvalidIa)?;
        core.still_live()?;
        self.evd.ready()
    }

    /// Waits until it is ready. `timeout` is in microseconds: 0 looks once, [`TIMEOUT_INFINITE`]
    /// waits without end.
    ///
    /// Errors: `TimeoutExpired`; `Abort` if the dispatcher or the IA was freed meanwhile. Blocks.
    /// Not for callbacks.
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

    /// As [`Notification::is_ready`]. If it is not ready, the task's waker is called when it may
    /// be. For one task at a time: only the last waker is called. Wakers are called in the agent's
    /// dispatcher thread and in consumers' calls, and must not wait.
    pub fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        let waker = context.waker().clone();
        // Cloned and dropped without the lock, as that runs the embedder's code.
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

    /// Completes when it is ready; one task at a time.
    pub fn ready(&self) -> impl Future<Output = Result<()>> + '_ {
        poll_fn(|context| self.poll_ready(context))
    }

    /// Separates it, and all its clones, from the event dispatcher:
    /// [`EvdFlags::CREATE_FD`](crate::EvdFlags::CREATE_FD) is cleared. Its waiters return
    /// `InvalidEvdState`. Does not block.
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
    /// Wakes its task.
    pub(super) fn wake(self) {
        if let Some(waker) = self.waker {
            waker.wake();
        }
    }
}

impl Evd {
    /// Whether the notification object is ready. If it is not, the next event is announced.
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

    /// Sets whether the object remains ready although the EVD is, or is about to be, disabled.
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
    /// The notification object of an event dispatcher that was created with
    /// [`EvdFlags::CREATE_FD`](crate::EvdFlags::CREATE_FD): the `fd` of it_evd_create and
    /// it_evd_query.
    ///
    /// Errors: `InvalidEvd`; `InvalidEvdState` (there is none, or it was closed); `InvalidIa`;
    /// `IaCatastrophe`. Does not block. May be called in callbacks. Thread-safe. Pages
    /// it_evd_create, it_evd_query.
    pub fn evd_notification(&self, evd: EvdHandle) -> Result<Notification> {
        let core = self.live()?;
        let evd = core.evd(evd)?;
        if evd.control.lock().notifier.is_none() {
            return Err(Error::InvalidEvdState);
        }
        Ok(Notification { core: Arc::downgrade(core), evd })
    }
}
