//! A transfer goes on after the launcher was stopped and continued, as by Ctrl-Z and `fg`.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions};

/// Longer than a driver waits for a heartbeat, and than the launcher waits for a sign of life of
/// its guest. The time itself is what this test is about.
const STOPPED: Duration = Duration::from_secs(11);

#[test]
fn a_transfer_survives_a_stop_of_its_job() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("file");
    std::fs::File::create(&file).and_then(|file| file.set_len(64 << 20)).expect("a sparse file");
    let program = std::env::current_exe().expect("this program");
    let program = program.parent().and_then(Path::parent).expect("target/PROFILE/deps").join("ferrovia");
    let mut job = Command::new(program)
        .arg("transfer")
        .arg(&file)
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .expect("start the launcher");
    let group = Pid::from_child(&job);
    let mut lines = BufReader::new(job.stdout.take().expect("piped")).lines().map(|line| line.expect("text"));
    // Three of four ways are still to come.
    let first = lines.find(|line| line.starts_with("transfer ")).expect("the first way");
    assert!(first.starts_with("transfer send:"), "{first}");
    rustix::process::kill_process_group(group, Signal::TSTP).expect("it runs");
    let changed = rustix::process::waitpid(Some(group), WaitOptions::UNTRACED).expect("a child");
    let (_, status) = changed.expect("a change of its state");
    assert!(status.stopped(), "{status:?}");
    std::thread::sleep(STOPPED);
    rustix::process::kill_process_group(group, Signal::CONT).expect("it is stopped");
    let rest: Vec<String> = lines.filter(|line| line.starts_with("transfer ")).collect();
    let status = job.wait().expect("its status");
    assert!(status.success(), "{status}: {rest:#?}");
    let sum = |line: &str| line.split("sha256 ").nth(1).map(str::to_owned);
    for (way, line) in ["write", "read", "direct"].into_iter().zip(&rest) {
        assert!(line.starts_with(&format!("transfer {way}:")), "{line}");
        assert_eq!(sum(line), sum(&first), "{line}");
    }
    assert_eq!(rest.len(), 3, "{rest:#?}");
}
