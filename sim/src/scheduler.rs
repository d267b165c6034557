//! Runs one thread at a time, as the seed decides, on virtual time.
//!
//! A simulated thread is a real one that runs only while it is the running thread
//! ([`State::running`]). It may be preempted when it calls the platform (it always is when it has
//! to wait, and sometimes when it reads the time, wakes a word or yields), and before it takes a
//! lock of the stack. When no thread can run, time jumps to the next deadline. If there is no
//! deadline either, the simulation has found a deadlock and panics.
//!
//! The device is not a thread but a task ([`Task`]). The running thread runs it when it is picked.

use std::cell::{Cell, RefCell};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use host::Os;
use nic_model::Stats;
use platform::sync::atomic::{AtomicU32, Ordering};
use platform::{Instant, OutOfMemory, Wake};

use platform::random::Random;

/// The virtual time that reading the clock takes, so that each loop that waits for time to pass
/// ends.
const TICK: u64 = 100;
/// The virtual time that yielding takes, so that time also passes for threads that only yield.
const YIELD: u64 = 10_000;
/// How rare preemption can be. A simulation preempts at one platform call or lock in two, or in
/// another power of two, up to this exponent. Some mistakes need frequent switches; others need
/// that a thread gets far before it is preempted.
const RAREST: u64 = 6;
/// With priorities, one choice in so many changes the priority of a thread or of the device. So a
/// loop ends that waits for a thread of lower priority.
const CHANGES: u64 = 24;

/// Work that runs between the threads: the device.
pub(crate) trait Task: Send {
    /// Does a piece of work. Returns when it wants to run again: now, at a time, or when it is
    /// kicked.
    fn run(&mut self, now: Instant) -> Next;
    /// What each NIC did.
    fn stats(&self) -> Vec<Stats>;
    /// A driver kicked NIC `nic`.
    fn kicked(&mut self, nic: usize);
}

/// When a task wants to run again.
pub(crate) enum Next {
    Now,
    At(Option<Instant>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Ready,
    /// It waits on the word at this address.
    Waiting {
        word: usize,
        deadline: Option<u64>,
    },
    /// It was waiting, and the deadline passed.
    TimedOut,
    Ended,
}

struct Thread {
    name: String,
    condition: Condition,
    /// Notified when it becomes the running thread.
    resumed: Arc<Condvar>,
    priority: u64,
    /// After so many opportunities to preempt it, the thread does not run for so long.
    hold: Option<(u64, u64)>,
}

struct State {
    now: u64,
    /// When a thread last asked for random numbers fit for keys, and where these go on.
    entropy: (u64, Random),
    random: Random,
    /// The running thread is preempted at one opportunity in so many.
    preemption: u64,
    /// Whether priorities decide which thread runs next, so that a thread may be kept waiting for
    /// long while others run. Otherwise each choice is random.
    by_priority: bool,
    device_priority: u64,
    threads: Vec<Thread>,
    running: usize,
    /// When the device wants to run; `None` if only when it is kicked.
    device_at: Option<u64>,
    kicks: Vec<bool>,
    device_dead: bool,
    /// The failure with which the first thread must panic.
    failure: Option<String>,
    /// A digest of all choices. Two runs with equal digests made the same choices.
    trace: u64,
}

/// The state that the threads of one simulation share.
pub(crate) struct Scheduler {
    state: Mutex<State>,
    device: Mutex<Option<Box<dyn Task>>>,
}

thread_local! {
    /// This thread's index in its simulation.
    static ME: Cell<Option<usize>> = const { Cell::new(None) };
    /// This thread's simulation.
    static HOME: RefCell<Option<Arc<Scheduler>>> = const { RefCell::new(None) };
}

/// Whether a simulation started this thread. The one that runs the simulation goes on after it.
pub(crate) fn is_started_by_simulation() -> bool {
    ME.get().is_some_and(|me| me > 0)
}

/// Called before a lock of the stack is taken: may run another thread first.
fn preempt() {
    HOME.with_borrow(|home| {
        if let Some(scheduler) = home {
            scheduler.maybe_switch();
        }
    });
}

/// Called while a lock of the stack is contended: lets other threads run.
fn yield_now() {
    match HOME.with_borrow(Clone::clone) {
        Some(scheduler) => {
            if let Some(me) = ME.get() {
                let mut state = scheduler.state();
                state.now += YIELD;
                // The holder of the lock may have a lower priority.
                state.threads[me].priority = 0;
            }
            scheduler.give_up(Condition::Ready);
        }
        None => std::thread::yield_now(),
    }
}

enum Choice {
    Thread(usize),
    Device,
}

impl Scheduler {
    /// A simulation whose first thread is the caller.
    pub(crate) fn new(seed: u64, nics: usize) -> Arc<Scheduler> {
        let main = Thread {
            name: "main".into(),
            condition: Condition::Ready,
            resumed: Arc::new(Condvar::new()),
            priority: u64::MAX / 2,
            hold: None,
        };
        let mut random = Random::new(seed);
        let scheduler = Arc::new(Scheduler {
            state: Mutex::new(State {
                now: 0,
                entropy: (0, Random::new(0)),
                preemption: 2 << random.below(RAREST),
                by_priority: random.below(2) == 0,
                device_priority: random.word(),
                random,
                threads: vec![main],
                running: 0,
                device_at: Some(0),
                kicks: vec![false; nics],
                device_dead: false,
                failure: None,
                trace: 0,
            }),
            device: Mutex::new(None),
        });
        ME.set(Some(0));
        HOME.set(Some(scheduler.clone()));
        platform::sync::set_yield(yield_now);
        platform::sync::set_preemption(preempt);
        scheduler
    }

