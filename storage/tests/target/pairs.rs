//! Fused Compare and Write: what a pair does, what is none, and that nothing comes between.

use std::sync::Arc;
use std::time::Duration;

use block::Disk;
use nvme::Status;
use nvme::command::{Command, fuse, opcode};
use nvme::identify::{self, Fuses, Identify, Nsfeat, cns};
use nvme::reservation::Type;
use storage::target::{Config, Control};
use storage::testing::End;
use zerocopy::{FromBytes, IntoBytes};

use crate::disks::disk;
use crate::machine::Machine;
use crate::order::{serves_second, stalled, wait_for};
use crate::raw::{Queue, controller, serves};
use crate::reservations::Host;

pub const FAILED: Status = Status::ABORT_FUSED_FAILED.dnr();
const MISSING: Status = Status::ABORT_FUSED_MISSING.dnr();
pub const DIFFERENT: Status = Status::COMPARE_FAILURE.dnr();
const INVALID: Status = Status::INVALID_FIELD.dnr();

/// The Compare and the Write of a pair, whose data are in the host's memory: this byte in place of
/// another, in so many blocks.
pub fn pair(queue: &mut Queue, cid: u16, block: u64, blocks: u32, old: u8, new: u8) -> [Command; 2] {
    let len = blocks as usize * 512;
    let part = |opcode, part: u8, byte: u8| {
        let at = usize::from(cid % 60) * 16_384 + usize::from(part - 1) * 8192;
        queue.0.memory.write(at, &vec![byte; len]).unwrap();
        let command = Command::blocks(opcode, 1, block, blocks).with_sgl(queue.0.keyed(at, len));
        command.with_cid(cid + u16::from(part - 1) * 0x100).with_fuse(part)
    };
    [part(opcode::io::COMPARE, fuse::FIRST, old), part(opcode::io::WRITE, fuse::SECOND, new)]
}

pub fn send(queue: &mut Queue, commands: &[Command]) {
    commands.iter().for_each(|command| queue.0.send(command.as_bytes()));
}

/// The next responses, in order of their identifiers.
pub fn answers(queue: &mut Queue, count: usize) -> Vec<(u16, Status)> {
    let mut all: Vec<_> = (0..count)
        .map(|_| {
            let response = queue.0.response().expect("a response");
            (response.cid.get(), response.status())
        })
        .collect();
    all.sort_by_key(|&(cid, _)| cid);
    all
}

/// Sends two commands; the statuses.
pub fn statuses(queue: &mut Queue, commands: [Command; 2]) -> [Status; 2] {
    let [first, second] = commands;
    send(queue, &[first.with_cid(1), second.with_cid(2)]);
    let answers = answers(queue, 2);
    assert_eq!((answers[0].0, answers[1].0), (1, 2));
    [answers[0].1, answers[1].1]
}

/// The blocks' bytes: one of each block.
fn read(queue: &mut Queue, block: u64, blocks: u32) -> Vec<u8> {
    let len = blocks as usize * 512;
    let at = 1 << 19;
    let sgl = queue.0.keyed(at, len);
    assert_eq!(
        queue.status(Command::blocks(opcode::io::READ, 1, block, blocks).with_sgl(sgl)),
        Status::SUCCESS
    );
    let mut bytes = vec![0; len];
    queue.0.memory.read(at, &mut bytes).unwrap();
    let byte = |block: &[u8]| {
        assert!(block.iter().all(|byte| *byte == block[0]), "a block is written as a whole");
        block[0]
    };
    bytes.chunks(512).map(byte).collect()
}

/// The targets of a disk that completes in any order, and of one that lends its memory.
fn of_both(test: impl Fn(&Machine, &crate::machine::Running)) {
    let machine = Machine::new();
    for disks in [vec![disk(1) as Arc<dyn Disk>], machine.ram_disks(&[1 << 20])] {
        let target = machine.target(disks);
        test(&machine, &target);
        machine.stop(target);
    }
}

