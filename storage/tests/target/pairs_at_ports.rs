//! Fused Compare and Write at a target with several ports: hosts of one port behind a pair of
//! another one, and ports that die while their pairs hold blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::simulated::SimulatedDisk;
use block::{Disk, Event, Fault, Geometry, Request, Submit};
use nvme::Status;
use nvme::command::{Command, fuse, opcode};
use nvme::sgl::Descriptor;
use storage::target::{AnaState, Config};
use zerocopy::IntoBytes;

use crate::disks::disk;
use crate::machine::{Machine, Running};
use crate::order::wait_for;
use crate::pairs::{DIFFERENT, FAILED, answers, has_no_pool_in_use, pair, send, statuses};
use crate::raw::{Queue, controller};
use crate::reservations::Host;

/// A disk that stalls at each write while it is told so, and completes reads.
pub struct StallsWrites {
    pub disk: Arc<SimulatedDisk>,
    is_on: AtomicBool,
}

impl StallsWrites {
    pub fn new() -> Arc<StallsWrites> {
        Arc::new(StallsWrites { disk: disk(1), is_on: AtomicBool::new(true) })
    }

    /// It stalls no more.
    pub fn release(&self) {
        self.is_on.store(false, Ordering::SeqCst);
        self.disk.release();
    }
}

impl Disk for StallsWrites {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn submit(&self, request: &Request<'_>, token: u64) -> Result<(), Submit> {
        if matches!(request, Request::Write { .. }) && self.is_on.load(Ordering::SeqCst) {
            self.disk.stall();
        }
        self.disk.submit(request, token)
    }

    fn poll(&self, most: usize, into: &mut dyn FnMut(u64, Result<(), Fault>)) -> usize {
        self.disk.poll(most, into)
    }

    fn event(&self) -> Option<Event> {
        self.disk.event()
    }

    fn watch(&self, routine: Option<Arc<dyn Fn() + Send + Sync>>) {
        self.disk.watch(routine);
    }

    fn arm(&self) -> bool {
        self.disk.arm()
    }
}

/// Sends a command with a block of these bytes in its capsule.
fn send_block(queue: &mut Queue, command: Command, byte: u8) {
    let command = command.with_sgl(Descriptor::offset(0, 512));
    queue.0.send(&[command.as_bytes(), &[byte; 512]].concat());
}

/// Sends a pair about a block with its data in the capsules.
fn send_pair(queue: &mut Queue, cid: u16, nsid: u32, block: u64, old: u8, new: u8) {
    let part = |opcode, part: u8| {
        let command = Command::blocks(opcode, nsid, block, 1);
        command.with_cid(cid + u16::from(part - 1) * 0x100).with_fuse(part)
    };
    send_block(queue, part(opcode::io::COMPARE, fuse::FIRST), old);
    send_block(queue, part(opcode::io::WRITE, fuse::SECOND), new);
}

fn send_write(queue: &mut Queue, cid: u16, nsid: u32, block: u64, byte: u8) {
    send_block(queue, Command::blocks(opcode::io::WRITE, nsid, block, 1).with_cid(cid), byte);
}

fn send_read(queue: &mut Queue, cid: u16, block: u64) {
    let sgl = queue.0.keyed(1 << 19, 512);
    send(queue, &[Command::blocks(opcode::io::READ, 1, block, 1).with_cid(cid).with_sgl(sgl)]);
}

/// Returns when the target has seen all that was sent by a queue.
fn is_seen(queue: &mut Queue) {
    let flush = Command { nsid: 99.into(), ..Command::new(opcode::io::FLUSH) }.with_cid(0xf00);
    send(queue, &[flush]);
    assert_eq!(answers(queue, 1), [(0xf00, Status::INVALID_NAMESPACE.dnr())]);
}

fn at_ports(machine: &Machine, disks: Vec<Arc<dyn Disk>>) -> Running {
    machine.target_with(Config { grows: true, ..machine.config(disks) })
}

