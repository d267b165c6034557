//! Linux's programs as clients of our servers.

use std::path::Path;

use crate::linux::Linux;
use crate::ours::{Ours, link};
use crate::{LIMIT, LINUX, MTU};

/// Runs a server of ours, which `step` uses from Linux and which then ends. Linux's side of the
/// link listens, so that one guest serves all servers.
fn with(linux: &mut Linux, folder: &Path, server: &[&str], step: impl FnOnce(&mut Ours, &mut Linux)) {
    let mut ours = Ours::connect(folder, server);
    ours.wait_for("ready: [fd00::1]:");
    step(&mut ours, linux);
    ours.succeed();
}

/// The addresses of our server and of Linux, of each kind.
const ENDS: [(&str, &str); 2] = [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")];

#[test]
fn linux_clients_pass_with_our_servers() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let linux = &mut Linux::listen(&link(folder), &LINUX, MTU);

    with(linux, folder, &["rping-server", "clients=3"], |ours, linux| {
        for (server, client) in ENDS {
            // rping says that 65536 is invalid, and uses it nevertheless if `-a` comes behind it.
            linux.rping(&format!("-V -C 1000 -S 65536 -a {server}"));
            ours.wait_for(&format!("{client}: 1000 pings, disconnected"));
        }
        let said = linux.rping("-v -V -C 2 -a 10.0.0.1");
        assert!(said.contains("ping data: rdma-ping-1: BCDEF"), "{said}");
        ours.wait_for("10.0.0.2: 2 pings, disconnected");
    });

    let words = ["cmatose", "server", "clients=2", "connections=4", "count=20", "size=5001"];
    with(linux, folder, &words, |ours, linux| {
        for (server, client) in ENDS {
            let said = linux.succeed(&format!("ucmatose -s {server} -c 4 -C 20 -S 5001"), LIMIT);
            assert!(said.contains("data transfers complete"), "{said}");
            ours.wait_for(&format!("{client}: 4 connections, 20 messages on each, disconnected"));
        }
    });

    let words = ["udaddy", "server", "clients=2", "connections=3", "count=20", "size=1024"];
    with(linux, folder, &words, |ours, linux| {
        for (server, client) in ENDS {
            let said = linux.succeed(&format!("udaddy -s {server} -c 3 -C 20 -S 1024"), LIMIT);
            assert!(said.contains("data transfers complete"), "{said}");
            ours.wait_for(&format!("{client}: 3 connections, 20 messages on each"));
        }
    });

    let words = ["immediate", "server", "clients=2", "count=20", "size=10000"];
    with(linux, folder, &words, |ours, linux| {
        for (server, client) in ENDS {
            let said = linux.succeed(&format!("immediate client {server} 7473 20 10000"), LIMIT);
            assert!(said.contains("immediate: 20 rounds"), "{said}");
            ours.wait_for(&format!("{client}: 20 rounds, disconnected"));
        }
    });
}
