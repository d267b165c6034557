//! The kernel's own tests, which run in the kernel (targets/kernel-tests), and the ways in which a
//! guest can end.

extern crate ferrovia_qemu as qemu;

use std::fs::{self, File};

use qemu::error::Error;
use qemu::launch::Launcher;
use qemu::options::{Options, Size};
use qemu::runner;
use qemu::suite::Outcome;
use qemu::vm::{STATUS_FAULT, STATUS_PANIC};

const IMAGE: &str = "kernel-tests";
/// The kernel's status when the machine lacks what the kernel needs.
const STATUS_UNBOOTABLE: u8 = 102;

fn options(cpus: u32) -> Options {
    Options { cpus: Some(cpus), timeout: Some(300), ..Options::default() }
}

#[test]
fn the_kernels_own_tests_pass_with_one_cpu() {
    the_kernels_own_tests_pass(1);
}

#[test]
fn the_kernels_own_tests_pass_with_two_cpus() {
    the_kernels_own_tests_pass(2);
}

fn the_kernels_own_tests_pass(cpus: u32) {
    let summary =
        runner::run(&options(cpus), IMAGE, &[], false, runner::print_result).expect("the guest runs");
    let failed: Vec<_> = summary.results.iter().filter(|ran| ran.result.outcome != Outcome::Passed).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(summary.passed() > 0, "no test ran");
}

/// Boots the tests of disks on a machine with these disks.
fn the_tests_of_disks_pass(options: &Options, words: &[&str]) {
    let launcher = Launcher::prepare(options, IMAGE).expect("the image builds");
    let mut all = vec!["filter=kernel.disk.".to_owned(), format!("disks={}", options.disks.len())];
    all.extend(words.iter().map(|&word| word.to_owned()));
    let mut said = Vec::new();
    let line = |line: &str| {
        said.extend(launcher.symbols().annotate(line));
        Ok(())
    };
    let status = launcher.run(&all, line, |_| ()).unwrap_or_else(|e| panic!("{e}: {words:?}"));
    assert_eq!(status, 0, "{said:#?}");
    assert!(said.iter().filter(|line| line.starts_with("@test ok ")).count() > 10, "{said:#?}");
}

/// Two disks, of which the second one has a sector that fails; then the same for reading only. What
/// the guest flushed, and what it wrote with FUA, is in the images when QEMU has ended.
#[test]
fn the_kernels_tests_of_disks_pass() {
    let dir = tempfile::tempdir().expect("a folder");
    let images = ["one, with a comma", "two"].map(|name| dir.path().join(name));
    for image in &images {
        File::create(image).and_then(|file| file.set_len(8 << 20)).expect("a sparse file");
    }
    for cpus in [1, 2] {
        let disks = images.to_vec();
        let options = Options { disks, failing_sector: Some(12_000), ..options(cpus) };
        the_tests_of_disks_pass(&options, &["failing=12000"]);
        for (number, image) in (0..).zip(&images) {
            let bytes = fs::read(image).expect("the image is there");
            assert_eq!(bytes.len(), 8 << 20);
            let written = &bytes[2000 * 512..][..8192];
            assert!(written.iter().all(|&byte| byte == b'A' + number), "disk {number}");
        }
        let before = images.each_ref().map(|image| fs::read(image).expect("the image is there"));
        let options = Options { read_only: true, failing_sector: None, ..options };
        the_tests_of_disks_pass(&options, &[]);
        let after = images.each_ref().map(|image| fs::read(image).expect("the image is there"));
        assert!(before == after, "a disk for reading was written");
        fs::write(&images[0], vec![0; 8 << 20]).expect("an image for the next round");
    }
}

/// The kernel finds as many CPUs as there are, and starts them all.
#[test]
fn all_cpus_come_up() {
    for cpus in [1, 2, 4] {
        let launcher = Launcher::prepare(&options(cpus), IMAGE).expect("the image builds");
        let words = ["filter=as_many_as_said".into(), format!("cpus={cpus}")];
        let status = launcher.run(&words, |_| Ok(()), |_| ()).expect("the guest runs");
        assert_eq!(status, 0, "with {cpus} CPUs");
    }
}

