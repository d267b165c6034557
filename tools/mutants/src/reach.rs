//! Which test reaches which mutants.

use std::collections::HashSet;
use std::fs::{self, File};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::Failure;
use super::build::Program;
use super::process::{Outcome, run, side_by_side};

/// A program that is left out: it builds another program anew, which takes minutes.
const LEFT_OUT: &str = "planted";
/// How long a test may take without a mutant.
const LIMIT: Duration = Duration::from_secs(1800);

/// How often a test is run that fails without a mutant.
const TRIES: usize = 2;

/// A test.
pub struct Test {
    pub program: Program,
    pub name: String,
    /// How long it takes without a mutant.
    pub time: Duration,
    /// The mutants that it reaches.
    pub reaches: HashSet<u32>,
}

impl Program {
    /// Whether it runs the conformance suite, whose runner has flags of its own.
    pub fn is_suite(&self) -> bool {
        self.folder.ends_with("tests")
    }

    /// Whether it runs the suite under seeds: the same tests as on the host.
    pub fn has_seeds(&self) -> bool {
        self.is_suite() && self.name == "seeds"
    }
}

/// The tests of the programs. Not those under seeds.
pub fn tests(programs: &[Program]) -> Result<Vec<Test>, Failure> {
    let mut tests = Vec::new();
    for program in programs {
        if program.name == LEFT_OUT || program.has_seeds() {
            continue;
        }
        let mut list = Command::new(&program.file);
        let output = list.args(["--list", "--format", "terse"]).current_dir(&program.folder).output()?;
        for name in String::from_utf8(output.stdout)?.lines().filter_map(|line| line.strip_suffix(": test")) {
            tests.push(Test {
                program: program.clone(),
                name: name.to_owned(),
                time: Duration::ZERO,
                reaches: HashSet::new(),
            });
        }
    }
    Ok(tests)
}

/// Runs each test without a mutant, and notes what it reaches. Says what a test printed that fails,
/// and ends if it fails twice.
pub fn record(mut tests: Vec<Test>) -> Result<Vec<Test>, Failure> {
    let folder = tempfile::tempdir()?;
    let files = AtomicUsize::new(0);
    let recorded = side_by_side(&tests, |test| {
        let number = files.fetch_add(1, Ordering::Relaxed);
        let [reached, printed] =
            ["reached", "printed"].map(|what| folder.path().join(format!("{what}-{number}")));
        let path = reached.to_str().ok_or("the name of the folder for temporary files is not UTF-8")?;
        let arguments = ["--exact", &test.name];
        let Program { folder, file: program, .. } = &test.program;
        let variables = [("MUTANTS_REACHED", path)];
        for _ in 0..TRIES {
            let begun = Instant::now();
            let output = File::create(&printed)?;
            let cpu = LIMIT.as_secs();
            let outcome = run(folder, program, &arguments, &variables, Some(&output), LIMIT, cpu)?;
            if outcome == Outcome::Ok {
                let time = begun.elapsed();
                let text = fs::read_to_string(&reached).unwrap_or_default();
                let reached: Result<HashSet<u32>, _> = text.split_whitespace().map(str::parse).collect();
                return Ok((time, reached?));
            }
            let printed = fs::read(&printed)?;
            println!("{} fails without a mutant:\n{}", test.name, String::from_utf8_lossy(&printed));
        }
        Err(format!("{} fails without a mutant", test.name).into())
    })?;
    for (test, (time, reaches)) in tests.iter_mut().zip(recorded) {
        (test.time, test.reaches) = (time, reaches);
    }
    Ok(tests)
}
