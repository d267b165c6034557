//! Ferrovia and Linux on one link: a Linux guest with Soft-RoCE, or with siw, talks to an image of
//! ours.
//!
//! `cargo test --test interop` runs these tests; plain `cargo test` does not, as they download
//! Debian packages (once). To add one: boot both sides, and run the guest's commands with
//! [`linux::Linux::succeed`]. A test that fails shows what both sides wrote, the last messages of
//! Linux's kernel, and our NIC's counters.

extern crate ferrovia_qemu as qemu;

mod auth;
mod bare;
mod blktests;
mod cable;
mod clients;
mod faults;
mod hostile;
mod linux;
mod load;
mod multipath;
mod ours;
mod servers;
mod storage;
mod storage_live;
mod storage_paths;
mod storage_ports;
mod storage_shared;
mod storage_subsystems;
mod storage_tools;

use std::time::Duration;

use linux::Linux;
use ours::{Ours, link};

const MTU: u32 = 1500;
/// The addresses of Linux; ours are 10.0.0.1 and fd00::1.
const LINUX: [&str; 2] = ["10.0.0.2/24", "fd00::2/64"];
/// The addresses of our server and of Linux, of each kind.
const ENDS: [(&str, &str); 2] = [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")];
/// How long a command of Linux may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// What both sides speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    /// Soft-RoCE in Linux.
    Roce,
    /// siw in Linux.
    Iwarp,
}

impl Transport {
    /// The launcher's arguments `arguments`, and those that choose this transport.
    fn chosen_by<'a>(self, arguments: &[&'a str]) -> Vec<&'a str> {
        let choice: &[&str] = match self {
            Transport::Roce => &[],
            Transport::Iwarp => &["--transport", "iwarp"],
        };
        [arguments, choice].concat()
    }
}

#[test]
fn linux_pings_our_port_over_ipv4_and_ipv6_and_a_successor_does_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut ours = Ours::start(folder.path(), &["rping-server"]);
    ours.wait_for("ready: ");
    for guest in 1..=2 {
        let mut linux = Linux::boot(&link(folder.path()), &LINUX, MTU);
        for command in ["ping -c 3 -w 30 10.0.0.1", "ping -6 -c 3 -w 30 fd00::1"] {
            let said = linux.succeed(command, Duration::from_secs(40));
            assert!(said.contains("3 packets received"), "{said}");
        }
        ours.wait_for_count("link_peers", guest);
        ours.wait_for_count("port_echoes", 6 * guest);
        drop(linux);
        // The port goes down with its peer, and up with the next.
        ours.wait_for_count("link_downed", guest);
    }
}
