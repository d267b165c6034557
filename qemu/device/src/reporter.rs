//! What the device's thread writes: complaints, and the counters.
//!
//! A thread of its own writes them, since a terminal, a pipe or a disk may be slow or hang, and the
//! device must not. The counters that are to be written next replace earlier ones that still wait.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::counters;
use crate::error::{Error, Result};

/// The most complaints that wait; later ones are left out.
const COMPLAINTS: usize = 16;
/// How long the end of the device waits for what is still to be written.
const LINGER: Duration = Duration::from_secs(2);

/// The writing thread.
pub(crate) struct Reporter(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    complaints: VecDeque<String>,
    counters: Option<Vec<u8>>,
    /// Whether the thread is writing.
    writes: bool,
    /// Whether the file could not be written: it gets no more counters.
    failed: bool,
    closed: bool,
}

impl State {
    fn waits(&self) -> bool {
        !self.complaints.is_empty() || self.counters.is_some()
    }
}

impl Reporter {
    /// Starts the thread, which writes counters to `file`, and prints complaints by `complain`.
    pub fn start(file: Option<PathBuf>, complain: impl Fn(&str) + Send + 'static) -> Result<Reporter> {
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let run = move || theirs.run(file, complain);
        let thread = std::thread::Builder::new().name("reporter".into()).spawn(run);
        thread.map_err(|e| Error::system("start the device", e))?;
        Ok(Reporter(shared))
    }

    /// Prints a line for the user.
    pub fn complain(&self, line: String) {
        let mut state = self.0.lock();
        if state.complaints.len() < COMPLAINTS {
            state.complaints.push_back(line);
        }
        self.0.changed.notify_all();
    }

    /// Whether counters are of use.
    pub fn takes_counters(&self) -> bool {
        !self.0.lock().failed
    }

    /// Writes these counters, unless others come before the file is ready for them.
    pub fn counters(&self, json: Vec<u8>) {
        self.0.lock().counters = Some(json);
        self.0.changed.notify_all();
    }

    /// Waits until all is written, but not for long.
    pub fn finish(self) {
        let unfinished = |state: &mut State| state.writes || state.waits();
        drop(self.0.changed.wait_timeout_while(self.0.lock(), LINGER, unfinished));
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, file: Option<PathBuf>, complain: impl Fn(&str)) {
        loop {
            let idle = |state: &mut State| !state.waits() && !state.closed;
            let state = self.changed.wait_while(self.lock(), idle);
            let mut state = state.unwrap_or_else(PoisonError::into_inner);
            if !state.waits() {
                return;
            }
            state.writes = true;
            let complaints = std::mem::take(&mut state.complaints);
            let counters = state.counters.take().filter(|_| !state.failed);
            drop(state);
            complaints.iter().for_each(|line| complain(line));
            let written = match (&file, counters) {
                (Some(file), Some(json)) => counters::replace(file, &json).map_err(|error| (file, error)),
                _ => Ok(()),
            };
            if let Err((file, error)) = &written {
                complain(&format!("ferrovia: {}: {error}; no more counters are written", file.display()));
            }
            let mut state = self.lock();
            state.writes = false;
            state.failed |= written.is_err();
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_terminal_that_hangs_holds_nobody_and_the_newest_counters_are_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("counters");
        let (go_on, hangs) = mpsc::channel::<()>();
        let (said, lines) = mpsc::channel();
        let reporter = Reporter::start(Some(file.clone()), move |line| {
            let _ = said.send(line.to_owned());
            let _ = hangs.recv();
        });
        let reporter = reporter.expect("a thread");
        reporter.complain("first".into());
        assert_eq!(lines.recv().as_deref(), Ok("first"));
        // The thread hangs now.
        for n in 0..1000 {
            reporter.complain(format!("{n}"));
            reporter.counters(format!("[{n}]").into_bytes());
        }
        drop(go_on);
        reporter.finish();
        assert_eq!(std::fs::read(&file).expect("counters"), b"[999]");
        assert_eq!(lines.iter().count(), COMPLAINTS);
    }

    #[test]
    fn a_file_that_can_not_be_written_is_given_up_with_one_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let (said, lines) = mpsc::channel();
        let say = move |line: &str| drop(said.send(line.to_owned()));
        let reporter = Reporter::start(Some(folder.path().join("no/counters")), say).expect("a thread");
        reporter.counters(b"[]".to_vec());
        let line = lines.recv().expect("a line");
        assert!(line.ends_with("no more counters are written"), "{line}");
        reporter.counters(b"[]".to_vec());
        reporter.finish();
        assert!(lines.recv().is_err(), "it says so once");
    }
}
