//! Linux uses the two NICs of one target as two paths, and writes with fsync while the cable of one
//! is pulled out and put in again, and while an operator moves it from one port to the other.

use std::fs::File;
use std::path::Path;

use crate::cable::Cable;
use crate::linux::Linux;
use crate::multipath::{self, SOME, wait_for_both, wait_for_states, writes_on};
use crate::ours::{Ours, link};
use crate::storage_live::operate;
use crate::{LIMIT, MTU};

const ADDRESSES: [&str; 2] = ["10.0.0.3", "10.0.0.4"];

fn set(socket: &Path, port: u16, state: &str) {
    operate(socket, &["ana", &format!("state={state}"), &format!("port={port}")]);
}

/// The writes that Linux has sent by a port.
#[track_caller]
fn writes_by(linux: &mut Linux, port: usize) -> u64 {
    let address = ADDRESSES[port - 1];
    let line = format!(
        "for c in /sys/class/nvme/nvme*; do grep -q traddr={address}, $c/address && n=${{c##*nvme}}; done; \
         set -- $(cat /sys/block/nvme0c${{n}}n1/stat); echo $5"
    );
    linux.succeed(&line, LIMIT).trim().parse().expect("a number")
}

/// Writes some blocks, which go by this port alone.
#[track_caller]
fn writes_by_only(linux: &mut Linux, port: usize) {
    // What was sent before has arrived.
    writes_on(linux, 2);
    let before = [1, 2].map(|port| writes_by(linux, port));
    writes_on(linux, SOME);
    let after = [1, 2].map(|port| writes_by(linux, port));
    assert!(after[port - 1] >= before[port - 1] + u64::from(SOME), "{before:?} {after:?}");
    assert_eq!(after[2 - port], before[2 - port], "the other port");
}

#[test]
fn linux_writes_on_while_one_port_is_unplugged_and_while_its_states_change() {
    let folder = tempfile::tempdir().expect("a folder");
    let [disk, socket, plug] = ["disk", "control", "cable"].map(|name| folder.path().join(name));
    File::create(&disk).and_then(|file| file.set_len(64 << 20)).expect("a disk");
    // The first NIC is on a switch of its own, to which the others' cables lead.
    let mut cable = Cable::new(&plug, &link(folder.path()));
    let words =
        ["storage", "--disk", disk.to_str().expect("text"), "--control", socket.to_str().expect("text")];
    let links = [
        (format!("switch:{}", link(folder.path()).display()), "10.0.0.3/24"),
        (format!("stream-connect:{}", plug.display()), "10.0.0.4/24"),
    ];
    let mut target = Ours::start_on_links(&links, folder.path(), &words);
    for address in ADDRESSES {
        target.wait_for(&format!("connect: nvme connect -t rdma -a {address} -s 4420 -n"));
    }
    let mut linux = Linux::boot_on_switch(&link(folder.path()), &["10.0.0.2/24"], MTU, 2);
    let found = linux.succeed("nvme discover -t rdma -a 10.0.0.4 -s 4420", LIMIT);
    for words in ["traddr:  10.0.0.3", "traddr:  10.0.0.4", "portid:  1", "portid:  2"] {
        assert!(found.contains(words), "{found}");
    }
    set(&socket, 2, "non-optimized");
    let device = multipath::connect(&mut linux, &ADDRESSES);
    wait_for_states(&mut linux, "non-optimized optimized");

    multipath::begin(&mut linux, &device);
    writes_by_only(&mut linux, 1);
    // The operator moves the host to the second port, whose cable is then pulled out.
    set(&socket, 1, "inaccessible");
    writes_by_only(&mut linux, 2);
    cable.pull();
    set(&socket, 1, "optimized");
    writes_by_only(&mut linux, 1);
    cable.plug();
    wait_for_both(&mut linux);
    writes_by_only(&mut linux, 1);
    // The host goes by the better port, and back when that is unplugged.
    set(&socket, 1, "non-optimized");
    set(&socket, 2, "optimized");
    wait_for_states(&mut linux, "non-optimized optimized");
    writes_by_only(&mut linux, 2);
    cable.pull();
    writes_by_only(&mut linux, 1);
    cable.plug();
    wait_for_both(&mut linux);
    wait_for_states(&mut linux, "non-optimized optimized");
    writes_by_only(&mut linux, 2);

    multipath::end(&mut linux, &device);
    target.wait_for("idle: ");
}
