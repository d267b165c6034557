//! Waiting, the same for each face. Who waits for a queue first spins for a moment, since a
//! completion often arrives soon. Then it arms the queue, looks once more, and sleeps.

use core::fmt;
use core::time::Duration;

use platform::planted::{Bug, planted};
use platform::{Instant, Platform, Signal, Wake};

use crate::error::TimedOut;

/// How long a waiter spins before it sleeps.
pub const SPIN: Duration = Duration::from_micros(10);

/// The failure of a wait for an event, with a face's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitError<E> {
    /// The reason.
    pub error: E,
    /// The number of events that are queued. Defined only if the wait has timed out.
    pub nmore: usize,
}

impl<E: fmt::Display> fmt::Display for WaitError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} events are queued)", self.error, self.nmore)
    }
}

impl<E: fmt::Debug + fmt::Display> core::error::Error for WaitError<E> {}

impl<E> From<E> for WaitError<E> {
    fn from(error: E) -> WaitError<E> {
        WaitError { error, nmore: 0 }
    }
}

impl<E: PartialEq> PartialEq<E> for WaitError<E> {
    fn eq(&self, other: &E) -> bool {
        self.error == *other
    }
}

/// The moment at which a wait of this length ends; without a length it has no end.
pub fn deadline(platform: &dyn Platform, timeout: Option<Duration>) -> Option<Instant> {
    platform.now().checked_add(timeout?)
}

/// Waits until `look` returns something, which it looks for each time that the signal is raised, or
/// the deadline has passed; without one for ever.
pub fn until<T>(
    signal: &Signal,
    deadline: Option<Instant>,
    mut look: impl FnMut() -> Option<T>,
) -> Result<T, TimedOut> {
    loop {
        let seen = signal.value();
        if let Some(found) = look() {
            return Ok(found);
        }
        let passed = deadline.is_some_and(|deadline| signal.platform().now() >= deadline);
        if passed || signal.wait(seen, deadline) == Wake::TimedOut {
            return look().ok_or(TimedOut);
        }
    }
}

/// Waits until `look` returns something, or the deadline has passed; without one for ever. `arm`
/// has the next completion raise the signal. Both are told whether the thread has slept. The times
/// are when the call began, and the deadline.
pub fn for_queue<T>(
    signal: &Signal,
    (begun, deadline): (Instant, Option<Instant>),
    mut look: impl FnMut(bool) -> Option<T>,
    arm: impl Fn(bool),
) -> Result<T, TimedOut> {
    let platform = signal.platform();
    let (mut spins, mut slept) = (true, false);
    loop {
        let seen = signal.value();
        if let Some(found) = look(slept) {
            return Ok(found);
        }
        if deadline.is_some_and(|deadline| platform.now() >= deadline) {
            return Err(TimedOut);
        }
        if spins {
            spins = platform.now() < begun + SPIN;
            core::hint::spin_loop();
            continue;
        }
        arm(slept);
        // What was complete before the queue was armed is not announced.
        if !planted(Bug::WakeLost)
            && let Some(found) = look(slept)
        {
            return Ok(found);
        }
        if signal.wait(seen, deadline) == Wake::TimedOut {
            return look(slept).ok_or(TimedOut);
        }
        slept = true;
    }
}
