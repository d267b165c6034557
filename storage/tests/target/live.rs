//! What an operator changes while hosts work: namespaces come, go and change their size, hosts are
//! disconnected.

use std::sync::Arc;

use block::Disk;
use block::ram::RamDisk;
use block::simulated::SimulatedDisk;
use nvme::Status;
use nvme::async_event::Event;
use nvme::feature::AsyncEvents;
use nvme::identify::{self, Identify, cns};
use nvme::log::{self, ChangedNamespaces};
use storage::initiator::{Failure, Operation, Request};
use storage::target::{Config, Export, NamespaceState, Refusal, TargetState};
use storage::testing::End;
use zerocopy::FromBytes;

use crate::disks::disk;
use crate::listening::Listening;
use crate::machine::{Machine, NQN, Running};
use crate::raw::{HOST, controller, serves};

fn ram(machine: &Machine, blocks: u64) -> Arc<RamDisk> {
    Arc::new(RamDisk::new(&machine.platform(), 512, blocks).unwrap())
}

fn export(disk: Arc<dyn Disk>, number: u8) -> Export {
    Export::new(disk, [number; 16])
}

/// A target that takes disks of all kinds later.
fn target(machine: &Machine, disks: Vec<Arc<dyn Disk>>) -> Running {
    machine.target_with(Config { grows: true, ..machine.config(disks) })
}

impl Listening {
    /// Waits for the event; returns the namespaces that have changed.
    fn changes(&mut self) -> Vec<u32> {
        assert_eq!(self.event(), Event::NAMESPACE_ATTRIBUTE_CHANGED);
        let bytes = self.log(log::id::CHANGED_NAMESPACES, 0, false, 0, 4096);
        let list = ChangedNamespaces::read_from_bytes(&bytes[..]).expect("a page");
        list.iter().collect()
    }

    fn active(&mut self) -> Vec<u32> {
        let bytes = self.read(Identify { cns: cns::ACTIVE_LIST, cntid: 0, nsid: 0 }.command(), identify::LEN);
        let words = bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        words.take_while(|&nsid| nsid != 0).collect()
    }

    fn blocks(&mut self, nsid: u32) -> u64 {
        let bytes = self.read(Identify { cns: cns::NAMESPACE, cntid: 0, nsid }.command(), identify::LEN);
        u64::from_le_bytes(bytes[..8].try_into().unwrap())
    }
}

#[test]
fn hosts_hear_of_namespaces_that_come_grow_shrink_and_go() {
    let machine = Machine::new();
    let first = ram(&machine, 64);
    let target = target(&machine, vec![first.clone()]);
    let (admin, io) = controller(&machine, &target);
    let mut host = Listening::new(admin, AsyncEvents::NAMESPACE_ATTRIBUTE);
    assert_eq!(host.active(), [1]);

    let second = ram(&machine, 128);
    assert_eq!(target.control.add(export(second.clone(), 2)), Ok(2));
    assert_eq!((host.changes(), host.active(), host.blocks(2)), (vec![2], vec![1, 2], 128));

    second.resize(4096).unwrap();
    assert_eq!((host.changes(), host.blocks(2)), (vec![2], 4096));
    second.resize(32).unwrap();
    assert_eq!((host.changes(), host.blocks(2)), (vec![2], 32));

    assert_eq!(target.control.remove(2), Ok(()));
    assert_eq!((host.changes(), host.active(), host.blocks(2)), (vec![2], vec![1], 0));
    // Another identifier than the one that has just become free.
    assert_eq!(target.control.add(export(second, 2)), Ok(3));
    assert_eq!((host.changes(), host.active()), (vec![3], vec![1, 3]));
    drop((host, io));
    serves(&machine, &target);
    machine.stop(target);
}

