//! Runs a workload under many seeds.

use std::sync::Mutex;

use sim::Tally;

use crate::workers;

/// Checks the seeds below `seeds`, and returns what happened under all of them. `options` are those
/// of the command that repeats a seed.
///
/// # Panics
///
/// If a seed fails.
pub fn check_all(
    seeds: u64,
    options: &str,
    check: impl Fn(u64, bool) -> Result<Tally, String> + Sync,
) -> Tally {
    let all = Mutex::new(Tally::default());
    workers::each(seeds, |seed| match check(seed, false) {
        Ok(tally) => all.lock().unwrap().add(&tally),
        Err(why) => panic!("seed {seed}: {why}\n    cargo run -p sim -- {options}--from {seed} --trace"),
    });
    let all = all.into_inner().unwrap();
    println!("{all}");
    all
}
