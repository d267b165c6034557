//! Runs the conformance suite in the kernel on each of its machines. It boots guests until every
//! test has ended.
//!
//! A test that panics, faults or hangs ends its guest. It is reported, and the next guest continues
//! after it. [`crate::suite`] documents the lines that the image writes.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::conformance;
use crate::error::{Error, Result};
use crate::launch::{Launcher, print_line};
use crate::machines::Machine;
use crate::network::{Network, Plug, Transport};
use crate::options::Options;
use crate::progress::Progress;
use crate::suite::{Next, Outcome, Suite, TestResult};
use crate::vm::{Event, Exit};

/// A test that has ended, with its machine.
#[derive(Clone, Debug)]
pub struct Ran {
    /// The machine that it ran on.
    pub machine: Machine,
    /// How it ended.
    pub result: TestResult,
}

/// The result of a suite.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// The machines that it ran on.
    pub machines: Vec<Machine>,
    /// All tests that ran, in their order.
    pub results: Vec<Ran>,
}

impl Summary {
    /// How many passed.
    pub fn passed(&self) -> usize {
        self.passes().count()
    }

    fn passes(&self) -> impl Iterator<Item = &TestResult> {
        self.results.iter().map(|ran| &ran.result).filter(|result| result.outcome == Outcome::Passed)
    }

    /// How many tests failed.
    pub fn failed(&self) -> usize {
        self.results.iter().filter(|ran| matches!(ran.result.outcome, Outcome::Failed(_))).count()
    }

    /// The tests that showed nothing on their machine, and why.
    pub fn not_shown(&self) -> impl Iterator<Item = (&Ran, &str)> {
        self.results.iter().filter_map(|ran| match &ran.result.outcome {
            Outcome::NotShown(why) => Some((ran, why.as_str())),
            _ => None,
        })
    }

    /// The tests that showed something on none of the machines.
    fn shown_nowhere(&self) -> Vec<String> {
        let here = |ran: &&Ran| self.machines.contains(&ran.machine);
        let names = |is: fn(&Outcome) -> bool| {
            let chosen = self.results.iter().filter(here).filter(move |ran| is(&ran.result.outcome));
            chosen.map(|ran| ran.result.name.clone()).collect::<BTreeSet<String>>()
        };
        let passed = names(|outcome| matches!(outcome, Outcome::Passed));
        let not_shown = names(|outcome| matches!(outcome, Outcome::NotShown(_)));
        not_shown.difference(&passed).cloned().collect()
    }

    /// Whether at least one test passed and none failed.
    pub fn is_success(&self) -> bool {
        self.passed() > 0 && self.failed() == 0
    }

    /// The rows of the catalogue that are shown: every test that names the row passed on every
    /// machine that can show it, and on at least one.
    pub fn shown(&self) -> BTreeSet<String> {
        let mut times: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for Ran { result, .. } in &self.results {
            let (ran, passed) = times.entry(&result.name).or_default();
            *ran += usize::from(!matches!(result.outcome, Outcome::Failed(_)));
            *passed += usize::from(result.outcome == Outcome::Passed);
        }
        let everywhere = |result: &TestResult| {
            let (ran, passed) = times.get(result.name.as_str()).copied().unwrap_or_default();
            let failed = matches!(result.outcome, Outcome::Failed(_));
            !failed && passed > 0 && ran >= self.machines.len()
        };
        let (mut shown, mut refuted) = (BTreeSet::new(), BTreeSet::new());
        for Ran { result, .. } in &self.results {
            let rows = if everywhere(result) { &mut shown } else { &mut refuted };
            rows.extend(result.rows.iter().cloned());
        }
        shown.retain(|row| !refuted.contains(row));
        shown
    }
}

/// The image of the conformance suite.
pub const SUITE: &str = "suite";