#[test]
fn what_a_port_does_not_reach_is_answered_behind_what_waits_by_other_ports() {
    let machine = Machine::with_ports(2);
    let slow = disk(1);
    let mut target = at_ports(&machine, vec![slow.clone()]);
    let (one, mut holder) = controller(&machine, target.by(1));
    let (two, mut waiter) = controller(&machine, target.by(1));
    let (three, mut other) = controller(&machine, target.by(2));
    slow.stall();
    send_pair(&mut holder, 1, 1, 8, 0, 7);
    wait_for(|| slow.under_way() == 1);
    // The disk's queue is full, and commands of the first port are the first ones to wait: for
    // room, for the blocks, and for the pairs' turn.
    (2..8).for_each(|cid| send_read(&mut holder, cid, 100));
    wait_for(|| slow.under_way() == 7);
    for queue in [&mut waiter, &mut other] {
        send_pair(queue, 1, 1, 8, 7, 8);
        send_write(queue, 2, 1, 8, 9);
        send_read(queue, 3, 8);
        send_read(queue, 4, 200);
        is_seen(queue);
    }
    assert!(!waiter.0.has_response() && !other.0.has_response());
    target.control.set_ana_state(Some(2), None, AnaState::Inaccessible).unwrap();
    let inaccessible = Status::ANA_INACCESSIBLE;
    let failed = Status::ABORT_FUSED_FAILED;
    let refused =
        [(1, inaccessible), (2, inaccessible), (3, inaccessible), (4, inaccessible), (0x101, failed)];
    assert_eq!(answers(&mut other, 5), refused);
    assert_eq!(slow.under_way(), 7);
    assert!(!waiter.0.has_response());
    // The host may send both again, by the other port.
    send_pair(&mut other, 5, 1, 8, 7, 8);
    assert_eq!(answers(&mut other, 2), [(5, inaccessible), (0x105, failed)]);
    slow.release();
    assert!(answers(&mut holder, 8).iter().all(|(_, status)| status.is_success()));
    // What waited for the blocks comes before the next pair.
    let all = answers(&mut waiter, 5);
    assert_eq!((all[0], all[4]), ((1, DIFFERENT), (0x101, FAILED)));
    assert!(all[1..4].iter().all(|(_, status)| status.is_success()), "{all:?}");
    // The other way round: it is the port of the pair that hosts do not reach.
    target.control.set_ana_state(Some(2), None, AnaState::Optimized).unwrap();
    slow.stall();
    send_read(&mut holder, 1, 9);
    wait_for(|| slow.under_way() == 1);
    send_pair(&mut holder, 2, 1, 9, 0, 1);
    is_seen(&mut holder);
    send_write(&mut other, 2, 1, 9, 3);
    is_seen(&mut other);
    assert_eq!(slow.under_way(), 1, "the pair waits for the disk, and the write for the pair");
    target.control.set_ana_state(Some(1), None, AnaState::Inaccessible).unwrap();
    assert_eq!(answers(&mut holder, 2), [(2, inaccessible), (0x102, failed)]);
    wait_for(|| slow.under_way() == 2);
    slow.release();
    assert_eq!(answers(&mut holder, 1), [(1, Status::SUCCESS)]);
    assert_eq!(answers(&mut other, 1), [(2, Status::SUCCESS)]);
    let parts = pair(&mut other, 1, 9, 1, 3, 4);
    assert_eq!(statuses(&mut other, parts), [Status::SUCCESS; 2]);
    assert_eq!(slow.contents(9), [4; 512]);
    drop((one, two, three, holder, waiter, other));
    target.wait_for(|counted| counted.connections == 0);
    assert!(has_no_pool_in_use(&target.control));
    machine.stop(target);
}

#[test]
fn a_port_that_dies_leaves_the_blocks_of_its_pairs_when_nothing_is_written_any_more() {
    let machine = Machine::with_ports(3);
    let (writes, reads) = (StallsWrites::new(), disk(2));
    let mut target = at_ports(&machine, vec![writes.clone(), reads.clone()]);
    let (one, mut writing) = controller(&machine, target.by(1));
    let (two, mut comparing) = controller(&machine, target.by(2));
    let mut other = Host::new(&machine, target.by(3), 2);
    // The first disk has the Write of a pair, and the second one the Compare. Other pairs of the
    // ports wait for their turn.
    reads.stall();
    send_pair(&mut writing, 1, 1, 8, 0, 7);
    assert_eq!(answers(&mut writing, 1), [(1, Status::SUCCESS)]);
    wait_for(|| writes.disk.under_way() == 1);
    send_pair(&mut writing, 2, 1, 8, 7, 6);
    send_pair(&mut comparing, 1, 2, 8, 0, 7);
    wait_for(|| reads.under_way() == 1);
    let parts = pair(&mut comparing, 2, 8, 1, 0, 6).map(|part| Command { nsid: 2.into(), ..part });
    send(&mut comparing, &parts);
    is_seen(&mut writing);
    is_seen(&mut comparing);
    for nsid in [1, 2] {
        send_pair(&mut other.io, nsid as u16, nsid, 8, 3, 4);
        send_write(&mut other.io, 0x10 + nsid as u16, nsid, 8, 3);
    }
    is_seen(&mut other.io);
    for port in [1, 2] {
        machine.power_off(port);
    }
    wait_for(|| target.control.overview().unwrap().ports.iter().filter(|port| port.serves).count() == 1);
    // Nothing is written behind the Compare, so the Write of the port that is left goes on.
    wait_for(|| reads.under_way() == 2);
    is_seen(&mut other.io);
    assert_eq!(writes.disk.under_way(), 1, "the Write of the pair holds its block");
    writes.release();
    reads.release();
    let expected: Vec<_> = [1, 2, 0x11, 0x12, 0x101, 0x102].map(|cid| (cid, Status::SUCCESS)).into();
    assert_eq!(answers(&mut other.io, 6), expected);
    assert_eq!((writes.disk.contents(8), reads.contents(8)), (vec![4; 512], vec![4; 512]));
    drop((one, two, writing, comparing, other));
    target.wait_for(|counted| counted.connections == 0);
    assert!(has_no_pool_in_use(&target.control));
    machine.stop(target);
}

#[test]
fn a_command_in_the_place_of_a_compare_that_has_ended_waits_for_the_write() {
    let machine = Machine::new();
    let slow = StallsWrites::new();
    let target = at_ports(&machine, vec![slow.clone()]);
    let (one, mut holder) = controller(&machine, &target);
    let (two, mut other) = controller(&machine, &target);
    send_pair(&mut holder, 1, 1, 8, 0, 7);
    assert_eq!(answers(&mut holder, 1), [(1, Status::SUCCESS)]);
    wait_for(|| slow.disk.under_way() == 1);
    // The entry of the Compare is free when its response has been sent, and one of these has it.
    for cid in 1..5 {
        is_seen(&mut other);
        send_read(&mut other, cid, 8);
    }
    send_pair(&mut other, 5, 1, 8, 7, 6);
    is_seen(&mut other);
    assert_eq!(slow.disk.under_way(), 1, "all wait for the pair");
    slow.release();
    assert_eq!(answers(&mut holder, 1), [(0x101, Status::SUCCESS)]);
    assert!(answers(&mut other, 6).iter().all(|(_, status)| status.is_success()));
    assert_eq!(slow.disk.contents(8), [6; 512]);
    drop((one, two, holder, other));
    machine.stop(target);
}
