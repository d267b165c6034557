//! The locks and atomics that the stack uses, in one place, so that a model checker can replace them.
//!
//! With `--cfg ferrovia_model` (`.ci/extra`) atomics and [`Mutex`] are loom's: what is built on them runs within its models
//! only. Views of shared memory stay as they are; the steps of driver and device are generic over their words.

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

/// Tells contended locks how to give up the CPU; without it they only spin.
pub fn set_yield(hook: fn()) {
    YIELD.set(hook);
}

/// Has a simulation decide, before each lock that is taken, whether another thread runs first. In builds without debug assertions nobody asks.
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

/// What the process or kernel does at some point, once somebody has said so.
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
