//! Linux as a host of our target of NVMe over Fabrics, and as a target of our host.

use std::path::Path;
use std::time::{Duration, Instant};

use qemu::linux::Side;
use qemu::linux::storage::Connect;

use crate::linux::Linux;
use crate::load;
use crate::ours::{Ours, link};
use crate::{LIMIT, LINUX, MTU, Transport};

const NQN: &str = "nqn.2026-01.org.ferrovia:storage";
/// Hosts, with their identifiers.
const HOSTS: [(&str, &str); 2] = [
    ("nqn.2026-01.org.example:one", "11111111-2222-3333-4444-555555555555"),
    ("nqn.2026-01.org.example:two", "66666666-7777-8888-9999-aaaaaaaaaaaa"),
];

fn target() -> Connect<'static> {
    Connect::to(NQN, "10.0.0.1")
}

/// Our target with these arguments, and Linux on its link.
fn boot(folder: &Path, arguments: &[&str]) -> (Ours, Linux) {
    boot_over(Transport::Roce, folder, arguments)
}

fn boot_over(transport: Transport, folder: &Path, arguments: &[&str]) -> (Ours, Linux) {
    let arguments = [&["storage"], arguments].concat();
    let mut ours = Ours::start(folder, &transport.chosen_by(&arguments));
    ours.wait_for("connect: nvme connect -t rdma -a 10.0.0.1 -s 4420 -n");
    let linux = Linux::boot_for_storage(Side::Connect, &link(folder), &LINUX, MTU).over(transport);
    (ours, linux)
}

/// Makes a file system on a device, writes a file, and checks that all of it comes back.
pub(crate) fn keeps_a_file(linux: &mut Linux, device: &str, folder: &str) {
    let linux = linux.storage();
    linux.make_file_system(device).expect("mkfs");
    linux.mount(device, folder).expect("mount");
    let file = format!("{folder}/file");
    linux
        .succeed(&format!("dd if=/dev/urandom of={file} bs=1M count=8 conv=fsync"), LIMIT)
        .expect("it is written");
    let sum = linux.checksum(&file).expect("sha256sum");
    linux.unmount(folder).expect("umount");
    linux.check_file_system(device).expect("the file system is sound");
    linux.drop_caches().expect("caches are dropped");
    linux.mount(device, folder).expect("mount");
    assert_eq!(linux.checksum(&file).expect("sha256sum"), sum, "what was written is read");
    linux.unmount(folder).expect("umount");
}

/// Linux finds the target, uses all that it offers, and connects again so many times.
fn is_used(transport: Transport, times: u32) {
    let folder = tempfile::tempdir().expect("a folder");
    let disks = ["--ram-disk", "48M", "--ram-disk", "16M"];
    let (mut ours, mut linux) = boot_over(transport, folder.path(), &disks);
    let provider = match transport {
        Transport::Roce => "roce-v2",
        Transport::Iwarp => "iwarp",
    };
    for (address, family) in [("10.0.0.1", "ipv4"), ("fd00::1", "ipv6")] {
        let line = format!("modprobe nvme_rdma && nvme discover -t rdma -a {address} -s 4420");
        let said = linux.succeed(&line, LIMIT);
        for part in [NQN, &format!("adrfam:  {family}"), &format!("traddr:  {address}"), provider] {
            assert!(said.contains(part), "no {part:?} in:\n{said}");
        }
    }
    let devices = linux.storage().connect(&target(), 2).expect("it connects");
    keeps_a_file(&mut linux, &devices[0], "/mnt");
    // Deallocate, and Write Zeroes: what mkfs and the kernel use.
    let all = format!("blkdiscard {0} && cmp -n 16777216 {0} /dev/zero", devices[1]);
    linux.succeed(&all, LIMIT);
    let zeroes = format!("nvme write-zeroes {} -s 100 -c 999 && nvme flush {0}", devices[1]);
    linux.succeed(&zeroes, LIMIT);
    linux.storage().disconnect(NQN).expect("it disconnects");
    for _ in 0..times {
        linux.storage().connect(&target(), 2).expect("it connects again");
        linux.storage().disconnect(NQN).expect("it disconnects");
    }
    ours.wait_for("idle: ");
}

