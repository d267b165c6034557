//! Runs tests one after the other, each on machines of its own, and prints what libtest would
//! print. Several processes run at once: each kind of machines has a process of its own, or several
//! that share the tests. The tests watch the heap of their process, so two in one process would
//! disturb each other.
//!
//! The usual flags of `cargo test` are accepted; those without a meaning here are ignored. The
//! tests whose names contain one of the words are run. A test that panics or does not end in time
//! has failed, and the next test runs; with `--fail-fast` none runs after a failure. `--limit
//! SECONDS` lowers the time limits of the tests. The exit status is non-zero if a test failed or if
//! none passed, since a word that matches no test is most likely misspelt.

use std::io::{BufRead, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use conformance::{Outcome, Test, Transport};
use host::CountedHeap;

/// The arguments with which a runner starts its processes: the machine; and which share of the
/// tests, of how many.
const PLACE: &str = "--place";
const SHARE: &str = "--share";

/// How long the threads of a test may take to end.
const PATIENCE: Duration = Duration::from_secs(5);

#[global_allocator]
pub static HEAP: CountedHeap = CountedHeap::new();

/// The message and the place of the last panic.
static PANIC: Mutex<Option<String>> = Mutex::new(None);

/// Runs a test.
pub type Run = dyn Fn(&Test) -> Outcome + Send + Sync;

/// Why a test did not pass.
enum Why {
    /// It failed.
    Failed(String),
    /// Its machine cannot show what it is for, so it counts neither as passed nor as failed.
    NotShown(String),
}

/// A machine on which each test runs once.
#[derive(Clone)]
pub struct Place {
    /// The machine's name, printed behind the test's name.
    pub name: String,
    /// The transport of its IAs. Only the tests that it takes run.
    pub transport: Transport,
    /// Runs a test on such a machine.
    pub run: Arc<Run>,
}

impl Place {
    /// Such a machine with IAs over this transport.
    pub fn new(
        machine: &str,
        transport: Transport,
        run: impl Fn(&Test) -> Outcome + Send + Sync + 'static,
    ) -> Place {
        let name = match transport {
            Transport::InfiniBand => machine.to_owned(),
            Transport::Iwarp => format!("{machine}, iWARP"),
        };
        Place { name, transport, run: Arc::new(run) }
    }
}

/// What the command line asks for.
#[derive(Default)]
struct Options {
    filters: Vec<String>,
    skip: Vec<String>,
    exact: bool,
    list: bool,
    fail_fast: bool,
    limit: Option<u32>,
    /// The only machine to run the tests on, by its place among them.
    place: Option<usize>,
    /// The share of the tests to run, and how many shares there are.
    share: Option<(usize, usize)>,
}

impl Options {
    /// Reads the arguments as libtest's runner would. Flags without a meaning here are ignored.
    fn parse(mut arguments: impl Iterator<Item = String>) -> Options {
        let mut options = Options::default();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--exact" => options.exact = true,
                "--list" => options.list = true,
                "--fail-fast" => options.fail_fast = true,
                "--limit" => options.limit = arguments.next().and_then(|seconds| seconds.parse().ok()),
                PLACE => options.place = arguments.next().and_then(|place| place.parse().ok()),
                SHARE => {
                    let mut number = || arguments.next().and_then(|number| number.parse().ok());
                    options.share = number().zip(number()).filter(|&(_, shares)| shares > 0);
                }
                "--skip" => options.skip.extend(arguments.next()),
                "--test-threads" | "--color" | "--format" | "--logfile" | "--shuffle-seed" | "-Z" => {
                    arguments.next();
                }
                flag if flag.starts_with("--skip=") => options.skip.extend(flag.get(7..).map(String::from)),
                flag if flag.starts_with('-') => {}
                word => options.filters.push(word.to_owned()),
            }
        }
        options
    }

    fn wants(&self, name: &str) -> bool {
        let fits = |word: &String| if self.exact { name == word } else { name.contains(word.as_str()) };
        (self.filters.is_empty() || self.filters.iter().any(fits)) && !self.skip.iter().any(fits)
    }
}

