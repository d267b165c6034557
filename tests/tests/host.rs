//! The conformance suite on the host. Every test has machines of its own, one with one NIC and one
//! with two; the NICs are the device model in this process.
//!
//! `cargo test -p ferrovia-conformance --test host -- lmr link` runs the tests whose names contain
//! one of the words. (To filter the unit tests of a crate, name the crate:
//! `cargo test -p ferrovia-nic-model -- WORD`.)

extern crate ferrovia_conformance as conformance;

mod machine;
mod runner;

use std::process::ExitCode;
use std::sync::Arc;

use conformance::{Outcome, Test};
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
    runner::run_all("host", std::env::args().skip(1), &places, 2)
}

fn on_a_new_machine(test: &Test, nics: u8) -> Outcome {
    machine::run(test, Machine::new(nics), || HEAP.requests(), (false, false))
}
