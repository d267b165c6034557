//! The lines in which the suite's image reports its tests. No I/O and no clock: lines and times are
//! arguments.
//!
//! | line | meaning |
//! |---|---|
//! | `@test start NAME [SECONDS]` | a test begins; its time limit, [`DEFAULT_LIMIT`] if it names none |
//! | `@test rows NAME ID…` | rows of the catalogue that the test shows when it passes; may be repeated |
//! | `@test ok NAME MICROSECONDS` | it passed |
//! | `@test fail NAME FILE:LINE: MESSAGE` | it failed, and the suite continues |
//! | `@test elsewhere NAME MESSAGE` | this machine cannot show what the test is for |
//! | `@reboot` | the launcher has to boot the suite again, which continues after the last test |
//! | `@done` | no test is left |
//!
//! Every other line is output of the running test. The suite is booted with `filter=WORD` for each
//! filter, and from the second boot on with `after=NAME`: then it skips all tests up to that one.
//! `packets` is added if the NICs exchange packets, and `lossy` if their link is lossy.

use std::time::{Duration, Instant};

use crate::launch::is_crash;

/// The time limit of a test that names none.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(60);
/// The longest time limit that a test can name, in seconds.
const LONGEST_LIMIT: u64 = 600;
/// How many lines of a test's output are kept: the first ones, since they show the first failure.
const KEPT_LINES: usize = 200;

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All its checks held.
    Passed,
    /// A check did not hold: where and why, in one line.
    Failed(String),
    /// The machine cannot show what the test is for, and why.
    NotShown(String),
}

/// A test that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestResult {
    /// Its name.
    pub name: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Its duration: by the guest's clock if it passed, else by the launcher's.
    pub time: Duration,
    /// The rows of the catalogue that it names.
    pub rows: Vec<String>,
    /// The output of the test.
    pub output: Vec<String>,
}

#[derive(Debug)]
struct Running {
    name: String,
    started: Instant,
    limit: Duration,
    rows: Vec<String>,
    output: Vec<String>,
    crash: Option<String>,
}

impl Running {
    fn end(self, outcome: Outcome, time: Duration) -> TestResult {
        TestResult { name: self.name, outcome, time, rows: self.rows, output: self.output }
    }
}

/// What to do after a guest has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// All tests have run.
    Finished,
    /// Boot again, and continue after the test [`Suite::last`].
    Boot,
    /// No test ended since the last boot, so another boot would not help.
    Stuck,
}

/// The course of a suite, over as many guests as needed.
#[derive(Debug)]
pub struct Suite {
    running: Option<Running>,
    last: Option<String>,
    done: bool,
    /// The suite asked for a new boot, or no test is left: the end of the guest is not a failure.
    leaving: bool,
    /// A test has ended since the last boot.
    progress: bool,
    ended: usize,
    /// The time since which no test runs.
    idle: Instant,
    crash: Option<String>,
    stray: Vec<String>,
}

impl Suite {
    /// A suite before its first boot.
    pub fn new(now: Instant) -> Suite {
        Suite {
            running: None,
            last: None,
            done: false,
            leaving: false,
            progress: false,
            ended: 0,
            idle: now,
            crash: None,
            stray: Vec::new(),
        }
    }

    /// The last test that ended.
    pub fn last(&self) -> Option<&str> {
        self.last.as_deref()
    }

    /// How many tests have ended.
    pub fn ended(&self) -> usize {
        self.ended
    }

    /// The running test.
    pub fn running(&self) -> Option<&str> {
        self.running.as_ref().map(|running| running.name.as_str())
    }

    /// A new guest was started.
    pub fn booted(&mut self, now: Instant) {
        self.leaving = false;
        self.progress = false;
        self.idle = now;
        self.crash = None;
        self.stray.clear();
    }

    /// When the guest has to be killed, unless a test begins or ends earlier.
    pub fn deadline(&self) -> Instant {
        match &self.running {
            Some(running) => running.started + running.limit,
            None => self.idle + DEFAULT_LIMIT,
        }
    }

    /// Takes a line; returns the test that ended with it, if any.
    pub fn line(&mut self, line: &str, now: Instant) -> Option<TestResult> {
        match line
            .strip_prefix('@')
            .map(|line| line.trim_end().split_once(' ').unwrap_or((line.trim_end(), "")))
        {
            Some(("test", rest)) => {
                let (verb, rest) = rest.split_once(' ').unwrap_or((rest, ""));
                let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
                self.test_line(verb, name, rest, now)
            }
            Some(("done", "")) => {
                self.done = true;
                self.leaving = true;
                None
            }
            Some(("reboot", "")) => {
                self.leaving = true;
                None
            }
            _ => {
                self.output(line);
                None
            }
        }
    }

