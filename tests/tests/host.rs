//! The conformance suite on the host: every test on a machine of its own, whose NIC is the device model in this process.
//!
//! `cargo test -p conformance --test host -- lmr link` runs the tests whose names contain one of the words; the usual
//! flags of `cargo test` are understood or passed over. A test that panics has failed, and so has one that does not
//! end in time; the others run all the same. The status is non-zero if a test failed or if none passed: a
//! word that fits no test is most likely misspelt. (To filter the unit tests of a crate, name it:
//! `cargo test -p nic-model -- WORD`.)

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use conformance::fixture::CONFIG;
use conformance::{Interface, Setup, Test};
use host::Machine;
use kernel_agent::Agent;
use privileged_api::Provider;

/// The last panic: what it said and where.
static PANIC: Mutex<Option<String>> = Mutex::new(None);

/// What the command line asks for.
#[derive(Default)]
struct Options {
    filters: Vec<String>,
    skip: Vec<String>,
    exact: bool,
    list: bool,
}

impl Options {
    /// Reads the arguments as libtest's runner would; what means nothing here is passed over.
    fn parse(mut arguments: impl Iterator<Item = String>) -> Options {
        let mut options = Options::default();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--exact" => options.exact = true,
                "--list" => options.list = true,
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

fn main() -> ExitCode {
    let options = Options::parse(std::env::args().skip(1));
    let tests: Vec<&Test> = conformance::all().filter(|test| options.wants(test.name)).collect();
    if options.list {
        for test in &tests {
            println!("{}: test", test.name);
        }
        println!("\n{} tests, 0 benchmarks", tests.len());
        return ExitCode::SUCCESS;
    }
    std::panic::set_hook(Box::new(|info| {
        let place =
            info.location().map_or("somewhere".to_owned(), |at| format!("{}:{}", at.file(), at.line()));
        let said = info.payload_as_str().unwrap_or("no message");
        let text = format!("{place}: panicked: {said}");
        eprintln!("{text}");
        *PANIC.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
    }));
    let mut failures = Vec::new();
    for test in &tests {
        let begun = Instant::now();
        let outcome = run(test);
        let time = begun.elapsed();
        match &outcome {
            Ok(()) => println!("test {} ... ok ({:.3} s)", test.name, time.as_secs_f64()),
            Err(why) => println!("test {} ... FAILED ({:.3} s)\n    {why}", test.name, time.as_secs_f64()),
        }
        failures.extend(outcome.err().map(|why| (test.name, why)));
    }
    if !failures.is_empty() {
        println!("\nfailures:");
        for (name, why) in &failures {
            println!("    {name}: {why}");
        }
    }
    let passed = tests.len() - failures.len();
    println!("\nhost: {passed} passed, {} failed", failures.len());
    ExitCode::from(u8::from(passed == 0 || !failures.is_empty()))
}

/// Runs a test in a thread of its own, so that it can be left behind when it hangs.
fn run(test: &'static Test) -> Result<(), String> {
    let (tell, told) = channel();
    let body = move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| on_a_new_machine(test)));
        let _ = tell.send(outcome.unwrap_or_else(|_| Err("panicked".into())));
    };
    let thread = std::thread::Builder::new().name(test.name.into()).spawn(body);
    if let Err(error) = thread {
        return Err(format!("no thread: {error}"));
    }
    let outcome = match told.recv_timeout(Duration::from_secs(u64::from(test.limit))) {
        Ok(outcome) => outcome,
        Err(RecvTimeoutError::Timeout) => Err(format!("no end after {} s", test.limit)),
        Err(RecvTimeoutError::Disconnected) => Err("its thread is gone".into()),
    };
    match PANIC.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(panic) => Err(panic),
        None => outcome,
    }
}

fn on_a_new_machine(test: &Test) -> Result<(), String> {
    let machine = Machine::new(1);
    let platform = machine.platform();
    let agent = Agent::open(platform.clone(), machine.device(0), 0, CONFIG).map_err(|e| format!("{e:?}"))?;
    let provider = Provider::new(platform.clone());
    let name = "rnic0";
    provider.add(name, agent.clone()).map_err(|e| format!("{e:?}"))?;
    let interface = || Interface { name: name.to_owned(), agent: agent.clone() };
    let privileged = machine.privileged();
    let machine = Arc::new(Mutex::new(machine));
    let victim = machine.clone();
    let kill = Box::new(move || victim.lock().unwrap_or_else(PoisonError::into_inner).kill());
    let setup = Arc::new(Setup { platform, provider, privileged, a: interface(), b: interface(), kill });
    let outcome = conformance::run(test, &setup).map_err(|failure| failure.to_string());
    agent.close();
    outcome
}
