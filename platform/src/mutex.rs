//! A lock for short critical sections, which whoever waits for it gets in the end.
//!
//! On a machine with one CPU a thread loses it at the end of a time slice, often in the middle of a critical section when it
//! does little else: then another one that asks finds the lock taken each time it runs, and a lock that is simply free for
//! whoever comes next keeps it out for seconds. So waiters are counted, and whoever comes lets them go first.

#[cfg(not(ferrovia_model))]
use lock_api::{GuardSend, RawMutex};

use crate::sync::atomic::{AtomicU32, Ordering};
#[cfg(not(ferrovia_model))]
use crate::sync::preemption_point;
use crate::sync::yield_now;

/// Looks before giving up the CPU: longer than any critical section of ours when its holder is running.
const SPINS: u32 = if cfg!(ferrovia_model) { 1 } else { 64 };
/// How often one that has just come makes way for those that wait before it counts as one of them.
const COURTESIES: u32 = if cfg!(ferrovia_model) { 1 } else { 4 };

/// A mutual-exclusion lock for short critical sections; never held across a wait, never taken in an
/// interrupt handler.
///
/// It spins, then yields through the hook of [`set_yield`](crate::sync::set_yield): a holder that was preempted gets the CPU back instead of being
/// spun against for the rest of a time slice.
#[cfg(not(ferrovia_model))]
pub type Mutex<T> = lock_api::Mutex<Fair, T>;

/// The guard of a [`Mutex`].
#[cfg(not(ferrovia_model))]
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, Fair, T>;

/// The lock without what it guards: [`HELD`], and [`WAITS`] for each who waits for it.
#[derive(Debug)]
pub struct Fair(AtomicU32);

/// Somebody has it.
const HELD: u32 = 1;
/// Somebody waits for it.
const WAITS: u32 = 2;

#[cfg(not(ferrovia_model))]
#[expect(unsafe_code, reason = "what such a lock guards relies on its keeping others out")]
// SAFETY: each way to have it changes the word from one without `HELD` to one with it, in one step, and only whoever has it
// takes `HELD` away.
unsafe impl RawMutex for Fair {
    const INIT: Fair = Fair(AtomicU32::new(0));

    type GuardMarker = GuardSend;

    #[inline]
    fn lock(&self) {
        preemption_point();
        self.take();
    }

    /// Takes it if it is free and nobody waits for it.
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
    /// A free one.
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

    /// Only for whoever has it.
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

    /// Takes it if it is free: for one who waits, and then does so no longer.
    fn take_ahead(&self) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        word & HELD == 0
            && self
                .0
                .compare_exchange_weak(word, word - WAITS + HELD, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    }
}

/// Whether one of some attempts in a row succeeded.
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

    use std::cell::RefCell;
    use std::sync::Arc;
    use std::thread;

    use super::*;
    use crate::sync::set_yield;

    std::thread_local! {
        /// What happens while this thread has given up the CPU.
        static MEANWHILE: RefCell<Option<std::boxed::Box<dyn FnMut()>>> = const { RefCell::new(None) };
    }

    fn meanwhile() {
        MEANWHILE.with_borrow_mut(|act| act.as_mut().map(|act| act()));
        thread::yield_now();
    }

    #[test]
    fn who_waits_gets_it_though_others_take_it_again_and_again() {
        set_yield(meanwhile);
        static LOCK: Mutex<u32> = Mutex::new(0);
        // Another thread that has the lock whenever this one runs, as on a machine with one CPU.
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
        assert_eq!(count, COURTESIES, "it had its chances, and no more");
        assert!(LOCK.try_lock().is_some(), "nobody waits any more");
    }

    #[test]
    fn one_at_a_time() {
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