    fn test_line(&mut self, verb: &str, name: &str, rest: &str, now: Instant) -> Option<TestResult> {
        let is_running = self.running.as_ref().is_some_and(|running| running.name == name);
        match verb {
            "start" if !name.is_empty() => {
                let left = self.end_running("it ended without a result", now);
                let limit = rest
                    .trim()
                    .parse()
                    .map_or(DEFAULT_LIMIT, |s: u64| Duration::from_secs(s.min(LONGEST_LIMIT)));
                let (rows, output) = (Vec::new(), Vec::new());
                self.running =
                    Some(Running { name: name.to_owned(), started: now, limit, rows, output, crash: None });
                left
            }
            "rows" if is_running => {
                if let Some(running) = &mut self.running {
                    running.rows.extend(rest.split_whitespace().map(str::to_owned));
                }
                None
            }
            "ok" if is_running => {
                let time = rest.trim().parse().map(Duration::from_micros);
                self.finish(Outcome::Passed, time.ok(), now)
            }
            "fail" if is_running => self.finish(Outcome::Failed(rest.to_owned()), None, now),
            "elsewhere" if is_running => self.finish(Outcome::NotShown(rest.to_owned()), None, now),
            _ => {
                self.output(&format!("@test {verb} {name} {rest}"));
                None
            }
        }
    }

    fn output(&mut self, line: &str) {
        let crash = is_crash(line).then(|| line.to_owned());
        let (kept, first) = match &mut self.running {
            Some(running) => (&mut running.output, &mut running.crash),
            None => (&mut self.stray, &mut self.crash),
        };
        if first.is_none() {
            *first = crash;
        }
        if kept.len() < KEPT_LINES {
            kept.push(line.to_owned());
        }
    }

    fn finish(&mut self, outcome: Outcome, time: Option<Duration>, now: Instant) -> Option<TestResult> {
        let running = self.running.take()?;
        let time = time.unwrap_or_else(|| now.saturating_duration_since(running.started));
        self.last = Some(running.name.clone());
        self.progress = true;
        self.ended += 1;
        self.idle = now;
        Some(running.end(outcome, time))
    }

    /// Ends the running test, if any, as failed: with the kernel's report of a crash as the reason
    /// if there is one, else with `why`.
    fn end_running(&mut self, why: &str, now: Instant) -> Option<TestResult> {
        let crash = self.running.as_ref()?.crash.clone();
        let why = crash.unwrap_or_else(|| why.to_owned());
        self.finish(Outcome::Failed(why), None, now)
    }

