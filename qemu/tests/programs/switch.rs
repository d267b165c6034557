//! Many processes, one after another, on a switch that one process has.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{LIMIT, Running, debians, installed, said};

/// How many come and go: beyond the places of a switch, and beyond what a process of the switch
/// would have left if each newcomer cost it anything.
const PROCESSES: usize = 200;

#[test]
fn processes_come_and_go_on_a_switch_and_each_is_served() {
    let folder = installed();
    let socket = folder.path().join("switch");
    // Without the launcher, which would look each time whether the library is built.
    let rping = |link: &str, address: &str, arguments: &[&str]| {
        let mut command = Command::new(debians("rping"));
        command.args(arguments).env("LD_LIBRARY_PATH", folder.path());
        command.env("FERROVIA_LINK", format!("{link}:{}", socket.display()));
        command.env("FERROVIA_IP", format!("{address}/16"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let mut server = Running::start(rping("switch", "10.0.0.1", &["-s", "-P", "-a", "10.0.0.1"]));
    let begun = Instant::now();
    while !socket.exists() {
        assert!(begun.elapsed() < LIMIT, "there is no switch");
        std::thread::sleep(Duration::from_millis(10));
    }
    for n in 0..PROCESSES {
        let address = format!("10.0.{}.{}", 1 + n / 200, 1 + n % 200);
        loop {
            let arguments = ["-c", "-v", "-C", "1", "-a", "10.0.0.1"];
            let client = Running::start(rping("stream-connect", &address, &arguments));
            let said = said(&client.end());
            if said.contains("rdma-ping-0") {
                break;
            }
            // The first one may come before the server listens.
            assert!(n == 0 && begun.elapsed() < LIMIT, "process {n}: {said}");
        }
        assert!(server.child().try_wait().expect("a child").is_none(), "the server ended");
    }
}
