//! The heap that an idle connected endpoint takes. Its rings are DMA memory and not counted; the
//! driver's shadow state of its 16 requests and 16 Receives is.

use crate::HEAP;
use crate::samples::Recorder;
use crate::world::World;

const DEPTH: usize = 16;
/// Pairs of endpoints. The first ones make room that later ones use.
const PAIRS: usize = 64;

pub fn count(rows: &mut Recorder) {
    let world = World::new();
    let (requests, receives) = (world.evd(64), world.evd(64));
    let connect = || {
        for _ in 0..PAIRS {
            let end = || world.end(requests, receives, DEPTH).ep;
            world.connect(end(), end());
        }
        world.settle();
        HEAP.used()
    };
    let before = connect();
    let after = connect();
    rows.value("endpoint_heap", after.saturating_sub(before) as f64 / (2 * PAIRS) as f64);
}
