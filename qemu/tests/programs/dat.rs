//! Programs for uDAPL 2.0, those of Debian's dapl2-utils: Debian's libdat2 loads our provider.
//!
//! dtest and dtestx tell each other by TCP where they are, all at the same port, so one pair runs
//! at a time; so does dtestcm. The servers of dtestsrq and dapltest are found at their NICs'
//! addresses. The programs end with status 0 also after a failure, so what they write counts.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::*;

/// The IA of `dat.conf`.
const IA: &str = "ferrovia0";
/// The port of TCP of dtest and its kin.
const PORT: &str = "15828";

fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A program whose lines come at once: into a pipe it would write them only at its end.
fn by_line(options: &[&str], program: &str, arguments: &[&str]) -> Command {
    let program = debians(program);
    // Beside the folder of programs.
    let libraries = program.with_file_name("../lib/x86_64-linux-gnu");
    let program = ["-oL", program.to_str().expect("a path")];
    let mut command = launcher(options, "/usr/bin/stdbuf", &[&program[..], arguments].concat());
    command.env("LD_LIBRARY_PATH", libraries);
    command
}

/// Checks that a program wrote these words, and nothing about a failure.
#[track_caller]
fn ended_well(who: &str, output: &Output, words: &[&str]) {
    let said = said(output);
    let all = words.iter().all(|word| said.contains(word));
    let failed =
        ["FAIL", "rror", "nexpected", "ERR", "failed in file"].iter().any(|word| said.contains(word));
    assert!(output.status.success() && all && !failed, "{who}: {said}");
}

/// Runs a server and its client, with options for the NIC of both; both have to write these words.
#[track_caller]
fn pair(options: &[&str], program: &str, [server, client]: [&[&str]; 2], words: &[&str]) {
    let _turn = turn();
    let mut running = Running::start(launcher(options, program, &[&["-P", IA], server].concat()));
    running.wait_until_heard(PORT);
    let arguments = [&["-P", IA, "-h", "127.0.0.1"], client].concat();
    let client = Running::start(launcher(options, program, &arguments)).end();
    ended_well("client", &client, words);
    ended_well("server", &running.end(), words);
}

fn dtest(options: &[&str], arguments: &[&str]) {
    pair(options, "dtest", [arguments; 2], &["DAPL Test Complete. PASSED"]);
}

#[test]
fn dtest_writes_reads_and_sends() {
    dtest(&[], &["-b", "4096"]);
    dtest(&[], &["-w", "-b", "1000"]);
}

#[test]
fn dtest_waits_by_a_notification_object() {
    dtest(&[], &["-c", "-b", "4096"]);
}

#[test]
fn dtest_polls_the_memory_that_its_peer_writes() {
    dtest(&[], &["-W"]);
    // It compares all bytes as soon as it sees the last one.
    dtest(&[], &["-D", "-b", "1000"]);
}

#[test]
fn a_link_with_losses_only_takes_longer_for_dtest() {
    dtest(&["--impair", "loss=1%,seed=3"], &["-b", "4096"]);
}

#[test]
fn dtest_runs_by_udp_too() {
    let _turn = turn();
    let links = [(); 2].map(|()| at(Between::Udp, &address()));
    let [server, client] = links.each_ref().map(|link| link.each_ref().map(String::as_str));
    let common = ["-P", IA, "-b", "4096"];
    let mut running = Running::start(launcher(&server, "dtest", &common));
    running.wait_until_heard(PORT);
    let arguments = [&common[..], &["-h", "127.0.0.1"]].concat();
    let client = Running::start(launcher(&client, "dtest", &arguments)).end();
    for output in [client, running.end()] {
        ended_well("by UDP", &output, &["DAPL Test Complete. PASSED"]);
    }
}

#[test]
fn dtestx_writes_with_immediate_data_and_does_atomic_operations() {
    let words = ["IMMEDIATE_DATA test - PASSED", "CMP_SWAP test - PASSED", "FETCH_ADD test - PASSED"];
    pair(&[], "dtestx", [&["-s"], &["-c"]], &words);
}

#[test]
fn dtestx_sends_datagrams() {
    pair(&[], "dtestx", [&["-s", "-u"], &["-c", "-u"]], &["UD test PASSED"]);
    pair(&[], "dtestx", [&["-s", "-u", "-m"], &["-c", "-u", "-m"]], &["UD test PASSED"]);
}

#[test]
fn dtestcm_makes_a_thousand_connections() {
    let common = ["-c", "1000", "-b", "100"];
    pair(&[], "dtestcm", [&common; 2], &["ALL 1000 CONNECTED"]);
}

#[test]
fn dtestsrq_shares_a_receive_queue() {
    let address = address();
    let [option, own] = at(Between::Memory, &address);
    let common = ["-P", IA, "-b", "1024", "-c", "4", "-B", "10"];
    let mut server = Running::start(by_line(&[&option, &own], "dtestsrq", &[&["-s"], &common[..]].concat()));
    server.await_words("server ready");
    let client = launcher(&[], "dtestsrq", &[&common[..], &["-h", &address]].concat());
    ended_well("client", &Running::start(client).end(), &["ALL 4 CONNECTED", "Test Complete"]);
    ended_well("server", &server.end(), &["Test Complete"]);
}

/// A server of dapltest, and what its clients are given.
struct Dapltest {
    server: Running,
    address: String,
}

impl Dapltest {
    fn start() -> Dapltest {
        let address = address();
        let [option, own] = at(Between::Memory, &address);
        let mut server = Running::start(by_line(&[&option, &own], "dapltest", &["-T", "S", "-D", IA]));
        server.await_words("Service Point Ready");
        Dapltest { server, address }
    }

