//! What the objects of a client have in common: an owner, a number, a use count, and how they are
//! destroyed.
//!
//! Locks: an object's `control` (sleeps): all commands to the device that concern the object.

use alloc::sync::Arc;

use platform::Platform;
use platform::sleep_lock::{SleepGuard, SleepLock};
use platform::use_count::{Counted, Use, UseCount};

use crate::Error;

/// The types of objects, in the order in which a client's objects can be destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Counter {
    Qps,
    Vis,
    Srqs,
    /// Streams, and listeners for them.
    Streams,
    Cqs,
    ViCqs,
    Windows,
    Regions,
    Pds,
}

/// How many types of objects there are.
pub(crate) const COUNTERS: usize = Counter::Pds as usize + 1;

/// Whose an object is.
pub(crate) trait Owner {
    /// The platform of its agent.
    fn platform(&self) -> &Arc<dyn Platform>;

    /// Takes an object out of the owner's records, before the number can be given out again.
    fn forget_object(&self, counter: Counter, number: u32);
}

/// The common part of an object that can be destroyed while nothing uses it.
pub(crate) struct Object<O: ?Sized> {
    owner: Arc<O>,
    counter: Counter,
    number: u32,
    control: SleepLock,
    uses: UseCount,
}

impl<O: Owner + ?Sized> Object<O> {
    /// An object with a number that was taken for it.
    pub(crate) fn new(owner: &Arc<O>, counter: Counter, number: u32) -> Object<O> {
        Object { owner: owner.clone(), counter, number, control: SleepLock::new(), uses: UseCount::new() }
    }

    #[inline]
    pub(crate) fn owner(&self) -> &Arc<O> {
        &self.owner
    }

    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn uses(&self) -> &UseCount {
        &self.uses
    }

    /// Fails if the object is destroyed.
    pub(crate) fn alive(&self) -> Result<(), Error> {
        if self.uses.is_closed() { Err(Error::Gone) } else { Ok(()) }
    }

    /// Keeps other threads from changing or destroying the object; fails if it is destroyed.
    pub(crate) fn control(&self) -> Result<SleepGuard<'_>, Error> {
        let control = self.control.lock(self.owner.platform());
        self.alive()?;
        Ok(control)
    }

    /// Begins to destroy the object: nothing can begin to use it. [`Error::Busy`] while something
    /// uses it.
    pub(crate) fn begin_destroy(&self) -> Result<Destroying<'_, O>, Error> {
        let control = self.control.lock(self.owner.platform());
        self.uses.close()?;
        Ok(Destroying { object: self, _control: control })
    }
}

/// An object that is being destroyed; its control lock is held.
pub(crate) struct Destroying<'a, O: ?Sized> {
    object: &'a Object<O>,
    _control: SleepGuard<'a>,
}

impl<O: Owner + ?Sized> Destroying<'_, O> {
    /// Goes by what the device answered. If it refused, the object lives on. Otherwise `remove`
    /// takes it out of where it can be found; it learns whether the device confirmed. `release`
    /// gives the number back, but only if the device confirmed: if it died instead, nothing will
    /// use the number again.
    pub(crate) fn finish(
        self,
        answer: Result<(), nic_hal::Error>,
        release: impl FnOnce(u32),
        remove: impl FnOnce(bool),
    ) -> Result<(), Error> {
        let Object { owner, counter, number, uses, .. } = self.object;
        if let Err(error @ nic_hal::Error::Command(_)) = answer {
            uses.reopen();
            return Err(error.into());
        }
        remove(answer.is_ok());
        owner.forget_object(*counter, *number);
        if answer.is_ok() {
            release(*number);
        }
        Ok(())
    }
}

/// Begins to use an object; [`Error::Gone`] if it is destroyed or about to be.
pub(crate) fn begin_use<T: Counted>(object: &Arc<T>) -> Result<Use<T>, Error> {
    Use::begin(object.clone()).ok_or(Error::Gone)
}
