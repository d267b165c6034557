//! Queues of a host are spread over the threads, and what concerns all of them holds in all.

use nvme::command::Command;
use nvme::fabrics::Connect;
use nvme::status::Status;
use storage::initiator::{Initiator, Operation, Options, Region, Request};
use storage::target::{Control, Refusal};

use crate::WORKERS;
use crate::machine::{Machine, NQN, pattern};
use crate::raw::{HOST, Queue, data};

/// The threads that serve I/O queues of the first controller, in the order of the queues.
fn threads(control: &Control) -> Vec<usize> {
    let controllers = control.overview().unwrap().controllers;
    controllers[0].queues.iter().filter(|queue| queue.id > 0).map(|queue| queue.thread).collect()
}

#[test]
fn each_thread_serves_as_many_queues_and_all_see_the_same_blocks() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[1 << 20]));
    let queues = 2 * WORKERS as u16;
    let mut host =
        machine.host_with(Options { io_queues: queues, ..Options::new(target.address, NQN) }).unwrap();
    assert_eq!(host.io_queues(), 2 * WORKERS);
    let threads = threads(&target.control);
    for thread in 0..WORKERS {
        assert_eq!(threads.iter().filter(|&&its| its == thread).count(), 2, "{threads:?}");
    }
    let region = machine.region(&host, 1 << 20);
    for write in 0..usize::from(queues) {
        let bytes = pattern(write as u64, 16 << 10);
        region.buffer().write(0, &bytes).unwrap();
        carry(&mut host, write, true, &region);
        for read in 0..usize::from(queues) {
            region.buffer().write(0, &vec![0; 16 << 10]).unwrap();
            carry(&mut host, read, false, &region);
            let mut is = vec![0; 16 << 10];
            region.buffer().read(0, &mut is).unwrap();
            assert!(is == bytes, "written by {write}, read by {read}");
        }
    }
    let counted = target.control.metrics().unwrap();
    let operations = &counted.namespaces[0].counted.operations;
    let all = u64::from(queues);
    assert_eq!((operations[0].done.requests, operations[1].done.requests), (all * all, all));
    assert_eq!(target.control.statistics().reads, all * all);
    drop(region);
    machine.end(host, target);
}

/// A Read or a Write of 16 KiB by one of a host's queues.
fn carry(host: &mut Initiator, queue: usize, is_write: bool, region: &Region) {
    let operation = if is_write { Operation::Write { fua: false } } else { Operation::Read };
    let request =
        Request { operation, namespace: 1, block: 64, blocks: 32, data: Some((region, 0, 16 << 10)) };
    host.submit(queue, &request, 1).unwrap();
    let mut is_done = false;
    while !is_done {
        host.poll(&mut |_, status, _| {
            assert_eq!(status, Status::SUCCESS);
            is_done = true;
        })
        .unwrap();
    }
}

#[test]
fn a_queue_is_connected_once_whichever_thread_serves_it() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[1 << 20]));
    let mut admin = Queue::open(&machine, &target, 0, 32);
    let id = admin.begin();
    let connect = |queue: &mut Queue| queue.connect(Connect::new(1, 31, 0), &data(id, NQN)).status();
    let mut first = Queue::open(&machine, &target, 1, 32);
    let mut second = Queue::open(&machine, &target, 1, 32);
    assert_eq!(connect(&mut first), Status::SUCCESS);
    assert_eq!(connect(&mut second), Status::SEQUENCE_ERROR.dnr());
    // Its number is free when its end has reached the manager.
    drop(first);
    target.wait_for(|counted| counted.connections == 2);
    let mut third = Queue::open(&machine, &target, 1, 32);
    while connect(&mut third) != Status::SUCCESS {}
    // A controller that goes takes its queues on all threads with it.
    drop(admin);
    assert!(third.0.ended().is_some());
    drop((second, third));
    machine.stop(target);
}

#[test]
fn a_namespace_that_is_gone_is_gone_on_all_threads_when_the_call_returns() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[1 << 20, 1 << 20]));
    let mut admin = Queue::open(&machine, &target, 0, 32);
    let id = admin.begin();
    let mut queues = Vec::new();
    for number in 1..=4 {
        let mut queue = Queue::open(&machine, &target, number, 32);
        let connected = queue.connect(Connect::new(number, 31, 0), &data(id, NQN));
        assert_eq!(connected.status(), Status::SUCCESS);
        queues.push(queue);
    }
    let flush = |queue: &mut Queue| queue.status(Command::flush(2));
    assert!(queues.iter_mut().all(|queue| flush(queue) == Status::SUCCESS));
    assert_eq!(target.control.remove(2), Ok(()));
    assert!(queues.iter_mut().all(|queue| flush(queue) != Status::SUCCESS));
    while target.control.overview().unwrap().namespaces.len() > 1 {
        std::thread::yield_now();
    }
    assert_eq!(target.control.remove(2), Err(Refusal::NoNamespace));
    assert_eq!(target.control.disconnect(HOST), Ok(1));
    assert!(queues.iter_mut().all(|queue| queue.0.ended().is_some()));
    drop((admin, queues));
    machine.stop(target);
}