    pub(crate) fn set_device(&self, device: Box<dyn Task>) {
        *self.device.lock().unwrap_or_else(PoisonError::into_inner) = Some(device);
    }

    /// Ends the simulation's device, which refers to the scheduler through its NICs.
    pub(crate) fn take_device(&self) {
        let device = self.device.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(device);
    }

    /// What each NIC did.
    pub(crate) fn stats(&self) -> Vec<Stats> {
        let device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        device.as_ref().map_or(Vec::new(), |device| device.stats())
    }

    /// The virtual time; nothing happens by asking for it.
    pub(crate) fn peek(&self) -> u64 {
        self.state().now
    }

    /// Makes the device do nothing from now on.
    pub(crate) fn kill_device(&self) {
        self.state().device_dead = true;
    }

    pub(crate) fn kick(&self, nic: usize) {
        let mut state = self.state();
        state.kicks[nic] = true;
        drop(state);
        self.maybe_switch();
    }

    /// Runs `act` as if it were the device's work: no thread is preempted meanwhile.
    pub(crate) fn as_device(&self, act: impl FnOnce()) {
        let device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        act();
        drop(device);
    }

    /// Lets the calling thread pass `after` opportunities to preempt it. At the next one it loses
    /// its CPU for so long, in nanoseconds of virtual time.
    pub(crate) fn hold(&self, after: u64, lasting: u64) {
        if let Some(me) = ME.get() {
            self.state().threads[me].hold = Some((after, lasting));
        }
    }

    /// A random number, decided by the seed.
    pub(crate) fn random(&self) -> u64 {
        self.state().random.word()
    }

    /// The digest of all choices so far.
    pub(crate) fn trace(&self) -> u64 {
        self.state().trace
    }

    /// The names of the threads that have not ended, without the first.
    pub(crate) fn alive(&self) -> Vec<String> {
        let state = self.state();
        let alive = state.threads.iter().skip(1).filter(|t| t.condition != Condition::Ended);
        alive.map(|t| t.name.clone()).collect()
    }

