//! Compares two threads that post at the same time to neighbouring endpoints with two threads that
//! post to distant ones. The comparison is printed, and nothing depends on it: timings mean little
//! on a machine that does other work.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use host::Paused;
use privileged_api::{DtoCompletion, EpRef};

use crate::calls::{self, Arguments};
use crate::world::{End, World};

/// Posts of each thread in a burst: as many as its queue has room for.
const BURST: usize = 1024;
/// Bursts of a round, and rounds of each kind.
const BURSTS: u32 = 16;
const ROUNDS: usize = 9;
/// Endpoints between the distant ones.
const BETWEEN: usize = 64;

/// Prints the cost of a post for both kinds of pairs.
pub fn print() {
    let world = World::new();
    let [near, next, far] = endpoints(&world);
    let with = world.arguments(1);
    let mut rounds = [[0.0; ROUNDS]; 2];
    world.paused(|device| {
        for round in 0..=ROUNDS {
            for (kind, other) in [next, far].into_iter().enumerate() {
                let cost = cost(&world, device, [near, other], &with);
                // The first round warms up.
                if let Some(round) = round.checked_sub(1) {
                    rounds[kind][round] = cost;
                }
            }
        }
    });
    let [neighbours, distant] = rounds.map(|mut costs| {
        costs.sort_by(f64::total_cmp);
        costs[ROUNDS / 2]
    });
    println!("\ntwo threads that post Writes at once, nanoseconds a post (median of {ROUNDS} rounds)");
    println!("{:<48} {neighbours:>8.1}", "to neighbouring endpoints");
    println!("{:<48} {distant:>8.1}", format!("to endpoints with {BETWEEN} between them"));
    println!("{:<48} {:>8.2}", "ratio", neighbours / distant);
}

/// Two connected neighbours, and a connected endpoint that is far from both.
fn endpoints(world: &World) -> [End; 3] {
    let end = |depth| world.end(world.evd(2 * depth), world.evd(2 * depth), depth);
    let (near, next) = (end(BURST), end(BURST));
    for _ in 0..BETWEEN {
        end(1);
    }
    let ends = [near, next, end(BURST)];
    for end_to_connect in ends {
        world.connect(end_to_connect.ep, end(1).ep);
    }
    ends
}

/// The cost of one post in a round, in nanoseconds. The device is paused while the threads post.
fn cost(world: &World, device: &mut Paused<'static>, ends: [End; 2], with: &Arguments) -> f64 {
    let mut took = Duration::ZERO;
    for _ in 0..BURSTS {
        let eps = ends.map(|end| black_box(world.ia.ep_ref(end.ep).expect("the endpoint")));
        took += burst(eps, with);
        for end in ends {
            drain(world, device, end);
        }
    }
    took.as_nanos() as f64 / f64::from(2 * BURSTS) / BURST as f64
}

/// Two threads post at once; returns the sum of their times.
fn burst(eps: [EpRef<'_>; 2], with: &Arguments) -> Duration {
    let ready = AtomicU32::new(0);
    thread::scope(|scope| {
        let threads = eps.map(|ep| {
            let ready = &ready;
            scope.spawn(move || {
                ready.fetch_add(1, Ordering::AcqRel);
                while ready.load(Ordering::Acquire) < 2 {
                    spin_loop();
                }
                let start = Instant::now();
                (0..BURST).for_each(|_| calls::write_by_ref(ep, with));
                start.elapsed()
            })
        });
        threads.into_iter().map(|thread| thread.join().expect("a poster")).sum()
    })
}

/// Lets the device execute the requests of an endpoint, and takes all completions.
fn drain(world: &World, device: &mut Paused<'static>, end: End) {
    let mut done = [DtoCompletion::default(); 64];
    let mut left = BURST;
    while left > 0 {
        device.step();
        left -= calls::dequeue_all(&world.ia, end.requests, &mut done);
    }
}
