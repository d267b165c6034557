//! A lock for short critical sections that every waiter gets in the end.
//!
//! On a machine with one CPU, a thread that does little but work under the lock mostly loses the
//! CPU while it holds the lock. Another thread then finds the lock taken each time it runs. If the
//! lock simply went to the next thread that asks, that thread could wait for seconds. So waiters
//! are counted, and a thread that comes later lets them go first.

#[cfg(not(ferrovia_model))]
use lock_api::{GuardSend, RawMutex};

use crate::sync::atomic::{AtomicU32, Ordering};
#[cfg(not(ferrovia_model))]
use crate::sync::preemption_point;
use crate::sync::yield_now;

/// Attempts before a waiter gives up the CPU: longer than any critical section while its holder
/// runs.
const SPINS: u32 = if cfg!(ferrovia_model) { 1 } else { 64 };
/// How often a newcomer gives way to the waiters before it counts as a waiter.
const COURTESIES: u32 = if cfg!(ferrovia_model) { 1 } else { 4 };

/// A mutual-exclusion lock for short critical sections; never held across a wait, never taken in an
/// interrupt handler.
///
/// It spins, then yields through the hook of [`set_yield`](crate::sync::set_yield), so that a
/// holder that was preempted gets the CPU back before the waiter's time slice ends.
#[cfg(not(ferrovia_model))]
pub type Mutex<T> = lock_api::Mutex<Fair, T>;

/// The guard of a [`Mutex`].
#[cfg(not(ferrovia_model))]
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, Fair, T>;

/// The lock without the value that it guards: [`HELD`], plus [`WAITS`] for each waiter.
#[derive(Debug)]
pub struct Fair(AtomicU32);

/// A thread holds the lock.
const HELD: u32 = 1;
/// One waiter.
const WAITS: u32 = 2;

#[cfg(not(ferrovia_model))]
#[expect(unsafe_code, reason = "the guarded value relies on mutual exclusion")]
// SAFETY: each way to take the lock changes a word without `HELD` to one with it in one step, and
// only the holder removes `HELD`.
unsafe impl RawMutex for Fair {
    const INIT: Fair = Fair(AtomicU32::new(0));

    type GuardMarker = GuardSend;

    #[inline]
    fn lock(&self) {
        preemption_point();
        self.take();
    }

    /// Takes the lock if it is free and has no waiters.
    #[inline]
    fn try_lock(&self) -> bool {
        preemption_point();
        self.try_take()
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.give();
    }
}

impl Fair {
    /// A lock that is free.
    #[cfg(all(test, ferrovia_model))]
    pub(crate) fn new() -> Fair {
        Fair(AtomicU32::new(0))
    }

    #[inline]
    pub(crate) fn take(&self) {
        if !self.try_take() {
            self.wait();
        }
    }

    #[inline]
    pub(crate) fn try_take(&self) -> bool {
        self.0.compare_exchange(0, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Releases the lock. Only for its holder.
    #[inline]
    pub(crate) fn give(&self) {
        self.0.fetch_sub(HELD, Ordering::Release);
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..COURTESIES {
            if spun(|| self.0.load(Ordering::Relaxed) == 0 && self.try_take()) {
                return;
            }
            yield_now();
        }
        self.0.fetch_add(WAITS, Ordering::Relaxed);
        while !spun(|| self.take_ahead()) {
            yield_now();
        }
    }

    /// Takes the lock if it is free. For a counted waiter, which then no longer counts as one.
    fn take_ahead(&self) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        word & HELD == 0
            && self
                .0
                .compare_exchange_weak(word, word - WAITS + HELD, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    }
}

/// Whether one of [`SPINS`] attempts succeeded.
fn spun(attempt: impl Fn() -> bool) -> bool {
    (0..SPINS).any(|_| {
        let done = attempt();
        if !done {
            core::hint::spin_loop();
        }
        done
    })
}

#[cfg(all(test, not(ferrovia_model)))]
mod tests {
    extern crate std;

    #[cfg(debug_assertions)]
    use std::cell::Cell;
    use std::cell::RefCell;
    use std::sync::Arc;
    use std::thread;

    use super::*;
    #[cfg(debug_assertions)]
    use crate::sync::set_preemption;
    use crate::sync::set_yield;

    std::thread_local! {
        /// What runs while this thread has given up the CPU.
        static MEANWHILE: RefCell<Option<std::boxed::Box<dyn FnMut()>>> = const { RefCell::new(None) };
    }

    fn meanwhile() {
        MEANWHILE.with_borrow_mut(|act| act.as_mut().map(|act| act()));
        thread::yield_now();
    }

    #[test]
    fn a_waiter_gets_the_lock_although_another_thread_takes_it_again_and_again() {
        set_yield(meanwhile);
        static LOCK: Mutex<u32> = Mutex::new(0);
        // Another thread that holds the lock whenever this one runs, as on a machine with one CPU.
        let mut held = LOCK.try_lock();
        let mut turns = 0;
        let other = move || {
            turns += 1;
            assert!(turns < 100, "never got");
            held.take();
            held = LOCK.try_lock();
            if let Some(held) = &mut held {
                **held += 1;
            }
        };
        MEANWHILE.set(Some(std::boxed::Box::new(other)));
        let count = *LOCK.lock();
        MEANWHILE.set(None);
        assert_eq!(
            count, COURTESIES,
            "the other thread got the lock while this one was a newcomer, and never again"
        );
        assert!(LOCK.try_lock().is_some(), "no waiters are left");
    }

    #[test]
    #[cfg(debug_assertions)]
    fn the_hook_for_preemption_runs_before_each_attempt_to_take_a_lock() {
        std::thread_local! {
            static ATTEMPTS: Cell<u32> = const { Cell::new(0) };
        }
        set_preemption(|| ATTEMPTS.set(ATTEMPTS.get() + 1));
        let lock = Mutex::new(7);
        let held = lock.lock();
        assert_eq!((*held, ATTEMPTS.get()), (7, 1));
        assert!(lock.try_lock().is_none());
        assert_eq!(ATTEMPTS.get(), 2);
    }

    #[test]
    fn one_thread_at_a_time_holds_the_lock() {
        const ROUNDS: u32 = if cfg!(miri) { 50 } else { 20_000 };
        let lock = Arc::new(Mutex::new(0));
        let threads = [(); 4].map(|()| {
            let lock = lock.clone();
            thread::spawn(move || {
                for _ in 0..ROUNDS {
                    *lock.lock() += 1;
                }
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(Arc::into_inner(lock).unwrap().into_inner(), 4 * ROUNDS);
    }
}
