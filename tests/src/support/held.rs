//! Work that a test does while the device executes nothing.

use core::result::Result;

use nic_abi::admin::Injection;

use crate::Failure;
use crate::fixture::Fixture;

/// Ends a hold, also if the work panics.
struct Hold<'a>(&'a Fixture);

impl Hold<'_> {
    #[track_caller]
    fn set(&self, held: bool) -> Result<(), Failure> {
        self.0.inject(0, Injection::Hold, 1, held.into())
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let _ = self.set(false);
    }
}

impl Fixture {
    /// Does this work while `a`'s NIC gives no queue pair a turn: what the work posts is
    /// outstanding when it returns, and the NIC can execute all of it from one moment on. The NIC
    /// goes on afterwards, whatever the outcome. `work` must not wait for a completion.
    #[track_caller]
    pub fn held<T>(&self, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        let hold = Hold(self);
        hold.set(true)?;
        let done = work();
        hold.set(false)?;
        done
    }
}
