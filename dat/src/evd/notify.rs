//! Triggers the CNO of an event dispatcher, by a callback of IT-API.
//!
//! The callback is attached while the event dispatcher has a CNO and no thread waits on it: a
//! waiter takes the events itself, and the CNO is not triggered during the wait. The caller of each
//! function here holds `changes`.

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
    /// Replaces the CNO. Returns the new one if events are queued: the caller then releases
    /// `changes` and triggers it, which may run the consumer's agent.
    pub(super) fn set_cno(&self, evd: &Evd, cno: Option<Arc<Cno>>) -> Result<Option<Arc<Cno>>> {
        if let Some(cno) = &cno {
            platform::heap::room(CALLBACK)?;
            cno.join(evd.handle)?;
        }
        let waits = evd.control.lock().waiter;
        let former = evd.control.lock().cno.clone();
        if former.is_some() && !waits {
            // A callback that runs already finds that the event dispatcher has left the CNO.
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

    /// Removes the CNO of an event dispatcher that is being freed. Fails, without a change, while
    /// an agent runs for the event dispatcher; if the error holds a CNO, the caller triggers it.
    pub(super) fn detach_cno(&self, evd: &Evd) -> core::result::Result<(), (Error, Option<Arc<Cno>>)> {
        let (handle, cno) = (evd.handle.inner(), evd.control.lock().cno.clone());
        // No thread waits on an event dispatcher that is being freed. Once the callback is detached
        // no upcall begins. IT-API's free fails with `InvalidEvdState` while an upcall runs.
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
    /// that it returns soon. If so, the event dispatcher has left its CNO. False in upcalls: the
    /// running callback may be the caller.
    fn only_triggers(&self, evd: &Evd, cno: Option<&Cno>) -> bool {
        !self.it.in_callback()
            && match cno {
                Some(cno) => cno.leave_unless_busy(evd),
                None => evd.agents.load(Ordering::Acquire) == 0,
            }
    }

    /// Frees an IT-API event dispatcher when its callback has returned.
    fn free_after_callback(&self, handle: it::EvdHandle) -> it::Result<()> {
        let (platform, signal) = (self.platform(), Signal::new(self.platform().clone()));
        loop {
            // No thread raises this signal: the wait ends by its timeout.
            signal.wait(signal.value(), Some(platform.now() + PAUSE));
            let freed = self.it.evd_free(handle);
            if freed != Err(it::Error::InvalidEvdState) {
                return freed;
            }
        }
    }

    /// Attaches the callback. Returns the CNO if events are queued: the callback reports only
    /// events that come after the queue was empty, so the caller has to trigger the CNO.
    fn attach(&self, evd: &Evd, cno: Arc<Cno>) -> Result<Option<Arc<Cno>>> {
        let handle = evd.handle;
        let trigger = cno.clone();
        let routine = Box::new(move |_: &it::Ia, _| trigger.trigger(handle));
        self.it.evd_callback_attach(handle.inner(), routine)?;
        Ok((self.it.evd_queued(handle.inner())? > 0).then_some(cno))
    }

    /// Detaches the callback during a wait.
    pub(super) fn begin_wait(&self, evd: &Evd) {
        if evd.control.lock().cno.is_some() {
            // Fails only if the IA has ended.
            let _ = self.it.evd_callback_detach(evd.handle.inner());
        }
    }

    /// Attaches the callback after a wait. Returns the CNO if the caller has to trigger it.
    pub(super) fn end_wait(&self, evd: &Evd) -> Option<Arc<Cno>> {
        let cno = evd.control.lock().cno.clone()?;
        // Fails only if the IA has ended.
        self.attach(evd, cno).ok().flatten()
    }
}

/// How long a free waits before it checks again whether a callback has returned.
const PAUSE: Duration = Duration::from_micros(50);
/// The size of the callback is below this.
const CALLBACK: usize = 64;