#[test]
fn a_pair_writes_if_what_is_there_is_equal_and_identify_says_so() {
    of_both(|machine, target| {
        let (mut admin, mut io) = controller(machine, target);
        let mut identify = |cns, nsid| {
            let sgl = admin.0.keyed(0, 4096);
            assert_eq!(
                admin.status(Identify { cns, cntid: 0, nsid }.command().with_sgl(sgl)),
                Status::SUCCESS
            );
            let mut page = vec![0; 4096];
            admin.0.memory.read(0, &mut page).unwrap();
            page
        };
        let page = identify::Controller::read_from_bytes(&identify(cns::CONTROLLER, 0)).unwrap();
        assert_eq!((page.fuses.get(), page.acwu.get()), (Fuses::COMPARE_AND_WRITE.bits(), 1));
        let page = identify::Namespace::read_from_bytes(&identify(cns::NAMESPACE, 1)).unwrap();
        assert_eq!((page.nsfeat, page.nacwu.get()), (Nsfeat::ATOMIC_WRITE_UNITS.bits(), 15));

        let equal = pair(&mut io, 1, 8, 16, 0, 7);
        assert_eq!(statuses(&mut io, equal), [Status::SUCCESS; 2]);
        assert_eq!(read(&mut io, 7, 18), [&[0][..], &[7; 16], &[0]].concat());
        let different = pair(&mut io, 1, 16, 16, 7, 9);
        assert_eq!(statuses(&mut io, different), [DIFFERENT, FAILED]);
        assert_eq!(read(&mut io, 7, 18), [&[0][..], &[7; 16], &[0]].concat());
        // The data in the capsules.
        for (old, new, outcome) in [(7, 8, [Status::SUCCESS; 2]), (7, 9, [DIFFERENT, FAILED])] {
            let parts = pair(&mut io, 1, 8, 2, 0, 0);
            for (n, (command, byte)) in (1..).zip(parts.into_iter().zip([old, new])) {
                let command = command.with_cid(n).with_sgl(nvme::sgl::Descriptor::offset(0, 1024));
                io.0.send(&[command.as_bytes(), &[byte; 1024]].concat());
            }
            assert_eq!(answers(&mut io, 2), [(1, outcome[0]), (2, outcome[1])]);
        }
        assert_eq!(read(&mut io, 8, 4), [8, 8, 7, 7]);
        // Pairs of one queue, one behind the other.
        for n in 0..10 {
            let parts = pair(&mut io, n, 100, 1, n as u8, n as u8 + 1);
            send(&mut io, &parts);
        }
        assert!(answers(&mut io, 20).iter().all(|(_, status)| status.is_success()));
        assert_eq!(read(&mut io, 100, 1), [10]);
    });
}

#[test]
fn what_is_no_pair_gets_the_status_that_says_why() {
    of_both(|machine, target| {
        let (mut admin, mut io) = controller(machine, target);
        let [first, second] = pair(&mut io, 1, 8, 1, 0, 7);
        let plain = |command: Command| command.with_fuse(fuse::NONE);
        // Another command in place of the second one, the second one alone, two first ones.
        assert_eq!(statuses(&mut io, [first, plain(first)]), [MISSING, Status::SUCCESS]);
        assert_eq!(statuses(&mut io, [plain(first), second]), [Status::SUCCESS, MISSING]);
        send(&mut io, &[first.with_cid(3), first.with_cid(4), second.with_cid(5)]);
        assert_eq!(answers(&mut io, 3), [(3, MISSING), (4, Status::SUCCESS), (5, Status::SUCCESS)]);
        let [first, second] = pair(&mut io, 1, 8, 1, 7, 9);
        // Commands that are not these two, or are about other blocks.
        let write = Command { opcode: opcode::io::WRITE, ..first };
        assert_eq!(statuses(&mut io, [write, second]), [INVALID, FAILED]);
        let compare = Command { opcode: opcode::io::COMPARE, ..second };
        assert_eq!(statuses(&mut io, [first, compare]), [INVALID; 2]);
        let other = pair(&mut io, 1, 9, 1, 7, 9)[1];
        assert_eq!(statuses(&mut io, [first, other]), [INVALID; 2]);
        assert_eq!(io.status(first.with_fuse(3)), INVALID);
        assert_eq!(admin.status(Command::new(opcode::admin::KEEP_ALIVE).with_fuse(fuse::FIRST)), INVALID);
        // Too long; beyond the end; a second one that is wrong by itself.
        let long = pair(&mut io, 2, 8, 17, 0, 0).map(|command| {
            let sgl = io.0.keyed(0, 17 * 512);
            command.with_sgl(sgl)
        });
        assert_eq!(statuses(&mut io, long), [Status::ATOMIC_WRITE_UNIT_EXCEEDED.dnr(), FAILED]);
        let beyond = pair(&mut io, 2, 1 << 20, 1, 0, 0);
        assert_eq!(statuses(&mut io, beyond), [Status::LBA_OUT_OF_RANGE.dnr(), FAILED]);
        let short = second.with_sgl(io.0.keyed(0, 256));
        let length = Status::DATA_SGL_LENGTH_INVALID.dnr();
        assert_eq!(statuses(&mut io, [first, short]), [Status::SUCCESS, length]);
        assert_eq!(read(&mut io, 8, 2), [7, 0], "nothing was written since");
        assert_eq!(statuses(&mut io, [first, second]), [Status::SUCCESS; 2]);
    });
}

