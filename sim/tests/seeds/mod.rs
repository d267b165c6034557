//! Runs a workload under many seeds, in two threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use sim::Tally;

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
    let next = AtomicU64::new(0);
    let all = Mutex::new(Tally::default());
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds || !failures.lock().unwrap().is_empty() {
                        return;
                    }
                    match check(seed, false) {
                        Ok(tally) => all.lock().unwrap().add(&tally),
                        Err(why) => failures.lock().unwrap().push(format!(
                            "seed {seed}: {why}\n    cargo run -p sim -- {options}--from {seed} --trace"
                        )),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let all = all.into_inner().unwrap();
    println!("{all}");
    all
}
