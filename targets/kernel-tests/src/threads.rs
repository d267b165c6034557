//! Threads, waiting, time.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;

use kernel::{clock, thread};
use platform::{Platform, Wake, sync::Mutex};

use crate::{Failure, Machine, Outcome, Test, check};

/// All tests of this file.
pub const TESTS: &[Test] = &[
    ("kernel.thread.a_thread_runs", a_thread_runs),
    ("kernel.thread.each_of_many_runs_once", each_of_many_runs_once),
    ("kernel.thread.ids_differ", ids_differ),
    ("kernel.thread.spinning_threads_are_preempted", spinning_threads_are_preempted),
    ("kernel.thread.sleepers_wake_beside_spinners", sleepers_beside_spinners),
    ("kernel.thread.takes_turns_beside_sleepers", takes_turns_beside_sleepers),
    ("kernel.thread.interrupts_renew_no_slice", interrupts_renew_no_slice),
    ("kernel.thread.stacks_are_used_again", stacks_are_used_again),
    ("kernel.wait.returns_at_once_if_the_word_differs", word_differs),
    ("kernel.wait.times_out", times_out),
    ("kernel.wait.returns_at_once_after_the_deadline", past_deadline),
    ("kernel.wait.a_wake_ends_it", a_wake_ends_it),
    ("kernel.wait.wakes_all", wakes_all),
    ("kernel.wait.wakes_only_its_word", wakes_only_its_word),
    ("kernel.wait.no_wake_is_lost", no_wake_is_lost),
    ("kernel.wait.deadlines_in_order", deadlines_in_order),
    ("kernel.wait.timeouts_race_with_wakes", timeouts_race_with_wakes),
    ("kernel.thread.heap_is_shared", heap_is_shared),
    ("kernel.sync.a_contended_mutex_excludes", contended_mutex),
    ("kernel.clock.never_runs_backwards", never_backwards),
    ("kernel.clock.agrees_with_the_timer", agrees_with_the_timer),
];

/// Counts the threads that are done, and lets another thread wait for them.
#[derive(Default)]
pub struct Done(AtomicU32);

impl Done {
    /// One more is done.
    pub fn one(&self, platform: &dyn Platform) {
        self.0.fetch_add(1, Ordering::SeqCst);
        platform.wake(&self.0);
    }

    /// Waits until `count` threads are done.
    pub fn wait(&self, platform: &dyn Platform, count: u32) -> Outcome {
        let deadline = clock::now() + Duration::from_secs(30);
        loop {
            let now = self.0.load(Ordering::SeqCst);
            if now >= count {
                return Ok(());
            }
            if platform.wait(&self.0, now, Some(deadline)) == Wake::TimedOut {
                return Err(Failure::new("threads did not finish"));
            }
        }
    }
}

/// Starts a thread.
#[track_caller]
pub fn spawn(main: impl FnOnce() + Send + 'static) -> Outcome {
    thread::spawn("test", main).map_err(|_| Failure::new("no memory for a thread"))
}

/// Runs `count` threads to their end.
pub fn run_threads(m: &Machine, count: u32, main: impl Fn(u32) + Send + Sync + 'static) -> Outcome {
    let done = Arc::new(Done::default());
    let main = Arc::new(main);
    for i in 0..count {
        let (done, platform, main) = (done.clone(), m.platform.clone(), main.clone());
        spawn(move || {
            main(i);
            drop(main);
            done.one(&*platform);
        })?;
    }
    done.wait(&*m.platform, count)
}

fn a_thread_runs(m: &Machine) -> Outcome {
    let seen = Arc::new(AtomicU32::new(0));
    let theirs = seen.clone();
    run_threads(m, 1, move |_| theirs.store(7, Ordering::SeqCst))?;
    check(seen.load(Ordering::SeqCst) == 7, "the thread's store is missing")
}

fn each_of_many_runs_once(m: &Machine) -> Outcome {
    let sum = Arc::new(AtomicU32::new(0));
    let theirs = sum.clone();
    run_threads(m, 200, move |i| {
        thread::sleep(Duration::from_micros(u64::from(i % 7) * 100));
        theirs.fetch_add(i, Ordering::SeqCst);
    })?;
    check(sum.load(Ordering::SeqCst) == 199 * 200 / 2, "not every thread ran once")
}

