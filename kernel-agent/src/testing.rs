//! Fault injection, the device's benchmarks, and what only tests ask.

use nic_abi::admin::{Bench, Injection};

use crate::{Agent, Error};

/// The test handle of one agent, from [`Agent::test_handle`]. Consumers have no use for it.
///
/// [`TestHandle::inject`] and [`TestHandle::bench`] are commands to the device: they block for a
/// bounded time, and fail with [`Error::DeviceDead`] once the device is dead.
#[derive(Clone, Copy)]
pub struct TestHandle<'a>(nic_hal::TestHandle<'a>);

impl Agent {
    /// The test handle.
    pub fn test_handle(&self) -> TestHandle<'_> {
        TestHandle(self.nic().testing())
    }
}

impl TestHandle<'_> {
    /// Makes the device misbehave. `object` is a queue pair's number where the fault is one of a
    /// queue pair; `count` and `value` mean what `what` says.
    pub fn inject(&self, object: u32, what: Injection, count: u32, value: u64) -> Result<(), Error> {
        Ok(self.0.inject(object, what, count, value)?)
    }

    /// Runs a benchmark in the device; returns the first word of its result.
    pub fn bench(&self, bench: &Bench) -> Result<u64, Error> {
        Ok(self.0.bench(bench)?)
    }

    /// How many buffers wait for a reset that the device confirms.
    pub fn quarantined(&self) -> usize {
        self.0.quarantined()
    }
}
