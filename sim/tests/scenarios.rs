//! Two nodes from start to end, under many seeds.

use std::sync::Arc;
use std::time::Duration;

use kernel_agent::{Agent, Config};
use nic_abi::admin::Injection;
use rdma::{Endpoint, Nic, RequestError};
use sim::World;

const SEEDS: u64 = 40;
const MESSAGES: usize = 20;

/// Agents on both NICs.
fn agents(world: &World) -> Vec<Arc<Agent>> {
    let open = |(number, device)| Agent::open(world.platform(), device, number, Config::default());
    (0..).zip(world.transports()).map(|nic| open(nic).expect("an agent")).collect()
}

/// Two connected endpoints, one on each NIC.
fn pair(agents: &[Arc<Agent>]) -> [Endpoint; 2] {
    let endpoint =
        |agent| Nic::open(agent).and_then(|nic| nic.domain()?.endpoint().build()).expect("an endpoint");
    let (a, b) = (endpoint(&agents[0]), endpoint(&agents[1]));
    common::connect(&a, &b).unwrap_or_else(|failure| panic!("{failure}"));
    [a, b]
}

fn close(agents: &[Arc<Agent>]) {
    agents.iter().for_each(|agent| agent.close());
}

/// Starts two nodes, connects them while datagrams of the connection manager are lost, sends
/// messages while requests and responses are lost, and frees everything. Returns how many messages
/// arrived.
fn a_life_with_losses(world: &World) -> usize {
    let agents = agents(world);
    let lost = (world.random() % 3) as u32;
    agents[0].test_handle().inject(0, Injection::DropManagement, lost, 0).expect("fault injection");
    let arrived = talk(world, &agents[0], pair(&agents));
    for agent in &agents {
        assert_eq!(agent.counts(), kernel_agent::Counts::default());
    }
    close(&agents);
    arrived
}

fn talk(world: &World, agent: &Agent, [a, b]: [Endpoint; 2]) -> usize {
    let (from, into) = (a.domain().region(64).expect("memory"), b.domain().region(64).expect("memory"));
    for n in 0..MESSAGES {
        if world.random().is_multiple_of(4) {
            let what = [Injection::DropRequests, Injection::DropResponses][(world.random() % 2) as usize];
            // Fewer losses than the connection has retries; of every queue pair.
            let losses = 1 + (world.random() % 2) as u32;
            agent.test_handle().inject(a.number(), what, losses, 0).expect("fault injection");
        }
        from.slice(..).write(&[n as u8; 64]);
        let receive = b.receive(into.slice(..)).expect("a Receive");
        let send = a.send(from.slice(..)).expect("a Send");
        assert_eq!(receive.wait().map(|done| done.len), Ok(64));
        assert_eq!(into.slice(..).to_vec(), [n as u8; 64]);
        send.wait().expect("it is sent");
    }
    MESSAGES
}

#[test]
fn lost_packets_are_sent_again_and_nothing_is_left() {
    for seed in 0..SEEDS {
        eprintln!("seed {seed}");
        let outcome = sim::run(seed, 2, a_life_with_losses);
        assert_eq!(outcome.value, MESSAGES);
        assert_eq!(outcome.left, Vec::<String>::new(), "seed {seed}: threads that did not end");
    }
}

#[test]
fn a_seed_decides_everything() {
    for seed in [3, 17] {
        assert_eq!(sim::run(seed, 2, a_life_with_losses), sim::run(seed, 2, a_life_with_losses));
    }
    let (one, other) = (sim::run(1, 2, a_life_with_losses), sim::run(2, 2, a_life_with_losses));
    assert_ne!(one.trace, other.trace, "seeds differ in what happens");
}

/// Kills the device before or after a wait, as the seed decides. The wait must end, and everything
/// can be freed.
fn a_life_cut_short(world: &World) -> bool {
    let agents = agents(world);
    let [a, b] = pair(&agents);
    let into = b.domain().region(64).expect("memory");
    let receive = b.receive(into.slice(..)).expect("a Receive");
    let killed_before = world.random().is_multiple_of(2);
    if killed_before {
        world.kill_device();
        assert_eq!(receive.wait(), Err(RequestError::DeviceDead));
    } else {
        assert!(receive.wait_timeout(Duration::from_millis(1)).is_err(), "a message that nobody sent");
        world.kill_device();
    }
    drop((a, b, into));
    close(&agents);
    killed_before
}

#[test]
fn nothing_hangs_when_the_device_dies() {
    for seed in 0..SEEDS {
        eprintln!("seed {seed}");
        let outcome = sim::run(seed, 2, a_life_cut_short);
        assert_eq!(outcome.left, Vec::<String>::new(), "seed {seed}: threads that did not end");
    }
}
