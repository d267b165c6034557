//! The storage target as its user starts and ends it.

extern crate ferrovia_qemu as qemu;

mod running;

use std::fs::File;
use std::path::Path;
use std::process::Command;

use running::{Running, launcher};
use rustix::process::{Pid, Signal};

/// A command line for the launcher at one end of a link at `socket`.
fn command(words: &[&str], way: &str, socket: &Path, number: u32) -> Command {
    let mut command = launcher();
    command.args(words).arg("--link").arg(format!("{way}:{}", socket.display()));
    command.args(["--ip", &format!("10.0.0.{number}/24")]);
    command
}

fn end(running: &mut Running, signal: Signal) -> Option<i32> {
    rustix::process::kill_process(Pid::from_child(&running.child), signal).expect("it runs");
    running.child.wait().expect("its status").code()
}

/// The most disks, files among them, with the memory that the launcher chooses.
#[test]
fn as_many_disks_as_there_may_be_start_with_the_default_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut target = command(&["storage"], "stream", &folder.path().join("link"), 1);
    for number in 0..16 {
        let image = folder.path().join(number.to_string());
        File::create(&image).and_then(|file| file.set_len(1 << 20)).expect("a sparse file");
        target.arg("--disk").arg(image);
    }
    target.args(["--ram-disk", "1M"].repeat(48));
    let mut target = Running::start(target);
    target.wait_for("ready: 10.0.0.1:4420");
    assert_eq!(end(&mut target, Signal::TERM), Some(0), "it ends by itself");
}

#[test]
fn too_little_memory_is_said_with_the_option_for_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let words = ["storage", "--ram-disk", "20M", "--ram-disk", "20M", "--memory", "96M"];
    let target = command(&words, "stream", &folder.path().join("link"), 1).output().expect("it starts");
    let said = String::from_utf8(target.stdout).expect("text");
    assert_eq!(target.status.code(), Some(1), "{said}");
    assert!(said.contains("too little for 2 disks; give the machine more by --memory"), "{said}");
}

/// The host's connection is released at once, instead of being lost later.
#[test]
fn a_target_that_is_asked_to_end_disconnects_its_hosts() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("link");
    let mut target = Running::start(command(&["storage", "--ram-disk", "1M"], "stream", &socket, 1));
    target.wait_for("ready: 10.0.0.1:4420");
    let words = ["storage-client", "10.0.0.1", "seconds=300", "requests=1000000000"];
    let mut host = Running::start(command(&words, "stream-connect", &socket, 2));
    host.wait_for("controller 1: ");
    assert_eq!(end(&mut target, Signal::INT), Some(0), "it ends by itself");
    host.wait_for("error: ");
    assert_eq!(host.child.wait().expect("its status").code(), Some(1));
}
