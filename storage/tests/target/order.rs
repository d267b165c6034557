//! The order of writes: what an earlier connection of a host has left to a disk ends before the
//! next one writes. And disks that take long, or do not answer for a while.

use std::sync::Arc;
use std::time::Duration;

use block::Disk;
use block::simulated::SimulatedDisk;
use nvme::Status;
use nvme::async_event::Event;
use nvme::command::{Command, opcode};
use nvme::fabrics::{CNTLID_DYNAMIC, Cc, Connect, Csts, Property, PropertyGet, PropertySet, Shst};
use nvme::feature::{AsyncEvents, SetFeatures, id as features};
use nvme::log::{GetLogPage, id as logs};
use storage::target::Config;
use zerocopy::IntoBytes;

use crate::disks::disk;
use crate::machine::{Machine, NQN, Running};
use crate::raw::{Queue, controller, data, serves};

/// A target of a stalled disk, and a RAM disk behind it.
pub fn stalled(machine: &Machine) -> (Arc<SimulatedDisk>, Running) {
    let slow = disk(1);
    slow.stall();
    let mut disks: Vec<Arc<dyn Disk>> = vec![slow.clone()];
    disks.extend(machine.ram_disks(&[1 << 20]));
    (slow, machine.target(disks))
}

/// Sends a write of one block of these bytes, without a wait for the response.
fn write(queue: &mut Queue, byte: u8, cid: u16) {
    let at = usize::from(byte) * 512;
    queue.0.memory.write(at, &[byte; 512]).unwrap();
    let sgl = queue.0.keyed(at, 512);
    queue.0.send(Command::blocks(opcode::io::WRITE, 1, 8, 1).with_cid(cid).with_sgl(sgl).as_bytes());
}

/// The queues of one of two controllers of a host. The other one is gone, and has left a write of a
/// block to the disk, which is stalled.
fn after_a_lost_path(machine: &Machine, target: &Running, slow: &SimulatedDisk) -> (Queue, Queue) {
    let (first, mut first_io) = controller(machine, target);
    let second = controller(machine, target);
    write(&mut first_io, 1, 1);
    wait_for(|| slow.under_way() == 1);
    drop(first);
    drop(first_io);
    target.wait_for(|counted| counted.connections == 2);
    second
}

pub fn wait_for(mut holds: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(std::time::Instant::now() < deadline, "it does not happen");
        std::thread::yield_now();
    }
}

fn status_of(admin: &mut Queue) -> Csts {
    Csts(admin.ask(PropertyGet::new(Property::Csts).command()).result.get() as u32)
}

fn configure(admin: &mut Queue, configuration: Cc) {
    let set = PropertySet::new(Property::Cc, configuration.0.into());
    assert_eq!(admin.status(set.command()), Status::SUCCESS);
}

#[test]
fn a_reset_is_complete_when_the_disk_has_ended_what_it_had() {
    let machine = Machine::new();
    let (slow, target) = stalled(&machine);
    let (mut admin, mut io) = controller(&machine, &target);
    write(&mut io, 1, 1);
    wait_for(|| slow.under_way() == 1);
    configure(&mut admin, Cc::new());
    assert!(io.0.ended().is_some());
    drop(io);
    target.wait_for(|counted| counted.connections == 1);
    assert!(status_of(&mut admin).is_ready());
    // The host does not wait, as it should: the controller is enabled when the reset is complete.
    let identify = nvme::identify::Identify { cns: 1, cntid: 0, nsid: 0 }.command();
    let sgl = admin.0.keyed(0, 4096);
    configure(&mut admin, Cc::new().with_enabled(true));
    assert_eq!(admin.status(identify.with_sgl(sgl)), Status::SEQUENCE_ERROR.dnr());
    configure(&mut admin, Cc::new());
    slow.release();
    wait_for(|| !status_of(&mut admin).is_ready());
    assert_eq!((slow.under_way(), slow.contents(8)), (0, vec![1; 512]));
    configure(&mut admin, Cc::new().with_enabled(true));
    assert_eq!(admin.status(identify.with_sgl(sgl)), Status::SUCCESS);
    drop(admin);
    serves(&machine, &target);
    machine.stop(target);
}

#[test]
fn a_shutdown_is_complete_when_the_disk_has_ended_what_it_had() {
    let machine = Machine::new();
    let (slow, target) = stalled(&machine);
    let (mut admin, mut io) = controller(&machine, &target);
    write(&mut io, 1, 1);
    wait_for(|| slow.under_way() == 1);
    drop(io);
    target.wait_for(|counted| counted.connections == 1);
    configure(&mut admin, Cc::new().with_enabled(true).with_shutdown(1));
    assert_eq!(status_of(&mut admin).shutdown(), Some(Shst::Occurring));
    slow.release();
    wait_for(|| status_of(&mut admin).shutdown() == Some(Shst::Complete));
    drop(admin);
    machine.stop(target);
}

#[test]
fn a_host_that_connects_again_waits_for_what_it_has_left_to_the_disk() {
    let machine = Machine::new();
    let (slow, target) = stalled(&machine);
    // It vanishes before the target knows, or after that.
    for vanishes in [false, true] {
        slow.stall();
        let (admin, mut io) = controller(&machine, &target);
        write(&mut io, 1, 1);
        wait_for(|| slow.under_way() == 1);
        let mut left = Some((admin, io));
        if vanishes && let Some((admin, io)) = left.take() {
            drop(admin);
            drop(io);
            target.wait_for(|counted| counted.connections == 0);
        }
        let mut again = Queue::open(&machine, &target, 0, 32);
        again.0.memory.write(0, data(CNTLID_DYNAMIC, NQN).as_bytes()).unwrap();
        let connect = Connect::new(0, 31, 0).command().with_cid(7);
        again.0.send(connect.with_sgl(again.0.keyed(0, 1024)).as_bytes());
        // Another host is served meanwhile, so the target has seen the command.
        serves_second(&machine, &target);
        assert!(!again.0.has_response());
        slow.release();
        let response = again.0.response().unwrap();
        assert_eq!((response.cid.get(), response.status(), slow.under_way()), (7, Status::SUCCESS, 0));
        drop(again);
        if let Some((admin, io)) = left {
            drop(admin);
            drop(io);
        }
        target.wait_for(|counted| counted.connections == 0);
    }
    machine.stop(target);
}