#[test]
fn a_namespace_that_was_removed_takes_no_command_and_is_released_after_those_that_it_has() {
    let machine = Machine::new();
    let slow = disk(1);
    let target = target(&machine, vec![disk(2), slow.clone()]);
    let mut host = machine.host(&target);
    let region = machine.region(&host, 4096);
    let request = |operation, data| Request { operation, namespace: 2, block: 0, blocks: 8, data };
    let write = request(Operation::Write { fua: false }, Some((&region, 0, 4096)));
    slow.stall();
    host.submit(0, &write, 1).unwrap();
    while slow.under_way() == 0 {
        std::thread::yield_now();
    }
    target.control.remove(2).unwrap();
    assert_eq!(target.control.remove(2), Err(Refusal::NoNamespace), "it leaves already");
    let leaving = |target: &Running| {
        let namespaces = target.control.overview().unwrap().namespaces;
        namespaces.iter().map(|namespace| (namespace.nsid, namespace.state)).collect::<Vec<_>>()
    };
    assert_eq!(leaving(&target), [(1, NamespaceState::Serving), (2, NamespaceState::Leaving)]);
    let mut refused = None;
    host.submit(0, &write, 2).unwrap();
    while refused.is_none() {
        let seen = host.seen();
        host.poll(&mut |token, status, _| refused = Some((token, status))).unwrap();
        host.wait(seen, machine.platform().now() + std::time::Duration::from_millis(100));
    }
    assert_eq!(refused, Some((2, Status::INVALID_NAMESPACE.dnr())));
    assert_eq!(slow.under_way(), 1);
    slow.release();
    let mut done = None;
    while done.is_none() {
        let seen = host.seen();
        host.poll(&mut |token, status, _| done = Some((token, status))).unwrap();
        host.wait(seen, machine.platform().now() + std::time::Duration::from_millis(100));
    }
    assert_eq!(done, Some((1, Status::SUCCESS)), "what it had is carried out");
    while leaving(&target).len() > 1 {
        std::thread::yield_now();
    }
    // Linux would let fsync succeed for Invalid Namespace.
    let refused = Failure::Command("Flush", Status::INTERNAL_ERROR.dnr(), 0);
    assert_eq!(host.flush(2), Err(refused));
    host.flush(1).unwrap();
    assert_eq!(Arc::strong_count(&slow), 1, "the target has released it");
    drop(region);
    machine.end(host, target);
}

#[test]
fn what_cannot_be_added_or_removed_changes_nothing() {
    let machine = Machine::new();
    let target = machine.target(vec![ram(&machine, 64)]);
    let control = &target.control;
    assert_eq!(control.add(export(ram(&machine, 64), 1)), Err(Refusal::UuidInUse));
    assert_eq!(control.add(export(disk(1), 2)), Err(Refusal::Cache), "hosts do not flush");
    let small = |most_bytes| {
        let geometry = block::Geometry { most_bytes, has_volatile_cache: false, ..disk(1).geometry() };
        Arc::new(SimulatedDisk::new(geometry, 1))
    };
    assert_eq!(control.add(export(small(4096), 2)), Err(Refusal::Transfer));
    let empty = control.add(export(ram(&machine, 0), 2));
    assert!(matches!(empty, Err(Refusal::Disk(_))), "{empty:?}");
    for nsid in [0, 2, 64, 65, u32::MAX] {
        assert_eq!(control.remove(nsid), Err(Refusal::NoNamespace), "{nsid}");
    }
    assert_eq!(control.disconnect(HOST), Err(Refusal::NoHost));
    let overview = control.overview().unwrap();
    assert_eq!((overview.namespaces.len(), overview.state), (1, TargetState::Serving));
    serves(&machine, &target);
    let control = target.control.clone();
    machine.stop(target);
    assert_eq!(control.overview(), Err(Refusal::Ended));
}

#[test]
fn there_are_64_namespaces_at_most_and_a_place_is_used_again_last_of_all() {
    let machine = Machine::new();
    // Each thread has memory for each namespace, and that of several is more than the machine has.
    let disks = vec![ram(&machine, 8) as Arc<dyn Disk>];
    let target = machine.target_with(Config { grows: true, workers: 1, ..machine.config(disks) });
    let add = |number| target.control.add(export(ram(&machine, 8), number));
    for nsid in 2..=64 {
        assert_eq!(add(nsid), Ok(nsid.into()));
    }
    assert_eq!(add(65), Err(Refusal::NoPlace));
    for nsid in [40, 7] {
        target.control.remove(nsid).unwrap();
        while target.control.overview().unwrap().namespaces.iter().any(|one| one.nsid == nsid) {
            std::thread::yield_now();
        }
    }
    assert_eq!((add(65), add(66), add(67)), (Ok(40), Ok(7), Err(Refusal::NoPlace)));
    machine.stop(target);
}

