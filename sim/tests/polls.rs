//! A consumer polls a queue of the API for Rust while another thread waits for it.

mod threads;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kernel_agent::{Agent, Config};
use rdma::{Access, Completion, Nic, PostError, Work};
use sim::World;
use threads::Running;

const SEEDS: u64 = 150;
const REQUESTS: u64 = 60;

/// Who waits takes completions from the CQ and stages them. It stands still somewhere meanwhile.
fn completions_come_in_order(world: &World) {
    let platform = world.platform();
    let agent = Agent::open(platform.clone(), world.transports().remove(0), 0, Config::default());
    let agent = agent.expect("an agent");
    let nic = Nic::open(&agent).expect("a NIC");
    let domain = nic.domain().expect("a domain");
    let (a, b) = (domain.endpoint().build().expect("an end"), domain.endpoint().build().expect("an end"));
    let listener = nic.listen(7).expect("a listener");
    let connecting = a.connect(nic.address(), 7);
    listener.wait().expect("a request").accept(&b).wait().expect("a connection");
    connecting.wait().expect("a connection");
    let source = domain.region(8).expect("a region");
    let target = domain.shared_region(8, Access::WRITE).expect("a region");
    let to = target.remote().expect("rights");

    let ended = Arc::new(AtomicBool::new(false));
    let waiter = Running::spawn(&platform, {
        let (queue, ended, hold) = (a.queue().clone(), ended.clone(), world.holder());
        let after = world.random() % 100;
        move || {
            while !ended.load(Ordering::Acquire) {
                hold(after, Duration::from_micros(100));
                let _ = queue.wait(Some(Duration::from_micros(10)));
            }
        }
    });
    let (mut posted, mut came) = (0, 0);
    let mut into = [Completion::EMPTY; 3];
    while came < REQUESTS {
        while posted < REQUESTS {
            match a.post(Work::write(source.slice(..), to).id(posted)) {
                Ok(()) => posted += 1,
                Err(PostError::Full) => break,
                Err(error) => panic!("{error}"),
            }
        }
        let places = 1 + world.random() as usize % into.len();
        let count = a.queue().poll(&mut into[..places]);
        for done in &into[..count] {
            assert_eq!((done.id(), done.result()), (came, Ok(8)));
            came += 1;
        }
        platform.now();
    }
    ended.store(true, Ordering::Release);
    waiter.join();
    drop((a, b, listener, source, target, domain, nic));
    agent.close();
}

#[test]
fn a_poll_returns_nothing_newer_than_what_another_thread_is_about_to_stage() {
    for seed in 0..SEEDS {
        eprintln!("seed {seed}");
        let _ = sim::run(seed, 1, completions_come_in_order);
    }
}
