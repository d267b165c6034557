//! Linux uses two targets on one file as two paths, and writes with fsync while paths are closed
//! and opened, and while a target is killed and comes back.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::linux::Linux;
use crate::multipath::{self, SOME, wait_for_both, wait_for_states, writes_on};
use crate::ours::{Ours, link};
use crate::storage_live::operate;
use crate::{LIMIT, MTU};

/// A folder with the file and the link that the targets share.
struct Paths<'a> {
    folder: &'a Path,
    disk: PathBuf,
}

impl Paths<'_> {
    fn socket(&self, path: u16) -> PathBuf {
        self.folder.join(format!("control{path}"))
    }

    /// Starts a target, whose namespaces hosts reach like this at first.
    fn start(&self, path: u16, state: &str) -> Ours {
        let (number, socket) = (path.to_string(), self.socket(path));
        let [disk, socket] = [&self.disk, &socket].map(|path| path.to_str().expect("text"));
        let words = ["storage", "--path", &number, "--ana", state, "--disk", disk, "--control", socket];
        // The first one names the other one's discovery service.
        let referral = if path == 1 { &["--referral", ADDRESSES[1]][..] } else { &[] };
        let words = [&words[..], referral].concat();
        let mut target =
            Ours::connect_as(&format!("{}/24", ADDRESSES[path as usize - 1]), self.folder, &words);
        target.wait_for("connect: nvme connect -t rdma");
        target
    }

    fn set(&self, path: u16, state: &str) {
        operate(&self.socket(path), &["ana", &format!("state={state}"), &format!("port={path}")]);
    }

    /// The writes that a target has carried out.
    fn writes(&self, path: u16) -> u64 {
        operate(&self.socket(path), &["metrics"])["writes"].as_u64().expect("a number")
    }
}

const ADDRESSES: [&str; 2] = ["10.0.0.3", "10.0.0.4"];

#[test]
fn linux_writes_on_while_paths_are_closed_and_targets_are_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = folder.path().join("disk");
    File::create(&disk).and_then(|file| file.set_len(64 << 20)).expect("a disk");
    let paths = Paths { folder: folder.path(), disk };
    // All are on the switch of an image that stays.
    let mut switch = Ours::start_on_switch(folder.path(), &["rping-server"]);
    switch.wait_for("ready: ");
    let mut first = paths.start(1, "optimized");
    let mut second = paths.start(2, "non-optimized");
    let mut linux = Linux::boot_on_switch(&link(folder.path()), &["10.0.0.2/24"], MTU, 2);
    let found = linux.succeed(&format!("nvme discover -t rdma -a {} -s 4420", ADDRESSES[0]), LIMIT);
    for words in ["subtype: nvme subsystem", "subtype: discovery subsystem referral", "traddr:  10.0.0.4"] {
        assert!(found.contains(words), "{found}");
    }
    let device = multipath::connect_all(&mut linux, ADDRESSES[0]);
    wait_for_states(&mut linux, "non-optimized optimized");

    multipath::begin(&mut linux, &device);
    writes_on(&mut linux, SOME);
    assert_eq!(paths.writes(2), 0, "there is a better path");

    // The operator moves the host, and closes both paths for a while.
    paths.set(1, "inaccessible");
    writes_on(&mut linux, 2);
    let before = (paths.writes(1), paths.writes(2));
    writes_on(&mut linux, SOME);
    assert_eq!(paths.writes(1), before.0, "that path is closed");
    assert!(paths.writes(2) >= before.1 + u64::from(SOME));
    paths.set(2, "inaccessible");
    wait_for_states(&mut linux, "inaccessible inaccessible");
    paths.set(1, "change");
    paths.set(1, "optimized");
    writes_on(&mut linux, SOME);
    paths.set(2, "non-optimized");

    // Each target is killed while the host writes by it, and comes back.
    drop(first);
    writes_on(&mut linux, SOME);
    first = paths.start(1, "optimized");
    wait_for_both(&mut linux);
    writes_on(&mut linux, SOME);
    drop(second);
    paths.set(1, "non-optimized");
    writes_on(&mut linux, SOME);
    second = paths.start(2, "optimized");
    wait_for_both(&mut linux);
    wait_for_states(&mut linux, "non-optimized optimized");
    writes_on(&mut linux, SOME);
    assert!(paths.writes(2) > 0, "the better path is used again");

    multipath::end(&mut linux, &device);
    for target in [&mut first, &mut second] {
        target.wait_for("idle: ");
    }
}
