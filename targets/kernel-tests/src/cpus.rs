//! Several CPUs: threads that run at the same time, waits and wakes between CPUs, interrupts to
//! each CPU. The tests also run with one CPU.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;

use kernel::lock::IrqOff;
use kernel::{clock, cpus, interrupts, thread};

use crate::threads::{Done, run_threads, spawn};
use crate::{Failure, Machine, Outcome, Test, check};

/// All tests of this file.
pub const TESTS: &[Test] = &[
    ("kernel.cpus.as_many_as_said", as_many_as_said),
    ("kernel.cpus.all_run_at_once", all_run_at_once),
    ("kernel.cpus.more_threads_than_cpus_take_turns", take_turns),
    ("kernel.cpus.idle_cpus_take_queued_threads", idle_cpus_take_threads),
    ("kernel.cpus.pairs_that_take_turns_lose_no_wake", pairs_that_take_turns),
    ("kernel.cpus.a_token_passes_through_a_ring_of_threads", ring),
    ("kernel.cpus.one_wakes_many", one_wakes_many),
    ("kernel.cpus.threads_that_end_leave_nothing", ended_threads_leave_nothing),
    ("kernel.cpus.clocks_agree", clocks_agree),
    ("kernel.cpus.interrupts_reach_each", interrupts_reach_each),
    ("kernel.cpus.interrupts_wake_threads", interrupts_wake_threads),
    ("kernel.cpus.removing_a_handler_waits_for_it", removing_a_handler_waits),
];

/// `cpus=N` on the command line says how many CPUs there should be.
fn as_many_as_said(_: &Machine) -> Outcome {
    let said = kernel::args().get("cpus").and_then(|n| n.parse().ok());
    check(said.is_none_or(|said: u32| said == cpus()), "not all CPUs have come up")?;
    check(thread::current_cpu() < 16, "a CPU without a number")
}

fn all_run_at_once(m: &Machine) -> Outcome {
    // With interrupts off no thread is preempted: if these meet, each has a CPU of its own.
    let here = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
    let theirs = here.clone();
    run_threads(m, cpus(), move |_| {
        let _alone = IrqOff::new();
        let (arrived, which) = &*theirs;
        which.fetch_or(1 << thread::current_cpu(), Ordering::SeqCst);
        arrived.fetch_add(1, Ordering::SeqCst);
        let deadline = clock::now() + Duration::from_secs(5);
        while arrived.load(Ordering::SeqCst) < cpus() && clock::now() < deadline {
            core::hint::spin_loop();
        }
    })?;
    check(here.1.load(Ordering::SeqCst).count_ones() == cpus(), "they did not run at the same time")
}

fn take_turns(m: &Machine) -> Outcome {
    // Each spins until all others have reached the same turn.
    let count = 3 * cpus();
    let turns: Arc<Vec<AtomicU32>> = Arc::new((0..count).map(|_| AtomicU32::new(0)).collect());
    run_threads(m, count, move |me| {
        for turn in 1..=3 {
            turns[me as usize].store(turn, Ordering::SeqCst);
            while turns.iter().any(|other| other.load(Ordering::SeqCst) < turn) {
                core::hint::spin_loop();
            }
        }
    })
}

fn idle_cpus_take_threads(m: &Machine) -> Outcome {
    // The thread that starts them keeps its CPU meanwhile, so idle CPUs have to take threads from
    // it.
    let count = 4 * cpus();
    let done = Arc::new(Done::default());
    let used = Arc::new(AtomicU32::new(0));
    for _ in 0..count {
        let (done, used, platform) = (done.clone(), used.clone(), m.platform.clone());
        spawn(move || {
            let until = clock::now() + Duration::from_millis(10);
            while clock::now() < until {
                used.fetch_or(1 << thread::current_cpu(), Ordering::SeqCst);
            }
            done.one(&*platform);
        })?;
    }
    done.wait(&*m.platform, count)?;
    check(used.load(Ordering::SeqCst).count_ones() == cpus(), "a CPU was idle while threads were ready")
}

fn pairs_that_take_turns(m: &Machine) -> Outcome {
    // Without timeouts: if one wake is lost, the test never ends.
    let balls: Arc<Vec<AtomicU32>> = Arc::new((0..2 * cpus()).map(|_| AtomicU32::new(0)).collect());
    let platform = m.platform.clone();
    run_threads(m, 4 * cpus(), move |me| {
        let ball = &balls[(me / 2) as usize];
        for round in 0..500 {
            let mine = 2 * round + me % 2;
            loop {
                let now = ball.load(Ordering::SeqCst);
                if now == mine {
                    break;
                }
                platform.wait(ball, now, None);
            }
            ball.fetch_add(1, Ordering::SeqCst);
            platform.wake(ball);
        }
    })
}

fn ring(m: &Machine) -> Outcome {
    // A token goes round the threads, which may be on any CPU. Some waits have deadlines that may
    // pass while the token comes.
    let size = 3 * cpus() + 1;
    let places: Arc<Vec<AtomicU32>> = Arc::new((0..size).map(|_| AtomicU32::new(0)).collect());
    let platform = m.platform.clone();
    run_threads(m, size, move |me| {
        let (mine, next) = (&places[me as usize], &places[((me + 1) % size) as usize]);
        for round in 1..=200 {
            if me != 0 || round != 1 {
                let wanted = if me == 0 { round - 1 } else { round };
                while mine.load(Ordering::SeqCst) < wanted {
                    let deadline = clock::now() + Duration::from_micros(u64::from(round % 50) * 20);
                    platform.wait(mine, wanted - 1, (round % 3 == 0).then_some(deadline));
                }
            }
            next.store(round, Ordering::SeqCst);
            platform.wake(next);
        }
    })
}

