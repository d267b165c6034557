//! Puts the mutants into the copy, and builds the tests.

use std::collections::{BTreeMap, BTreeSet};

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::Failure;
use super::rewrite::{self, SWITCH};
use super::sites::{self, Mutant};

/// How often the mutants that do not build are taken out.
const ATTEMPTS: usize = 60;
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

/// Builds the tests with as many mutants as possible.
pub fn build(sources: &Sources, cargo: &[String]) -> Result<Built, Failure> {
    let mut left_out = BTreeSet::new();
    for attempt in 1..=ATTEMPTS {
        let mutants = put_in(sources, &left_out)?;
        println!("building {} mutants (attempt {attempt}) …", mutants.len());
        let mut programs = Vec::new();
        let mut wrong = BTreeSet::new();
        for arguments in [cargo.iter().map(String::as_str).collect(), SUITE.to_vec()] {
            if wrong.is_empty() {
                build_once(sources, &arguments, &mut programs, &mut wrong)?;
            }
        }
        if wrong.is_empty() {
            return Ok(Built { programs, mutants });
        }
        if wrong.is_subset(&left_out) {
            break;
        }
        left_out.append(&mut wrong);
    }
    Err("the sources with switches do not build; see the messages of cargo in the copy".into())
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

/// Builds once. Adds the programs, or the mutants that do not build.
fn build_once(
    sources: &Sources,
    arguments: &[&str],
    programs: &mut Vec<Program>,
    wrong: &mut BTreeSet<u32>,
) -> Result<(), Failure> {
    let output = Command::new("cargo")
        .args(["test", "--profile", "mutants", "--no-run", "--message-format=json"])
        .args(arguments)
        .current_dir(&sources.to)
        .stderr(Stdio::null())
        .output()?;
    for line in String::from_utf8(output.stdout)?.lines() {
        let Ok(line) = serde_json::from_str::<Line>(line) else { continue };
        if let (Some(file), Some(target), Some(manifest)) = (line.executable, line.target, line.manifest_path)
            && line.reason == "compiler-artifact"
        {
            let folder = manifest.parent().map(PathBuf::from).unwrap_or_default();
            programs.push(Program { folder, name: target.name, file });
        }
        if let Some(message) = line.message.filter(|message| message.level == "error") {
            for place in message.spans.iter().filter(|place| place.is_primary) {
                let text = fs::read(sources.to.join(&place.file_name))?;
                wrong.extend(at_fault(&String::from_utf8(text)?, &message, place));
            }
        }
    }
    if !output.status.success() && wrong.is_empty() {
        return Err("cargo builds the copy neither with the mutants nor says which of them is wrong".into());
    }
    Ok(())
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
