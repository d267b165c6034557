//! Linux uses two targets on one file as two paths, and writes with fsync while paths are closed
//! and opened, and while a target is killed and comes back. No error reaches the writer, and no
//! block that it was told is durable is lost.

use std::fs::File;
use std::path::{Path, PathBuf};

use qemu::linux::storage::Connect;

use crate::linux::Linux;
use crate::ours::{Ours, link};
use crate::storage_live::{operate, wait_until};
use crate::{LIMIT, MTU};

const NQN: &str = "nqn.2026-01.org.ferrovia:storage";
/// Both paths have to be of one host.
const HOST: (&str, &str) = ("nqn.2026-01.org.example:one", "11111111-2222-3333-4444-555555555555");
/// Blocks that are written before the test goes on.
const SOME: u32 = 15;

/// A folder with the file and the link that the targets share.
struct Paths<'a> {
    folder: &'a Path,
    disk: PathBuf,
}

impl Paths<'_> {
    fn address(path: u16) -> String {
        format!("10.0.0.{}", 2 + path)
    }

    fn socket(&self, path: u16) -> PathBuf {
        self.folder.join(format!("control{path}"))
    }

    /// Starts a target, whose namespaces hosts reach like this at first.
    fn start(&self, path: u16, state: &str) -> Ours {
        let (number, socket) = (path.to_string(), self.socket(path));
        let [disk, socket] = [&self.disk, &socket].map(|path| path.to_str().expect("text"));
        let words = ["storage", "--path", &number, "--ana", state, "--disk", disk, "--control", socket];
        let address = format!("{}/24", Paths::address(path));
        let mut target = Ours::connect_as(&address, self.folder, &words);
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

/// Waits until the writer has written so many blocks more.
#[track_caller]
fn writes_on(linux: &mut Linux, blocks: u32) {
    let line = format!(
        "last=$(wc -l </tmp/log); until [ $(wc -l </tmp/log) -ge $((last+{blocks})) ]; do \
         [ ! -e /tmp/failed ] || {{ cat /tmp/failed; exit 1; }}; sleep 0.1; done"
    );
    linux.succeed(&line, LIMIT);
}

/// Waits until both controllers are connected.
#[track_caller]
fn wait_for_both(linux: &mut Linux) {
    wait_until(linux, "[ $(cat /sys/class/nvme/nvme*/state | grep -cx live) = 2 ]");
}

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
    let options = "--reconnect-delay=1 --ctrl-loss-tmo=600 --keep-alive-tmo=2";
    let mut device = String::new();
    for path in [1, 2] {
        let address = Paths::address(path);
        let target = Connect { host: Some(HOST), options, ..Connect::to(NQN, &address) };
        let devices = linux.storage().connect(&target, 1).expect("it connects");
        assert_eq!(devices.len(), 1, "{devices:?}");
        device = devices.into_iter().next().expect("a device");
    }
    wait_for_both(&mut linux);
    let states = "echo $(cat /sys/block/nvme0c*n1/ana_state | sort)";
    wait_until(&mut linux, &format!("[ \"$({states})\" = \"non-optimized optimized\" ]"));

    // Each block has its number in it, as text that ends with the block. The log has those that
    // were written and flushed, a line for each.
    let writer = format!(
        "rm -f /tmp/log; touch /tmp/log; (n=0; while [ $n -lt 16000 ] && [ ! -e /tmp/stop ]; do \
         printf %4096d $n | dd of={device} bs=4096 seek=$n count=1 conv=fsync oflag=direct 2>/tmp/said || \
         {{ cat /tmp/said >/tmp/failed; break; }}; echo $n >>/tmp/log; n=$((n+1)); done; touch /tmp/end) \
         >/dev/null 2>&1 &"
    );
    linux.succeed(&writer, LIMIT);
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
    wait_until(&mut linux, &format!("[ \"$({states})\" = \"inaccessible inaccessible\" ]"));
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
    wait_until(&mut linux, &format!("[ \"$({states})\" = \"non-optimized optimized\" ]"));
    writes_on(&mut linux, SOME);
    assert!(paths.writes(2) > 0, "the better path is used again");

    linux.succeed("touch /tmp/stop; until [ -e /tmp/end ]; do sleep 0.1; done; [ ! -e /tmp/failed ]", LIMIT);
    let check = format!(
        "echo 3 >/proc/sys/vm/drop_caches; \
         for n in $(dd if={device} bs=4096 count=$(wc -l </tmp/log) iflag=direct 2>/dev/null | tr -s \" \"); \
         do echo $n; done | cmp - /tmp/log"
    );
    linux.succeed(&check, LIMIT);
    linux.storage().disconnect(NQN).expect("it disconnects");
    for target in [&mut first, &mut second] {
        target.wait_for("idle: ");
    }
}
