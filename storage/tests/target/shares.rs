//! Hosts that take no responses, or open connections and say nothing: each has its share of what
//! the target has, and others are served.

use std::time::Duration;

use nvme::command::{Command, opcode};
use nvme::fabrics::{CNTLID_DYNAMIC, Cc, Connect, Property, PropertySet};
use nvme::identify::{Identify, cns};
use nvme::private_data::Request;
use nvme::{Status, nqn};
use storage::initiator::Options;
use storage::target::Config;
use storage::testing::End;
use zerocopy::IntoBytes;

use crate::machine::{Machine, NQN, Running};
use crate::raw::{Queue, data, serves};

/// A queue with one Receive.
fn open(machine: &Machine, target: &Running, id: u16) -> Queue {
    let request = Request::new(id, 32, 31);
    Queue::open_with_receives(machine, target, request.as_bytes(), 1).expect("a connection")
}

/// Sends commands, and posts no Receive for more than the first response.
fn overwhelm(queue: &mut Queue, commands: u16, command: Command) {
    queue.0.stop_receiving();
    for cid in 0..commands {
        queue.0.send(command.with_cid(0x100 + cid).as_bytes());
    }
    assert!(queue.0.response().is_ok());
}

fn free(target: &Running, queues: Vec<Queue>) {
    assert_eq!(target.control.statistics().broken, 0, "nobody has lost a connection so far");
    drop(queues);
}

#[test]
fn one_that_takes_no_responses_to_reads_leaves_memory_for_others() {
    let machine = Machine::new();
    // It lends no memory.
    let target = machine.target(vec![crate::disks::disk(1)]);
    let mut admin = open(&machine, &target, 0);
    let id = admin.begin();
    let mut io = open(&machine, &target, 1);
    assert_eq!(io.connect(Connect::new(1, 31, 0), &data(id, NQN)).status(), Status::SUCCESS);
    // Each takes a large chunk, of which there are 24.
    let sgl = io.0.keyed(0, 128 << 10);
    overwhelm(&mut io, 31, Command::blocks(opcode::io::READ, 1, 0, 256).with_sgl(sgl));
    let mut host = machine.host(&target);
    let region = machine.region(&host, 128 << 10);
    host.read(1, 0, 256, (&region, 0, 128 << 10)).unwrap();
    drop(region);
    free(&target, vec![admin, io]);
    machine.end(host, target);
}

/// The least commands with which a target is made have room for a host with the longest queues that
/// the target allows; with one less there is no target.
#[test]
fn a_target_has_room_for_a_host_with_the_longest_queues_that_it_allows() {
    let machine = Machine::new();
    for (depth, workers, commands) in [
        // An admin queue of 32 entries and an I/O queue, twice.
        (2, 1, 64 + 4),
        (128, 1, 64 + 256),
        // One of them for each thread. Threads have a part of the commands, or two I/O queues'.
        (2, 2, 2 * 64),
        (15, 2, 2 * 64),
        (16, 2, 64),
        (128, 2, 256),
        (2, 16, 16 * 64),
    ] {
        let disks = machine.ram_disks(&[1 << 20]);
        let config = Config { depth, workers, commands, ..machine.config(disks) };
        assert!(machine.refuses(Config { commands: commands - 1, ..config.clone() }), "{depth} {workers}");
        let target = machine.target_with(config);
        let options = Options { depth, ..Options::new(target.address, NQN) };
        let host = machine.host_with(options).expect("room for a host");
        assert_eq!((host.io_queues(), host.depth()), (1, usize::from(depth)));
        machine.end(host, target);
    }
}

