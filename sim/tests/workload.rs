//! The workload under a thousand seeds.

mod seeds;
mod workers;

use links::Fault;
use sim::workload;

const SEEDS: u64 = 1000;
/// Seeds of which all streams are over iWARP.
const IWARP_SEEDS: u64 = 400;

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
fn streams_over_iwarp_keep_the_rules() {
    let all = seeds::check_all(IWARP_SEEDS, "--iwarp ", workload::check_iwarp);
    for what in [
        "send",
        "send and unlink",
        "write",
        "read",
        "link",
        "unlink",
        "endings: idle",
        "endings: under load",
        "endings: freed under load",
        "endings: access without a right",
        "rejected connections",
        "ends disconnected",
        "ends broken",
        "bare peers: messages",
        "bare peers: closed",
        "bare peers: closed inside a message",
        "bare peers: reset",
        "bare peers: a wrong CRC",
        "bare peers: a wrong message number",
        "bare peers: written and closed",
        "bare peers: a stale STag",
    ] {
        assert!(all.done.get(what).is_some_and(|&times| times > 20), "too few: {what}\n{all}");
    }
    for what in Fault::ALL.map(Fault::tally) {
        assert!(all.faults.get(what).is_some_and(|&times| times > 20), "too few: {what}\n{all}");
    }
}

#[test]
fn a_seed_decides_what_happens() {
    assert_eq!(workload::check(5, false), workload::check(5, false));
    assert_eq!(workload::check_iwarp(5, false), workload::check_iwarp(5, false));
    assert_ne!(workload::check(5, false), workload::check(6, false));
}
