//! Linux uses the subsystems of one target that it may use, and hears of changes from the discovery
//! service to which it stays connected.

use std::path::Path;

use qemu::linux::Side;
use qemu::linux::storage::Connect;

use crate::linux::Linux;
use crate::ours::{Ours, link};
use crate::storage_live::{operate, wait_until};
use crate::{LIMIT, LINUX, MTU};

/// Any host may use the first one, and the other ones are for some.
const FIRST: &str = "nqn.2026-01.org.ferrovia:storage";
const SECOND: &str = "nqn.2026-01.org.example:second";
const THIRD: &str = "nqn.2026-01.org.example:third";
/// Hosts, with their identifiers.
const ONE: (&str, &str) = ("nqn.2026-01.org.example:one", "11111111-2222-3333-4444-555555555555");
const TWO: (&str, &str) = ("nqn.2026-01.org.example:two", "66666666-7777-8888-9999-aaaaaaaaaaaa");
/// The trace of events. Its words for a Discovery Log Page Change are only the kind (Notice), so
/// the number is looked for: log page 0x70, information 0xf0, type 2.
const TRACE: &str = "/sys/kernel/tracing";
const EVENT: &str = "nvme_async_event: .*NVME_AEN=0x70f002";

/// A command of nvme-cli to the discovery service, as this host.
fn ask(command: &str, (host, id): (&str, &str)) -> String {
    format!("nvme {command} -t rdma -a 10.0.0.1 -s 4420 --hostnqn={host} --hostid={id}")
}

/// The discovery service lists these subsystems, and no others.
#[track_caller]
fn lists(said: &str, subsystems: &[&str]) {
    for nqn in [FIRST, SECOND, THIRD] {
        assert_eq!(said.contains(nqn), subsystems.contains(&nqn), "{nqn} in:\n{said}");
    }
}

/// Linux has a live controller of each of these subsystems, with one namespace of so many sectors.
#[track_caller]
fn uses(linux: &mut Linux, subsystems: &[(&str, u32)]) {
    let found = linux.succeed("cat /sys/class/nvme/nvme*/subsysnqn | grep -v discovery | sort", LIMIT);
    let mut names: Vec<&str> = subsystems.iter().map(|&(nqn, _)| nqn).collect();
    names.sort_unstable();
    assert_eq!(found.lines().collect::<Vec<_>>(), names);
    for (nqn, sectors) in subsystems {
        let devices = linux.storage().devices(nqn, 1).expect("a device");
        let [device] = &devices[..] else { panic!("{nqn}: {devices:?}") };
        let name = device.trim_start_matches("/dev/");
        wait_until(linux, &format!("[ $(cat /sys/block/{name}/size) = {sectors} ]"));
        let line = format!(
            "dd if=/dev/urandom of=/tmp/data bs=64k count=8 && dd if=/tmp/data of={device} bs=64k \
             oflag=direct && dd if={device} bs=64k count=8 iflag=direct | cmp - /tmp/data"
        );
        linux.succeed(&line, LIMIT);
    }
}

/// Waits until Linux has heard so many times that the discovery log has changed.
#[track_caller]
fn hears(linux: &mut Linux, times: u32) {
    wait_until(linux, &format!("[ $(grep -c \"{EVENT}\" {TRACE}/trace) = {times} ]"));
}

/// Disconnects all controllers.
#[track_caller]
fn leave(linux: &mut Linux) {
    linux.succeed("nvme disconnect-all", LIMIT);
    wait_until(linux, "[ -z \"$(ls /sys/class/nvme)\" ]");
}

fn are_used(boot: impl FnOnce(&Path) -> Linux) {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("control");
    let second = format!("{SECOND},host={}", ONE.0);
    let of_second = format!("2:subsystem={SECOND}");
    let words = ["storage", "--ram-disk", "16M", "--ram-disk", "24M", "--subsystem", &second];
    let control = ["--namespace", &of_second, "--control", socket.to_str().expect("a path")];
    let mut ours = Ours::start(folder.path(), &[&words[..], &control].concat());
    ours.wait_for("connect: nvme connect -t rdma -a 10.0.0.1 -s 4420 -n");
    let mut linux = boot(&link(folder.path()));
    let trace = format!(
        "grep -q tracefs /proc/mounts || mount -t tracefs tracefs {TRACE}; \
         echo 1 >{TRACE}/events/nvme/nvme_async_event/enable"
    );
    linux.succeed(&trace, LIMIT);

    // The first host may use both, and stays connected to the discovery service.
    let found = linux.succeed(&ask("discover --persistent", ONE), LIMIT);
    lists(&found, &[FIRST, SECOND]);
    linux.succeed(&ask("connect-all", ONE), LIMIT);
    let (first, second, third) = ((FIRST, 16 << 11), (SECOND, 24 << 11), (THIRD, 8 << 11));
    uses(&mut linux, &[first, second]);

    // It hears of one more, and does then what udev has it do. It hears again when it may not use
    // that one any more, but goes on with it.
    operate(&socket, &["add-subsystem", &format!("nqn={THIRD}"), &format!("hosts={}", ONE.0)]);
    hears(&mut linux, 1);
    operate(&socket, &["add", "ram=8M", &format!("subsystem={THIRD}")]);
    let device =
        "for c in /sys/class/nvme/nvme*; do grep -q discovery $c/subsysnqn && basename $c; done; true";
    let device = linux.succeed(device, LIMIT);
    linux.succeed(&format!("{} --device={}", ask("connect-all", ONE), device.trim()), LIMIT);
    uses(&mut linux, &[first, second, third]);
    operate(&socket, &["allow", &format!("nqn={THIRD}"), &format!("hosts={}", TWO.0)]);
    hears(&mut linux, 2);
    lists(&linux.succeed(&ask("discover", ONE), LIMIT), &[FIRST, SECOND]);
    uses(&mut linux, &[first, second, third]);
    leave(&mut linux);

    // The other host finds what it may use, and uses no more.
    lists(&linux.succeed(&ask("discover", TWO), LIMIT), &[FIRST, THIRD]);
    linux.succeed(&ask("connect-all", TWO), LIMIT);
    uses(&mut linux, &[first, third]);
    let refused = Connect { host: Some(TWO), ..Connect::to(SECOND, "10.0.0.1") };
    let refused = linux.storage().refused(&refused).expect("a status");
    assert_eq!(refused, 0x4184, "Connect Invalid Host, and Do Not Retry");
    uses(&mut linux, &[first, third]);
    leave(&mut linux);
    operate(&socket, &["end"]);
    ours.succeed();
}

#[test]
fn linux_uses_the_subsystems_that_it_may_use_and_hears_of_changes() {
    are_used(|link| Linux::boot_for_storage(Side::Connect, link, &LINUX, MTU));
}

#[test]
fn the_newer_linux_uses_the_subsystems_that_it_may_use_and_hears_of_changes() {
    are_used(|link| Linux::boot_to_authenticate(link, &LINUX, MTU));
}
