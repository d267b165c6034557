//! Runs a test on a machine of the host.

use std::sync::{Arc, Mutex, PoisonError};

use conformance::fixture::Usage;
use conformance::{Failure, Setup, Test, Transport};
use host::Machine;

/// Runs a test on a new machine. `requests` counts the requests to the heap that the test may not
/// make. The IAs are over `transport`; `proves` says whether tests prove what they need of it.
/// `packets` says whether the NICs exchange packets, and `is_lossy` whether their network loses
/// some.
pub fn run(
    test: &Test,
    machine: Machine,
    requests: fn() -> u64,
    (transport, proves): (Transport, bool),
    (packets, is_lossy): (bool, bool),
) -> Result<(), Failure> {
    let (platform, privileged, devices) = (machine.platform(), machine.privileged(), machine.transports());
    let arena = machine.arena().clone();
    let machine = Arc::new(Mutex::new(machine));
    let kill = {
        let machine = machine.clone();
        Box::new(move || machine.lock().unwrap_or_else(PoisonError::into_inner).kill())
    };
    // The heap is not counted here: the runner checks it after the machine is dropped.
    let usage = Box::new(move || Usage {
        heap: 0,
        dma: arena.lent(),
        requests: requests(),
        waits: host::waits_of_this_thread(),
    });
    let setup = Setup::new(platform, privileged, devices, kill, usage)?;
    let setup = Arc::new(setup.over(transport)?.proving(proves).by_packets(packets).lossy(is_lossy));
    let outcome = conformance::run(test, &setup);
    setup.close();
    outcome
}
