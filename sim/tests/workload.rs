//! The workload under a thousand seeds.

mod seeds;
mod workers;

use sim::workload;

const SEEDS: u64 = 1000;

#[test]
fn a_thousand_seeds_keep_the_rules() {
    let all = seeds::check_all(SEEDS, "", workload::check);
    // Each kind of operation, of ending and of fault was there.
    for what in [
        "send",
        "send and unlink",
        "write",
        "read",
        "fetch and add",
        "compare and swap",
        "link",
        "unlink",
        "datagrams received",
        "unreliable messages received",
        "endings: idle",
        "endings: under load",
        "endings: freed under load",
        "endings: access without a right",
        "endings: by a fault",
        "rejected connections",
        "errors: remote access",
        "errors: receiver not ready",
        "errors: no answer",
    ] {
        assert!(all.done.get(what).is_some_and(|&times| times > 20), "too few: {what}\n{all}");
    }
    for what in ["requests without an answer", "answers lost", "datagrams lost", "receiver not ready"] {
        assert!(all.faults.get(what).is_some_and(|&times| times > 100), "too few: {what}\n{all}");
    }
}

#[test]
fn a_seed_decides_what_happens() {
    assert_eq!(workload::check(5, false), workload::check(5, false));
    assert_ne!(workload::check(5, false), workload::check(6, false));
}
