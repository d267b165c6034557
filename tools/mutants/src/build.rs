//! Puts the mutants into the copy, and builds the tests.

use std::collections::{BTreeMap, BTreeSet};

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::Failure;
use super::rewrite::{self, SWITCH};
use super::sites::{self, Mutant};

/// What cargo builds of the conformance suite.
const SUITE: [&str; 6] = ["-p", "ferrovia-conformance", "--test", "host", "--test", "seeds"];

/// The sources, and the mutants of each file.
pub struct Sources {
    pub from: PathBuf,
    pub to: PathBuf,
    pub files: BTreeMap<String, Vec<Mutant>>,
}

/// A program that contains tests.
#[derive(Clone)]
pub struct Program {
    /// The folder of its package, in which it runs.
    pub folder: PathBuf,
    pub name: String,
    pub file: PathBuf,
}

/// What was built.
pub struct Built {
    pub programs: Vec<Program>,
    /// The mutants that the programs contain.
    pub mutants: Vec<u32>,
}

/// Builds the tests with as many mutants as possible, and those of the suite if it is wanted.
pub fn build(sources: &Sources, cargo: &[String], suite: bool) -> Result<Built, Failure> {
    // All mutants are in libraries, which are checked in a fraction of the time of a build.
    let mut check = vec!["check", "--keep-going"];
    check.extend(cargo.iter().map(String::as_str).filter(|&argument| argument != "--tests"));
    let mut left_out = BTreeSet::new();
    let mutants = loop {
        let mutants = put_in(sources, &left_out)?;
        println!("checking {} mutants …", mutants.len());
        let Found { wrong, .. } = run_cargo(sources, &check)?;
        if wrong.is_empty() {
            break mutants;
        }
        // What was left out is not in the copy, so each turn leaves out one more at least.
        left_out.extend(wrong);
    };
    println!("building the tests with {} mutants …", mutants.len());
    let mut programs = Vec::new();
    let suite = suite.then(|| SUITE.to_vec());
    for arguments in [cargo.iter().map(String::as_str).collect()].into_iter().chain(suite) {
        let mut build = vec!["test", "--no-run"];
        build.extend(arguments);
        programs.extend(run_cargo(sources, &build)?.programs);
    }
    Ok(Built { programs, mutants })
}

/// Writes the files of the mutants. Returns the numbers of those that can be switched.
fn put_in(sources: &Sources, left_out: &BTreeSet<u32>) -> Result<Vec<u32>, Failure> {
    let mut numbers = Vec::new();
    for (file, mutants) in &sources.files {
        let text = fs::read_to_string(sources.from.join(file))?;
        let wanted = mutants.iter().filter(|mutant| !left_out.contains(&mutant.number));
        let sites = sites::find(&text, wanted).map_err(|error| format!("{file}: {error}"))?;
        numbers.extend(sites.iter().flat_map(sites::Site::numbers));
        let changed = rewrite::rewrite(&text, sites);
        let path = sources.to.join(file);
        // A file that stays as it is keeps its time, so that cargo builds only what differs.
        if fs::read_to_string(&path).ok().as_ref() != Some(&changed) {
            fs::write(path, changed)?;
        }
    }
    Ok(numbers)
}

/// A line of cargo's output.
#[derive(Deserialize)]
struct Line {
    reason: String,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    executable: Option<PathBuf>,
    message: Option<Message>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

#[derive(Deserialize)]
struct Message {
    level: String,
    code: Option<Code>,
    spans: Vec<Place>,
}

#[derive(Deserialize)]
struct Code {
    code: String,
}

#[derive(Deserialize)]
struct Place {
    file_name: PathBuf,
    byte_start: usize,
    is_primary: bool,
}

/// What a run of cargo brought.
#[derive(Default)]
struct Found {
    programs: Vec<Program>,
    /// The mutants that do not build.
    wrong: BTreeSet<u32>,
}

/// Runs cargo in the copy.
fn run_cargo(sources: &Sources, arguments: &[&str]) -> Result<Found, Failure> {
    let output = Command::new("cargo")
        .args(arguments)
        .args(["--profile", "mutants", "--message-format=json"])
        .current_dir(&sources.to)
        .stderr(Stdio::null())
        .output()?;
    let mut found = Found::default();
    for line in String::from_utf8(output.stdout)?.lines() {
        let Ok(line) = serde_json::from_str::<Line>(line) else { continue };
        if let (Some(file), Some(target), Some(manifest)) = (line.executable, line.target, line.manifest_path)
            && line.reason == "compiler-artifact"
        {
            let folder = manifest.parent().map(PathBuf::from).unwrap_or_default();
            found.programs.push(Program { folder, name: target.name, file });
        }
        if let Some(message) = line.message.filter(|message| message.level == "error") {
            for place in message.spans.iter().filter(|place| place.is_primary) {
                let text = fs::read(sources.to.join(&place.file_name))?;
                found.wrong.extend(at_fault(&String::from_utf8(text)?, &message, place));
            }
        }
    }
    if !output.status.success() && found.wrong.is_empty() {
        let folder = sources.to.display();
        return Err(format!("in {folder}, this fails: cargo {}", arguments.join(" ")).into());
    }
    Ok(found)
}

/// The mutant at fault for an error. An arm that is missing is reported where its match begins; all
/// else is reported behind the switch, or at code that was moved in front of one.
fn at_fault(text: &str, message: &Message, place: &Place) -> Option<u32> {
    let (before, behind) = text.split_at_checked(place.byte_start)?;
    let number = |text: &str| text.split(')').next()?.parse().ok();
    let next = || number(behind.split_once(SWITCH)?.1);
    match before.rsplit_once(SWITCH) {
        Some((_, last)) if message.code.as_ref().is_none_or(|code| code.code != "E0004") => number(last),
        _ => next(),
    }
}