#[test]
fn a_first_command_without_a_second_holds_nothing_up() {
    let machine = Machine::new();
    let config = machine.config(vec![disk(1) as Arc<dyn Disk>]);
    let target = machine.target_with(Config { response_timeout: Duration::from_millis(200), ..config });
    let (admin, mut io) = controller(&machine, &target);
    let [first, second] = pair(&mut io, 1, 8, 1, 0, 7);
    send(&mut io, &[first]);
    serves(&machine, &target);
    // It waits for so long, and its connection stays.
    assert_eq!(answers(&mut io, 1), [(1, MISSING)]);
    assert_eq!(io.status(second), MISSING);
    let [first, second] = pair(&mut io, 2, 8, 1, 0, 7);
    assert_eq!(statuses(&mut io, [first, second]), [Status::SUCCESS; 2]);
    // One whose connection ends.
    send(&mut io, &[first]);
    drop(io);
    drop(admin);
    target.wait_for(|counted| counted.connections == 0);
    serves(&machine, &target);
    // One whose target ends.
    let (admin, mut io) = controller(&machine, &target);
    send(&mut io, &[first]);
    serves(&machine, &target);
    target.control.stop();
    assert_eq!(answers(&mut io, 1), [(2, MISSING)]);
    assert!(io.0.ended().is_some());
    drop((admin, io));
    machine.stop(target);
}

#[test]
fn nothing_comes_between_and_a_pair_begins_when_the_disk_has_ended_what_it_had() {
    let machine = Machine::new();
    let (slow, target) = stalled(&machine);
    let (admin, mut io) = controller(&machine, &target);
    let (other_admin, mut other) = controller(&machine, &target);
    let at = |queue: &mut Queue, opcode, block, cid| {
        queue.0.memory.write(1 << 18, &[3; 1024]).unwrap();
        let sgl = queue.0.keyed(1 << 18, 1024);
        queue.0.send(Command::blocks(opcode, 1, block, 2).with_cid(cid).with_sgl(sgl).as_bytes());
    };
    // The disk has a write of the first block: the pair waits for it, and others for the pair.
    at(&mut other, opcode::io::WRITE, 7, 1);
    wait_for(|| slow.under_way() == 1);
    let parts = pair(&mut io, 1, 8, 2, 3, 4);
    // Only the first of its blocks is equal.
    send(&mut io, &parts);
    serves_second(&machine, &target);
    assert_eq!(slow.under_way(), 1, "the pair waits");
    at(&mut other, opcode::io::WRITE, 9, 2);
    at(&mut other, opcode::io::READ, 7, 3);
    let zeroes = Command::blocks(opcode::io::WRITE_ZEROES, 1, 0, 100).with_cid(4);
    send(&mut other, &[zeroes]);
    // Others go on, and come behind those on the queue.
    at(&mut other, opcode::io::WRITE, 10, 5);
    wait_for(|| slow.under_way() == 2);
    slow.release();
    assert_eq!(answers(&mut io, 2), [(1, DIFFERENT), (0x101, FAILED)]);
    let all = answers(&mut other, 5);
    assert!(all.iter().all(|(_, status)| status.is_success()), "{all:?}");

    // The disk has the Compare.
    at(&mut other, opcode::io::WRITE, 8, 6);
    assert_eq!(answers(&mut other, 1), [(6, Status::SUCCESS)]);
    slow.stall();
    let parts = pair(&mut io, 1, 8, 2, 3, 4);
    send(&mut io, &parts);
    wait_for(|| slow.under_way() == 1);
    at(&mut other, opcode::io::WRITE, 8, 7);
    at(&mut other, opcode::io::WRITE, 10, 8);
    wait_for(|| slow.under_way() == 2);
    serves_second(&machine, &target);
    assert_eq!(slow.under_way(), 2, "the first of them waits");
    slow.release();
    assert_eq!(answers(&mut io, 2), [(1, Status::SUCCESS), (0x101, Status::SUCCESS)]);
    assert_eq!(answers(&mut other, 2), [(7, Status::SUCCESS), (8, Status::SUCCESS)]);
    assert_eq!(read(&mut io, 8, 2), [3, 3], "what waited came last");
    drop((admin, io, other_admin, other));
    machine.stop(target);
}

