//! Freeing an endpoint of an IA with many regions.

use privileged_api::LmrFlags;

use crate::calls;
use crate::samples::{Recorder, Role};
use crate::world::World;

const REGIONS: usize = 10_000;
/// Endpoints that are freed on each side. Each free executes the same instructions, since those of
/// waiting for the device are not counted; the lowest count is used.
const FREED: usize = 16;

pub fn count(rows: &mut Recorder) {
    let world = World::new();
    free(&world, rows, Role::Against);
    for _ in 1..REGIONS {
        world.ia.lmr_create_unlinked(world.pz, 1, LmrFlags::NONE, 0).expect("a region");
    }
    free(&world, rows, Role::Count);
}

fn free(world: &World, rows: &mut Recorder, role: Role) {
    let (requests, receives) = (world.evd(1), world.evd(1));
    for _ in 0..FREED {
        let end = world.end(requests, receives, 1);
        rows.count_as(role, "ep_free", 1, || calls::free(&world.ia, end.ep));
    }
}
