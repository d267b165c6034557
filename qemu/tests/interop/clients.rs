//! Our clients against Linux's programs as servers. Linux's side of the link listens, so that one
//! guest serves all clients: each is a machine of its own.

use std::path::Path;

use crate::linux::Linux;
use crate::ours::{Ours, link};
use crate::{LIMIT, LINUX, MTU, Transport};

/// The addresses of Linux's servers, the addresses at which they listen, and the size of ucmatose's
/// messages: Linux's programs take connections of IPv4 only, unless their address is of IPv6.
const SERVERS: [(&str, &str, u32); 2] = [("10.0.0.2", "0.0.0.0", 5001), ("fd00::2", "::", 1 << 20)];

/// Clients of ours, and the Linux guest with their servers.
struct Clients<'a> {
    linux: Linux,
    folder: &'a Path,
    transport: Transport,
}

impl Clients<'_> {
    /// Runs a server in Linux and a client of ours, which both have to succeed; returns what the
    /// server wrote.
    fn run(&mut self, server: &str, client: &[&str]) -> String {
        self.linux.serve(server, LIMIT);
        let mut ours = Ours::connect(self.folder, &self.transport.chosen_by(client));
        ours.succeed();
        self.linux.served(server)
    }
}

/// Our rping and cmatose with Linux's servers.
fn connected(clients: &mut Clients<'_>) {
    for (server, any, size) in SERVERS {
        let rping = format!("rping -s -v -S 65536 -a {any}");
        let said = clients.run(&rping, &["rping-client", server, "count=50", "size=65536", "verify"]);
        assert!(said.contains("server ping data: rdma-ping-49: "), "{said}");
        assert!(said.contains("server DISCONNECT EVENT"), "{said}");

        let ucmatose = format!("ucmatose -b {any} -c 3 -C 8 -S {size}");
        let size = format!("size={size}");
        let words = ["cmatose", "client", server, "connections=3", "count=8", &size];
        let said = clients.run(&ucmatose, &words);
        assert!(said.contains("data transfers complete"), "{said}");
    }
}

#[test]
fn our_clients_pass_with_linux_as_the_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let linux = Linux::listen(&link(folder), &LINUX, MTU);
    let clients = &mut Clients { linux, folder, transport: Transport::Roce };
    connected(clients);
    for (server, any, _) in SERVERS {
        let immediate = format!("immediate server {any} 7473 20 10000");
        let words = ["immediate", "client", server, "count=20", "size=10000"];
        let said = clients.run(&immediate, &words);
        assert!(said.contains("immediate: 20 rounds"), "{said}");

        let udaddy = format!("udaddy -b {any} -c 3 -C 20 -S 1024");
        let words = ["udaddy", "client", server, "connections=3", "count=20", "size=1024"];
        let said = clients.run(&udaddy, &words);
        assert!(said.contains("data transfers complete"), "{said}");
    }
}

#[test]
fn our_clients_pass_with_linux_as_the_server_over_iwarp() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let linux = Linux::listen(&link(folder), &LINUX, MTU).over(Transport::Iwarp);
    connected(&mut Clients { linux, folder, transport: Transport::Iwarp });
}
