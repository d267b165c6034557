//! Calls as in [`crate::api`], by three threads at once, on the same IAs and with each other's
//! handles. The input is the schedule of the threads.
//!
//! What must hold: each call returns; when the IAs are freed, neither objects nor threads are left.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sim::World;

use crate::Input;
use crate::api::{nothing_is_left, set_up};
use crate::calls::Consumer;

const THREADS: usize = 3;
const STEPS: usize = 64;

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let seed = u64::from_le_bytes([input.byte(), input.byte(), 0, 0, 0, 0, 0, 0]);
    let outcome = sim::run(seed, 1, |world| {
        let (node, consumer) = set_up(world, &mut input);
        let part = bytes.len().div_ceil(THREADS).max(1);
        at_once(world, &consumer, STEPS, Consumer::call, bytes.chunks(part));
        nothing_is_left(world, &node, &consumer);
    });
    assert_eq!(outcome.left, Vec::<String>::new(), "threads that did not end");
}

/// Runs a thread with a copy of the consumer for each of these inputs, for so many steps at most;
/// returns when all have ended.
pub(crate) fn at_once<'a, C: Clone + Send + 'static>(
    world: &World,
    consumer: &C,
    steps: usize,
    call: fn(&mut C, &mut Input<'_>),
    inputs: impl Iterator<Item = &'a [u8]>,
) {
    let platform = world.platform();
    let running = Arc::new(AtomicU32::new(0));
    for bytes in inputs {
        running.fetch_add(1, Ordering::Relaxed);
        let (mut consumer, bytes, ended) = (consumer.clone(), bytes.to_vec(), running.clone());
        let others = platform.clone();
        let main = move || {
            let mut input = Input::new(&bytes);
            for _ in 0..steps {
                if input.is_empty() {
                    break;
                }
                call(&mut consumer, &mut input);
            }
            drop(consumer);
            ended.fetch_sub(1, Ordering::Release);
            others.wake(&ended);
        };
        platform.spawn("caller", Box::new(main)).expect("a thread");
    }
    loop {
        match running.load(Ordering::Acquire) {
            0 => return,
            left => drop(platform.wait(&running, left, None)),
        }
    }
}