/// Checks that the namespace of the RAM disk is served.
pub fn serves_second(machine: &Machine, target: &Running) {
    let mut host = machine.host(target);
    let region = machine.region(&host, 4096);
    host.write(2, 0, 8, (&region, 0, 4096)).unwrap();
    drop(region);
    host.disconnect();
}

#[test]
fn a_write_by_another_path_follows_what_the_lost_one_has_left_to_the_disk() {
    let machine = Machine::new();
    let (slow, target) = stalled(&machine);
    let (second, mut second_io) = after_a_lost_path(&machine, &target, &slow);
    write(&mut second_io, 2, 0x100);
    // Reads, and another namespace, do not wait.
    let sgl = second_io.0.keyed(8192, 512);
    let read = Command::blocks(opcode::io::READ, 2, 0, 1).with_sgl(sgl);
    assert_eq!(second_io.status(read), Status::SUCCESS);
    assert_eq!(slow.under_way(), 1, "the write waits");
    slow.release();
    let response = second_io.0.response().unwrap();
    assert_eq!((response.cid.get(), response.status()), (0x100, Status::SUCCESS));
    assert_eq!(slow.contents(8), [2; 512]);
    drop(second);
    drop(second_io);
    machine.stop(target);
}

#[test]
fn a_write_that_follows_a_silent_disk_s_is_answered_when_that_is_given_up() {
    let machine = Machine::new();
    let slow = disk(1);
    slow.stall();
    let config = machine.config(vec![slow.clone() as Arc<dyn Disk>]);
    let target = machine.target_with(Config { disk_timeout: Duration::from_millis(300), ..config });
    let (second, mut second_io) = after_a_lost_path(&machine, &target, &slow);
    write(&mut second_io, 2, 0x100);
    let response = second_io.0.response().expect("a response");
    assert_eq!((response.cid.get(), response.status()), (0x100, Status::NS_NOT_READY));
    assert_eq!(slow.under_way(), 1);
    slow.release();
    drop(second);
    drop(second_io);
    machine.stop(target);
}

#[test]
fn a_disk_that_answers_again_serves_again_and_no_flush_succeeds_meanwhile() {
    let machine = Machine::new();
    let slow = disk(1);
    let config = Config {
        disk_timeout: Duration::from_millis(200),
        ..machine.config(vec![slow.clone() as Arc<dyn Disk>])
    };
    let target = machine.target_with(config);
    let (mut watcher, mut watching) = controller(&machine, &target);
    let notices = AsyncEvents::NAMESPACE_ATTRIBUTE.bits();
    let set = SetFeatures { fid: features::ASYNC_EVENT_CONFIGURATION, save: false, nsid: 0, value: notices };
    assert_eq!(watcher.status(set.command()), Status::SUCCESS);
    watcher.0.send(Command::new(opcode::admin::ASYNC_EVENT_REQUEST).with_cid(0x900).as_bytes());
    let flush = Command { nsid: 1.into(), ..Command::new(opcode::io::FLUSH) };
    let (admin, mut io) = controller(&machine, &target);
    slow.stall();
    io.0.send(flush.with_cid(9).as_bytes());
    // The host gets no response to the Flush, but loses its connection.
    assert_eq!(io.0.response().err(), Some(storage::testing::End::Disconnected));
    let is_told = |watcher: &mut Queue, cid| {
        let response = watcher.0.response().unwrap();
        let event = Event::NAMESPACE_ATTRIBUTE_CHANGED.result();
        assert_eq!((response.cid.get(), response.result.get()), (cid, event.into()));
    };
    is_told(&mut watcher, 0x900);
    assert_eq!(watching.status(flush), Status::NS_NOT_READY);
    let page = GetLogPage {
        nsid: nvme::NSID_ALL,
        lid: logs::CHANGED_NAMESPACES,
        lsp: 0,
        rae: false,
        numd: 1023,
        offset: 0,
    };
    let sgl = watcher.0.keyed(0, 4096);
    assert_eq!(watcher.status(page.command().with_sgl(sgl)), Status::SUCCESS);
    watcher.0.send(Command::new(opcode::admin::ASYNC_EVENT_REQUEST).with_cid(0x901).as_bytes());
    slow.release();
    is_told(&mut watcher, 0x901);
    assert_eq!(watching.status(flush), Status::SUCCESS);
    for queue in [admin, io, watcher, watching] {
        drop(queue);
    }
    serves(&machine, &target);
    machine.stop(target);
}

#[test]
fn a_target_that_is_stopped_answers_what_is_outstanding_first() {
    let machine = Machine::new();
    let (slow, target) = stalled(&machine);
    let (admin, mut io) = controller(&machine, &target);
    write(&mut io, 1, 1);
    wait_for(|| slow.under_way() == 1);
    target.control.stop();
    slow.release();
    let response = io.0.response().expect("a response before the connection ends");
    assert_eq!((response.cid.get(), response.status()), (1, Status::SUCCESS));
    assert!(io.0.ended().is_some());
    drop(admin);
    drop(io);
    machine.stop(target);
}
