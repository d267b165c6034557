//! `--break`: plants a bug and looks for a seed that finds it.
//!
//! Ordinary builds have no bugs to plant (`platform::planted`), so the program builds itself again
//! with them, in a target folder of its own, and runs that.

use std::process::{Command, ExitCode};

use platform::planted::Bug;

/// The bug of that name.
pub(crate) fn find(name: &str) -> Option<Bug> {
    Bug::ALL.iter().copied().find(|bug| bug.name() == name)
}

/// Lists all bugs.
pub(crate) fn list() {
    for bug in Bug::ALL {
        println!("{:<20} {}", bug.name(), bug.about());
    }
}

/// The command that builds this program with the bugs, and runs it.
fn rebuild() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| format!("{folder}/target"));
    let mut flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    flags.push_str(" --cfg ferrovia_break");
    let mut command = Command::new(cargo);
    command.current_dir(folder).env("RUSTFLAGS", flags.trim());
    command.args(["run", "--quiet", "--package", "sim", "--target-dir"]).arg(format!("{target}/break"));
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    command.arg("--");
    command
}

/// Runs the program that has the bugs, with the same arguments.
pub(crate) fn again(arguments: impl Iterator<Item = String>) -> ExitCode {
    match rebuild().args(arguments).status() {
        Ok(status) => ExitCode::from(status.code().map_or(1, |code| code as u8)),
        Err(error) => {
            eprintln!("building with planted bugs: {error}");
            ExitCode::from(2)
        }
    }
}

/// Plants a bug in this process. False if this build has none.
pub(crate) fn plant(bug: Bug) -> bool {
    // The device compares an STag where it compares InfiniBand's keys.
    let bug = if bug == Bug::StaleStag { Bug::StaleKey } else { bug };
    #[cfg(ferrovia_break)]
    platform::planted::plant(bug);
    let _ = bug;
    cfg!(ferrovia_break)
}
