//! Waiting for a queue: a waiter first spins for a moment, since a completion often arrives soon.
//! Then it arms the queue, looks once more, and sleeps. The same for each face.

use core::time::Duration;

use platform::{Instant, Signal, Wake};

use crate::error::TimedOut;

/// How long a waiter spins before it sleeps.
pub const SPIN: Duration = Duration::from_micros(10);

/// Waits until `look` returns something, or the deadline has passed; without one for ever. `arm`
/// has the next completion raise the signal. The times are when the call began, and the deadline.
pub fn for_queue<T>(
    signal: &Signal,
    (begun, deadline): (Instant, Option<Instant>),
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
        if signal.wait(seen, deadline) == Wake::TimedOut {
            return look().ok_or(TimedOut);
        }
    }
}
