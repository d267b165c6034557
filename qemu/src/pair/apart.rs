//! Two launchers, and so two device processes, whose NICs are joined by a UNIX stream socket.
//!
//! Each launcher is this program, with one guest. It ends when this process ends, and so does its
//! guest.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::console::LineBuffer;
use crate::error::{Error, Result};
use crate::launch::print_line;
use crate::options::Options;
use crate::process;
use crate::signals::{Asked, Signals};
use crate::temporary;
use crate::vm::drain;

use super::programs::is_ready;
use super::verdict::Verdict;
use super::{A, B, NAMES};

/// A launcher with its guest; dropping it ends both.
struct Machine {
    child: Child,
    pidfd: OwnedFd,
    stdout: (ChildStdout, LineBuffer),
    stderr: (ChildStderr, LineBuffer),
    ended: bool,
}

impl Machine {
    fn start(options: &Options, socket: &Path, number: usize, command: &[OsString]) -> Result<Machine> {
        let failed = |e: std::io::Error| Error::system("start another launcher", e);
        let mut launcher = Command::new(std::env::current_exe().map_err(failed)?);
        launcher.args(options.of_a_machine(number, socket)).args(command);
        launcher.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // On this signal a launcher ends its guest and removes its socket.
        process::bind(&mut launcher, Signal::TERM, Vec::new());
        let mut child = launcher.spawn().map_err(failed)?;
        let pidfd = rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
            .map_err(|e| failed(e.into()))?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (Some(stdout), Some(stderr)) = (stdout, stderr) else {
            return Err(failed(ErrorKind::NotFound.into()));
        };
        for pipe in [stdout.as_fd(), stderr.as_fd()] {
            rustix::io::ioctl_fionbio(pipe, true).map_err(|e| failed(e.into()))?;
        }
        let [out, err] = [LineBuffer::default(), LineBuffer::default()];
        Ok(Machine { child, pidfd, stdout: (stdout, out), stderr: (stderr, err), ended: false })
    }

    /// The lines that the launcher has written since the last call: to standard output, and to
    /// standard error.
    fn hear(&mut self) -> [Vec<String>; 2] {
        let mut lines = [Vec::new(), Vec::new()];
        drain(&mut self.stdout.0, |bytes| lines[0].extend(self.stdout.1.feed(bytes)));
        drain(&mut self.stderr.0, |bytes| lines[1].extend(self.stderr.1.feed(bytes)));
        if self.ended {
            lines[0].extend(self.stdout.1.rest());
            lines[1].extend(self.stderr.1.rest());
        }
        lines
    }

    fn status(&mut self) -> Result<u8> {
        let status = self.child.wait().map_err(|e| Error::system("wait for a launcher", e))?;
        match status.code().map(u8::try_from) {
            Some(Ok(code)) => Ok(code),
            _ => Err(Error::Tool(format!("its launcher ended by {status}"))),
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if !self.ended {
            // These fail only if the launcher has ended already. Its guest and its socket end with
            // it.
            let _ = rustix::process::kill_process(Pid::from_child(&self.child), Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

/// Runs two launchers with these commands and this process's options. With `in_turn` machine A
/// starts when the server on machine B listens. A line for which `takes` returns true is not passed
/// on.
pub fn run(
    options: &Options,
    commands: &[Vec<OsString>; 2],
    in_turn: bool,
    mut takes: impl FnMut(usize, &str) -> Result<bool>,
) -> Result<u8> {
    let signals = Signals::watch()?;
    let socket = Socket::new()?;
    let start = |number: usize| Machine::start(options, &socket.0, number, &commands[number]);
    let mut machines = [None, Some(start(B)?)];
    if !in_turn {
        machines[A] = Some(start(A)?);
    }
    let mut verdict = Verdict::default();
    loop {
        wait(&mut machines, signals, verdict.patience_ends)?;
        for number in [A, B] {
            let Some(machine) = &mut machines[number] else { continue };
            let [said, complaints] = machine.hear();
            let ended = machine.ended;
            for line in complaints {
                complain!("{}: {line}", NAMES[number]);
            }
            for line in said {
                if number == B && machines[A].is_none() && is_ready(&line) {
                    machines[A] = Some(start(A)?);
                }
                if !takes(number, &line)? {
                    print_line(&format!("{}: {line}", NAMES[number]))?;
                }
            }
            if ended && let Some(mut machine) = machines[number].take() {
                verdict.ended(number, machine.status());
                // If the server ended before it listened, there is nothing for the client to do.
                if machines.iter().all(Option::is_none) {
                    return verdict.conclude([]);
                }
            }
        }
        if verdict.is_over() {
            let running: Vec<usize> = [A, B].into_iter().filter(|&n| machines[n].is_some()).collect();
            return verdict.conclude(running);
        }
    }
}

/// A path for the socket that no other launcher uses. The machine that listens there removes it,
/// unless it is killed.
struct Socket(PathBuf);

impl Socket {
    fn new() -> Result<Socket> {
        temporary::socket("pair").map(Socket)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Fails if it has been removed already.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Waits until a machine has written something or has ended, at most until `deadline`.
fn wait(machines: &mut [Option<Machine>; 2], signals: &Signals, deadline: Option<Instant>) -> Result<()> {
    let running: Vec<usize> = [A, B].into_iter().filter(|&n| machines[n].is_some()).collect();
    let mut fds = Vec::new();
    for machine in machines.iter().flatten() {
        let all = [machine.pidfd.as_fd(), machine.stdout.0.as_fd(), machine.stderr.0.as_fd()];
        fds.extend(all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    }
    fds.extend(signals.descriptors().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let timeout = left.and_then(|left| Timespec::try_from(left).ok());
    match rustix::event::poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(e) => return Err(Error::system("wait for the launchers", e)),
    }
    let ended: Vec<bool> = fds.iter().step_by(3).map(|fd| !fd.revents().is_empty()).collect();
    match signals.arrived() {
        Some(Asked::End(signal)) => return Err(Error::Interrupted(signal)),
        // The launchers have received the same signal from the terminal, and stop their guests.
        Some(Asked::Stop) => rustix::process::kill_process(rustix::process::getpid(), Signal::STOP)
            .map_err(|e| Error::system("stop", e))?,
        None => {}
    }
    for (number, ended) in running.into_iter().zip(ended) {
        if let Some(machine) = &mut machines[number] {
            machine.ended = ended;
        }
    }
    Ok(())
}
