//! A transfer goes on after the launcher was stopped and continued: as by Ctrl-Z and `fg`, and by
//! SIGSTOP.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use ferrovia_qemu::process;
use rustix::process::{Pid, Signal, WaitOptions};

/// Longer than a driver waits for a heartbeat, and than the launcher waits for a sign of life of
/// its guest. The time itself is what this test is about.
const STOPPED: Duration = Duration::from_secs(11);

/// Longer than a command or a connection over a link takes, and shorter than a driver bears.
const DEVICE_STOPPED: Duration = Duration::from_secs(5);

/// Stops a transfer when it has printed a line that begins with `signal`, continues it, and checks
/// all its lines, each of which begins with `machine`.
fn stop_and_continue(command: &[&str], signal: &str, machine: &str, stop: Signal, time: Duration) {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("file");
    std::fs::File::create(&file).and_then(|file| file.set_len(64 << 20)).expect("a sparse file");
    let program = std::env::current_exe().expect("this program");
    let program = program.parent().and_then(Path::parent).expect("target/PROFILE/deps").join("ferrovia");
    let mut launcher = Command::new(program);
    launcher.args(command).arg(&file).stdout(Stdio::piped()).process_group(0);
    process::bind(&mut launcher, Signal::KILL, Vec::new());
    let mut job = launcher.spawn().expect("start the launcher");
    let group = Pid::from_child(&job);
    let mut lines = BufReader::new(job.stdout.take().expect("piped")).lines().map(|line| line.expect("text"));
    let first = lines.find(|line| line.starts_with(signal)).expect("the line to wait for");
    rustix::process::kill_process_group(group, stop).expect("it runs");
    let changed = rustix::process::waitpid(Some(group), WaitOptions::UNTRACED).expect("a child");
    let (_, status) = changed.expect("a change of its state");
    assert!(status.stopped(), "{status:?}");
    std::thread::sleep(time);
    rustix::process::kill_process_group(group, Signal::CONT).expect("it is stopped");
    let transfer = format!("{machine}transfer ");
    let all: Vec<String> =
        std::iter::once(first).chain(lines).filter(|line| line.starts_with(&transfer)).collect();
    let status = job.wait().expect("its status");
    assert!(status.success(), "{status}: {all:#?}");
    assert_eq!(all.len(), 4, "{all:#?}");
    let sum = |line: &str| line.split("sha256 ").nth(1).map(str::to_owned);
    for (way, line) in ["send", "write", "read", "direct"].into_iter().zip(&all) {
        assert!(line.starts_with(&format!("{transfer}{way}:")), "{line}");
        assert_eq!(sum(line), sum(&all[0]), "{line}");
    }
}

/// The first line comes when all pieces have been moved, so this stops a guest that is about to
/// end.
#[test]
fn a_transfer_survives_a_stop_of_its_job() {
    stop_and_continue(&["transfer"], "transfer send:", "", Signal::TSTP, STOPPED);
}

/// The machines are connected, and nothing has been moved yet.
#[test]
fn two_machines_survive_a_stop_of_their_job() {
    stop_and_continue(&["pair", "transfer"], "A: connected to ", "B: ", Signal::TSTP, STOPPED);
}

/// The launcher cannot notice this signal, so the guests run on without their device, and ask it
/// for more.
#[test]
fn two_machines_survive_a_stop_of_their_device() {
    stop_and_continue(&["pair", "transfer"], "A: connected to ", "B: ", Signal::STOP, DEVICE_STOPPED);
}
