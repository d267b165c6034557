//! Large RDMA Writes over ten connections at once: what a link with losses leaves of their rate.

use common::{Failure, Node, SERVICE, Trying};
use kernel::{clock, println};

use super::Role;
use super::fleet::Fleet;
use super::link::{Link, Wait, reap};
use crate::bandwidth::MESSAGE;

const CONNECTIONS: usize = 10;
/// Writes in flight on each connection.
const DEPTH: usize = 4;
/// Writes of a round.
const WRITES: usize = 10 * CONNECTIONS;
const ROUNDS: usize = 3;

/// Measures and prints.
pub fn measure(node: &Node, link: &Link, over: &str) -> Result<(), Failure> {
    let fleet = Fleet::new(node, link, Role::Client, (0, CONNECTIONS), MESSAGE)?;
    link.barrier(Role::Client)?;
    fleet.connect(0)?;
    let mut rates = [0.0; ROUNDS];
    // The first round warms up.
    round(&fleet)?;
    for rate in &mut rates {
        *rate = round(&fleet)?;
    }
    rates.sort_unstable_by(f64::total_cmp);
    println!("@bench {over}: 1 MiB RDMA Writes, 10 connections|{:.2}|-|MB/s|-", rates[ROUNDS / 2]);
    // The image ends.
    core::mem::forget(fleet);
    link.barrier(Role::Client)
}

/// The rate of a round in MB/s. The connections take turns as far as they have room.
fn round(fleet: &Fleet) -> Result<f64, Failure> {
    let begin = clock::tsc();
    let (mut posted, mut turn) = (0, 0);
    for done in 0..WRITES {
        let mut refused = 0;
        while posted < WRITES.min(done + DEPTH * CONNECTIONS) && refused < CONNECTIONS {
            let took = fleet.write(&fleet.endpoints[turn % CONNECTIONS])?;
            posted += usize::from(took);
            refused = if took { 0 } else { refused + 1 };
            turn += 1;
        }
        reap(&fleet.queue, Wait::Polling)?;
    }
    let seconds = (clock::tsc() - begin) as f64 / clock::tsc_hz() as f64;
    Ok((WRITES * MESSAGE) as f64 / seconds / 1e6)
}

/// Accepts the connections, and keeps them until the client has finished.
pub fn answer(node: &Node, link: &Link) -> Result<(), Failure> {
    let fleet = Fleet::new(node, link, Role::Server, (0, CONNECTIONS), MESSAGE)?;
    let listener = fleet.queue.nic().listen(SERVICE).trying("listening")?;
    link.barrier(Role::Server)?;
    fleet.accept(&listener)?;
    core::mem::forget(fleet);
    link.barrier(Role::Server)
}
