//! What a proper host does.

use crate::machine::{Machine, pattern};
use storage::initiator::{Operation, Request};

#[test]
fn what_is_written_is_read_again() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[8 << 20, 1 << 20]));
    let mut host = machine.host(&target);
    assert_eq!(host.namespaces().len(), 2);
    let first = host.namespaces()[0];
    assert_eq!((first.id, u64::from(first.block_size) * first.blocks), (1, 8 << 20));
    let region = machine.region(&host, 2 << 20);
    // In the capsule, a small chunk, some large ones, the most.
    let sizes = [512, 4096, 8192, 12 << 10, 64 << 10, 128 << 10, 200 << 10, 1 << 20];
    for (seed, bytes) in (1..).zip(sizes) {
        let (blocks, block) = (bytes as u32 / first.block_size, seed * 3);
        region.buffer().write(0, &pattern(seed, bytes)).unwrap();
        host.write(1, block, blocks, (&region, 0, bytes)).unwrap();
        host.read(1, block, blocks, (&region, 1 << 20, bytes)).unwrap();
        let mut read = vec![0; bytes];
        region.buffer().read(1 << 20, &mut read).unwrap();
        assert!(read == pattern(seed, bytes), "{bytes} bytes");
    }
    host.flush(1).unwrap();
    let deallocate =
        Request { operation: Operation::WriteZeroes, namespace: 1, block: 0, blocks: 64, data: None };
    host.carry_out("Write Zeroes", &deallocate).unwrap();
    host.read(1, 0, 64, (&region, 0, 64 * first.block_size as usize)).unwrap();
    let mut read = vec![1; 64 * first.block_size as usize];
    region.buffer().read(0, &mut read).unwrap();
    assert!(read.iter().all(|&byte| byte == 0));
    drop(region);
    machine.end(host, target);
}

#[test]
fn many_requests_at_once_complete_once_each() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[16 << 20]));
    let mut host = machine.host(&target);
    let region = machine.region(&host, 4096 * 128);
    let (mut sent, mut done, total) = (0_u64, Vec::new(), 5_000);
    while done.len() < total {
        while sent < total as u64 {
            let (place, write) = ((sent % 100) as usize, sent % 3 == 0);
            let operation = if write { Operation::Write { fua: false } } else { Operation::Read };
            let request = Request {
                operation,
                namespace: 1,
                block: sent * 8 % 32_000,
                blocks: 4096 / host.namespaces()[0].block_size,
                data: Some((&region, place * 4096, 4096)),
            };
            match host.submit(0, &request, sent) {
                Ok(()) => sent += 1,
                Err(storage::initiator::NotSent::Full) => break,
                Err(error) => panic!("{error:?}"),
            }
        }
        let seen = host.seen();
        let count = host.poll(&mut |token, status, _| {
            assert!(status.is_success(), "{status}");
            done.push(token);
        });
        if count.unwrap() == 0 {
            host.wait(seen, machine.platform().now() + std::time::Duration::from_secs(1));
        }
    }
    done.sort_unstable();
    assert!(done.iter().copied().eq(0..total as u64));
    let counted = target.control.statistics();
    assert_eq!(counted.reads + counted.writes, total as u64);
    drop(region);
    machine.end(host, target);
}

