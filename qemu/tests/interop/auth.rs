//! Linux proves to our target who it is, and the target to Linux.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use qemu::linux::storage::Connect;

use crate::linux::Linux;
use crate::load;
use crate::ours::{Ours, link};
use crate::storage::keeps_a_file;
use crate::storage_live::operate;
use crate::{LIMIT, LINUX, MTU};

const NQN: &str = "nqn.2026-01.org.ferrovia:storage";
const HOST: (&str, &str) = ("nqn.2026-01.org.example:one", "11111111-2222-3333-4444-555555555555");
/// Keys of 32 and 48 bytes; the second one is transformed by SHA-384.
const KEY: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const CONTROLLER_KEY: &str =
    "DHHC-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:";

/// A file with a line for the host.
fn write_hosts(folder: &Path, words: &str) -> PathBuf {
    let hosts = folder.join("hosts");
    std::fs::write(&hosts, format!("# the only host\n{} {words}\n", HOST.0)).expect("a file");
    std::fs::set_permissions(&hosts, Permissions::from_mode(0o600)).expect("its mode");
    hosts
}

/// Our target with a line for the host, and Linux on its link.
fn boot(folder: &Path, words: &str) -> (Ours, Linux) {
    let hosts = write_hosts(folder, &format!("key={KEY} controller-key={CONTROLLER_KEY} {words}"));
    let (hosts, control) = (hosts.display().to_string(), folder.join("control").display().to_string());
    let disks = ["storage", "--ram-disk", "48M", "--ram-disk", "16M"];
    let options = ["--hosts", &hosts, "--control", &control, "--log", "info"];
    let mut ours = Ours::start(folder, &[&disks[..], &options].concat());
    ours.wait_for("connect: nvme connect -t rdma -a 10.0.0.1 -s 4420 -n");
    (ours, Linux::boot_to_authenticate(&link(folder), &LINUX, MTU))
}

fn connect(options: &str) -> Connect<'_> {
    Connect { host: Some(HOST), options, ..Connect::to(NQN, "10.0.0.1") }
}

fn is_refused(linux: &mut Linux, options: &str) {
    let line = connect(options).command();
    let outcome = linux.run(&line, LIMIT);
    assert_ne!(outcome.status, 0, "{line} was not refused");
}

#[test]
fn linux_and_the_target_prove_who_they_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut ours, mut linux) = boot(folder.path(), "namespaces=1");
    is_refused(&mut linux, "");
    is_refused(&mut linux, &format!("--dhchap-secret={CONTROLLER_KEY}"));
    ours.wait_for_text("has not authenticated", 1);
    let right = format!("--dhchap-secret={KEY}");
    let devices = linux.storage().connect(&connect(&right), 1).expect("it connects");
    assert_eq!(devices.len(), 1, "it sees one of two namespaces");
    ours.wait_for_text("has authenticated on queue", 2);
    keeps_a_file(&mut linux, &devices[0], "/mnt");
    linux.storage().disconnect(NQN).expect("it disconnects");
    is_refused(&mut linux, &format!("{right} --dhchap-ctrl-secret={KEY}"));
    let both = format!("{right} --dhchap-ctrl-secret={CONTROLLER_KEY}");
    let devices = linux.storage().connect(&connect(&both), 1).expect("it connects");
    keeps_a_file(&mut linux, &devices[0], "/mnt");
    linux.storage().disconnect(NQN).expect("it disconnects");
    // The host gets another key, and sees both namespaces.
    write_hosts(folder.path(), &format!("key={CONTROLLER_KEY}"));
    assert_eq!(operate(&folder.path().join("control"), &["hosts"])["hosts"], 1);
    is_refused(&mut linux, &right);
    let new = format!("--dhchap-secret={CONTROLLER_KEY}");
    linux.storage().connect(&connect(&new), 2).expect("it connects");
    linux.storage().disconnect(NQN).expect("it disconnects");
}

#[test]
fn linux_proves_who_it_is_again_while_it_writes() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut ours, mut linux) = boot(folder.path(), "groups=ffdhe4096 hashes=sha256");
    let both = format!("--dhchap-secret={KEY} --dhchap-ctrl-secret={CONTROLLER_KEY}");
    let device = linux.storage().connect(&connect(&both), 2).expect("it connects").remove(0);
    ours.wait_for_text("has authenticated on queue", 2);
    load::begin(&mut linux, &device, 32);
    load::goes_on(&mut linux, 1);
    for _ in 0..3 {
        linux.succeed(&format!("echo {KEY} >/sys/class/nvme/nvme0/dhchap_secret"), LIMIT);
        ours.wait_for_text("has authenticated on queue", 2);
    }
    let kernel = load::end(&mut linux);
    for word in ["error", "timeout", "reconnect"] {
        assert!(!kernel.contains(word), "its connection was disturbed:\n{kernel}");
    }
    linux.storage().disconnect(NQN).expect("it disconnects");
    ours.wait_for("idle: ");
}
