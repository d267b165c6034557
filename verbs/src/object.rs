//! What the agent's events need of an object of C: where it is, and which of its events the program
//! has taken.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::channel::Reported;
use crate::opening::Opening;

/// An object of type `T`, by the handle `H` that the agent's events name.
pub(crate) struct Object<T, H> {
    at: AtomicPtr<T>,
    pub(crate) opening: Arc<Opening>,
    pub(crate) handle: H,
    /// Its asynchronous events.
    pub(crate) asynchronous: Reported,
}

impl<T, H> Object<T, H> {
    /// An object that is being made.
    pub(crate) fn new(opening: &Arc<Opening>, handle: H) -> Object<T, H> {
        let at = AtomicPtr::new(ptr::null_mut());
        Object { at, opening: opening.clone(), handle, asynchronous: Reported::default() }
    }

    /// The object is made.
    pub(crate) fn is_at(&self, at: *mut T) {
        self.at.store(at, Ordering::Release);
    }

    /// Where the object is.
    pub(crate) fn at(&self) -> *mut T {
        self.at.load(Ordering::Acquire)
    }

    /// The object is being destroyed, and its handle names nothing any more: waits until the
    /// program has acknowledged the asynchronous events that it has taken, and drops the others.
    pub(crate) fn end(&self) {
        self.asynchronous.end();
        self.opening.asynchronous.forget(&self.asynchronous);
        self.asynchronous.wait();
    }
}
