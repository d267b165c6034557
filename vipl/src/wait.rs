//! Waiting for a queue, as VIPL's calls do. [`rdma::wait`] has the loop.

use alloc::sync::Arc;
use core::time::Duration;

use platform::{Instant, Platform, Signal};

use crate::error::{Error, Result};

/// A timeout without end.
#[doc(alias = "VIP_INFINITE")]
pub const INFINITE: u32 = u32::MAX;

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
    let times = (deadline.begun, deadline.at);
    let look = |_| take().transpose();
    rdma::wait::for_queue(signal, times, look, |_| arm()).unwrap_or(Err(Error::Timeout))
}

#[cfg(test)]
mod tests {
    extern crate std;

    use core::cell::Cell;

    use host::Machine;
    use rdma::wait::SPIN;

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
