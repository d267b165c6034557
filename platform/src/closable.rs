//! A value behind a lock that can be closed to its users.
//!
//! A user who finds the value open has the lock, so it is done with the value before the thread
//! that closes it goes on. A look at any other word before the lock would show what was true once:
//! between the look and the lock the value can be closed and its place given to another.

use core::ops::{Deref, DerefMut};

use crate::sync::{Mutex, MutexGuard};

/// A value that users reach while it is open.
pub struct Closable<T>(Mutex<Content<T>>);

struct Content<T> {
    open: bool,
    value: T,
}

/// The value, locked.
pub struct ClosableGuard<'a, T>(MutexGuard<'a, Content<T>>);

impl<T> Closable<T> {
    /// An open value.
    pub fn new(value: T) -> Closable<T> {
        Closable(Mutex::new(Content { open: true, value }))
    }

    /// Locks the value; `None` if it is closed.
    #[inline]
    pub fn enter(&self) -> Option<ClosableGuard<'_, T>> {
        let place = self.0.lock();
        if place.open { Some(ClosableGuard(place)) } else { None }
    }

    /// Locks the value, open or closed: for its owner.
    #[inline]
    pub fn lock(&self) -> ClosableGuard<'_, T> {
        ClosableGuard(self.0.lock())
    }

    /// Closes the value. When this returns, no user has it.
    pub fn close(&self) {
        self.0.lock().open = false;
    }

    /// Takes a [`Closable::close`] back.
    pub fn reopen(&self) {
        self.0.lock().open = true;
    }
}

impl<T> Deref for ClosableGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> DerefMut for ClosableGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0.value
    }
}

#[cfg(all(test, ferrovia_model))]
mod models {
    use alloc::sync::Arc;

    use loom::thread;

    use super::*;
    use crate::model::{Watched, check, finds};
    use crate::sync::atomic::{AtomicBool, Ordering};

    /// A user changes a value whose place the closer gives to a successor, once it is closed. The
    /// mutant user looks at a word of its own before it takes the lock.
    fn successor(mutant_looks_before_the_lock: bool) {
        let shared = Arc::new((Closable::new(Watched::new(0)), AtomicBool::new(true), Watched::new(0)));
        let user = thread::spawn({
            let shared = shared.clone();
            move || {
                let (value, open, place) = &*shared;
                if mutant_looks_before_the_lock {
                    if open.load(Ordering::Acquire) {
                        let _value = value.lock();
                        place.add();
                    }
                } else if let Some(guard) = value.enter() {
                    guard.add();
                    place.add();
                }
            }
        });
        let (value, open, place) = &*shared;
        open.store(false, Ordering::Release);
        value.close();
        // The successor has the place for itself.
        place.add();
        user.join().unwrap();
    }

    #[test]
    fn model_no_user_reaches_the_successor_of_a_closed_value() {
        check(|| successor(false));
    }

    #[test]
    fn mutant_model_that_looks_before_the_lock() {
        finds(|| successor(true));
    }
}

#[cfg(all(test, not(ferrovia_model)))]
mod tests {
    use super::*;

    #[test]
    fn users_enter_while_it_is_open_and_its_owner_always() {
        let value = Closable::new(1);
        *value.enter().expect("open") += 1;
        value.close();
        assert!(value.enter().is_none());
        *value.lock() += 1;
        value.reopen();
        assert_eq!(value.enter().map(|value| *value), Some(3));
    }
}
