//! The conformance suite on the host. Every test has machines of its own, one with one NIC and one
//! with two; the NICs are the device model in this process. The tests of no transport run twice on
//! each, on IAs over InfiniBand and over iWARP.
//!
//! `cargo test -p ferrovia-conformance --test host -- lmr link` runs the tests whose names contain
//! one of the words. (To filter the unit tests of a crate, name the crate:
//! `cargo test -p ferrovia-nic-model -- WORD`.)

extern crate ferrovia_conformance as conformance;

mod machine;
mod runner;

use std::process::ExitCode;

use conformance::{Outcome, Test, Transport};
use host::Machine;
use runner::{HEAP, Place};

/// The numbers of NICs with which each test runs. Miri is slow, so there it is only one number, and
/// one transport.
const NICS: &[u8] = if cfg!(miri) { &[2] } else { &[1, 2] };

/// The transports of the IAs.
const TRANSPORTS: &[Transport] =
    if cfg!(miri) { &[Transport::InfiniBand] } else { &[Transport::InfiniBand, Transport::Iwarp] };

fn main() -> ExitCode {
    let places: Vec<Place> = NICS
        .iter()
        .flat_map(|&nics| TRANSPORTS.iter().map(move |&transport| (nics, transport)))
        .map(|(nics, transport)| {
            let machine = format!("{nics} NIC{}", if nics == 1 { "" } else { "s" });
            Place::new(&machine, transport, move |test| on_a_new_machine(test, nics, transport))
        })
        .collect();
    runner::run_all("host", std::env::args().skip(1), &places, 2)
}

fn on_a_new_machine(test: &Test, nics: u8, transport: Transport) -> Outcome {
    let requests = match transport {
        Transport::InfiniBand => || HEAP.requests(),
        // The device allocates for each stream.
        Transport::Iwarp => || HEAP.requests_by_driver(),
    };
    machine::run(test, Machine::new(nics), requests, (transport, nics == 2), (false, false))
}
