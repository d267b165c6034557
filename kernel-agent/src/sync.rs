//! What objects need around their life: a count of users that stops at the end.

use alloc::sync::Arc;
use core::ops::Deref;

use platform::sync::atomic::{AtomicU32, Ordering};

use crate::Error;

/// How many others use an object; once it is ended nobody can begin to.
#[derive(Default)]
pub(crate) struct Users(AtomicU32);

const ENDED: u32 = 1 << 31;

impl Users {
    fn join(&self) -> bool {
        let more = |count| if count & ENDED == 0 { Some(count + 1) } else { None };
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    fn leave(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Ends the object's use, if nobody uses it.
    pub(crate) fn end(&self) -> Result<(), Error> {
        match self.0.compare_exchange(0, ENDED, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            Err(count) if count & ENDED != 0 => Err(Error::Gone),
            Err(_) => Err(Error::Busy),
        }
    }

    /// Takes [`Users::end`] back.
    pub(crate) fn resume(&self) {
        self.0.fetch_and(!ENDED, Ordering::AcqRel);
    }

    /// Whether the object was ended.
    pub(crate) fn ended(&self) -> bool {
        self.0.load(Ordering::Acquire) & ENDED != 0
    }
}

/// An object that others use.
pub(crate) trait Used {
    fn users(&self) -> &Users;
}

/// One use of an object.
pub(crate) struct Use<T: Used>(Arc<T>);

impl<T: Used> Use<T> {
    pub(crate) fn of(object: &Arc<T>) -> Result<Use<T>, Error> {
        if object.users().join() { Ok(Use(object.clone())) } else { Err(Error::Gone) }
    }
}

impl<T: Used> Deref for Use<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Used> Drop for Use<T> {
    fn drop(&mut self) {
        self.0.users().leave();
    }
}
