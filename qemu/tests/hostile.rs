//! A hostile driver in the guest (targets/hostile): the device survives it, leaves other memory
//! alone, keeps its heartbeats, and serves an honest driver afterwards.
//!
//! The variables FERROVIA_HOSTILE_SEED and FERROVIA_HOSTILE_SECONDS choose one longer run.

extern crate ferrovia_qemu as qemu;

use std::time::Duration;

use qemu::guests::Guest;
use qemu::launch::Launcher;
use qemu::options::Options;
use qemu::vm::Event;

/// The longest that the device's own work may keep a heart from beating: twice what the data sheet
/// promises. It is processor time, so it does not depend on what else the machine has to do; the
/// time by the clock does, and is only printed.
const LONGEST_WORK: Duration = Duration::from_millis(200);

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

/// Runs a guest to its end; returns its status and what it wrote.
fn run_to_end(guest: &mut Guest) -> (u8, Vec<String>) {
    let mut said = Vec::new();
    loop {
        match guest.next(None).expect("no signal") {
            Event::Line(line) => {
                println!("{line}");
                said.push(line);
            }
            Event::Ended(exit) => return (exit.status().unwrap_or_else(|e| panic!("{e}: {said:#?}")), said),
            Event::FirstThread => {}
            other => panic!("{other:?}: {said:#?}"),
        }
    }
}

#[test]
fn a_hostile_driver_harms_only_itself() {
    let launcher = Launcher::prepare(&Options::default(), "hostile").expect("the image builds");
    let seconds = variable("FERROVIA_HOSTILE_SECONDS").unwrap_or(3);
    let seeds = variable("FERROVIA_HOSTILE_SEED").map_or(vec![1, 2], |seed| vec![seed]);
    for seed in seeds {
        let words = [format!("seed={seed}"), format!("seconds={seconds}")];
        let mut guest = launcher.start(&words).expect("QEMU starts");
        let (status, said) = run_to_end(&mut guest);
        let gaps = guest.gaps();
        for (nic, gap) in gaps.iter().enumerate() {
            println!(
                "NIC {nic}: longest time between two heartbeats: {} ms by the clock, {} ms of work",
                gap.wall.as_millis(),
                gap.work.as_millis()
            );
        }
        assert_eq!(status, 0, "seed {seed}: {said:#?}");
        assert!(said.iter().any(|line| line.contains("an honest transfer")), "seed {seed}: {said:#?}");
        assert_eq!(gaps.len(), 2);
        assert!(gaps.iter().all(|gap| gap.work < LONGEST_WORK), "seed {seed}: {gaps:?}");
    }
}
