//! Disks that complete in any order, fail, stall and vanish, under a workload that checks what it
//! reads.

use std::sync::Arc;
use std::time::Duration;

use block::simulated::SimulatedDisk;
use block::{Disk, Fault, Geometry};
use nvme::private_data::RejectCode;
use storage::initiator::{Failure, Operation, Options, Request};
use storage::target::Config;
use storage::workload::{self, Plan, Trouble};

use crate::machine::{Machine, NQN};

pub fn disk(seed: u64) -> Arc<SimulatedDisk> {
    Arc::new(SimulatedDisk::new(
        Geometry {
            block_size: 512,
            blocks: 4096,
            is_read_only: false,
            has_volatile_cache: true,
            discard: true,
            write_zeroes: true,
            most_bytes: 1 << 20,
            most_pieces: 8,
            queue_depth: 7,
        },
        seed,
    ))
}

const PLAN: Plan =
    Plan { bytes: 4096, depth: 20, requests: 3_000, writes: 40, span: 0, verifies: true, seed: 7 };

#[test]
fn disks_that_complete_in_any_order_keep_what_is_written() {
    let machine = Machine::new();
    let disks: [Arc<dyn Disk>; 2] = [disk(1), disk(2)];
    let target = machine.target(disks.to_vec());
    let options = Options { io_queues: 2, ..Options::new(target.address, NQN) };
    let mut host = machine.host_with(options).unwrap();
    for (namespace, bytes) in [(0, 4096), (1, 512), (0, 20 << 10)] {
        let namespace = host.namespaces()[namespace];
        let plan = Plan { bytes, ..PLAN };
        let done = workload::run(&mut host, &machine.platform(), &namespace, &plan, &mut |_| ()).unwrap();
        assert_eq!(done.reads + done.writes, PLAN.requests);
        assert!(done.reads > 100 && done.writes > 100);
    }
    machine.end(host, target);
}

#[test]
fn a_disk_that_fails_fails_its_requests_and_a_disk_that_is_gone_all_of_them() {
    let machine = Machine::new();
    let (bad, good) = (disk(1), disk(2));
    let disks: [Arc<dyn Disk>; 2] = [bad.clone(), good];
    let target = machine.target(disks.to_vec());
    let mut host = machine.host(&target);
    let [first, second] = [host.namespaces()[0], host.namespaces()[1]];
    let platform = machine.platform();
    let one = Plan { requests: 1, writes: 0, span: 512 * 8, depth: 1, ..PLAN };
    bad.fail(3..4, Fault::Media);
    let failed = workload::run(&mut host, &platform, &first, &one, &mut |_| ());
    assert_eq!(failed, Err(Trouble::Failed(0, nvme::Status::UNRECOVERED_READ.dnr())));
    let write = Plan { writes: 100, ..one };
    let failed = workload::run(&mut host, &platform, &first, &write, &mut |_| ());
    assert_eq!(failed, Err(Trouble::Failed(0, nvme::Status::WRITE_FAULT)));
    // A Compare has the disk read; the others have it change something, with data or without.
    let region = machine.region(&host, 512);
    let request = |operation, data| Request { operation, namespace: 1, block: 3, blocks: 1, data };
    let compare = request(Operation::Compare, Some((&region, 0, 512)));
    let status = nvme::Status::UNRECOVERED_READ.dnr();
    assert_eq!(host.carry_out("Compare", &compare), Err(Failure::Command("Compare", status, 0)));
    let zeroes = request(Operation::WriteZeroes, None);
    let status = nvme::Status::WRITE_FAULT;
    assert_eq!(host.carry_out("Write Zeroes", &zeroes), Err(Failure::Command("Write Zeroes", status, 0)));
    drop(region);
    bad.fail_flushes(Some(Fault::Media));
    assert_eq!(host.flush(1), Err(Failure::Command("Flush", status, 0)));
    bad.repair();
    host.flush(1).unwrap();
    workload::run(&mut host, &platform, &first, &write, &mut |_| ()).unwrap();
    bad.remove();
    let failed = workload::run(&mut host, &platform, &first, &one, &mut |_| ());
    assert!(matches!(failed, Err(Trouble::Failed(0, _))), "{failed:?}");
    workload::run(&mut host, &platform, &second, &PLAN, &mut |_| ()).unwrap();
    assert_eq!(target.control.statistics().errors, 6);
    machine.end(host, target);
}

/// A disk that its owner makes smaller and larger. Hosts that ask again find its new size.
#[test]
fn a_disk_that_shrinks_fails_requests_behind_its_end_and_no_others() {
    let machine = Machine::new();
    let shrinking = disk(1);
    let target = machine.target(vec![shrinking.clone() as Arc<dyn Disk>]);
    let mut host = machine.host(&target);
    let region = machine.region(&host, 512);
    let read = |block| {
        let data = Some((&region, 0, 512));
        Request { operation: Operation::Read, namespace: 1, block, blocks: 1, data }
    };
    let behind = Err(Failure::Command("Read", nvme::Status::LBA_OUT_OF_RANGE.dnr(), 0));
    shrinking.resize(2000);
    host.carry_out("Read", &read(1999)).unwrap();
    assert_eq!(host.carry_out("Read", &read(2000)), behind);
    shrinking.resize(8192);
    // The target sees that at the next tick of its timer.
    while host.carry_out("Read", &read(8191)) == behind {}
    host.carry_out("Read", &read(8191)).unwrap();
    assert_eq!(host.carry_out("Read", &read(8192)), behind);
    let namespace = host.namespaces()[0];
    workload::run(&mut host, &machine.platform(), &namespace, &PLAN, &mut |_| ()).unwrap();
    drop(region);
    machine.end(host, target);
}

