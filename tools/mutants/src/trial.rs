//! Tries the mutants.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::build::Program;
use super::process::{Outcome, run, side_by_side};
use super::reach::Test;
use super::{Failure, Listed};

/// So many tests of the suite run first, since most mutants fail one of them.
const FIRST: usize = 12;
/// A test of the suite takes milliseconds, so one that takes so many seconds hangs.
const HANGS: &str = "30";
/// The seeds under which the suite runs.
const SEEDS: &str = "0..2";

/// What a mutant is tried with.
pub struct Trial<'a> {
    pub tests: &'a [Test],
    /// The program that runs the suite under seeds, if the suite is there.
    pub seeds: Option<&'a Program>,
}

impl Trial<'_> {
    /// Tries all these mutants, and appends the outcomes to the file.
    pub fn all(&self, open: &[(u32, &Listed)], results: &Path) -> Result<(), Failure> {
        let file = File::options().append(true).create(true).open(results)?;
        let done = AtomicUsize::new(0);
        side_by_side(open, |&(number, mutant)| {
            let begun = Instant::now();
            let (outcome, by) = self.one(number, mutant)?;
            // One write, so that lines of two threads do not mix.
            (&file).write_all(format!("{}\t{outcome}\t{by}\n", mutant.name).as_bytes())?;
            let count = done.fetch_add(1, Ordering::Relaxed) + 1;
            let (all, seconds) = (open.len(), begun.elapsed().as_secs());
            println!("{count:4}/{all} {outcome:11} {seconds:4} s  {} ({by})", mutant.name);
            Ok(())
        })?;
        Ok(())
    }

    /// The outcome for a mutant, and what decided it.
    fn one(&self, number: u32, mutant: &Listed) -> Result<(&'static str, String), Failure> {
        let folder = mutant.package.trim_start_matches("ferrovia-");
        let reaching = self.tests.iter().filter(|test| test.reaches.contains(&number));
        let (mut suite, others): (Vec<&Test>, Vec<&Test>) =
            reaching.partition(|test| test.program.is_suite());
        let (own, others): (Vec<&Test>, Vec<&Test>) =
            others.into_iter().partition(|test| test.program.folder.ends_with(folder));
        if suite.is_empty() && own.is_empty() && others.is_empty() {
            return Ok(("missed", "no test reaches it".into()));
        }
        // The short ones first, since a short test notices a mutant about as often as a long one.
        suite.sort_by_key(|test| test.time);
        let (first, rest) = suite.split_at(suite.len().min(FIRST));
        for (by, part, seeds) in [
            (format!("tests of {folder}"), &own[..], false),
            ("suite on the host".into(), first, false),
            ("suite on the host".into(), rest, false),
            ("tests of the other crates".into(), &others, false),
            ("suite under seeds".into(), &suite, true),
        ] {
            match self.run(number, part, seeds)? {
                Outcome::Ok => {}
                Outcome::Failed => return Ok(("caught", by)),
                Outcome::Timeout => return Ok(("timeout", by)),
            }
        }
        Ok(("missed", String::new()))
    }

    /// Runs tests with a mutant switched on, those of each program in one process, until one fails.
    fn run(&self, number: u32, tests: &[&Test], under_seeds: bool) -> Result<Outcome, Failure> {
        let mut programs: Vec<&Program> = tests.iter().map(|test| &test.program).collect();
        programs.dedup_by_key(|program| &program.file);
        for program in programs {
            let tests = tests.iter().filter(|test| test.program.file == program.file);
            let mut usual: Duration = tests.clone().map(|test| test.time).sum();
            let mut arguments = vec!["--exact"];
            arguments.extend(tests.map(|test| &*test.name));
            let mut program = program;
            if program.is_suite() {
                arguments.extend(["--fail-fast", "--limit", HANGS]);
            }
            if under_seeds && let Some(seeds) = self.seeds {
                program = seeds;
                arguments.extend(["--seeds", SEEDS]);
                usual *= 4;
            }
            // A busy machine makes tests slower, but does not make them need more of the processor.
            let (limit, cpu) = (usual * 10 + Duration::from_secs(120), usual.as_secs() * 10 + 60);
            let variables = [("MUTANT", &*number.to_string())];
            let outcome = run(&program.folder, &program.file, &arguments, &variables, None, limit, cpu)?;
            if outcome != Outcome::Ok {
                return Ok(outcome);
            }
        }
        Ok(Outcome::Ok)
    }
}
