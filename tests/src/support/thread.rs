//! Threads for tests: started on the platform, joined with a deadline, so that a hung one fails its test.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use platform::sync::Mutex;
use platform::{Instant, Platform};

use crate::check::{Failure, Outcome};

/// How long a test waits for something that must happen; far more than it ever takes.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A word that one thread sets and others wait for.
#[derive(Clone)]
pub struct Gate {
    platform: Arc<dyn Platform>,
    count: Arc<AtomicU32>,
}

impl Gate {
    /// A gate at zero.
    pub fn new(platform: &Arc<dyn Platform>) -> Gate {
        Gate { platform: platform.clone(), count: Arc::new(AtomicU32::new(0)) }
    }

    /// Adds one and wakes who waits.
    pub fn pass(&self) {
        self.count.fetch_add(1, Ordering::Release);
        self.platform.wake(&self.count);
    }

    /// How often it was passed.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// Waits until it was passed `count` times; false if that took longer than `within`.
    pub fn reached(&self, count: u32, within: Duration) -> bool {
        let deadline = self.platform.now() + within;
        loop {
            let now = self.count();
            if now >= count {
                return true;
            }
            if self.platform.now() >= deadline {
                return false;
            }
            self.platform.wait(&self.count, now, Some(deadline));
        }
    }

    /// As [`Gate::reached`] with [`PATIENCE`], or a failure at the caller's line.
    #[track_caller]
    pub fn wait(&self, count: u32) -> Outcome {
        match self.reached(count, PATIENCE) {
            true => Ok(()),
            false => Err(Failure::new(format!("passed {} times, expected {count}", self.count()))),
        }
    }
}

/// A running thread and what it will return.
pub struct Thread<T> {
    done: Gate,
    result: Arc<Mutex<Option<T>>>,
}

impl<T: Send + 'static> Thread<T> {
    /// Starts a thread.
    #[track_caller]
    pub fn spawn(
        platform: &Arc<dyn Platform>,
        name: &str,
        main: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Thread<T>, Failure> {
        let thread = Thread { done: Gate::new(platform), result: Arc::new(Mutex::new(None)) };
        let (done, result) = (thread.done.clone(), thread.result.clone());
        let main = Box::new(move || {
            let value = main();
            *result.lock() = Some(value);
            drop(result);
            done.pass();
        });
        match platform.spawn(name, main) {
            Ok(()) => Ok(thread),
            Err(_) => Err(Failure::new("no memory for a thread")),
        }
    }

    /// Whether it has returned.
    pub fn is_done(&self) -> bool {
        self.done.count() > 0
    }

    /// Waits for it to return.
    #[track_caller]
    pub fn join(self) -> Result<T, Failure> {
        self.done.wait(1)?;
        match self.result.lock().take() {
            Some(value) => Ok(value),
            None => Err(Failure::new("a thread ended without a result")),
        }
    }
}

/// What a thread of [`together`] does.
pub type Main<T> = Box<dyn FnOnce() -> T + Send>;

/// Starts a thread for each, lets them go at the same moment, and waits for all; returns what they return, in the same order.
#[track_caller]
pub fn together<T: Send + 'static>(
    platform: &Arc<dyn Platform>,
    mains: Vec<Main<T>>,
) -> Result<Vec<T>, Failure> {
    joined(started(platform, mains)?)
}

/// Starts a thread for each, and lets them go at the same moment.
#[track_caller]
fn started<T: Send + 'static>(
    platform: &Arc<dyn Platform>,
    mains: Vec<Main<T>>,
) -> Result<Vec<Thread<T>>, Failure> {
    let (ready, start) = (Gate::new(platform), Gate::new(platform));
    let count = mains.len() as u32;
    let mut threads = Vec::new();
    for main in mains {
        let (ready, start) = (ready.clone(), start.clone());
        threads.push(Thread::spawn(platform, "together", move || {
            ready.pass();
            start.reached(1, PATIENCE);
            main()
        })?);
    }
    ready.wait(count)?;
    start.pass();
    Ok(threads)
}

/// Waits for all of them; what they return, in the same order.
#[track_caller]
fn joined<T: Send + 'static>(threads: Vec<Thread<T>>) -> Result<Vec<T>, Failure> {
    let mut returned = Vec::new();
    // Not by `map`: it would be the library's line that a failure names.
    for thread in threads {
        returned.push(thread.join()?);
    }
    Ok(returned)
}

/// As [`together`], for threads that say what went wrong in them.
#[track_caller]
pub fn all_pass(platform: &Arc<dyn Platform>, mains: Vec<Main<Outcome>>) -> Outcome {
    passed(started(platform, mains)?)
}

/// Waits for all of them. What went wrong in one is told before that another still waits for it.
#[track_caller]
fn passed(threads: Vec<Thread<Outcome>>) -> Outcome {
    let mut hangs = None;
    for thread in threads {
        if hangs.is_some() && !thread.is_done() {
            continue;
        }
        match thread.join() {
            Ok(outcome) => outcome?,
            Err(failure) => hangs = Some(failure),
        }
    }
    hangs.map_or(Ok(()), Err)
}

/// Has a loop that otherwise neither waits nor takes a lock be one in which the simulation can let others run. Costs next to nothing elsewhere.
pub fn breathe(platform: &Arc<dyn Platform>) {
    platform.now();
}

/// Looks again and again whether `condition` holds, without sleeping; only for what is too short to be met by [`eventually`].
pub fn at_once(platform: &Arc<dyn Platform>, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = platform.now() + PATIENCE;
    loop {
        if condition() {
            return true;
        }
        if platform.now() >= deadline {
            return false;
        }
    }
}

/// Waits until `condition` holds, without an event to wait for; only for what happens in another thread soon.
pub fn eventually(platform: &Arc<dyn Platform>, mut condition: impl FnMut() -> bool) -> bool {
    let deadline: Instant = platform.now() + PATIENCE;
    let never = AtomicU32::new(0);
    while !condition() {
        if platform.now() >= deadline {
            return false;
        }
        platform.wait(&never, 0, Some(platform.now() + Duration::from_micros(200)));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that has ended, and left this or nothing.
    fn ended<T: Send + 'static>(result: Option<T>) -> Thread<T> {
        let done = Gate::new(&host::Machine::new(0).platform());
        done.pass();
        Thread { done, result: Arc::new(Mutex::new(result)) }
    }

    #[test]
    fn a_failure_names_the_line_of_who_waits() {
        let failure = joined::<()>(Vec::from([ended(None)])).unwrap_err();
        assert_eq!((failure.file, failure.line), (file!(), line!() - 1));
        assert_eq!(failure.message, "a thread ended without a result");
        let failure = passed(Vec::from([ended(None), ended(Some(Ok(())))])).unwrap_err();
        assert_eq!((failure.file, failure.line), (file!(), line!() - 1));
    }

    #[test]
    fn what_went_wrong_in_a_thread_is_told_first() {
        let wrong = Failure::new("wrong");
        let threads = [ended(Some(Ok(()))), ended(None), ended(Some(Err(wrong.clone())))];
        assert_eq!(passed(Vec::from(threads)), Err(wrong));
        assert_eq!(passed(Vec::from([ended(Some(Ok(())))])), Ok(()));
    }
}
