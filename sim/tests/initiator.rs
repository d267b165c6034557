//! The storage initiator in the simulation.

use std::sync::Arc;
use std::time::Duration;

use block::Disk;
use block::ram::RamDisk;
use sim::World;
use storage::initiator::{Failure, Initiator, Options};
use storage::target::{Config, Export, Target};

const NQN: &str = "nqn.2026-01.org.ferrovia:patience";

/// Connects an initiator that waits so long for each answer; how that ended.
fn connect(world: &World, patience: Duration) -> Result<(), Failure> {
    let platform = world.platform();
    let node = common::Node::start(platform.clone(), world.privileged(), world.transports()).expect("a node");
    let disk: Arc<dyn Disk> = Arc::new(RamDisk::new(&platform, 512, 64).expect("memory"));
    let config = Config {
        commands: 256,
        depth: 64,
        memory: 4 << 20,
        ..Config::new(NQN, vec![Export::new(disk, [1; 16])])
    };
    let target = Target::new(&[node.nic(0).expect("a NIC")], world.privileged(), config).expect("a target");
    let (control, address) = (target.control(), target.addresses()[0]);
    let body = move || target.run().expect("the target's end");
    platform.spawn("target", Box::new(body)).expect("a thread");
    let options = Options { patience, depth: 8, ..Options::new(address, NQN) };
    let outcome = Initiator::connect(&node.nic(1).expect("a NIC"), world.privileged(), options);
    control.stop();
    // The device carries out what is left in its queues.
    world.settle();
    assert_eq!(world.strays(), None, "memory that was released, with a patience of {patience:?}");
    let outcome = outcome.map(drop);
    node.agents.iter().for_each(|agent| agent.close());
    outcome
}

/// The command that got no answer in time may still be in the send queue, and the target may still
/// answer it.
#[test]
fn a_set_up_without_patience_leaves_no_command_that_names_released_memory() {
    let (mut silent, mut connected) = (0, 0);
    for step in 0..400 {
        let patience = Duration::from_nanos(100 * step);
        let outcome = sim::run(step, 2, |world| connect(world, patience));
        assert_eq!(outcome.left, Vec::<String>::new(), "threads that did not end");
        match outcome.value {
            Ok(()) => connected += 1,
            Err(failure) => {
                assert_eq!(failure, Failure::Silent);
                silent += 1;
            }
        }
    }
    assert!(silent > 20 && connected > 20, "{silent} were not answered in time, {connected} were");
}
