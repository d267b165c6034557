//! Two Linux guests share a disk by reservations, with nvme-cli, as the hosts of a cluster do; and
//! the reservations survive a target that is killed.

use std::fs::File;
use std::path::Path;

use qemu::linux::storage::Connect;
use serde_json::Value;

use crate::linux::Linux;
use crate::ours::{Ours, link};
use crate::storage_live::wait_until;
use crate::{LIMIT, MTU};

const NQN: &str = "nqn.2026-01.org.ferrovia:storage";
const TARGET: &str = "10.0.0.9";
/// The hosts' names and identifiers, and the key with which each registers.
const HOSTS: [(&str, &str, u64); 2] = [
    ("nqn.2026-01.org.example:one", "11111111-2222-3333-4444-555555555555", 0x1111),
    ("nqn.2026-01.org.example:two", "66666666-7777-8888-9999-aaaaaaaaaaaa", 0x2222),
];
/// Write Exclusive.
const TYPE: u64 = 1;

/// A guest, with the disk.
struct Host {
    linux: Linux,
    device: String,
    number: usize,
}

impl Host {
    fn boot(folder: &Path, number: usize) -> Host {
        let address = format!("10.0.0.{}", 2 + number);
        let mac = 2 + number as u8;
        let mut linux = Linux::boot_on_switch(&link(folder), &[&format!("{address}/24")], MTU, mac);
        let (name, id, _) = HOSTS[number];
        let options = "--reconnect-delay=1 --ctrl-loss-tmo=600 --keep-alive-tmo=3";
        let connect = Connect { host: Some((name, id)), options, ..Connect::to(NQN, TARGET) };
        let device = linux.storage().connect(&connect, 1).expect("it connects").remove(0);
        Host { linux, device, number }
    }

    fn key(&self) -> u64 {
        HOSTS[self.number].2
    }

    /// Runs a command of nvme-cli about the disk; whether it succeeded, or else that it was a
    /// reservation conflict.
    #[track_caller]
    fn nvme(&mut self, command: &str, arguments: &str) -> bool {
        let line = format!("nvme {command} {} {arguments}", self.device);
        let outcome = self.linux.run(&line, LIMIT);
        let conflicts = outcome.text.to_ascii_lowercase().contains("reservation conflict");
        assert_eq!(outcome.status != 0, conflicts, "{line}: {}\n{}", outcome.status, outcome.text);
        outcome.status == 0
    }

    #[track_caller]
    fn register(&mut self) {
        let key = self.key();
        assert!(self.nvme("resv-register", &format!("--nrkey={key:#x} --rrega=0 --cptpl=3")));
    }

    /// Acquires the reservation, from the host with another key if there is one.
    fn acquire(&mut self, preempted: Option<u64>) -> bool {
        let action = u8::from(preempted.is_some());
        let (key, other) = (self.key(), preempted.unwrap_or(0));
        let keys = format!("--crkey={key:#x} --prkey={other:#x}");
        self.nvme("resv-acquire", &format!("{keys} --rtype={TYPE} --racqa={action}"))
    }

    /// Writes a block by a file of the kernel, and one by a command; whether it may. Both agree.
    #[track_caller]
    fn writes(&mut self) -> bool {
        let line = format!("dd if=/dev/zero of={} bs=4096 count=1 oflag=direct", self.device);
        let outcome = self.linux.run(&line, LIMIT);
        // EBADE, into which Linux turns the status.
        let is_refused = outcome.text.contains("Invalid exchange");
        assert_eq!(outcome.status != 0, is_refused, "{}: {}", outcome.status, outcome.text);
        let by_command =
            self.nvme("write", "--start-block=8 --block-count=0 --data-size=512 --data=/dev/zero");
        assert_eq!(by_command, !is_refused);
        by_command
    }

    #[track_caller]
    fn reads(&mut self) {
        let line = format!("dd if={} of=/dev/null bs=4096 count=4 iflag=direct", self.device);
        self.linux.succeed(&line, LIMIT);
    }

