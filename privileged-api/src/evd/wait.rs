//! Waiting for events (page it_evd_wait).
//!
//! A waiter first spins for a moment, since a completion often arrives soon. Then it arms the CQ,
//! checks the queue again, and sleeps on the EVD's signal.

use alloc::sync::Arc;
use core::time::Duration;

use kernel_agent::{Behind, Completion, TookAny};
use platform::planted::{Bug, planted};
use platform::{Instant, Wake};
use rdma::events::EventQueue;

use super::aggregate::{Aggregate, Look};
use super::dto;
use crate::attributes::TIMEOUT_INFINITE;
use crate::evd::forms::{Form, WaitFor};
use crate::event::Event;
use crate::handle::EvdHandle;
use crate::ia::{Core, Ia};
use crate::objects::evd::{Control, Evd};
use crate::status::Error;

/// How long a waiter spins before it sleeps.
const SPIN: Duration = Duration::from_micros(10);

/// The failure of an [`Ia::evd_wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitError {
    /// The reason.
    pub error: Error,
    /// The number of events that are queued. Defined only if the error is
    /// [`Error::TimeoutExpired`].
    pub nmore: usize,
}

impl core::fmt::Display for WaitError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} ({} events are queued)", self.error, self.nmore)
    }
}

impl core::error::Error for WaitError {}

impl From<WaitError> for Error {
    fn from(failure: WaitError) -> Error {
        failure.error
    }
}

impl From<Error> for WaitError {
    fn from(error: Error) -> WaitError {
        WaitError { error, nmore: 0 }
    }
}

impl PartialEq<Error> for WaitError {
    fn eq(&self, other: &Error) -> bool {
        self.error == *other
    }
}

/// Counts a waiter of the EVD until it is dropped.
struct Waiter<'a>(&'a Evd);

impl<'a> Waiter<'a> {
    fn enter(evd: &'a Evd, wait_for: WaitFor) -> Result<Waiter<'a>, Error> {
        let mut control = evd.control.lock();
        if control.gone {
            return Err(Error::InvalidEvd);
        }
        if control.callback.is_some() {
            return Err(Error::CallbackExists);
        }
        if evd.notifies_elsewhere(&control) {
            return Err(Error::InvalidEvdState);
        }
        let several = wait_for.is_for_several();
        // A simple EVD allows several waiters only if each waits for one event.
        if control.waiters > 0
            && (several || control.waits_for_several || evd.threshold() != 1 && evd.aggregate().is_none())
        {
            return Err(Error::WaiterLimit);
        }
        control.waiters += 1;
        control.waits_for_several = several;
        Ok(Waiter(evd))
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.control.lock().waiters -= 1;
    }
}

impl Ia {
    /// Waits until the event dispatcher notifies, and takes the oldest event. Returns the event and
    /// the number of events that are still queued.
    ///
    /// The call returns when a notification event is queued, or as many events as the threshold. On
    /// an aggregate, it returns when one of its enabled event dispatchers meets these criteria. An
    /// aggregate with [`EvdFlags::DEQUEUE_NOTIFICATIONS`](crate::EvdFlags::DEQUEUE_NOTIFICATIONS)
    /// returns a notification that names that event dispatcher; an aggregate without it returns the
    /// oldest event of that event dispatcher. In both cases the number is 0. A waiter that slept
    /// returns an event that arrived later, and does not repeat a notification that another waiter
    /// returned. `timeout` is in microseconds: 0 only checks once, [`TIMEOUT_INFINITE`] sets no
    /// limit. After `TimeoutExpired` the error holds the number of events that are queued.
    ///
    /// Errors: `WaiterLimit` (with a threshold other than one there can be only one waiter),
    /// `InvalidEvd`, `InvalidEvdState` (its events can be taken only from its aggregate; or it is
    /// enabled and feeds an aggregate or has a notification object, when the call begins or while
    /// it waits), `Abort` (the event dispatcher or the IA was freed meanwhile), `TimeoutExpired`,
    /// `CallbackExists`, `InvalidIa`, `IaCatastrophe`; `Interrupt` cannot happen, as kernel threads
    /// receive no POSIX signals. May block for a remote event. Not for callbacks. Thread-safe. Page
    /// it_evd_wait.
    #[doc(alias = "it_evd_wait")]
    pub fn evd_wait(&self, evd: EvdHandle, timeout: u64) -> Result<(Event, usize), WaitError> {
        self.wait(evd, WaitFor::Notification, timeout)
    }

