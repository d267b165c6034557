//! The locks and atomics that the stack uses, in one place, so that a model checker can replace them.
//!
//! [`Mutex`] spins, and after a bounded spin yields through a hook: a holder that was preempted gets the
//! CPU back instead of being spun against for the rest of a time slice.
//!
//! With `--cfg ferrovia_model` (`.ci/extra`) atomics and [`Mutex`] are loom's: what is built on them runs within its models
//! only. Views of shared memory stay as they are; the steps of driver and device are generic over their words.

use core::sync::atomic::{AtomicPtr, Ordering};

#[cfg(not(ferrovia_model))]
pub use core::sync::atomic;
#[cfg(ferrovia_model)]
pub use loom::sync::atomic;
pub use spin::Once;

/// Spins before the first yield: longer than any critical section of ours when its holder is running.
const SPINS: u32 = 256;

/// What a contended [`Mutex`] does while it waits.
pub struct Relax;

impl spin::RelaxStrategy for Relax {
    fn relax() {
        for _ in 0..SPINS / 64 {
            core::hint::spin_loop();
        }
        yield_now();
    }
}

/// A mutual-exclusion lock for short critical sections; never held across a wait, never taken in an
/// interrupt handler.
#[cfg(not(ferrovia_model))]
pub type Mutex<T> = spin::mutex::SpinMutex<T, Relax>;
/// The guard of a [`Mutex`].
#[cfg(not(ferrovia_model))]
pub type MutexGuard<'a, T> = spin::mutex::SpinMutexGuard<'a, T>;
#[cfg(ferrovia_model)]
pub use crate::model::{Mutex, MutexGuard};
/// A readers-writer lock for control paths.
pub type RwLock<T> = spin::rwlock::RwLock<T, Relax>;

static YIELD: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Tells contended locks how to give up the CPU; without it they only spin.
pub fn set_yield(hook: fn()) {
    YIELD.store(hook as *mut (), Ordering::Release);
}

/// Gives up the CPU through the hook, if there is one.
pub fn yield_now() {
    let hook = YIELD.load(Ordering::Acquire);
    if !hook.is_null() {
        #[expect(unsafe_code, reason = "a function pointer has no atomic type of its own")]
        // SAFETY: only `set_yield` stores here, and it stores a `fn()`.
        let hook = unsafe { core::mem::transmute::<*mut (), fn()>(hook) };
        hook();
    }
}