/// Runs `count` threads that wait, without timeouts, for each of `rounds` changes of the word.
/// `begin` changes it, each time after all threads have seen the change before.
fn wait_for_rounds(
    m: &Machine,
    word: &Arc<AtomicU32>,
    count: u32,
    rounds: u32,
    begin: impl Fn(u32),
) -> Outcome {
    let (arrived, done) = (Arc::new(Done::default()), Arc::new(Done::default()));
    for _ in 0..count {
        let (word, arrived, done, platform) =
            (word.clone(), arrived.clone(), done.clone(), m.platform.clone());
        spawn(move || {
            for round in 0..rounds {
                while word.load(Ordering::SeqCst) == round {
                    platform.wait(&word, round, None);
                }
                arrived.one(&*platform);
            }
            done.one(&*platform);
        })?;
    }
    for round in 1..=rounds {
        begin(round);
        arrived.wait(&*m.platform, round * count)?;
    }
    done.wait(&*m.platform, count)
}

fn one_wakes_many(m: &Machine) -> Outcome {
    let word = Arc::new(AtomicU32::new(0));
    wait_for_rounds(m, &word, 4 * cpus(), 200, |round| {
        word.store(round, Ordering::SeqCst);
        m.platform.wake(&word);
    })
}

fn ended_threads_leave_nothing(m: &Machine) -> Outcome {
    let settle = || {
        while thread::alive() > 2 {
            thread::yield_now();
        }
    };
    let storm = || {
        let platform = m.platform.clone();
        run_threads(m, 2 * cpus(), move |_| {
            for _ in 0..30 {
                let done = Arc::new(Done::default());
                let (theirs, inner) = (done.clone(), platform.clone());
                if spawn(move || theirs.one(&*inner)).is_err() || done.wait(&*platform, 1).is_err() {
                    panic!("a thread could not be started, or did not end");
                }
            }
        })
    };
    storm()?;
    settle();
    let before = kernel::memory::usage();
    for _ in 0..3 {
        storm()?;
        settle();
    }
    let after = kernel::memory::usage();
    check(after.heap == before.heap, "ended threads leave something on the heap")?;
    // The number of threads alive at once differs between rounds, so stacks of 128 KiB may be
    // added.
    check(before.free_pages - after.free_pages < 4 << 20, "ended threads leave their stacks behind")
}

fn clocks_agree(m: &Machine) -> Outcome {
    let last = Arc::new((AtomicU64::new(0), AtomicBool::new(true)));
    let theirs = last.clone();
    run_threads(m, 2 * cpus(), move |_| {
        for _ in 0..20_000 {
            let before = theirs.0.load(Ordering::SeqCst);
            let now = clock::now().as_nanos();
            if now < before {
                theirs.1.store(false, Ordering::SeqCst);
            }
            theirs.0.fetch_max(now, Ordering::SeqCst);
        }
    })?;
    check(last.1.load(Ordering::SeqCst), "one CPU's clock is behind another's")
}

fn interrupts_reach_each(_: &Machine) -> Outcome {
    let vector = interrupts::claim().ok_or(Failure::new("no vector left"))?;
    let seen = Arc::new(AtomicU32::new(u32::MAX));
    let theirs = seen.clone();
    vector.set(Some(Box::new(move || theirs.store(thread::current_cpu(), Ordering::SeqCst))));
    for _ in 0..20 {
        for cpu in 0..cpus() {
            check(vector.raise(cpu), "a CPU does not exist")?;
            let deadline = clock::now() + Duration::from_secs(5);
            while seen.load(Ordering::SeqCst) != cpu {
                check(clock::now() < deadline, "an interrupt did not arrive at its CPU")?;
                core::hint::spin_loop();
            }
        }
    }
    check(
        !vector.raise(cpus()) && !vector.raise(u32::MAX),
        "an interrupt was sent to a CPU that does not exist",
    )?;
    vector.set(None);
    Ok(())
}

fn interrupts_wake_threads(m: &Machine) -> Outcome {
    // Interrupts on every CPU wake threads that may have waited on any CPU.
    let word = Arc::new(AtomicU32::new(0));
    let vector = interrupts::claim().ok_or(Failure::new("no vector left"))?;
    let (theirs, platform) = (word.clone(), m.platform.clone());
    vector.set(Some(Box::new(move || {
        theirs.fetch_add(1, Ordering::SeqCst);
        platform.wake(&theirs);
    })));
    wait_for_rounds(m, &word, 2 * cpus(), 300, |round| {
        vector.raise(round % cpus());
    })?;
    vector.set(None);
    Ok(())
}

fn removing_a_handler_waits(_: &Machine) -> Outcome {
    let vector = interrupts::claim().ok_or(Failure::new("no vector left"))?;
    for cpu in 0..cpus() {
        let state = Arc::new(AtomicU32::new(0));
        let theirs = state.clone();
        vector.set(Some(Box::new(move || {
            theirs.store(1, Ordering::SeqCst);
            let until = clock::now() + Duration::from_millis(2);
            while clock::now() < until {
                core::hint::spin_loop();
            }
            theirs.store(2, Ordering::SeqCst);
        })));
        vector.raise(cpu);
        while state.load(Ordering::SeqCst) == 0 {
            core::hint::spin_loop();
        }
        vector.set(None);
        check(state.load(Ordering::SeqCst) == 2, "the handler still ran after it was unbound")?;
        check(Arc::strong_count(&state) == 1, "the handler was not freed")?;
    }
    Ok(())
}
