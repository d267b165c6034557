//! The kernel's own tests, inside it (targets/kernel-tests), and the ways in which a guest can die.

use qemu::error::Error;
use qemu::launch::Launcher;
use qemu::options::Options;
use qemu::runner;
use qemu::suite::Outcome;
use qemu::vm::{STATUS_FAULT, STATUS_PANIC};

const IMAGE: &str = "kernel-tests";

fn options() -> Options {
    Options {
        qemu: std::env::var_os("FERROVIA_QEMU").map(Into::into),
        timeout: Some(300),
        ..Options::default()
    }
}

#[test]
fn the_kernels_own_tests_pass() {
    let summary = runner::run(&options(), IMAGE, &[], false, runner::print_result).expect("the guest runs");
    let failed: Vec<_> = summary.results.iter().filter(|result| result.outcome != Outcome::Passed).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(summary.passed() > 0, "no test ran");
}

/// Each way to die, what the kernel must say of it, and the status that must come of it.
#[test]
fn a_guest_that_dies_says_of_what() {
    let launcher = Launcher::prepare(&options(), IMAGE).expect("the image builds");
    for (way, words, status) in [
        ("panic", "PANIC in thread", STATUS_PANIC),
        ("panic-in-thread", "as asked for, in a thread", STATUS_PANIC),
        ("out-of-memory", "PANIC in thread", STATUS_PANIC),
        ("null", "FAULT in thread", STATUS_FAULT),
        ("write-code", "FAULT in thread", STATUS_FAULT),
        ("write-constant", "FAULT in thread", STATUS_FAULT),
        ("execute-data", "FAULT in thread", STATUS_FAULT),
        ("execute-stack", "FAULT in thread", STATUS_FAULT),
        ("stack", "stack", STATUS_FAULT),
        ("stack-in-thread", "stack", STATUS_FAULT),
        ("undefined", "FAULT in thread", STATUS_FAULT),
        ("protection", "FAULT in thread", STATUS_FAULT),
    ] {
        let mut said = Vec::new();
        let line = |line: &str| {
            said.extend(launcher.symbols().annotate(line));
            Ok(())
        };
        let ended = launcher.run(&[format!("die={way}")], None, line, |_| ());
        let said = said.join("\n");
        assert_eq!(ended.unwrap_or_else(|e| panic!("{way}: {e}\n{said}")), status, "{way}: {said}");
        assert!(said.contains(words), "{way}: {said}");
        assert!(said.contains("backtrace:"), "{way}: {said}");
        if way == "panic" {
            assert!(said.contains("kernel_tests::deaths::die") && said.contains("deaths.rs:"), "{said}");
        }
    }
}

/// With interrupts off for ever nothing runs any more, and only the launcher can end it.
#[test]
fn a_guest_whose_heart_stops_is_ended() {
    let launcher = Launcher::prepare(&options(), IMAGE).expect("the image builds");
    let error = launcher.run(&["die=mute".into()], None, |_| Ok(()), |_| ()).expect_err("it hangs");
    assert!(matches!(error, Error::Stalled(_)), "{error}");
}

/// A guest that has nothing to do is not taken for a dead one.
#[test]
fn a_guest_at_rest_goes_on_until_its_time_is_up() {
    let options = Options { timeout: Some(15), ..options() };
    let launcher = Launcher::prepare(&options, IMAGE).expect("the image builds");
    let error = launcher.run(&["die=idle".into()], None, |_| Ok(()), |_| ()).expect_err("it goes on");
    assert!(matches!(error, Error::TimedOut(_)), "{error}");
}
