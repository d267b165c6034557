//! Fault injection, the device's benchmarks, and what only tests ask.

use nic_abi::admin::{Bench, Inject, Injection, Opcode};

use crate::admin::result;
use crate::{Error, Nic};

/// The test handle of one NIC, from [`Nic::testing`]. Consumers have no use for it.
///
/// [`TestHandle::inject`] and [`TestHandle::bench`] are commands to the device: they block for a
/// bounded time, and fail with [`Error::DeviceDead`] once the device is dead.
#[derive(Clone, Copy)]
pub struct TestHandle<'a>(&'a Nic);

impl Nic {
    /// The test handle.
    pub fn testing(&self) -> TestHandle<'_> {
        TestHandle(self)
    }
}

impl TestHandle<'_> {
    /// Makes the device misbehave. `object` is a queue pair's number where the fault is one of a
    /// queue pair; `count` and `value` mean what `what` says.
    pub fn inject(&self, object: u32, what: Injection, count: u32, value: u64) -> Result<(), Error> {
        let args = Inject { what: what as u32, count, value };
        self.0.command(Opcode::Inject, object, &args).map(|_| ())
    }

    /// Runs a benchmark in the device; returns the first word of its result.
    pub fn bench(&self, bench: &Bench) -> Result<u64, Error> {
        result(&self.0.command(Opcode::Bench, 0, bench)?)
    }

    /// How many buffers wait for a reset that the device confirms.
    pub fn quarantined(&self) -> usize {
        self.0.quarantined()
    }
}
