//! Linux's programs as clients of our servers, as a user starts them: a server whose NIC listens on
//! a socket, and a Linux guest on that socket.

use std::path::Path;

use crate::linux::Linux;
use crate::ours::{Ours, link};
use crate::{LIMIT, LINUX, MTU};

/// A server of ours that is ready, and a Linux guest on its link.
pub fn both(folder: &Path, server: &[&str]) -> (Ours, Linux) {
    let mut ours = Ours::start(folder, server);
    ours.wait_for("ready: [fd00::1]:");
    (ours, Linux::boot(&link(folder), &LINUX, MTU))
}

#[test]
fn rping_of_linux_verifies_a_thousand_long_texts() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut ours, mut linux) = both(folder.path(), &["rping-server"]);
    for (server, client) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
        // rping says that 65536 is invalid, and uses it nevertheless if `-a` comes behind it.
        linux.rping(&format!("-V -C 1000 -S 65536 -a {server}"));
        ours.wait_for(&format!("{client}: 1000 pings, disconnected"));
    }
    let said = linux.rping("-v -V -C 2 -a 10.0.0.1");
    assert!(said.contains("ping data: rdma-ping-1: BCDEF"), "{said}");
    ours.wait_for("10.0.0.2: 2 pings, disconnected");
}

#[test]
fn ucmatose_of_linux_gets_and_sends_messages_on_several_connections() {
    let folder = tempfile::tempdir().expect("a folder");
    let words = ["cmatose", "server", "connections=4", "count=20", "size=5001"];
    let (mut ours, mut linux) = both(folder.path(), &words);
    for (server, client) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
        let said = linux.succeed(&format!("ucmatose -s {server} -c 4 -C 20 -S 5001"), LIMIT);
        assert!(said.contains("data transfers complete"), "{said}");
        ours.wait_for(&format!("{client}: 4 connections, 20 messages on each, disconnected"));
    }
}

#[test]
fn udaddy_of_linux_sends_and_gets_datagrams() {
    let folder = tempfile::tempdir().expect("a folder");
    let words = ["udaddy", "server", "connections=3", "count=20", "size=1024"];
    let (mut ours, mut linux) = both(folder.path(), &words);
    for (server, client) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
        let said = linux.succeed(&format!("udaddy -s {server} -c 3 -C 20 -S 1024"), LIMIT);
        assert!(said.contains("data transfers complete"), "{said}");
        ours.wait_for(&format!("{client}: 3 connections, 20 messages on each"));
    }
}

#[test]
fn writes_and_sends_of_linux_bring_their_immediate_data_and_so_do_ours() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut ours, mut linux) = both(folder.path(), &["immediate", "server", "count=20", "size=10000"]);
    for (server, client) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
        let said = linux.succeed(&format!("immediate client {server} 7473 20 10000"), LIMIT);
        assert!(said.contains("immediate: 20 rounds"), "{said}");
        ours.wait_for(&format!("{client}: 20 rounds, disconnected"));
    }
}
