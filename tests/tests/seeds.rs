//! The conformance suite in the simulation: every test under seeds that decide who runs when, in virtual time, so a test that
//! fails under one of them fails under it again.
//!
//! `cargo test -p ferrovia-conformance --test seeds -- --seeds 100..200 connect` runs the tests whose names contain the word under other seeds. The even
//! ones have two NICs, the odd ones have one.

extern crate ferrovia_conformance as conformance;

mod runner;

use std::ops::Range;
use std::process::ExitCode;
use std::sync::Arc;

use conformance::fixture::Memory;
use conformance::{Setup, Test};
use runner::Place;

/// Unless others are asked for.
const SEEDS: Range<u64> = 0..4;

/// What the simulation cannot show, and why.
const SKIPPED: &[(&str, &str)] =
    &[("data::posts_take_nothing", "the simulation itself takes memory from the heap that is watched")];

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut seeds = SEEDS;
    if let Some(at) = arguments.iter().position(|argument| argument == "--seeds") {
        let asked = arguments.drain(at..arguments.len().min(at + 2)).nth(1);
        match asked.as_deref().and_then(range) {
            Some(asked) => seeds = asked,
            None => {
                println!("--seeds wants a number or a range of them, such as 100..200");
                return ExitCode::FAILURE;
            }
        }
    }
    for (name, why) in SKIPPED {
        println!("skipped {name}: {why}");
        arguments.extend(["--skip".into(), (*name).into()]);
    }
    let places: Vec<Place> = seeds
        .map(|seed| Place { name: format!("seed {seed}"), run: Arc::new(move |test| simulated(test, seed)) })
        .collect();
    runner::run_all("seeds", arguments.into_iter(), &places)
}

fn range(text: &str) -> Option<Range<u64>> {
    match text.split_once("..") {
        Some((from, to)) => Some(from.parse().ok()?..to.parse().ok()?),
        None => text.parse().ok().map(|seed| seed..seed + 1),
    }
}

fn simulated(test: &Test, seed: u64) -> Result<(), String> {
    let nics = if seed.is_multiple_of(2) { 2 } else { 1 };
    let outcome = sim::run(seed, nics, |world| {
        let arena = world.memory().clone();
        // The simulation takes memory from the heap, too, so what the stack takes cannot be told.
        let memory = Box::new(move || Memory { heap: 0, dma: arena.lent(), requests: 0 });
        let kill = Box::new(world.killer());
        let setup = Setup::new(world.platform(), world.privileged(), world.devices(), kill, memory);
        let setup = Arc::new(setup.map_err(|failure| failure.to_string())?);
        let outcome = conformance::run(test, &setup).map_err(|failure| failure.to_string());
        setup.close();
        outcome
    });
    outcome.value?;
    match outcome.left.as_slice() {
        [] => Ok(()),
        left => Err(format!("threads that did not end: {left:?}")),
    }
}
