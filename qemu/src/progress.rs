//! The display of a wait: a bar on a terminal, and elsewhere occasional lines.
//!
//! A wait of less than a second shows nothing, and no line appears while there is other output.
//! Everything goes to standard error. With `NO_COLOR` set or `TERM=dumb` a terminal gets lines too,
//! so that no escape sequence is written. All other output has to go through [`aside`]; otherwise
//! it would overwrite the bar.

use std::io::IsTerminal;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How long a wait lasts before it is shown.
const FIRST: Duration = Duration::from_secs(1);
/// The time between two lines, without a bar.
const BETWEEN: Duration = Duration::from_secs(10);
/// How often the bar moves.
const TICK: Duration = Duration::from_millis(100);

/// The bar that is on the terminal now.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// When the last output was printed.
static PRINTED: Mutex<Option<Instant>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `write`, which may print, while the bar is hidden.
pub fn aside<T>(write: impl FnOnce() -> T) -> T {
    *lock(&PRINTED) = Some(Instant::now());
    let bar = lock(&SHOWN).clone();
    match bar {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Whether standard error must not get escape sequences.
pub fn is_plain() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    is_set("NO_COLOR") || is_dumb || !std::io::stderr().is_terminal()
}

/// A wait that is shown while this lives.
#[derive(Debug)]
pub struct Progress {
    shared: Arc<Shared>,
    ticker: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// The state of a wait.
#[derive(Clone, Debug)]
struct State {
    what: String,
    message: String,
    /// How much is done, and of how much, if known.
    share: Option<(u64, u64)>,
    begun: Instant,
    over: bool,
}

impl State {
    fn percent(&self) -> Option<u64> {
        let (done, all) = self.share?;
        // In u128, for amounts near 2^64.
        Some((u128::from(done.min(all)) * 100 / u128::from(all.max(1))) as u64)
    }

    /// The state in one line, after `elapsed`.
    fn line(&self, elapsed: Duration) -> String {
        let mut line = self.what.clone();
        if let Some(percent) = self.percent() {
            line += &format!(": {percent} %");
        }
        if !self.message.is_empty() {
            line += &format!(": {}", self.message);
        }
        format!("{line} ({} s)", elapsed.as_secs())
    }
}

impl Progress {
    /// Begins a wait for `what`.
    pub fn begin(what: impl Into<String>) -> Progress {
        let state = State {
            what: what.into(),
            message: String::new(),
            share: None,
            begun: Instant::now(),
            over: false,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let theirs = shared.clone();
        let plain = is_plain();
        let show = move || if plain { theirs.show_lines() } else { theirs.show_bar() };
        // Without a thread for it the wait is just not shown.
        let ticker = std::thread::Builder::new().name("progress".into()).spawn(show).ok();
        Progress { shared, ticker }
    }

    /// Sets the text of the wait.
    pub fn message(&self, message: impl Into<String>) {
        lock(&self.shared.state).message = message.into();
    }

    /// Sets how much is done, and of how much.
    pub fn share(&self, done: u64, all: u64) {
        lock(&self.shared.state).share = Some((done, all));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        lock(&self.shared.state).over = true;
        self.shared.changed.notify_all();
        if let Some(ticker) = self.ticker.take() {
            // If the thread panicked, the panic has been printed.
            let _ = ticker.join();
        }
    }
}

impl Shared {
    /// Waits for the end of the wait, at most for `time`. Returns the state, or `None` at the end.
    fn next(&self, time: Duration) -> Option<State> {
        let state = lock(&self.state);
        let wait = self.changed.wait_timeout_while(state, time, |state| !state.over);
        let (state, _) = wait.unwrap_or_else(PoisonError::into_inner);
        (!state.over).then(|| state.clone())
    }

    fn show_lines(&self) {
        let mut time = FIRST;
        while let Some(state) = self.next(time) {
            let printed = lock(&PRINTED).filter(|printed| *printed > state.begun);
            let silence = printed.map_or(BETWEEN, |printed| printed.elapsed());
            time = BETWEEN.saturating_sub(silence);
            if time.is_zero() {
                complain!("ferrovia: {}", state.line(state.begun.elapsed()));
                time = BETWEEN;
            }
        }
    }

    fn show_bar(&self) {
        let Some(state) = self.next(FIRST) else { return };
        let bar = ProgressBar::with_draw_target(Some(100), ProgressDrawTarget::stderr());
        *lock(&SHOWN) = Some(bar.clone());
        let style =
            |template| ProgressStyle::with_template(template).map(|style| style.progress_chars("=> "));
        let (spinner, share) =
            (style("{spinner} {prefix}: {wide_msg}"), style("{spinner} {prefix} [{bar:30}] {wide_msg}"));
        bar.set_prefix(state.what.clone());
        let mut state = Some(state);
        while let Some(now) = state {
            let chosen = if now.share.is_some() { &share } else { &spinner };
            if let Ok(style) = chosen {
                bar.set_style(style.clone());
            }
            let percent = now.percent();
            bar.set_position(percent.unwrap_or(0));
            let percent = percent.map(|percent| format!("{percent} % ")).unwrap_or_default();
            bar.set_message(format!("{percent}{} ({} s)", now.message, now.begun.elapsed().as_secs()));
            bar.tick();
            state = self.next(TICK);
        }
        *lock(&SHOWN) = None;
        bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_done_and_for_how_long() {
        let mut state = State {
            what: "transfer".into(),
            message: String::new(),
            share: None,
            begun: Instant::now(),
            over: false,
        };
        let after = Duration::from_millis(12_900);
        assert_eq!(state.line(after), "transfer (12 s)");
        state.message = "by read".into();
        state.share = Some((1, 3));
        assert_eq!(state.line(after), "transfer: 33 %: by read (12 s)");
        state.share = Some((u64::MAX, u64::MAX));
        assert_eq!(state.percent(), Some(100));
        state.share = Some((0, 0));
        assert_eq!(state.percent(), Some(0));
    }

    #[test]
    fn a_short_wait_ends_at_once() {
        let begun = Instant::now();
        let progress = Progress::begin("nothing");
        progress.message("still nothing");
        progress.share(1, 2);
        drop(progress);
        assert!(begun.elapsed() < FIRST, "ending it must not wait for the next line");
    }
}
