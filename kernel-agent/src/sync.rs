//! What objects need around their life: a lock that sleeps, and a count of users that stops at the end.

use alloc::sync::Arc;
use core::ops::Deref;
use core::sync::atomic::{AtomicU32, Ordering};

use platform::Platform;

use crate::Error;

/// A lock that may be held while a command is under way. Never taken on the data path.
///
/// Whoever holds it waits for the device for a bounded time at most, so waiting for it is bounded too.
#[derive(Default)]
pub(crate) struct SleepLock(AtomicU32);

const FREE: u32 = 0;
const HELD: u32 = 1;
const AWAITED: u32 = 2;

impl SleepLock {
    pub(crate) fn lock<'a>(&'a self, platform: &'a Arc<dyn Platform>) -> SleepGuard<'a> {
        let word = &self.0;
        if word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while word.swap(AWAITED, Ordering::Acquire) != FREE {
                platform.wait(word, AWAITED, None);
            }
        }
        SleepGuard { lock: self, platform }
    }
}

pub(crate) struct SleepGuard<'a> {
    lock: &'a SleepLock,
    platform: &'a Arc<dyn Platform>,
}

impl Drop for SleepGuard<'_> {
    fn drop(&mut self) {
        if self.lock.0.swap(FREE, Ordering::Release) == AWAITED {
            self.platform.wake(&self.lock.0);
        }
    }
}

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