fn ids_differ(m: &Machine) -> Outcome {
    let ids = Arc::new(Mutex::new(Vec::new()));
    ids.lock().push(thread::current_id());
    let theirs = ids.clone();
    run_threads(m, 50, move |_| theirs.lock().push(thread::current_id()))?;
    let mut ids = ids.lock().clone();
    ids.sort_unstable();
    ids.dedup();
    check(ids.len() == 51 && ids[0] != 0, "two threads have one number, or one has 0")
}

fn spinning_threads_are_preempted(m: &Machine) -> Outcome {
    // Each spins until it has seen the other's turn: on one CPU both end only if each is preempted.
    let turns = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
    run_threads(m, 2, move |i| {
        let (mine, other) = (&turns[i as usize], &turns[1 - i as usize]);
        for turn in 1..=5 {
            mine.store(turn, Ordering::SeqCst);
            while other.load(Ordering::SeqCst) < turn {
                core::hint::spin_loop();
            }
        }
    })
}

fn sleepers_beside_spinners(m: &Machine) -> Outcome {
    let stop = Arc::new(AtomicBool::new(false));
    let spinners = Arc::new(Done::default());
    for _ in 0..3 {
        let (stop, spinners, platform) = (stop.clone(), spinners.clone(), m.platform.clone());
        spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                core::hint::spin_loop();
            }
            spinners.one(&*platform);
        })?;
    }
    for _ in 0..20 {
        thread::sleep(Duration::from_millis(1));
    }
    stop.store(true, Ordering::SeqCst);
    spinners.wait(&*m.platform, 3)
}

/// Threads that sleep and work in turns, until they have been woken `limit` times in all.
struct Sleepers {
    wakes: Arc<AtomicU32>,
    limit: u32,
    begin: Arc<Done>,
    ended: Arc<Done>,
    count: u32,
}

impl Sleepers {
    /// Starts the threads; they begin with [`Sleepers::beside`]. Their work is to read the clock
    /// `work` times.
    fn new(m: &Machine, count: u32, limit: u32, sleep: Duration, work: u32) -> Result<Sleepers, Failure> {
        let (begin, ended) = (Arc::new(Done::default()), Arc::new(Done::default()));
        let wakes = Arc::new(AtomicU32::new(0));
        for _ in 0..count {
            let (begin, ended, wakes) = (begin.clone(), ended.clone(), wakes.clone());
            let platform = m.platform.clone();
            spawn(move || {
                let begun = begin.wait(&*platform, 1);
                while begun.is_ok() && wakes.load(Ordering::SeqCst) < limit {
                    thread::sleep(sleep);
                    wakes.fetch_add(1, Ordering::SeqCst);
                    for _ in 0..work {
                        core::hint::black_box(clock::now());
                    }
                }
                ended.one(&*platform);
            })?;
        }
        Ok(Sleepers { wakes, limit, begin, ended, count })
    }

    /// Runs `main` beside them; it must end before they do.
    fn beside(&self, m: &Machine, main: impl FnOnce() -> Outcome) -> Outcome {
        self.begin.one(&*m.platform);
        let outcome = main();
        let wakes = self.wakes.fetch_max(self.limit, Ordering::SeqCst);
        self.ended.wait(&*m.platform, self.count)?;
        outcome?;
        check(wakes < self.limit, "it got no CPU time before the sleepers ended")
    }
}

fn takes_turns_beside_sleepers(m: &Machine) -> Outcome {
    // The threads that the timer wakes have more work than there is time, since it wakes the next
    // before the last one is done. They may delay each turn of ours by one slice.
    let cpus = kernel::cpus();
    let sleepers = Sleepers::new(m, 64 * cpus, 5000 * cpus, Duration::from_micros(50), 3000)?;
    sleepers.beside(m, || {
        for _ in 0..5 {
            let before = sleepers.wakes.load(Ordering::SeqCst);
            while before < sleepers.limit && sleepers.wakes.load(Ordering::SeqCst) == before {
                thread::yield_now();
            }
        }
        Ok(())
    })
}

