//! Programs for uDAPL 2.0, those of Debian's dapl2-utils: Debian's libdat2 loads our provider.
//!
//! dtest and its kin tell each other by TCP where they are, all at the same port, so one pair runs
//! at a time. dapltest's server is found at its NIC's address.

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

/// Runs a server and its client, with options for the NIC of both; both have to end well and to
/// write these words, and nothing about a failure.
fn dtest(options: &[&str], program: &str, [server, client]: [&[&str]; 2], words: &[&str]) {
    let _turn = turn();
    let mut running = Running::start(launcher(options, program, &[&["-P", IA], server].concat()));
    running.wait_until_heard(PORT);
    let arguments = [&["-P", IA, "-h", "127.0.0.1"], client].concat();
    let client = Running::start(launcher(options, program, &arguments));
    for (who, output) in [("client", client.end()), ("server", running.end())] {
        let said = said(&output);
        let all = words.iter().all(|word| said.contains(word));
        let failed = ["FAILED", "rror", "unexpected"].iter().any(|word| said.contains(word));
        assert!(output.status.success() && all && !failed, "{program}, {who}: {said}");
    }
}

#[test]
fn dtest_writes_reads_and_sends() {
    dtest(&[], "dtest", [&["-b", "4096"]; 2], &["DAPL Test Complete. PASSED"]);
}
