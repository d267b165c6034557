//! Progress on standard error: a line that is overwritten on a terminal, and elsewhere a line now
//! and then.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Between two looks at a terminal, and between two lines elsewhere.
const SOON: Duration = Duration::from_millis(200);
const NOW_AND_THEN: Duration = Duration::from_secs(20);

/// How far the run is.
pub(crate) struct Progress {
    total: u64,
    done: u64,
    start: Instant,
    shown: Instant,
    terminal: bool,
    /// The line on the terminal is not empty.
    dirty: bool,
}

impl Progress {
    pub(crate) fn new(total: u64) -> Progress {
        let terminal = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let now = Instant::now();
        Progress { total, done: 0, start: now, shown: now, terminal, dirty: false }
    }

    /// Another seed is done.
    pub(crate) fn done(&mut self) {
        self.done += 1;
        let wait = if self.terminal { SOON } else { NOW_AND_THEN };
        if self.shown.elapsed() < wait {
            return;
        }
        self.shown = Instant::now();
        let rate = self.done as f64 / self.start.elapsed().as_secs_f64();
        let left = (self.total - self.done) as f64 / rate;
        let line = format!("{} of {} seeds, {rate:.0} a second, {left:.0} s left", self.done, self.total);
        match self.terminal {
            true => eprint!("\r{line}\x1b[K"),
            false => eprintln!("{line}"),
        }
        self.dirty = self.terminal;
        let _ = std::io::stderr().flush();
    }

    /// Clears the line, for other output.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.dirty) {
            eprint!("\r\x1b[K");
        }
    }

    /// How many seeds were run.
    pub(crate) fn count(&self) -> u64 {
        self.done
    }
}
