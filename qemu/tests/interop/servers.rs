//! Linux's programs as clients of our servers.

use std::path::Path;

use crate::linux::Linux;
use crate::ours::{Ours, link};
use crate::{ENDS, LIMIT, LINUX, MTU, Transport};

/// Servers of ours, and the Linux guest with their clients. Its side of the link listens, so that
/// one guest is enough.
struct Servers<'a> {
    linux: Linux,
    folder: &'a Path,
    transport: Transport,
}

impl Servers<'_> {
    /// Runs a server of ours, which `step` uses from Linux and which then ends.
    fn with(&mut self, server: &[&str], step: impl FnOnce(&mut Ours, &mut Linux)) {
        let mut ours = Ours::connect(self.folder, &self.transport.chosen_by(server));
        ours.wait_for("ready: [fd00::1]:");
        step(&mut ours, &mut self.linux);
        ours.succeed();
    }
}

/// Linux's rping and ucmatose with our servers.
fn connected(servers: &mut Servers<'_>) {
    servers.with(&["rping-server", "clients=3"], |ours, linux| {
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
    servers.with(&words, |ours, linux| {
        for (server, client) in ENDS {
            let said = linux.succeed(&format!("ucmatose -s {server} -c 4 -C 20 -S 5001"), LIMIT);
            assert!(said.contains("data transfers complete"), "{said}");
            ours.wait_for(&format!("{client}: 4 connections, 20 messages on each, disconnected"));
        }
    });
}

#[test]
fn linux_clients_pass_with_our_servers() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let linux = Linux::listen(&link(folder), &LINUX, MTU);
    let servers = &mut Servers { linux, folder, transport: Transport::Roce };
    connected(servers);

    let words = ["udaddy", "server", "clients=2", "connections=3", "count=20", "size=1024"];
    servers.with(&words, |ours, linux| {
        for (server, client) in ENDS {
            let said = linux.succeed(&format!("udaddy -s {server} -c 3 -C 20 -S 1024"), LIMIT);
            assert!(said.contains("data transfers complete"), "{said}");
            ours.wait_for(&format!("{client}: 3 connections, 20 messages on each"));
        }
    });

    let words = ["immediate", "server", "clients=2", "count=20", "size=10000"];
    servers.with(&words, |ours, linux| {
        for (server, client) in ENDS {
            let said = linux.succeed(&format!("immediate client {server} 7473 20 10000"), LIMIT);
            assert!(said.contains("immediate: 20 rounds"), "{said}");
            ours.wait_for(&format!("{client}: 20 rounds, disconnected"));
        }
    });
}

#[test]
fn linux_clients_pass_with_our_servers_over_iwarp() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let linux = Linux::listen(&link(folder), &LINUX, MTU).over(Transport::Iwarp);
    connected(&mut Servers { linux, folder, transport: Transport::Iwarp });
}
