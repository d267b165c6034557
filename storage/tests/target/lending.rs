//! Disks that lend their memory: nothing is copied, and what is broken leaves the blocks as they
//! were.

use std::sync::Arc;

use block::ram::RamDisk;
use nvme::command::{Command, opcode};
use nvme::sgl::Descriptor;
use storage::initiator::Options;
use storage::testing::End;
use storage::workload::{self, Plan};
use zerocopy::IntoBytes;

use crate::machine::{Machine, NQN, pattern};
use crate::raw::{self, Queue};

const EXTENT: usize = 128 << 10;
const BLOCKS: u32 = (EXTENT / 512) as u32;

#[test]
fn reads_and_writes_of_whole_extents_copy_nothing_and_keep_what_is_written() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[4 << 20]));
    let mut host = machine.host_with(Options { io_queues: 2, ..Options::new(target.address, NQN) }).unwrap();
    let namespace = host.namespaces()[0];
    for bytes in [EXTENT, 2 * EXTENT] {
        let plan =
            Plan { bytes, depth: 2, requests: 300, writes: 50, span: 0, verifies: true, seed: bytes as u64 };
        let done = workload::run(&mut host, &machine.platform(), &namespace, &plan, &mut |_| ()).unwrap();
        assert!(done.reads > 50 && done.writes > 50);
    }
    // Reads need no whole extents.
    let region = machine.region(&host, 1 << 20);
    for (block, len) in [(0, 512), (3, 4096), (BLOCKS as u64 - 1, 1024), (1, 1 << 20)] {
        host.read(1, block, (len / 512) as u32, (&region, 0, len)).unwrap();
    }
    assert_eq!(target.control.statistics().copied, 0);
    // Data in a capsule, and parts of extents, are copied.
    host.write(1, 3, 8, (&region, 0, 4096)).unwrap();
    assert_eq!(target.control.statistics().copied, 4096);
    host.write(1, 3, 32, (&region, 0, 16 << 10)).unwrap();
    assert_eq!(target.control.statistics().copied, 20 << 10);
    drop(region);
    machine.end(host, target);
}

#[test]
fn requests_of_all_sizes_keep_what_is_written() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[2 << 20]));
    let mut host = machine.host(&target);
    let namespace = host.namespaces()[0];
    for (bytes, depth) in [(512, 64), (4096, 32), (20 << 10, 16), (EXTENT, 12), (192 << 10, 8)] {
        let plan = Plan { bytes, depth, requests: 600, writes: 60, span: 0, verifies: true, seed: 5 };
        workload::run(&mut host, &machine.platform(), &namespace, &plan, &mut |_| ()).unwrap();
    }
    machine.end(host, target);
}

#[test]
fn a_disk_that_has_grown_lends_its_new_memory() {
    let machine = Machine::new();
    let disk = Arc::new(RamDisk::new(&machine.platform(), 512, u64::from(BLOCKS)).unwrap());
    let target = machine.target(vec![disk.clone()]);
    disk.resize(16 * u64::from(BLOCKS)).unwrap();
    let mut host = machine.host(&target);
    // The target may not have noticed it before.
    let region = machine.region(&host, EXTENT);
    let end = 15 * u64::from(BLOCKS);
    while host.read(1, end, 1, (&region, 0, 512)).is_err() {}
    let before = target.control.statistics().copied;
    for extent in 0..16 {
        host.write(1, extent * u64::from(BLOCKS), BLOCKS, (&region, 0, EXTENT)).unwrap();
        host.read(1, extent * u64::from(BLOCKS), BLOCKS, (&region, 0, EXTENT)).unwrap();
    }
    assert_eq!(target.control.statistics().copied, before);
    drop(region);
    machine.end(host, target);
}

/// A Write whose data cannot be fetched.
fn broken(queue: &mut Queue) {
    let sgl = Descriptor::keyed(0x1000, EXTENT as u32, 0x7777_7777, false);
    queue.0.send(Command::blocks(opcode::io::WRITE, 1, 0, BLOCKS).with_sgl(sgl).with_cid(9).as_bytes());
    assert_eq!(queue.0.ended(), Some(End::Disconnected));
}

#[test]
fn a_write_that_breaks_leaves_the_old_blocks_and_gives_its_memory_back() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[1 << 20]));
    let mut host = machine.host(&target);
    let region = machine.region(&host, 2 * EXTENT);
    let old = pattern(1, EXTENT);
    region.buffer().write(0, &old).unwrap();
    host.write(1, 0, BLOCKS, (&region, 0, EXTENT)).unwrap();
    // The disk lends three extents to writers at a time.
    for _ in 0..5 {
        let (_admin, mut io) = raw::controller(&machine, &target);
        broken(&mut io);
    }
    let mut now = vec![0; EXTENT];
    host.read(1, 0, BLOCKS, (&region, EXTENT, EXTENT)).unwrap();
    region.buffer().read(EXTENT, &mut now).unwrap();
    assert!(now == old, "the old contents");
    host.write(1, 0, BLOCKS, (&region, 0, EXTENT)).unwrap();
    assert_eq!(target.control.statistics().copied, 0, "the memory came back");
    drop(region);
    machine.end(host, target);
}

#[test]
fn a_host_that_keeps_what_it_was_lent_keeps_no_other_from_the_disk() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[2 << 20]));
    let (admin, mut io) = raw::controller(&machine, &target);
    // It takes none of these responses, so the target keeps the memory: all that it lends.
    io.0.stop_receiving();
    let sgl = io.0.keyed(0, EXTENT);
    for n in 0..64_u64 {
        let done = target.control.statistics().reads;
        let read = Command::blocks(opcode::io::READ, 1, n % 16 * u64::from(BLOCKS), BLOCKS);
        io.0.send(read.with_sgl(sgl).with_cid(0x100 + n as u16).as_bytes());
        target.wait_for(|counted| counted.reads > done);
    }
    // The Receives of the raw queue are used up. Now it keeps memory.
    for n in 0..16_u64 {
        let done = target.control.statistics().reads;
        let read = Command::blocks(opcode::io::READ, 1, n * u64::from(BLOCKS), BLOCKS);
        io.0.send(read.with_sgl(sgl).with_cid(0x200 + n as u16).as_bytes());
        target.wait_for(|counted| counted.reads > done);
    }
    let copied = target.control.statistics().copied;
    assert!(copied >= 7 * EXTENT as u64, "nine extents are lent at a time: {copied}");
    let mut host = machine.host(&target);
    let namespace = host.namespaces()[0];
    let plan = Plan { bytes: EXTENT, depth: 8, requests: 100, writes: 50, span: 0, verifies: true, seed: 3 };
    workload::run(&mut host, &machine.platform(), &namespace, &plan, &mut |_| ()).unwrap();
    assert_eq!(target.control.statistics().broken, 0, "both are connected");
    drop((admin, io));
    machine.end(host, target);
}