/// When several CPUs panic or fault at once, one of them reports it, and no other CPU's output
/// comes in between.
#[test]
fn a_guest_with_two_cpus_dies_once() {
    let launcher = Launcher::prepare(&options(2), IMAGE).expect("the image builds");
    for (way, first, status) in [
        ("panic-everywhere", "PANIC in thread", STATUS_PANIC),
        ("fault-amid-output", "FAULT in thread", STATUS_FAULT),
    ] {
        let mut said = Vec::new();
        let line = |line: &str| {
            said.push(line.to_string());
            Ok(())
        };
        let ended = launcher.run(&[format!("die={way}")], line, |_| ());
        assert_eq!(ended.unwrap_or_else(|e| panic!("{way}: {e}")), status, "{way}");
        let begins = said.iter().position(|line| line.starts_with(first)).expect("it says why");
        let (before, report) = said.split_at(begins);
        assert!(before.iter().all(|line| !line.contains("backtrace:")), "{way}: {said:#?}");
        let backtrace = report.iter().position(|line| line == "backtrace:").expect("it says where");
        let strange = |line: &&String| line.contains("chatter") || line.starts_with("PANIC");
        assert!(!report[1..].iter().any(|line| strange(&line)), "{way}: {report:#?}");
        assert!(report.len() > backtrace + 1, "{way}: {report:#?}");
        assert!(report[backtrace + 1..].iter().all(|line| line.starts_with("  at 0x")), "{way}: {report:#?}");
    }
}

/// Each way to die, with the words that the kernel must print and the guest's status.
#[test]
fn a_guest_that_dies_says_why() {
    let launcher = Launcher::prepare(&options(1), IMAGE).expect("the image builds");
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
        let ended = launcher.run(&[format!("die={way}")], line, |_| ());
        let said = said.join("\n");
        assert_eq!(ended.unwrap_or_else(|e| panic!("{way}: {e}\n{said}")), status, "{way}: {said}");
        assert!(said.contains(words), "{way}: {said}");
        assert!(said.contains("backtrace:"), "{way}: {said}");
        if way == "panic" {
            assert!(said.contains("kernel_tests::deaths::die") && said.contains("deaths.rs:"), "{said}");
        }
    }
}

/// With interrupts off for ever on one CPU, only the launcher can end the guest, even if other CPUs
/// run.
#[test]
fn a_guest_whose_heart_stops_is_ended() {
    for cpus in [1, 2] {
        let launcher = Launcher::prepare(&options(cpus), IMAGE).expect("the image builds");
        let error = launcher.run(&["die=mute".into()], |_| Ok(()), |_| ()).expect_err("it hangs");
        assert!(matches!(error, Error::Stalled(_)), "with {cpus} CPUs: {error}");
    }
}

/// The kernel says that there is too little memory.
#[test]
fn a_guest_without_memory_does_not_boot() {
    let options = Options { memory: Some(Size(4 << 20)), ..options(1) };
    let launcher = Launcher::prepare(&options, IMAGE).expect("the image builds");
    let mut said = Vec::new();
    let line = |line: &str| {
        said.push(line.to_string());
        Ok(())
    };
    let status = launcher.run(&[], line, |_| ()).expect("the guest ends by itself");
    assert_eq!(status, STATUS_UNBOOTABLE, "{said:#?}");
    assert!(said.iter().any(|line| line.starts_with("cannot boot: ")), "{said:#?}");
}

/// A guest that has nothing to do still has a heartbeat.
#[test]
fn a_guest_at_rest_goes_on_until_its_time_is_up() {
    let options = Options { timeout: Some(15), ..options(2) };
    let launcher = Launcher::prepare(&options, IMAGE).expect("the image builds");
    let error = launcher.run(&["die=idle".into()], |_| Ok(()), |_| ()).expect_err("it goes on");
    assert!(matches!(error, Error::TimedOut(_)), "{error}");
}
