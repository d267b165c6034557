//! Triggering the CNO of an event dispatcher, by a callback of the other face.
//!
//! The callback is attached while the event dispatcher has a CNO and no thread waits on it: a
//! waiter takes the events itself, and the CNO is not triggered meanwhile. All functions here run
//! with `changes` held.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::time::Duration;

use platform::Signal;
use platform::sync::atomic::Ordering;
use privileged_api as it;

use super::Evd;
use crate::cno::Cno;
use crate::error::state;
use crate::ia::Inner;
use crate::ret::{Error, Result, Subtype};

impl Inner {
    /// Replaces the CNO. Returns it if events are queued: the caller then triggers it, without
    /// `changes`, since that may run the consumer's agent.
    pub(super) fn set_cno(&self, evd: &Evd, cno: Option<Arc<Cno>>) -> Result<Option<Arc<Cno>>> {
        if let Some(cno) = &cno {
            platform::heap::room(CALLBACK)?;
            cno.join(evd.handle)?;
        }
        let waits = evd.control.lock().waiter;
        let former = evd.control.lock().cno.clone();
        if former.is_some() && !waits {
            // A routine that runs now finds that the event dispatcher has left the CNO.
            let _ = self.it.evd_callback_detach(evd.handle.inner());
        }
        if let Some(former) = former {
            former.leave(evd.handle);
        }
        evd.control.lock().cno = cno.clone();
        match cno {
            Some(cno) if !waits => self.attach(evd, cno.clone()).inspect_err(|_| {
                cno.leave(evd.handle);
                evd.control.lock().cno = None;
            }),
            _ => Ok(None),
        }
    }

    /// Removes the CNO of an event dispatcher that is being freed. Fails while an agent runs for
    /// it; that changes nothing, but the caller then triggers the CNO if it gets one.
    pub(super) fn detach_cno(&self, evd: &Evd) -> core::result::Result<(), (Error, Option<Arc<Cno>>)> {
        let (handle, cno) = (evd.handle.inner(), evd.control.lock().cno.clone());
        // Nobody waits on an event dispatcher that is being freed. Without the callback no upcall
        // begins, and the other face frees neither one whose upcall runs nor, since its streams
        // feed it, an aggregate.
        if cno.is_some() {
            let _ = self.it.evd_callback_detach(handle);
        }
        let refused = Err(it::Error::InvalidEvdState);
        let mut freed = self.it.evd_free(handle);
        if freed == refused && self.only_triggers(evd, cno.as_deref()) {
            freed = self.free_after_callback(handle);
        }
        if freed == refused {
            let due = cno.and_then(|cno| self.attach(evd, cno).unwrap_or_default());
            return Err((state(Subtype::InvalidStateEvdInUse), due));
        }
        if let Some(cno) = cno {
            cno.leave(evd.handle);
        }
        evd.control.lock().cno = None;
        Ok(())
    }

    /// Whether the callback that runs for an event dispatcher runs no agent and will run none, so
    /// that it returns soon. If so, the event dispatcher has left its CNO. False in upcalls:
    /// the callback that runs may be the one that makes this call.
    fn only_triggers(&self, evd: &Evd, cno: Option<&Cno>) -> bool {
        !self.it.in_callback()
            && match cno {
                Some(cno) => cno.leave_unless_busy(evd),
                None => evd.agents.load(Ordering::Acquire) == 0,
            }
    }

    /// Frees an event dispatcher of the other face when its callback has returned.
    fn free_after_callback(&self, handle: it::EvdHandle) -> it::Result<()> {
        let (platform, signal) = (self.platform(), Signal::new(self.platform().clone()));
        loop {
            // Nothing raises this signal: the wait ends when its time is over.
            signal.wait(signal.value(), Some(platform.now() + PAUSE));
            let freed = self.it.evd_free(handle);
            if freed != Err(it::Error::InvalidEvdState) {
                return freed;
            }
        }
    }

    /// Attaches the callback. Returns the CNO if events are queued: the callback reports only those
    /// that come after the queue was empty.
    fn attach(&self, evd: &Evd, cno: Arc<Cno>) -> Result<Option<Arc<Cno>>> {
        let handle = evd.handle;
        let trigger = cno.clone();
        let routine = Box::new(move |_: &it::Ia, _| trigger.trigger(handle));
        self.it.evd_callback_attach(handle.inner(), routine)?;
        Ok((self.it.evd_queued(handle.inner())? > 0).then_some(cno))
    }

    /// Takes the callback away for the time of a wait.
    pub(super) fn begin_wait(&self, evd: &Evd) {
        if evd.control.lock().cno.is_some() {
            // Fails only if the IA has ended.
            let _ = self.it.evd_callback_detach(evd.handle.inner());
        }
    }

    /// Attaches it again. Returns the CNO if it has to be triggered.
    pub(super) fn end_wait(&self, evd: &Evd) -> Option<Arc<Cno>> {
        let cno = evd.control.lock().cno.clone()?;
        // Fails only if the IA has ended.
        self.attach(evd, cno).ok().flatten()
    }
}

/// How long a free waits before it looks again whether a callback has returned.
const PAUSE: Duration = Duration::from_micros(50);
/// More than the routine takes.
const CALLBACK: usize = 64;
