//! VIPL's argument space: calls with any handles, flags, lengths and addresses on two NICs, by the
//! short cut or over a wire, by one thread or by three at once; with calls that wait in threads of
//! their own, handlers that call back in, and NICs that are closed meanwhile.
//!
//! What must hold: each call returns; memory that was never registered does not change; when the
//! NICs are closed, neither objects nor threads are left; afterwards a fresh pair moves a message.

use std::sync::Arc;

use common::Node;
use common::via_pair::{Pair, Queue};
use kernel_agent::Counts;
use platform::DmaBuffer;
use sim::{Network, World};
use vipl::{ReliabilityLevel, Status};

use crate::Input;
use crate::race::at_once;
use crate::vipl_calls::ViplConsumer;

const THREADS: usize = 3;
const STEPS: usize = 96;

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (kind, seed) = (input.byte(), input.byte());
    let network = if kind & 0x10 != 0 { Network::Wire } else { Network::ShortCut };
    let level = match kind % 4 {
        0 => ReliabilityLevel::Unreliable,
        1 => ReliabilityLevel::Delivery,
        _ => ReliabilityLevel::Reception,
    };
    let outcome = sim::run_over(seed.into(), network, |world| {
        let node = Node::start(world.platform(), world.privileged(), world.transports());
        let node = node.unwrap_or_else(|failure| panic!("{failure}"));
        let mut consumer = ViplConsumer::new(&node, [0, 1], Vec::new(), level);
        if kind & 0x20 != 0 {
            let part = bytes.len().div_ceil(THREADS).max(1);
            at_once(world, &consumer, STEPS, ViplConsumer::call, bytes.chunks(part));
        } else {
            for _ in 0..STEPS {
                if input.is_empty() {
                    break;
                }
                consumer.call(&mut input);
            }
        }
        consumer.close();
        // An opening that its last user dropped ends in the thread of that user.
        world.settle();
        consumer.check_outside();
        nothing_is_left(&node);
        fresh(&node, level);
        nothing_is_left(&node);
        node.close();
        stays_within(world);
    });
    assert_eq!(outcome.left, Vec::<String>::new(), "threads that did not end");
}

fn nothing_is_left(node: &Node) {
    for agent in &node.agents {
        assert_eq!(agent.counts(), Counts::default(), "the agent's objects");
    }
}

fn stays_within(world: &World) {
    assert_eq!(world.strays(), None, "the device reached for memory that is nobody's");
}

/// A fresh pair moves a message.
fn fresh(node: &Node, level: ReliabilityLevel) {
    let buffer = || Arc::new(DmaBuffer::new(&node.platform, 4096, 4096).expect("memory"));
    let [from, to] = [buffer(), buffer()];
    from.slice().fill(9);
    let moves = || {
        let pair = Pair::connect(node, [0, 1], [&from, &to], level, 4096)?;
        let receive = pair.b.descriptor(Queue::Receive, 0)?;
        let ([segment], _) = pair.b.segments(0, 3000);
        receive.receive(&[segment]).expect("there is room");
        pair.b.post(Queue::Receive, &receive)?;
        let send = pair.a.descriptor(Queue::Send, 0)?;
        let ([segment], _) = pair.a.segments(0, 3000);
        send.send(&[segment], None).expect("there is room");
        pair.a.post(Queue::Send, &send)?;
        pair.a.done(Queue::Send, 0, Status::empty())?;
        pair.b.done(Queue::Receive, 0, Status::OP_RECEIVE)?;
        pair.close()
    };
    moves().unwrap_or_else(|failure| panic!("a fresh pair: {failure}"));
    let mut bytes = [0; 3000];
    to.read(0, &mut bytes).expect("a page");
    assert!(bytes == [9; 3000], "the message arrived");
}
