//! The memory that belongs to one endpoint and that a post or a dequeue touches: cache lines, and
//! pages. The endpoints are so many, and are used in turn, that a cache or a TLB has lost what
//! belongs to one of them before it is used again, while it keeps what all of them share.

use crate::calls;
use crate::samples::Recorder;
use crate::world::World;

pub const LINES: &[&str] = &["post_lines", "dequeue_lines"];
pub const PAGES: &[&str] = &["post_pages", "dequeue_pages"];

/// Pairs of endpoints. One end of each posts.
const PAIRS: usize = 128;
/// Unused endpoints behind each pair, so that no two posters share a page because they were made
/// one after the other.
const BETWEEN: usize = 30;
/// Rounds before the one that is counted.
const WARM: usize = 2;

/// Counts cache lines.
pub fn lines(rows: &mut Recorder) {
    count(rows, LINES);
}

/// Counts pages.
pub fn pages(rows: &mut Recorder) {
    count(rows, PAGES);
}

fn count(rows: &mut Recorder, keys: &[&str]) {
    let world = World::new();
    let (requests, receives) = (world.evd(2 * PAIRS), world.evd(2 * PAIRS));
    let end = || world.end(requests, receives, 1).ep;
    let posters: Vec<_> = (0..PAIRS)
        .map(|_| {
            let (a, b) = (end(), end());
            world.connect(a, b);
            for _ in 0..BETWEEN {
                end();
            }
            a
        })
        .collect();
    let with = world.arguments(1);
    let post = || posters.iter().for_each(|ep| calls::write(&world.ia, *ep, &with));
    let reap = || (0..PAIRS).for_each(|_| world.reap(requests));
    world.paused(|device| {
        for _ in 0..WARM {
            post();
            device.step();
            reap();
        }
        rows.count(keys[0], PAIRS, post);
        device.step();
        rows.count(keys[1], PAIRS, reap);
    });
}
