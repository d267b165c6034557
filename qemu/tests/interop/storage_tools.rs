//! The storage tests' own tools, without anything of ours between them: a Linux guest uses the RAM
//! disk of another by NVMe over RDMA. If this fails, the guest or its tools are at fault, and not
//! our target.

use qemu::linux::Side;
use qemu::linux::storage::{Connect, Plan, Way};

use crate::linux::Linux;
use crate::ours::link;
use crate::{LIMIT, LINUX, MTU};

const NQN: &str = "nqn.2026-01.org.example:linux";
/// The size of the disk.
const MIB: u32 = 128;

#[test]
fn the_tests_own_tools_for_storage_work_between_two_linux_guests() {
    let folder = tempfile::tempdir().expect("a folder");
    let link = &link(folder.path());
    let mut target = Linux::boot_in_our_place(link, &["10.0.0.1/24"], MTU);
    let mut host = Linux::boot_for_storage(Side::Connect, link, &LINUX, MTU);
    target.storage().serve_ram_disk(NQN, "10.0.0.1", MIB).expect("Linux serves a RAM disk");
    let host = host.storage();
    let connect = Connect::to(NQN, "10.0.0.1");

    // "Connect Invalid Parameters", and Do Not Retry.
    assert_eq!(host.refused(&Connect { nqn: "nqn.unknown", ..connect }).expect("a status"), 0x4182);
    let devices = host.connect(&connect, 1).expect("it connects");
    let [device] = &devices[..] else { panic!("one namespace, not {devices:?}") };
    host.make_file_system(device).expect("mkfs");
    host.mount(device, "/mnt").expect("mount");
    host.succeed("dd if=/dev/urandom of=/mnt/file bs=1M count=16 conv=fsync", LIMIT).expect("it is written");
    let sum = host.checksum("/mnt/file").expect("sha256sum");
    host.unmount("/mnt").expect("umount");
    host.check_file_system(device).expect("the file system is sound");
    host.disconnect(NQN).expect("it disconnects");

    let devices = host.connect(&connect, 1).expect("it connects again");
    let [device] = &devices[..] else { panic!("one namespace, not {devices:?}") };
    host.drop_caches().expect("caches are dropped");
    host.mount(device, "/mnt").expect("mount");
    assert_eq!(host.checksum("/mnt/file").expect("sha256sum"), sum, "what was written is read");
    host.unmount("/mnt").expect("umount");
    for way in [Way::Read, Way::Write] {
        let plan = Plan { way, block: 4096, depth: 4, seconds: 1, seed: 1 };
        let load = host.load(device, &plan).expect("it can be measured");
        assert!(load.blocks > 0 && load.p50_us <= load.p99_us, "{load:?}");
        assert!(!load.cpu_time.vcpu.is_zero(), "{load:?}");
    }
    host.disconnect(NQN).expect("it disconnects");
}