#[test]
fn a_disk_that_stalls_stops_neither_the_others_nor_the_end_of_its_hosts() {
    let machine = Machine::new();
    let (stalled, good) = (disk(1), disk(2));
    let disks: [Arc<dyn Disk>; 2] = [stalled.clone(), good];
    let target = machine.target(disks.to_vec());
    stalled.stall();
    // This host fills the disk's queue and its namespace's memory, and vanishes.
    let mut first = machine.host(&target);
    let region = machine.region(&first, 1 << 20);
    for token in 0..100 {
        let request = Request {
            operation: Operation::Read,
            namespace: 1,
            block: 0,
            blocks: 2048,
            data: Some((&region, 0, 1 << 20)),
        };
        first.submit(0, &request, token).unwrap();
    }
    let mut second = machine.host(&target);
    let namespace = second.namespaces()[1];
    workload::run(&mut second, &machine.platform(), &namespace, &PLAN, &mut |_| ()).unwrap();
    drop(region);
    drop(first);
    target.wait_for(|counted| counted.connections == 2);
    workload::run(&mut second, &machine.platform(), &namespace, &PLAN, &mut |_| ()).unwrap();
    stalled.release();
    let namespace = second.namespaces()[0];
    workload::run(&mut second, &machine.platform(), &namespace, &PLAN, &mut |_| ()).unwrap();
    machine.end(second, target);
}

#[test]
fn a_workload_needs_no_target_for_a_disk_of_its_own() {
    let (machine, disk) = (Machine::new(), disk(3));
    let run = |plan: &Plan, time| workload::run_on_disk(&*disk, &machine.platform(), plan, time, &mut |_| ());
    let depth = disk.geometry().queue_depth;
    let plan = Plan { depth, ..PLAN };
    let done = run(&plan, None).unwrap();
    assert_eq!(done.reads + done.writes, plan.requests);
    assert!(done.reads > 100 && done.writes > 100);
    let limit = Duration::from_millis(20);
    let done = run(&Plan { requests: u64::MAX, ..plan }, Some(limit)).unwrap();
    assert!(done.reads + done.writes > 0 && done.time >= limit);
    for wrong in
        [Plan { depth: depth + 1, ..plan }, Plan { bytes: 2 << 20, ..plan }, Plan { bytes: 100, ..plan }]
    {
        assert!(matches!(run(&wrong, None), Err(Trouble::Plan(_))), "{wrong:?}");
    }
    disk.fail(3..4, Fault::Media);
    let one = Plan { requests: 1, span: 4096, depth: 1, ..plan };
    assert_eq!(run(&one, None), Err(Trouble::Fault(0, Fault::Media)));
}

#[test]
fn a_workload_ends_when_its_time_is_over() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[1 << 20]));
    let mut host = machine.host(&target);
    let (namespace, limit) = (host.namespaces()[0], Duration::from_millis(20));
    let plan = Plan { requests: u64::MAX, ..PLAN };
    let platform = machine.platform();
    let done = workload::run_for(&mut host, &platform, &namespace, &plan, Some(limit), &mut |_| ()).unwrap();
    assert!(done.reads + done.writes > 0 && done.time >= limit);
    machine.end(host, target);
}

/// Its requests may still be carried out, so no host gets a response to them.
#[test]
fn a_disk_that_does_not_answer_is_given_up_until_it_has_ended_its_requests() {
    let machine = Machine::new();
    let (silent, good) = (disk(1), disk(2));
    let disks: [Arc<dyn Disk>; 2] = [silent.clone(), good];
    let config = Config {
        disk_timeout: Duration::from_millis(300),
        // What queues of 32 and 16 entries take twice, and one more.
        commands: 2 * (32 + 16) + 1,
        depth: 16,
        workers: 1,
        ..machine.config(disks.to_vec())
    };
    let target = machine.target_with(config);
    let options = Options { depth: 16, ..Options::new(target.address, NQN) };
    let mut host = machine.host_with(options.clone()).unwrap();
    let region = machine.region(&host, 1 << 20);
    silent.stall();
    for token in 0..15 {
        let request = Request {
            operation: Operation::Write { fua: false },
            namespace: 1,
            block: 0,
            blocks: 2048,
            data: Some((&region, 0, 1 << 20)),
        };
        host.submit(0, &request, token).unwrap();
    }
    let end = loop {
        let seen = host.seen();
        match host.poll(&mut |token, status, _| panic!("request {token} was answered: {status:?}")) {
            Ok(_) => host.wait(seen, machine.platform().now() + Duration::from_secs(1)),
            Err(failure) => break failure,
        }
    };
    assert_eq!(end, Failure::Disconnected);
    drop(region);
    drop(host);

    // The host had memory for one of the commands. Its entry is promised to no other queue.
    assert_eq!(silent.under_way(), 1);
    let refused = machine.host_with(options.clone()).err();
    assert_eq!(refused, Some(Failure::Refused(RejectCode::NoResources as u16)));
    silent.release();
    let mut host = machine.host_with(options).unwrap();
    assert_eq!(silent.under_way(), 0);
    assert_eq!(host.namespaces().iter().map(|namespace| namespace.id).collect::<Vec<_>>(), [1, 2]);
    // It serves again at the next tick of the target's timer.
    while let Err(failure) = host.flush(1) {
        assert_eq!(failure, Failure::Command("Flush", nvme::Status::NS_NOT_READY, 0));
    }
    for namespace in [host.namespaces()[0], host.namespaces()[1]] {
        let plan = Plan { depth: 8, requests: 1_000, ..PLAN };
        workload::run(&mut host, &machine.platform(), &namespace, &plan, &mut |_| ()).unwrap();
    }
    machine.end(host, target);
}