#[test]
fn those_that_take_no_responses_leave_receives_for_others() {
    let machine = Machine::new();
    let disks = machine.ram_disks(&[1 << 20]);
    // Entries for ten queues of 32, and those of a proper host.
    let config = Config { commands: 10 * 64 + 64 + 32, depth: 32, workers: 1, ..machine.config(disks) };
    let target = machine.target_with(config);
    let mut queues = Vec::new();
    for _ in 0..2 {
        let mut admin = open(&machine, &target, 0);
        let id = admin.begin();
        for number in 1..=3 {
            let mut io = open(&machine, &target, number);
            assert_eq!(io.connect(Connect::new(number, 31, 0), &data(id, NQN)).status(), Status::SUCCESS);
            let flush = Command { nsid: 1.into(), ..Command::new(opcode::io::FLUSH) };
            io.0.stop_receiving();
            for cid in 0..64 {
                let done = target.control.statistics().others;
                io.0.send(flush.with_cid(0x100 + cid).as_bytes());
                target.wait_for(|counted| counted.others > done);
            }
            // These find no entry, and keep their Receives.
            (0..25).for_each(|cid| io.0.send(flush.with_cid(0x200 + cid).as_bytes()));
            queues.push(io);
        }
        queues.push(admin);
    }
    let options = Options { depth: 16, ..Options::new(target.address, NQN) };
    let mut host = machine.host_with(options).unwrap();
    host.flush(1).unwrap();
    free(&target, queues);
    machine.end(host, target);
}

/// Admin queues of so many controllers that take no responses to Identify.
fn identify_all(machine: &Machine, target: &Running, subsystem: &str) -> Vec<Queue> {
    let queue = |_| {
        let mut admin = open(machine, target, 0);
        let connect = admin.connect(Connect::new(0, 31, 0), &data(CNTLID_DYNAMIC, subsystem));
        assert_eq!(connect.status(), Status::SUCCESS);
        let enable = PropertySet::new(Property::Cc, Cc::new().with_enabled(true).0.into());
        assert_eq!(admin.status(enable.command()), Status::SUCCESS);
        let sgl = admin.0.keyed(0, 4096);
        let identify = Identify { cns: cns::CONTROLLER, cntid: 0, nsid: 0 };
        overwhelm(&mut admin, 31, identify.command().with_sgl(sgl));
        admin
    };
    (0..5).map(queue).collect()
}

#[test]
fn controllers_that_take_no_responses_to_identify_leave_memory_for_others() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[1 << 20]));
    let queues = identify_all(&machine, &target, NQN);
    serves(&machine, &target);
    free(&target, queues);
    machine.stop(target);
}

#[test]
fn a_host_that_is_refused_cannot_hold_memory_by_the_discovery_service() {
    let machine = Machine::new();
    let friend = "nqn.2026-01.org.ferrovia:friend";
    let mut config = machine.config(machine.ram_disks(&[1 << 20]));
    config.allowed = Some(vec![friend.into()]);
    let target = machine.target_with(config);
    let queues = identify_all(&machine, &target, nqn::DISCOVERY.as_str());
    let options = Options { host: friend.into(), ..Options::new(target.address, NQN) };
    let host = machine.host_with(options).unwrap();
    free(&target, queues);
    machine.end(host, target);
}

#[test]
fn one_that_takes_no_responses_loses_its_connection_in_the_end() {
    let machine = Machine::new();
    let config = Config {
        response_timeout: Duration::from_millis(200),
        ..machine.config(machine.ram_disks(&[1 << 20]))
    };
    let target = machine.target_with(config);
    let mut admin = open(&machine, &target, 0);
    admin.begin();
    overwhelm(&mut admin, 4, Command::new(opcode::admin::KEEP_ALIVE));
    target.wait_for(|counted| counted.broken == 1 && counted.connections == 0 && counted.controllers == 0);
    drop(admin);
    serves(&machine, &target);
    machine.stop(target);
}

#[test]
fn connections_that_say_nothing_leave_room_for_others() {
    let machine = Machine::new();
    let mut config = machine.config(machine.ram_disks(&[1 << 20]));
    (config.queues, config.io_queues) = (16, 4);
    let target = machine.target_with(config);
    let mut strangers = Vec::new();
    let refused = loop {
        let request = Request::new(0, 32, 31);
        match Queue::open_with(&machine, &target, request.as_bytes()) {
            Ok(queue) => strangers.push(queue),
            Err(end) => break end,
        }
    };
    assert_eq!(
        (refused, strangers.len()),
        (End::Refused([0, 0, 6, 0]), 5),
        "as many as a host opens at once"
    );
    // They are of one address, on which no other host is served before one of them ends.
    drop(strangers.pop());
    target.wait_for(|counted| counted.connections == 4);
    serves(&machine, &target);
    free(&target, strangers);
    machine.stop(target);
}
