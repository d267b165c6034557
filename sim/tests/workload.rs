//! The workload under a thousand seeds.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use sim::{Tally, workload};

const SEEDS: u64 = 1000;

#[test]
fn a_thousand_seeds_keep_the_rules() {
    let next = AtomicU64::new(0);
    let all = Mutex::new(Tally::default());
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= SEEDS || !failures.lock().unwrap().is_empty() {
                        return;
                    }
                    match workload::check(seed, false) {
                        Ok(tally) => all.lock().unwrap().add(&tally),
                        Err(why) => failures.lock().unwrap().push(format!(
                            "seed {seed}: {why}\n    cargo run -p sim -- --from {seed} --trace"
                        )),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let all = all.into_inner().unwrap();
    println!("{all}");
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
