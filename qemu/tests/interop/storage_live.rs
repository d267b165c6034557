//! What an operator changes while Linux works: namespaces come, grow and go with a file system
//! mounted, and Linux sees each change without a scan.

use std::path::Path;
use std::process::Command;

use qemu::linux::Side;
use qemu::linux::storage::Connect;
use serde_json::Value;

use crate::linux::Linux;
use crate::ours::{Ours, link};
use crate::{LIMIT, LINUX, MTU};

const NQN: &str = "nqn.2026-01.org.ferrovia:storage";

/// Has the target do something; returns the answer.
pub(crate) fn operate(socket: &Path, words: &[&str]) -> Value {
    let program = std::env::current_exe().expect("this program");
    let programs = program.parent().and_then(Path::parent).expect("target/PROFILE/deps");
    let output = Command::new(programs.join("ferrovia")).arg("storage-ctl").arg(socket).args(words).output();
    let output = output.expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {said}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Waits in the guest until a condition of its shell holds.
pub(crate) fn wait_until(linux: &mut Linux, condition: &str) {
    linux.succeed(&format!("until {condition}; do sleep 0.1; done"), LIMIT);
}

#[test]
fn namespaces_come_grow_and_go_while_file_systems_are_mounted() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("control");
    let control = socket.to_str().expect("a path");
    let mut ours = Ours::start(folder.path(), &["storage", "--ram-disk", "32M", "--control", control]);
    ours.wait_for("connect: nvme connect -t rdma -a 10.0.0.1 -s 4420 -n");
    let mut linux = Linux::boot_for_storage(Side::Connect, &link(folder.path()), &LINUX, MTU);
    let device = linux.storage().connect(&Connect::to(NQN, "10.0.0.1"), 1).expect("it connects").remove(0);
    linux.storage().make_file_system(&device).expect("mkfs");
    linux.storage().mount(&device, "/mnt").expect("mount");
    let write = "dd if=/dev/urandom of=/mnt/file bs=1M count=8 conv=fsync && sha256sum /mnt/file >/tmp/sum";
    linux.succeed(write, LIMIT);

    // A RAM disk comes, and a file.
    assert_eq!(operate(&socket, &["add", "ram=24M"])["nsid"], 2);
    wait_until(&mut linux, "[ -b /dev/nvme0n2 ]");
    let image = folder.path().join("image");
    std::fs::File::create(&image).and_then(|file| file.set_len(16 << 20)).expect("a sparse file");
    let file = format!("file={}", image.display());
    assert_eq!(operate(&socket, &["add", &file])["nsid"], 3);
    wait_until(&mut linux, "[ -b /dev/nvme0n3 ]");
    for (number, sectors) in [(2, 24 << 11), (3, 16 << 11)] {
        wait_until(&mut linux, &format!("[ $(cat /sys/block/nvme0n{number}/size) = {sectors} ]"));
        linux.storage().make_file_system(&format!("/dev/nvme0n{number}")).expect("mkfs");
        linux.storage().mount(&format!("/dev/nvme0n{number}"), &format!("/mnt{number}")).expect("mount");
    }

    // Both grow while they are mounted, and so does the file when somebody else makes it longer.
    for (size, bytes) in [("40M", 40_u64 << 20), ("64M", 64 << 20)] {
        operate(&socket, &["resize", "nsid=2", &format!("size={size}")]);
        match bytes >> 20 {
            40 => drop(operate(&socket, &["resize", "nsid=3", &format!("size={size}")])),
            _ => {
                let file = std::fs::OpenOptions::new().write(true).open(&image).expect("the image");
                file.set_len(bytes).expect("it grows");
            }
        }
        for number in [2, 3] {
            wait_until(&mut linux, &format!("[ $(cat /sys/block/nvme0n{number}/size) = {} ]", bytes >> 9));
        }
    }
    assert_eq!(image.metadata().expect("the image").len(), 64 << 20);
    for number in [2, 3] {
        let grow = format!(
            "resize2fs /dev/nvme0n{number} && \
             dd if=/dev/urandom of=/mnt{number}/file bs=1M count=44 conv=fsync"
        );
        linux.succeed(&grow, LIMIT);
        linux.storage().unmount(&format!("/mnt{number}")).expect("umount");
        linux.storage().check_file_system(&format!("/dev/nvme0n{number}")).expect("it is sound");
    }

    // They go, and what comes then is another namespace.
    for number in [2, 3] {
        assert_eq!(operate(&socket, &["remove", &format!("nsid={number}")])["released"], true);
        wait_until(&mut linux, &format!("[ ! -e /dev/nvme0n{number} ]"));
    }
    assert_eq!(operate(&socket, &["add", &file])["nsid"], 4);
    // Linux gives its block devices numbers of its own.
    wait_until(&mut linux, "[ \"$(cat /sys/block/nvme0n2/nsid 2>/dev/null)\" = 4 ]");
    linux.storage().check_file_system("/dev/nvme0n2").expect("the same file");
    let list = operate(&socket, &["list"]);
    assert_eq!(list["namespaces"].as_array().map(Vec::len), Some(2), "{list:#}");

    // The first one has noticed nothing.
    linux.storage().drop_caches().expect("caches are dropped");
    linux.succeed("sha256sum -c /tmp/sum", LIMIT);
    linux.storage().unmount("/mnt").expect("umount");
    linux.storage().check_file_system(&device).expect("it is sound");
    linux.storage().disconnect(NQN).expect("it disconnects");
    operate(&socket, &["end"]);
    ours.succeed();
}

#[test]
fn linux_comes_back_after_its_operator_has_disconnected_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("control");
    let control = socket.to_str().expect("a path");
    let mut ours = Ours::start(folder.path(), &["storage", "--ram-disk", "32M", "--control", control]);
    ours.wait_for("connect: nvme connect -t rdma -a 10.0.0.1 -s 4420 -n");
    let mut linux = Linux::boot_for_storage(Side::Connect, &link(folder.path()), &LINUX, MTU);
    let options = "--reconnect-delay=1 --ctrl-loss-tmo=600";
    let connect = Connect { options, ..Connect::to(NQN, "10.0.0.1") };
    let device = linux.storage().connect(&connect, 1).expect("it connects").remove(0);
    let list = operate(&socket, &["list"]);
    let host = list["controllers"][0]["host"].as_str().expect("a host").to_owned();
    let write = format!(
        "dd if=/dev/urandom of=/tmp/data bs=64k count=64 && dd if=/tmp/data of={device} oflag=direct bs=64k"
    );
    linux.succeed(&write, LIMIT);
    assert_eq!(operate(&socket, &["disconnect", &format!("host={host}")])["controllers"], 1);
    let read = format!("dd if={device} iflag=direct bs=64k count=64 | cmp - /tmp/data");
    linux.succeed(&read, LIMIT);
    operate(&socket, &["drain"]);
    let is_drained = || operate(&socket, &["list"])["state"] == "drained";
    while !is_drained() {
        std::thread::yield_now();
    }
    operate(&socket, &["resume"]);
    linux.succeed(&read, LIMIT);
    linux.storage().disconnect(NQN).expect("it disconnects");
}