    /// Runs a client of a kind.
    fn client(&self, kind: &str, arguments: &[&str]) -> Output {
        let common = ["-T", kind, "-D", IA, "-s", &self.address];
        Running::start(launcher(&[], "dapltest", &[&common[..], arguments].concat())).end()
    }

    #[track_caller]
    fn run(&self, kind: &str, arguments: &[&str]) {
        ended_well(kind, &self.client(kind, arguments), &["End of Work"]);
    }

    /// Ends the server.
    #[track_caller]
    fn quit(self) {
        ended_well("Q", &self.client("Q", &[]), &["End of Work"]);
        ended_well("server", &self.server.end(), &["Exiting"]);
    }
}

#[test]
fn dapltest_makes_transactions() {
    let test = Dapltest::start();
    let words = |text: &'static str| -> Vec<&str> { text.split_whitespace().collect() };
    test.run("T", &words("-i 100 client SR 256 server SR 256"));
    // The data is checked; several threads and endpoints; operations of all kinds, and polling.
    test.run("T", &words("-V -i 50 client SR 1024 3 server SR 1024 3 client RW 4096 2 server RR 4096 2"));
    test.run("T", &words("-i 50 -t 4 -w 4 client SR 1024 3 server SR 1024 3"));
    test.run(
        "T",
        &words(
            "-P -t 2 -w 2 -i 20 client RW 4096 1 server RW 2048 4 server RR 1024 1 client RR 2048 1 \
             client SR 1024 3 -f server SR 256 3 -f",
        ),
    );
    test.quit();
}

#[test]
fn dapltest_measures() {
    let test = Dapltest::start();
    test.run("P", &["-i", "500", "-p", "16", "-m", "b", "RW", "4096", "2"]);
    test.run("P", &["-i", "500", "-p", "1", "-m", "p", "RW", "4", "1"]);
    test.run("P", &["-i", "500", "RR", "32768", "1"]);
    test.quit();
}

#[test]
fn dapltest_finds_no_limit_below_thirty() {
    for (what, words) in [
        ("limit_ia", "IAs opened: 30"),
        ("limit_pz", "PZs created: 30"),
        ("limit_evd", "EVDs created: 30"),
        ("limit_ep", "EPs created: 30"),
        ("limit_psp", "PSPs created: 30"),
        ("limit_rsp", "RSPs created: 30"),
        ("limit_lmr", "LMRs created: 30"),
        ("limit_rpost", "total posted: 30"),
    ] {
        let arguments = ["-T", "L", "-D", IA, "-w", "1", "-m", "30", what];
        ended_well(what, &Running::start(launcher(&[], "dapltest", &arguments)).end(), &[words]);
    }
}

#[test]
fn a_folder_that_was_installed_has_the_provider() {
    let folder = tempfile::tempdir().expect("a folder");
    let install = ["verbs", "install"];
    let mut launcher = Command::new(env!("CARGO_BIN_EXE_ferrovia"));
    let output = launcher.args(install).arg(folder.path()).output().expect("it runs");
    assert!(output.status.success(), "{}", said(&output));
    let program = debians("dapltest");
    let libraries = program.with_file_name("../lib/x86_64-linux-gnu");
    let mut dapltest = Command::new(&program);
    dapltest.args(["-T", "L", "-D", IA, "-w", "1", "-m", "2", "limit_ia"]);
    dapltest.env("DAT_OVERRIDE", folder.path().join("dat.conf")).env("LD_LIBRARY_PATH", libraries);
    ended_well("limit_ia", &dapltest.output().expect("it runs"), &["IAs opened: 2"]);
}

/// While the client writes to its memory, the server only waits, with no request that could fail.
#[test]
fn dapltest_hears_of_a_client_that_is_killed() {
    let test = Dapltest::start();
    let common = ["-T", "P", "-D", IA, "-s", &test.address, "-d", "-i", "100000000"];
    let mut client = Running::start(by_line(&[], "dapltest", &[&common[..], &["RW", "4", "1"]].concat()));
    client.await_words("Begin...");
    client.child().kill().expect("it runs");
    let Dapltest { mut server, address } = test;
    server.await_words("Server: Test Failed");
    // It serves the next one.
    Dapltest { server, address }.run("T", &["-i", "10", "client", "SR", "256", "server", "SR", "256"]);
}

/// Of the queries these are not here: one that the program does not have (5), those of service
/// points whose endpoints the provider makes (3, 16, 17), and those that pass the number of an IA
/// as a handle of another type, which libdat2 takes for a pointer (13, 15).
#[test]
fn dapltest_checks_functions() {
    let test = Dapltest::start();
    let of_queries = &[0, 1, 2, 4, 6, 7, 8, 9, 10, 11, 12, 14];
    let all: [(&str, &[u32]); 6] = [
        ("hwconn", &[0, 1, 2, 3]),
        ("endpoint", &[0, 1, 2]),
        ("pz", &[0, 1, 2]),
        ("mem", &[0, 1, 2, 3, 4]),
        ("connmgt", &[0, 1]),
        ("queryinfo", of_queries),
    ];
    for (feature, cases) in all {
        let words: Vec<String> = cases.iter().map(|case| format!("case{case}")).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let output = test.client("F", &[&["-f", feature], &words[..]].concat());
        let said = said(&output);
        assert_eq!(said.matches("Result: PASS").count(), cases.len(), "{feature}: {said}");
        assert!(output.status.success() && !said.contains("failed in file"), "{feature}: {said}");
    }
    test.quit();
}
