//! Other people's programs on the verbs library: those of Debian's packages, unchanged.
//!
//! `cargo test --test programs` runs these tests; plain `cargo test` does not, as they download
//! packages (once). Each program is a process with a NIC of its own, on an address of 127.0.0.0/8
//! that it finds; server and client exchange what they need over TCP, each pair at another port.

extern crate ferrovia_qemu as qemu;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use qemu::linux::programs;

/// How long a program may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// A program of Debian's. The first call also builds the library, which may take longer than a
/// program may.
fn debians(program: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let built = Command::new(env!("CARGO_BIN_EXE_ferrovia")).args(["verbs", "--print-env"]).output();
        let built = built.expect("the launcher runs");
        assert!(built.status.success(), "{}", said(&built));
        programs::find().expect("Debian's programs")
    });
    folder.join(program)
}

/// A launcher that becomes the program.
fn launcher(options: &[&str], program: &str, arguments: &[&str]) -> Command {
    let program = debians(program);
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferrovia"));
    command.args(options).arg("verbs").arg("--").arg(program).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A port of TCP that no other test of this process uses.
fn port() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let from = 20_000 + (std::process::id() % 20_000) as u16;
    (from + NEXT.fetch_add(1, Ordering::Relaxed)).to_string()
}

/// Whether a process listens at a port of TCP, by the kernel's tables.
fn is_heard(port: &str) -> bool {
    let port: u16 = port.parse().expect("a port");
    let (listening, tail) = (" 0A ", format!(":{port:04X}"));
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let lines = fs::read_to_string(table).unwrap_or_default();
        lines.lines().any(|line| {
            let local = line.split_whitespace().nth(1);
            local.is_some_and(|local| local.ends_with(&tail)) && line.contains(listening)
        })
    })
}

/// A program that runs; it is killed at the latest when this is dropped.
struct Running(Option<Child>);

impl Running {
    fn start(mut command: Command) -> Running {
        Running(Some(command.spawn().expect("the launcher starts")))
    }

    fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("it runs")
    }

    fn wait_until_heard(&mut self, port: &str) {
        let begun = Instant::now();
        while !is_heard(port) {
            if self.child().try_wait().expect("a child").is_some() {
                let output = self.0.take().expect("it ran").wait_with_output().expect("its output");
                panic!("the server ended:\n{}", said(&output));
            }
            assert!(begun.elapsed() < LIMIT, "the server does not listen at {port}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Its output, when it has ended.
    fn end(mut self) -> Output {
        let begun = Instant::now();
        while self.child().try_wait().expect("a child").is_none() {
            assert!(begun.elapsed() < LIMIT, "the program does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        self.0.take().expect("it ran").wait_with_output().expect("its output")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn said(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{}\n{out}{err}", output.status)
}

/// Runs a pingpong between two processes; both have to succeed.
fn pingpong(options: &[&str], program: &str, arguments: &[&str]) {
    let port = port();
    let common = [&["-g", "0", "-p", &port], arguments].concat();
    let mut server = Running::start(launcher(options, program, &common));
    server.wait_until_heard(&port);
    let client = Running::start(launcher(options, program, &[&common[..], &["127.0.0.1"]].concat()));
    for (who, output) in [("client", client.end()), ("server", server.end())] {
        let said = said(&output);
        assert!(output.status.success() && said.contains(" iters in "), "{program}, {who}: {said}");
    }
}

#[test]
fn a_device_is_listed_with_its_port_and_its_name() {
    let program = debians("ibv_devinfo");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferrovia"));
    let output = command.args(["verbs", "--name", "mlx9_0", "--"]).arg(program).arg("-v").output();
    let said = said(&output.expect("it runs"));
    for words in ["mlx9_0", "PORT_ACTIVE", "Ethernet", "RoCE v2", "::ffff:127.0.0."] {
        assert!(said.contains(words), "no {words:?}: {said}");
    }
}

#[test]
fn reliable_connections_poll_or_wait_for_events_and_check_what_arrives() {
    pingpong(&[], "ibv_rc_pingpong", &["-c"]);
    pingpong(&[], "ibv_rc_pingpong", &["-c", "-e", "-s", "100000", "-n", "200"]);
}

#[test]
fn unreliable_connections_and_datagrams_do_too() {
    pingpong(&[], "ibv_uc_pingpong", &["-c"]);
    pingpong(&[], "ibv_ud_pingpong", &["-c", "-e"]);
}

#[test]
fn sixteen_connections_share_a_receive_queue() {
    pingpong(&[], "ibv_srq_pingpong", &["-c"]);
}

#[test]
fn a_link_with_losses_only_takes_longer() {
    pingpong(&["--impair", "loss=1%,reorder=1%,seed=3"], "ibv_rc_pingpong", &["-c", "-n", "300"]);
}

#[test]
fn a_peer_that_is_killed_ends_the_connection_with_an_error() {
    let port = port();
    let common = ["-g", "0", "-p", &port, "-n", "100000000"];
    let mut server = Running::start(launcher(&[], "ibv_rc_pingpong", &common));
    server.wait_until_heard(&port);
    // Into a pipe the program would write its lines only at its end.
    let program = debians("ibv_rc_pingpong");
    let by_line = ["-oL", program.to_str().expect("a path")];
    let mut client = Running::start(launcher(
        &[],
        "/usr/bin/stdbuf",
        &[&by_line[..], &common[..], &["127.0.0.1"]].concat(),
    ));
    // It writes the server's address when it has that, and begins.
    let pipe = client.child().stdout.as_mut().expect("a pipe");
    assert!(BufReader::new(pipe).lines().any(|line| line.expect("text").contains("remote address")));
    server.child().kill().expect("it runs");
    let output = client.end();
    let said = said(&output);
    assert!(!output.status.success() && said.contains("retries exceeded"), "{said}");
}

#[test]
fn a_shell_can_be_told_what_to_export_and_the_library_installed() {
    let launcher = || Command::new(env!("CARGO_BIN_EXE_ferrovia"));
    let output = launcher().args(["--link", "udp:127.0.0.9", "verbs", "--print-env"]).output();
    let exports = said(&output.expect("it runs"));
    assert!(exports.contains("export FERROVIA_LINK='udp:127.0.0.9'"), "{exports}");
    let folder = tempfile::tempdir().expect("a folder");
    let output = launcher().args(["verbs", "install"]).arg(folder.path()).output().expect("it runs");
    assert!(output.status.success(), "{}", said(&output));
    let library: PathBuf = folder.path().join("libibverbs.so.1");
    let listed =
        Command::new(debians("ibv_devices")).env("LD_LIBRARY_PATH", folder.path()).output().expect("it runs");
    assert!(library.is_file() && said(&listed).contains("rxe0"), "{}", said(&listed));
}

#[test]
fn wrong_options_get_one_line_and_no_program_runs() {
    for (arguments, words) in [
        (&["verbs"][..], "which program"),
        (&["verbs", "install"], "verbs install DIR"),
        (&["verbs", "--", "/no/such/program"], "cannot run /no/such/program"),
        (&["--link", "pair", "verbs", "--", "true"], "choose udp:ADDRESS"),
        (&["--vlan", "7", "--link", "udp:127.0.0.9", "verbs", "--", "true"], "no VLAN"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_ferrovia")).args(arguments).output().expect("it runs");
        let said = said(&output);
        assert!(!output.status.success() && said.contains(words), "{arguments:?}: {said}");
    }
}