/// Runs the tests that the arguments select on all these machines, by so many processes at once for
/// each processor: the more, the more the tests wait.
pub fn run_all(
    suite: &str,
    arguments: impl Iterator<Item = String>,
    places: &[Place],
    per_processor: usize,
) -> ExitCode {
    let options = Options::parse(arguments);
    let tests: Vec<&Test> = conformance::all().filter(|test| options.wants(test.name)).collect();
    if options.list {
        for test in &tests {
            println!("{}: test", test.name);
        }
        println!("\n{} tests, 0 benchmarks", tests.len());
        return ExitCode::SUCCESS;
    }
    if let Some(name) =
        options.filters.iter().find(|name| options.exact && tests.iter().all(|test| test.name != *name))
    {
        println!("there is no test {name}");
        return ExitCode::FAILURE;
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    // Miri starts no processes.
    let processes = if cfg!(miri) { 1 } else { processors * per_processor };
    let shares = processes.div_ceil(places.len().max(1)).min(tests.len().max(1));
    let places = match options.place {
        Some(place) => places.get(place..=place).unwrap_or_default(),
        None if places.len() * shares > 1 && !options.fail_fast => {
            return side_by_side(suite, places, shares, processes);
        }
        None => places,
    };
    let (share, shares) = options.share.unwrap_or((0, 1));
    let tests: Vec<&Test> = tests.into_iter().skip(share).step_by(shares).collect();
    std::panic::set_hook(Box::new(|info| {
        let place =
            info.location().map_or("somewhere".to_owned(), |at| format!("{}:{}", at.file(), at.line()));
        let said = info.payload_as_str().unwrap_or("no message");
        let text = format!("{place}: panicked: {said}");
        eprintln!("{text}");
        *PANIC.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
    }));
    // What the standard library allocates once and keeps must not count as a leak of the first
    // test, so an empty test runs first. A thread's first wait for a message allocates, too, and
    // the empty test may end before this thread waits for it: so this thread waits for a message
    // that does not come.
    let (_sender, receiver) = channel::<()>();
    let _ = receiver.recv_timeout(Duration::from_millis(1));
    static NOTHING: Test = Test { name: "nothing", rows: &[], limit: 60, kills: false, run: |_| Ok(()) };
    let Some(first) = places.first() else { return ExitCode::FAILURE };
    if let Err(Why::Failed(why) | Why::NotShown(why)) = in_a_thread(&NOTHING, NOTHING.limit, first) {
        println!("no machine: {why}");
        return ExitCode::FAILURE;
    }
    let mut failures = Vec::new();
    let (mut passed, mut not_shown) = (0, 0);
    'all: for place in places {
        for test in tests.iter().filter(|test| place.transport.takes(test)) {
            let begun = Instant::now();
            let limit = options.limit.map_or(test.limit, |limit| limit.min(test.limit));
            let outcome = run(test, limit, place);
            let time = begun.elapsed().as_secs_f64();
            let name = format!("{} [{}]", test.name, place.name);
            match outcome {
                Ok(()) => {
                    println!("test {name} ... ok ({time:.3} s)");
                    passed += 1;
                }
                Err(Why::NotShown(why)) => {
                    println!("test {name} ... not shown here: {why}");
                    not_shown += 1;
                }
                Err(Why::Failed(why)) => {
                    println!("test {name} ... FAILED ({time:.3} s)\n    {why}");
                    failures.push((name, why));
                    if options.fail_fast {
                        break 'all;
                    }
                }
            }
        }
    }
    let failures: Vec<_> = failures.iter().map(|(name, why)| format!("    {name}: {why}")).collect();
    close(suite, &Sum { passed, failed: failures.len(), not_shown, failures })
}

/// Prints the failures and the closing line.
fn close(suite: &str, sum: &Sum) -> ExitCode {
    let Sum { passed, failed, not_shown, failures } = sum;
    if !failures.is_empty() {
        println!("\n{FAILURES}");
        for failure in failures {
            println!("{failure}");
        }
    }
    println!("\n{suite}: {passed} passed, {failed} failed, {not_shown} not shown here");
    // A run in which no test ran shows nothing; one whose tests say `not shown here` is no failure.
    ExitCode::from(u8::from(*passed + *not_shown == 0 || !failures.is_empty()))
}

/// The line in front of the failures.
const FAILURES: &str = "failures:";

/// What the processes of the machines have said together.
#[derive(Default)]
struct Sum {
    passed: usize,
    failed: usize,
    not_shown: usize,
    failures: Vec<String>,
}

