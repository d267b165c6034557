//! Tries many mutants with one build.
//!
//!     mutants [--near] LIST FROM TO RESULTS CARGO-TEST-ARGUMENT…
//!
//! LIST is what `cargo mutants --list --json` prints. FROM is the folder of the sources, TO a copy
//! of them whose crates depend on `mutant-switch` (`tools/mutants/switch`). The program puts the
//! mutants into the files of the copy, each behind a switch, builds all tests, records which test
//! reaches which mutant, and runs these tests for each mutant.
//!
//! For each mutant it appends its name, the outcome (`caught`, `timeout` or `missed`), and what
//! decided it to RESULTS; those that are there already are not tried again. Mutants that are not
//! there in the end cannot be switched at run time: they stand in code that the compiler evaluates,
//! change more than an expression, or do not build. With `--near` the suite is left out.

mod build;
mod process;
mod reach;
mod rewrite;
mod sites;
mod trial;

use std::collections::{BTreeMap, HashSet};
use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use serde::Deserialize;
use sites::Mutant;

/// Why the program ends early.
type Failure = Box<dyn Error + Send + Sync>;

/// A mutant in the list; its number is its place there.
#[derive(Deserialize)]
struct Listed {
    name: String,
    package: String,
    file: String,
    genre: String,
    replacement: String,
    span: Span,
}

#[derive(Deserialize)]
struct Span {
    start: Position,
    end: Position,
}

/// Both count from 1; the column counts characters.
#[derive(Clone, Copy, Deserialize)]
struct Position {
    line: usize,
    column: usize,
}

fn main() -> Result<(), Failure> {
    let mut arguments: Vec<String> = env::args().skip(1).collect();
    let near = arguments.first().is_some_and(|first| first == "--near");
    arguments.drain(..usize::from(near));
    let [list, from, to, results, cargo @ ..] = &arguments[..] else {
        return Err("mutants [--near] LIST FROM TO RESULTS CARGO-TEST-ARGUMENT…".into());
    };
    let listed: Vec<Listed> = serde_json::from_str(&fs::read_to_string(list)?)?;
    let mut files: BTreeMap<String, Vec<Mutant>> = BTreeMap::new();
    for (number, mutant) in (0..).zip(&listed) {
        let Position { line, column } = mutant.span.start;
        let end = mutant.span.end;
        files.entry(mutant.file.clone()).or_default().push(Mutant {
            number,
            genre: mutant.genre.clone(),
            replacement: mutant.replacement.clone(),
            start: (line, column),
            end: (end.line, end.column),
        });
    }
    let sources = build::Sources { from: PathBuf::from(from), to: PathBuf::from(to), files };
    let built = build::build(&sources, cargo, !near)?;
    let tests = reach::tests(&built.programs)?;
    println!("{} mutants in one program; {} tests without a mutant …", built.mutants.len(), tests.len());
    let tests = reach::record(tests)?;

    let old = fs::read_to_string(results).unwrap_or_default();
    let done: HashSet<&str> = old.lines().filter_map(|line| line.split('\t').next()).collect();
    let open = built.mutants.iter().map(|&number| (number, &listed[number as usize]));
    let open: Vec<_> = open.filter(|(_, mutant)| !done.contains(&*mutant.name)).collect();
    let seeds = built.programs.iter().find(|program| program.has_seeds());
    if seeds.is_none() && !near {
        return Err("the suite has no program for seeds".into());
    }
    trial::Trial { tests: &tests, seeds }.all(&open, results.as_ref())
}