/// Runs the conformance suite on every machine that the options ask for; see [`run`]. Tests that
/// show something on none of them run between NICs that exchange packets, too. Unless the options
/// name a transport, the tests that are of none also run on IAs over iWARP, on the last machine;
/// there they count for no row, unless they fail.
///
/// Machines with no disk, link or file in common run side by side, as many as the host has CPUs.
pub fn run_suite(
    options: &Options,
    filters: &[String],
    show_output: bool,
    report: impl FnMut(&Ran) -> Result<()> + Send,
) -> Result<Summary> {
    filters.iter().try_for_each(|filter| check_filter(filter))?;
    let usual = Machine::of(options);
    let mut machines: Vec<Options> = usual.iter().map(|machine| machine.options(options)).collect();
    let last = usual.last().filter(|machine| machine.transport == Transport::Infiniband);
    let over_iwarp = last.map(|&machine| Machine { transport: Transport::Iwarp, ..machine }.options(options));
    machines.extend(over_iwarp.filter(|options| options.network.check().is_ok()));
    // The lines that guests write do not say whose they are.
    let at_once = if !show_output && share_nothing(options) { host_cpus() } else { 1 };
    let run = Run { image: SUITE, filters, show_output, shows_progress: true, report: &Mutex::new(report) };
    let mut all = Summary { machines: usual, results: run.machines(&machines, at_once)? };
    // What none of these machines could show is tried once more between NICs that exchange packets.
    let open = all.shown_nowhere();
    if !open.is_empty()
        && options.network.transport() == Transport::Infiniband
        && options.network.is_short_cut()
        && options.chosen_nics().is_none_or(|nics| nics == 2)
    {
        let network = Network { links: vec![Plug::Pair], ..options.network.clone() };
        let options = Options { network, nics: Some(2), ..options.clone() };
        all.results.extend(Run { filters: &open, ..run }.machine(&options)?);
    }
    Ok(all)
}

/// Whether several machines with these options would have no disk, link or file in common.
fn share_nothing(options: &Options) -> bool {
    let Network { pcap, counters, .. } = &options.network;
    options.disks().is_empty() && options.network.is_short_cut() && pcap.is_none() && counters.is_none()
}

fn host_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Runs the tests of `image` whose names contain one of `filters` (all tests if there is no filter)
/// on one machine. Calls `report` for each test as it ends.
pub fn run(
    options: &Options,
    image: &str,
    filters: &[String],
    show_output: bool,
    report: impl FnMut(&Ran) -> Result<()> + Send,
) -> Result<Summary> {
    filters.iter().try_for_each(|filter| check_filter(filter))?;
    let run = Run { image, filters, show_output, shows_progress: false, report: &Mutex::new(report) };
    Ok(Summary { machines: vec![machine(options)], results: run.machine(options)? })
}

fn machine(options: &Options) -> Machine {
    Machine { nics: options.nics(), cpus: options.cpus(), transport: options.network.transport() }
}

/// What the machines of a run have in common.
struct Run<'a, Report> {
    image: &'a str,
    filters: &'a [String],
    show_output: bool,
    shows_progress: bool,
    report: &'a Mutex<Report>,
}

