//! The storage target and its hosts under some seeds.

mod seeds;
mod workers;

use sim::storage;

const SEEDS: u64 = 80;

#[test]
fn seeds_keep_the_rules() {
    let all = seeds::check_all(SEEDS, "--storage ", storage::check);
    for what in [
        "read",
        "write",
        "write with FUA",
        "flush",
        "write zeroes",
        "deallocate",
        "compare",
        "requests that failed",
        "requests without an answer",
        "refused: no resources",
        "refused: no controller",
        "endings: idle",
        "endings: under load",
        "endings: vanished",
        "endings: silence",
        "endings: lost",
        "turns: done",
        "turns: stopped under load",
        "turns: disks pulled",
        "turns: power cut under load",
        "turns: several threads",
        "turns: several targets",
        "went to another target",
        "went to another port",
        "target: controllers that expired",
        "refused: no proof",
        "proved again",
        "commands without a proof",
        "intruder: refused",
        "intruder: wrong keys",
        "intruder: replies of earlier transactions",
        "intruder: messages out of turn",
        "reservations: registered",
        "reservations: acquired",
        "reservations: preempted",
        "reservations: released",
        "reservations: cleared",
        "reservations: refused",
        "reservations: reports",
        "reservations: watched",
        "reservations: commands that pass",
        "reservations: commands that do not pass",
        "pairs: counted",
        "pairs: another host was first",
        "operator: namespaces added",
        "operator: namespaces removed",
        "operator: sizes",
        "operator: views",
        "read of a tail",
        "refused: no namespace",
    ] {
        assert!(all.done.get(what).is_some_and(|&times| times > 5), "too few: {what}\n{all}");
    }
    for what in [
        "losses of power",
        "disks that stalled",
        "disks with blocks that failed",
        "disks whose flushes failed",
        "frames lost",
    ] {
        assert!(all.faults.get(what).is_some_and(|&times| times > 10), "too few: {what}\n{all}");
    }
    for what in ["short capsules", "long capsules", "wrong keys", "more commands than entries"] {
        let what = format!("rude: {what}");
        assert!(all.faults.get(what.as_str()).is_some_and(|&times| times > 0), "too few: {what}\n{all}");
    }
}

#[test]
fn a_seed_decides_what_happens() {
    assert_eq!(storage::check(5, false), storage::check(5, false));
    assert_ne!(storage::check(5, false), storage::check(6, false));
}
