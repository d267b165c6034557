//! A turn that a program takes by one call and ends by another: a lock that C holds between calls.

use std::sync::{Condvar, Mutex, PoisonError};

/// Whose turn it is: nobody's, or that of the thread that has taken it.
#[derive(Default)]
pub(crate) struct Turn {
    taken: Mutex<bool>,
    over: Condvar,
}

impl Turn {
    /// Waits until nobody else has the turn, and takes it.
    pub(crate) fn take(&self) {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = self.over.wait_while(taken, |taken| *taken).unwrap_or_else(PoisonError::into_inner);
        *taken = true;
    }

    /// Ends the turn.
    pub(crate) fn end(&self) {
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.over.notify_one();
    }
}