#[test]
fn linux_finds_the_target_makes_a_file_system_and_reconnects_20_times() {
    is_used(Transport::Roce, 20);
}

#[test]
fn linux_finds_the_target_and_makes_a_file_system_over_iwarp() {
    is_used(Transport::Iwarp, 5);
}

#[test]
fn two_hosts_use_two_disks_at_once_and_a_third_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let [one, two] = HOSTS.map(|(host, _)| ["--allow-host", host]);
    let disks = ["--ram-disk", "32M", "--ram-disk", "32M"];
    let (_ours, mut linux) = boot(folder.path(), &[&disks[..], &one, &two].concat());
    let refused = linux.storage().refused(&target()).expect("a status");
    assert_eq!(refused, 0x4184, "Connect Invalid Host, and Do Not Retry");
    linux.storage().connect(&Connect { host: Some(HOSTS[0]), ..target() }, 2).expect("it connects");
    // nvme-cli compares only the targets' names and refuses a second connection, so the test
    // writes to the kernel's own interface.
    let (host, id) = HOSTS[1];
    let second = format!(
        "echo transport=rdma,traddr=10.0.0.1,trsvcid=4420,nqn={NQN},hostnqn={host},hostid={id} \
         >/dev/nvme-fabrics"
    );
    linux.succeed(&second, LIMIT);
    let controllers = linux.succeed("ls /sys/class/nvme | wc -l", LIMIT);
    assert_eq!(controllers.trim(), "2");
    // With native multipath both are paths to the same namespaces.
    let line = "for n in 1 2; do (for i in 1 2 3; do \
                dd if=/dev/urandom of=/tmp/data$n bs=64k count=64 2>/dev/null && \
                dd if=/tmp/data$n of=/dev/nvme0n$n bs=64k oflag=direct 2>/dev/null && \
                dd if=/dev/nvme0n$n bs=64k count=64 iflag=direct 2>/dev/null | cmp - /tmp/data$n || exit 1; \
                done; echo passed $n) & done; wait";
    let said = linux.succeed(line, LIMIT);
    assert!(said.contains("passed 1") && said.contains("passed 2"), "{said}");
}

#[test]
fn two_guests_work_at_once_and_one_that_is_killed_does_not_disturb_the_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut ours =
        Ours::start_on_switch(folder.path(), &["storage", "--ram-disk", "32M", "--ram-disk", "32M"]);
    ours.wait_for("connect: nvme connect -t rdma -a 10.0.0.1 -s 4420 -n");
    let link = link(folder.path());
    // A guest ends with the thread that booted it.
    let [mut first, mut second] =
        [2, 3].map(|n| Linux::boot_on_switch(&link, &[&format!("10.0.0.{n}/24")], MTU, n));
    let work = |linux: &mut Linux, n: usize| {
        let target = Connect { host: Some(HOSTS[n]), options: "--keep-alive-tmo=2", ..target() };
        let device = linux.storage().connect(&target, 2).expect("it connects").remove(n);
        keeps_a_file(linux, &device, "/mnt");
        device
    };
    let (of_first, of_second) = std::thread::scope(|scope| {
        let other = scope.spawn(|| work(&mut first, 0));
        let of_second = work(&mut second, 1);
        (other.join().expect("it keeps a file"), of_second)
    });
    ours.wait_for_count("link_peers", 2);
    second.succeed("ping -c 1 -w 30 10.0.0.2", LIMIT);
    // Each writes in the background; the second reads what it wrote, and logs each round.
    let writes = format!(
        "(while dd if=/dev/zero of={of_first} bs=1M count=4 oflag=direct 2>/dev/null; do \
         echo >>/tmp/log; done) >/dev/null 2>&1 & until [ -e /tmp/log ]; do sleep 0.1; done"
    );
    load::begin(&mut second, &of_second, 32);
    first.succeed(&writes, LIMIT);
    load::goes_on(&mut second, 3);
    drop(first);
    load::goes_on(&mut second, 3);
    let kernel = load::end(&mut second);
    assert!(!kernel.contains("nvme"), "its connection was disturbed:\n{kernel}");
    second.storage().disconnect(NQN).expect("it disconnects");
    // The first one's connections break, or its controller's keep-alive expires.
    ours.wait_for("idle: ");
}

