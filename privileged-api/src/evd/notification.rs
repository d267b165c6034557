//! Notification objects: what a kernel has where others have file descriptors (IT_EVD_CREATE_FD of page it_evd_create).
//!
//! One is ready while its dispatcher, enabled, is in the notification criteria; reading it takes nothing away. An embedder looks
//! at it, waits for it, or has a waker called: so it fits into a loop over many dispatchers, IAs and other sources.
//!
//! Locks: the dispatcher's control lock, then its queue's. Wakers are called without any.

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

/// The dispatcher's side of its notification object.
#[derive(Default)]
pub(super) struct Notifier {
    /// It was ready when the dispatcher was disabled, and stays so until the criteria are absent.
    kept: bool,
    waker: Option<Waker>,
}

/// An object that is ready while an event dispatcher notifies; stands for the file descriptor of IT_EVD_CREATE_FD.
///
/// It belongs to one dispatcher and is ready while that is enabled and in the notification criteria, until so many events have been
/// taken that it is not. What made it ready before the dispatcher was disabled keeps it ready until then, too. Cloning it makes another name for
/// the same object. It keeps neither the dispatcher nor the IA.
///
/// All methods return `InvalidEvd` once the dispatcher is freed, `InvalidEvdState` once the object is closed, `InvalidIa` and `IaCatastrophe`.
/// All are thread-safe, and may be called in callbacks unless they say otherwise.
#[derive(Clone)]
pub struct Notification {
    core: Weak<Core>,
    evd: Arc<Evd>,
}

impl Notification {
    /// The dispatcher.
    pub fn evd(&self) -> EvdHandle {
        self.evd.handle
    }

    /// Whether it is ready. Does not block.
    pub fn is_ready(&self) -> Result<bool> {
        let core = self.core.upgrade().ok_or(Error::InvalidIa)?;
        core.still_live()?;
        self.evd.ready()
    }

    /// Waits until it is ready. `timeout` is in microseconds: 0 looks once, [`TIMEOUT_INFINITE`] waits without end.
    ///
    /// Errors: `TimeoutExpired`; `Abort` if the dispatcher or the IA was freed meanwhile. Blocks. Not for callbacks.
    pub fn wait(&self, timeout: u64) -> Result<()> {
        let core = self.core.upgrade().ok_or(Error::InvalidIa)?;
        core.shared.not_in_callback()?;
        core.still_live()?;
        let platform = core.shared.platform.clone();
        // Who waits must not keep the IA.
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

    /// As [`Notification::is_ready`]; if it is not, the task's waker is called when it is worth another look. One task at a time:
    /// the last waker counts. Wakers are called in dispatcher threads and in calls of consumers, and must not wait.
    pub fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        let waker = context.waker().clone();
        // Cloned and dropped without the lock: it is the embedder's code.
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

    /// Parts it from the dispatcher, for all its names: [`EvdFlags::CREATE_FD`](crate::EvdFlags::CREATE_FD) is cleared. Who waits for it
    /// returns `InvalidEvdState`. Does not block.
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
    /// Has its task look again.
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

    /// It is about to be disabled: what notified before stays (or no longer does).
    pub(super) fn keep_ready(&self, kept: bool) {
        if let Some(notifier) = &mut self.control.lock().notifier {
            notifier.kept = kept;
        }
    }

    /// Has the task that waits for the notification object look again.
    pub(crate) fn wake_task(&self) {
        let waker = self.control.lock().notifier.as_mut().and_then(|notifier| notifier.waker.take());
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Ia {
    /// The notification object of a dispatcher that was created with [`EvdFlags::CREATE_FD`](crate::EvdFlags::CREATE_FD): what it_evd_create and
    /// it_evd_query give as `fd`.
    ///
    /// Errors: `InvalidEvd`; `InvalidEvdState` (there is none, or it was closed); `InvalidIa`; `IaCatastrophe`. Does not block. May be called in
    /// callbacks. Thread-safe. Pages it_evd_create, it_evd_query.
    pub fn evd_notification(&self, evd: EvdHandle) -> Result<Notification> {
        let core = self.live()?;
        let evd = core.evd(evd)?;
        if evd.control.lock().notifier.is_none() {
            return Err(Error::InvalidEvdState);
        }
        Ok(Notification { core: Arc::downgrade(core), evd })
    }
}
