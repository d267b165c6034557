//! Two machines: files go from one to the other, and either of them dies in the middle.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ferrovia_qemu::process;
use rustix::process::{Pid, Signal};
use sha2::{Digest, Sha256};

fn pair(words: &[&str]) -> Child {
    launch(&[&["pair"], words].concat())
}

fn launch(words: &[&str]) -> Child {
    let program = std::env::current_exe().expect("this program");
    let program = program.parent().and_then(Path::parent).expect("target/PROFILE/deps").join("ferrovia");
    let mut launcher = Command::new(program);
    launcher.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
    process::bind(&mut launcher, Signal::KILL, Vec::new());
    launcher.spawn().expect("start the launcher")
}

/// Runs two machines that have to succeed; returns what they wrote.
#[track_caller]
fn succeed(words: &[&str]) -> String {
    let output = pair(words).wait_with_output().expect("its output");
    let said = String::from_utf8(output.stdout).expect("text");
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {}: {said}{complaints}", output.status);
    said
}

/// All that is left to read, in lines.
fn rest(of: impl Read) -> Vec<String> {
    BufReader::new(of).lines().map(|line| line.expect("text")).collect()
}

#[test]
fn files_of_any_size_arrive_in_each_way() {
    let dir = tempfile::tempdir().expect("a folder");
    let large = (3 << 20) + 77;
    for (transport, link, bytes) in [
        ("infiniband", "short-cut", 0),
        ("infiniband", "short-cut", 1),
        ("infiniband", "short-cut", large),
        ("infiniband", "pair", large),
        ("infiniband", "stream", 0),
        ("infiniband", "stream", large),
        ("iwarp", "short-cut", 0),
        ("iwarp", "pair", large),
        ("iwarp", "stream", large),
    ] {
        let path = dir.path().join("file");
        let contents: Vec<u8> = (0..bytes).map(|n: u32| (n.wrapping_mul(n) >> 7) as u8).collect();
        std::fs::write(&path, &contents).expect("write");
        let file = path.to_str().expect("a plain path");
        let said = succeed(&["--transport", transport, "--link", link, "transfer", file]);
        let digest: String = Sha256::digest(&contents).iter().map(|byte| format!("{byte:02x}")).collect();
        let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("B: transfer ")).collect();
        assert_eq!(lines.len(), 4, "{said}");
        for (way, line) in ["send", "write", "read", "direct"].iter().zip(lines) {
            assert!(line.starts_with(&format!("B: transfer {way}: {bytes} bytes in ")), "{line}");
            assert!(line.ends_with(&format!(" sha256 {digest}")), "{line}");
        }
        for machine in ["A: connected to 10.0.0.2", "B: connected to 10.0.0.1"] {
            assert!(said.lines().any(|line| line == machine), "{said}");
        }
    }
}

#[test]
fn a_client_waits_for_its_link_to_come_up() {
    let dir = tempfile::tempdir().expect("a folder");
    let socket = dir.path().join("link");
    let [listen, connect] = ["stream", "stream-connect"].map(|way| format!("{way}:{}", socket.display()));
    let mut client = launch(&["--log", "debug", "--link", &listen, "tour", "role=client", "peer=10.0.0.2"]);
    let mut stdout = BufReader::new(client.stdout.take().expect("piped"));
    let mut line = String::new();
    while !line.contains("no path leads to the other side yet") {
        line.clear();
        assert_ne!(stdout.read_line(&mut line).expect("text"), 0, "it ended early");
    }
    let server = launch(&["--link", &connect, "tour", "role=server", "peer=10.0.0.1"]);
    let said = rest(stdout);
    assert!(client.wait().expect("its status").success(), "{said:#?}");
    let server = server.wait_with_output().expect("its output");
    assert!(server.status.success(), "{server:?}");
}

#[test]
fn programs_with_words_of_their_own_find_each_other() {
    for (words, client, server) in [
        (
            &["rping", "count=3", "size=1000", "verify"][..],
            "rping: 3 pings of 1000 bytes, verified",
            "3 pings",
        ),
        (&["cmatose", "connections=2"], "test complete", "2 connections, 10 messages on each"),
        (&["udaddy", "count=4"], "test complete", "1 connections, 4 messages on each"),
        (
            &["immediate", "count=4"],
            "immediate: 4 rounds, each Write and Send with its immediate data",
            "4 rounds, disconnected",
        ),
    ] {
        for link in ["short-cut", "stream"] {
            let said = succeed(&[&["--link", link], words].concat());
            assert!(said.lines().any(|line| line == format!("A: {client}")), "{link}: {said}");
            let served = format!("B: 10.0.0.1: {server}");
            assert!(said.lines().any(|line| line.starts_with(&served)), "{link}: {said}");
        }
    }
}

