//! Other people's programs on the verbs library, and on the provider of DAT (`dat`): those of
//! Debian's packages, unchanged.
//!
//! `cargo test --test programs` runs these tests; plain `cargo test` does not, as they download
//! packages (once). Each program is a process with a NIC of its own, on an address of 127.0.0.0/8
//! that it finds, in memory that all share or by UDP; server and client exchange what they need
//! over TCP, each pair at another port.

extern crate ferrovia_qemu as qemu;

use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use links::Shm;
use qemu::linux::programs;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

#[path = "programs/crates.rs"]
mod crates;
#[path = "programs/dat.rs"]
mod dat;
#[path = "programs/guest.rs"]
mod guest;
#[path = "programs/killed.rs"]
mod killed;
#[path = "programs/switch.rs"]
mod switch;

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
    command.args(options).arg("verbs").arg("--").arg(&program).args(arguments);
    // The libraries of programs that are not of rdma-core.
    command.env("LD_LIBRARY_PATH", debians("../lib/x86_64-linux-gnu"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A port of TCP that no other test of this process uses.
fn port() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let from = 20_000 + (std::process::id() % 20_000) as u16;
    (from + NEXT.fetch_add(1, Ordering::Relaxed)).to_string()
}

/// A program that runs; it is killed at the latest when this is dropped.
struct Running {
    child: Option<Child>,
    /// What it has written as far as it was read, and how much of that was looked at.
    read: Vec<u8>,
    seen: usize,
}

impl Running {
    fn start(mut command: Command) -> Running {
        let child = command.spawn().expect("the launcher starts");
        Running { child: Some(child), read: Vec::new(), seen: 0 }
    }

    fn child(&mut self) -> &mut Child {
        self.child.as_mut().expect("it runs")
    }

    fn wait_until_heard(&mut self, port: &str) {
        let begun = Instant::now();
        while !programs::is_heard(port) {
            if self.child().try_wait().expect("a child").is_some() {
                panic!("the server ended:\n{}", said(&self.output()));
            }
            if begun.elapsed() > LIMIT {
                self.give_up(&format!("the server does not listen at {port}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until it writes these words.
    #[track_caller]
    fn await_words(&mut self, words: &str) {
        self.await_line(words, |line| line.contains(words));
    }

    /// Waits until it writes such a line after those that were waited for.
    #[track_caller]
    fn await_line(&mut self, what: &str, is_it: impl Fn(&str) -> bool) {
        let begun = Instant::now();
        loop {
            while let Some(length) = self.read[self.seen..].iter().position(|byte| *byte == b'\n') {
                let line = String::from_utf8_lossy(&self.read[self.seen..][..length]).into_owned();
                self.seen += length + 1;
                if is_it(&line) {
                    return;
                }
            }
            let left = Timespec::try_from(LIMIT.saturating_sub(begun.elapsed())).expect("a time");
            let pipe = self.child.as_mut().and_then(|child| child.stdout.as_mut()).expect("a pipe");
            if poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&left)).expect("a pipe") == 0 {
                self.give_up(&format!("the program does not write {what:?}"));
            }
            let mut bytes = [0; 4096];
            match pipe.read(&mut bytes).expect("a pipe") {
                0 => panic!("the program ended without {what:?}:\n{}", said(&self.output())),
                length => self.read.extend_from_slice(&bytes[..length]),
            }
        }
    }

    /// Its output, when it has ended.
    #[track_caller]
    fn end(mut self) -> Output {
        let begun = Instant::now();
        while self.child().try_wait().expect("a child").is_none() {
            if begun.elapsed() > LIMIT {
                self.give_up("the program does not end");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.output()
    }

    /// It has taken too long: kills it, and fails with what it wrote.
    #[track_caller]
    fn give_up(&mut self, why: &str) -> ! {
        let _ = self.child().kill();
        panic!("{why}:\n{}", said(&self.output()));
    }

    /// All of its output, up to its end.
    fn output(&mut self) -> Output {
        let rest = self.child.take().expect("it ran").wait_with_output().expect("its output");
        Output { stdout: [std::mem::take(&mut self.read), rest.stdout].concat(), ..rest }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
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
    pingpong_with([options, options], program, arguments);
}

/// As [`pingpong`], with options of each side.
fn pingpong_with(options: [&[&str]; 2], program: &str, arguments: &[&str]) {
    let common = [&["-g", "0"], arguments].concat();
    by_tcp(
        options.map(|options| launcher(options, program, &common)),
        ["-p", "-p"],
        "127.0.0.1",
        " iters in ",
    );
}

/// Runs a server and its client, which find each other over TCP at a port that they get by these
/// options; the client's last argument is the server's address.
fn by_tcp([mut server, mut client]: [Command; 2], options: [&str; 2], at: &str, words: &str) {
    let port = port();
    server.args([options[0], &port]);
    client.args([options[1], &port, at]);
    let called = format!("{server:?}");
    let mut server = Running::start(server);
    server.wait_until_heard(&port);
    let client = Running::start(client);
    for (who, output) in [("client", client.end()), ("server", server.end())] {
        let said = said(&output);
        assert!(output.status.success() && said.contains(words), "{called}, {who}: {said}");
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

/// The calls that the header makes by pointers: completions that are read field by field, with the
/// time of each, and posts by a call for each request.
#[test]
fn completions_have_times_and_requests_are_posted_by_the_newer_calls() {
    pingpong(&[], "ibv_rc_pingpong", &["-c", "-t", "-n", "200"]);
    pingpong(&[], "ibv_rc_pingpong", &["-c", "-N", "-n", "200"]);
    pingpong(&[], "ibv_rc_pingpong", &["-c", "-t", "-N", "-n", "200"]);
}

#[test]
fn unreliable_connections_and_datagrams_do_too() {
    pingpong(&[], "ibv_uc_pingpong", &["-c"]);
    pingpong(&[], "ibv_ud_pingpong", &["-c", "-e"]);
}

#[test]
fn by_udp_connections_reach_each_other_too() {
    let links = [(); 2].map(|()| format!("udp:{}", address()));
    let options = links.each_ref().map(|link| ["--link", link]);
    pingpong_with(options.each_ref().map(|options| &options[..]), "ibv_rc_pingpong", &["-c"]);
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
    client.await_words("remote address");
    server.child().kill().expect("it runs");
    let output = client.end();
    let said = said(&output);
    assert!(!output.status.success() && said.contains("retries exceeded"), "{said}");
}

/// An address of 127.0.0.0/8 that no other test has, for a server that clients have to name.
fn address() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(2);
    let process = std::process::id();
    let last = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("127.{}.{}.{last}", 1 + process / 256 % 250, process % 256)
}

/// The link between two programs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Between {
    Memory,
    Udp,
}

/// The options that give a program's NIC this address.
fn at(link: Between, address: &str) -> [String; 2] {
    match link {
        Between::Memory => ["--ip".into(), format!("{address}/8")],
        Between::Udp => ["--link".into(), format!("udp:{address}")],
    }
}

/// Whether a process has a NIC at an address: by the lock of the address, or by the kernel's table
/// of UDP.
fn has_nic(link: Between, address: &str) -> bool {
    let address: std::net::Ipv4Addr = address.parse().expect("an address");
    match link {
        Between::Memory => {
            let folder = Shm::own_folder().expect("a folder");
            folder.join(format!("{address}.lock")).exists() && !Shm::has_ended(&folder, address.into())
        }
        Between::Udp => {
            let local = format!("{:08X}:{:04X}", u32::from(address).swap_bytes(), 4791);
            let table = fs::read_to_string("/proc/net/udp").unwrap_or_default();
            table.lines().any(|line| line.split_whitespace().nth(1) == Some(&local))
        }
    }
}

/// A server that is connected to by `rdma_cm`, at an address of its own.
fn cm_server(link: Between, program: &str, arguments: &[&str]) -> (Running, String) {
    let address = address();
    let options = at(link, &address);
    let mut server = Running::start(launcher(&options.each_ref().map(String::as_str), program, arguments));
    let begun = Instant::now();
    while !has_nic(link, &address) {
        assert!(server.child().try_wait().expect("a child").is_none(), "{program} ended");
        assert!(begun.elapsed() < LIMIT, "{program} opens no NIC");
        std::thread::sleep(Duration::from_millis(10));
    }
    (server, address)
}

/// The options of a client: in memory it finds an address itself.
fn of_client(link: Between) -> Vec<String> {
    match link {
        Between::Memory => Vec::new(),
        Between::Udp => at(link, &address()).into(),
    }
}

/// Runs a client until the server listens: it opens its NIC a moment before.
fn cm_client(link: Between, program: &str, arguments: &[&str]) -> Output {
    let (begun, options) = (Instant::now(), of_client(link));
    let options: Vec<_> = options.iter().map(String::as_str).collect();
    loop {
        let output = Running::start(launcher(&options, program, arguments)).end();
        let text = said(&output);
        // The third is perftest's way to write RDMA_CM_EVENT_REJECTED.
        let not_yet = [
            "EVENT_REJECTED",
            "EVENT_UNREACHABLE, error: 1",
            "Unexpected CM event bl blka 8",
            "Connection refused",
        ];
        if !not_yet.iter().any(|words| text.contains(words)) || begun.elapsed() > LIMIT {
            return output;
        }
    }
}

/// Runs a server and its client, to whose arguments the server's address is appended.
fn connect(server: (&str, &[&str]), client: (&str, &[&str]), words: &str) {
    connect_by(Between::Memory, server, client, words);
}

fn connect_by(link: Between, server: (&str, &[&str]), client: (&str, &[&str]), words: &str) {
    let (running, address) = cm_server(link, server.0, server.1);
    let arguments = [client.1, &[&address]].concat();
    let client_said = cm_client(link, client.0, &arguments);
    for (who, output) in [("client", client_said), ("server", running.end())] {
        let said = said(&output);
        assert!(output.status.success() && said.contains(words), "{}, {who}: {said}", server.0);
    }
}

#[test]
fn rping_connects_by_rdma_cm_and_checks_what_it_reads_and_writes() {
    let common = ["-v", "-V", "-C", "30", "-S", "2000"];
    let server = [&["-s"], &common[..]].concat();
    let client = [&["-c"], &common[..], &["-a"]].concat();
    connect(("rping", &server), ("rping", &client), "rdma-ping-29");
    connect_by(Between::Udp, ("rping", &server), ("rping", &client), "rdma-ping-29");
}

#[test]
fn rping_moves_its_queue_pairs_itself() {
    let common = ["-v", "-q", "-C", "30"];
    let (server, client) = ([&["-s"], &common[..]].concat(), [&["-c"], &common[..], &["-a"]].concat());
    connect(("rping", &server), ("rping", &client), "rdma-ping-29");
}

#[test]
fn endpoints_that_wait_connect() {
    connect(("rdma_server", &[]), ("rdma_client", &["-s"]), ": end 0");
}

#[test]
fn many_connections_share_an_event_channel() {
    let common = ["-c", "20", "-C", "20"];
    connect(("ucmatose", &common), ("ucmatose", &[&common[..], &["-s"]].concat()), "return status 0");
}

#[test]
fn datagram_services_are_found_by_rdma_cm() {
    connect(("udaddy", &[]), ("udaddy", &["-s"]), "return status 0");
}

/// Runs `mckey`: one process joins a group, and another one sends to it.
fn multicast(link: Between) {
    let process = std::process::id();
    let group = format!("239.{}.{}.{}", 10 + link as u8, process / 256 % 256, process % 256);
    let program = debians("mckey");
    let start = |more: &[&str]| {
        let address = address();
        let options = at(link, &address);
        let by_line = ["-oL", program.to_str().expect("a path"), "-m", &group, "-b", &address];
        let options = options.each_ref().map(String::as_str);
        Running::start(launcher(&options, "/usr/bin/stdbuf", &[&by_line[..], more].concat()))
    };
    let mut receiver = start(&[]);
    // It says so when it has joined the group.
    receiver.await_words("receiving data");
    for (who, output) in [("sender", start(&["-s"]).end()), ("receiver", receiver.end())] {
        let said = said(&output);
        assert!(output.status.success() && said.contains("data transfers complete"), "{who}: {said}");
    }
}

#[test]
fn members_of_a_multicast_group_get_what_is_sent_to_it() {
    multicast(Between::Memory);
}

#[test]
fn by_udp_members_of_a_group_do_too() {
    multicast(Between::Udp);
}

/// The end that is done first disconnects, and the other one still has requests outstanding.
#[test]
fn perftest_runs_connected_by_rdma_cm() {
    for program in ["ib_send_lat", "ib_write_bw", "ib_read_lat", "ib_write_lat"] {
        let common = ["-R", "-n", "100"];
        let port = port();
        let common = [&common[..], &["-p", &port]].concat();
        // Which not all servers follow by figures.
        connect((program, &common), (program, &common), "remote address");
    }
}

/// Runs a program of perftest between two processes, which find each other over TCP.
fn perftest(options: &[&str], program: &str, arguments: &[&str]) {
    let common = [&["-F", "-x", "0"], arguments].concat();
    by_tcp(
        [(); 2].map(|()| launcher(options, program, &common)),
        ["-p", "-p"],
        "127.0.0.1",
        "remote address",
    );
}

#[test]
fn perftest_measures_atomics() {
    for program in ["ib_atomic_lat", "ib_atomic_bw"] {
        for operation in ["CMP_AND_SWAP", "FETCH_AND_ADD"] {
            perftest(&[], program, &["-A", operation, "-n", "200"]);
        }
    }
}

#[test]
fn perftest_sends_over_all_kinds_of_queue_pairs() {
    for connection in ["RC", "UC", "UD"] {
        perftest(&[], "ib_send_bw", &["-c", connection, "-n", "500", "-s", "1024"]);
        perftest(&[], "ib_send_lat", &["-c", connection, "-n", "200"]);
    }
    perftest(&[], "ib_send_bw", &["-n", "500", "--use-srq", "-q", "4"]);
    perftest(&[], "ib_send_bw", &["-n", "500", "-b", "-e"]);
}

#[test]
fn perftest_takes_longer_over_a_link_with_losses() {
    perftest(&["--impair", "loss=1%,seed=5"], "ib_send_bw", &["-n", "300"]);
    perftest(&["--impair", "loss=1%,seed=6"], "ib_read_bw", &["-n", "300"]);
}

#[test]
fn a_perftest_whose_peer_is_killed_ends_with_an_error() {
    let port = port();
    let common = ["-F", "-x", "0", "-p", &port, "--run_infinitely"];
    let mut server = Running::start(launcher(&[], "ib_write_bw", &common));
    server.wait_until_heard(&port);
    let program = debians("ib_write_bw");
    let by_line = ["-oL", program.to_str().expect("a path")];
    let arguments = [&by_line[..], &common[..], &["127.0.0.1"]].concat();
    let mut client = Running::start(launcher(&[], "/usr/bin/stdbuf", &arguments));
    client.await_line("a line of figures", |line| line.trim_start().starts_with("65536"));
    server.child().kill().expect("it runs");
    let output = client.end();
    let said = said(&output);
    assert!(said.contains("ompletion with error"), "{said}");
}

/// The libraries, installed into a folder.
fn installed() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let mut install = Command::new(env!("CARGO_BIN_EXE_ferrovia"));
    let output = install.args(["verbs", "install"]).arg(folder.path()).output().expect("it runs");
    assert!(output.status.success(), "{}", said(&output));
    folder
}

/// A program of C beside this file, built in a folder with the libraries; its path is the second.
fn compiled(name: &str) -> (tempfile::TempDir, String) {
    let folder = installed();
    let of = |name: &str| folder.path().join(name);
    let mut compile = Command::new("cc");
    compile.args(["-O2", "-Wall", "-Werror", "-I"]).arg(debians("../include"));
    compile.arg("-o").arg(of(name));
    compile.arg(format!("{}/tests/{name}.c", env!("CARGO_MANIFEST_DIR")));
    let output = compile.args([of("librdmacm.so.1"), of("libibverbs.so.1")]).output().expect("it runs");
    assert!(output.status.success(), "{}", said(&output));
    let program = of(name).display().to_string();
    (folder, program)
}

#[test]
fn a_program_sees_the_device_that_it_has_opened_in_dev_and_sys_and_among_interfaces() {
    let (folder, looks) = compiled("looks");
    let made = folder.path().join("made").display().to_string();
    let address = address();
    let octets = address.parse::<std::net::Ipv4Addr>().expect("an address").octets();
    let without_net = u32::from_be_bytes([0, octets[1], octets[2], octets[3]]).to_string();
    let options = ["--ip", &format!("{address}/8")];
    let output = Running::start(launcher(&options, &looks, &[&made, &without_net])).end();
    assert!(said(&output).contains("ok"), "{}", said(&output));
}

#[test]
fn a_shell_sees_nothing_of_devices_and_its_children_use_the_library() {
    let script = "test ! -e /dev/infiniband/uverbs0 && ls /sys/class/net | grep -qx lo && exec \"$0\"";
    let program = debians("ibv_devices").display().to_string();
    let said = said(&Running::start(launcher(&[], "/bin/sh", &["-c", script, &program])).end());
    assert!(said.contains("rxe0"), "{said}");
}

/// UCX looks for the device's node, and for the kinds of its GIDs.
#[test]
fn ucx_finds_the_device_and_moves_data_over_it() {
    for transport in ["rc_v", "ud_v"] {
        for test in ["tag_lat", "tag_bw", "ucp_put_lat", "ucp_get"] {
            let start = || {
                let mut command = launcher(&[], "ucx_perftest", &["-t", test, "-n", "300", "-w", "10"]);
                command.env("UCX_TLS", transport).env("UCX_NET_DEVICES", "rxe0:1");
                command
            };
            by_tcp([start(), start()], ["-p", "-p"], "127.0.0.1", "");
        }
    }
}

/// libfabric looks for network interfaces with the device's addresses.
#[test]
fn libfabric_connects_over_the_device() {
    for (provider, endpoint) in [("verbs", "msg"), ("verbs;ofi_rxm", "rdm")] {
        let (at, port) = (address(), port());
        let arguments = ["-p", provider, "-e", endpoint, "-I", "50", "-c"];
        let options = ["--ip", &format!("{at}/8")];
        let server = [&arguments[..], &["-B", &port]].concat();
        let mut server = Running::start(launcher(&options, "fi_pingpong", &server));
        server.wait_until_heard(&port);
        let client = [&arguments[..], &["-P", &port, &at]].concat();
        let client = Running::start(launcher(&[], "fi_pingpong", &client));
        for (who, output) in [("client", client.end()), ("server", server.end())] {
            let said = said(&output);
            let sizes = said.lines().filter(|line| line.contains(" =50 ")).count();
            // The layer rxm of libfabric 1.17 looks for the end of a connection before it looks for
            // completions. If both are there it reports the last one as flushed.
            let is_flushed = endpoint == "rdm" && said.contains("cq_readerr: work request flushed");
            let ended = output.status.success() || is_flushed;
            assert!(ended && sizes == 6, "fi_pingpong -e {endpoint}, {who}: {said}");
        }
    }
}

#[test]
fn an_address_that_the_link_does_not_carry_is_refused() {
    let program = debians("ibv_devices");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferrovia"));
    command.args(["--link", "udp:127.0.0.250", "--ip", "10.0.0.1/24", "verbs", "--"]).arg(program);
    let said = said(&command.output().expect("it runs"));
    assert!(said.contains("needs --ip 127.0.0.250/LEN"), "{said}");
}

#[test]
fn a_shell_can_be_told_what_to_export_and_the_library_installed() {
    let launcher = || Command::new(env!("CARGO_BIN_EXE_ferrovia"));
    let output = launcher().args(["--link", "udp:127.0.0.9", "verbs", "--print-env"]).output();
    let exports = said(&output.expect("it runs"));
    assert!(exports.contains("export FERROVIA_LINK='udp:127.0.0.9'"), "{exports}");
    let folder = installed();
    let library: PathBuf = folder.path().join("libibverbs.so.1");
    let listed =
        Command::new(debians("ibv_devices")).env("LD_LIBRARY_PATH", folder.path()).output().expect("it runs");
    assert!(library.is_file() && said(&listed).contains("rxe0"), "{}", said(&listed));
    assert!(folder.path().join("librdmacm.so.1").is_file());
}

#[test]
fn wrong_options_get_one_line_and_no_program_runs() {
    for (arguments, words) in [
        (&["verbs"][..], "which program"),
        (&["verbs", "install"], "verbs install DIR"),
        (&["verbs", "--", "/no/such/program"], "cannot run /no/such/program"),
        (&["--link", "pair", "verbs", "--", "true"], "choose shm:PATH"),
        (&["--vlan", "7", "--link", "udp:127.0.0.9", "verbs", "--", "true"], "no VLAN"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_ferrovia")).args(arguments).output().expect("it runs");
        let said = said(&output);
        assert!(!output.status.success() && said.contains(words), "{arguments:?}: {said}");
    }
}
