//! Freeing an endpoint of an IA with many regions.

use privileged_api::LmrFlags;

use crate::calls;
use crate::samples::{Recorder, Role};
use crate::world::World;

const REGIONS: usize = 10_000;
/// Endpoints that are freed. The thread waits for the device each time, so the counts differ, and
/// the lowest one is used.
const FREED: usize = 256;
/// How often both sides are measured. In some rounds all counts of one side are too high, because
/// its device is always a little late.
const ROUNDS: usize = 2;

pub fn count(rows: &mut Recorder) {
    for _ in 0..ROUNDS {
        let world = World::new();
        free(&world, rows, Role::Against);
        for _ in 1..REGIONS {
            world.ia.lmr_create_unlinked(world.pz, 1, LmrFlags::NONE, 0).expect("a region");
        }
        free(&world, rows, Role::Count);
    }
}

fn free(world: &World, rows: &mut Recorder, role: Role) {
    let (requests, receives) = (world.evd(1), world.evd(1));
    for _ in 0..FREED {
        let end = world.end(requests, receives, 1);
        rows.count_as(role, "ep_free", 1, || calls::free(&world.ia, end.ep));
    }
}