#[test]
fn programs_connect_over_iwarp() {
    for (words, client, server) in [
        (
            &["rping", "count=3", "size=1000", "verify"][..],
            "rping: 3 pings of 1000 bytes, verified",
            "3 pings",
        ),
        (&["cmatose", "connections=2"], "test complete", "2 connections, 10 messages on each"),
    ] {
        for link in ["short-cut", "stream"] {
            let said = succeed(&[&["--link", link, "--transport", "iwarp"], words].concat());
            assert!(said.lines().any(|line| line == format!("A: {client}")), "{link}: {said}");
            let served = format!("B: 10.0.0.1: {server}");
            assert!(said.lines().any(|line| line.starts_with(&served)), "{link}: {said}");
        }
    }
}

#[test]
fn a_machine_that_ends_right_behind_its_disconnect_leaves_its_peer_an_orderly_end() {
    // What tells the peer is under way for longer than a machine takes to end, and may be lost.
    let link = ["--link", "stream", "--transport", "iwarp", "--impair", "delay=200ms,loss=5%,seed=3"];
    let said = succeed(&[&link[..], &["cmatose", "connections=2", "count=2"]].concat());
    assert!(said.lines().any(|line| line == "A: test complete"), "{said}");
    assert!(said.contains("B: 10.0.0.1: 2 connections, 2 messages on each"), "{said}");
}

#[test]
fn the_storage_target_serves_another_of_our_machines() {
    for (link, transport) in [("short-cut", "infiniband"), ("stream", "infiniband"), ("stream", "iwarp")] {
        let options = ["--link", link, "--transport", transport];
        let said = succeed(&[&options[..], &["storage", "requests=2000", "bytes=8192", "queues=2"]].concat());
        let outcome = |line: &str| {
            line.starts_with("A: ")
                && line.contains(" of 8192 bytes, 16 outstanding: ")
                && line.ends_with(" MB/s, all as written")
        };
        assert!(said.lines().any(outcome), "{link}: {said}");
        let idle = "B: idle: 3 connections so far, 0 of them broken";
        assert!(said.lines().any(|line| line == idle), "{link}: {said}");
    }
}

#[test]
fn a_server_that_does_not_get_ready_has_no_client() {
    for link in ["short-cut", "stream"] {
        let output = pair(&["--link", link, "udaddy", "bogus=1"]).wait_with_output().expect("its output");
        let said = String::from_utf8(output.stdout).expect("text");
        assert_eq!(output.status.code(), Some(1), "{link}: {said}");
        assert_eq!(said, "B: error: bogus=1: this program has no such word\n", "{link}");
    }
}

/// The QEMU of the machine with this role.
fn qemu(launcher: &Child, role: &str) -> Pid {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("list /proc") {
        let process: PathBuf = entry.expect("list /proc").path();
        let number = process.file_name().and_then(|name| name.to_str()?.parse::<i32>().ok());
        // A process may end while it is looked at.
        let read = |file: &str| std::fs::read_to_string(process.join(file)).unwrap_or_default();
        let parent = format!("PPid:\t{}\n", launcher.id());
        if let Some(number) = number
            && read("status").contains(&parent)
            && read("cmdline").contains(&format!("role={role} "))
        {
            found.push(Pid::from_raw(number).expect("an id"));
        }
    }
    assert_eq!(found.len(), 1, "one QEMU has this role");
    found[0]
}

#[test]
fn the_machine_that_is_left_reports_the_broken_connection() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("file");
    // Far more than can be moved until the machine is killed.
    File::create(&path).and_then(|file| file.set_len(1 << 40)).expect("a sparse file");
    for (role, victim, survivor) in [("server", "B", "A"), ("client", "A", "B")] {
        let mut launcher = pair(&["transfer", path.to_str().expect("a plain path")]);
        let mut stdout = BufReader::new(launcher.stdout.take().expect("piped"));
        let stderr = launcher.stderr.take().expect("piped");
        let connected = format!("{survivor}: connected to");
        let mut line = String::new();
        while !line.starts_with(&connected) {
            line.clear();
            assert_ne!(stdout.read_line(&mut line).expect("text"), 0, "it ended early");
        }
        rustix::process::kill_process(qemu(&launcher, role), Signal::KILL).expect("it runs");
        let (said, complaints) = (rest(stdout), rest(stderr));
        let status = launcher.wait().expect("its status");
        assert_eq!(status.code(), Some(1), "{said:#?} {complaints:#?}");
        let broke = |line: &String| {
            line.starts_with(&format!("{survivor}: error: ")) && line.contains("the connection broke")
        };
        assert!(said.iter().any(broke), "{victim} was killed: {said:#?} {complaints:#?}");
        let last = format!("ferrovia: machine {victim}: QEMU ended early (signal 9): it gave no reason");
        assert_eq!(complaints.last(), Some(&last), "{complaints:#?}");
    }
}
