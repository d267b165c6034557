//! Runs the workload under many seeds: `cargo run -p sim --release -- --seeds N --from S`.

mod breaking;
mod options;
mod progress;

use std::process::ExitCode;

use options::{Asked, Options};
use platform::planted::Bug;
use progress::Progress;
use sim::{Tally, face, storage, workload};

/// Seeds that may fail before the run ends.
const FAILURES: u64 = 10;

fn main() -> ExitCode {
    match Options::read(std::env::args().skip(1)) {
        Ok(Asked::Run(options)) => match options.planted {
            Some(bug) if !breaking::plant(bug) => breaking::again(std::env::args().skip(1)),
            _ => run(&options),
        },
        Ok(Asked::List) => {
            breaking::list();
            ExitCode::SUCCESS
        }
        Ok(Asked::Help) => {
            print!("{}", options::HELP);
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> ExitCode {
    let mut progress = Progress::new(options.seeds);
    let mut all = Tally::default();
    let mut failures = 0;
    let planted = |is: fn(Bug) -> bool| options.planted.is_some_and(is);
    let check = match () {
        () if options.storage || planted(Bug::is_of_storage) => storage::check,
        () if options.face || planted(Bug::is_of_face) => face::check,
        () if options.iwarp || planted(Bug::is_of_iwarp) => workload::check_iwarp,
        () => workload::check,
    };
    for seed in options.from..options.from.saturating_add(options.seeds) {
        let checked = check(seed, options.trace);
        progress.done();
        match checked {
            Ok(tally) => all.add(&tally),
            Err(why) => {
                progress.clear();
                println!("seed {seed} failed: {why}");
                println!("    {}", options::replay(seed, options));
                failures += 1;
                if let Some(bug) = options.planted {
                    println!("{} was found after {} seeds", bug.name(), progress.count());
                    return ExitCode::SUCCESS;
                }
                if failures == FAILURES {
                    println!("{FAILURES} seeds have failed; the rest is left out");
                    break;
                }
            }
        }
    }
    progress.clear();
    if let Some(bug) = options.planted {
        println!("{} was not found by {} seeds", bug.name(), progress.count());
        return ExitCode::FAILURE;
    }
    print!("{all}");
    println!("{} seeds passed, {failures} failed", progress.count() - failures);
    ExitCode::from(u8::from(failures > 0))
}