impl<Report: FnMut(&Ran) -> Result<()> + Send> Run<'_, Report> {
    /// Runs the tests on these machines, so many at once. Returns all results, in the machines'
    /// order. After an error no other machine begins.
    fn machines(&self, machines: &[Options], at_once: usize) -> Result<Vec<Ran>> {
        if let Some(first) = machines.first() {
            // This installs QEMU and builds the image, if need be, while nothing else runs.
            Launcher::prepare(first, self.image)?;
        }
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let work = || {
            let mut done = Vec::new();
            while !failed.load(Ordering::Relaxed) {
                let place = next.fetch_add(1, Ordering::Relaxed);
                let Some(options) = machines.get(place) else { break };
                let results = self.machine(options);
                failed.fetch_or(results.is_err(), Ordering::Relaxed);
                done.push((place, results));
            }
            done
        };
        let mut done = std::thread::scope(|scope| {
            let others: Vec<_> = (1..at_once.min(machines.len())).map(|_| scope.spawn(work)).collect();
            let mut done = work();
            for other in others {
                done.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            done
        });
        done.sort_by_key(|(place, _)| *place);
        let results: Result<Vec<Vec<Ran>>> = done.into_iter().map(|(_, results)| results).collect();
        Ok(results?.into_iter().flatten().collect())
    }

    /// Runs the tests on one machine.
    fn machine(&self, options: &Options) -> Result<Vec<Ran>> {
        let launcher = Launcher::prepare(options, self.image)?;
        let begun = Instant::now();
        let mut suite = Suite::new(begun);
        let machine = machine(options);
        let progress = self.shows_progress.then(|| Progress::begin(format!("{} ({machine})", self.image)));
        let message = |tests: usize, at: &str| {
            if let Some(progress) = &progress {
                progress.message(format!("{tests} tests have ended; {at}"));
            }
        };
        let mut results = Vec::new();
        let mut take = |result: TestResult| -> Result<()> {
            let output = result.output.iter().flat_map(|line| launcher.symbols().annotate(line)).collect();
            let ran = Ran { machine, result: TestResult { output, ..result } };
            let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
            (*report)(&ran)?;
            results.push(ran);
            Ok(())
        };
        loop {
            let mut words: Vec<String> =
                self.filters.iter().map(|filter| format!("filter={filter}")).collect();
            words.extend(suite.last().map(|last| format!("after={last}")));
            words.extend((!options.network.is_short_cut()).then(|| "packets".into()));
            words.extend(options.network.is_lossy().then(|| "lossy".into()));
            message(suite.ended(), "booting");
            let mut guest = launcher.start(&words)?;
            suite.booted(Instant::now());
            let overall = launcher.deadline(begun);
            let why = loop {
                let deadline = overall.map_or(suite.deadline(), |overall| overall.min(suite.deadline()));
                match guest.next(Some(deadline))? {
                    Event::Line(line) => {
                        if self.show_output {
                            launcher.symbols().annotate(&line).iter().for_each(|line| complain!("{line}"));
                        }
                        if let Some(result) = suite.line(&line, Instant::now()) {
                            take(result)?;
                        }
                        message(suite.ended(), suite.running().unwrap_or("between two tests"));
                    }
                    Event::FirstThread => {}
                    Event::Ended(Exit::Status(status)) => {
                        break format!("the guest ended with status {status}");
                    }
                    Event::Ended(exit @ Exit::QemuDied { .. }) => {
                        exit.status()?;
                    }
                    Event::Ended(Exit::NoStatus) => break Error::NoStatus.to_string(),
                    Event::Stalled(silence) => break Error::Stalled(silence).to_string(),
                    Event::Deadline if overall.is_some_and(|overall| Instant::now() >= overall) => {
                        return Err(launcher.timed_out());
                    }
                    Event::Deadline => break "it exceeded its time limit; QEMU was ended".to_owned(),
                }
            };
            drop(guest);
            let (victim, next) = suite.guest_ended(&why, Instant::now());
            if let Some(result) = victim {
                take(result)?;
            }
            match next {
                Next::Finished => return Ok(results),
                Next::Boot => {}
                Next::Stuck => {
                    complain!(
                        "ferrovia: the suite was given up: no test ends after {} ({machine})",
                        suite.last().unwrap_or("its start")
                    );
                    return Ok(results);
                }
            }
        }
    }
}

/// Checks that a filter can be a word of the kernel's command line.
fn check_filter(filter: &str) -> Result<()> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "_:.-/".contains(c);
    if !filter.is_empty() && filter.chars().all(fits) {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "filter {filter:?}: a filter is a part of a test's name, and those have only letters, digits and \
         _ : . - / in them"
    )))
}

/// Prints how a test ended, and for a failed one the reason and its output.
pub fn print_result(ran: &Ran) -> Result<()> {
    let Ran { machine, result: TestResult { name, time, output, outcome, .. } } = ran;
    match outcome {
        Outcome::Passed => {
            print_line(&format!("test kernel {name} [{machine}] ... ok ({})", show_time(*time)))
        }
        Outcome::NotShown(why) => {
            print_line(&format!("test kernel {name} [{machine}] ... not shown here: {why}"))
        }
        Outcome::Failed(why) => {
            print_line(&format!("test kernel {name} [{machine}] ... FAILED ({})", show_time(*time)))?;
            print_line(&format!("    {why}"))?;
            output.iter().try_for_each(|line| print_line(&format!("    | {line}")))
        }
    }
}

fn show_time(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{:.1} ms", time.as_secs_f64() * 1e3)
    } else {
        format!("{:.2} s", time.as_secs_f64())
    }
}

