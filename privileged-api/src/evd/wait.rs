//! Waiting for events (page it_evd_wait).

use alloc::sync::Arc;
use core::time::Duration;

use kernel_agent::{Behind, Completion, TookAny};
use platform::{Instant, Platform};
use rdma::events::{EventQueue, Refused, Waiter};

use super::aggregate::{Aggregate, Look};
use super::attached::EvdCallback;
use super::dto;
use crate::attributes::TIMEOUT_INFINITE;
use crate::evd::forms::{Form, WaitFor};
use crate::event::Event;
use crate::handle::EvdHandle;
use crate::ia::{Core, Ia};
use crate::objects::evd::{Evd, Feed, Queue};
use crate::status::Error;

/// The failure of an [`Ia::evd_wait`].
pub type WaitError = rdma::wait::WaitError<Error>;

impl From<WaitError> for Error {
    fn from(failure: WaitError) -> Error {
        failure.error
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
        // One event of a simple EVD ends a wait if its threshold is 1.
        let criteria_share = || evd.threshold() == 1 || evd.aggregate().is_some();
        let waiter = evd.enter(wait_for.is_for_several(), criteria_share).map_err(Error::from)?;
        if let Some(queue) = evd.queue().simple().and_then(EventQueue::only_completions)
            && wait_for.is_any(evd.threshold())
        {
            let make = |taken: &Completion| F::completed(dto::success(taken, evd.handle), F::beside(taken));
            if let TookAny::Taken { value, behind, .. } = queue.take_success(make) {
                let nmore = if behind == Behind::Nothing { 0 } else { evd.len() };
                return Ok((value, nmore));
            }
        }
        wait_slow(core, &evd, &waiter, wait_for, timeout)
    }
}

/// Waits for an event that is not a success of a CQ.
#[inline(never)]
fn wait_slow<F: Form>(
    core: &Arc<Core>,
    evd: &Evd,
    waiter: &Waiter<'_, Queue, EvdCallback, Feed>,
    wait_for: WaitFor,
    timeout: u64,
) -> Result<(F, usize), WaitError> {
    let take = |look| {
        let mut soft = None;
        let taken = evd.take_if_due(wait_for, look, &mut soft)?;
        Some((core.event(evd, &taken, soft)?, evd.more(wait_for)))
    };
    if let Some(taken) = take(Look::All) {
        return Ok(taken);
    }
    let names = evd.aggregate().is_some_and(Aggregate::names);
    let look = |slept| match take(if slept && names { Look::Notified } else { Look::All }) {
        Some(taken) => Some(Ok(taken)),
        None => not_freed(core).err().map(Err),
    };
    waiter.wait(times(&core.shared.platform, timeout), !names, look).map_err(|error| {
        let nmore = if error == Error::TimeoutExpired { evd.more(wait_for) } else { 0 };
        WaitError { error, nmore }
    })
}

/// When a wait of so many microseconds begins and ends.
pub(super) fn times(platform: &Arc<dyn Platform>, timeout: u64) -> (Instant, Option<Instant>) {
    let length = (timeout != TIMEOUT_INFINITE).then(|| Duration::from_micros(timeout));
    (platform.now(), rdma::wait::deadline(&**platform, length))
}

/// Fails unless the IA is enabled. A waiter may wake before its event dispatcher is freed with the
/// IA, so that only the IA's state says why.
fn not_freed(core: &Core) -> Result<(), Error> {
    core.still_live().map_err(|error| if error == Error::InvalidIa { Error::Abort } else { error })
}

impl Evd {
    /// The number of events that a wait returns as still queued.
    fn more(&self, wait_for: WaitFor) -> usize {
        match wait_for {
            WaitFor::Notification => self.len(),
            WaitFor::Events(_) => self.total(),
        }
    }
}

impl From<Refused> for Error {
    fn from(why: Refused) -> Error {
        match why {
            Refused::Gone => Error::InvalidEvd,
            Refused::Closed => Error::Abort,
            Refused::Callback => Error::CallbackExists,
            Refused::Elsewhere | Refused::NoNotifier => Error::InvalidEvdState,
            Refused::Waiters => Error::WaiterLimit,
            Refused::TimedOut => Error::TimeoutExpired,
        }
    }
}
