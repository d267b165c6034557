//! The conformance suite on the host. Every test has machines of its own, one with one NIC and one
//! with two; the NICs are the device model in this process.
//!
//! `cargo test -p ferrovia-conformance --test host -- lmr link` runs the tests whose names contain
//! one of the words. (To filter the unit tests of a crate, name the crate:
//! `cargo test -p ferrovia-nic-model -- WORD`.)

extern crate ferrovia_conformance as conformance;

mod runner;

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use conformance::fixture::Usage;
use conformance::{Setup, Test};
use host::Machine;
use runner::{HEAP, Place};

/// The numbers of NICs with which each test runs. Miri is slow, so there it is only one number.
const NICS: &[u8] = if cfg!(miri) { &[2] } else { &[1, 2] };

fn main() -> ExitCode {
    let places: Vec<Place> = NICS
        .iter()
        .map(|&nics| Place {
            name: format!("{nics} NIC{}", if nics == 1 { "" } else { "s" }),
            run: Arc::new(move |test| on_a_new_machine(test, nics)),
        })
        .collect();
    runner::run_all("host", std::env::args().skip(1), &places)
}

fn on_a_new_machine(test: &Test, nics: u8) -> Result<(), String> {
    let machine = Machine::new(nics);
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
        requests: HEAP.requests(),
        waits: host::waits_of_this_thread(),
    });
    let setup = Setup::new(platform, privileged, devices, kill, usage).map_err(|e| e.to_string())?;
    let setup = Arc::new(setup);
    let outcome = conformance::run(test, &setup).map_err(|failure| failure.to_string());
    setup.close();
    outcome
}
