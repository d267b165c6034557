//! A program that ends with the test, and what it writes.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use ferrovia_qemu::process;
use rustix::process::Signal;

/// A running program; dropping it ends it.
pub struct Running {
    pub child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    pub fn start(mut command: Command) -> Running {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        process::bind(&mut command, Signal::KILL, Vec::new());
        let mut child = command.spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        Running { child, lines }
    }

    /// Waits for a line that begins with `start`.
    #[track_caller]
    pub fn wait_for(&mut self, start: &str) -> String {
        let line = self.lines.by_ref().map_while(Result::ok).find(|line| line.starts_with(start));
        line.unwrap_or_else(|| panic!("it ended without a line {start:?}"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The launcher's command, without arguments. It is found at run time, since this program may have
/// been moved with its checkout.
pub fn launcher() -> Command {
    let program = std::env::current_exe().expect("this program");
    let programs = program.parent().and_then(Path::parent).expect("target/PROFILE/deps");
    Command::new(programs.join("ferrovia"))
}
