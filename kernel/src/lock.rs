//! Locks that interrupt handlers may take: interrupts are off while one is held.
//!
//! While a thread waits for one, its CPU takes interrupts: the wait may be long when a monitor has
//! suspended the holder's CPU.

use core::ops::{Deref, DerefMut};

use spin::mutex::{SpinMutex, SpinMutexGuard};
use x86_64::instructions::interrupts;

/// Keeps interrupts off on this CPU while it lives. Several may nest; drop them in reverse order.
#[must_use]
pub struct IrqOff {
    were_on: bool,
}

impl IrqOff {
    /// Turns interrupts off.
    #[expect(clippy::new_without_default, reason = "it turns interrupts off, which a default should not")]
    pub fn new() -> IrqOff {
        let were_on = interrupts::are_enabled();
        if were_on {
            interrupts::disable();
        }
        IrqOff { were_on }
    }
}

impl Drop for IrqOff {
    fn drop(&mut self) {
        if self.were_on {
            interrupts::enable();
        }
    }
}

/// A spin lock that keeps interrupts off while it is held. For short critical sections.
pub struct IrqLock<T> {
    inner: SpinMutex<T>,
}

/// The guard of an [`IrqLock`].
pub struct IrqGuard<'a, T> {
    // Dropped in this order: first the lock is free, then interrupts are on.
    guard: SpinMutexGuard<'a, T>,
    _off: IrqOff,
}

impl<T> IrqLock<T> {
    /// A lock that is free.
    pub const fn new(value: T) -> IrqLock<T> {
        IrqLock { inner: SpinMutex::new(value) }
    }

    /// Takes the lock.
    pub fn lock(&self) -> IrqGuard<'_, T> {
        loop {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            while self.inner.is_locked() {
                core::hint::spin_loop();
            }
        }
    }

    /// Takes the lock, or returns `None` if it is taken.
    pub fn try_lock(&self) -> Option<IrqGuard<'_, T>> {
        let off = IrqOff::new();
        Some(IrqGuard { guard: self.inner.try_lock()?, _off: off })
    }
}

impl<T> Deref for IrqGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for IrqGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
