//! The conformance suite in the simulation. A seed decides which thread runs when, and time is
//! virtual, so a test that fails under a seed fails under it again.
//!
//! `cargo test -p ferrovia-conformance --test seeds -- --seeds 100..200 connect` runs the tests
//! whose names contain the word under those seeds. Of four seeds the first has a machine with two
//! NICs that exchange requests without packets, the second one with one NIC, the third one with two
//! NICs at the ends of a wire, and the fourth one with two at the ends of a wire with losses. Under
//! each seed the tests of no transport run on IAs over iWARP, too.

extern crate ferrovia_conformance as conformance;

mod runner;

use std::ops::Range;
use std::process::ExitCode;
use std::sync::Arc;

use conformance::fixture::Usage;
use conformance::{Failure, Outcome, Setup, Test, Transport};
use runner::Place;
use sim::{Network, World};

/// The seeds, unless `--seeds` asks for others.
const SEEDS: Range<u64> = 0..4;

/// Tests that cannot pass in the simulation, and why.
const SKIPPED: &[(&str, &str)] = &[(
    "data::posts_allocate_nothing",
    "the simulation itself allocates from the heap that the test watches",
)];

/// Tests that take too long over a lossy wire, since threads of theirs never wait: until a lost
/// frame is sent again, the simulation runs them many thousand times. They run over a perfect wire.
const NEVER_WAIT: &[&str] = &[
    "data::a_buffer_that_changes_during_its_send",
    "threads::each_completion_is_taken_once",
    "threads::every_routine_beside_every_other",
];

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut seeds = SEEDS;
    if let Some(at) = arguments.iter().position(|argument| argument == "--seeds") {
        let asked = arguments.drain(at..arguments.len().min(at + 2)).nth(1);
        match asked.as_deref().and_then(range) {
            Some(asked) => seeds = asked,
            None => {
                println!("--seeds needs a number or a range of them, such as 100..200");
                return ExitCode::FAILURE;
            }
        }
    }
    for (name, why) in SKIPPED {
        println!("skipped {name}: {why}");
        arguments.extend(["--skip".into(), (*name).into()]);
    }
    let places: Vec<Place> = seeds
        .flat_map(|seed| [Transport::InfiniBand, Transport::Iwarp].map(|transport| (seed, transport)))
        .map(|(seed, transport)| {
            let run = move |test: &Test| simulated(test, seed, transport);
            Place::new(&format!("seed {seed}"), transport, run)
        })
        .collect();
    runner::run_all("seeds", arguments.into_iter(), &places, 1)
}

fn range(text: &str) -> Option<Range<u64>> {
    match text.split_once("..") {
        Some((from, to)) => Some(from.parse().ok()?..to.parse().ok()?),
        None => text.parse().ok().map(|seed| seed..seed + 1),
    }
}

fn simulated(test: &Test, seed: u64, transport: Transport) -> Outcome {
    let network = match seed % 4 {
        2 => Network::Wire,
        3 if NEVER_WAIT.contains(&test.name) => Network::Wire,
        3 => Network::Lossy,
        _ => Network::ShortCut,
    };
    let run = |world: &World| {
        let arena = world.memory().clone();
        // The simulation allocates from the same heap, so the stack's own use is unknown.
        let usage = Box::new(move || Usage {
            heap: 0,
            dma: arena.lent(),
            requests: 0,
            waits: host::waits_of_this_thread(),
        });
        let kill = Box::new(world.killer());
        let setup = Setup::new(world.platform(), world.privileged(), world.transports(), kill, usage);
        let setup =
            setup?.over(transport)?.by_packets(network != Network::ShortCut).lossy(network == Network::Lossy);
        let setup = Arc::new(setup);
        let outcome = conformance::run(test, &setup);
        setup.close();
        outcome
    };
    let outcome = match network {
        Network::ShortCut if seed % 2 == 1 => sim::run(seed, 1, run),
        network => sim::run_over(seed, network, run),
    };
    outcome.value?;
    match outcome.left.as_slice() {
        [] => Ok(()),
        left => Err(Failure::new(format!("threads that did not end: {left:?}"))),
    }
}
