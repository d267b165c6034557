//! A CQ of 16,000 endpoints. They are datagram endpoints, which need no connections, and whose
//! Sends complete as those of connected endpoints do.

use super::datagrams::{address, endpoint};
use crate::calls;
use crate::samples::Recorder;
use crate::world::World;

const ENDPOINTS: usize = 16_000;

pub fn count(rows: &mut Recorder) {
    let world = World::new();
    let (requests, receives) = (world.evd(ENDPOINTS), world.evd(1));
    let endpoints: Vec<_> = (0..ENDPOINTS).map(|_| endpoint(&world, requests, receives, 1)).collect();
    let to = address(&world, endpoints[0]);
    let with = world.arguments(1);
    let reap = || {
        for _ in 0..ENDPOINTS {
            world.reap(requests);
        }
    };
    world.paused(|device| {
        for round in 0..2 {
            for ep in &endpoints {
                calls::send_to(&world.ia, *ep, &with, &to);
            }
            device.step();
            if round == 0 { reap() } else { rows.count("dequeue_16000", ENDPOINTS, reap) }
        }
    });
}
