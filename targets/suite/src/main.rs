//! Runs the conformance suite in the kernel, and says so in lines that the runner outside reads.
//!
//! | line | meaning |
//! |---|---|
//! | `@test start NAME SECONDS` | a test begins, and may take so long |
//! | `@test rows NAME ID…` | rows of the catalogue that it shows when it passes |
//! | `@test ok NAME MICROSECONDS` | it passed |
//! | `@test fail NAME FILE:LINE: MESSAGE` | it failed |
//! | `@reboot` | the area is done, or the test has killed the device: boot again with `after=NAME` |
//! | `@done` | no test is left |
//!
//! `filter=WORD` on the command line, as often as wanted, chooses the tests whose names contain one of the words;
//! `after=NAME` goes on behind that test. The status is 0 unless the suite could not begin: what failed is in
//! the lines.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use conformance::fixture::CONFIG;
use conformance::{Interface, Setup, Test};
use kernel::{Boot, args, clock, println};
use kernel_agent::Agent;
use privileged_api::Provider;

kernel::entry!(main);

/// Rows in one line: the console writes up to 1 KiB at once.
const ROWS_IN_A_LINE: usize = 20;

fn main(boot: Boot) -> i32 {
    let setup = match setup(boot) {
        Ok(setup) => Arc::new(setup),
        Err(why) => {
            println!("error: {why}");
            return 1;
        }
    };
    let filters: Vec<&str> = args().all("filter").collect();
    let mut tests = conformance::run::select(&filters, args().get("after")).peekable();
    while let Some(test) = tests.next() {
        run(test, &setup);
        if test.kills || setup.a.agent.is_dead() {
            println!("@reboot");
            return 0;
        }
        // Each area has a guest of its own, so that what fails in one depends on no other.
        if tests.peek().is_some_and(|next| area(next) != area(test)) {
            setup.a.agent.close();
            println!("@reboot");
            return 0;
        }
    }
    setup.a.agent.close();
    println!("@done");
    0
}

/// What stands before the colons of a test's name.
fn area(test: &Test) -> &str {
    test.name.split_once("::").map_or(test.name, |(area, _)| area)
}

/// Brings up the first NIC, which is both ends of every test's connections.
fn setup(boot: Boot) -> Result<Setup, String> {
    let device = boot.nics.into_iter().next().ok_or("there is no RDMA NIC on PCI")?;
    let platform = boot.platform;
    let agent = Agent::open(platform.clone(), device, 0, CONFIG)
        .map_err(|error| format!("bringing up the RDMA NIC: {error}"))?;
    let provider = Provider::new(platform.clone());
    let name = "rnic0";
    provider.add(name, agent.clone()).map_err(|error| format!("adding the interface: {error}"))?;
    let interface = || Interface { name: name.into(), agent: agent.clone() };
    let kill = Box::new(|| kernel::control("kill"));
    Ok(Setup { platform, provider, privileged: boot.privileged, a: interface(), b: interface(), kill })
}

fn run(test: &Test, setup: &Arc<Setup>) {
    let name = test.name;
    println!("@test start {name} {}", test.limit);
    for rows in test.rows.chunks(ROWS_IN_A_LINE) {
        println!("@test rows {name} {}", rows.join(" "));
    }
    let begun = clock::now();
    match conformance::run(test, setup) {
        Ok(()) => println!("@test ok {name} {}", clock::now().since(begun).as_micros()),
        Err(failure) => println!("@test fail {name} {failure}"),
    }
}