#[test]
fn a_file_system_survives_a_link_that_loses_frames() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_ours, mut linux) = boot(folder.path(), &["--ram-disk", "48M", "--impair", "loss=1%,seed=5"]);
    // When Soft-RoCE goes back after a loss, it carries out a queued registration again, fails
    // ("lkey not free" in its log), and its queue pair stands still until the host connects
    // again. So the host may not register memory: it needs to only for requests of several pages.
    linux.succeed("rmmod nvme_rdma && modprobe nvme_rdma register_always=N", LIMIT);
    let devices = linux.storage().connect(&target(), 1).expect("it connects");
    let line = "for queue in /sys/block/nvme*/queue; do \
                echo 4 >$queue/max_sectors_kb && echo 2 >$queue/nomerges || exit 1; done";
    linux.succeed(line, LIMIT);
    keeps_a_file(&mut linux, &devices[0], "/mnt");
    linux.storage().disconnect(NQN).expect("it disconnects");
}

#[test]
fn a_linux_that_is_killed_leaves_the_target_to_the_next() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut ours, mut linux) = boot(folder.path(), &["--ram-disk", "48M"]);
    let device = linux.storage().connect(&target(), 1).expect("it connects").remove(0);
    let line = format!("(dd if=/dev/zero of={device} bs=1M count=40 oflag=direct &) ; sleep 0.2");
    linux.run(&line, Duration::from_secs(30));
    drop(linux);
    ours.wait_for_count("link_downed", 1);
    let mut linux = Linux::boot_for_storage(Side::Connect, &link(folder.path()), &LINUX, MTU);
    // The new guest's queue pairs have the numbers of the old one's. Until the target has noticed
    // that those are gone it rejects the connection as stale, as it has to.
    let deadline = Instant::now() + LIMIT;
    let device = loop {
        match linux.storage().connect(&target(), 1) {
            Ok(mut devices) => break devices.remove(0),
            Err(error) => {
                assert!(error.to_string().contains("stale conn") && Instant::now() < deadline, "{error}");
            }
        }
    };
    keeps_a_file(&mut linux, &device, "/mnt");
    linux.storage().disconnect(NQN).expect("it disconnects");
    // The keep-alive of the first one's controller expires.
    ours.wait_for("idle: ");
}

#[test]
fn a_target_that_is_killed_and_started_again_has_lost_nothing_that_was_flushed() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = folder.path().join("disk");
    std::fs::File::create(&disk).and_then(|file| file.set_len(64 << 20)).expect("a disk");
    let disk = disk.to_str().expect("a path");
    // Linux's end of the link stays when the target goes.
    let mut linux = Linux::boot_for_storage(Side::Listen, &link(folder.path()), &LINUX, MTU);
    let start = || {
        let mut ours = Ours::connect(folder.path(), &["storage", "--disk", disk]);
        ours.wait_for("connect: nvme connect -t rdma -a 10.0.0.1 -s 4420 -n");
        ours
    };
    let mut ours = start();
    let options = "--reconnect-delay=1 --ctrl-loss-tmo=300 --keep-alive-tmo=2";
    let device = linux.storage().connect(&Connect { options, ..target() }, 1).expect("it connects").remove(0);
    // Each block has its number in it. What a line of the log names was written and flushed.
    let writer = format!(
        "rm -f /tmp/log; (n=0; while [ $n -lt 8000 ] && [ ! -e /tmp/stop ]; do \
         printf %4096d $n | dd of={device} bs=4096 seek=$n count=1 conv=fsync oflag=direct 2>/dev/null && \
         echo $n >>/tmp/log; n=$((n+1)); done; echo end >>/tmp/log) >/dev/null 2>&1 &"
    );
    linux.succeed(&writer, LIMIT);
    for kill in 1..=2 {
        linux.succeed(&format!("until [ $(wc -l </tmp/log) -ge {} ]; do sleep 0.1; done", kill * 20), LIMIT);
        drop(ours);
        ours = start();
    }
    linux.succeed(
        "last=$(wc -l </tmp/log); until [ $(wc -l </tmp/log) -ge $((last+20)) ]; do sleep 0.1; done",
        LIMIT,
    );
    linux.succeed("touch /tmp/stop; until grep -q end /tmp/log; do sleep 0.1; done", LIMIT);
    let check = format!(
        "echo 3 >/proc/sys/vm/drop_caches; grep -v end /tmp/log | while read n; do \
         dd if={device} bs=4096 skip=$n count=1 iflag=direct 2>/dev/null | (read got; [ \"$got\" = $n ]) || \
         {{ echo block $n is lost; exit 1; }}; done"
    );
    linux.succeed(&check, LIMIT);
    linux.storage().disconnect(NQN).expect("it disconnects");
    ours.wait_for("idle: ");
}