#[test]
fn an_operator_sees_hosts_and_disconnects_one() {
    let machine = Machine::new();
    let target = target(&machine, vec![ram(&machine, 64)]);
    let (mut admin, mut io) = controller(&machine, &target);
    let mut other = machine.host(&target);
    let overview = target.control.overview().unwrap();
    assert_eq!(overview.nqn, NQN);
    let raw = overview.controllers.iter().find(|one| one.host == HOST).expect("the raw host");
    assert_eq!((raw.host_id, raw.queues.len()), ([7; 16], 2));
    assert_eq!(
        raw.queues.iter().map(|queue| (queue.id, queue.entries)).collect::<Vec<_>>(),
        [(0, 32), (1, 32)]
    );
    assert_eq!(overview.controllers.len(), 2);

    other.flush(1).unwrap();
    let region = machine.region(&other, 4096);
    other.write(1, 0, 8, (&region, 0, 4096)).unwrap();
    drop(region);
    let metrics = target.control.metrics().unwrap();
    let [namespace] = &metrics.namespaces[..] else { panic!("{metrics:?}") };
    let [_, write, _, flush, ..] = namespace.counted.operations;
    assert_eq!((write.done.requests, write.done.bytes, flush.done.requests), (1, 4096, 1));
    assert_eq!(write.latency.iter().sum::<u64>(), 1);
    let host = metrics.hosts.iter().find(|host| host.nqn != HOST).expect("the other host");
    assert_eq!((host.carried.writes.bytes, host.carried.others.requests), (4096, 1));

    assert_eq!(target.control.disconnect(HOST), Ok(1));
    assert_eq!((admin.0.ended(), io.0.ended()), (Some(End::Disconnected), Some(End::Disconnected)));
    other.flush(1).unwrap();
    drop((admin, io));
    machine.end(other, target);
}

#[test]
fn a_target_that_is_drained_serves_nobody_until_it_goes_on() {
    let machine = Machine::new();
    let target = target(&machine, vec![ram(&machine, 64)]);
    let (mut admin, mut io) = controller(&machine, &target);
    target.control.drain().unwrap();
    assert_eq!((admin.0.ended(), io.0.ended()), (Some(End::Disconnected), Some(End::Disconnected)));
    while target.control.overview().unwrap().state != TargetState::Drained {
        std::thread::yield_now();
    }
    let options = storage::initiator::Options::new(target.address, NQN);
    assert!(matches!(machine.host_with(options), Err(Failure::Refused(_))));
    let metrics = target.control.metrics().unwrap();
    assert_eq!(metrics.refused.iter().map(|(_, count)| count).sum::<u64>(), 1);
    target.control.resume().unwrap();
    serves(&machine, &target);
    machine.stop(target);
}

#[test]
fn a_disk_for_some_hosts_is_seen_by_no_other_one() {
    let machine = Machine::new();
    let mut config = Config { grows: true, ..machine.config(vec![ram(&machine, 64), ram(&machine, 64)]) };
    let other = String::from("nqn.2026-01.org.ferrovia:other");
    config.disks[0].hosts = Some(vec![other.clone()]);
    // Contradictions.
    for (hosts, allowed) in
        [(vec![], None), (vec![other.clone()], Some(vec![HOST.into()])), (vec!["no NQN".into()], None)]
    {
        let mut wrong = Config { allowed, ..config.clone() };
        wrong.disks[1].hosts = Some(hosts);
        assert!(machine.refuses(wrong));
    }
    let target = machine.target_with(config);
    let (admin, mut io) = controller(&machine, &target);
    let mut host = Listening::new(admin, AsyncEvents::NAMESPACE_ATTRIBUTE);
    assert_eq!((host.active(), host.blocks(1), host.blocks(2)), (vec![2], 0, 64));
    let flush = |nsid: u32| nvme::command::Command::flush(nsid);
    assert_eq!(io.status(flush(1)), Status::INVALID_NAMESPACE.dnr());
    assert_eq!(io.status(flush(2)), Status::SUCCESS);
    // One that comes while hosts are there, for this host and another one; and one that is not.
    let of = |number, hosts: &[&str]| {
        let hosts = Some(hosts.iter().map(|nqn| nqn.to_string()).collect());
        Export { hosts, ..export(ram(&machine, 64), number) }
    };
    assert_eq!(target.control.add(of(7, &[&other])), Ok(3));
    assert_eq!(target.control.add(of(8, &[&other, HOST])), Ok(4));
    assert_eq!((host.changes(), host.active()), (vec![4], vec![2, 4]));
    assert_eq!(io.status(flush(3)), Status::INVALID_NAMESPACE.dnr());
    assert_eq!(io.status(flush(4)), Status::SUCCESS);
    // The other one sees its own.
    let options =
        storage::initiator::Options { host: other, ..storage::initiator::Options::new(target.address, NQN) };
    let other = machine.host_with(options).unwrap();
    let seen: Vec<u32> = other.namespaces().iter().map(|namespace| namespace.id).collect();
    assert_eq!(seen, [1, 2, 3, 4]);
    drop((host, io));
    machine.end(other, target);
}
