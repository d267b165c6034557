//! Waiting for a queue.
//!
//! A waiter first spins for a moment, since a completion often arrives soon. Then it arms the
//! queue, looks once more, and sleeps.

use alloc::sync::Arc;
use core::time::Duration;

use platform::{Instant, Platform, Signal, Wake};

use crate::error::{Error, Result};

/// A timeout without end.
#[doc(alias = "VIP_INFINITE")]
pub const INFINITE: u32 = u32::MAX;

/// How long a waiter spins before it sleeps.
const SPIN: Duration = Duration::from_micros(10);

/// When a call gives up.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    /// Never, if there is none.
    pub(crate) at: Option<Instant>,
    begun: Instant,
}

impl Deadline {
    /// So many milliseconds from now; for [`INFINITE`] never.
    pub(crate) fn after(platform: &Arc<dyn Platform>, timeout: u32) -> Deadline {
        let begun = platform.now();
        let at = match timeout {
            INFINITE => None,
            millis => begun.checked_add(Duration::from_millis(millis.into())),
        };
        Deadline { at, begun }
    }

    /// Whether it has passed.
    pub(crate) fn passed(&self, platform: &Arc<dyn Platform>) -> bool {
        self.at.is_some_and(|at| platform.now() >= at)
    }
}

/// Waits until `take` returns an item or an error.
pub(crate) fn wait<T>(
    signal: &Signal,
    deadline: Deadline,
    take: impl Fn() -> Result<Option<T>>,
    arm: impl Fn(),
) -> Result<T> {
    let platform = signal.platform();
    let mut spins = true;
    loop {
        let seen = signal.value();
        if let Some(taken) = take()? {
            return Ok(taken);
        }
        if deadline.passed(platform) {
            return Err(Error::Timeout);
        }
        if spins {
            spins = platform.now() < deadline.begun + SPIN;
            core::hint::spin_loop();
            continue;
        }
        arm();
        // What was complete before the queue was armed is not announced.
        if let Some(taken) = take()? {
            return Ok(taken);
        }
        if signal.wait(seen, deadline.at) == Wake::TimedOut {
            return take()?.ok_or(Error::Timeout);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use core::cell::Cell;

    use host::Machine;

    use super::*;

    #[test]
    fn a_waiter_spins_for_a_moment_only() {
        let platform = Machine::new(0).platform();
        let signal = Signal::new(platform.clone());
        let deadline = Deadline::after(&platform, 30);
        std::thread::sleep(10 * SPIN);
        let (looks, armed) = (Cell::new(0), Cell::new(0));
        let take = || {
            looks.set(looks.get() + 1);
            Ok::<Option<()>, _>(None)
        };
        assert_eq!(wait(&signal, deadline, take, || armed.set(armed.get() + 1)), Err(Error::Timeout));
        assert!(armed.get() == 1 && looks.get() < 10, "{} and {}", armed.get(), looks.get());
    }
}