#[test]
fn a_compare_finds_differences_and_a_deallocate_takes_many_ranges() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[8 << 20]));
    let mut host = machine.host(&target);
    assert!(host.limits().compare && host.limits().deallocate);
    let region = machine.region(&host, 1 << 20);
    for bytes in [512, 8192, 512 << 10] {
        let blocks = bytes as u32 / 512;
        region.buffer().write(0, &pattern(5, bytes)).unwrap();
        host.write(1, 100, blocks, (&region, 0, bytes)).unwrap();
        let compare = |block| Request {
            operation: Operation::Compare,
            namespace: 1,
            block,
            blocks,
            data: Some((&region, 0, bytes)),
        };
        host.carry_out("Compare", &compare(100)).unwrap();
        region.buffer().write(bytes - 1, &[!pattern(5, bytes)[bytes - 1]]).unwrap();
        let failed = host.carry_out("Compare", &compare(100));
        let status = nvme::Status::COMPARE_FAILURE.dnr();
        assert_eq!(failed, Err(storage::initiator::Failure::Command("Compare", status, 0)));
    }
    // Every other block of 512, in as many ranges as a command has, in room for more.
    region.buffer().write(0, &pattern(9, 256 << 10)).unwrap();
    host.write(1, 0, 512, (&region, 0, 256 << 10)).unwrap();
    for (n, block) in (0..512).step_by(2).enumerate() {
        let range = nvme::dsm::Range::new(block, u32::from(n % 7 != 0));
        region.buffer().write(n * 16, zerocopy::IntoBytes::as_bytes(&range)).unwrap();
    }
    let operation = Operation::Deallocate;
    let request = Request { operation, namespace: 1, block: 0, blocks: 256, data: Some((&region, 0, 4096)) };
    host.carry_out("Dataset Management", &request).unwrap();
    host.read(1, 0, 512, (&region, 0, 256 << 10)).unwrap();
    let mut read = vec![0; 256 << 10];
    region.buffer().read(0, &mut read).unwrap();
    for (n, (block, was)) in read.chunks(512).zip(pattern(9, 256 << 10).chunks(512)).enumerate() {
        // A disk may keep what is deallocated.
        let may_be_gone = n % 2 == 0 && n / 2 % 7 != 0;
        assert!(block == was || may_be_gone && block == [0; 512], "block {n}");
    }
    // A range beyond the disk's end.
    let range = nvme::dsm::Range::new(16_384, 1);
    region.buffer().write(0, zerocopy::IntoBytes::as_bytes(&range)).unwrap();
    let request = Request { operation, namespace: 1, block: 0, blocks: 1, data: Some((&region, 0, 16)) };
    let status = nvme::Status::LBA_OUT_OF_RANGE.dnr();
    let failed = host.carry_out("Dataset Management", &request);
    assert_eq!(failed, Err(storage::initiator::Failure::Command("Dataset Management", status, 0)));
    drop(region);
    machine.end(host, target);
}

#[test]
fn twenty_hosts_one_after_the_other_leave_nothing() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[1 << 20]));
    for turn in 0..20 {
        let mut host = machine.host(&target);
        let region = machine.region(&host, 4096);
        host.read(1, 0, 8, (&region, 0, 4096)).unwrap();
        drop(region);
        // Half of them vanish.
        if turn % 2 == 0 {
            host.disconnect();
        }
    }
    target.wait_for(|counted| counted.connections == 0 && counted.controllers == 0);
    assert_eq!(target.control.statistics().accepted, 40);
    machine.stop(target);
}

#[test]
fn a_host_that_is_not_allowed_is_refused_and_sees_nothing() {
    let machine = Machine::new();
    let mut config = machine.config(machine.ram_disks(&[1 << 20]));
    config.allowed = Some(vec!["nqn.2026-01.org.ferrovia:friend".into()]);
    let target = machine.target_with(config);
    let options = storage::initiator::Options::new(target.address, crate::machine::NQN);
    let refused = machine.host_with(options.clone()).err();
    let status = nvme::Status::CONNECT_INVALID_HOST.dnr();
    assert_eq!(refused, Some(storage::initiator::Failure::Command("Connect", status, 0x10200)));
    let friend = storage::initiator::Options { host: "nqn.2026-01.org.ferrovia:friend".into(), ..options };
    let host = machine.host_with(friend).unwrap();
    machine.end(host, target);
}

#[test]
fn a_silent_host_loses_its_controller() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[1 << 20]));
    let options = storage::initiator::Options {
        keep_alive: std::time::Duration::from_millis(300),
        ..storage::initiator::Options::new(target.address, crate::machine::NQN)
    };
    let mut host = machine.host_with(options).unwrap();
    // It does not poll, so it sends no Keep Alive.
    target.wait_for(|counted| counted.expired == 1 && counted.connections == 0);
    let lost = loop {
        match host.poll(&mut |_, _, _| ()) {
            Ok(_) => {}
            Err(failure) => break failure,
        }
    };
    assert_eq!(lost, storage::initiator::Failure::Disconnected);
    host.disconnect();
    machine.stop(target);
}

#[test]
fn a_host_that_polls_keeps_its_controller() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[1 << 20]));
    let options = storage::initiator::Options {
        keep_alive: std::time::Duration::from_millis(400),
        ..storage::initiator::Options::new(target.address, crate::machine::NQN)
    };
    let mut host = machine.host_with(options).unwrap();
    let end = machine.platform().now() + std::time::Duration::from_secs(2);
    while machine.platform().now() < end {
        let seen = host.seen();
        host.poll(&mut |_, _, _| ()).unwrap();
        host.wait(seen, end);
    }
    assert_eq!(target.control.statistics().expired, 0);
    machine.end(host, target);
}
