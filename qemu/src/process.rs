//! Child processes: those that inherit descriptors and end when this process does, even by SIGKILL;
//! and those that must answer in time.
#![expect(unsafe_code, reason = "code between fork and exec")]

use std::io::{self, Read};
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, FdFlags};
use rustix::process::{Pid, PidfdFlags, Signal};

/// How long the rest of an answer may take after the end of the program.
const REST_TIME: Duration = Duration::from_secs(5);
/// The most bytes of an answer.
const LONGEST_ANSWER: u64 = 64 << 10;

/// Makes the child of `command` inherit `descriptors` under their numbers, and get `signal` when
/// the thread that spawns it ends, however it ends.
///
/// The descriptors must stay open until the child has been spawned.
pub fn bind(command: &mut Command, signal: Signal, descriptors: Vec<RawFd>) {
    let parent = rustix::process::getpid();
    let prepare = move || -> io::Result<()> {
        rustix::process::set_parent_process_death_signal(Some(signal))?;
        // If the parent ended before that call, the signal never comes.
        if rustix::process::getppid() != Some(parent) {
            return Err(Errno::SRCH.into());
        }
        for &number in &descriptors {
            // SAFETY: the caller keeps it open until after the fork, so the child has it too.
            let fd = unsafe { BorrowedFd::borrow_raw(number) };
            rustix::io::fcntl_setfd(fd, FdFlags::empty())?;
        }
        Ok(())
    };
    // SAFETY: only system calls, no allocation and no lock; fit to run between fork and exec.
    unsafe { command.pre_exec(prepare) };
}

/// Runs `command` and returns its status and what it wrote. `None` if it has not ended after
/// `limit`; then it is killed, with all processes that it started.
pub fn answer(mut command: Command, limit: Duration) -> io::Result<Option<Output>> {
    bind(&mut command, Signal::KILL, Vec::new());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn()?;
    let (stdout, stderr) = (collect(child.stdout.take()), collect(child.stderr.take()));
    if !has_ended(&child, limit)? {
        // These fail only if the child has ended already.
        let _ = rustix::process::kill_process_group(Pid::from_child(&child), Signal::KILL);
        let _ = child.wait();
        return Ok(None);
    }
    let status = child.wait()?;
    let [stdout, stderr] = [stdout, stderr].map(|of| of.recv_timeout(REST_TIME).unwrap_or_default());
    Ok(Some(Output { status, stdout, stderr }))
}

/// Sends what comes out of a pipe, when it ends.
fn collect(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (sender, written) = mpsc::channel();
    // A separate thread reads, since a process that the child started may keep the pipe open for
    // ever.
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            // An error ends the answer, like the end of the pipe.
            let _ = pipe.take(LONGEST_ANSWER).read_to_end(&mut bytes);
        }
        // The receiver is gone if the answer took too long.
        let _ = sender.send(bytes);
    });
    written
}

/// Waits for a child's end, at most for `limit`.
fn has_ended(child: &Child, limit: Duration) -> io::Result<bool> {
    let pidfd = rustix::process::pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let deadline = std::time::Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        let timeout = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        match rustix::event::poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn an_answer_has_its_status() {
        let command = shell("echo yes; echo no >&2; exit 3");
        let answer = answer(command, Duration::from_secs(60)).expect("it runs");
        let Output { status, stdout, stderr } = answer.expect("in time");
        assert_eq!((status.code(), &*stdout, &*stderr), (Some(3), &b"yes\n"[..], &b"no\n"[..]));
    }

    #[test]
    fn a_program_that_does_not_end_is_killed_with_its_children() {
        let begun = Instant::now();
        let limit = Duration::from_millis(200);
        assert!(answer(shell("sleep 600 & echo never; wait"), limit).expect("it runs").is_none());
        assert!(begun.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn an_endless_answer_is_cut() {
        let answer = answer(shell("yes"), Duration::from_secs(60)).expect("it runs").expect("in time");
        assert_eq!(answer.stdout.len() as u64, LONGEST_ANSWER);
        assert!(!answer.status.success());
    }
}
