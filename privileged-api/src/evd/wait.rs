//! Waiting for events (page it_evd_wait).
//!
//! A waiter looks, arms the CQ, looks again and then sleeps on the dispatcher's signal word. In between it spins for a
//! moment, since a completion is often under way.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use core::time::Duration;

use platform::{Instant, Wake};

use super::{Evd, Queue, dto};
use crate::attributes::TIMEOUT_INFINITE;
use crate::event::{DtoStatus, Event};
use crate::handle::EvdHandle;
use crate::ia::{Core, Ia};
use crate::status::Error;

/// How long a waiter spins before it sleeps.
const SPIN: Duration = Duration::from_micros(10);

/// A failed [`Ia::evd_wait`]: why, and (after a timeout) how many events are queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitError {
    /// Why.
    pub error: Error,
    /// Events queued; defined after [`Error::TimeoutExpired`].
    pub nmore: usize,
}

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

/// Counts a waiter while it lives.
struct Waiter<'a>(&'a Evd);

impl<'a> Waiter<'a> {
    fn enter(evd: &'a Evd) -> Result<Waiter<'a>, Error> {
        let mut control = evd.control.lock();
        if control.gone {
            return Err(Error::InvalidEvd);
        }
        if control.callback.is_some() {
            return Err(Error::CallbackExists);
        }
        // Only a threshold of one allows several waiters.
        if control.waiters > 0 && evd.threshold() != 1 {
            return Err(Error::WaiterLimit);
        }
        control.waiters += 1;
        Ok(Waiter(evd))
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.control.lock().waiters -= 1;
    }
}

impl Ia {
    /// Waits until the dispatcher notifies, and takes the oldest event. Returns it with the number of events that are still queued.
    ///
    /// It returns when a notification event is queued or as many events as the threshold says. `timeout` is in microseconds:
    /// 0 looks once, [`TIMEOUT_INFINITE`] waits without end. After `TimeoutExpired` the error holds the number of events that are queued.
    ///
    /// Errors: `WaiterLimit` (with a threshold other than one, one waiter is all), `InvalidEvd`, `Abort` (the dispatcher or the IA was freed meanwhile),
    /// `TimeoutExpired`, `CallbackExists`, `InvalidIa`, `IaCatastrophe`. May block for a remote event. Not for callbacks. Thread-safe. Page it_evd_wait.
    #[doc(alias = "it_evd_wait")]
    pub fn evd_wait(&self, evd: EvdHandle, timeout: u64) -> Result<(Event, usize), WaitError> {
        let core = self.live()?;
        core.shared.not_in_callback()?;
        let evd = core.evds.get(evd.as_raw()).ok_or(Error::InvalidEvd)?;
        let _waiter = Waiter::enter(&evd)?;
        let now = core.shared.platform.now();
        let deadline = match timeout {
            TIMEOUT_INFINITE => None,
            micros => now.checked_add(Duration::from_micros(micros)),
        };
        let mut spin_until = now + SPIN;
        loop {
            let seen = evd.signal.load(Ordering::Acquire);
            if let Some(event) = evd.take_if_notified(core) {
                return Ok((event, evd.len()));
            }
            if evd.control.lock().gone {
                return Err(Error::Abort.into());
            }
            core.still_live()?;
            if core.shared.platform.now() < spin_until {
                core::hint::spin_loop();
                if !passed(core, deadline) {
                    continue;
                }
            }
            if let Queue::Dto(queue) = &evd.queue {
                queue.arm();
                // What came before the CQ was armed is not told.
                if let Some(event) = evd.take_if_notified(core) {
                    return Ok((event, evd.len()));
                }
            }
            if passed(core, deadline)
                || core.shared.platform.wait(&evd.signal, seen, deadline) == Wake::TimedOut
            {
                return match evd.take_if_notified(core) {
                    Some(event) => Ok((event, evd.len())),
                    None => {
                        core.still_live()?;
                        Err(WaitError { error: Error::TimeoutExpired, nmore: evd.len() })
                    }
                };
            }
            spin_until = Instant::ZERO;
        }
    }
}

fn passed(core: &Arc<Core>, deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| core.shared.platform.now() >= deadline)
}

impl Evd {
    /// Takes the oldest event if the notification criteria are present.
    fn take_if_notified(&self, core: &Core) -> Option<Event> {
        let queue = match &self.queue {
            Queue::Soft(queue) => return self.take_soft(queue),
            Queue::Dto(queue) => queue,
        };
        let completion = match self.threshold() {
            1 => queue.take()?,
            threshold => queue.take_if_notified(threshold)?,
        };
        let event = dto::event(&completion, self.handle, &core.owners);
        if event.dto_status != DtoStatus::Success {
            core.failed(&completion);
        }
        Some(Event::Dto(event))
    }
}
