//! Waiting for a queue: a waiter first spins for a moment, since a completion often arrives soon.
//! Then it arms the queue, looks once more, and sleeps. The same for each face.

use core::time::Duration;

use platform::{Instant, Signal, Wake};

use crate::error::TimedOut;

/// How long a waiter spins before it sleeps.
pub const SPIN: Duration = Duration::from_micros(10);
/// How long a waiter of the API for Rust sleeps before it looks again: `Agent::close` wakes nobody.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

/// Waits until `look` returns something, or the deadline has passed; without one for ever. `arm`
/// has the next completion raise the signal. The times are when the call began, and the deadline.
/// `nap` is the longest sleep between two looks.
pub fn for_queue<T>(
    signal: &Signal,
    (begun, deadline): (Instant, Option<Instant>),
    nap: Option<Duration>,
    mut look: impl FnMut() -> Option<T>,
    arm: impl Fn(),
) -> Result<T, TimedOut> {
    let platform = signal.platform();
    let mut spins = true;
    loop {
        let seen = signal.value();
        if let Some(found) = look() {
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
        arm();
        // What was complete before the queue was armed is not announced.
        if let Some(found) = look() {
            return Ok(found);
        }
        if sleep(signal, seen, deadline, nap) == Wake::TimedOut {
            return look().ok_or(TimedOut);
        }
    }
}

/// Sleeps until the signal is raised or the deadline has passed, or, if that is earlier, for `nap`.
/// Only a deadline that has passed is a time-out.
pub(crate) fn sleep(signal: &Signal, seen: u32, deadline: Option<Instant>, nap: Option<Duration>) -> Wake {
    let latest = nap.and_then(|nap| signal.platform().now().checked_add(nap));
    let until = deadline.into_iter().chain(latest).min();
    match signal.wait(seen, until) {
        Wake::TimedOut if until != deadline => Wake::Woken,
        wake => wake,
    }
}