#[test]
fn of_hosts_that_count_at_once_one_succeeds_and_nobody_sees_half() {
    of_both(|machine, target| {
        let mut hosts: Vec<_> = (0..3).map(|_| controller(machine, target)).collect();
        for n in 0..25 {
            for (_, io) in &mut hosts {
                for cid in 0..4 {
                    let parts = pair(io, cid, 32, 16, n, n + 1);
                    send(io, &parts);
                }
                let sgl = io.0.keyed(1 << 19, 8192);
                send(io, &[Command::blocks(opcode::io::READ, 1, 32, 16).with_cid(0x900).with_sgl(sgl)]);
            }
            let mut winners = 0;
            for (_, io) in &mut hosts {
                let all = answers(io, 9);
                for cid in 0..4 {
                    let of = |cid: u16| all.iter().find(|(its, _)| *its == cid).map(|(_, status)| *status);
                    match (of(cid), of(cid + 0x100)) {
                        (Some(Status::SUCCESS), Some(Status::SUCCESS)) => winners += 1,
                        (first, second) => assert_eq!((first, second), (Some(DIFFERENT), Some(FAILED))),
                    }
                }
                let mut bytes = vec![0; 8192];
                io.0.memory.read(1 << 19, &mut bytes).unwrap();
                assert!(bytes[0] == n || bytes[0] == n + 1);
                assert!(bytes.iter().all(|byte| *byte == bytes[0]), "half of a write is seen");
            }
            assert_eq!(winners, 1, "round {n}");
        }
        assert_eq!(read(&mut hosts[0].1, 32, 16), [25; 16]);
    });
}

#[test]
fn a_reservation_concerns_both() {
    let machine = Machine::new();
    let target = machine.target(vec![disk(1) as Arc<dyn Disk>]);
    let (mut holder, mut other) = (Host::new(&machine, &target, 1), Host::new(&machine, &target, 2));
    assert_eq!(holder.register(1, nvme::reservation::ChangePersistence::Keep), Status::SUCCESS);
    let conflict = Status::RESERVATION_CONFLICT.dnr();
    for (kind, outcome) in
        [(Type::WriteExclusive, [Status::SUCCESS, conflict]), (Type::ExclusiveAccess, [conflict, FAILED])]
    {
        assert_eq!(holder.acquire(kind, 1), Status::SUCCESS);
        let parts = pair(&mut other.io, 1, 8, 1, 0, 9);
        assert_eq!(statuses(&mut other.io, parts), outcome);
        let parts = pair(&mut holder.io, 1, 9, 1, 0, 9);
        assert_eq!(
            statuses(&mut holder.io, parts)[0].sct(),
            if kind == Type::WriteExclusive { 0 } else { 2 }
        );
        assert_eq!(holder.release(nvme::reservation::ReleaseAction::Release, kind, 1), Status::SUCCESS);
    }
    assert_eq!(read(&mut other.io, 8, 2), [0, 9]);
    drop((holder, other));
    machine.stop(target);
}

#[test]
fn a_reservation_that_comes_between_keeps_the_write_away() {
    let machine = Machine::new();
    let (slow, target) = stalled(&machine);
    slow.release();
    let (mut holder, mut other) = (Host::new(&machine, &target, 1), Host::new(&machine, &target, 2));
    assert_eq!(holder.register(1, nvme::reservation::ChangePersistence::Keep), Status::SUCCESS);
    slow.stall();
    let parts = pair(&mut other.io, 1, 8, 1, 0, 9);
    send(&mut other.io, &parts);
    wait_for(|| slow.under_way() == 1);
    let command =
        holder.acquire_command(Type::WriteExclusive, nvme::reservation::AcquireAction::Acquire, 1, 0);
    send(&mut holder.io, &[command.with_cid(0x500)]);
    serves_second(&machine, &target);
    slow.release();
    let conflict = Status::RESERVATION_CONFLICT.dnr();
    assert_eq!(answers(&mut other.io, 2), [(1, Status::SUCCESS), (0x101, conflict)]);
    assert_eq!(answers(&mut holder.io, 1), [(0x500, Status::SUCCESS)]);
    assert_eq!(read(&mut holder.io, 8, 1), [0]);
    drop((holder, other));
    machine.stop(target);
}

