//! Threads for tests. They run on the platform and are joined with a deadline, so that a hung
//! thread fails its test.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use platform::sync::Mutex;
use platform::{Instant, Platform};

use crate::check::{Failure, Outcome};

/// How long a test waits for a condition that must become true. It is far longer than that ever
/// takes.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A counter that threads raise and other threads wait on.
#[derive(Clone)]
pub struct Signal {
    platform: Arc<dyn Platform>,
    count: Arc<AtomicU32>,
}

impl Signal {
    /// A signal at zero.
    pub fn new(platform: &Arc<dyn Platform>) -> Signal {
        Signal { platform: platform.clone(), count: Arc::new(AtomicU32::new(0)) }
    }

    /// Adds one and wakes the waiters.
    pub fn raise(&self) {
        self.count.fetch_add(1, Ordering::Release);
        self.platform.wake(&self.count);
    }

    /// How often it was raised.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// Waits until it was raised `count` times; false if that took longer than `within`.
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

    /// As [`Signal::reached`] with [`PATIENCE`], or a failure at the caller's line.
    #[track_caller]
    pub fn wait(&self, count: u32) -> Outcome {
        match self.reached(count, PATIENCE) {
            true => Ok(()),
            false => Err(Failure::new(format!("raised {} times, expected {count}", self.count()))),
        }
    }
}

/// A running thread and its result.
pub struct Thread<T> {
    done: Signal,
    result: Arc<Mutex<Option<T>>>,
}

impl<T: Send + 'static> Thread<T> {
    /// Starts a thread.
    #[track_caller]
    pub fn spawn(
        platform: &Arc<dyn Platform>,
        name: &str,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Thread<T>, Failure> {
        let thread = Thread { done: Signal::new(platform), result: Arc::new(Mutex::new(None)) };
        let (done, result) = (thread.done.clone(), thread.result.clone());
        let body = Box::new(move || {
            let value = body();
            *result.lock() = Some(value);
            drop(result);
            done.raise();
        });
        match platform.spawn(name, body) {
            Ok(()) => Ok(thread),
            Err(_) => Err(Failure::new("no memory for a thread")),
        }
    }

    /// Whether the thread has returned.
    pub fn is_done(&self) -> bool {
        self.done.count() > 0
    }

    /// Waits for the thread to return.
    #[track_caller]
    pub fn join(self) -> Result<T, Failure> {
        self.done.wait(1)?;
        match self.result.lock().take() {
            Some(value) => Ok(value),
            None => Err(Failure::new("a thread ended without a result")),
        }
    }
}

/// The body of one thread of [`together`].
pub type Body<T> = Box<dyn FnOnce() -> T + Send>;

/// Runs each body in a thread of its own. All bodies start at the same moment. Returns their
/// results in the order of the bodies.
#[track_caller]
pub fn together<T: Send + 'static>(
    platform: &Arc<dyn Platform>,
    bodies: Vec<Body<T>>,
) -> Result<Vec<T>, Failure> {
    joined(started(platform, bodies)?)
}

/// Starts a thread for each body. The bodies start at the same moment.
#[track_caller]
fn started<T: Send + 'static>(
    platform: &Arc<dyn Platform>,
    bodies: Vec<Body<T>>,
) -> Result<Vec<Thread<T>>, Failure> {
    let (ready, start) = (Signal::new(platform), Signal::new(platform));
    let count = bodies.len() as u32;
    let mut threads = Vec::new();
    for body in bodies {
        let (ready, start) = (ready.clone(), start.clone());
        threads.push(Thread::spawn(platform, "together", move || {
            ready.raise();
            start.reached(1, PATIENCE);
            body()
        })?);
    }
    ready.wait(count)?;
    start.raise();
    Ok(threads)
}

/// Joins all threads; their results are in the order of the threads.
#[track_caller]
fn joined<T: Send + 'static>(threads: Vec<Thread<T>>) -> Result<Vec<T>, Failure> {
    let mut returned = Vec::new();
    // With `map`, a failure would name a line of the library.
    for thread in threads {
        returned.push(thread.join()?);
    }
    Ok(returned)
}

/// As [`together`], for bodies that return an outcome.
#[track_caller]
pub fn all_pass(platform: &Arc<dyn Platform>, bodies: Vec<Body<Outcome>>) -> Outcome {
    passed(started(platform, bodies)?)
}

/// Joins all threads. The failure of a body is returned rather than the failure to join another
/// thread that waits for it.
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

/// Yields in the simulation, where a loop that neither waits nor takes a lock would never let
/// another thread run. Elsewhere it costs next to nothing.
pub fn breathe(platform: &Arc<dyn Platform>) {
    platform.now();
}

/// Lets so much time pass, where there is no event to wait for.
pub fn pause(platform: &Arc<dyn Platform>, time: Duration) {
    let (until, never) = (platform.now() + time, AtomicU32::new(0));
    while platform.now() < until {
        platform.wait(&never, 0, Some(until));
    }
}

/// Polls `condition` without sleeping. Only for conditions that hold so briefly that [`eventually`]
/// could miss them.
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

/// Waits until `condition` holds, where there is no event to wait for. Only for conditions that
/// another thread makes true soon.
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

    /// A thread that has ended with this result, or without one.
    fn ended<T: Send + 'static>(result: Option<T>) -> Thread<T> {
        let done = Signal::new(&host::Machine::new(0).platform());
        done.raise();
        Thread { done, result: Arc::new(Mutex::new(result)) }
    }

    #[test]
    fn a_failure_names_the_line_of_the_caller() {
        let failure = joined::<()>(Vec::from([ended(None)])).unwrap_err();
        assert_eq!((failure.file, failure.line), (file!(), line!() - 1));
        assert_eq!(failure.message, "a thread ended without a result");
        let failure = passed(Vec::from([ended(None), ended(Some(Ok(())))])).unwrap_err();
        assert_eq!((failure.file, failure.line), (file!(), line!() - 1));
    }

    #[test]
    fn a_failure_in_a_thread_comes_before_a_failed_join() {
        let wrong = Failure::new("wrong");
        let threads = [ended(Some(Ok(()))), ended(None), ended(Some(Err(wrong.clone())))];
        assert_eq!(passed(Vec::from(threads)), Err(wrong));
        assert_eq!(passed(Vec::from([ended(Some(Ok(())))])), Ok(()));
    }
}
