//! Tests of the kernel, which run inside it.
//!
//! For each test it prints `@test start NAME`, then `@test ok NAME MICROSECONDS` or `@test fail
//! NAME FILE:LINE: MESSAGE`, as the conformance suite does. It ends with status 0 if all passed,
//! else with 1. With `die=NAME` on the command line it dies in a chosen way instead ([`deaths`]):
//! then the guest must end with status 100 (panic) or 101 (fault) and print why. With `say=machine`
//! it says what machine it is on ([`machine`]).
#![no_std]
#![no_main]

extern crate alloc;

mod broken_disks;
mod cpus;
mod deaths;
mod devices;
mod disk_queues;
mod disks;
mod machine;
mod memory;
mod played_disk;
mod threads;

use alloc::sync::Arc;
use alloc::vec::Vec;

use block::Disk;
use kernel::{Boot, args, clock, println};
use nic_hal::Transport;
use platform::Platform;

kernel::entry!(main);

/// The machine that the tests run on.
pub struct Machine {
    /// The kernel's services.
    pub platform: Arc<dyn Platform>,
    /// The NICs.
    pub nics: Vec<Arc<dyn Transport>>,
    /// The disks.
    pub disks: Vec<Arc<dyn Disk>>,
}

/// Why a test failed, and at which line.
pub struct Failure {
    line: u32,
    file: &'static str,
    what: &'static str,
}

/// The result of a test.
pub type Outcome = Result<(), Failure>;

impl Failure {
    /// A failure at the caller's line.
    #[track_caller]
    pub fn new(what: &'static str) -> Failure {
        let place = core::panic::Location::caller();
        Failure { line: place.line(), file: place.file(), what }
    }
}

/// Fails the test unless the condition holds.
#[track_caller]
pub fn check(holds: bool, what: &'static str) -> Outcome {
    if holds { Ok(()) } else { Err(Failure::new(what)) }
}

/// A test and its name.
pub type Test = (&'static str, fn(&Machine) -> Outcome);

fn main(boot: Boot) -> i32 {
    if let Some(name) = args().get("die") {
        return deaths::die(name, &boot.platform);
    }
    let machine = Machine { platform: boot.platform, nics: boot.nics, disks: boot.disks };
    if args().get("say") == Some("machine") {
        return machine::say(&machine);
    }
    let mut failed = 0;
    // Those of disks run only if the launcher attached some. Those of devices come last, since one
    // claims all interrupt vectors.
    let has_disks = args().get("disks").is_some();
    let disks = if has_disks { [disks::TESTS, disk_queues::ATTACHED] } else { [&[][..]; 2] };
    let played = [broken_disks::TESTS, disk_queues::PLAYED];
    let tests = [threads::TESTS, cpus::TESTS, memory::TESTS];
    let tests = tests.into_iter().chain(disks).chain(played).chain([devices::TESTS]);
    for &(name, test) in tests.flatten() {
        if args().all("filter").next().is_some() && !args().all("filter").any(|f| name.contains(f)) {
            continue;
        }
        println!("@test start {name}");
        let begun = clock::now();
        match test(&machine) {
            Ok(()) => println!("@test ok {name} {}", clock::now().since(begun).as_micros()),
            Err(f) => {
                failed += 1;
                println!("@test fail {name} {}:{}: {}", f.file, f.line, f.what);
            }
        }
    }
    println!("@done");
    i32::from(failed > 0)
}