    /// The guest has ended because of `why`. Returns the test that failed by that, and what to do
    /// next.
    pub fn guest_ended(&mut self, why: &str, now: Instant) -> (Option<TestResult>, Next) {
        let victim = match self.end_running(why, now) {
            Some(result) => Some(result),
            None if self.leaving && self.crash.is_none() => None,
            None => {
                // No test ran, so no test's failure reports it.
                let name = self
                    .last
                    .as_ref()
                    .map_or("(before the first test)".into(), |last| format!("(after {last})"));
                let why = self.crash.take().unwrap_or_else(|| format!("between tests: {why}"));
                let output = std::mem::take(&mut self.stray);
                let (outcome, time) = (Outcome::Failed(why), now.saturating_duration_since(self.idle));
                Some(TestResult { name, outcome, time, rows: Vec::new(), output })
            }
        };
        let next = match (self.done, self.progress) {
            (true, _) => Next::Finished,
            (false, true) => Next::Boot,
            (false, false) => Next::Stuck,
        };
        (victim, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(suite: &mut Suite, now: Instant, lines: &[&str]) -> Vec<TestResult> {
        lines.iter().filter_map(|line| suite.line(line, now)).collect()
    }

    fn brief(results: &[TestResult]) -> Vec<(&str, Option<&str>)> {
        let why = |r: &TestResult| match &r.outcome {
            Outcome::Passed => None,
            Outcome::Failed(why) | Outcome::NotShown(why) => Some(why.clone().leak() as &str),
        };
        results.iter().map(|r| (r.name.as_str(), why(r))).collect()
    }

    #[test]
    fn a_suite_that_goes_well() {
        let now = Instant::now();
        let mut suite = Suite::new(now);
        let results = feed(
            &mut suite,
            now,
            &[
                "booting",
                "@test start lmr::create",
                "@test rows lmr::create a.B01 a.B02",
                "some output",
                "@test rows lmr::create a.F01 ",
                "@test ok lmr::create 1500",
                "@test start lmr::free 5",
                "@test fail lmr::free tests/src/lmr.rs:12: 1 is not 2",
                "@done",
            ],
        );
        assert_eq!(
            brief(&results),
            [("lmr::create", None), ("lmr::free", Some("tests/src/lmr.rs:12: 1 is not 2"))]
        );
        assert_eq!(results[0].time, Duration::from_micros(1500));
        assert_eq!(results[0].rows, ["a.B01", "a.B02", "a.F01"]);
        assert_eq!(results[0].output, ["some output"]);
        assert_eq!(suite.guest_ended("status 0", now), (None, Next::Finished));
    }

    #[test]
    fn a_panic_is_the_running_tests_failure() {
        let now = Instant::now();
        let mut suite = Suite::new(now);
        let panic = "PANIC in thread 3 \"test\" on cpu 0: oh no";
        feed(
            &mut suite,
            now,
            &["@test start a", "@test ok a 1", "@test start b", panic, "backtrace:", "FAULT again"],
        );
        let (victim, next) = suite.guest_ended("status 100", now);
        assert_eq!(brief(&Vec::from_iter(victim)), [("b", Some(panic))]);
        assert_eq!((next, suite.last()), (Next::Boot, Some("b")));
    }

    #[test]
    fn a_guest_that_is_ended_fails_the_running_test() {
        let now = Instant::now();
        let mut suite = Suite::new(now);
        feed(&mut suite, now, &["@test start a"]);
        let (victim, next) = suite.guest_ended("its heartbeat stopped", now + Duration::from_secs(3));
        let victim = victim.expect("a ran");
        assert_eq!(victim.outcome, Outcome::Failed("its heartbeat stopped".into()));
        assert_eq!((victim.time, next), (Duration::from_secs(3), Next::Boot));
        suite.booted(now);
        assert_eq!(feed(&mut suite, now, &["@test start b", "@test ok b 1", "@done"]).len(), 1);
        assert_eq!(suite.guest_ended("", now), (None, Next::Finished));
    }

    #[test]
    fn limits_are_the_tests_own() {
        let now = Instant::now();
        let mut suite = Suite::new(now);
        assert_eq!(suite.deadline(), now + DEFAULT_LIMIT);
        feed(&mut suite, now, &["@test start a 5"]);
        assert_eq!(suite.deadline(), now + Duration::from_secs(5));
        feed(&mut suite, now, &["@test ok a 1", "@test start b"]);
        assert_eq!(suite.deadline(), now + DEFAULT_LIMIT);
        feed(&mut suite, now, &["@test ok b 1", "@test start c 99999999999999"]);
        assert_eq!(suite.deadline(), now + Duration::from_secs(LONGEST_LIMIT));
    }

    #[test]
    fn a_wanted_reboot_is_no_failure() {
        let now = Instant::now();
        let mut suite = Suite::new(now);
        feed(&mut suite, now, &["@test start a", "@test ok a 1", "@reboot"]);
        assert_eq!(suite.guest_ended("status 0", now), (None, Next::Boot));
        suite.booted(now);
        feed(&mut suite, now, &["@reboot"]);
        assert_eq!(suite.guest_ended("status 0", now), (None, Next::Stuck), "a boot without progress");
    }

    #[test]
    fn a_crash_between_tests_is_reported_and_does_not_loop() {
        let now = Instant::now();
        let mut suite = Suite::new(now);
        feed(&mut suite, now, &["@test start a", "@test ok a 1", "FAULT in thread 9"]);
        let (victim, next) = suite.guest_ended("status 101", now);
        assert_eq!(brief(&Vec::from_iter(victim)), [("(after a)", Some("FAULT in thread 9"))]);
        assert_eq!(next, Next::Boot);
        suite.booted(now);
        let (victim, next) = suite.guest_ended("no status", now);
        assert_eq!(brief(&Vec::from_iter(victim)), [("(after a)", Some("between tests: no status"))]);
        assert_eq!(next, Next::Stuck);
    }

    #[test]
    fn a_crash_after_the_last_test_still_fails() {
        let now = Instant::now();
        let mut suite = Suite::new(now);
        feed(&mut suite, now, &["@test start a", "@test ok a 1", "@done", "PANIC at the end"]);
        let (victim, next) = suite.guest_ended("status 100", now);
        assert_eq!(brief(&Vec::from_iter(victim)), [("(after a)", Some("PANIC at the end"))]);
        assert_eq!(next, Next::Finished);
    }

    #[test]
    fn lines_out_of_order_pass_nothing() {
        let now = Instant::now();
        let mut suite = Suite::new(now);
        let lines = [
            "@test ok a 1",
            "@test",
            "@test start",
            "@test start ",
            "@test fail",
            "@nonsense",
            "@",
            "@test rows a x",
        ];
        assert_eq!(feed(&mut suite, now, &lines), []);
        let results =
            feed(&mut suite, now, &["@test start a", "@test ok b 1", "@test start c", "@test ok c 1"]);
        assert_eq!(brief(&results), [("a", Some("it ended without a result")), ("c", None)]);
    }
}