    /// The report: its generation, the type that is held (0 for none), whether it persists, and the
    /// registrants: key, identifier, whether it holds the reservation.
    #[track_caller]
    fn report(&mut self) -> (u64, u64, bool, Vec<(u64, String, bool)>) {
        let line = format!("nvme resv-report {} --eds --output-format=json", self.device);
        let text = self.linux.succeed(&line, LIMIT);
        let report: Value = serde_json::from_str(&text).expect(&text);
        let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{text}"));
        let registrants = report["regctlext"].as_array().cloned().unwrap_or_default();
        let registrant = |one: &Value| {
            let id = one["hostid"].to_string().replace(['"', '-'], "");
            (number(&one["rkey"]), id, number(&one["rcsts"]) & 1 != 0)
        };
        let mut registrants: Vec<_> = registrants.iter().map(registrant).collect();
        registrants.sort();
        (number(&report["gen"]), number(&report["rtype"]), number(&report["ptpls"]) != 0, registrants)
    }
}

/// A target whose reservations persist, on the switch of another image.
fn target(folder: &Path, disk: &Path, state: &Path) -> Ours {
    let [disk, state] = [disk, state].map(|path| path.to_str().expect("a path"));
    let words = ["storage", "--disk", disk, "--state", state];
    let mut target = Ours::connect_as(&format!("{TARGET}/24"), folder, &words);
    target.wait_for("connect: nvme connect -t rdma");
    target
}

#[test]
fn two_linux_hosts_share_a_disk_by_reservations_that_survive_a_killed_target() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let (disk, state) = (folder.join("disk"), folder.join("state"));
    File::create(&disk).and_then(|file| file.set_len(16 << 20)).expect("a disk");
    let mut switch = Ours::start_on_switch(folder, &["rping-server"]);
    switch.wait_for("ready: ");
    let mut ours = target(folder, &disk, &state);
    let (mut one, mut two) = (Host::boot(folder, 0), Host::boot(folder, 1));
    assert!(one.writes() && two.writes());
    one.register();
    two.register();
    assert!(one.writes() && two.writes(), "nothing is reserved");
    assert!(one.acquire(None));
    assert!(one.acquire(None), "again");
    assert!(!two.acquire(None), "the other one has it");
    assert!(one.writes() && !two.writes());
    two.reads();
    let reported = two.report();
    let (_, kind, persists, registrants) = &reported;
    assert_eq!((*kind, *persists), (TYPE, true));
    let [first, second] = &registrants[..] else { panic!("{registrants:?}") };
    assert_eq!((first.0, first.2), (HOSTS[0].2, true));
    assert_eq!((second.0, second.2), (HOSTS[1].2, false));
    assert_ne!(first.1, second.1, "each has its own identifier");
    assert_eq!(one.report(), reported);

    // The target is killed, and comes back.
    drop(ours);
    ours = target(folder, &disk, &state);
    for host in [&mut one, &mut two] {
        // The host may not have noticed yet, and waits with this until it has connected again.
        host.reads();
        wait_until(&mut host.linux, "[ $(cat /sys/class/nvme/nvme*/state) = live ]");
    }
    assert_eq!(two.report(), reported);
    assert!(one.writes() && !two.writes());

    // The other one takes over.
    assert!(two.acquire(Some(HOSTS[0].2)));
    assert!(!one.writes() && two.writes());
    assert!(!one.acquire(None), "it is not registered any more");
    let (_, kind, _, registrants) = one.report();
    assert_eq!((kind, registrants.len(), registrants[0].0), (TYPE, 1, HOSTS[1].2));
    let key = two.key();
    assert!(two.nvme("resv-release", &format!("--crkey={key:#x} --rtype={TYPE} --rrela=0")));
    assert!(one.writes() && two.writes());
    assert!(two.nvme("resv-register", &format!("--crkey={key:#x} --rrega=1 --cptpl=0")));
    assert_eq!((two.report().1, two.report().3.len()), (0, 0));
    one.linux.storage().disconnect(NQN).expect("it disconnects");
    two.linux.storage().disconnect(NQN).expect("it disconnects");
    ours.wait_for("idle: ");
}