    /// Lets other threads run until all of them wait or have ended.
    pub(crate) fn settle(&self) {
        loop {
            let state = self.state();
            let busy = state.threads.iter().skip(1).any(|t| t.condition == Condition::Ready);
            drop(state);
            if !busy {
                return;
            }
            self.give_up(Condition::Ready);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// May preempt the running thread.
    fn maybe_switch(&self) {
        // The device is at work, and its interrupt handlers must not be preempted.
        if self.device.try_lock().is_err() {
            return;
        }
        let mut state = self.state();
        if let Some(until) = ME.get().and_then(|me| state.hold(me)) {
            drop(state);
            // Nothing wakes this word.
            self.give_up(Condition::Waiting { word: 0, deadline: Some(until) });
            return;
        }
        let preemption = state.preemption;
        if state.random.below(preemption) == 0 {
            if let Some(me) = ME.get() {
                state.threads[me].priority = state.random.word();
            }
            drop(state);
            self.give_up(Condition::Ready);
        }
    }

    /// Sets the calling thread's condition and lets others run. Returns the condition with which
    /// the thread runs again.
    fn give_up(&self, condition: Condition) -> Condition {
        let Some(me) = ME.get() else {
            // A thread that is in no simulation, at a lock that is contended.
            std::thread::yield_now();
            return Condition::Ready;
        };
        let mut state = self.state();
        state.threads[me].condition = condition;
        loop {
            match state.choose() {
                Choice::Thread(next) => {
                    state.running = next;
                    break;
                }
                Choice::Device => {
                    drop(state);
                    self.run_device();
                    state = self.state();
                }
            }
        }
        if state.running != me {
            // The next thread takes the lock as soon as it is notified.
            let next = state.threads[state.running].resumed.clone();
            let resumed = state.threads[me].resumed.clone();
            drop(state);
            next.notify_one();
            if condition == Condition::Ended {
                return condition;
            }
            state = self.state();
            while state.running != me {
                state = resumed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
        let failure = if me == 0 { state.failure.take() } else { None };
        if let Some(failure) = failure {
            drop(state);
            panic!("{failure}");
        }
        std::mem::replace(&mut state.threads[me].condition, Condition::Ready)
    }

    fn run_device(&self) {
        // Only the running thread takes this lock, so it is free.
        let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(device) = device.as_mut() else { return };
        let (now, kicks) = {
            let mut state = self.state();
            state.now += TICK;
            state.device_at = None;
            (state.now, state.kicks.iter_mut().map(std::mem::take).collect::<Vec<_>>())
        };
        kicks.iter().enumerate().filter(|(_, kicked)| **kicked).for_each(|(nic, _)| device.kicked(nic));
        let next = device.run(Instant::from_nanos(now));
        self.state().device_at = match next {
            Next::Now => Some(now),
            Next::At(at) => at.map(Instant::as_nanos),
        };
    }
}

impl State {
    /// Counts an opportunity to preempt a thread. Returns until when the thread must not run, if
    /// this is the opportunity at which it is held.
    fn hold(&mut self, thread: usize) -> Option<u64> {
        let hold = &mut self.threads[thread].hold;
        match hold {
            Some((0, lasting)) => {
                let until = self.now + *lasting;
                *hold = None;
                Some(until)
            }
            Some((after, _)) => {
                *after -= 1;
                None
            }
            None => None,
        }
    }

    /// Chooses what runs next. Advances time if nothing can run now.
    fn choose(&mut self) -> Choice {
        loop {
            let now = self.now;
            for thread in &mut self.threads {
                if let Condition::Waiting { deadline: Some(deadline), .. } = thread.condition
                    && deadline <= now
                {
                    thread.condition = Condition::TimedOut;
                }
            }
            let ready = |t: &Thread| matches!(t.condition, Condition::Ready | Condition::TimedOut);
            let threads: Vec<usize> = (0..self.threads.len()).filter(|&n| ready(&self.threads[n])).collect();
            let device = !self.device_dead
                && (self.kicks.contains(&true) || self.device_at.is_some_and(|at| at <= now));
            let candidates = threads.len() as u64 + u64::from(device);
            if candidates > 0 {
                let pick = if self.by_priority {
                    self.most_urgent(&threads, device)
                } else {
                    self.random.below(candidates)
                };
                self.trace = (self.trace ^ pick ^ now).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(5);
                return threads.get(pick as usize).map_or(Choice::Device, |&thread| Choice::Thread(thread));
            }
            let deadlines = self.threads.iter().filter_map(|t| match t.condition {
                Condition::Waiting { deadline, .. } => deadline,
                _ => None,
            });
            let device_at = self.device_at.filter(|_| !self.device_dead);
            match deadlines.chain(device_at).min() {
                Some(at) => self.now = self.now.max(at),
                None => {
                    // The first thread reports it, wherever it waits.
                    let stuck = self.threads.iter().filter(|t| t.condition != Condition::Ended);
                    let stuck: Vec<_> = stuck.map(|t| (&t.name, t.condition)).collect();
                    self.failure.get_or_insert(format!("deadlock of {stuck:?}"));
                    return Choice::Thread(0);
                }
            }
        }
    }

    /// The index of the thread in `threads` with the highest priority, or their number if the
    /// device's is higher.
    fn most_urgent(&mut self, threads: &[usize], device: bool) -> u64 {
        let candidates = threads.len() + usize::from(device);
        if self.random.below(CHANGES) == 0 {
            let lucky = self.random.below(candidates as u64) as usize;
            let priority = self.random.word();
            match threads.get(lucky) {
                Some(&thread) => self.threads[thread].priority = priority,
                None => self.device_priority = priority,
            }
        }
        let priority = |&pick: &usize| match threads.get(pick) {
            Some(&thread) => self.threads[thread].priority,
            None => self.device_priority,
        };
        (0..candidates).max_by_key(priority).unwrap_or(0) as u64
    }
}

/// The scheduler as an operating system.
pub(crate) struct Simulated(pub(crate) Arc<Scheduler>);

impl Os for Simulated {
    fn now(&self) -> Instant {
        let now = {
            let mut state = self.0.state();
            state.now += TICK;
            state.now
        };
        self.0.maybe_switch();
        Instant::from_nanos(now)
    }

    fn wait(&self, word: &AtomicU32, expected: u32, deadline: Option<Instant>) -> Wake {
        // No other thread runs between this check and the wait.
        if word.load(Ordering::SeqCst) != expected {
            return Wake::Woken;
        }
        let word = std::ptr::from_ref(word) as usize;
        let waiting = Condition::Waiting { word, deadline: deadline.map(Instant::as_nanos) };
        match self.0.give_up(waiting) {
            Condition::TimedOut => Wake::TimedOut,
            _ => Wake::Woken,
        }
    }

    fn wake(&self, word: &AtomicU32) {
        let address = std::ptr::from_ref(word) as usize;
        for thread in &mut self.0.state().threads {
            if matches!(thread.condition, Condition::Waiting { word, .. } if word == address) {
                thread.condition = Condition::Ready;
            }
        }
        self.0.maybe_switch();
    }

    fn entropy(&self) -> Option<u64> {
        // Of the moment, which the seed decides. It takes none of the scheduler's random numbers.
        let mut state = self.0.state();
        let now = state.now;
        if state.entropy.0 != now {
            state.entropy = (now, Random::new(now));
        }
        Some(state.entropy.1.word())
    }

    fn spawn(&self, name: &str, main: Box<dyn FnOnce() + Send>) -> Result<(), OutOfMemory> {
        let resumed = Arc::new(Condvar::new());
        let me = {
            let mut state = self.0.state();
            let priority = state.random.word();
            state.threads.push(Thread {
                name: name.into(),
                condition: Condition::Ready,
                resumed: resumed.clone(),
                priority,
                hold: None,
            });
            state.threads.len() - 1
        };
        let scheduler = self.0.clone();
        let body = move || {
            ME.set(Some(me));
            let mut state = scheduler.state();
            while state.running != me {
                state = resumed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            drop(state);
            HOME.set(Some(scheduler.clone()));
            if std::panic::catch_unwind(AssertUnwindSafe(main)).is_err() {
                let mut state = scheduler.state();
                state.failure = Some(format!("thread {} panicked", state.threads[me].name));
            }
            scheduler.give_up(Condition::Ended);
        };
        std::thread::Builder::new().name(name.into()).spawn(body).map(drop).map_err(|_| OutOfMemory)
    }

    fn current_thread(&self) -> u64 {
        ME.get().map_or(u64::MAX, |me| me as u64 + 1)
    }
}
