//! The consumers of the API for Rust under five hundred seeds.

mod seeds;
mod workers;

use sim::face;

const SEEDS: u64 = 500;

#[test]
fn five_hundred_seeds_keep_the_rules() {
    let all = seeds::check_all(SEEDS, "--face ", face::check);
    // Each kind of operation, of ending and of fault was there.
    for what in [
        "connections over iWARP",
        "messages",
        "writes",
        "reads",
        "additions",
        "batches",
        "datagrams received",
        "streams finished",
        "streams reset",
        "streams converted",
        "requests dropped",
        "regions dropped under a request",
        "endings: idle",
        "endings: under load",
        "endings: dropped under load",
        "devices killed",
        "agents closed",
    ] {
        assert!(all.done.get(what).is_some_and(|&times| times > 20), "too few: {what}\n{all}");
    }
}

#[test]
fn a_seed_decides_what_happens() {
    assert_eq!(face::check(5, false), face::check(5, false));
}