/// Runs each share of the tests of each machine in a process of its own, so many at once, and
/// prints what all of them say.
fn side_by_side(suite: &str, places: &[Place], shares: usize, processes: usize) -> ExitCode {
    let parts: Vec<Part<'_>> = (0..)
        .zip(places)
        .flat_map(|(at, place)| (0..shares).map(move |share| Part { at, place, share, shares }))
        .collect();
    let (next, sum) = (AtomicUsize::new(0), Mutex::new(Sum::default()));
    std::thread::scope(|scope| {
        for _ in 0..processes.min(parts.len()) {
            scope.spawn(|| {
                while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(why) = part.run(suite, &sum) {
                        let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
                        sum.failures.push(format!("    [{}]: its process: {why}", part.place.name));
                    }
                }
            });
        }
    });
    close(suite, &sum.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// What one process runs.
struct Part<'a> {
    /// The machine, and its place among all.
    at: usize,
    place: &'a Place,
    /// Which share of the tests, of how many.
    share: usize,
    shares: usize,
}

impl Part<'_> {
    /// Runs the tests in a process, and adds its results to the sum. The process gets all arguments
    /// of this one, also those that say which machines there are (`--seeds`).
    fn run(&self, suite: &str, sum: &Mutex<Sum>) -> Result<(), String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command
            .args(std::env::args_os().skip(1))
            .args([PLACE, &self.at.to_string()])
            .args([SHARE, &self.share.to_string(), &self.shares.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let output = child.stdout.take().ok_or("no output")?;
        let (mut own, mut closed) = (Sum::default(), false);
        let mut fails = false;
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if let Some(counts) = line.strip_prefix(suite).and_then(|rest| rest.strip_prefix(": ")) {
                let mut numbers = counts.split(' ').filter_map(|word| word.parse().ok());
                let mut next = || numbers.next().unwrap_or(0);
                (own.passed, own.failed, own.not_shown) = (next(), next(), next());
                closed = true;
            } else if line == FAILURES {
                fails = true;
            } else if fails {
                own.failures.push(line);
            } else if !line.is_empty() {
                println!("{line}");
            }
        }
        let status = child.wait().map_err(|error| error.to_string())?;
        own.failures.retain(|line| !line.is_empty());
        let explained = status.success() || !own.failures.is_empty() || closed && own.passed == 0;
        let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
        sum.passed += own.passed;
        sum.failed += own.failed;
        sum.not_shown += own.not_shown;
        sum.failures.append(&mut own.failures);
        if closed && explained { Ok(()) } else { Err(format!("{status}")) }
    }
}

/// Runs a test on a machine, and checks that neither leaves heap memory behind.
fn run(test: &'static Test, limit: u32, place: &Place) -> Result<(), Why> {
    let before = HEAP.used();
    in_a_thread(test, limit, place)?;
    // The memory of a dead device is never released, since the device may still write to it.
    if test.kills {
        return Ok(());
    }
    // Threads of the test may still be about to end.
    let deadline = Instant::now() + PATIENCE;
    while HEAP.used() > before {
        if Instant::now() > deadline {
            let left = HEAP.used() - before;
            return Err(Why::Failed(format!("{left} bytes of the heap were not released")));
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// Runs a test in a thread of its own, so that a test that does not end within `limit` seconds can
/// be abandoned.
fn in_a_thread(test: &'static Test, limit: u32, place: &Place) -> Result<(), Why> {
    let (sender, receiver) = channel();
    let place = place.clone();
    let body = move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| (place.run)(test)));
        let outcome = outcome.map(|outcome| {
            outcome.map_err(|failure| match failure.not_shown {
                true => Why::NotShown(failure.message),
                false => Why::Failed(failure.to_string()),
            })
        });
        let _ = sender.send(outcome.unwrap_or_else(|_| Err(Why::Failed("panicked".into()))));
    };
    let thread = std::thread::Builder::new().name(test.name.into()).spawn(body);
    if let Err(error) = thread {
        return Err(Why::Failed(format!("no thread: {error}")));
    }
    // Miri interprets the program while its clock runs at normal speed.
    let patience = u64::from(limit) * if cfg!(miri) { 1000 } else { 1 };
    let outcome = match receiver.recv_timeout(Duration::from_secs(patience)) {
        Ok(outcome) => outcome,
        Err(RecvTimeoutError::Timeout) => Err(Why::Failed(format!("did not end after {limit} s"))),
        Err(RecvTimeoutError::Disconnected) => Err(Why::Failed("its thread ended without an outcome".into())),
    };
    match PANIC.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(panic) => Err(Why::Failed(panic)),
        None => outcome,
    }
}