/// Runs tests, prints each, and the closing line. If all tests run, over InfiniBand, every row of
/// the catalogue has to be shown. Returns the process's status.
pub fn run_and_print(options: &Options, filters: &[String], show_output: bool) -> Result<u8> {
    let summary = run_suite(options, filters, show_output, print_result)?;
    if summary.results.is_empty() && !filters.is_empty() {
        complain!("ferrovia: {}", no_match(filters));
    }
    print_closing(&summary)?;
    let is_whole = filters.is_empty() && options.network.transport() == Transport::Infiniband;
    let complete = !is_whole || conformance::is_complete(&summary)?;
    Ok(if summary.is_success() && complete { 0 } else { 1 })
}

/// The message when no test ran.
fn no_match(filters: &[String]) -> String {
    let filters: Vec<String> = filters.iter().map(|filter| format!("{filter:?}")).collect();
    format!(
        "no test has {} in its name; names are like lmr::create_and_query, and without a filter all \
         tests run",
        filters.join(" or ")
    )
}

/// Prints the names of the failed tests once more, and the closing line.
pub fn print_closing(summary: &Summary) -> Result<()> {
    if summary.failed() > 0 {
        print_line("failed in the kernel:")?;
    }
    for Ran { machine, result } in &summary.results {
        if let Outcome::Failed(why) = &result.outcome {
            print_line(&format!("    {} [{machine}]: {why}", result.name))?;
        }
    }
    let not_shown = summary.not_shown().count();
    print_line(&format!(
        "kernel: {} passed, {} failed, {not_shown} not shown here",
        summary.passed(),
        summary.failed()
    ))
}

/// The arguments that `cargo test` passes to a test harness and that have a meaning here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HarnessArguments {
    /// The filters.
    pub filters: Vec<String>,
    /// Whether to show what tests write.
    pub show_output: bool,
    /// Whether to print only names.
    pub list: bool,
}

impl HarnessArguments {
    /// Reads the arguments of the standard test harness, and ignores those that mean nothing here.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<HarnessArguments> {
        let mut parsed = HarnessArguments::default();
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let (flag, has_value) = match argument.split_once('=') {
                Some((flag, _)) => (flag, true),
                None => (argument.as_str(), false),
            };
            match flag {
                "--nocapture" | "--no-capture" | "--show-output" => parsed.show_output = true,
                "--list" => parsed.list = true,
                "--quiet" | "-q" | "--exact" | "--ignored" | "--include-ignored" | "--test" | "--bench" => {}
                "--test-threads" | "--color" | "--format" | "-Z" | "--skip" | "--logfile" => {
                    if !has_value {
                        arguments.next();
                    }
                }
                _ if flag.starts_with('-') => {
                    return Err(Error::Usage(format!("unknown argument {argument}")));
                }
                _ => parsed.filters.push(argument),
            }
        }
        Ok(parsed)
    }
}