/// Our host uses Linux's target.
fn uses_linux(transport: Transport) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut linux = Linux::listen(&link(folder.path()), &LINUX, MTU).over(transport);
    linux.storage().serve_ram_disk("nqn.2026-01.org.example:linux", "10.0.0.2", 32).expect("it serves");
    let plans = ["requests=1000", "plan=4096,16,50", "plan=131072,4,50"];
    let host = ["storage-client", "10.0.0.2", "nqn=nqn.2026-01.org.example:linux"];
    // The second one finds that the first one has left nothing behind.
    for _ in 0..2 {
        let words = [&host[..], &plans].concat();
        Ours::connect(folder.path(), &transport.chosen_by(&words)).succeed();
    }
}

#[test]
fn our_host_reads_from_linux_target_what_it_wrote() {
    uses_linux(Transport::Roce);
}

#[test]
fn our_host_reads_from_linux_target_what_it_wrote_over_iwarp() {
    uses_linux(Transport::Iwarp);
}

/// fio writes with several jobs at once, in blocks of many sizes, and checks each block that it
/// reads: its place, its number and a checksum.
#[test]
fn fio_finds_what_it_wrote_on_a_ram_disk_and_in_a_file_with_blocks_of_4096_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = folder.path().join("disk");
    std::fs::File::create(&disk).and_then(|file| file.set_len(64 << 20)).expect("a disk");
    let disk = disk.to_str().expect("a path");
    let arguments = ["storage", "--disk", disk, "--ram-disk", "64M", "--namespace", "1:block-size=4096"];
    let mut ours = Ours::start(folder.path(), &arguments);
    ours.wait_for("connect: nvme connect -t rdma -a 10.0.0.1 -s 4420 -n");
    let mut linux = Linux::boot_for_fio(&link(folder.path()), &LINUX, MTU);
    let devices = linux.storage().connect(&target(), 2).expect("it connects");
    for (device, block) in devices.iter().zip([4096, 512]) {
        let name = device.trim_start_matches("/dev/");
        let size = linux.succeed(&format!("cat /sys/block/{name}/queue/logical_block_size"), LIMIT);
        assert_eq!(size.trim(), block.to_string(), "{device}");
        let job = format!(
            "fio --name=verify --filename={device} --rw=randwrite --bsrange={block}-256k \
             --blockalign={block} --ioengine=libaio --iodepth=16 --direct=1 --size=16M --numjobs=3 \
             --offset_increment=20M --verify=crc32c --verify_fatal=1 --verify_dump=0 --randseed=7 \
             --do_verify=1 --verify_backlog=64 --group_reporting"
        );
        let said = linux.succeed(&job, LIMIT);
        assert!(said.contains("err= 0"), "{said}");
    }
    linux.storage().disconnect(NQN).expect("it disconnects");
    ours.wait_for("idle: ");
}
