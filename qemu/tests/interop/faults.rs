//! Clients of Linux that vanish, ask for what there is not, or come at the same time; ports of
//! different MTUs; frames that are lost. Our server goes on.

use std::path::Path;

use crate::linux::{Linux, Outcome};
use crate::ours::{Ours, link};
use crate::{LIMIT, LINUX, MTU, Transport};

/// A server of ours that is ready, as a user starts it: its NIC listens on a socket, and a Linux
/// guest is on that socket.
fn both(folder: &Path, server: &[&str]) -> (Ours, Linux) {
    both_over(Transport::Roce, folder, server)
}

fn both_over(transport: Transport, folder: &Path, server: &[&str]) -> (Ours, Linux) {
    let mut ours = Ours::start(folder, &transport.chosen_by(server));
    ours.wait_for("ready: [fd00::1]:");
    (ours, Linux::boot(&link(folder), &LINUX, MTU).over(transport))
}

/// Starts a client without an end in the background, and waits until it has pinged: it writes its
/// first lines when it has some thousand bytes of them.
fn ping_on(linux: &mut Linux) {
    let line =
        "rm -f /tmp/pings; rping -c -v -a 10.0.0.1 >/tmp/pings & until [ -s /tmp/pings ]; do sleep 0.1; done";
    linux.succeed(line, LIMIT);
}

/// Runs a client that our port has to reject with this reason of the CM.
fn rejected(linux: &mut Linux, client: &str, reason: u32) {
    let Outcome { status, text } = linux.run(client, LIMIT);
    assert_ne!(status, 0, "{client}: {text}");
    assert!(text.contains(&format!("RDMA_CM_EVENT_REJECTED, error {reason}")), "{client}: {text}");
}

/// Clients of Linux vanish, and then all of Linux; others follow.
fn clients_vanish(transport: Transport) {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut ours, mut linux) = both_over(transport, folder.path(), &["rping-server", "patience=5"]);
    ping_on(&mut linux);
    linux.succeed("kill -9 $(pidof rping)", LIMIT);
    ours.wait_for("10.0.0.2: ");
    linux.rping("-V -C 10 -a 10.0.0.1");
    ours.wait_for("10.0.0.2: 10 pings, disconnected");
    // Now all of Linux vanishes, and another one takes its place.
    ping_on(&mut linux);
    drop(linux);
    ours.wait_for("10.0.0.2: ");
    let mut linux = Linux::boot(&link(folder.path()), &LINUX, MTU).over(transport);
    linux.rping("-V -C 10 -a fd00::1");
    ours.wait_for("fd00::2: 10 pings, disconnected");
}

#[test]
fn a_server_goes_on_when_clients_vanish() {
    clients_vanish(Transport::Roce);
}

#[test]
fn a_server_goes_on_when_clients_vanish_over_iwarp() {
    clients_vanish(Transport::Iwarp);
}

/// Two clients of Linux at once, and then some one after the other.
fn come_together(ours: &mut Ours, linux: &mut Linux) {
    let client = "rping -c -V -C 100 -S 20000 -a 10.0.0.1";
    let Outcome { text, .. } = linux.run(&format!("{client} & {client}; wait"), LIMIT);
    assert!(!text.contains("failed"), "{text}");
    for _ in 0..2 {
        ours.wait_for("10.0.0.2: 100 pings, disconnected");
    }
    for _ in 0..5 {
        linux.rping("-V -C 1 -a 10.0.0.1");
        ours.wait_for("10.0.0.2: 1 pings, disconnected");
    }
}

#[test]
fn a_server_goes_on_when_clients_come_together_or_to_a_wrong_port() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut ours, mut linux) = both(folder.path(), &["rping-server"]);
    // "Invalid service ID".
    rejected(&mut linux, "rping -c -C 1 -a 10.0.0.1 -p 7175", 8);
    rejected(&mut linux, "rping -c -C 1 -a fd00::1 -p 7175", 8);
    come_together(&mut ours, &mut linux);
}

/// Gives Linux's link an MTU, and waits until its port has the path MTU that follows from it.
fn set_mtu(linux: &mut Linux, link: u32, path: u32) {
    let is_set = format!("ibv_devinfo | grep \"active_mtu:[^0-9]*{path} \"");
    linux.succeed(&format!("ip link set eth0 mtu {link}; until {is_set}; do sleep 0.1; done"), LIMIT);
}

#[test]
fn a_path_mtu_has_to_fit_our_port() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut ours, mut linux) = both(folder.path(), &["rping-server"]);
    set_mtu(&mut linux, 4200, 4096);
    // "Invalid path MTU".
    rejected(&mut linux, "rping -c -C 1 -a 10.0.0.1", 26);
    set_mtu(&mut linux, 1500, 1024);
    linux.rping("-V -C 10 -S 65536 -a 10.0.0.1");
    ours.wait_for("10.0.0.2: 10 pings, disconnected");
}

#[test]
fn path_mtus_of_4096_and_1024_pass_by_a_port_of_4200_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut ours, mut linux) = both(folder.path(), &["rping-server", "--mtu", "4200"]);
    for (link, path) in [(4200, 4096), (1500, 1024)] {
        set_mtu(&mut linux, link, path);
        for (server, client) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            linux.rping(&format!("-V -C 20 -S 65536 -a {server}"));
            ours.wait_for(&format!("{client}: 20 pings, disconnected"));
        }
    }
}

#[test]
fn rping_passes_on_a_link_that_loses_frames() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ours, mut linux) = both(folder.path(), &["rping-server", "--impair", "loss=1%,seed=1"]);
    linux.rping("-V -C 10 -S 65536 -a 10.0.0.1");
    ours.wait_for_count("link_dropped_lost", 1);
}

#[test]
fn clients_of_siw_pass_on_a_link_that_loses_frames_and_come_together() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = ["rping-server", "--impair", "loss=1%,seed=1"];
    let (mut ours, mut linux) = both_over(Transport::Iwarp, folder.path(), &server);
    linux.rping("-V -C 20 -S 65536 -a 10.0.0.1");
    ours.wait_for("10.0.0.2: 20 pings, disconnected");
    ours.wait_for_count("link_dropped_lost", 1);
    come_together(&mut ours, &mut linux);
}

#[test]
fn linux_goes_on_when_our_machines_are_killed_over_iwarp() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let transport = Transport::Iwarp;
    let mut linux = Linux::listen(&link(folder), &LINUX, MTU).over(transport);
    let start = |words: &[&str]| Ours::connect(folder, &transport.chosen_by(words));

    // A server of Linux that takes several clients, of which the first one vanishes.
    linux.serve("rping -s -P -v -a 0.0.0.0", LIMIT);
    let ours = start(&["rping-client", "10.0.0.2"]);
    linux.succeed("until grep -q ping /tmp/said; do sleep 0.1; done", LIMIT);
    drop(ours);
    start(&["rping-client", "10.0.0.2", "count=10", "verify"]).succeed();
    linux.succeed("kill -9 $(pidof rping)", LIMIT);

    // A server of ours that vanishes, and another one in its place.
    let mut ours = start(&["rping-server"]);
    ours.wait_for("ready: [fd00::1]:");
    ping_on(&mut linux);
    drop(ours);
    let mut ours = start(&["rping-server", "clients=1"]);
    ours.wait_for("ready: [fd00::1]:");
    linux.succeed("kill -9 $(pidof rping)", LIMIT);
    linux.rping("-V -C 10 -a 10.0.0.1");
    ours.wait_for("10.0.0.2: 10 pings, disconnected");
    ours.succeed();
}
