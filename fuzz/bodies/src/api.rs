//! The API's argument space: calls with any handles, flags, lengths and addresses, by privileged
//! and unprivileged consumers, on a simulated machine with a fixed seed.
//!
//! What must hold: each call returns; a consumer's memory outside all regions does not change; when
//! the IAs are freed, neither objects nor threads are left.

use std::sync::Arc;

use common::{Node, Pair, Sizes};
use kernel_agent::Counts;
use platform::DmaBuffer;
use privileged_api::{Error, Ia, ObjectCounts};
use sim::World;

use crate::Input;
use crate::calls::Consumer;

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

/// A machine with a connected pair and an unprivileged consumer.
pub(crate) fn set_up(world: &World, input: &mut Input<'_>) -> (Node, Consumer) {
    let start = || {
        let node = Node::start(world.platform(), world.privileged(), world.transports())?;
        let sizes = Sizes { requests: 8, message: 1 << 16 };
        let (a, b) = (node.ia(0)?, node.ia(0)?);
        let other = node.provider.ia_create("rnic0", 2, 1, None).expect("an unprivileged IA");
        let pair = Pair::connect(a, b, sizes)?;
        Ok::<_, common::Failure>((node, pair, other))
    };
    let (node, pair, other) = start().unwrap_or_else(|failure| panic!("{failure}"));
    let buffer = || Arc::new(DmaBuffer::new(&node.platform, 8192, 4096).expect("memory"));
    let buffers = [buffer(), buffer()];
    let consumer = Consumer::new(&node, pair, other, buffers, input);
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