/// The `main` of a test target without the standard harness.
///
/// The machine's options have their defaults; the variable FERROVIA_QEMU can name another QEMU.
pub fn main() -> ExitCode {
    let options = Options::default();
    let status = HarnessArguments::parse(std::env::args().skip(1)).and_then(|arguments| {
        if arguments.list {
            Ok(0)
        } else {
            run_and_print(&options, &arguments.filters, arguments.show_output)
        }
    });
    crate::exit(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<HarnessArguments> {
        HarnessArguments::parse(arguments.iter().map(|&a| a.to_owned()))
    }

    #[test]
    fn the_arguments_of_cargo_test_are_understood() {
        let parsed = parse(&["lmr", "--nocapture", "--test-threads", "1", "-q", "--color=always", "evd"])
            .expect("known");
        assert_eq!(parsed.filters, ["lmr", "evd"]);
        assert!(parsed.show_output && !parsed.list);
        assert!(parse(&["--list", "--format", "terse"]).expect("known").list);
        assert!(matches!(parse(&["--bogus"]), Err(Error::Usage(_))));
    }

    #[test]
    fn filters_are_words() {
        for good in ["lmr", "ep::rc_create", "it_lmr_link.B01", "a-b/c"] {
            assert!(check_filter(good).is_ok(), "{good}");
        }
        for bad in ["", "a b", "a\"", "é", "a=b", "a,b"] {
            assert!(check_filter(bad).is_err(), "{bad:?}");
        }
    }

    fn ran(name: &str, nics: u32, outcome: Outcome) -> Ran {
        let (time, rows, output) = (Duration::ZERO, vec![format!("{name}.B01")], Vec::new());
        let result = TestResult { name: name.into(), outcome, time, rows, output };
        Ran { machine: Machine::new(nics, 1), result }
    }

    #[test]
    fn a_filter_that_matches_nothing_is_named() {
        let text = no_match(&["nosuchtest".into(), "other".into()]);
        assert!(text.contains("no test has \"nosuchtest\" or \"other\" in its name"), "{text}");
    }

    #[test]
    fn a_test_that_shows_something_only_on_another_machine_is_shown_nowhere() {
        let over_iwarp = |name| {
            let mut ran = ran(name, 1, Outcome::Passed);
            ran.machine.transport = Transport::Iwarp;
            ran
        };
        let not_shown = |name| ran(name, 1, Outcome::NotShown("why".into()));
        let passed = |name| ran(name, 2, Outcome::Passed);
        let machines = vec![Machine::new(1, 1), Machine::new(2, 1)];
        let results = vec![not_shown("a"), over_iwarp("a"), not_shown("b"), passed("b"), passed("c")];
        assert_eq!(Summary { machines, results }.shown_nowhere(), ["a"]);
    }

    #[test]
    fn no_test_is_no_success() {
        let summary = |results| Summary { machines: vec![Machine::new(1, 1)], results };
        assert!(!summary(Vec::new()).is_success());
        assert!(summary(vec![ran("t", 1, Outcome::Passed)]).is_success());
        let mixed = summary(vec![ran("t", 1, Outcome::Passed), ran("u", 1, Outcome::Failed("x".into()))]);
        assert_eq!((mixed.passed(), mixed.failed(), mixed.is_success()), (1, 1, false));
    }

    #[test]
    fn a_row_is_not_shown_if_one_of_the_tests_that_name_it_fails() {
        let machines = vec![Machine::new(1, 1)];
        let with = |mut ran: Ran, row: &str| {
            ran.result.rows.push(row.into());
            ran
        };
        let results = vec![
            with(ran("passes", 1, Outcome::Passed), "both.B02"),
            with(ran("fails", 1, Outcome::Failed("x".into())), "both.B02"),
        ];
        let summary = Summary { machines, results };
        assert_eq!(summary.shown().into_iter().collect::<Vec<_>>(), ["passes.B01"]);
    }

    #[test]
    fn a_machine_that_cannot_show_a_row_does_not_count_and_one_has_to() {
        let machines = [1, 2].map(|nics| Machine::new(nics, 1)).to_vec();
        let not_shown = || Outcome::NotShown("no packets".into());
        let results = vec![
            ran("one", 1, not_shown()),
            ran("none", 1, not_shown()),
            ran("fails", 1, not_shown()),
            ran("later", 1, not_shown()),
            ran("one", 2, Outcome::Passed),
            ran("none", 2, not_shown()),
            ran("fails", 2, Outcome::Failed("x".into())),
            ran("later", 2, not_shown()),
        ];
        let mut summary = Summary { machines, results };
        let shown = |summary: &Summary| summary.shown().into_iter().collect::<Vec<_>>();
        assert_eq!(shown(&summary), ["one.B01"]);
        assert_eq!((summary.passed(), summary.failed(), summary.not_shown().count()), (1, 1, 6));
        assert_eq!(summary.shown_nowhere(), ["fails", "later", "none"]);
        summary.results.push(ran("later", 2, Outcome::Passed));
        assert_eq!(shown(&summary), ["later.B01", "one.B01"]);
        assert_eq!(summary.shown_nowhere(), ["fails", "none"]);
    }

    #[test]
    fn what_does_not_pass_on_every_machine_shows_nothing() {
        let machines = [1, 2].map(|nics| Machine::new(nics, 1)).to_vec();
        let failed = || Outcome::Failed("x".into());
        let results = vec![
            ran("both", 1, Outcome::Passed),
            ran("one", 1, Outcome::Passed),
            ran("none", 1, failed()),
            ran("lost", 1, Outcome::Passed),
            ran("both", 2, Outcome::Passed),
            ran("one", 2, failed()),
            ran("none", 2, failed()),
        ];
        let summary = Summary { machines, results };
        assert_eq!(summary.shown().into_iter().collect::<Vec<_>>(), ["both.B01"]);
        assert_eq!((summary.passed(), summary.failed()), (4, 3));
    }
}
