//! How a guest starts, writes and ends, with shell scripts in the place of QEMU.

extern crate ferrovia_qemu as qemu;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use device::frontend::ivshmem::Ivshmem;
use qemu::accel::Accelerator;
use qemu::disks::Disk;
use qemu::error::{Error, Result};
use qemu::guests::{Guest, Guests};
use qemu::network::Network;
use qemu::process;
use qemu::setup::Qemu;
use qemu::vm::{Config, Event, Exit, Patience};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};

/// What every script begins with: the descriptors of the serial port, the debug port and the
/// monitor, from the arguments.
const HEAD: &str = r#"#!/bin/bash
all="$*"
serial=$(sed 's/.*id=com1,fd=\([0-9]*\).*/\1/' <<< "$all")
debug=$(sed 's/.*id=debug,fd=\([0-9]*\).*/\1/' <<< "$all")
monitor=$(sed 's/.*id=monitor,fd=\([0-9]*\).*/\1/' <<< "$all")
say() { echo "$@" >&$serial; }
note() { printf "$@" >&$debug; }
"#;

struct Script {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

fn script(body: &str) -> Script {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("qemu");
    fs::write(&path, format!("{HEAD}{body}\n")).expect("write the script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("make it executable");
    Script { _dir: dir, path }
}

fn start(path: PathBuf, patience: Patience) -> Result<Guest> {
    Guest::start(config(path, patience), &Ivshmem, &Network::default())
}

fn config(path: PathBuf, patience: Patience) -> Config {
    Config {
        slots: 0,
        shares_disks: false,
        held: false,
        qemu: Qemu { path, version: (7, 2), accelerator: Accelerator::Tcg },
        image: "/no/image".into(),
        cpus: 1,
        memory: 64 << 20,
        nics: 2,
        disks: Vec::new(),
        command_line: "log=warn one two".into(),
        module: None,
        patience,
    }
}

/// All lines, and how it ended.
fn run(body: &str) -> (Vec<String>, Event) {
    let script = script(body);
    let mut guest = start(script.path.clone(), Patience::default()).expect("the script starts");
    let mut lines = Vec::new();
    loop {
        match guest.next(None).expect("no signal") {
            Event::Line(line) => lines.push(line),
            Event::FirstThread => lines.push("(first thread)".into()),
            end => return (lines, end),
        }
    }
}

#[test]
fn all_that_a_guest_said_arrives_before_its_end() {
    let (lines, end) = run(
        r#"say one; note S.; for i in $(seq 2000); do say "line $i"; done; echo -n last >&$serial; exit 33"#,
    );
    assert!(matches!(end, Event::Ended(Exit::Status(0))), "{end:?}");
    let mut wanted: Vec<String> = vec!["one".into()];
    wanted.extend((1..=2000).map(|i| format!("line {i}")));
    wanted.push("last".into());
    let said: Vec<String> = lines.iter().filter(|line| *line != "(first thread)").cloned().collect();
    assert_eq!(said, wanted);
    assert_eq!(lines.len(), wanted.len() + 1, "the first thread was announced once");
}

#[test]
fn a_status_is_passed_on_and_none_is_none() {
    assert!(matches!(run("exit 35").1, Event::Ended(Exit::Status(1))));
    assert!(matches!(run("exit 0").1, Event::Ended(Exit::NoStatus)));
    assert!(matches!(run("note S; exit 33").1, Event::Ended(Exit::Status(0))));
    assert!(matches!(run("exit 33").1, Event::Ended(Exit::QemuDied { .. })), "no guest ran");
    let (_, end) = run("echo 'qemu: no such thing' >&2; echo more >&2; exit 1");
    let Event::Ended(exit) = end else { panic!("{end:?}") };
    let error = exit.status().expect_err("QEMU died");
    assert_eq!(error.to_string(), "QEMU ended early (exit status: 1): qemu: no such thing");
    let (_, end) = run("note S.; echo 'qemu: terminating on signal 15 from pid 7 (kill)' >&2; exit 0");
    let Event::Ended(exit) = end else { panic!("{end:?}") };
    let error = exit.status().expect_err("a signal ended QEMU").to_string();
    assert!(error.contains("terminating on signal 15"), "{error}");
    let (_, end) = run("kill -SEGV $$");
    assert!(matches!(&end, Event::Ended(Exit::QemuDied { status, .. }) if status == "signal 11"), "{end:?}");
}

#[test]
fn a_qemu_that_can_not_be_started_is_an_error() {
    let Err(error) = start("/no/qemu".into(), Patience::default()) else { panic!("it started") };
    assert!(matches!(error, Error::File { .. }), "{error}");
}

/// QEMU gets exactly what its arguments name: memory without a name in the file system, and
/// sockets.
#[test]
fn what_the_arguments_name_is_inherited() {
    let (lines, end) = run(r#"
        memory=$(sed 's/.*mem-path=\([^,]*\),.*/\1/' <<< "$all")
        say "memory $(readlink $memory)"
        for nic in 0 1; do
            fd=$(sed "s/.*id=iv$nic,fd=\([0-9]*\).*/\1/" <<< "$all")
            say "nic $(readlink /proc/self/fd/$fd | cut -d: -f1)"
        done
        say "size $(stat -L -c %s $memory)"
        case "$all" in *"-smp 1,maxcpus=2 "*) say more than one CPU is possible;; esac
        case "$all" in *"-append log=warn one two"*) say the command line is there;; esac
        ls /proc/self/fd > /dev/null; exit 33"#);
    assert!(matches!(end, Event::Ended(Exit::Status(0))), "{end:?}");
    assert_eq!(
        lines,
        [
            "memory /memfd:the guest's memory (deleted)",
            "nic socket",
            "nic socket",
            "size 67108864",
            "more than one CPU is possible",
            "the command line is there",
        ]
    );
}

#[test]
fn a_guest_whose_heart_stops_is_given_up() {
    let patience = Patience { first_beat: Duration::from_secs(60), silence: Duration::from_millis(200) };
    let script = script("note .; say beating; exec sleep 600");
    let mut guest = start(script.path.clone(), patience).expect("the script starts");
    loop {
        match guest.next(None).expect("no signal") {
            Event::Line(line) => assert_eq!(line, "beating"),
            Event::Stalled(silence) => break assert!(silence >= patience.silence),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_guest_that_never_beats_is_given_up_too() {
    let patience = Patience { first_beat: Duration::from_millis(100), silence: Duration::from_secs(60) };
    let script = script("exec sleep 600");
    let mut guest = start(script.path.clone(), patience).expect("the script starts");
    let event = guest.next(None).expect("no signal");
    assert!(matches!(event, Event::Stalled(_)), "{event:?}");
}

/// Each guest's end is its own, and a guest of several that is silent is named.
#[test]
fn guests_on_one_device_end_one_by_one() {
    let [fails, hangs, lives] = [
        "say first; exit 35",
        "note .; say second; exec sleep 600",
        "say third; while note .; do sleep 0.05; done",
    ]
    .map(script);
    let hasty = Patience { first_beat: Duration::from_secs(60), silence: Duration::from_millis(500) };
    let configs = [
        config(fails.path.clone(), Patience::default()),
        config(hangs.path.clone(), hasty),
        config(lives.path.clone(), Patience::default()),
    ];
    let mut guests = Guests::start(configs, &Ivshmem, &Network::default()).expect("the scripts start");
    assert_eq!(guests.gaps().len(), 6, "one device has all NICs");
    let (mut lines, mut ended, mut silent) = (Vec::new(), Vec::new(), Vec::new());
    while lines.len() < 3 || ended.is_empty() || silent.is_empty() {
        match guests.next(None).expect("no signal").expect("guests are running") {
            (guest, Event::Line(line)) => lines.push((guest, line)),
            (guest, Event::Ended(exit)) => ended.push((guest, exit)),
            (guest, Event::Stalled(_)) => {
                silent.push(guest);
                guests.end(guest);
            }
            other => panic!("{other:?}"),
        }
    }
    lines.sort();
    let wanted = [(0, "first"), (1, "second"), (2, "third")];
    assert_eq!(lines, wanted.map(|(guest, line)| (guest, line.to_owned())));
    assert_eq!((ended, silent), (vec![(0, Exit::Status(1))], vec![1]));
    assert_eq!(guests.running().collect::<Vec<_>>(), [2]);
    assert!(guests.next(Some(Instant::now())).expect("no signal").is_none(), "the deadline has passed");
    guests.end(2);
    assert!(guests.next(None).expect("no signal").is_none(), "nobody is left to wait for");
}

#[test]
fn a_deadline_is_kept() {
    let script = script("exec sleep 600");
    let mut guest = start(script.path.clone(), Patience::default()).expect("the script starts");
    let event = guest.next(Some(Instant::now())).expect("no signal");
    assert!(matches!(event, Event::Deadline), "{event:?}");
}

/// The body of a process that the tests below kill: it starts a guest and passes on what it says.
///
/// Does nothing unless it is called for.
#[test]
fn launcher_to_be_killed() {
    let Some(path) = std::env::var_os("FERROVIA_TEST_QEMU") else { return };
    let disk = |path| Disk { path: PathBuf::from(path), read_only: false, failing: None };
    let disks = std::env::var_os("FERROVIA_TEST_DISK").map(disk).into_iter().collect();
    let config = Config { disks, ..config(path.into(), Patience::default()) };
    let mut guest = Guest::start(config, &Ivshmem, &Network::default()).expect("the script starts");
    let status = loop {
        match guest.next(None) {
            Ok(Event::Line(line)) => eprintln!("{line}"),
            Ok(Event::FirstThread) => {}
            Ok(Event::Ended(exit)) => break exit.status(),
            Ok(other) => panic!("{other:?}"),
            Err(error) => break Err(error),
        }
    };
    drop(guest);
    // As `main` would; the harness has a status of its own.
    std::process::exit(status.unwrap_or_else(|error| error.status()).into());
}

/// Starts a process that does what `launcher_to_be_killed` says.
fn launcher(script: &Script) -> Child {
    launcher_with(script, None)
}

fn launcher_with(script: &Script, disk: Option<&Path>) -> Child {
    let mut launcher = Command::new(std::env::current_exe().expect("this program"));
    launcher
        .args(["--exact", "launcher_to_be_killed", "--nocapture", "--test-threads=1"])
        .env("FERROVIA_TEST_QEMU", &script.path)
        .envs(disk.map(|path| ("FERROVIA_TEST_DISK", path)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    process::bind(&mut launcher, Signal::KILL, Vec::new());
    launcher.spawn().expect("start a launcher")
}

/// Starts a launcher and its QEMU, kills the launcher, and returns how it ended once QEMU has gone.
fn kill_launcher(signal: Signal) -> ExitStatus {
    let script = script("say pid $$; note .; exec sleep 600");
    let mut launcher = launcher(&script);
    let stderr = BufReader::new(launcher.stderr.take().expect("piped"));
    let pid = stderr
        .lines()
        .find_map(|line| line.expect("text").strip_prefix("pid ")?.parse::<i32>().ok())
        .expect("QEMU's process id");
    let qemu = rustix::process::pidfd_open(Pid::from_raw(pid).expect("an id"), PidfdFlags::empty())
        .expect("it runs");
    rustix::process::kill_process(Pid::from_child(&launcher), signal).expect("it runs");
    let mut fds = [PollFd::new(&qemu, PollFlags::IN)];
    let ended = rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 60, tv_nsec: 0 })).expect("poll");
    assert_eq!(ended, 1, "QEMU outlives the launcher");
    launcher.wait().expect("the launcher's status")
}

#[test]
fn killing_the_launcher_ends_qemu() {
    assert_eq!(kill_launcher(Signal::KILL).signal(), Some(9));
}

#[test]
fn the_launcher_ends_by_itself_when_it_is_asked_to() {
    assert_eq!(kill_launcher(Signal::TERM).code(), Some(143));
    assert_eq!(kill_launcher(Signal::INT).code(), Some(130));
}

/// The guest waits for the word, and ends with its own status.
const LISTENS: &str = r#"
    memory=$(sed 's/.*mem-path=\([^,]*\),.*/\1/' <<< "$all")
    word() { dd if=$memory bs=4 skip=1024 count=1 2>/dev/null | od -An -tu4 | tr -d ' '; }
    note 'stop-word 4096\n.'; say "listens $(word)"
    while [ "$(word)" = 0 ]; do sleep 0.02; done
    say "asked $(word)"
"#;

#[test]
fn a_guest_that_listens_is_asked_to_end() {
    let script = script(&format!("{LISTENS} exit 35"));
    let mut launcher = launcher(&script);
    let mut lines =
        BufReader::new(launcher.stderr.take().expect("piped")).lines().map(|line| line.expect("text"));
    assert!(lines.any(|line| line == "listens 0"));
    rustix::process::kill_process(Pid::from_child(&launcher), Signal::TERM).expect("it runs");
    assert!(lines.any(|line| line == "asked 1"));
    assert_eq!(launcher.wait().expect("its status").code(), Some(1), "the guest's own status");
}

#[test]
fn a_guest_that_does_not_end_when_it_is_asked_to_is_ended_by_a_second_signal() {
    let script = script(&format!("{LISTENS} exec sleep 600"));
    let mut launcher = launcher(&script);
    let pid = Pid::from_child(&launcher);
    let mut lines =
        BufReader::new(launcher.stderr.take().expect("piped")).lines().map(|line| line.expect("text"));
    assert!(lines.any(|line| line == "listens 0"));
    rustix::process::kill_process(pid, Signal::INT).expect("it runs");
    assert!(lines.any(|line| line == "asked 1"));
    rustix::process::kill_process(pid, Signal::INT).expect("it runs");
    assert_eq!(launcher.wait().expect("its status").code(), Some(130));
}

/// QEMU reports a failed request of the guest, and a file gets smaller.
#[test]
fn what_happens_to_a_disk_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = folder.path().join("disk.img");
    fs::write(&disk, [0; 4096]).expect("write");
    let script = script(&format!(
        r#"note .; read -r command <&$monitor; say "asked $command"
        echo '{{"return": {{}}}}' >&$monitor
        data='{{"node-name": "disk0", "operation": "write", "reason": "No space left"}}'
        echo "{{\"event\": \"BLOCK_IO_ERROR\", \"data\": $data}}" >&$monitor
        truncate -s 1024 '{}'
        # A look comes with a beat, and a beat is heard alone.
        while ! read -r -t 0.1 command <&$monitor; do note .; done; say "asked $command"
        echo '{{"return": {{}}}}' >&$monitor; exit 33"#,
        disk.display()
    ));
    let mut launcher = launcher_with(&script, Some(&disk));
    let lines =
        BufReader::new(launcher.stderr.take().expect("piped")).lines().map(|line| line.expect("text"));
    let lines: Vec<String> = lines.collect();
    assert_eq!(launcher.wait().expect("its status").code(), Some(0), "{lines:#?}");
    let name = disk.display();
    for line in [
        format!("ferrovia: {name}: a write failed: No space left"),
        format!(
            "ferrovia: {name}: it has 1024 bytes instead of 4096; the guest's requests behind its end fail"
        ),
    ] {
        assert!(lines.contains(&line), "{line}: {lines:#?}");
    }
    let resize = |line: &String| line.contains("block_resize") && line.contains("1024");
    assert!(lines.iter().any(resize), "{lines:#?}");
}

/// QEMU does so when KVM cannot go on, for example.
#[test]
fn a_guest_that_qemu_stops_is_given_up_at_once() {
    let (_, end) =
        run(r#"note .; echo 'KVM internal error' >&2; echo '{"event": "STOP"}' >&$monitor; exec sleep 600"#);
    let Event::Ended(exit) = end else { panic!("{end:?}") };
    let error = exit.status().expect_err("it has no status").to_string();
    assert_eq!(error, "QEMU ended early (it stopped the guest): KVM internal error");
}

/// A QEMU that a debugger or a signal has stopped is not silent, and has its whole patience when it
/// continues.
#[test]
fn a_qemu_that_is_stopped_for_a_while_goes_on() {
    let patience = Patience { first_beat: Duration::from_secs(60), silence: Duration::from_secs(3) };
    let script = script("note .; say pid $$; kill -STOP $$; sleep 1; exit 33");
    let mut guest = start(script.path.clone(), patience).expect("the script starts");
    let event = guest.next(None).expect("no signal");
    let Event::Line(line) = event else { panic!("{event:?}") };
    let pid = line.strip_prefix("pid ").and_then(|pid| Pid::from_raw(pid.parse().ok()?)).expect("an id");
    // Nearly twice its patience.
    let event = guest.next(Some(Instant::now() + patience.silence * 11 / 6)).expect("no signal");
    assert!(matches!(event, Event::Deadline), "{event:?}");
    rustix::process::kill_process(pid, Signal::CONT).expect("it is stopped");
    let event = guest.next(None).expect("no signal");
    assert!(matches!(event, Event::Ended(Exit::Status(0))), "{event:?}");
}

/// Ctrl-Z at a terminal, then `fg`.
#[test]
fn a_launcher_that_is_stopped_stops_its_guest_and_continues_it() {
    let script = script(
        r#"say begun; note .
        while read -r command <&$monitor; do say "asked $command"; echo '{"return": {}}' >&$monitor; done"#,
    );
    let mut launcher = launcher(&script);
    let pid = Pid::from_child(&launcher);
    let mut lines = BufReader::new(launcher.stderr.take().expect("piped")).lines();
    let mut next = |word: &str| {
        let line = lines.find_map(|line| line.ok().filter(|line| line.contains(word)));
        line.unwrap_or_else(|| panic!("it never says {word}"))
    };
    next("begun");
    for _ in 0..2 {
        rustix::process::kill_process(pid, Signal::TSTP).expect("it runs");
        let (_, status) = rustix::process::waitpid(Some(pid), WaitOptions::UNTRACED)
            .expect("a child")
            .expect("a change of its state");
        assert!(status.stopped(), "{status:?}");
        rustix::process::kill_process(pid, Signal::CONT).expect("it is stopped");
        next("\"stop\"");
        next("\"cont\"");
    }
    rustix::process::kill_process(pid, Signal::TERM).expect("it runs");
    assert_eq!(launcher.wait().expect("its status").code(), Some(143), "the guest has lived until then");
}