    /// Waits for an event of any kind.
    #[inline(always)]
    pub(super) fn wait<F: Form>(
        &self,
        evd: EvdHandle,
        wait_for: WaitFor,
        timeout: u64,
    ) -> Result<(F, usize), WaitError> {
        let core = self.live()?;
        core.shared.not_in_callback()?;
        let evd = core.evds.get(evd).ok_or(Error::InvalidEvd)?;
        let _waiter = Waiter::enter(&evd, wait_for)?;
        if let Some(queue) = evd.simple().and_then(EventQueue::only_completions)
            && wait_for.is_any(evd.threshold())
        {
            let make = |taken: &Completion| F::completed(dto::success(taken, evd.handle), F::beside(taken));
            if let TookAny::Taken { value, behind, .. } = queue.take_success(make) {
                let nmore = if behind == Behind::Nothing { 0 } else { evd.len() };
                return Ok((value, nmore));
            }
        }
        self.wait_slow(core, &evd, wait_for, timeout)
    }

    /// Waits for an event that is not a success of a CQ.
    #[inline(never)]
    fn wait_slow<F: Form>(
        &self,
        core: &Arc<Core>,
        evd: &Evd,
        wait_for: WaitFor,
        timeout: u64,
    ) -> Result<(F, usize), WaitError> {
        let mut soft = None;
        if let Some(taken) = evd.take_if_due(wait_for, Look::All, &mut soft)
            && let Some(event) = core.event(evd, &taken, soft)
        {
            return Ok((event, evd.more(wait_for)));
        }
        self.wait_longer(core, evd, wait_for, timeout)
    }

    /// Goes on with a wait that found no event at first.
    #[inline(never)]
    fn wait_longer<F: Form>(
        &self,
        core: &Arc<Core>,
        evd: &Evd,
        wait_for: WaitFor,
        timeout: u64,
    ) -> Result<(F, usize), WaitError> {
        let now = core.shared.platform.now();
        let deadline = match timeout {
            TIMEOUT_INFINITE => None,
            micros => now.checked_add(Duration::from_micros(micros)),
        };
        let mut spin_until = now + SPIN;
        let mut look = Look::All;
        let take = |look| {
            let mut soft = None;
            let taken = evd.take_if_due(wait_for, look, &mut soft)?;
            Some((core.event(evd, &taken, soft)?, evd.more(wait_for)))
        };
        loop {
            let seen = evd.signal.value();
            if let Some(taken) = take(look) {
                return Ok(taken);
            }
            evd.still_waits()?;
            not_freed(core)?;
            if core.shared.platform.now() < spin_until {
                core::hint::spin_loop();
                if !passed(core, deadline) {
                    continue;
                }
            }
            if look == Look::All && evd.can_arm() {
                evd.arm();
                // An event that arrived before the EVD was armed is not announced.
                if !planted(Bug::WakeLost)
                    && let Some(taken) = take(look)
                {
                    return Ok(taken);
                }
            }
            if passed(core, deadline) || evd.signal.wait(seen, deadline) == Wake::TimedOut {
                return match take(look) {
                    Some(taken) => Ok(taken),
                    None => {
                        not_freed(core)?;
                        Err(WaitError { error: Error::TimeoutExpired, nmore: evd.more(wait_for) })
                    }
                };
            }
            if evd.aggregate().is_some_and(Aggregate::names) {
                look = Look::Notified;
            }
            spin_until = Instant::ZERO;
        }
    }
}

/// Fails unless the IA is enabled. A waiter may wake before its event dispatcher is freed with the
/// IA, so that only the IA's state says why.
fn not_freed(core: &Arc<Core>) -> Result<(), Error> {
    core.still_live().map_err(|error| if error == Error::InvalidIa { Error::Abort } else { error })
}

fn passed(core: &Arc<Core>, deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| core.shared.platform.now() >= deadline)
}

impl Evd {
    /// Whether the EVD notifies an aggregate or a notification object, so that no thread may wait
    /// on it.
    fn notifies_elsewhere(&self, control: &Control) -> bool {
        self.is_captive() || self.is_enabled() && (control.aevd.is_some() || control.notifier.is_some())
    }

    /// The number of events that a wait returns as still queued.
    fn more(&self, wait_for: WaitFor) -> usize {
        match wait_for {
            WaitFor::Notification => self.len(),
            WaitFor::Events(_) => self.total(),
        }
    }

    /// Fails if waiters of this EVD must return an error.
    fn still_waits(&self) -> Result<(), Error> {
        let control = self.control.lock();
        if control.gone {
            return Err(Error::Abort);
        }
        if self.notifies_elsewhere(&control) { Err(Error::InvalidEvdState) } else { Ok(()) }
    }
}
