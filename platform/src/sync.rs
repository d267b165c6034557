//! The locks and atomics that the stack uses, in one place, so that a model checker can replace
//! them.
//!
//! With `--cfg ferrovia_model` (`.ci/extra`) atomics and [`Mutex`] are loom's, and code that uses
//! them runs in its models only. Views of shared memory do not change; the steps of driver and
//! device are generic over their words.

use core::sync::atomic::{AtomicPtr, Ordering};

#[cfg(not(ferrovia_model))]
pub use core::sync::atomic;
#[cfg(ferrovia_model)]
pub use loom::sync::atomic;
pub use spin::Once;

#[cfg(ferrovia_model)]
pub use crate::model::{Mutex, MutexGuard};
#[cfg(not(ferrovia_model))]
pub use crate::mutex::{Mutex, MutexGuard};

static YIELD: Hook = Hook::new();
static PREEMPTION: Hook = Hook::new();

/// Sets how a waiter for a lock gives up the CPU. Without it, waiters only spin.
pub fn set_yield(hook: fn()) {
    YIELD.set(hook);
}

/// Sets a hook that runs before each lock is taken, so that a simulation can run another thread
/// first. Builds without debug assertions never call it.
pub fn set_preemption(hook: fn()) {
    PREEMPTION.set(hook);
}

/// Gives up the CPU through the hook, if there is one.
pub fn yield_now() {
    #[cfg(ferrovia_model)]
    loom::thread::yield_now();
    YIELD.call();
}

#[inline]
#[cfg(not(ferrovia_model))]
pub(crate) fn preemption_point() {
    if cfg!(debug_assertions) {
        PREEMPTION.call();
    }
}

/// A function that the process or kernel can set once.
struct Hook(AtomicPtr<()>);

impl Hook {
    const fn new() -> Hook {
        Hook(AtomicPtr::new(core::ptr::null_mut()))
    }

    fn set(&self, hook: fn()) {
        self.0.store(hook as *mut (), Ordering::Release);
    }

    #[inline]
    fn call(&self) {
        let hook = self.0.load(Ordering::Acquire);
        if !hook.is_null() {
            #[expect(unsafe_code, reason = "a function pointer has no atomic type of its own")]
            // SAFETY: only `set` stores here, and it stores a `fn()`.
            let hook = unsafe { core::mem::transmute::<*mut (), fn()>(hook) };
            hook();
        }
    }
}
