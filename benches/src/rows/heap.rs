//! The heap that an idle connected endpoint takes besides its queues, which have one request and
//! one Receive; the driver's shadow state takes 16 bytes for each. Allocations of the device's
//! thread are not counted, since a real NIC has its own memory.
//!
//! Communication ids are random, so the maps of connections get their keys in another order in each
//! run, and have a node of 320 bytes more or less. The value is a mean over so many endpoints that
//! it differs by some four bytes from run to run.

use crate::HEAP;
use crate::samples::Recorder;
use crate::world::World;

const DEPTH: usize = 1;
/// Pairs of endpoints. The first ones allocate room that later ones use.
const PAIRS: usize = 512;

pub fn count(rows: &mut Recorder) {
    let world = World::new();
    let (requests, receives) = (world.evd(PAIRS), world.evd(PAIRS));
    let connect = || {
        for _ in 0..PAIRS {
            let end = || world.end(requests, receives, DEPTH).ep;
            world.connect(end(), end());
        }
        world.settle();
        HEAP.used_by_driver()
    };
    let before = connect();
    let after = connect();
    rows.value("endpoint_heap", after.saturating_sub(before) as f64 / (2 * PAIRS) as f64);
}
