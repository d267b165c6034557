//! The conformance suite over a wire: two NICs whose ports are joined by a link in memory, without
//! a short cut, so that all that goes from one to the other goes in packets. It runs twice: over a
//! perfect link, and over one that loses, repeats, reorders and corrupts frames; over each of them
//! the tests of no transport run on IAs over iWARP, too.
//!
//! `cargo test -p ferrovia-conformance --test wire -- lmr link` runs the tests whose names contain
//! one of the words. With an impairment in the environment, such as
//! `FERROVIA_IMPAIR=loss=2%,seed=7`, it runs once, and the link treats frames so.

extern crate ferrovia_conformance as conformance;

mod machine;
mod runner;

use std::process::ExitCode;

use conformance::{Failure, Outcome, Test, Transport};
use host::Machine;
use links::{Impaired, Impairment, Link, pair};
use nic_model::Wire;
use nic_model::port::Config;
use runner::{HEAP, Place};

/// The link's MTU: the path MTU is then 1024.
const MTU: u32 = 1500;
/// How the bad link treats frames.
const BAD: &str = "loss=1%,dup=1%,reorder=1%,corrupt=1%,seed=7";

fn main() -> ExitCode {
    let chosen = std::env::var("FERROVIA_IMPAIR");
    let texts = match &chosen {
        Ok(text) => vec![text.as_str()],
        Err(_) => vec!["", BAD],
    };
    let mut places = Vec::new();
    for text in texts {
        let impairment = match text {
            "" => Impairment::default(),
            text => match text.parse() {
                Ok(impairment) => impairment,
                Err(error) => {
                    eprintln!("FERROVIA_IMPAIR: {error}");
                    return ExitCode::FAILURE;
                }
            },
        };
        let wire = if impairment.is_lossy() { "a bad wire" } else { "a wire" };
        for transport in [Transport::InfiniBand, Transport::Iwarp] {
            let run = move |test: &Test| on_a_new_machine(test, impairment, transport);
            places.push(Place::new(&format!("2 NICs, {wire}"), transport, run));
        }
    }
    runner::run_all("wire", std::env::args().skip(1), &places, 4)
}

fn on_a_new_machine(test: &Test, impairment: Impairment, transport: Transport) -> Outcome {
    let (a, b) = pair();
    let (a, b): (Box<dyn Link + Send>, Box<dyn Link + Send>) = match impairment == Impairment::default() {
        true => (Box::new(a), Box::new(b)),
        // One end impairs both directions.
        false => (Box::new(Impaired::new(a, impairment)), Box::new(b)),
    };
    let wires = [a, b].into_iter().zip(1..).map(|(end, n)| {
        let address = format!("10.0.0.{n}/24").parse().map_err(|_| Failure::new("an address"))?;
        let config = Config::new(0x0266_65ff_fe72_0000 + n, MTU, &[address]);
        Ok((Box::new(end) as Box<dyn Wire + Send>, config))
    });
    let machine = Machine::with_wires(wires.collect::<Result<_, Failure>>()?);
    // The link allocates for each frame, as the peer's NIC would.
    machine::run(
        test,
        machine,
        || HEAP.requests_by_driver(),
        (transport, false),
        (true, impairment.is_lossy()),
    )
}
