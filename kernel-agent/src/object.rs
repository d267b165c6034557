//! What the objects of a client have in common: the client, a number, a use count, and how they are
//! destroyed.
//!
//! Locks: an object's `control` (sleeps): all commands to the device that concern the object.

use alloc::sync::Arc;

use platform::sleep_lock::{SleepGuard, SleepLock};
use platform::use_count::{Counted, Use, UseCount};

use crate::agent::Counter;
use crate::{Client, Error};

/// The common part of an object that can be destroyed while nothing uses it.
pub(crate) struct Object {
    client: Arc<Client>,
    counter: Counter,
    number: u32,
    control: SleepLock,
    uses: UseCount,
}

impl Object {
    /// An object with a number that was taken for it.
    pub(crate) fn new(client: &Arc<Client>, counter: Counter, number: u32) -> Object {
        Object { client: client.clone(), counter, number, control: SleepLock::new(), uses: UseCount::new() }
    }

    #[inline]
    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.client
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
        let control = self.control.lock(self.client.agent().platform());
        self.alive()?;
        Ok(control)
    }

    /// Begins to destroy the object: nothing can begin to use it. [`Error::Busy`] while something
    /// uses it.
    pub(crate) fn begin_destroy(&self) -> Result<Destroying<'_>, Error> {
        let control = self.control.lock(self.client.agent().platform());
        self.uses.close()?;
        Ok(Destroying { object: self, _control: control })
    }
}

/// An object that is being destroyed; its control lock is held.
pub(crate) struct Destroying<'a> {
    object: &'a Object,
    _control: SleepGuard<'a>,
}

impl Destroying<'_> {
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
        let Object { client, counter, number, uses, .. } = self.object;
        if let Err(error @ nic_hal::Error::Command(_)) = answer {
            uses.reopen();
            return Err(error.into());
        }
        remove(answer.is_ok());
        client.forget_object(*counter, *number);
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
