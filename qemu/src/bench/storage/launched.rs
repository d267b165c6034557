//! A guest with its own launcher, and so with its own device process, whose CPU time belongs to
//! that guest alone.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::cpu_time::CpuTime;
use crate::error::{Error, Result};
use crate::process;

/// How many of the last lines an error shows.
const LAST: usize = 10;

/// A running launcher; dropping it ends it and its guest.
pub struct Launched {
    what: &'static str,
    child: Child,
    /// The lines that it writes, each with whether it went to standard output.
    lines: Receiver<(bool, String)>,
    last: VecDeque<String>,
}

impl Launched {
    /// Starts this program with other arguments. `what` names it in errors.
    pub fn start(what: &'static str, arguments: impl IntoIterator<Item = OsString>) -> Result<Launched> {
        let failed = |e: std::io::Error| Error::system("start another launcher", e);
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // On this signal a launcher ends its guest and removes its socket.
        process::bind(&mut command, Signal::TERM, Vec::new());
        let mut child = command.spawn().map_err(failed)?;
        let (sender, lines) = mpsc::channel();
        if let Some(output) = child.stdout.take() {
            read(output, true, sender.clone());
        }
        if let Some(errors) = child.stderr.take() {
            read(errors, false, sender);
        }
        Ok(Launched { what, child, lines, last: VecDeque::new() })
    }

    /// Waits for a line that begins with `start`, for `limit` at most.
    pub fn wait_for(&mut self, start: &str, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            match self.next(deadline)? {
                Some(line) if line.starts_with(start) => return Ok(()),
                Some(_) => {}
                None => return Err(self.failed("it has ended")),
            }
        }
    }

    /// Waits for its end, at most for `limit`. The end must be a success; `line` gets each line
    /// that it writes.
    pub fn finish(mut self, limit: Duration, mut line: impl FnMut(&str)) -> Result<()> {
        let deadline = Instant::now() + limit;
        while let Some(text) = self.next(deadline)? {
            line(&text);
        }
        let status = self.child.wait().map_err(|e| Error::system("wait for a launcher", e))?;
        if status.success() { Ok(()) } else { Err(self.failed(&status.to_string())) }
    }

    /// The CPU time that the launcher and its guest's QEMU have used until now.
    pub fn cpu_time(&self) -> Result<Duration> {
        CpuTime::of_launcher(self.child.id()).map_err(|e| Error::system("read the CPU time of a launcher", e))
    }

    /// The next line to standard output; `None` at its end.
    fn next(&mut self, deadline: Instant) -> Result<Option<String>> {
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok((is_output, line)) => {
                    if self.last.len() == LAST {
                        self.last.pop_front();
                    }
                    self.last.push_back(line.clone());
                    if is_output {
                        return Ok(Some(line));
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => return Err(self.failed("it takes too long")),
            }
        }
    }

    fn failed(&self, how: &str) -> Error {
        let mut text = format!("{}: {how}; its last lines:", self.what);
        for line in &self.last {
            text.push('\n');
            text.push_str(line);
        }
        Error::Tool(text)
    }
}

/// Passes each line of a pipe on, in a thread.
fn read(pipe: impl Read + Send + 'static, is_output: bool, sender: Sender<(bool, String)>) {
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).split(b'\n').map_while(std::result::Result::ok) {
            // The receiver is gone once the `Launched` is dropped.
            if sender.send((is_output, String::from_utf8_lossy(&line).into_owned())).is_err() {
                return;
            }
        }
    });
}

impl Drop for Launched {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            // These fail only if the launcher has ended already. Its guest and its socket end with
            // it.
            let _ = rustix::process::kill_process(Pid::from_child(&self.child), Signal::TERM);
            let _ = self.child.wait();
        }
    }
}
