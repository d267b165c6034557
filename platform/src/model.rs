//! Replacements for the model checker: its mutex with the interface of ours, a platform whose
//! threads are the checker's, and helpers for models. Only with `--cfg ferrovia_model`.

extern crate std;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::Ordering;
use std::panic::{UnwindSafe, catch_unwind};

use loom::cell::UnsafeCell;

use crate::sync::atomic::AtomicU32;
use crate::{BusExtent, Instant, OutOfMemory, Platform, RawDma, Wake};

/// Runs a model in all interleavings with at most three preemptions. Panics if one of them fails.
pub fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut checker = loom::model::Builder::new();
    checker.preemption_bound = Some(3);
    checker.check(model);
}

/// Panics unless the checker finds the fault in a mutant.
pub fn finds(mutant: impl Fn() + Sync + Send + UnwindSafe + 'static) {
    assert!(catch_unwind(move || check(mutant)).is_err(), "the mutant was not found");
}

/// A [`ModelPlatform`], as the stack takes it.
pub fn platform() -> Arc<dyn Platform> {
    Arc::new(ModelPlatform::new())
}

/// A number that one thread at a time may change, or several may read. The checker reports
/// violations.
#[derive(Debug)]
pub struct Watched(UnsafeCell<u32>);

#[expect(unsafe_code, reason = "the checker watches every access")]
// SAFETY: the checker fails the model before two accesses of which one is a change overlap.
unsafe impl Sync for Watched {}

#[expect(unsafe_code, reason = "the checker watches every access")]
// SAFETY: as above.
unsafe impl Send for Watched {}

impl Watched {
    /// A number with this value.
    pub fn new(value: u32) -> Watched {
        Watched(UnsafeCell::new(value))
    }

    /// Adds 1.
    #[expect(unsafe_code, reason = "the checker watches every access")]
    pub fn add(&self) {
        // SAFETY: see above.
        self.0.with_mut(|value| unsafe { *value += 1 });
    }

    /// The value.
    #[expect(unsafe_code, reason = "the checker watches every access")]
    pub fn get(&self) -> u32 {
        // SAFETY: see above.
        self.0.with(|value| unsafe { *value })
    }
}

/// [`crate::sync::Mutex`], seen by the checker.
#[derive(Debug, Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

/// The guard of a [`Mutex`].
pub struct MutexGuard<'a, T>(loom::sync::MutexGuard<'a, T>);

impl<T> Mutex<T> {
    /// A mutex that is free.
    pub fn new(value: T) -> Mutex<T> {
        Mutex(loom::sync::Mutex::new(value))
    }

    /// Takes the mutex. While another thread has it, the checker runs that thread.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(self.0.lock().expect("a model that panicked is over"))
    }

    /// Takes the mutex if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok().map(MutexGuard)
    }

    /// The protected value.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().expect("a model that panicked is over")
    }

    /// The value that was protected.
    pub fn into_inner(self) -> T {
        self.0.into_inner().expect("a model that panicked is over")
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// A platform for models. It waits and wakes as [`Platform`] promises. No time passes, so that a
/// lost wake-up is a deadlock. A wake wakes all waiters, whatever their word: use one word, or one
/// platform, for each thing that is waited for.
#[derive(Debug, Default)]
pub struct ModelPlatform {
    lock: loom::sync::Mutex<()>,
    woken: loom::sync::Condvar,
}

impl ModelPlatform {
    /// A platform of this model.
    pub fn new() -> ModelPlatform {
        ModelPlatform { lock: loom::sync::Mutex::new(()), woken: loom::sync::Condvar::new() }
    }
}

#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
// SAFETY: it allocates and translates no memory.
unsafe impl Platform for ModelPlatform {
    fn now(&self) -> Instant {
        Instant::ZERO
    }

    fn wait(&self, word: &AtomicU32, expected: u32, _: Option<Instant>) -> Wake {
        let guard = self.lock.lock().expect("a model that panicked is over");
        if word.load(Ordering::Acquire) == expected {
            drop(self.woken.wait(guard));
        }
        Wake::Woken
    }

    fn wake(&self, _: &AtomicU32) {
        drop(self.lock.lock());
        self.woken.notify_all();
    }

    fn spawn(&self, _: &str, main: Box<dyn FnOnce() + Send>) -> Result<(), OutOfMemory> {
        loom::thread::spawn(main);
        Ok(())
    }

    fn current_thread(&self) -> u64 {
        1
    }

    fn alloc_dma(&self, _: usize, _: usize) -> Result<RawDma, OutOfMemory> {
        Err(OutOfMemory)
    }

    unsafe fn free_dma(&self, _: RawDma) {}

    fn translate(&self, _: usize) -> Option<BusExtent> {
        None
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;

    use loom::thread;

    use super::{Watched, check, platform};
    use crate::SleepLock;
    use crate::mutex::Fair;

    #[test]
    fn a_fair_lock_excludes_others_and_goes_to_the_waiter() {
        check(|| {
            let shared = Arc::new((Fair::new(), Watched::new(0)));
            let add = |(lock, cell): &(Fair, Watched)| {
                lock.take();
                cell.add();
                lock.give();
            };
            let other = {
                let shared = shared.clone();
                thread::spawn(move || add(&shared))
            };
            add(&shared);
            other.join().unwrap();
            assert_eq!(shared.1.get(), 2);
            assert!(shared.0.try_take(), "no holder and no waiter");
        });
    }

    #[test]
    fn a_sleep_lock_excludes_others_and_wakes_them() {
        check(|| {
            let shared = Arc::new((SleepLock::new(), Watched::new(0), platform()));
            let threads = [(); 2].map(|()| {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (lock, cell, platform) = &*shared;
                    let held = lock.lock(platform);
                    cell.add();
                    drop(held);
                })
            });
            let (lock, cell, platform) = &*shared;
            let held = lock.lock(platform);
            cell.add();
            drop(held);
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(cell.get(), 3);
        });
    }
}