fn interrupts_renew_no_slice(m: &Machine) -> Outcome {
    // These sleepers hardly run, but interrupt the running thread several times in a slice. If that
    // thread began a new slice each time, the others would not run.
    let cpus = kernel::cpus();
    Sleepers::new(m, cpus, 300 * cpus, Duration::from_millis(1), 0)?.beside(m, || {
        let turns: Vec<AtomicU32> = (0..=cpus).map(|_| AtomicU32::new(0)).collect();
        run_threads(m, cpus + 1, move |i| {
            for turn in 1..=10 {
                turns[i as usize].store(turn, Ordering::SeqCst);
                while turns.iter().any(|other| other.load(Ordering::SeqCst) < turn) {
                    core::hint::spin_loop();
                }
            }
        })
    })
}

fn stacks_are_used_again(m: &Machine) -> Outcome {
    run_threads(m, 20, |_| ())?;
    while thread::alive() > 2 {
        thread::yield_now();
    }
    let before = kernel::memory::usage();
    for _ in 0..20 {
        run_threads(m, 20, |_| ())?;
        // A thread ends a little after it has reported that it is done.
        while thread::alive() > 2 {
            thread::yield_now();
        }
    }
    let after = kernel::memory::usage();
    check(after.heap == before.heap, "ended threads leave something on the heap")?;
    check(after.free_pages == before.free_pages, "ended threads leave pages behind")
}

fn word_differs(m: &Machine) -> Outcome {
    let word = AtomicU32::new(1);
    check(m.platform.wait(&word, 0, None) == Wake::Woken, "it waited though the word differs")
}

fn times_out(m: &Machine) -> Outcome {
    let word = AtomicU32::new(0);
    let deadline = clock::now() + Duration::from_millis(3);
    while m.platform.wait(&word, 0, Some(deadline)) == Wake::Woken {}
    check(clock::now() >= deadline, "it timed out too early")
}

fn past_deadline(m: &Machine) -> Outcome {
    let word = AtomicU32::new(0);
    let past = clock::now();
    check(m.platform.wait(&word, 0, Some(past)) == Wake::TimedOut, "the deadline had passed")?;
    word.store(1, Ordering::SeqCst);
    check(m.platform.wait(&word, 0, Some(past)) == Wake::Woken, "the word is compared before the deadline")
}

fn a_wake_ends_it(m: &Machine) -> Outcome {
    let word = Arc::new(AtomicU32::new(0));
    let (theirs, platform) = (word.clone(), m.platform.clone());
    spawn(move || {
        theirs.store(1, Ordering::SeqCst);
        platform.wake(&theirs);
    })?;
    while word.load(Ordering::SeqCst) == 0 {
        m.platform.wait(&word, 0, None);
    }
    Ok(())
}

fn wakes_all(m: &Machine) -> Outcome {
    let word = Arc::new(AtomicU32::new(0));
    let (ready, done) = (Arc::new(Done::default()), Arc::new(Done::default()));
    for _ in 0..10 {
        let (word, ready, done, platform) = (word.clone(), ready.clone(), done.clone(), m.platform.clone());
        spawn(move || {
            ready.one(&*platform);
            while word.load(Ordering::SeqCst) == 0 {
                platform.wait(&word, 0, None);
            }
            done.one(&*platform);
        })?;
    }
    ready.wait(&*m.platform, 10)?;
    word.store(1, Ordering::SeqCst);
    m.platform.wake(&word);
    done.wait(&*m.platform, 10)
}

fn wakes_only_its_word(m: &Machine) -> Outcome {
    // More words than buckets, so that some words share a bucket.
    let words: Arc<Vec<AtomicU32>> = Arc::new((0..600).map(|_| AtomicU32::new(0)).collect());
    let done = Arc::new(Done::default());
    for i in [0_usize, 599] {
        let (words, done, platform) = (words.clone(), done.clone(), m.platform.clone());
        spawn(move || {
            while words[i].load(Ordering::SeqCst) == 0 {
                platform.wait(&words[i], 0, None);
            }
            done.one(&*platform);
        })?;
    }
    for word in &words[1..599] {
        m.platform.wake(word);
    }
    check(done.0.load(Ordering::SeqCst) == 0, "a thread was woken by another word")?;
    for i in [0_usize, 599] {
        words[i].store(1, Ordering::SeqCst);
        m.platform.wake(&words[i]);
    }
    done.wait(&*m.platform, 2)
}

