//! Our clients against Linux's programs as servers. Linux's side of the link listens, so that one
//! guest serves all clients: each is a machine of its own.

use std::path::Path;

use crate::linux::Linux;
use crate::ours::{Ours, link};
use crate::{LIMIT, LINUX, MTU};

/// Runs a server in Linux and a client of ours, which both have to succeed; returns what Linux's
/// wrote.
fn run(linux: &mut Linux, folder: &Path, server: &str, client: &[&str]) -> String {
    linux.serve(server, LIMIT);
    let mut ours = Ours::connect(folder, client);
    ours.succeed();
    linux.served(server)
}

#[test]
fn our_clients_pass_with_linux_as_the_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let linux = &mut Linux::listen(&link(folder), &LINUX, MTU);
    // Linux's programs take connections of IPv4 only, unless their address is of IPv6.
    for (server, any, size) in [("10.0.0.2", "0.0.0.0", 5001), ("fd00::2", "::", 1 << 20)] {
        let rping = format!("rping -s -v -S 65536 -a {any}");
        let said = run(linux, folder, &rping, &["rping-client", server, "count=50", "size=65536", "verify"]);
        assert!(said.contains("server ping data: rdma-ping-49: "), "{said}");
        assert!(said.contains("server DISCONNECT EVENT"), "{said}");

        let ucmatose = format!("ucmatose -b {any} -c 3 -C 8 -S {size}");
        let size = format!("size={size}");
        let words = ["cmatose", "client", server, "connections=3", "count=8", &size];
        let said = run(linux, folder, &ucmatose, &words);
        assert!(said.contains("data transfers complete"), "{said}");

        let immediate = format!("immediate server {any} 7473 20 10000");
        let words = ["immediate", "client", server, "count=20", "size=10000"];
        let said = run(linux, folder, &immediate, &words);
        assert!(said.contains("immediate: 20 rounds"), "{said}");

        let udaddy = format!("udaddy -b {any} -c 3 -C 20 -S 1024");
        let words = ["udaddy", "client", server, "connections=3", "count=20", "size=1024"];
        let said = run(linux, folder, &udaddy, &words);
        assert!(said.contains("data transfers complete"), "{said}");
    }
}
