//! The API's argument space: calls with any handles, flags, lengths and addresses, by privileged
//! and unprivileged consumers, on a simulated machine with a fixed seed.
//!
//! What must hold: each call returns; a consumer's memory outside all regions does not change; when
//! the IAs are freed, neither objects nor threads are left.

use std::sync::Arc;

use common::Node;
use kernel_agent::Counts;
use platform::DmaBuffer;
use privileged_api::{Error, Ia, Limits, ObjectCounts};
use sim::World;

use crate::Input;
use crate::calls::{Consumer, ends, is_over_via};

const STEPS: usize = 64;

pub(crate) fn run(bytes: &[u8]) {
    let outcome = sim::run(1, 1, |world| {
        let mut input = Input::new(bytes);
        let (node, mut consumer) = set_up(world, &mut input);
        let canary = DmaBuffer::new(&node.platform, 4096, 4096).expect("memory");
        canary.slice().fill(77);
        for _ in 0..STEPS {
            if input.is_empty() {
                break;
            }
            consumer.call(&mut input);
        }
        nothing_is_left(world, &node, &consumer);
        let mut bytes = [0; 4096];
        canary.read(0, &mut bytes).expect("a page");
        assert!(bytes == [77; 4096], "memory outside all regions and rings changed");
    });
    assert_eq!(outcome.left, Vec::<String>::new(), "threads that did not end");
}

/// A machine with a connected pair and an unprivileged consumer. The first byte of the input
/// chooses what they are, and whether consumers of other faces are beside them.
pub(crate) fn set_up(world: &World, input: &mut Input<'_>) -> (Node, Consumer) {
    let node = Node::start(world.platform(), world.privileged(), world.transports());
    let node = node.unwrap_or_else(|failure| panic!("{failure}"));
    let kind = input.byte();
    let over_via = is_over_via(kind);
    if over_via {
        node.provider.add_via("via0", node.agents[0].clone(), Limits::NONE).expect("a new name");
    }
    let name = if over_via { "via0" } else { "rnic0" };
    let ia = |name, privileged| node.provider.ia_create(name, 2, 1, privileged).expect("an IA");
    let (a, b) = (ia(name, Some(node.privileged)), ia(name, Some(node.privileged)));
    // Half of the inputs over VIA have a consumer of InfiniBand beside the pair.
    let other = ia(if kind & 2 == 0 { name } else { "rnic0" }, None);
    let ends = if over_via { ends::via(a, b) } else { ends::infiniband(a, b) };
    let buffer = || Arc::new(DmaBuffer::new(&node.platform, 8192, 4096).expect("memory"));
    let buffers = [buffer(), buffer()];
    let consumer = Consumer::new(&node, kind, ends, other, buffers);
    (node, consumer)
}

/// Frees everything, and checks that nothing is left.
pub(crate) fn nothing_is_left(world: &World, node: &Node, consumer: &Consumer) {
    consumer.close_others();
    // An opening that its last user dropped ends in the thread of that user.
    world.settle();
    consumer.check_outside();
    for ia in consumer.ias() {
        free(world, &ia);
        assert_eq!(ia.object_counts(), ObjectCounts::default(), "objects of a freed IA");
    }
    for agent in &node.agents {
        assert_eq!(agent.counts(), Counts::default(), "the agent's objects");
        agent.close();
    }
}

/// Frees an IA, once its callbacks have returned.
pub(crate) fn free(world: &World, ia: &Ia) {
    for _ in 0..1000 {
        match ia.ia_free() {
            Err(Error::InvalidEvdState) => drop(world.platform().now()),
            Ok(()) | Err(Error::InvalidIa) => return,
            Err(other) => panic!("freeing the IA: {other:?}"),
        }
    }
    panic!("an IA that cannot be freed");
}
