//! Runs this program under Callgrind and reads what it counted.

use std::fs;
use std::process::{Command, Stdio};

use crate::samples::Samples;

/// The argument that names the group to count.
pub const GROUP: &str = "--group";

/// Counts the rows of a group.
pub fn run(group: &str) -> Result<Samples, String> {
    qemu::setup::ensure_valgrind().map_err(|error| error.to_string())?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let folder = std::env::temp_dir().join(format!("ferrovia-instructions-{}-{group}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let samples = counted(&program, &folder, group);
    let _ = fs::remove_dir_all(&folder);
    samples
}

fn counted(program: &std::path::Path, folder: &std::path::Path, group: &str) -> Result<Samples, String> {
    let files = folder.join("counts");
    let answer = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet", "--dump-line=no"])
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
        let total = text.lines().find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok());
        let total = total.ok_or_else(|| format!("{group}: no total for {line:?}"))?;
        samples.add_line(line, total).ok_or_else(|| format!("{group}: {line:?}"))?;
    }
    Ok(samples)
}