#[test]
fn a_pair_whose_connection_ends_or_whose_disk_is_silent_leaves_its_blocks_to_others() {
    let machine = Machine::new();
    let slow = disk(1);
    let config = machine.config(vec![slow.clone() as Arc<dyn Disk>]);
    let target = machine.target_with(Config { disk_timeout: Duration::from_millis(300), ..config });
    for _ in 0..3 {
        // The disk has the Compare, and other pairs and a Write wait for the pair.
        let (admin, mut io) = controller(&machine, &target);
        let (other_admin, mut other) = controller(&machine, &target);
        slow.stall();
        for cid in 1..4 {
            let parts = pair(&mut io, cid, 8, 1, 0, 7);
            send(&mut io, &parts);
        }
        wait_for(|| slow.under_way() == 1);
        let parts = pair(&mut other, 1, 8, 1, 0, 8);
        send(&mut other, &parts);
        let write = pair(&mut other, 2, 8, 1, 0, 0)[1].with_fuse(fuse::NONE);
        send(&mut other, &[write]);
        // The disk is given up: its host loses the connection, and the others get an answer.
        assert_eq!(io.0.response().err(), Some(End::Disconnected));
        let not_ready = Status::NS_NOT_READY;
        let aborted = Status::ABORT_FUSED_FAILED;
        assert_eq!(answers(&mut other, 3), [(1, not_ready), (0x101, aborted), (0x102, not_ready)]);
        slow.release();
        drop((admin, io));
        let mut status = Status::NS_NOT_READY;
        while status == Status::NS_NOT_READY {
            let [first, _] = pair(&mut other, 3, 8, 1, 0, 0);
            status = other.status(first.with_fuse(fuse::NONE));
        }
        assert_eq!(status, Status::SUCCESS, "nothing was written");
        let parts = pair(&mut other, 1, 9, 1, 0, 8);
        assert_eq!(statuses(&mut other, parts), [Status::SUCCESS; 2]);
        let parts = pair(&mut other, 1, 9, 1, 8, 0);
        assert_eq!(statuses(&mut other, parts), [Status::SUCCESS; 2]);
        drop((other_admin, other));
    }
    // The connection ends while the pair waits for the disk, and another one for its turn.
    let (admin, mut io) = controller(&machine, &target);
    for cid in 1..4 {
        let parts = pair(&mut io, cid, 8, 1, 0, 7);
        send(&mut io, &parts);
    }
    drop((io, admin));
    target.wait_for(|counted| counted.connections == 0);
    serves(&machine, &target);
    assert!(has_no_pool_in_use(&target.control));
    machine.stop(target);
}

/// Whether no command has memory any more: none was left behind.
pub fn has_no_pool_in_use(control: &Control) -> bool {
    let metrics = control.metrics().unwrap();
    metrics.namespaces.iter().all(|namespace| namespace.free == namespace.chunks)
}

#[test]
fn one_of_several_targets_has_no_pairs() {
    let machine = Machine::new();
    let target =
        machine.target_with(Config { path: Some(1), ..machine.config(vec![disk(1) as Arc<dyn Disk>]) });
    let (mut admin, mut io) = controller(&machine, &target);
    let sgl = admin.0.keyed(0, 4096);
    let identify = Identify { cns: cns::CONTROLLER, cntid: 0, nsid: 0 };
    assert_eq!(admin.status(identify.command().with_sgl(sgl)), Status::SUCCESS);
    let mut page = vec![0; 4096];
    admin.0.memory.read(0, &mut page).unwrap();
    let page = identify::Controller::read_from_bytes(&page).unwrap();
    assert_eq!((page.fuses.get(), page.acwu.get()), (0, 0));
    let parts = pair(&mut io, 1, 8, 1, 0, 7);
    assert_eq!(statuses(&mut io, parts)[0], INVALID);
    assert_eq!(read(&mut io, 8, 1), [0]);
    drop((admin, io));
    machine.stop(target);
}
