//! Runs this program under Callgrind and reads what it counted.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::samples::Samples;

/// The argument that names the group to count.
pub const GROUP: &str = "--group";

/// What is counted.
#[derive(Clone, Copy)]
pub enum Unit {
    /// Instructions.
    Instructions,
    /// Misses of a data cache of 32 KiB, 8-way, with lines of 64 bytes.
    Lines,
    /// Misses of a TLB of 64 entries for pages of 4 KiB, 4-way, which Callgrind simulates as a data
    /// cache with such lines.
    Pages,
}

impl Unit {
    /// Callgrind's option for the data cache.
    fn cache(self) -> Option<&'static str> {
        match self {
            Unit::Instructions => None,
            Unit::Lines => Some("--D1=32768,8,64"),
            Unit::Pages => Some("--D1=262144,4,4096"),
        }
    }

    /// The events of Callgrind whose sum is the count.
    fn events(self) -> &'static [&'static str] {
        match self {
            Unit::Instructions => &["Ir"],
            Unit::Lines | Unit::Pages => &["D1mr", "D1mw"],
        }
    }
}

/// Counts the rows of a group.
pub fn run(group: &str, unit: Unit) -> Result<Samples, String> {
    qemu::setup::ensure_valgrind().map_err(|error| error.to_string())?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let folder = std::env::temp_dir().join(format!("ferrovia-instructions-{}-{group}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let samples = counted(&program, &folder, group, unit);
    let _ = fs::remove_dir_all(&folder);
    samples
}

fn counted(program: &Path, folder: &Path, group: &str, unit: Unit) -> Result<Samples, String> {
    let files = folder.join("counts");
    let answer = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet", "--dump-line=no"])
        // Valgrind runs one thread at a time, and without this a thread that polls may keep all
        // others from running.
        .arg("--fair-sched=try")
        .args(unit.cache().map(|cache| ["--cache-sim=yes", cache]).into_iter().flatten())
        // Callgrind collects while such a function runs, in that thread. Each file has the counts
        // since the previous file.
        .arg("--toggle-collect=instructions::calls::*")
        // Entered from there, this one switches the collection off until it returns: how long the
        // driver waits for an answer depends on the device's thread.
        .arg("--toggle-collect=ferrovia_nic_hal::admin::*::wait*")
        .args(["--dump-after=instructions::begin", "--dump-after=instructions::counted"])
        .arg(format!("--callgrind-out-file={}", files.display()))
        .arg(program)
        .args([GROUP, group])
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    if !answer.status.success() {
        let said = String::from_utf8_lossy(&answer.stderr);
        return Err(format!("counting {group} ended with {}:\n{said}", answer.status));
    }
    let mut samples = Samples::default();
    // Every second file: the others have the counts from between the samples.
    for (number, line) in (2..).step_by(2).zip(String::from_utf8_lossy(&answer.stdout).lines()) {
        let file = folder.join(format!("counts.{number}"));
        let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let total = total(&text, unit).ok_or_else(|| format!("{group}: no total for {line:?}"))?;
        samples.add_line(line, total).ok_or_else(|| format!("{group}: {line:?}"))?;
    }
    Ok(samples)
}

/// The sum of the unit's events in a file of Callgrind. That leaves out the zeros at the end of its
/// totals.
fn total(text: &str, unit: Unit) -> Option<u64> {
    let words = |name| text.lines().find_map(|line| line.strip_prefix(name)).map(str::split_whitespace);
    let (events, totals): (Vec<_>, Vec<_>) = (words("events: ")?.collect(), words("totals: ")?.collect());
    let of = |wanted| match totals.get(events.iter().position(|event| event == wanted)?) {
        Some(total) => total.parse::<u64>().ok(),
        None => Some(0),
    };
    unit.events().iter().map(of).sum()
}