fn no_wake_is_lost(m: &Machine) -> Outcome {
    // Two threads take turns without timeouts: if one wake is lost, the test never ends.
    let ball = Arc::new(AtomicU32::new(0));
    let platform = m.platform.clone();
    run_threads(m, 2, move |me| {
        for round in 0..5000 {
            let mine = 2 * round + me;
            loop {
                let now = ball.load(Ordering::SeqCst);
                if now == mine {
                    break;
                }
                platform.wait(&ball, now, None);
            }
            ball.fetch_add(1, Ordering::SeqCst);
            platform.wake(&ball);
        }
    })
}

fn deadlines_in_order(m: &Machine) -> Outcome {
    let order = Arc::new(Mutex::new(Vec::new()));
    let theirs = order.clone();
    let start = clock::now() + Duration::from_millis(5);
    let platform = m.platform.clone();
    run_threads(m, 5, move |i| {
        // 3 ms apart: longer than starting the threads takes.
        let i = (i * 3) % 5;
        let deadline = start + Duration::from_millis(3 * u64::from(i));
        let word = AtomicU32::new(0);
        while platform.wait(&word, 0, Some(deadline)) == Wake::Woken {}
        let now = clock::now();
        theirs.lock().push((deadline, now));
    })?;
    let order = order.lock();
    check(order.iter().all(|(deadline, woken)| woken >= deadline), "a thread woke too early")
}

fn timeouts_race_with_wakes(m: &Machine) -> Outcome {
    // A deadline is about as far away as the next wake, so either may come first. In both cases the
    // thread must continue and must leave the bucket's queue, which the kernel asserts in a debug
    // build.
    let words: Arc<[AtomicU32; 4]> = Arc::new(core::array::from_fn(|_| AtomicU32::new(0)));
    let platform = m.platform.clone();
    run_threads(m, 8, move |me| {
        for round in 0..2000_u32 {
            let word = &words[(me / 2) as usize];
            if me % 2 == 0 {
                let deadline = clock::now() + Duration::from_micros(u64::from(round % 40));
                platform.wait(word, word.load(Ordering::SeqCst), Some(deadline));
            } else {
                word.fetch_add(1, Ordering::SeqCst);
                platform.wake(word);
                if round % 8 == 0 {
                    thread::yield_now();
                }
            }
        }
    })
}

fn heap_is_shared(m: &Machine) -> Outcome {
    let before = kernel::memory::usage().heap;
    let wrong = Arc::new(AtomicU32::new(0));
    let theirs = wrong.clone();
    run_threads(m, 6, move |me| {
        for round in 0..3000_u32 {
            let len = ((round * 37 + me * 101) % 5000) as usize;
            let block = alloc::vec![me as u8; len];
            if round % 16 == 0 {
                thread::yield_now();
            }
            if block.iter().any(|b| *b != me as u8) {
                theirs.fetch_add(1, Ordering::Relaxed);
            }
        }
    })?;
    while thread::alive() > 2 {
        thread::yield_now();
    }
    check(wrong.load(Ordering::Relaxed) == 0, "two threads got the same memory")?;
    drop(wrong);
    check(kernel::memory::usage().heap == before, "some memory was not released")
}

fn contended_mutex(m: &Machine) -> Outcome {
    let total = Arc::new((Mutex::new(0_u64), AtomicU64::new(0)));
    let theirs = total.clone();
    run_threads(m, 4, move |_| {
        for _ in 0..20_000 {
            let mut value = theirs.0.lock();
            let old = *value;
            if old % 1000 == 0 {
                thread::yield_now();
            }
            *value = old + 1;
            theirs.1.fetch_add(1, Ordering::Relaxed);
        }
    })?;
    check(*total.0.lock() == 80_000, "two threads held the mutex at once")
}

fn never_backwards(_: &Machine) -> Outcome {
    let mut last = clock::now();
    for _ in 0..200_000 {
        let now = clock::now();
        if now < last {
            return Err(Failure::new("it ran backwards"));
        }
        last = now;
    }
    Ok(())
}

fn agrees_with_the_timer(m: &Machine) -> Outcome {
    // The timer is another clock: if its rate were measured wrongly, deadlines would come much too
    // late. The bound is loose, since an emulator may stop for a while.
    let word = AtomicU32::new(0);
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let begun = clock::now();
        let deadline = begun + Duration::from_millis(20);
        while m.platform.wait(&word, 0, Some(deadline)) == Wake::Woken {}
        best = best.min(clock::now().since(begun));
    }
    check(best < Duration::from_millis(100), "waiting for 20 ms took more than 100 ms five times")
}
