//! Runs the conformance suite in the kernel, and reports in lines that the launcher reads.
//!
//! | line | meaning |
//! |---|---|
//! | `@test start NAME SECONDS` | a test begins; its time limit |
//! | `@test rows NAME ID…` | rows of the catalogue that it shows when it passes |
//! | `@test ok NAME MICROSECONDS` | it passed |
//! | `@test fail NAME FILE:LINE: MESSAGE` | it failed |
//! | `@test elsewhere NAME MESSAGE` | this machine cannot show what it is for |
//! | `@reboot` | the area is done, or the test has killed the device: boot again, with `after=NAME` |
//! | `@done` | no test is left |
//!
//! `filter=WORD` on the command line chooses the tests whose names contain WORD; with several
//! filters, a test needs to match one. `after=NAME` skips all tests up to that one. `packets` says
//! that the NICs exchange packets, and `lossy` that the network between them may lose datagrams.
//! `transport=iwarp` asks for IAs over iWARP, and for the tests that run on them.
//! The status is 0 unless the suite could not begin: the lines say which tests failed.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use conformance::thread::eventually;
use conformance::{Failure, Outcome, Setup, Test, Transport, fixture};
use kernel::memory::Usage;
use kernel::{Boot, args, clock, println};
use platform::{Instant, Platform};

kernel::entry!(main);

/// The most rows of one line, since the console keeps only 1 KiB together.
const ROWS_IN_A_LINE: usize = 20;

fn main(boot: Boot) -> i32 {
    let filters: Vec<&str> = args().all("filter").collect();
    let before = kernel::memory::usage();
    let platform = boot.platform.clone();
    let mut setup = match setup(boot) {
        Ok(setup) => Some(Arc::new(setup)),
        Err(why) => {
            println!("error: {why}");
            return 1;
        }
    };
    let tests = conformance::run::select(&filters, args().get("after"));
    let mut tests = tests.filter(|test| transport().takes(test)).peekable();
    while let (Some(test), Some(place)) = (tests.next(), &setup) {
        let begun = begin(test);
        let outcome = conformance::run(test, place);
        // Each area has a guest of its own, so that no failure depends on the tests of another
        // area.
        let is_last = test.kills || tests.peek().is_none_or(|next| area(next) != area(test));
        let failed = outcome.as_ref().is_err_and(|failure| !failure.not_shown);
        if place.is_dead() || failed && is_last {
            end(test, begun, outcome);
            println!("{}", if tests.peek().is_some() { "@reboot" } else { "@done" });
            return 0;
        }
        let outcome = match is_last {
            true => {
                // The reason why a test shows nothing is still to be printed.
                let reason = outcome.as_ref().err().map_or(0, |failure| failure.message.capacity());
                setup.take().map_or(Ok(()), |setup| leave(&platform, setup, before, reason)).and(outcome)
            }
            false => outcome,
        };
        end(test, begun, outcome);
    }
    println!("{}", if tests.peek().is_some() { "@reboot" } else { "@done" });
    0
}

/// Closes the agents and checks that the tests of this guest have left no memory allocated, but for
/// these bytes of the heap.
fn leave(platform: &Arc<dyn Platform>, setup: Arc<Setup>, before: Usage, kept: usize) -> Outcome {
    setup.close();
    drop(setup);
    let left = || {
        let Usage { heap, dma, .. } = kernel::memory::usage();
        (heap.saturating_sub(before.heap + kept), dma.saturating_sub(before.dma))
    };
    // The agents' threads may need a moment to end.
    match eventually(platform, || left() == (0, 0)) {
        true => Ok(()),
        false => {
            let (heap, dma) = left();
            let what = format!("left since the boot: {heap} bytes of the heap, {dma} bytes of DMA memory");
            Err(Failure::new(what))
        }
    }
}

/// The part of a test's name before the colons.
fn area(test: &Test) -> &str {
    test.name.split_once("::").map_or(test.name, |(area, _)| area)
}

/// Opens the first two NICs, or the only one.
fn setup(boot: Boot) -> Result<Setup, Failure> {
    let kill = Box::new(|| kernel::control("kill"));
    let usage = Box::new(|| {
        let memory = kernel::memory::usage();
        let requests = kernel::memory::requests();
        let used = fixture::Usage::default();
        fixture::Usage { heap: memory.heap, dma: memory.dma, requests, ..used }
    });
    let setup = Setup::new(boot.platform, boot.privileged, boot.nics, kill, usage)?;
    Ok(setup.over(transport())?.by_packets(args().has("packets")).lossy(args().has("lossy")))
}

/// The transport of the IAs.
fn transport() -> Transport {
    match args().get("transport") {
        Some("iwarp") => Transport::Iwarp,
        _ => Transport::InfiniBand,
    }
}

fn begin(test: &Test) -> Instant {
    let name = test.name;
    println!("@test start {name} {}", test.limit);
    let rows: Vec<String> = test.rows().collect();
    for rows in rows.chunks(ROWS_IN_A_LINE) {
        println!("@test rows {name} {}", rows.join(" "));
    }
    clock::now()
}

fn end(test: &Test, begun: Instant, outcome: Outcome) {
    let name = test.name;
    match outcome {
        Ok(()) => println!("@test ok {name} {}", clock::now().since(begun).as_micros()),
        Err(failure) if failure.not_shown => println!("@test elsewhere {name} {}", failure.message),
        Err(failure) => println!("@test fail {name} {failure}"),
    }
}
